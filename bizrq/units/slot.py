"""The place that an account is charged for: a kind, a namespace and a name."""

from __future__ import annotations

from typing import NamedTuple

GROUP_SLOT_KIND = "bizgroupresourcequotas.quota.biz.group"
#: Kinds of claims that several workloads may name: each of their writes is charged all that the claim costs.
SHARED_SLOT_KINDS = frozenset({"resourceclaims.resource.k8s.io", "podgroups.scheduling.k8s.io"})


class ReservationError(ValueError):
    """An entry of `status.reservations` that this version cannot read."""


class Slot(NamedTuple):
    """The place that is charged: `plural.group` of a kind, a namespace ("" for none), a name."""

    kind: str
    namespace: str
    name: str

    @property
    def is_shared(self) -> bool:
        """Return True for a claim that several workloads may name."""
        return self.kind in SHARED_SLOT_KINDS

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        kind, _, rest = text.partition("/")
        namespace, slash, name = rest.partition("/")
        if not (kind and slash and name):
            raise ReservationError(f"{text[:80]!r} is no slot: write kind/namespace/name")
        return cls(kind, namespace, name)


def group_slot(name: str) -> Slot:
    """Return the slot of a child group in its parent's account."""
    return Slot(GROUP_SLOT_KIND, "", name)
