"""The processes' own service accounts on a real cluster, with the rights that `bizrq install` gives them.

The sandbox has no rights: there the kubeconfig of the cluster is everybody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import yaml

from bizrq.cli import rbac
from bizrq.cli.manifests_of_bizrq import priority_objects, resource_of
from bizrq.kube.client import AlreadyExists, KubeClient
from bizrq.settings import load
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from bizrq.workloads.kinds.registry import Registry
from tests.support import objects
from tests.support.cluster import Cluster, eventually, write_kubeconfig

#: Where bizrq runs.
SYSTEM = "bizrq-system"
#: The role to lead, and its binding.
LEASE_ROLE = "bizrq-lease"
#: Longer than any run takes.
_SECONDS = 86_400


async def give_rights(admin: KubeClient, registry: Registry) -> None:
    """Store the accounts, their roles and their API priority, and wait until the roles count."""
    await store(admin, (manifest.document for manifest in rbac.manifests(registry, SYSTEM)))
    await store(admin, priority_objects(SYSTEM))
    attributes = {"group": GROUPS.group, "resource": GROUPS.plural, "verb": "list"}
    for account in (rbac.WEBHOOKS, rbac.CONTROLLER):
        spec = {"user": f"system:serviceaccount:{SYSTEM}:{account}", "resourceAttributes": attributes}
        review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}

        async def counts(review: dict[str, Any] = review) -> bool:
            return (await admin.create(ACCESS_REVIEWS, review))["status"]["allowed"]

        await eventually(counts, 60, f"{account} has its rights")


async def give_lease(admin: KubeClient, namespace: str) -> None:
    """Let the controller's account lead in another namespace, too."""
    documents = (manifest.document for manifest in rbac.manifests(load(None).registry, SYSTEM))
    await store(
        admin,
        (
            {**document, "metadata": {**document["metadata"], "namespace": namespace}}
            for document in documents
            if document["metadata"]["name"] == LEASE_ROLE
        ),
    )


async def store(admin: KubeClient, documents: Iterable[dict[str, Any]]) -> None:
    """Create these objects; of a role that is there, replace the rules."""
    for document in documents:
        resource, metadata = resource_of(document), document["metadata"]
        try:
            await admin.create(resource, document)
        except AlreadyExists:
            if "rules" in document:
                rules, namespace = {"rules": document["rules"]}, metadata.get("namespace")
                await admin.patch(resource, metadata["name"], rules, namespace=namespace)


async def token_of(admin: KubeClient, account: str, namespace: str = SYSTEM) -> str:
    """Return a token of this service account."""
    spec = {"expirationSeconds": _SECONDS}
    body = orjson.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return orjson.loads(await admin.request("POST", path, body=body))["status"]["token"]


async def bearer(admin: KubeClient, name: str, *roles: str) -> str:
    """Return a token of a new service account in the namespace default, bound to these ClusterRoles."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await admin.request("POST", "/api/v1/namespaces/default/serviceaccounts", body=orjson.dumps(account))
    for role in roles:
        binding = objects.bound(role, name)
        binding["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
        await admin.create(objects.CLUSTER_ROLE_BINDINGS, binding)
    return await token_of(admin, name, "default")


async def kubeconfig_of(admin: KubeClient, cluster: Cluster, account: str, folder: Path) -> Path:
    """Write a kubeconfig with a token of this service account, and return its path."""
    if not cluster.is_real:
        return cluster.kubeconfig
    there = yaml.safe_load(cluster.kubeconfig.read_text("utf-8"))["clusters"][0]["cluster"]
    return write_kubeconfig(folder / f"{account}.kubeconfig", there, await token_of(admin, account))
