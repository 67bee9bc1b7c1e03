"""What a workload's controller may scale instead of its template: older versions that still run, or that it adopts.

A Deployment's controller scales what there is before it replaces it: a paused or unfinished rollout in proportion, and
ReplicaSets that it adopts. A Rollout's controller scales the stable version with the canary or preview, and versions
that it has yet to scale down. A StatefulSet's controller makes the pods below its partition of the old revision. So
pods that a scale-up adds may be larger than the template says. This file alone decides which templates those may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bizrq.kube.client import NotFound, Resource
from bizrq.quota.change import Charge, OlderVersion
from bizrq.units.resources import Resources, growth, larger, scale, total
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.observation import has_observed
from bizrq.workloads.ownership.payers import keeps, selector_of
from bizrq.workloads.ownership.waiting import current_version
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.payers import is_going
from webhooks.charging.stored import list_kinds

Object = dict[str, Any]

#: The revisions of a StatefulSet's template.
REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
#: Kinds that make one for each version have their older versions in them.
_REPLICA_SET: Final = ("apps", "ReplicaSet")
_ROLLOUT: Final = ("argoproj.io", "Rollout")
#: The label of a Rollout's ReplicaSets by which its status names them (argo-rollouts pkg/apis/rollouts/v1alpha1).
_ROLLOUT_HASH: Final = "rollouts-pod-template-hash"


class Version(NamedTuple):
    """A workload with an older template, and what people know that by: a name, its pods, and when it was made."""

    workload: Object
    name: str
    pods: int
    since: str


class OlderVersions:
    """Finds older versions in one cluster."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(self, adapter: Adapter, new: Object, old: Object | None, deadline: Deadline) -> Sequence[Version]:
        """Return the object once with each older template of which a write may add pods; none where it adds none.

        Raises ApiError, Unreachable.
        """
        before, after = _replicas(old) if old is not None else 0, _replicas(new)
        if after <= max(before, 1):
            return ()
        if (adapter.group, adapter.kind) == ("apps", "StatefulSet"):
            return await self._revisions(new, old, before, deadline)
        if _REPLICA_SET in adapter.creates and self._may_have_older(adapter, new, old):
            made = await self._replica_sets(adapter, new, old, deadline)
            return [_version(new, _template(obj), obj, _replicas(obj)) for obj in made]
        return ()

    def _may_have_older(self, adapter: Adapter, new: Object, old: Object | None) -> bool:
        """Return False where all pods have the template that is asked for, before and after the write.

        A new object has none but what it adopts: what another left, or where it is paused and so makes no version of
        its own, any ReplicaSet. Whoever may edit a Rollout may write its status, so it proves nothing.
        """
        if old is None:
            is_paused = bool(_map(new, "spec").get("paused"))
            return is_paused or self._context.payers.left_in(str(_map(new, "metadata").get("namespace")))
        if (adapter.group, adapter.kind) == _ROLLOUT or not has_observed(old) or _template(old) != _template(new):
            return True
        status, replicas = _map(old, "status"), _replicas(old)
        return not (replicas and replicas == status.get("replicas") == status.get("updatedReplicas"))

    async def _replica_sets(
        self, adapter: Adapter, new: Object, old: Object | None, deadline: Deadline
    ) -> list[Object]:
        """Return the ReplicaSets that its controller scales. Raises ApiError, Unreachable."""
        kind = self._context.registry.by_kind(*_REPLICA_SET)
        if kind is None:
            return []
        uid, namespace = _map(old or {}, "metadata").get("uid"), _map(new, "metadata").get("namespace", "")
        listed = await list_kinds(self._context, [kind], namespace, deadline)
        # A Rollout may take the selector of what it refers to. What it adopts by that is not found here.
        adopts = bool(selector_of(new))
        made = [obj for _, obj in listed if _is_its(obj, uid, adopts) and keeps(new, obj)]
        if (adapter.group, adapter.kind) == _ROLLOUT:
            # The stable version is scaled even where it has no pods. The current one costs what the Rollout asks for.
            return [obj for obj in made if _replicas(obj) or _is_stable(obj, old)]
        current = current_version(new, made)
        active = [obj for obj in made if _replicas(obj)]
        if not active and current is None:
            # Where no version runs, the newest is scaled.
            active = sorted(made, key=lambda obj: str(obj["metadata"].get("creationTimestamp")))[-1:]
        return [obj for obj in active if obj["metadata"].get("uid") != current]

    async def _revisions(self, new: Object, old: Object | None, before: int, deadline: Deadline) -> list[Version]:
        """Return the object with the template of the revision below the partition. Raises ApiError, Unreachable."""
        if old is None or _partition(new) <= before:
            return []
        status, is_same = _map(old, "status"), _template(old) == _template(new)
        name = status.get("currentRevision")
        if has_observed(old) and is_same and name == status.get("updateRevision"):
            return []
        found: list[Version] = []
        if not is_same:
            # The revision of the stored template may not exist yet.
            stored = _version(new, _template(old), old, _number(status.get("replicas"), 0))
            found.append(stored._replace(name="the stored template", since=""))
        if isinstance(name, str) and name:
            namespace, timeout = _map(old, "metadata").get("namespace"), deadline.seconds_left()
            with suppress(NotFound):
                revision = await self._context.client.get(REVISIONS, name, namespace, timeout=timeout)
                pods = _number(status.get("currentReplicas"), 0)
                found.append(_version(new, _template(_map(revision, "data")), revision, pods))
        return found


