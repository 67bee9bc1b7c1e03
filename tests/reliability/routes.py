"""What the tests of routes share: workloads as tenants write them, and attempts that may be refused.

A route is a way in which a tenant tries to run more than the group has. It may be refused at any step: what is judged
are the pods that there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bizrq.api import group as wire
from bizrq.kube.client import ApiError, KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import parse
from bizrq.workloads.labels import LABEL
from sandbox.kubelet import STOP_SECONDS
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods
from tests.support.objects import CONFIG_MAPS, PODS, RAYCLUSTERS, REPLICASETS, Object, deployment, group, ray_spec
from tests.support.tenant import (
    DAEMONSETS,
    JOBS,
    REPLICATION_CONTROLLERS,
    ROLE_BINDINGS,
    ROLES,
    STATEFULSETS,
    Tenant,
)

DAY = 86_400
#: Of a Deployment: its rollouts do not end.
SLOWLY: Object = {"minReadySeconds": 3600, "progressDeadlineSeconds": 7200}
STRATEGIC = "application/strategic-merge-patch+json"
#: Answers that a tenant's attempt may get: refused, gone, taken or stale, malformed, later.
REFUSED = frozenset({400, 403, 404, 409, 422, 429})


async def attempt(request: Awaitable[object]) -> ApiError | None:
    """Return the refusal of a request, None for a yes."""
    try:
        await request
    except ApiError as error:
        if error.status not in REFUSED:
            raise
        return error
    return None


async def attempts(requests: Iterable[Awaitable[object]]) -> int:
    """Send all at once; return how many were allowed."""
    return sum(refused is None for refused in await asyncio.gather(*map(attempt, requests)))


async def for_a_while(check: Callable[[], Awaitable[bool]], seconds: float = 2.0) -> bool:
    """Wait for what a route wants, which a refusal may keep from coming."""
    until = time.monotonic() + seconds
    while not await check():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.05)
    return True


async def has_running(tenant: Tenant, count: int) -> bool:
    pods = await tenant.pods()
    return sum("deletionTimestamp" not in pod["metadata"] for pod in pods) >= count


def web(
    tenant: Tenant,
    replicas: int,
    *,
    name: str = "web",
    app: str = "x",
    cpu: str = "1",
    slow: bool = False,
    label: str | None = "",
    pods: Object | None = None,
    **spec: Any,
) -> Object:
    """A Deployment of the tenant's group; `label` None has none, `pods` are labels of its template.

    Its pods are slow to stop where `slow` says so: they take a day.
    """
    made = deployment(name, tenant.name if label == "" else label, replicas, namespace=tenant.name, cpu=cpu)
    made["spec"]["selector"] = {"matchLabels": {"app": app}}
    made["spec"]["template"]["metadata"]["labels"] = {"app": app, **(pods or {})}
    if slow:
        slowly(made["spec"]["template"])
    made["spec"].update(spec)
    return made


def slowly(template: Object) -> None:
    template["metadata"].setdefault("annotations", {})[STOP_SECONDS] = str(DAY)
    template["spec"]["terminationGracePeriodSeconds"] = DAY


def of_kind(resource: Resource, made: Object) -> Object:
    """The Deployment as another kind that makes pods."""
    made = {**made, "apiVersion": resource.api_version, "kind": resource.kind, "spec": dict(made["spec"])}
    spec = made["spec"]
    if resource is REPLICATION_CONTROLLERS:
        spec["selector"] = spec["selector"]["matchLabels"]
    elif resource is STATEFULSETS:
        spec |= {"serviceName": "none", "podManagementPolicy": "Parallel"}
    elif resource is JOBS:
        spec["parallelism"] = spec.pop("replicas")
        spec["template"]["spec"]["restartPolicy"] = "Never"
        del spec["selector"]
    elif resource is DAEMONSETS:
        del spec["replicas"]
    return made


def pod(tenant: Tenant, name: str, *, label: str | None = "", app: str = "p", slow: bool = False) -> Object:
    """A pod of one core."""
    made = web(tenant, 1, app=app, slow=slow, pods=_group(tenant, label))
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "name": name, "namespace": tenant.name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _group(tenant: Tenant, label: str | None) -> Object:
    return {} if label is None else {LABEL: label or tenant.name}


def owned(obj: Object, kind: str, name: str, uid: str, version: str = "apps/v1") -> Object:
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def replica_set(tenant: Tenant, name: str, replicas: int, *, label: str | None = "", **how: Any) -> Object:
    made = of_kind(REPLICASETS, web(tenant, replicas, name=name, label=label, **how))
    return {**made, "kind": "ReplicaSet"}


async def of_deployment(tenant: Tenant, name: str = "web") -> list[Object]:
    """The ReplicaSets whose names say that they are the Deployment's."""
    found = (await tenant.admin.list(REPLICASETS, tenant.name))[0]
    return [each for each in found if each["metadata"]["name"].startswith(f"{name}-")]


