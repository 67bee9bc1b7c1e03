"""The group that pays for a ResourceClaim which several workloads may name.

This file alone decides that: the group that the claim itself names, else that of the oldest workload that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bizrq.units.slot import Slot
from bizrq.workloads.devices.dra import CLAIMS
from controller.watch.cluster import UNHURRIED
from controller.watch.informers import Informers

Object = dict[str, Any]


class ClaimPayers:
    """Remembers which workloads named each claim when they were last counted."""

    def __init__(self, informers: Informers, enqueue: Callable[[str, float], None]) -> None:
        """`enqueue` makes a group due after so many seconds: another one may pay for a claim of its workloads now."""
        self._informers = informers
        self._enqueue = enqueue
        #: By slot of the claim and uid of the workload: its creation time, its group and its slot.
        self._users: dict[Slot, dict[str, tuple[int, str, Slot]]] = {}

    def add(self, claim: Slot, uid: str, created: int, group: str, workload: Slot) -> None:
        """Record that a workload of the group names the claim. `created` is in milliseconds since 1970."""
        users = self._users.setdefault(claim, {})
        known = users.get(uid)
        users[uid] = created, group, workload
        if known is None or known[1] != group:
            self._enqueue_users(users, group)

    def drop(self, uid: str, claims: Iterable[Slot], group: str = "") -> None:
        """Record that a workload no longer names these claims, or is no longer counted in this `group`."""
        for claim in claims:
            users = self._users.get(claim, {})
            known = users.get(uid)
            if known is None or group not in ("", known[1]):
                continue
            del users[uid]
            self._enqueue_users(users, known[1])
            if not users:
                del self._users[claim]

    def _enqueue_users(self, users: Mapping[str, tuple[int, str, Slot]], counted: str) -> None:
        """Have the groups of these users recounted, but for the one that is counted anyway."""
        for group in {group for _, group, _ in users.values()} - {counted}:
            self._enqueue(group, UNHURRIED)

    def payer_of(self, claim: Slot) -> str | None:
        """Return the group that pays for the claim.

        None where the claim names no group, and no two groups have workloads that name it.
        """
        stored = self._informers.claims.store.get(claim.name, claim.namespace) if claim.kind == CLAIMS else None
        named = self._informers.claimed_by(stored) if stored is not None else None
        users = self._users.get(claim, {})
        if named is not None or len({group for _, group, _ in users.values()}) < 2:
            return named
        stored_users = [
            user for uid, user in users.items() if self._informers.workloads[user[2].kind].store.by_uid(uid)
        ]
        return min(stored_users)[1] if stored_users else None


def claim_slot(claim: Object) -> Slot:
    """Return the slot under which a claim is charged."""
    return Slot(CLAIMS, claim["metadata"].get("namespace", ""), claim["metadata"]["name"])
