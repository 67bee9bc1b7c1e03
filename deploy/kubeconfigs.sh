#!/bin/sh
# Write a kubeconfig for each process, with a token of its service account, from the administrator's kubeconfig of k3s.
# For docker-compose.yml. In a cluster the pods have their service accounts.
#   kubeconfigs.sh ADMIN_KUBECONFIG SERVER DIRECTORY
set -eu
admin=$1
server=$2
directory=$3

for process in webhooks controller certs; do
  account=bizrq-$process
  file=$directory/$process
  # k3s applies deploy/rbac.yaml a moment after it is ready.
  until token=$(kubectl --kubeconfig "$admin" --namespace bizrq-system create token "$account" --duration=8760h); do
    sleep 1
  done
  cp "$admin" "$file"
  # Cluster, context and user of k3s' kubeconfig are all named default. Remove the administrator's credentials.
  kubectl config --kubeconfig "$file" set-cluster default --server="$server"
  kubectl config --kubeconfig "$file" delete-user default
  kubectl config --kubeconfig "$file" set-credentials "$account" --token="$token"
  kubectl config --kubeconfig "$file" set-context default --user="$account"
  # The user of the Dockerfile.
  chown 10001:10001 "$file"
  chmod 0400 "$file"
done
