"""When devices were allocated to claims, and who pays for that.

This file alone decides it, and remembers what nobody writes down: when an allocation was first seen, and whose a claim
was whose pods have gone. Which hours that makes is the meter's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from bizrq.units.slot import Slot
from bizrq.units.times import parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from controller.usage.claim_payers import ClaimPayers, claim_slot
from controller.usage.observed_usage import ObservedUsage, is_allocated
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]

User: TypeAlias = tuple[Pod, Adapter, Object]
"""A pod, and the workload that pays for it."""


class ClaimAllocations:
    """Of claims, by uid."""

    def __init__(
        self, cluster: Cluster, observed: ObservedUsage, claim_payers: ClaimPayers, now: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._claim_payers = claim_payers
        self._observed = observed
        self._now = now
        #: Which group pays for an allocated claim, by its uid, and for whom; and when it was first seen to be allocated
        #: where nobody says since when it is.
        self._payers: dict[str, tuple[str, User]] = {}
        self._seen: dict[str, int] = {}

    def name(self, claim: Object) -> str | None:
        """The name of one allocation of a claim, by which its hours are stored; None while nothing is allocated."""
        return f"{claim['metadata']['uid']}@{self.since(claim)}" if is_allocated(claim) else None

    def since(self, claim: Object) -> int:
        """When a claim was allocated: as the scheduler says, which it need not, else when that was first seen."""
        told = claim["status"]["allocation"].get("allocationTimestamp")
        return parse_timestamp(told) if told else self._seen.setdefault(claim["metadata"]["uid"], self._now())

    def learn_starts(self, names: Iterable[str]) -> None:
        """Take it from these names since when they are: another process may have seen it first, and said so."""
        for name in names:
            uid, _, since = name.partition("@")
            self._seen[uid] = int(since)

    def claim(self, name: str) -> Object | None:
        """The claim that still has this allocation."""
        uid, allocation, _ = name.partition("@")
        claim = self._cluster.informers.claims.store.by_uid(uid) if allocation else None
        return claim if claim is not None and self.name(claim) == name else None

    def payer(self, claim: Object) -> tuple[str, User] | None:
        """The group that pays for the hours of an allocated claim, with a pod of its that uses the claim and with that
        pod's workload: whoever pays for the claim, else, of the groups whose pods have it, that of the oldest workload.

        Where no pod is left it is that of before: a claim outlives its pods by the moment that its deallocation takes.
        """
        first: dict[str, tuple[tuple[str, str], User]] = {}
        for pod in self._observed.pods_using(claim):
            workload = self._cluster.ownership.workload_of(pod.plain())
            group = self._cluster.ownership.group_of(workload[1]) if workload else None
            if workload is not None and group is not None:
                since = str(workload[1]["metadata"].get("creationTimestamp")), workload_name(*workload)
                if group not in first or since < first[group][0]:
                    first[group] = since, (pod, *workload)
        if not first:
            return self._payers.get(claim["metadata"]["uid"])
        payer = self._claim_payers.payer_of(claim_slot(claim))
        if payer not in first:
            payer = min(first, key=lambda group: first[group][0])
        found = self._payers[claim["metadata"]["uid"]] = payer, first[payer][1]
        return found

    def note_payer(self, claim: Object, group: str, user: User) -> None:
        """This group does, unless it is known who does."""
        self._payers.setdefault(claim["metadata"]["uid"], (group, user))

    def forget(self, claim: Object) -> None:
        """Its devices are free again."""
        uid = claim["metadata"]["uid"]
        self._payers.pop(uid, None)
        self._seen.pop(uid, None)


def workload_name(adapter: Adapter, workload: Object) -> str:
    """A workload as lines of the record name it."""
    metadata = workload["metadata"]
    return str(Slot(adapter.resource, metadata.get("namespace", ""), metadata["name"]))
