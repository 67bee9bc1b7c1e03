"""What a workload's controller may scale instead of its template: older versions that still run, or that it adopts.

A Deployment's controller scales what there is before it replaces it: a paused or unfinished rollout in proportion, and
ReplicaSets that it adopts. A Rollout's controller scales the stable version with the canary or preview, and versions
that it has yet to scale down. A StatefulSet's controller makes the pods below its partition of the revision that it
took for the current one, which the status may not say yet. So pods that are added, or made anew, may be larger than the
template says. This file alone decides which templates those may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from msgspec import structs

from bizrq.kube.client import NotFound
from bizrq.quota.change import Charge, OlderVersion
from bizrq.store.reference_resolver import REVISIONS, resource_of
from bizrq.units.resources import Resources, growth, larger, scale, total
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.kinds.declaration import DEPLOYMENT, REPLICA_SET, ROLLOUT, STATEFUL_SET, Adapter
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.observation import has_observed, unobserved
from bizrq.workloads.ownership.own_labels import ROLLOUT_HASH
from bizrq.workloads.ownership.payers import keeps, selector_of
from bizrq.workloads.ownership.takeover import replicas_of, takeover
from bizrq.workloads.ownership.waiting import current_version
from bizrq.workloads.special.statefulset import partition
from bizrq.workloads.validation import map_at
from webhooks.charging.charges import Busy, display_name
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import is_going, list_kinds, list_stored

Object = dict[str, Any]


class Version(NamedTuple):
    """A workload with an older template, and what people know that by: a name, its pods, and when it was made."""

    workload: Object
    name: str
    pods: int
    since: str


class Older(NamedTuple):
    """The older versions of which a write may add pods.

    `is_scaled` says that it declares more pods. Of those that are declared before and after it, so many may be made of
    an older version `instead` of the template.
    """

    versions: Sequence[Version] = ()
    is_scaled: bool = False
    instead: int = 0


_NONE: Final = Older()


class OlderVersions:
    """Finds older versions in one cluster."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(self, adapter: Adapter, new: Object, old: Object | None, deadline: Deadline) -> Older:
        """Return the object once with each older template of which a write may add pods; none where it adds none.

        Raises ApiError, Unreachable.
        """
        before, after = replicas_of(old) if old is not None else 0, replicas_of(new)
        if adapter.group_kind == STATEFUL_SET:
            return await self._revisions(new, old, before, after, deadline)
        if REPLICA_SET not in adapter.creates:
            return _NONE
        is_scaled = after > before and self._may_have_older(adapter, new, old)
        is_held = adapter.group_kind == DEPLOYMENT and old is not None and _may_take_over(new, old)
        if not (is_scaled or is_held):
            return _NONE
        made = await self.replica_sets(new, (old or {}).get("metadata", {}).get("uid"), deadline)
        taken = takeover(_with_replicas(new, min(before, after)), made) if is_held else takeover(new, ())
        found = [*(self._scaled(adapter, new, old, made) if is_scaled else ()), *taken.versions]
        by_uid = {str(obj["metadata"].get("uid")): obj for obj in found}
        return Older([version_of(new, obj) for obj in by_uid.values()], is_scaled, taken.pods)

    async def replica_sets(self, workload: Object, uid: str | None, deadline: Deadline) -> list[Object]:
        """Return the ReplicaSets that a workload's controller scales. Raises ApiError, Unreachable.

        One that is being deleted is gone as soon as somebody removes its finalizers.
        """
        kind = self._context.registry.by_kind(*REPLICA_SET)
        if kind is None:
            return []
        listed = await list_kinds(self._context, [kind], map_at(workload, "metadata").get("namespace", ""), deadline)
        # A Rollout may take the selector of what it refers to. What it adopts by that is not found here.
        adopts = bool(selector_of(workload))
        return [obj for _, obj in listed if is_its(obj, uid, adopts) and keeps(workload, obj)]

    def _may_have_older(self, adapter: Adapter, new: Object, old: Object | None) -> bool:
        """Return False where all pods have the template that is asked for, before and after the write.

        A new object has none but what it adopts: what another left, or where it is paused and so makes no version of
        its own, any ReplicaSet. Whoever may edit a Rollout may write its status, so it proves nothing.
        """
        if old is None:
            is_paused = bool(map_at(new, "spec").get("paused"))
            return is_paused or self._context.payers.left_in(str(map_at(new, "metadata").get("namespace")))
        if adapter.group_kind == ROLLOUT or not has_observed(old) or _template(old) != _template(new):
            return True
        status, replicas = map_at(old, "status"), replicas_of(old)
        return not (replicas and replicas == status.get("replicas") == status.get("updatedReplicas"))

    def _scaled(self, adapter: Adapter, new: Object, old: Object | None, made: Sequence[Object]) -> Sequence[Object]:
        """Return the ReplicaSets among which a scale-up is divided, but the current one."""
        if adapter.group_kind == ROLLOUT:
            # The stable version is scaled even where it has no pods. The current one costs what the Rollout asks for.
            return [obj for obj in made if replicas_of(obj) or _is_stable(obj, old)]
        current = current_version(new, made)
        active = [obj for obj in made if replicas_of(obj)]
        if not active and current is None:
            # Where no version runs, the newest is scaled.
            active = sorted(made, key=lambda obj: str(obj["metadata"].get("creationTimestamp")))[-1:]
        return [obj for obj in active if obj["metadata"].get("uid") != current]

    async def _revisions(self, new: Object, old: Object | None, before: int, after: int, deadline: Deadline) -> Older:
        """Return the object with each revision that may become the current one unseen.

        What the status names is counted with the object (`bizrq.workloads.special.statefulset`). Raises Busy where its
        controller may be about to make one of a template that is stored no more, ApiError, Unreachable.
        """
        if old is None:
            return _NONE
        below, was_below = min(partition(new), after), min(partition(old), before)
        is_same, is_observed = _template(old) == _template(new), bool(has_observed(old))
        if below <= was_below or (is_same and is_observed):
            return _NONE
        await self._check_observed(new, old, deadline)
        found: list[Version] = []
        if not is_same:
            # The revision of the stored template may not exist yet.
            pods = _number(map_at(old, "status").get("replicas"), 0)
            found.append(Version(_with_template(new, _template(old)), "the stored template", pods, ""))
        if not is_observed:
            metadata = map_at(old, "metadata")
            listed = await list_stored(self._context, [REVISIONS], deadline, metadata.get("namespace", ""))
            made = [obj for obj in listed if is_its(obj, metadata.get("uid"), adopts=False)]
            found += [version_of(new, obj, _template(map_at(obj, "data")), 0) for obj in made]
        return Older(found, after > before, max(0, min(below, before) - was_below))

    async def _check_observed(self, new: Object, old: Object, deadline: Deadline) -> None:
        """Raise Busy while a controller that has read a spec of before may still make its revision.

        That of the stored spec is known. Raises ApiError, Unreachable.
        """
        kind = self._context.registry.by_kind(*STATEFUL_SET)
        if kind is None or unobserved(old, old) <= 1:
            return
        metadata = map_at(old, "metadata")
        name, namespace = str(metadata.get("name")), str(metadata.get("namespace"))
        with suppress(NotFound):
            now = await self._context.client.get(resource_of(kind), name, namespace, timeout=deadline.seconds_left())
            if unobserved(old, now) > 1:
                raise Busy(f"the controller of {display_name(new)} has not seen its last changes yet: try again")


