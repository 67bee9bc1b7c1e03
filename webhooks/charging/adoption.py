"""Find what a write changes the payer of: leftovers that a new workload will adopt, what another selector or no label
lets go, and the pods that a workload has which gets its first label.

`used` holds the cost of the first two already. This file alone decides which objects without an owner a new workload
takes over: what the one before it of its kind and name left. No two workloads have that in common, whatever their
selectors. A volume resize of a StatefulSet depends on it: deleted without its pods and created again, it needs no more
than its pods do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import resources_of
from bizrq.units.resources import Resources, add, growth, larger, nonzero, scale, smaller, total
from bizrq.units.slot import Slot
from bizrq.workloads.demand.counting import Demand, least_pod
from bizrq.workloads.demand.owner_allowance import child_demand
from bizrq.workloads.kinds.declaration import POD, Adapter
from bizrq.workloads.labels import Models, models_of, with_models
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import MAX_HOPS, controller_of
from bizrq.workloads.ownership.lives import Stage, life_of, stage
from bizrq.workloads.ownership.observation import has_observed
from bizrq.workloads.ownership.payers import (
    SELECTING,
    PayerReason,
    adopts,
    anywhere,
    keeps,
    left_by,
    paid_by,
    place_of,
    selector_of,
)
from bizrq.workloads.ownership.waiting import awaits
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import (
    is_going,
    list_kinds,
    list_stored,
    read_stored,
    readable_reservations,
    stored_demand,
    stored_label,
)

Object = dict[str, Any]


class Adoption:
    """Finds leftovers in one cluster."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of(self, adapter: Adapter, new: Object, deadline: Deadline) -> Mapping[str, Resources]:
        """Return what a new workload will adopt, by the group that pays for it now. Raises ApiError, Unreachable.

        An object that a stored workload of the kind would keep as well is that one's. A pod counts no more than one of
        the new workload does: it makes the others in full.
        """
        if not adopts(new):
            return {}
        namespace = new["metadata"].get("namespace", "")
        found = await list_kinds(self._context, self._made_by(adapter), namespace, deadline)
        left = [(kind, obj) for kind, obj in found if self._is_left(new, obj)]
        if not left:
            return {}
        others = await list_stored(self._context, resources_of(adapter), deadline, namespace)
        taken = _Taken([other for other in others if not is_going(other) and selector_of(other)])
        left = [(kind, obj) for kind, obj in left if not await taken.has(obj)]

        def costs(lookup: Lookup) -> list[tuple[str, Resources]]:
            most = least_pod(stored_demand(self._context, new, adapter, lookup))
            return [cost for kind, obj in left if (cost := self._cost(new, kind, obj, most, lookup)) is not None]

        lookup = await self._context.resolver.resolve(costs, deadline.seconds_left())
        by_group: dict[str, list[Resources]] = {}
        for group, cost in costs(lookup):
            by_group.setdefault(group, []).append(cost)
        return {group: nonzero(total(amounts)) for group, amounts in by_group.items()}

    async def awaited_by(self, old: Object, new: Object, deadline: Deadline) -> Slot | None:
        """Return the workload that will adopt what is left as it is stored, and not as a write leaves it.

        It makes another in its place then, and its create was not charged for that. None where no such workload is
        stored or promised. Raises ApiError, Unreachable.
        """
        memory = left_by(old, self._context.registry, self._context.payers) if _is_free(old) else None
        if memory is None:
            return None
        kind_name, namespace, name = memory.place.split("/", 2)
        kind = next((kind for kind in self._context.registry.charged if _adopts(kind) and kind.kind == kind_name), None)
        if kind is None:
            return None
        slot = Slot(kind.resource, namespace, name)
        # Its reservation is read first: it goes only once the workload is stored.
        for group in (await self._context.lists.of(GROUPS, deadline))[0]:
            if any(entry.slot == slot and entry.is_create and entry.base for entry in readable_reservations(group)):
                return slot
        workload = await read_stored(self._context, resources_of(kind), namespace, name, deadline)
        if workload is None or is_going(workload) or not keeps(workload, old):
            return None
        owner = controller_of(new["metadata"])
        is_its = owner is None or owner.get("uid") == workload["metadata"]["uid"]
        return None if is_its and keeps(workload, new) else slot

    async def lets_go(self, adapter: Adapter, old: Object, new: Object, deadline: Deadline) -> Resources:
        """Return what is charged on for another selector than before: the controller makes others in its place.

        That is the children which it lets go, and those which it may still make by what it has seen. Raises ApiError,
        Unreachable.
        """
        before, after = selector_of(old), selector_of(new)
        if before == after or not before:
            return {}
        namespace, uid = old["metadata"].get("namespace", ""), old["metadata"].get("uid")
        found = [
            (kind, obj)
            for kind, obj in await list_kinds(self._context, self._made_by(adapter), namespace, deadline)
            if (controller_of(obj["metadata"]) or {}).get("uid") == uid and keeps(old, obj) and not keeps(new, obj)
        ]
        models, may_come = models_of(old), not keeps(new, _made_now(old)) or not has_observed(old)

        def costs(lookup: Lookup) -> tuple[Resources, Resources, Resources]:
            costs = [(is_going(obj), self._own_cost(obj, models, kind, lookup) or {}) for kind, obj in found]
            stand, ending = (total(cost for is_ending, cost in costs if is_ending is each) for each in (False, True))
            asked = stored_demand(self._context, old, adapter, lookup).resources if may_come else {}
            return asked, stand, ending

        asked, stand, ending = costs(await self._context.resolver.resolve(costs, deadline.seconds_left()))
        return nonzero(add(larger(asked, stand), ending))

    async def pay_themselves(
        self, adapter: Adapter, old: Object, paying: str, deadline: Deadline
    ) -> Mapping[str, Resources]:
        """Return what the children of a workload cost that name other groups than the one that is paying, by group.

        Nobody has admitted them there: their label decided nothing. It decides once their owner names no group. Raises
        ApiError, Unreachable.
        """
        metadata, kinds = old["metadata"], self._made_by(adapter)
        if not kinds or not metadata.get("uid"):
            return {}
        listed = await list_kinds(self._context, kinds, metadata.get("namespace", ""), deadline)
        found = [
            (group, kind, obj)
            for kind, obj in listed
            if (controller_of(obj["metadata"]) or {}).get("uid") == metadata["uid"]
            and keeps(old, obj)
            and not has_ended(obj, kind)
            and (group := stored_label(obj)) not in (None, paying)
        ]

        def costs(lookup: Lookup) -> list[Resources]:
            return [stored_demand(self._context, obj, kind, lookup).resources for _, kind, obj in found]

        lookup = await self._context.resolver.resolve(costs, deadline.seconds_left())
        by_group: dict[str, list[Resources]] = {}
        for (group, _, _), cost in zip(found, costs(lookup), strict=True):
            if group is not None:
                by_group.setdefault(group, []).append(cost)
        return {group: nonzero(total(amounts)) for group, amounts in by_group.items()}

    async def brings(self, adapter: Adapter, old: Object, demand: Demand, deadline: Deadline) -> Resources:
        """Return what the pods and children cost that a workload of no group has beyond what it asks for now.

        With its first label the group is charged for these, too. A pod counts until it is gone: it may be on a lost
        node, and past its grace. Raises ApiError, Unreachable.
        """
        found = await self._below(adapter, old, deadline)
        pods = [(kind, obj) for kind, obj in found if kind.group_kind == POD]
        uid = old["metadata"].get("uid")
        children = [(k, o) for k, o in found if (controller_of(o["metadata"]) or {}).get("uid") == uid]
        children = [(kind, obj) for kind, obj in children if kind.group_kind != POD]
        waits = awaits(old, is_old=False)

        def costs(lookup: Lookup) -> tuple[list[Resources], list[Resources], list[Resources]]:
            fresh, ending = list[Resources](), list[Resources]()
            asked = [self._own_cost(child, models_of(old), kind, lookup) for kind, child in children]
            for kind, pod in pods:
                paid = paid_by(pod, self._context.registry, lookup, self._context.payers, anywhere)
                # What stays with another group is charged there.
                cost = None if paid is not None else self._own_cost(pod, models_of(old), kind, lookup)
                at = stage(life_of(pod), 0, awaited=waits(str(pod["metadata"].get("name"))))
                if cost is not None and at is not Stage.OVER:
                    (ending if at is Stage.ENDING else fresh).append(cost)
            return fresh, ending, [each for each in asked if each is not None]

        lookup = await self._context.resolver.resolve(costs, deadline.seconds_left())
        fresh, ending, asked = costs(lookup)
        # Its controller makes those that are missing besides.
        missing = scale(least_pod(demand), max(0, demand.declared - len(fresh)))
        there = add(total(fresh), missing) if fresh else {}
        return nonzero(add(growth(larger(there, total(asked)), demand.resources), total(ending)))

    async def _below(self, adapter: Adapter, top: Object, deadline: Deadline) -> list[tuple[Adapter, Object]]:
        """List what is below a workload, at any depth. Raises ApiError, Unreachable."""
        namespace, found = top["metadata"].get("namespace", ""), list[tuple[Adapter, Object]]()
        above, kinds = {str(top["metadata"].get("uid"))}, {kind.resource: kind for kind in self._made_by(adapter)}
        for _ in range(MAX_HOPS):
            listed = await list_kinds(self._context, kinds.values(), namespace, deadline) if above else []
            below = [(k, o) for k, o in listed if (controller_of(o["metadata"]) or {}).get("uid") in above]
            found += below
            above = {str(obj["metadata"].get("uid")) for _, obj in below}
            kinds = {each.resource: each for kind, _ in below for each in self._made_by(kind)}
            if not kinds:
                break
        return found

    def _is_left(self, new: Object, obj: Object) -> bool:
        """Return True for what the one before the new workload left, if the new one would keep it."""
        if not _is_free(obj):
            return False
        memory = left_by(obj, self._context.registry, self._context.payers)
        is_of_place = memory is not None and memory.place == place_of(new)
        return is_of_place and keeps(new, obj) and _is_in_range(new, obj)

    def _made_by(self, adapter: Adapter) -> list[Adapter]:
        """Return the kinds that a kind makes, of those that are known."""
        return [kind for made in sorted(adapter.creates) if (kind := self._context.registry.by_kind(*made)) is not None]

    def _own_cost(self, obj: Object, models: Models, adapter: Adapter, lookup: Lookup) -> Resources | None:
        """Return what a child of a payer with these models costs; None where it has ended or cannot be counted."""
        if has_ended(obj, adapter):
            return None
        try:
            payer = with_models({"metadata": {}}, models)
            return child_demand(obj, adapter, payer, lookup, self._context.config).resources
        except Malformed:
            return None

    def _cost(
        self, new: Object, adapter: Adapter, obj: Object, most: Resources, lookup: Lookup
    ) -> tuple[str, Resources] | None:
        """Return what a leftover costs, at `most` for a pod, and the group that pays.

        None where it is not what the one before the new workload left, or it cannot be counted.
        """
        paid = paid_by(obj, self._context.registry, lookup, self._context.payers, anywhere)
        if paid is None or paid.reason is not PayerReason.LEFTOVER or paid.place != place_of(new):
            return None
        cost = self._own_cost(obj, paid.models, adapter, lookup)
        if cost is None:
            return None
        return paid.group, smaller(cost, most) if adapter.group_kind == POD else cost


