"""When devices were allocated to claims, and which group pays for them.

This file alone decides that. It remembers what no object records: when an allocation was first seen, and who paid for a
claim whose pods are gone. Times are integer milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from bizrq.units.slot import Slot
from bizrq.units.times import parse_timestamp
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.ownership.payers import created_at
from controller.usage.claim_payers import ClaimPayers, claim_slot
from controller.usage.observed_usage import ObservedUsage, is_allocated
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]

ClaimUser: TypeAlias = tuple[Pod, Adapter, Object]
"""A pod that uses a claim, and the workload that the pod belongs to."""


class ClaimAllocations:
    """Start and payer of each allocation, by uid of the claim."""

    def __init__(
        self, cluster: Cluster, observed: ObservedUsage, claim_payers: ClaimPayers, now: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._claim_payers = claim_payers
        self._observed = observed
        self._now = now
        #: The group and user that pay for an allocated claim, by uid; and when an allocation without a timestamp was
        #: first seen.
        self._payers: dict[str, tuple[str, ClaimUser]] = {}
        self._seen: dict[str, int] = {}

    def name(self, claim: Object) -> str | None:
        """Return the key of a claim's allocation in the record. None while no device is allocated."""
        return f"{claim['metadata']['uid']}@{self.since(claim)}" if is_allocated(claim) else None

    def since(self, claim: Object) -> int:
        """Return when a claim was allocated: by the scheduler's optional timestamp, else when it was first seen."""
        timestamp = claim["status"]["allocation"].get("allocationTimestamp")
        return parse_timestamp(timestamp) if timestamp else self._seen.setdefault(claim["metadata"]["uid"], self._now())

    def learn_starts(self, names: Iterable[str]) -> None:
        """Learn starts from the keys of a record: another process may have seen these allocations first."""
        for name in names:
            uid, _, since = name.partition("@")
            self._seen[uid] = int(since)

    def claim(self, name: str) -> Object | None:
        """Return the claim that still has this allocation."""
        uid, allocation, _ = name.partition("@")
        claim = self._cluster.informers.claims.store.by_uid(uid) if allocation else None
        return claim if claim is not None and self.name(claim) == name else None

    def payer(self, claim: Object) -> tuple[str, ClaimUser] | None:
        """Return the group that pays for an allocated claim, and one of its pods that uses the claim.

        That is the group that pays for the claim as an object; else the one with the oldest workload that uses it.
        Where no pod is left it is the last payer: a claim outlives its pods until it is deallocated.
        """
        first: dict[str, tuple[tuple[int, str], ClaimUser]] = {}
        for pod in self._observed.pods_using(claim):
            workload = self._cluster.ownership.workload_of(pod.plain())
            group = self._cluster.ownership.group_of(workload[1]) if workload else None
            if workload is not None and group is not None:
                since = created_at(workload[1]) or 0, workload_name(*workload)
                if group not in first or since < first[group][0]:
                    first[group] = since, (pod, *workload)
        if not first:
            return self._payers.get(claim["metadata"]["uid"])
        payer = self._claim_payers.payer_of(claim_slot(claim))
        if payer not in first:
            payer = min(first, key=lambda group: first[group][0])
        found = self._payers[claim["metadata"]["uid"]] = payer, first[payer][1]
        return found

    def note_payer(self, claim: Object, group: str, user: ClaimUser) -> None:
        """Remember the payer of a claim unless one is known."""
        self._payers.setdefault(claim["metadata"]["uid"], (group, user))

    def forget(self, claim: Object) -> None:
        """Forget a claim whose devices are free again."""
        uid = claim["metadata"]["uid"]
        self._payers.pop(uid, None)
        self._seen.pop(uid, None)


def workload_name(adapter: Adapter, workload: Object) -> str:
    """Return the name of a workload in the record, as `plural.group/namespace/name`."""
    metadata = workload["metadata"]
    return str(Slot(adapter.resource, metadata.get("namespace", ""), metadata["name"]))