def with_older(demand: Demand, before: Demand | None, older: Sequence[Demand]) -> tuple[Demand, Demand | None]:
    """Return what a scale-up asks for, and what the stored object did, where added pods may be of an older version.

    Each added pod costs what the largest version does. That the stored ones cost so is no growth.
    """
    largest: Resources = {}
    for each in older:
        largest = larger(largest, _per_pod(each))
    return _at(demand, largest), _at(before, largest) if before is not None else None


def instead_of(template: Demand, older: Sequence[Demand], pods: int) -> Resources:
    """Return what so many pods of a template cost more where they are of the largest of the older versions."""
    largest: Resources = {}
    for each in older:
        largest = larger(largest, _per_pod(each))
    return scale(growth(largest, _per_pod(template)), pods)


def explained(charge: Charge, plain: Resources, versions: Sequence[Version], demands: Sequence[Demand]) -> Charge:
    """Return the charge with the older versions that raise it. `plain` is its growth without them."""
    older = [
        OlderVersion(version.name, version.pods, version.since, _per_pod(demand))
        for version, demand in zip(versions, demands, strict=True)
    ]
    return structs.replace(charge, older=older, because_older=growth(charge.growth(), plain))


def _per_pod(demand: Demand) -> Resources:
    found: Resources = {}
    for role in demand.roles:
        found = larger(found, role.per_pod)
    return found


def _at(demand: Demand, largest: Resources) -> Demand:
    more = [scale(growth(largest, role.per_pod), role.replicas) for role in demand.roles]
    roles = tuple(replace(role, per_pod=larger(role.per_pod, largest)) for role in demand.roles)
    return replace(demand, resources=total((demand.resources, *more)), roles=roles)


def version_of(workload: Object, of: Object, template: Object | None = None, pods: int | None = None) -> Version:
    """Return a workload with the template of a ReplicaSet, or another, in place of the one that it has or refers to."""
    metadata = map_at(of, "metadata")
    name, since = f"{of.get('kind')} {metadata.get('name')}", metadata.get("creationTimestamp")
    changed = _with_template(workload, _template(of) if template is None else template)
    return Version(changed, name, replicas_of(of) if pods is None else pods, str(since or ""))


def _with_template(workload: Object, template: Object) -> Object:
    spec = {key: value for key, value in map_at(workload, "spec").items() if key != "workloadRef"}
    # Of a StatefulSet the revision that its status names counts by itself.
    return {**workload, "spec": {**spec, "template": template}, "status": {}}


def _with_replicas(workload: Object, replicas: int) -> Object:
    return {**workload, "spec": {**map_at(workload, "spec"), "replicas": replicas}}


def _may_take_over(new: Object, old: Object) -> bool:
    """Return True for an update that pauses a Deployment, or by which another version may take over while it is paused.

    A larger surge is divided among the versions, too.
    """
    after, before = map_at(new, "spec"), map_at(old, "spec")
    differs = any(after.get(key) != before.get(key) for key in ("paused", "template", "strategy"))
    return bool(after.get("paused")) and differs


def _is_stable(obj: Object, rollout: Object | None) -> bool:
    """Return True for the ReplicaSet that a Rollout goes back to (argo-rollouts utils/replicaset, GetStableRS).

    Its status names it by the label (pkg/apis/rollouts/v1alpha1).
    """
    stable = map_at(rollout or {}, "status").get("stableRS")
    return bool(stable) and map_at(obj, "metadata", "labels").get(ROLLOUT_HASH) == stable


def is_its(obj: Object, uid: str | None, adopts: bool) -> bool:
    """Return True for what an object has, or may adopt, and what is not being deleted."""
    controller = controller_of(obj["metadata"])
    return not is_going(obj) and (adopts if controller is None else controller.get("uid") == uid)


def _template(obj: Object) -> Object:
    return map_at(obj, "spec", "template")


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
