"""Admission of workloads and of their `/scale`: count the write, then charge it.

This file alone decides which writes are counted, and when a count or a verdict has to be looked at again. A write that
cannot be counted is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import structlog

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.registration import WORKLOADS
from bizrq.store.reference_resolver import resource_of
from bizrq.units.resources import growth, smaller
from bizrq.workloads.demand import counting
from bizrq.workloads.devices import hami
from bizrq.workloads.devices.cards import annotations_of_counts_as
from bizrq.workloads.kinds.declaration import POD
from bizrq.workloads.labels import LABEL, group_of
from bizrq.workloads.lookup import ALL_NODES
from bizrq.workloads.validation import Malformed, map_at
from webhooks.charging.adoption import Adoption
from webhooks.charging.charger import Charger, earlier_writes_land
from webhooks.charging.charges import Charges, Counted, Decided, NothingCharged, as_intent
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.known_models import KnownModels
from webhooks.charging.later_objects import LaterObjects
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.charging.payers import Payers, check_owner_references
from webhooks.handlers.answer import Answer, malformed, subject_of, unread
from webhooks.handlers.workload_count import Fresh, WorkloadCounter, WorkloadWrite, has_same_spec

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: What follows a warning of a model that would be a refusal, if all nodes and groups had been read.
_NOT_REFUSED = "; unknownModels: deny refuses it only where all nodes and groups can be read"
_NOTHING_FRESH: Fresh = MappingProxyType({})
_WITHOUT_NODES: Fresh = MappingProxyType({ALL_NODES: {"items": []}})


class WorkloadHandler:
    """The webhook for workload objects and for their scale."""

    def __init__(
        self,
        context: Context,
        charger: Charger,
        counter: WorkloadCounter,
        owner_trust: OwnerTrust,
        payers: Payers,
        adoption: Adoption,
    ) -> None:
        self._context = context
        self._charger = charger
        self._counter = counter
        self._owner_trust = owner_trust
        self._payers = payers
        self._models = KnownModels(
            context.client, context.config, lambda: _ceilings(context), is_complete=context.groups.is_complete
        )
        self._adoption = adoption
        self._later = LaterObjects(context)
        self._registry = context.registry
        self._config = context.config

    async def admit(self, request: Request, deadline: Deadline) -> Answer | Verdict:
        """Return the answer to a CREATE or UPDATE of a workload object."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if adapter is None or not self._registry.is_charged(adapter) or request.object is None:
            return Granted()
        new, old = request.object, request.old_object
        later = await self._later.of(request, adapter, deadline)
        if old is not None and _unchanged(old, new):
            return Answer(Granted(), later=later)
        if old is None or _owners(old) != _owners(new):
            check_owner_references(new)
        write = WorkloadWrite(request, adapter, new, old, set())
        return Answer(await self._admit(write, deadline), sorted(write.warnings), later=later)

    async def indirect(self, request: Request, deadline: Deadline) -> Answer:
        """Grant a write of a kind that is not charged itself, with what it will make that is."""
        adapter = self._registry.by_kind(request.kind.group, request.kind.kind)
        if adapter is None or self._registry.is_charged(adapter):
            return Answer(Granted())
        return Answer(Granted(), later=await self._later.of(request, adapter, deadline))

    async def leaving(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on an UPDATE by which an object may leave the owner that pays for it, or will adopt it.

        Its registration fails open, and so does this where the owner cannot be read: the recount counts what is left.
        """
        adapter, new, old = (
            self._registry.by_kind(request.kind.group, request.kind.kind),
            request.object,
            request.old_object,
        )
        if adapter is None or not self._registry.is_charged(adapter) or new is None or old is None:
            return Granted()
        try:
            if (awaited := await self._adoption.awaited_by(old, new, deadline)) is not None:
                return Denied(Reason.BUSY, f"{subject_of(request)} is about to be adopted by {awaited}: try again")
            if not await self._payers.may_leave(old, new, deadline):
                return Granted()
            return await self._admit(WorkloadWrite(request, adapter, new, old, set()), deadline)
        except (ApiError, Unreachable) as error:
            log.warning("allowed unseen: its owner could not be read", subject=subject_of(request), error=str(error))
            return Granted()

    async def scale(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on an UPDATE of a workload's `/scale`; it carries no labels, so the parent is read."""
        adapter = self._registry.by_resource(request.resource.group, request.resource.resource)
        if adapter is None or not self._registry.is_charged(adapter) or adapter.scale is None or request.object is None:
            return Granted()
        wanted = counting.scale_replicas(request.object)
        resource = resource_of(adapter, request.resource.version)
        try:
            parent = await self._context.client.get(
                resource, request.name, request.namespace, timeout=deadline.seconds_left()
            )
        except NotFound:
            return Granted()
        stored_version = (request.old_object or {}).get("metadata", {}).get("resourceVersion")
        if stored_version:
            # The write is decided on what the Scale was read from, whatever has been stored since.
            parent = {**parent, "metadata": {**parent["metadata"], "resourceVersion": stored_version}}
        subject = subject_of(request, adapter.kind)
        try:
            scaled = counting.with_scale(parent, adapter, wanted)
            if _unchanged(parent, scaled):
                return Granted()
            return await self._admit(WorkloadWrite(request, adapter, scaled, parent, set()), deadline)
        except Malformed as error:
            return malformed(subject, error)
        except (ApiError, Unreachable) as error:
            return unread(WORKLOADS.reads.format(subject), error)

    async def _admit(self, write: WorkloadWrite, deadline: Deadline) -> Verdict:
        """Return the verdict on a write. Raises Malformed, ApiError, Unreachable.

        A kind with a pod per node may not grow while the nodes cannot be read; any other change of it is granted.
        """
        try:
            return await self._admit_counted(write, deadline)
        except (ApiError, Unreachable) as error:
            if not write.adapter.per_node:
                raise
            if await self._is_no_growth(write, deadline):
                return Granted()
            subject = subject_of(write.request, write.adapter.kind)
            return unread(f"the nodes or {WORKLOADS.reads.format(subject)}", error)

    async def _is_no_growth(self, write: WorkloadWrite, deadline: Deadline) -> bool:
        """Return True if a change needs nothing more, whichever nodes exist. Raises Malformed."""
        if write.old is None:
            return False
        try:
            if await self._counter.count(write, deadline, _WITHOUT_NODES) != Decided(Granted()):
                return False
            lookup = await self._context.resolver.resolve(
                lambda known: self._counter.demand(write, known), deadline.seconds_left(), _WITHOUT_NODES
            )
        except (ApiError, Unreachable):
            return False
        return not counting.may_grow_on_nodes(write.new, write.old, write.adapter, lookup, self._config)

    async def _admit_counted(self, write: WorkloadWrite, deadline: Deadline) -> Verdict:
        """Count the write and charge it. Raises Malformed, ApiError, Unreachable.

        What is not charged is confirmed here, and a no that depends on the namespace's labels; growth by the charger.
        """
        counted, verdict = await self._count_and_charge(write, deadline)
        if isinstance(verdict, Denied) and verdict.reason is Reason.EXCEEDED and write.old is None:
            # Only a create that does not fit is worth the lists.
            counted, verdict = await self._with_adoption(write, deadline) or (counted, verdict)
        is_uncharged = isinstance(counted, NothingCharged) or isinstance(verdict, Denied)
        if is_uncharged and (group_of(write.new) is None or self._registry.scope.reads_labels):
            lookup = counted.charges[-1].lookup if isinstance(counted, Charges) else counted.lookup
            if not await self._context.confirmation.is_namespace_current(lookup, write.request.namespace, deadline):
                _, verdict = await self._count_and_charge(write, deadline)
        return verdict

    async def _with_adoption(self, write: WorkloadWrite, deadline: Deadline) -> tuple[Counted, Verdict] | None:
        """Decide a create by what it will adopt, too; None where that is nothing.

        Raises Malformed, ApiError, Unreachable.

        Only what is still there once the reservation is stored is granted. A later create of this name sees the
        reservation, and what an earlier one took is not there any more.
        """
        adopts = await self._adoption.of(write.adapter, write.new, deadline)
        if not adopts:
            return None
        while True:
            write = write._replace(adopts=adopts)
            counted, verdict = await self._count_and_charge(write, deadline)
            if isinstance(verdict, Denied):
                return counted, verdict
            # One of them may take it away.
            await earlier_writes_land(write.request, deadline)
            left = await self._adoption.of(write.adapter, write.new, deadline)
            if not any(growth(amounts, left.get(group, {})) for group, amounts in adopts.items()):
                return counted, verdict
            adopts = {group: smaller(amounts, left.get(group, {})) for group, amounts in adopts.items()}

    async def _count_and_charge(self, write: WorkloadWrite, deadline: Deadline) -> tuple[Counted, Verdict]:
        """Return the first count and the verdict on it. Raises Malformed, ApiError, Unreachable."""
        count = partial(self._counter.count, write, deadline, _NOTHING_FRESH)
        counted = await count()
        while isinstance(counted, Decided) and not await self._is_current(write, counted, deadline):
            counted = await count()
        if not isinstance(counted, NothingCharged):
            self._check_cards_kept(write)
        refused = await self._check_models(write, counted, deadline)
        if refused is not None:
            return counted, refused
        verdict = await self._charger.charge(write.request, counted, deadline, count)
        if isinstance(verdict, Denied) and isinstance(counted, Charges):
            own = counted.charges[-1]
            if self._owner_trust.releases(write.request, write.new, write.old, own.lookup):
                slot = str(own.charge.slot)
                log.warning("charged without room: released by its controller", slot=slot, group=own.group)
                if own.charge.leaving:
                    await self._charger.charge(write.request, Charges([as_intent(own)], is_final=True), deadline, count)
                return counted, Granted()
        return counted, verdict

    def _check_cards_kept(self, write: WorkloadWrite) -> None:
        """Refuse other annotations of `countsAs` for a pod that has a node: nothing else says which cards it was given.

        A pod that is bound at the moment of the write is not seen. Raises Malformed.
        """
        new, old = write.new, write.old
        if old is None or write.adapter.group_kind != POD or not map_at(old, "spec").get("nodeName"):
            return
        before, after = (map_at(each, "metadata", "annotations") for each in (old, new))
        changed = [key for key in annotations_of_counts_as(self._config) if before.get(key) != after.get(key)]
        if changed and not self._owner_trust.is_trusted(write.request):
            raise Malformed(f"metadata.annotations.{changed[0]}: cannot change, since the pod has a node")

    async def _check_models(self, write: WorkloadWrite, counted: Counted, deadline: Deadline) -> Denied | None:
        """Warn of models that the write brings and that nothing has; refuse them where the configuration says so."""
        mode = self._config.unknown_models
        if mode == "ignore" or not isinstance(counted, Charges):
            return None
        own = counted.charges[-1]
        group = self._context.groups.cached(own.group)
        added = own.charge.demand.keys() - own.charge.before.keys()
        found = await self._models.unknown(added, group.spec.hard if group else (), deadline.seconds_left())
        if found is None:
            return None
        if mode == "deny" and found.is_sure:
            subject = subject_of(write.request, write.adapter.kind)
            return Denied(Reason.UNKNOWN_MODEL, f"{subject}: {'; '.join(found.sentences)}")
        why = _NOT_REFUSED if mode == "deny" else ""
        write.warnings.update(f"{sentence}{why}" for sentence in found.sentences)
        return None

    async def _is_current(self, write: WorkloadWrite, counted: Decided, deadline: Deadline) -> bool:
        """Return True unless a change that seemed to ask for no more may ask for more of current objects.

        A change that keeps the pods asks for no more in any case. Raises ApiError, Unreachable.
        """
        pending = counted.charge
        if pending is None or write.old is None:
            return True
        if counting.has_same_pods(write.new, write.old, write.adapter, pending.lookup, self._config):
            return True
        return await self._context.confirmation.is_current([pending], deadline)


def _ceilings(context: Context) -> set[str]:
    """Return the names in `hard` of all groups."""
    return {name for group in context.groups.values() for name in group.spec.hard}


def _unchanged(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether nothing that is charged differs. Such a write is allowed even where it cannot be counted."""
    return has_same_spec(old, new) and _charged(old) == _charged(new)


def _owners(obj: Mapping[str, Any]) -> object:
    return (obj.get("metadata") or {}).get("ownerReferences")


def _charged(obj: Mapping[str, Any]) -> tuple[object, ...]:
    metadata = obj.get("metadata") or {}
    labels = metadata.get("labels") or {}
    return (
        {key: value for key, value in labels.items() if key in (LABEL, hami.IGNORE) or key.startswith(LABEL + "/")},
        metadata.get("annotations"),
        _owners(obj),
    )
