"""The result of counting a write: nothing, a verdict, or charges to decide.

This file alone builds a `Charge` out of a review. It does not know which group pays, nor whether the charge fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from msgspec import structs

from bizrq.api.review import Request
from bizrq.quota.change import Charge, Role
from bizrq.quota.verdict import Verdict
from bizrq.units.slot import Slot
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import EmptyLookup, Lookup
from bizrq.workloads.validation import Malformed

#: A uid of an object as far as it is let into an account.
_UID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PendingCharge:
    """One charge to decide: the group that pays, and the objects that the charge was counted from.

    `on_behalf_of` names the workload where another object's write makes the charge. An intent (`is_intent`) makes
    nothing worse, and is charged only for others to see. `is_new_in_group` as in `webhooks.charging.authorization`.
    """

    group: str
    charge: Charge
    lookup: Lookup
    on_behalf_of: str = ""
    is_intent: bool = False
    is_new_in_group: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where nothing has changed that the charge is counted from."""
        amounts = [tuple(sorted(found.items())) for found in (self.charge.demand, self.charge.before)]
        runs = (self.charge.max_run_time, self.charge.max_run_time_before)
        newly = (self.charge.newly_unspecified(), self.charge.newly_unmodelled())
        unstated = [tuple(sorted((name, *who) for name, who in found.items())) for found in newly]
        return self.group, self.charge.slot, self.charge.uid, self.charge.resource_version, *amounts, *runs, *unstated


def as_intent(pending: PendingCharge) -> PendingCharge:
    """Return the charge as one that is only for others to see: it needs no more than before, and lacks nothing."""
    charge = pending.charge
    seen = structs.replace(charge, before=charge.demand, is_new=True, roles=(), unspecified={}, unmodelled={})
    return replace(pending, charge=seen, is_intent=True)


@dataclass(frozen=True, slots=True)
class NothingCharged:
    """No group pays for the write, and none has to, by the answers of the lookup."""

    lookup: Lookup = field(default_factory=EmptyLookup, compare=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """Counting alone gives the verdict: nothing has to be charged, or the write is refused.

    `lookup` gave the answers that this follows from. `charge` is the one that asks for no more, where there is one.
    """

    verdict: Verdict
    lookup: Lookup = field(default_factory=EmptyLookup, compare=False)
    charge: PendingCharge | None = field(default=None, compare=False)


class Busy(Exception):
    """The write cannot be counted before something else has happened, which it says."""


@dataclass(frozen=True, slots=True)
class Charges:
    """The charges of a write, in the order in which they are decided.

    `is_final`: no other object's write can change them, so they are not counted again. `refers_anew`: they come to
    depend on a pod template, of which a write may have been answered just before they are stored. `precheck` is decided
    as a dry run before the first of them is stored: a write that is refused anyway promises nothing that others share.
    """

    charges: Sequence[PendingCharge]
    is_final: bool = False
    refers_anew: bool = False
    precheck: PendingCharge | None = None


Counted: TypeAlias = NothingCharged | Decided | Charges


def charge_of(
    adapter: Adapter,
    request: Request,
    new: Mapping[str, Any],
    demand: Demand,
    old: Mapping[str, Any] | None,
    before: Demand | None,
) -> Charge:
    """Return the charge of a workload's own write. Raises Malformed for an unreadable uid or resourceVersion."""
    uid, version = target_version(request, new, old)
    return Charge(
        slot=Slot(
            adapter.resource, request.namespace, request.name or str((new.get("metadata") or {}).get("name", ""))
        ),
        uid=uid,
        resource_version=version,
        demand=demand.resources,
        before=before.resources if before else {},
        is_new=before is None,
        roles=charged_roles(demand),
        roles_before=charged_roles(before) if before else (),
        unspecified=demand.missing,
        max_run_time=demand.run,
        max_run_time_before=before.run if before else None,
        run_bound_path=deadline_path(adapter),
        unmodelled=demand.unmodelled,
        stated=demand.stated,
        unspecified_before=before.missing if before else {},
        unmodelled_before=before.unmodelled if before else {},
        generation=generation_of(old),
    )


def generation_of(old: Mapping[str, Any] | None) -> int | None:
    """Return the `metadata.generation` of the object that a review changes; None for a create, or a kind without."""
    found = ((old or {}).get("metadata") or {}).get("generation")
    return found if type(found) is int and 0 <= found < 2**63 else None


def target_version(request: Request, new: Mapping[str, Any], old: Mapping[str, Any] | None) -> tuple[str, int | None]:
    """Return the uid of the object that a review writes, and the version it is written on; None for a create.

    Raises Malformed for values that no API server sends.
    """
    uid = str((new.get("metadata") or {}).get("uid", "")) or str(((old or {}).get("metadata") or {}).get("uid", ""))
    uid = uid or request.uid
    if not _UID.fullmatch(uid):
        raise Malformed(f"metadata.uid: {uid[:64]!r} is no uid of an object")
    if old is None:
        return uid, None
    text = str((old.get("metadata") or {}).get("resourceVersion", ""))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Malformed(f"metadata.resourceVersion: {text[:64]!r} is no version of a stored object")
    return uid, int(text)


def charged_roles(demand: Demand) -> tuple[Role, ...]:
    """Return the roles of a demand as a charge lists them."""
    return tuple(Role(role.name, role.replicas, role.per_pod, role.surge) for role in demand.roles)


def deadline_path(adapter: Adapter) -> str:
    """Return the field in which an object of the kind bounds its run time, "" where it has none."""
    if adapter.deadline is None:
        return ""
    retries = adapter.deadline.retries
    return f"{adapter.deadline.at} * ({retries.limit} + 1)" if retries is not None else str(adapter.deadline.at)


def display_name(obj: Mapping[str, Any]) -> str:
    """Return a stored object's kind, namespace and name as messages have them."""
    return f"{obj.get('kind')} {obj['metadata'].get('namespace', '')}/{obj['metadata'].get('name', '')}"
