"""The intervals of claims: from allocation to deallocation, once for each claim, however many pods share it.

This file alone decides which allocations a group's record has. Who pays for a claim is decided in `allocations`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from bizrq.hours.metering import Interval, UsageRate
from bizrq.units.resources import Resources
from bizrq.workloads.validation import Malformed
from controller.hours.allocations import ClaimAllocations, ClaimUser, workload_name
from controller.hours.collected import Collection, HandOver
from controller.hours.pod_rates import PodRates
from controller.hours.record_store import StoredPage
from controller.hours.transitions import FinishedInterval, Transitions
from controller.usage.observed_usage import ObservedUsage
from controller.watch.informers import Informers

log = structlog.get_logger(__name__)

Object = dict[str, Any]


class ClaimIntervals:
    """Collects intervals of allocated claims, and notes when they end."""

    def __init__(
        self,
        informers: Informers,
        observed: ObservedUsage,
        allocations: ClaimAllocations,
        rates: PodRates,
        transitions: Transitions,
        hand_over: HandOver,
        enqueue: Callable[[str, float], None],
        now: Callable[[], int],
    ) -> None:
        self._informers = informers
        self._observed = observed
        self._allocations = allocations
        self._rates = rates
        self._transitions = transitions
        self._hand_over = hand_over
        self._enqueue = enqueue
        self._now = now

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Note a claim's allocation or deallocation, and enqueue the groups that pay for it."""
        before = self._allocations.name(old) if old is not None else None
        after = self._allocations.name(new) if new is not None else None
        if before == after:
            return
        allocated = [claim for claim, key in ((old, before), (new, after)) if claim is not None and key]
        pay = [self._allocations.payer(claim) for claim in allocated]
        if old is not None and before is not None:
            self._note_deallocation(old, before, pay[0])
        for group in {payer[0] for payer in pay if payer is not None}:
            self._enqueue(group, 0.0)

    def _note_deallocation(self, claim: Object, key: str, payer: tuple[str, ClaimUser] | None) -> None:
        """Note that a claim's devices are free again. The watch says so only once."""
        end = self._now()
        self._transitions.note_end(key, end)
        if payer is not None and (found := self._cost(claim, payer[1])) is not None:
            start, cost = found
            interval = Interval(start, end, UsageRate(workload_name(*payer[1][1:]), ()))
            claims = self._informers.claims
            finished = FinishedInterval(interval, cost, claims.resource.key, claims.store.resource_version, self._now())
            self._transitions.note_finished(payer[0], key, finished)
        self._allocations.forget(claim)
        self._transitions.forget_old(self._now())

    def add(self, collection: Collection) -> None:
        """Add the allocated claims of the group's pods to a collection, once each."""
        self._allocations.learn_starts(collection.record.allocations)
        looked_at: set[str] = set()
        for user in collection.with_claims.values():
            for uid, claim in self._observed.claims_of(user[0]).items():
                if uid not in looked_at:
                    looked_at.add(uid)
                    self._add(collection, claim, user)

    def _add(self, collection: Collection, claim: Object, user: ClaimUser) -> None:
        """Add one allocated claim, unless another group pays for it or it cannot be counted."""
        payer, user = self._allocations.payer(claim) or (collection.group, user)
        key = self._allocations.name(claim)
        counted = self._cost(claim, user) if payer == collection.group else None
        if key is None or key in collection.found.intervals or counted is None:
            return
        start, cost = counted
        begins: int | None = start
        if key not in collection.record.pages:
            begins = self._hand_over.start_in(collection, key, start)
        if begins is not None:
            rate = self._rates.of_cost(workload_name(*user[1:]), cost, collection.names)
            collection.found.intervals[key] = Interval(begins, None, rate)
            self._allocations.note_payer(claim, collection.group, user)

    def recorded(self, group: str, key: str, stored_page: StoredPage) -> Interval | None:
        """Return what is known of an allocation that the record has and the group's pods do not.

        None where it is settled, or its end was not seen.
        """
        claim, end = self._allocations.claim(key), self._transitions.end_of(key)
        if claim is None:
            return None if end is None or key in stored_page.page.finished else Interval(0, end)
        payer = self._allocations.payer(claim)
        if payer is None or payer[0] == group or key in stored_page.page.finished:
            return Interval(self._allocations.since(claim))
        _, (_, _, workload) = payer
        left = self._transitions.moved_at(workload["metadata"]["uid"], stored_page.page.watermark)
        return Interval(self._allocations.since(claim), None, None, left)

    def paying_group(self, key: str) -> str | None:
        """Return the group that pays for an allocation."""
        claim = self._allocations.claim(key)
        payer = self._allocations.payer(claim) if claim is not None else None
        return payer[0] if payer is not None else None

    def _cost(self, claim: Object, user: ClaimUser) -> tuple[int, Resources] | None:
        """Return since when a claim is charged to the user's workload, and what it occupies.

        None where it cannot be counted.
        """
        pod, _, workload = user
        try:
            cost = self._observed.cost_of_claim(claim, pod, workload)
        except Malformed as error:
            log.warning("claim not metered", claim=claim["metadata"]["name"], error=str(error))
            return None
        return max(self._allocations.since(claim), self._transitions.moved_at(workload["metadata"]["uid"])), cost
