"""Admission of writes below a workload after which its controller makes more pods than the workload is charged for.

Where the version of a Deployment that runs is deleted, leaves, or is scaled down below a paused one, an older version
takes over. Where a version, or another child of a workload, is deleted without its pods, others come in their place.
This file alone decides which such writes are charged for that: they declare nothing, but pods come of them. And what a
Deployment's controller raises itself, of what it has adopted or by notes that anybody can write, has to fit beyond what
the Deployment is charged for. The registration fails open, and so does this where something cannot be read: the recount
counts what comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import structlog

from bizrq.api.review import Request
from bizrq.kube.client import ApiError, NotFound, Unreachable
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Granted, Verdict
from bizrq.store.reference_resolver import resource_of, resources_of
from bizrq.units.resources import Resources, add, growth, total
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import NO_DEMAND, Demand
from bizrq.workloads.demand.owner_allowance import child_demand_at_least
from bizrq.workloads.kinds.declaration import DEPLOYMENT, JOB, REPLICA_SET
from bizrq.workloads.lookup import Lookup, OverlayLookup, Reference, group_and_version, reference_of
from bizrq.workloads.owners import charged_group, controller_of
from bizrq.workloads.ownership.lives import Stage, life_of, stage
from bizrq.workloads.ownership.observation import has_observed
from bizrq.workloads.ownership.payers import PayingOwner, keeps
from bizrq.workloads.ownership.takeover import Takeover, notes_of, takeover
from webhooks.charging.charger import Charger
from webhooks.charging.charges import (
    Charges,
    Counted,
    Decided,
    PendingCharge,
    charge_of,
    display_name,
    generation_of,
    target_version,
)
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.older_versions import OlderVersions, explained, instead_of, is_its, version_of
from webhooks.charging.owner_trust import OwnerTrust, as_child, is_controller
from webhooks.charging.payers import Payers
from webhooks.charging.stored import PODS, is_going, read_stored, read_versions, slot_of, stored_demand
from webhooks.handlers.answer import subject_of

log = structlog.get_logger(__name__)

Object = dict[str, Any]


class _Write(NamedTuple):
    """A write of a ReplicaSet, or of another child of a workload; `new` is None for a deletion."""

    request: Request
    old: Object
    new: Object | None


class _Priced(NamedTuple):
    """Who pays for an owner and what that asks `before`; the owner's own demand, that of each older version in its
    place, the cost of the pods that are left `beside`, and what is asked for more once a child is made `again`."""

    payer: PayingOwner
    before: Demand
    template: Demand
    older: Sequence[Demand]
    beside: Resources
    again: Resources


class VersionHandler:
    """The webhook for what people do to the ReplicaSets of Deployments, for what their controller raises, and for what
    people delete below a workload.
    """

    def __init__(self, context: Context, charger: Charger, payers: Payers, owner_trust: OwnerTrust) -> None:
        self._context = context
        self._charger = charger
        self._payers = payers
        self._owner_trust = owner_trust
        self._older = OlderVersions(context)

    async def admit(self, request: Request, deadline: Deadline) -> Verdict:
        """Return the verdict on an UPDATE of a ReplicaSet or of its `/scale`, or on the DELETE of a child.

        Raises Malformed; Unreachable for what a person does.
        """
        by_controller = is_controller(request.user_info, ())
        try:
            write = await self._write(request, deadline)
            if write is None:
                return Granted()
            count = partial(self._raised if by_controller else self._count, write, deadline)
            return await self._charger.charge(request, await count(), deadline, count)
        except (ApiError, Unreachable) as error:
            if isinstance(error, Unreachable) and not by_controller:
                # Whoever slows a list down would have it let pass.
                raise
            log.warning("allowed unseen: its owner could not be read", subject=subject_of(request), error=str(error))
            return Granted()

    async def _write(self, request: Request, deadline: Deadline) -> _Write | None:
        """Return the write, of a `/scale` as it changes the stored object; None where there is none.

        Raises Malformed, ApiError, Unreachable.
        """
        if request.sub_resource != "scale":
            new = request.object if request.operation == "UPDATE" else None
            return _Write(request, request.old_object, new) if request.old_object is not None else None
        adapter = self._context.registry.by_kind(*REPLICA_SET)
        if adapter is None:
            return None
        with suppress(NotFound):
            stored = await self._context.client.get(
                resource_of(adapter), request.name, request.namespace, timeout=deadline.seconds_left()
            )
            replicas = counting.scale_replicas(request.object or {})
            return _Write(request, stored, counting.with_scale(stored, adapter, replicas))
        return None

    async def _raised(self, write: _Write, deadline: Deadline) -> Counted:
        """Count what a controller of Kubernetes asks for beyond what the Deployment pays for.

        Raises Malformed, ApiError, Unreachable.
        """
        adapter, new, owner = self._context.registry.of(write.old), write.new, await self._owner(write, deadline)
        if adapter is None or new is None or owner is None:
            return Decided(Granted())

        def payer(known: Lookup) -> PayingOwner | None:
            return self._payers.owner(new, known)

        fresh = {reference_of(owner): owner}
        lookup = await self._context.resolver.resolve(payer, deadline.seconds_left(), fresh)
        pays = payer(lookup)
        if pays is None:
            return Decided(Granted(), lookup)
        child = await self._owner_trust.raised(adapter, new, write.old, pays.obj, lookup, deadline)
        if child is None:
            return Decided(Granted(), lookup)
        charge = charge_of(adapter, write.request, new, child.demand, write.old, child.before)
        return Charges([PendingCharge(pays.group, as_child(charge, child, adapter), lookup)])

    async def _count(self, write: _Write, deadline: Deadline) -> Counted:
        """Count what comes of the write as everything is stored now. Raises Malformed, ApiError, Unreachable."""
        if write.new is None and self._owner_trust.is_trusted(write.request):
            return Decided(Granted())
        owner = await self._owner(write, deadline)
        if owner is None or is_going(owner):
            return Decided(Granted())
        left = await self._left_pods(write, deadline) if write.new is None else []
        taken, made = Takeover(), list[Object]()
        if reference_of(owner)[:2] == DEPLOYMENT:
            taken, made = await self._taken_over(write, owner, deadline)
        adapter = self._context.registry.of(owner)
        # The demand of such a kind may be that of what it has made.
        makes_again = write.new is None and adapter is not None and adapter.code is not None
        if not (taken.pods or left or makes_again):
            return Decided(Granted())
        return await self._charge(write, owner, taken, made, left, deadline)

    async def _taken_over(self, write: _Write, deployment: Object, deadline: Deadline) -> tuple[Takeover, list[Object]]:
        """Return what takes over by the write, and the Deployment's ReplicaSets. Raises ApiError, Unreachable.

        A controller only scales what there is while the Deployment is paused, or was until it sees that. It also scales
        where its own notes say that the declared number has changed.
        """
        is_noted = write.new is not None and notes_of(write.new) != notes_of(write.old)
        if not (bool(deployment["spec"].get("paused")) or not has_observed(deployment) or is_noted):
            return Takeover(), []
        uid, own, new = deployment["metadata"]["uid"], write.old["metadata"].get("uid"), write.new
        made = await self._older.replica_sets(deployment, uid, deadline)
        others = [obj for obj in made if obj["metadata"]["uid"] != own]
        is_left = new is not None and is_its(new, uid, adopts=True) and keeps(deployment, new)
        taken = takeover(deployment, [*others, new] if new is not None and is_left else others)
        return (Takeover(), made) if taken == takeover(deployment, made) else (taken, made)

    async def _left_pods(self, write: _Write, deadline: Deadline) -> list[Object]:
        """Return the pods that run on without what made them, which is deleted. Raises ApiError, Unreachable.

        The garbage collector keeps those that have another owner, too.
        """
        stored, _ = await self._context.lists.of(PODS, deadline, write.request.namespace)
        uid, keeps_all = write.old["metadata"].get("uid"), _leaves_pods(write)
        its_own = [pod for pod in stored if (controller_of(pod["metadata"]) or {}).get("uid") == uid]
        return [
            pod
            for pod in its_own
            if (keeps_all or len(pod["metadata"].get("ownerReferences") or ()) > 1)
            and stage(life_of(pod), 0, awaited=False) is Stage.FRESH
        ]

    async def _owner(self, write: _Write, deadline: Deadline) -> Object | None:
        """Return what a stored child names as its controller, as it is stored. Raises ApiError, Unreachable."""
        reference = controller_of(write.old["metadata"])
        if reference is None:
            return None
        group, _ = group_and_version(reference.get("apiVersion"))
        adapter = self._context.registry.by_kind(group, str(reference.get("kind")))
        if adapter is None:
            return None
        place = write.request.namespace, str(reference.get("name"))
        found = await read_stored(self._context, resources_of(adapter), *place, deadline)
        return found if found is not None and found["metadata"]["uid"] == reference.get("uid") else None

    async def _charge(
        self,
        write: _Write,
        owner: Object,
        taken: Takeover,
        made: Sequence[Object],
        left: Sequence[Object],
        deadline: Deadline,
    ) -> Counted:
        """Charge who pays for the owner with what its pods cost more, and with those that are `left`.

        Raises Malformed, ApiError, Unreachable.
        """
        versions = [version_of(owner, obj) for obj in taken.versions]
        workloads = [each.workload for each in versions]
        gone = reference_of(write.old) if write.new is None else None

        def price(known: Lookup) -> _Priced | None:
            return self._price(owner, workloads, left, gone, known)

        lookup = await self._context.resolver.resolve(price, deadline.seconds_left())
        priced = price(lookup)
        slot = slot_of(self._context, priced.payer.obj) if priced is not None else None
        if priced is None or slot is None:
            return Decided(Granted(), lookup)
        before, payer = priced.before.resources, priced.payer
        more = total((instead_of(priced.template, priced.older, taken.pods), priced.beside, priced.again))
        if not more:
            return Decided(Granted(), lookup)
        uid, version = target_version(write.request, write.old, write.old)
        charge = Charge(
            slot=slot,
            uid=uid,
            resource_version=version,
            demand=add(before, more),
            before=before,
            is_new=True,
            pending_write=slot_of(self._context, write.old),
            read_versions=read_versions(self._context, (), lookup, [payer.obj, *made]),
            generation=generation_of(write.old),
        )
        if versions:
            charge = explained(charge, priced.beside, versions, priced.older)
        why = "of which an older version takes over"
        if left:
            why = "which makes others in place of the pods that stay (deleted with --cascade=background, none do)"
        elif priced.again:
            why = "which makes another of what it refers to now"
        return Charges([PendingCharge(payer.group, charge, lookup, f"{display_name(owner)}, {why}")])

    def _price(
        self,
        owner: Object,
        versions: Sequence[Object],
        left: Sequence[Object],
        gone: Reference | None,
        lookup: Lookup,
    ) -> _Priced | None:
        """Return what an owner, its older versions and what is left of it cost; None where no group pays.

        A child may be `gone`, of which the owner makes another.
        """
        payer = self._payer(owner, lookup)
        adapter = self._context.registry.of(payer.obj) if payer is not None else None
        if payer is None or adapter is None:
            return None
        template, *older = (self._child(obj, payer.obj, lookup) for obj in (owner, *versions))
        beside = total(self._child(pod, payer.obj, lookup).resources for pod in left)
        before = stored_demand(self._context, payer.obj, adapter, lookup)
        again: Resources = {}
        if gone is not None and payer.obj is owner:
            then = stored_demand(self._context, owner, adapter, OverlayLookup(lookup, gone, None))
            again = growth(then.resources, before.resources)
        return _Priced(payer, before, template, older, beside, again)

    def _payer(self, owner: Object, lookup: Lookup) -> PayingOwner | None:
        """Return who pays for what the owner makes; None where no group does, or one that is left."""
        above = self._payers.owner(owner, lookup)
        if above is not None or self._payers.of_stored(owner, lookup) is not None:
            return above
        group = charged_group(owner, self._context.registry, lookup)
        return PayingOwner(owner, group) if group is not None else None

    def _child(self, obj: Object, payer: Object, lookup: Lookup) -> Demand:
        """Return what an object asks for, with the payer's models, as far as that can be counted."""
        adapter = self._context.registry.of(obj)
        return (
            child_demand_at_least(obj, adapter, payer, lookup, self._context.config)
            if adapter is not None
            else NO_DEMAND
        )


def _leaves_pods(write: _Write) -> bool:
    """Return True for a deletion without the pods: by its options, else by a finalizer, else by the kind.

    Source: kubernetes staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go, shouldOrphanDependents;
    pkg/registry/batch/job/strategy.go, DefaultGarbageCollectionPolicy.
    """
    options = write.request.options or {}
    if options.get("orphanDependents") is not None:
        return options["orphanDependents"] is True
    if options.get("propagationPolicy") is not None:
        return options["propagationPolicy"] == "Orphan"
    said = [each for each in write.old["metadata"].get("finalizers") or () if each in ("orphan", "foregroundDeletion")]
    return said[0] == "orphan" if said else reference_of(write.old)[:2] == JOB
