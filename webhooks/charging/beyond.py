"""Find what the pods of a workload may cost beyond what its new object asks for, as its controller goes about it.

A controller may make pods of an older version, or others in place of what it lets go. Pods that it keeps may be larger
than the new template says. With its first label a workload brings the pods that it has. This file alone adds that to
what a write asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from bizrq.api.review import Request
from bizrq.quota.change import Charge
from bizrq.units.resources import Resources, add, growth
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.kinds.declaration import REPLICA_SET, STATEFUL_SET, Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.special.statefulset import shift_of_ordinals
from webhooks.charging.adoption import Adoption
from webhooks.charging.charges import charge_of
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.older_versions import OlderVersions, Version, explained, instead_of, with_older
from webhooks.charging.stored import stored_demand

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DemandOfWrite:
    """What a workload may cost with a write, and what it did `before`; None where no group paid for it.

    Of the demand, `because_stored` is there because pods stay that are larger than the template. Without the `versions`
    that cost `older`, it grows by `plain`.
    """

    demand: Demand
    before: Demand | None
    because_stored: Resources = field(default_factory=dict)
    versions: Sequence[Version] = ()
    older: Sequence[Demand] = ()
    plain: Resources = field(default_factory=dict)

    def more(self, resources: Mapping[str, int]) -> DemandOfWrite:
        """Return it with these resources on top."""
        return replace(self, demand=replace(self.demand, resources=add(self.demand.resources, resources)))

    def charge(self, adapter: Adapter, request: Request, new: Object, old: Object | None) -> Charge:
        """Return the charge of the write. Raises Malformed for an unreadable uid or resourceVersion."""
        charge = charge_of(adapter, request, new, self.demand, old, self.before)
        if self.versions:
            charge = explained(charge, add(self.plain, self.because_stored), self.versions, self.older)
        return structs.replace(charge, because_stored=self.because_stored)


class Beyond:
    """Finds what comes beyond what is asked for, in one cluster."""

    def __init__(self, context: Context, adoption: Adoption) -> None:
        self._context = context
        self._adoption = adoption
        self._older = OlderVersions(context)

    async def of(
        self,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        asked: Demand,
        before: Demand | None,
        lookup: Lookup,
        deadline: Deadline,
        *,
        is_first: bool = False,
    ) -> DemandOfWrite:
        """Return what a write may cost that asks for this much; by it `is_first` has the stored object's first group.

        `lookup` has what both objects refer to. Raises Malformed, Busy, ApiError, Unreachable.
        """
        found = await self._with_older(adapter, new, old, DemandOfWrite(asked, before), deadline)
        if old is None:
            return found
        # Of what makes ReplicaSets, the older versions say what stays.
        if found.before is not None and REPLICA_SET not in adapter.creates:
            shift = shift_of_ordinals(old, new) if adapter.group_kind == STATEFUL_SET else 0
            stays = counting.beside_stored(found.demand, found.before, shift)
            if adapter.per_node:
                stays = add(stays, counting.stored_on_nodes(new, old, found.before, adapter, lookup))
            found = replace(found.more(stays), because_stored=stays)
        found = found.more(await self._adoption.lets_go(adapter, old, new, deadline))
        if is_first and adapter.creates:
            found = found.more(await self._adoption.brings(adapter, old, found.demand, deadline))
        return found

    async def _with_older(
        self, adapter: Adapter, new: Object, old: Object | None, found: DemandOfWrite, deadline: Deadline
    ) -> DemandOfWrite:
        """Return it with what pods of older versions cost. Raises Malformed, ApiError, Unreachable."""
        versions, is_scaled, instead = await self._older.of(adapter, new, old, deadline)
        if not versions:
            return found
        demand, before = found.demand, found.before
        older = await self._demands([each.workload for each in versions], adapter, deadline)
        plain = growth(demand.resources, before.resources if before is not None else {})
        more = instead_of(demand, older, instead)
        if is_scaled:
            demand, before = with_older(demand, before, older)
        return DemandOfWrite(demand, before, versions=versions, older=older, plain=plain).more(more)

    async def _demands(self, objects: Sequence[Object], adapter: Adapter, deadline: Deadline) -> list[Demand]:
        """Return what each of these asks for. Raises ApiError, Unreachable."""

        def count(known: Lookup) -> list[Demand]:
            return [stored_demand(self._context, obj, adapter, known) for obj in objects]

        return count(await self._context.resolver.resolve(count, deadline.seconds_left()))
