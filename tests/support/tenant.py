"""A person with the role `edit` in one namespace, and a group that this namespace belongs to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bizrq.api import group as wire
from bizrq.kube.client import ApiError, KubeClient, Resource, TooManyRequests
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, Object, deployment
from tests.support.proxy import Proxy

REPLICATION_CONTROLLERS = Resource("", "v1", "replicationcontrollers", "ReplicationController")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


@dataclass(frozen=True)
class Tenant:
    """`client` is the person's own, `name` the name of the namespace and of the group."""

    admin: KubeClient
    client: KubeClient
    name: str

    async def create(self, resource: Resource, obj: Object) -> Object:
        return await self.client.create(resource, obj)

    async def patch(self, resource: Resource, name: str, change: Mapping[str, Any]) -> Object:
        return await self.client.patch(resource, name, dict(change), namespace=self.name)

    async def scale(self, resource: Resource, name: str, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await self.client.patch(resource, name, body, namespace=self.name, subresource="scale")

    async def delete(self, resource: Resource, name: str, policy: str = "Background", grace: int | None = None) -> None:
        options: Object = {"propagationPolicy": policy}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self.client.request("DELETE", resource.path(self.name, name), body=orjson.dumps(options))

    async def pods(self) -> list[Object]:
        """The stored pods that have not ended, those that are being deleted included."""
        pods = (await self.admin.list(PODS, self.name))[0]
        return [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]

    async def running(self, count: int, what: str = "") -> list[Object]:
        """The pods that are bound and not being deleted, once they are so many."""
        last: list[list[Object]] = [[]]

        async def are() -> list[Object] | None:
            last[0] = [
                pod
                for pod in await self.pods()
                if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            ]
            return last[0] if len(last[0]) == count else None

        if not count:
            await eventually(lambda: _none(are), 60, f"no pods {what}")
            return []
        found = await eventually(are, 60, lambda: f"{count} pods {what}, not {len(last[0])}")
        assert found is not None
        return found

    async def live(self) -> int:
        """The cores of the pods that there are: each has one."""
        return len(await self.pods())

    async def uses(self, cpu: str) -> None:
        """Wait until so much is used, nothing is promised, and the pods are as many."""
        last: list[object] = []

        async def settled() -> bool:
            found = wire.from_dict(await self.admin.get(GROUPS, self.name))
            last[:] = [found.status, await self.live()]
            is_used = (found.status.used or {}).get("limits.cpu") == cpu and not found.status.reservations
            return is_used and last[1] == int(cpu)

        await eventually(settled, 60, lambda: last)

    async def conditions(self) -> set[str]:
        status = wire.from_dict(await self.admin.get(GROUPS, self.name)).status
        return {condition.type for condition in status.conditions if condition.status == "True"}

    async def has_default(self, **labels: str) -> None:
        """Label the tenant's namespace as its administrator does, and wait until the webhooks know."""

        async def labelled() -> bool:
            """Once the webhooks answer in time what the namespace charges."""
            change = {"metadata": {"labels": labels or {LABEL: self.name}}}
            try:
                await self.admin.patch(NAMESPACES, self.name, change)
            except TooManyRequests:
                return False
            return True

        await eventually(labelled, 60, "the namespace is labelled")

        async def known() -> bool:
            """As soon as a create that is too large is refused."""
            try:
                await self.client.create(DEPLOYMENTS, deployment("probe", None, 99, namespace=self.name), dry_run=True)
            except ApiError:
                return True
            return False

        await eventually(known, 30, "the namespace's labels count")


async def _none(are: Any) -> bool:
    return await are() == []


@contextlib.asynccontextmanager
async def tenant_of(cluster: Cluster, admin: KubeClient, namespace: str, folder: Path) -> AsyncIterator[Tenant]:
    """A person of the namespace's name with the role `edit` in it; a group of that name has to be there."""
    api = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": ROLE_BINDINGS.api_version,
        "kind": ROLE_BINDINGS.kind,
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"kind": "ClusterRole", "apiGroup": api, "name": "edit"},
        "subjects": [{"kind": "User", "apiGroup": api, "name": namespace}],
    }
    await admin.create(ROLE_BINDINGS, binding)
    async with (
        Proxy(cluster.kubeconfig, {"Impersonate-User": namespace}) as proxy,
        KubeClient.from_kubeconfig(proxy.write_kubeconfig(folder / f"{namespace}.kubeconfig")) as person,
    ):

        async def bound() -> bool:
            with contextlib.suppress(ApiError):
                await person.list(REPLICATION_CONTROLLERS, namespace)
                return True
            return False

        await eventually(bound, 30, "the tenant has the role")
        yield Tenant(admin, person, namespace)
