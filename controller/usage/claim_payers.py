"""The group that pays for a ResourceClaim which several workloads may name.

This file alone decides that: the group that the claim itself names, else that of the oldest workload that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bizrq.units.slot import Slot
from bizrq.workloads.devices.dra import CLAIMS
from controller.watch.informers import Informers

Object = dict[str, Any]


class ClaimPayers:
    """Remembers which workloads named each claim when they were last counted."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        #: By slot of the claim and uid of the workload: its creation time, its group and its slot.
        self._users: dict[Slot, dict[str, tuple[int, str, Slot]]] = {}

    def add(self, claim: Slot, uid: str, created: int, group: str, workload: Slot) -> None:
        """Record that a workload of the group names the claim. `created` is in milliseconds since 1970."""
        self._users.setdefault(claim, {})[uid] = created, group, workload

    def drop(self, uid: str, claims: Iterable[Slot]) -> None:
        """Record that a workload no longer names these claims."""
        for claim in claims:
            users = self._users[claim]
            users.pop(uid, None)
            if not users:
                del self._users[claim]

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
