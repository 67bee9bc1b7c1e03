#!/bin/sh
# Write the images of the Dockerfile and of docker-compose.yml to FILE, each with the digest that its registry has now.
# Docker compares what it pulls with the digest. So a tag that is moved changes nothing until this runs again.
#   images.sh FILE
set -eu
file=$1

pinned() {
  digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$2")
  echo "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}' || { echo "no digest of $2: $digest" >&2; exit 1; }
  echo "$1=$2@$digest"
}

found=$(
  pinned PYTHON_IMAGE docker.io/library/python:3.11-slim
  pinned K3S_IMAGE docker.io/rancher/k3s:v1.36.1-k3s1
)
echo "$found" >"$file"