def with_older(demand: Demand, before: Demand | None, older: Sequence[Demand]) -> tuple[Demand, Demand | None]:
    """Return what a scale-up asks for, and what the stored object did, where added pods may be of an older version.

    Each added pod costs what the largest version does. That the stored ones cost so is no growth.
    """
    largest: Resources = {}
    for each in older:
        largest = larger(largest, _per_pod(each))
    return _at(demand, largest), _at(before, largest) if before is not None else None


def explained(charge: Charge, plain: Resources, versions: Sequence[Version], demands: Sequence[Demand]) -> Charge:
    """Return the charge with the older versions that raise it. `plain` is its growth without them."""
    older = [
        OlderVersion(version.name, version.pods, version.since, _per_pod(demand))
        for version, demand in zip(versions, demands, strict=True)
    ]
    return replace(charge, older=older, because_older=growth(charge.growth(), plain))


def _per_pod(demand: Demand) -> Resources:
    found: Resources = {}
    for role in demand.roles:
        found = larger(found, role.per_pod)
    return found


def _at(demand: Demand, largest: Resources) -> Demand:
    more = [scale(growth(largest, role.per_pod), role.replicas) for role in demand.roles]
    roles = tuple(replace(role, per_pod=larger(role.per_pod, largest)) for role in demand.roles)
    return replace(demand, resources=total((demand.resources, *more)), roles=roles)


def _version(workload: Object, template: Object, of: Object, pods: int) -> Version:
    """Return a workload with another template in place of its own, or of the one that it refers to."""
    spec = {key: value for key, value in _map(workload, "spec").items() if key != "workloadRef"}
    metadata = _map(of, "metadata")
    name, since = f"{of.get('kind')} {metadata.get('name')}", metadata.get("creationTimestamp")
    return Version({**workload, "spec": {**spec, "template": template}}, name, pods, str(since or ""))


def _is_stable(obj: Object, rollout: Object | None) -> bool:
    """Return True for the ReplicaSet that a Rollout goes back to (argo-rollouts utils/replicaset, GetStableRS)."""
    stable = _map(rollout or {}, "status").get("stableRS")
    return bool(stable) and _map(_map(obj, "metadata"), "labels").get(_ROLLOUT_HASH) == stable


def _is_its(obj: Object, uid: str | None, adopts: bool) -> bool:
    """Return True for a ReplicaSet that an object has, or that it may adopt."""
    controller = controller_of(obj["metadata"])
    return adopts and not is_going(obj) if controller is None else controller.get("uid") == uid


def _template(obj: Object) -> Object:
    return _map(_map(obj, "spec"), "template")


def _replicas(obj: Object) -> int:
    return _number(_map(obj, "spec").get("replicas"), 1)


def _partition(obj: Object) -> int:
    return _number(_map(_map(_map(obj, "spec"), "updateStrategy"), "rollingUpdate").get("partition"), 0)


def _map(obj: Object, key: str) -> Object:
    found = obj.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