async def relabel_pods(tenant: Tenant, labels: Object, count: int) -> int:
    """Relabel the pods that run, and wait a while until others are there instead; return how many it was allowed."""
    pods = [pod for pod in await tenant.pods() if "deletionTimestamp" not in pod["metadata"]]
    if labels.get("app"):
        pods = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get("app") != labels["app"]]
    change = {"metadata": {"labels": labels}}
    allowed = await attempts(tenant.patch(PODS, pod["metadata"]["name"], change) for pod in pods[:count])
    if allowed:
        await for_a_while(lambda: has_running(tenant, len(pods) + allowed))
    return allowed


async def counted(client: KubeClient, name: str) -> None:
    """Wait until a group has been counted."""

    async def is_counted() -> bool:
        return wire.from_dict(await client.get(GROUPS, name)).status.used is not None

    await eventually(is_counted, 30, f"{name} is counted")


async def another_group(tenant: Tenant, suffix: str) -> str:
    """Make another group of four cores, which takes workloads of any namespace. Return its name once it is counted."""
    name = f"{tenant.name}-{suffix}"
    await tenant.admin.create(GROUPS, group(name, cpu="4"))
    await counted(tenant.admin, name)
    return name


async def fit(tenant: Tenant, other: str, both: LivePods) -> None:
    """All that runs is charged, and each of both groups has room for what it is charged."""
    await both.settled()
    found: list[wire.GroupStatus] = []

    async def within() -> bool:
        found[:] = [wire.from_dict(await tenant.admin.get(GROUPS, name)).status for name in (tenant.name, other)]
        return all(parse((status.used or {})["limits.cpu"]) <= parse("4") for status in found)

    await eventually(within, 10, lambda: f"neither group uses more than it has: {found}")


async def used(client: KubeClient, name: str) -> str:
    """Return the cores that a counted group uses."""
    return str((wire.from_dict(await client.get(GROUPS, name)).status.used or {})["limits.cpu"])


async def cores(tenant: Tenant, name: str) -> int:
    return int(await used(tenant.admin, name))


async def gone(tenant: Tenant, resource: Resource, name: str) -> None:
    async def is_gone() -> bool:
        with contextlib.suppress(ApiError):
            await tenant.admin.get(resource, name, tenant.name)
            return False
        return True

    await for_a_while(is_gone, 10)


async def owned_by_map(tenant: Tenant, obj: Object) -> Object:
    """The object with the ConfigMap `owner`, so that the garbage collector deletes it once that one is deleted."""
    about = {"name": "owner", "namespace": tenant.name}
    owner = await tenant.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def image_of(image: str, cpu: str | None = None) -> Object:
    """A strategic merge patch with another image, and another amount."""
    container: Object = {"name": "c", "image": image}
    if cpu is not None:
        container["resources"] = {part: {"cpu": cpu} for part in ("limits", "requests")}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


async def changed(tenant: Tenant, resource: Resource, name: str, change: Object) -> None:
    """Apply a strategic merge patch, which may be refused."""
    await attempt(tenant.client.patch(resource, name, change, namespace=tenant.name, content_type=STRATEGIC))


async def may_operate(tenant: Tenant, resource: Resource) -> None:
    """Let the tenant write objects of an operator's kind: the role `edit` does not have it."""
    name, api = f"operates-{resource.plural}", "rbac.authorization.k8s.io"
    metadata = {"name": name, "namespace": tenant.name}
    rules = [{"apiGroups": [resource.group], "resources": ["*"], "verbs": ["*"]}]
    role = {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    await tenant.admin.create(ROLES, role)
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": api, "kind": "User", "name": tenant.name}],
    }
    await tenant.admin.create(ROLE_BINDINGS, binding)

    async def may() -> bool:
        with contextlib.suppress(ApiError):
            await tenant.client.list(resource, tenant.name)
            return True
        return False

    await eventually(may, 30, f"the tenant may write {resource.plural}")


async def operated(tenant: Tenant, kind: Resource, spec: Object) -> str:
    """Create a workload of an operator's kind, `own`, of the tenant's group; return its uid."""
    await may_operate(tenant, kind)
    metadata = {"name": "own", "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    made = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
    return str((await tenant.create(kind, made))["metadata"]["uid"])


def one_by_one(tenant: Tenant, label: str | None = "") -> Object:
    """A StatefulSet of four pods whose controller waits an hour between two of them; the sandbox's does not."""
    made = of_kind(STATEFULSETS, web(tenant, 4, label=label, minReadySeconds=3600))
    made["spec"]["podManagementPolicy"] = "OrderedReady"
    return made


def ray_cluster(tenant: Tenant, name: str, workers: int) -> Object:
    """A head and so many workers, of one core each, without anybody who makes their pods."""
    metadata = {"name": name, "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    spec = ray_spec(workers)
    return {"apiVersion": RAYCLUSTERS.api_version, "kind": RAYCLUSTERS.kind, "metadata": metadata, "spec": spec}
