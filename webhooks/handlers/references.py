"""Writes that make something else grow: what workloads refer to, and children that outgrow whoever pays for them.

This file alone decides whose charge such a write is. Its promise stands in the payer's slot and names the object whose
write it awaits. Two such writes know of each other only through what is stored; so a promise is stored first, and what
it was counted from is read again before anybody is told yes (`charge_until_stable`; tests/model has the reasons).

Who refers to an object is listed in its namespace when it is written: that is rare, and an index kept by watch would
have to be read again before it could be believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from bizrq.api import group as wire
from bizrq.api.group import GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.change import Charge, Role
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.groups import GROUPS
from bizrq.store.ports import ObjectReader, ReferenceReader
from bizrq.store.reference_resolver import NAMESPACES, resource_of, resources_of
from bizrq.units.resources import growth, larger
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.devices.dra import (
    CLAIM,
    CLAIMS,
    POD_GROUP,
    ClaimContext,
    claim_conflict,
    claim_cost,
    claim_group,
    is_made_for_pod,
)
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Lookup, OverlayLookup, Reference, TrackingLookup, group_and_version
from bizrq.workloads.owners import charged_group, controller_of, payer
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from webhooks.charging.authorization import Authorizer
from webhooks.charging.charger import (
    ANSWER_MARGIN,
    BUSY_PAUSE,
    BUSY_SECONDS,
    PendingCharge,
    attributed,
    charge_until_stable,
)
from webhooks.charging.deadline import seconds_left
from webhooks.charging.group_commit import Reserver

Object = dict[str, Any]

CLAIM_TEMPLATE: GroupKind = ("resource.k8s.io", "ResourceClaimTemplate")
#: What a pod costs that has a claim of no devices: so much of a workload is held for certain while its template is
#: gone. An immutable template grows only by being made anew.
_NO_DEVICES: Object = {"spec": {"spec": {"devices": {}}}}
#: A refusal to delete names this many workloads.
MAX_NAMED = 2
_UID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


class ReferenceHandler:
    """The webhook for what workloads refer to, and the part of the workloads' that is about what others made."""

    def __init__(
        self,
        client: ObjectReader,
        reserver: Reserver,
        resolver: ReferenceReader,
        authorizer: Authorizer,
        registry: Registry,
        config: CountingConfig,
    ) -> None:
        self._client = client
        self._reserver = reserver
        self._resolver = resolver
        self._authorizer = authorizer
        self._registry = registry
        self._config = config

    async def admit(self, request: Request, deadline: float) -> Verdict:
        """The verdict on the write of an object that workloads may refer to."""
        made, gone = request.object, request.old_object
        about = made or gone
        if about is None or request.sub_resource:
            return Granted()
        name = request.name or str(about["metadata"].get("name", ""))
        reference = (request.kind.group, request.kind.kind, request.namespace, name)
        try:
            if request.operation == "DELETE":
                if reference[:2] == CLAIM and is_made_for_pod(about):
                    return Granted()
                return await self._delete(reference, about, deadline)
            if request.operation == "CREATE" and reference[:2] != CLAIM_TEMPLATE:
                return Granted()
            uid, version = target_version(request, made or {}, gone)

            async def gather() -> Sequence[PendingCharge]:
                return await self._due(reference, uid, version, made, gone or _NO_DEVICES, deadline)

            return await charge_until_stable(gather, self._decide(request, deadline), deadline)
        except Malformed as error:
            return Denied(Reason.MALFORMED, f"{request.kind.kind} {request.namespace}/{request.name}: {error}")
        except (ApiError, Unreachable) as error:
            return Denied(
                Reason.TIMEOUT,
                f"what refers to {request.kind.kind} {request.namespace}/{request.name} could not be read, "
                f"try again: {error}",
            )

    async def admit_child(
        self, request: Request, adapter: Adapter, new: Object, old: Object | None, above: Object, deadline: float
    ) -> Verdict:
        """The verdict on the write of what another object made, and pays for as it stands. Raises Malformed."""
        maker = self._registry.of(above)
        if maker is None or (adapter.group, adapter.kind) not in maker.grows:
            return Granted()
        uid, version = target_version(request, new, old)

        async def gather() -> Sequence[PendingCharge]:
            return await self._outgrown(maker, above, adapter, new, old, uid, version, deadline)

        try:
            return await charge_until_stable(gather, self._decide(request, deadline), deadline)
        except (ApiError, Unreachable) as error:
            return Denied(Reason.TIMEOUT, f"what {display_name(above)} made could not be read, try again: {error}")

    async def stored_children(self, maker: Adapter, above: Object, deadline: float) -> list[Object]:
        """The children of an object that may ask for more than it does, as they are stored. Raises ApiError, …"""
        uid, namespace = above["metadata"].get("uid"), above["metadata"].get("namespace", "")
        kinds = [kind for group, name in sorted(maker.grows) if (kind := self._registry.by_kind(group, name))]
        found = await self._list(kinds, namespace, deadline)
        return [obj for _, obj in found if (controller_of(obj["metadata"]) or {}).get("uid") == uid]

    def with_children(self, own: Demand, adapter: Adapter, children: Iterable[Object], lookup: Lookup) -> Demand:
        """What an object asks for with its children as they stand."""
        made = [self.stored_demand(child, kind, lookup) for child in children if (kind := self._registry.of(child))]
        return counting.with_children(own, made, adapter, self._config)

    def read_versions(
        self, asked: Iterable[Reference], lookup: Lookup, beside: Iterable[Object] = ()
    ) -> dict[Slot, tuple[str, int]]:
        """What counting has asked for by name, and other objects, as `Charge.read_versions` has it."""
        named = [(ref, lookup.get(*ref)) for ref in asked if ref[3]]
        objects = [obj for _, obj in named if obj is not None]
        return {place: state for obj in (*objects, *beside) if (place := self._place(obj)) and (state := _state(obj))}

    async def shared_claim_charges(
        self, own: Charge, group: str, new: Demand, stood: Demand, lookup: Lookup, deadline: float
    ) -> list[PendingCharge]:
        """What a workload's write makes claims cost the group that others may name as well: each in its own place.

        `own` is what the write is charged besides. What others hold of a claim already costs nothing more, but leaves
        its mark: they may be about to let go of it. Raises Malformed where a claim is another group's, ApiError, ….
        """
        due: list[PendingCharge] = []
        for place, cost in sorted(new.shared.items()):
            before = stood.shared.get(place, {})
            if not growth(cost, before):
                continue
            held = await self.claim_cost_held(place, group, own.awaited_slot, lookup, deadline)
            charge = Charge(
                slot=place,
                uid=own.uid,
                resource_version=own.resource_version,
                demand=larger(cost, held),
                before=larger(before, held),
                pending_write=own.awaited_slot,
                is_shared=True,
                max_run_time=own.max_run_time,
                # Whoever else holds it may be over sooner.
                max_run_time_before=0,
                run_bound_path=own.run_bound_path,
            )
            due.append(PendingCharge(group, charge, _of_claim(place), is_intent=not charge.may_need_more()))
        return due

    async def claim_cost_held(
        self, place: Slot, group: str, writing: Slot | None, lookup: Lookup, deadline: float
    ) -> dict[str, int]:
        """What a claim that may be shared costs the group as it is stored, but for what is being written.

        Raises Malformed where it is another group's, ApiError, Unreachable.
        """
        reference = _reference(place)
        claim = lookup.get(*reference)
        payer_ = claim_group(claim) if claim is not None and place.kind == CLAIMS else None
        held = dict(claim_cost(claim, self._around(claim, lookup))) if claim is not None and payer_ == group else {}
        for adapter, obj, of, known in await self.users(reference, (claim,), deadline):
            if self._place(obj) == writing:
                continue
            if of != group:
                raise Malformed(claim_conflict(place, of, group))
            stood = self.stored_demand(obj, adapter, OverlayLookup(known, reference, claim))
            held = larger(held, stood.shared.get(place, {}))
        return held

    def _around(self, claim: Object, lookup: Lookup) -> ClaimContext:
        return ClaimContext(labels_of(claim), counting.namespace_of(claim), lookup, self._config)

    # Gathering.

    async def _due(
        self, reference: Reference, uid: str, version: int | None, new: Object | None, old: Object, deadline: float
    ) -> list[PendingCharge]:
        """What the workloads that refer to an object need more with its new content, by group and place."""
        place = self._place(new or old)
        due: list[PendingCharge] = []
        for adapter, obj, group, lookup in await self.users(reference, (new, old), deadline):
            try:
                before: Demand | None = counting.own_demand(
                    obj, adapter, OverlayLookup(lookup, reference, old), self._config
                )
            except Malformed:
                before = None
            recording = TrackingLookup(OverlayLookup(lookup, reference, new))
            try:
                after = counting.own_demand(obj, adapter, recording, self._config)
            except Malformed as error:
                if before is None:
                    # It could not be counted before either: nothing is known to grow.
                    continue
                raise Malformed(f"{display_name(obj)} refers to it: {error}") from None
            charge = Charge(
                slot=Slot(adapter.resource, obj["metadata"]["namespace"], obj["metadata"]["name"]),
                uid=uid,
                resource_version=version,
                demand=after.resources,
                before=before.resources if before else {},
                is_new=False,
                pending_write=place,
                read_versions=self.read_versions((ref for ref in recording.asked if ref != reference), lookup, [obj]),
                roles=charged_roles(after),
                roles_before=charged_roles(before or NO_DEMAND),
                unspecified=after.missing,
                max_run_time=after.run,
                max_run_time_before=before.run if before else None,
                run_bound_path=deadline_path(adapter),
                unmodelled=after.unmodelled,
            )
            due += await self.shared_claim_charges(
                charge, group, after, before or NO_DEMAND, OverlayLookup(lookup, reference, new), deadline
            )
            if charge.growth():
                due.append(
                    PendingCharge(group, charge, f"{display_name(obj)}, which refers to {reference[1]} {reference[3]}")
                )
        return sorted(due, key=lambda found: (found.group, found.charge.slot))

    async def users(
        self, reference: Reference, contents: Sequence[Object | None], deadline: float
    ) -> list[tuple[Adapter, Object, str, Lookup]]:
        """The charged workloads of the namespace that ask for an object, whichever of these it is."""
        of_claims, name = reference[:2] in (CLAIM_TEMPLATE, CLAIM, POD_GROUP), reference[3].encode()
        kinds = [a for a in self._registry.charged if of_claims or a.refers]
        # Most of what stands there names it nowhere, and need not be counted; templates that stand elsewhere may.
        found = [
            (adapter, obj)
            for adapter, obj in await self._list(kinds, reference[2], deadline)
            if name in orjson.dumps(obj) or (of_claims and (adapter.refers or adapter.code is not None))
        ]

        def asks(adapter: Adapter, obj: Object, lookup: Lookup) -> bool:
            asked = [
                counting.references(obj, adapter, OverlayLookup(lookup, reference, c), self._config) for c in contents
            ]
            return any(reference in each for each in asked)

        def pays(adapter: Adapter, obj: Object, lookup: Lookup) -> str | None:
            try:
                group = charged_group(obj, lookup)
            except Malformed:
                return None
            is_user = group is not None and asks(adapter, obj, lookup)
            return group if is_user and payer(obj, self._registry, lookup) is None else None

        lookup = await self._resolver.resolve(
            lambda known: [pays(*each, known) for each in found], seconds_left(deadline)
        )
        return [(*each, group, lookup) for each in found if (group := pays(*each, lookup)) is not None]

    async def _outgrown(
        self,
        maker: Adapter,
        above: Object,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        uid: str,
        version: int | None,
        deadline: float,
    ) -> list[PendingCharge]:
        """What the payer of a child needs more with it. A child that grows leaves its mark even where that is less
        than the payer asks for itself: the payer may be about to ask for less.
        """
        metadata = above["metadata"]
        try:
            stored = await self._client.get(
                resource_of(maker, group_and_version(above.get("apiVersion"))[1]),
                metadata["name"],
                metadata["namespace"],
                timeout=seconds_left(deadline),
            )
        except NotFound:
            return []
        if stored["metadata"]["uid"] != metadata["uid"]:
            return []
        siblings = [obj for obj in await self.stored_children(maker, stored, deadline) if obj["metadata"]["uid"] != uid]
        asked: set[Reference] = set()

        def count(lookup: Lookup) -> None:
            payer(stored, self._registry, lookup)
            for obj, kind in ((new, adapter), (old, adapter), (stored, maker), *((s, adapter) for s in siblings)):
                if obj is not None:
                    asked.update(counting.references(obj, kind, lookup, self._config))

        lookup = await self._resolver.resolve(count, seconds_left(deadline))
        group = charged_group(stored, lookup)
        if group is None or payer(stored, self._registry, lookup) is not None:
            return []
        mine = counting.own_demand(new, adapter, lookup, self._config)
        was = self.stored_demand(old, adapter, lookup) if old is not None else NO_DEMAND
        if not growth(mine.resources, was.resources):
            return []
        own = self.stored_demand(stored, maker, lookup)
        others = [self.stored_demand(sibling, adapter, lookup) for sibling in siblings]
        after = counting.with_children(own, [*others, mine], maker, self._config)
        # What has ended is charged for the pods that are left of it, and those nobody knows here.
        ended = has_ended(stored, maker)
        before = (
            NO_DEMAND if ended else counting.with_children(own, [*others, was] if old else others, maker, self._config)
        )
        place = self._place(new)
        charge = Charge(
            slot=Slot(maker.resource, metadata["namespace"], metadata["name"]),
            uid=uid,
            resource_version=version,
            demand=after.resources,
            before=before.resources,
            is_new=True,
            pending_write=place,
            read_versions=self.read_versions(asked, lookup, [stored, *siblings]),
            unspecified=mine.missing,
            max_run_time=after.run,
            max_run_time_before=before.run,
            run_bound_path=deadline_path(maker),
            unmodelled=mine.unmodelled,
        )
        whom = f"{display_name(stored)}, which made {adapter.kind} {new['metadata'].get('name')}"
        claims = await self.shared_claim_charges(charge, group, after, before, lookup, deadline)
        return [PendingCharge(group, charge, whom, is_intent=not charge.growth()), *claims]

    async def _list(self, kinds: Iterable[Adapter], namespace: str, deadline: float) -> list[tuple[Adapter, Object]]:
        """The objects of these kinds in a namespace; none of a kind that is not installed. Raises ApiError, …"""

        async def of(adapter: Adapter) -> list[tuple[Adapter, Object]]:
            for resource in resources_of(adapter):
                with contextlib.suppress(NotFound):
                    objects, _ = await self._client.list(resource, namespace, timeout=seconds_left(deadline))
                    return [(adapter, obj) for obj in objects]
            return []

        lists = await asyncio.gather(*(of(adapter) for adapter in kinds))
        return [found for each in lists for found in each]

    def stored_demand(self, obj: Object, adapter: Adapter, lookup: Lookup) -> Demand:
        """What a stored object asks for itself; one that cannot be counted counts as nothing."""
        try:
            return counting.own_demand(obj, adapter, lookup, self._config)
        except Malformed:
            return NO_DEMAND

    def _place(self, obj: Mapping[str, Any]) -> Slot | None:
        group, _ = group_and_version(obj.get("apiVersion"))
        resource = self._resolver.resource_of_kind(group, str(obj.get("kind")))
        metadata = obj.get("metadata") or {}
        return resource and Slot(resource.key, metadata.get("namespace", ""), metadata.get("name", ""))

    # Deciding.

    def _decide(self, request: Request, deadline: float) -> Callable[[PendingCharge], Awaitable[Verdict]]:
        decide = self._reserver.decider(request)

        async def charged(due: PendingCharge) -> Verdict:
            # Whoever refers to it was let into the group already, which may have closed itself to the namespace since.
            known = self._resolver.cached_lookup
            verdict = await self._authorizer.charge(request, due.group, due.charge, False, known, deadline, decide)
            return attributed(verdict, due.on_behalf_of) if isinstance(verdict, Denied) else verdict

        return charged

    async def _delete(self, reference: Reference, gone: Object, deadline: float) -> Verdict:
        """What charged workloads use must not go: nobody could count them any more. With its namespace it may."""
        until = min(deadline - ANSWER_MARGIN, time.monotonic() + BUSY_SECONDS)
        while True:
            users = await self.users(reference, (gone,), deadline)
            awaited = None if users else await self.pending_write(reference, deadline)
            if awaited is None or time.monotonic() + BUSY_PAUSE > until:
                break
            await asyncio.sleep(BUSY_PAUSE)
        if not users and awaited is None:
            return Granted()
        try:
            namespace = await self._client.get(NAMESPACES, reference[2], timeout=seconds_left(deadline))
        except NotFound:
            return Granted()
        if namespace["metadata"].get("deletionTimestamp"):
            return Granted()
        where = f"{reference[1]} {reference[2]}/{reference[3]}"
        if awaited is not None:
            return busy(where, awaited)
        names = sorted(display_name(obj) for _, obj, _, _ in users)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return Denied(
            Reason.IN_USE,
            f"{where} is used by {' and '.join(names[:MAX_NAMED])}{more}: delete those first, or have them use another",
        )

    async def pending_write(self, reference: Reference, deadline: float, but: str = "") -> Slot | None:
        """What was allowed to name a claim a moment ago, and may not be stored yet, in another group than this one.

        Raises ApiError, Unreachable.
        """
        if reference[:2] != CLAIM:
            return None
        place, now = Slot(CLAIMS, *reference[2:]), time.time_ns() // 1_000_000
        groups, _ = await self._client.list(GROUPS, timeout=seconds_left(deadline))
        awaited = [
            entry.pending_write
            for group in groups
            if group["metadata"]["name"] != but
            for entry in _promises(group)
            if entry.slot == place and entry.pending_write is not None and entry.expires > now
        ]
        return min(awaited, default=None)


