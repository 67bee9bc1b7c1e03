#!/bin/sh
# Write a kubeconfig for each process, with a token of its service account, by the administrator's kubeconfig of k3s.
# PERSON gets a copy of the administrator's, for whoever owns this script on the host. Every file is its owner's alone,
# and no token is an argument of a program: whoever lists processes sees those.
# For docker-compose.yml. In a cluster the pods have their service accounts.
#   kubeconfigs.sh ADMIN_KUBECONFIG SERVER DIRECTORY PERSON
set -eu
umask 077
admin=$1
server=$2
directory=$3
person=$4

shown() {
  kubectl --kubeconfig "$admin" config view --raw --flatten --minify --output "jsonpath={.clusters[0].cluster.$1}"
}

authority=$(shown certificate-authority-data)

for process in webhooks controller certs; do
  account=bizrq-$process
  file=$directory/$process
  # k3s applies deploy/rbac.yaml a moment after it is ready.
  until token=$(kubectl --kubeconfig "$admin" --namespace bizrq-system create token "$account" --duration=8760h); do
    sleep 1
  done
  cat >"$file.new" <<END
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {server: "$server", certificate-authority-data: "$authority"}
users:
- name: $account
  user: {token: "$token"}
contexts:
- name: default
  context: {cluster: default, user: $account}
current-context: default
END
  # The user of the Dockerfile.
  chown 10001:10001 "$file.new"
  chmod 0400 "$file.new"
  mv -f "$file.new" "$file"
done

cp "$admin" "$person.new"
# Of `ls -ln` the third and the fourth word are the owner's numbers.
# shellcheck disable=SC2046
set -- $(ls -ln "$0")
chown "$3:$4" "$person.new"
mv -f "$person.new" "$person"
