"""What a namespace has of an installation, read once before `bizrq install` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bizrq import registration
from bizrq.api import priority
from bizrq.cli.manifests_of_bizrq import CLIENT_CA, CONFIG, resource_of
from bizrq.cli.rbac import CERTS, CONTROLLER, WEBHOOKS
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.store.processes import WEB

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The stored objects of an installation; by default nothing is installed.

    A registration without our Deployments is of processes that somebody runs in another way: it is not `is_new`.
    `deployments` are those of the processes, by name. `elsewhere` is another namespace with webhooks that have the
    rights. `has_priority` is False for who may not see API priority, and so not change it either.
    """

    is_new: bool = True
    deployments: Mapping[str, Object] = field(default_factory=dict)
    elsewhere: str = ""
    config: Object | None = None
    client_ca: Object | None = None
    network_policy: Object | None = None
    has_priority: bool = False


async def read(client: KubeClient, namespace: str) -> Installed:
    """Return what is installed. Raise ApiError or Unreachable."""
    elsewhere = await _elsewhere(client, namespace)
    found = {name: await _stored(client, namespace, "Deployment", name) for name in (CERTS, WEBHOOKS, CONTROLLER, WEB)}
    deployments = {name: deployment for name, deployment in found.items() if deployment is not None}
    is_known = WEBHOOKS in deployments or await _stored(client, namespace, REGISTRATIONS.kind, registration.NAME)
    return Installed(
        is_new=not is_known,
        deployments=deployments,
        elsewhere=elsewhere,
        config=await _stored(client, namespace, "ConfigMap", CONFIG),
        client_ca=await _stored(client, namespace, "ConfigMap", CLIENT_CA),
        network_policy=await _stored(client, namespace, "NetworkPolicy", WEBHOOKS),
        has_priority=await _has_priority(client),
    )


async def _elsewhere(client: KubeClient, namespace: str) -> str:
    """Return another namespace in which the processes run, "" for none."""
    binding = await _stored(client, namespace, "ClusterRoleBinding", WEBHOOKS)
    for other in sorted({subject.get("namespace") or "" for subject in (binding or {}).get("subjects") or ()}):
        if other not in ("", namespace) and await _stored(client, other, "Deployment", WEBHOOKS):
            return other
    return ""


async def _has_priority(client: KubeClient) -> bool:
    try:
        return await _stored(client, "", priority.KINDS[0], priority.LEVEL) is not None
    except Forbidden:
        return False


async def _stored(client: KubeClient, namespace: str, kind: str, name: str) -> Object | None:
    resource = resource_of({"kind": kind})
    try:
        return await client.get(resource, name, namespace if resource.namespaced else None)
    except NotFound:
        return None