def busy(where: str, awaited: Slot) -> Denied:
    """The refusal of a claim's write that would take it from a workload whose write is under way."""
    return Denied(Reason.BUSY, f"{where} was promised to {awaited} a moment ago: try again")


def _promises(group: Object) -> Sequence[Reservation]:
    """What a stored group promises; nothing where that cannot be read: nobody is let into such a group."""
    try:
        return wire.reservations_of(wire.from_dict(group))
    except GroupUnreadable:
        return ()


def target_version(request: Request, new: Mapping[str, Any], old: Mapping[str, Any] | None) -> tuple[str, int | None]:
    """The uid of the object that a review writes, and the version that it is written on, None for a create.

    Raises Malformed for what no API server would say.
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
    return tuple(Role(role.name, role.replicas, role.per_pod) for role in demand.roles)


def display_name(obj: Mapping[str, Any]) -> str:
    return f"{obj.get('kind')} {obj['metadata'].get('namespace', '')}/{obj['metadata'].get('name', '')}"


def _reference(place: Slot) -> Reference:
    """The object that a place of shared claims is named after."""
    if place.kind == CLAIMS:
        return (*CLAIM, place.namespace, place.name)
    return (*POD_GROUP, place.namespace, place.name.rpartition(".")[0])


def _of_claim(place: Slot) -> str:
    kind = "ResourceClaim" if place.kind == CLAIMS else "claim of PodGroup"
    return f"{kind} {place.namespace}/{place.name}"


def _state(obj: Mapping[str, Any]) -> tuple[str, int] | None:
    metadata = obj.get("metadata") or {}
    uid, version = metadata.get("uid"), str(metadata.get("resourceVersion", ""))
    return (uid, int(version)) if isinstance(uid, str) and version.isascii() and version.isdigit() else None


def deadline_path(adapter: Adapter) -> str:
    """Where an object of the kind says how long it runs at most, "" where it cannot."""
    return ".".join(adapter.deadline.at.keys) if adapter.deadline is not None else ""