class _Taken:
    """Tells which leftovers stored workloads would keep. There may be thousands of either."""

    def __init__(self, others: Sequence[Object]) -> None:
        self._others = others
        #: A StatefulSet keeps its pods by their names, too.
        self._by_name = any(other.get("kind") == "StatefulSet" for other in others)
        self._known: dict[tuple[frozenset[tuple[str, str]], str], bool] = {}

    async def has(self, obj: Object) -> bool:
        """Return True where a stored workload would keep it, too. Other requests are served between two of them."""
        metadata = obj["metadata"]
        # Most leftovers share their labels.
        sort = frozenset((metadata.get("labels") or {}).items()), metadata["name"] if self._by_name else ""
        if sort not in self._known:
            await asyncio.sleep(0)
            self._known[sort] = any(keeps(other, obj) for other in self._others)
        return self._known[sort]


def _made_now(owner: Object) -> Object:
    """Return what an owner's template gives to what is made from it, as far as a selector looks at it."""
    template = (owner.get("spec") or {}).get("template") or {}
    return {"metadata": {"labels": (template.get("metadata") or {}).get("labels") or {}}}


def _adopts(kind: Adapter) -> bool:
    return kind.group_kind in SELECTING


def _is_free(obj: Object) -> bool:
    """Return True where no controller has an object, and it is not about to go."""
    return controller_of(obj["metadata"]) is None and not is_going(obj)


def _is_in_range(new: Object, obj: Object) -> bool:
    """Return False for a pod that a new workload may adopt and delete: it makes others in its place.

    A StatefulSet does so beyond its ordinals, an indexed Job with pods of no index or of one that another has.
    """
    if new.get("kind") == "StatefulSet":
        return awaits(new, is_old=False)(str(obj["metadata"].get("name")))
    return not (new.get("kind") == "Job" and (new.get("spec") or {}).get("completionMode") == "Indexed")
