"""Decide whether the owner in an ownerReference really pays for a child.

This file alone decides which ownerReferences are trusted: those by Kubernetes' own controllers and by the accounts that
the configuration lists. Any other child costs nothing as far as the charge of its owner reaches, and pays for itself
beyond that. So operators that are not listed, and people who make a job's pods by hand, need no configuration, and a
forged reference gains nothing.

Children of one owner that are reviewed at the same moment are decided in order: each leaves an entry in the owner's
slot, and the next is decided on the listed children and those entries (`bizrq.quota.new_reservation.with_cover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, Final, NamedTuple

from msgspec import structs

from bizrq.api.review import Request, UserInfo
from bizrq.kube.client import NotFound
from bizrq.quota.change import Charge, Room, newly
from bizrq.store.ports import ReferenceLookup
from bizrq.store.reference_resolver import resource_of, resources_of
from bizrq.units.resources import Resources, add, growth, larger, scale, total
from bizrq.units.slot import Slot
from bizrq.workloads.demand.counting import NO_DEMAND, Demand, least_pod
from bizrq.workloads.demand.owner_allowance import (
    allowance,
    child_demand,
    child_demand_at_least,
    countable_demand,
    excess,
    responsible_owner,
)
from bizrq.workloads.kinds.declaration import DEPLOYMENT, POD, REPLICA_SET, Adapter
from bizrq.workloads.labels import LABEL, inheriting, labels_of
from bizrq.workloads.lookup import Lookup, group_and_version, reference_of
from bizrq.workloads.owners import controller_of, has_same_controller, owner_chain
from bizrq.workloads.ownership.lives import Stage, life_of, stage
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import RESELECTING, dropped_by
from bizrq.workloads.ownership.takeover import replicas_of
from bizrq.workloads.ownership.waiting import current_version
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.pods.surge import surge_of_deployment
from bizrq.workloads.validation import malformed, map_at
from webhooks.charging.beyond import Beyond
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.payers import Payers, slot_of_owner
from webhooks.charging.stored import PODS, is_going, read_stored, stored_label

Object = dict[str, Any]

#: Controllers of Kubernetes itself: the one process, or its accounts one by one (--use-service-account-credentials).
KUBERNETES = ("system:kube-controller-manager", "system:serviceaccount:kube-system:*")


def is_controller(user: UserInfo | None, controllers: Sequence[str]) -> bool:
    """Return True for Kubernetes' own controllers and for the accounts `controllers`, with `*` for any text."""
    name = user.username if user else ""
    return any(fnmatchcase(name, pattern) for pattern in (*KUBERNETES, *controllers))


#: What no owner's controller writes of a child, so it is checked for every user. An autoscaler writes what a person has
#: asked it for, with an account of Kubernetes.
_ASKED_BY_NO_OWNER: Final = frozenset({"resize", "scale"})


@dataclass(frozen=True, slots=True)
class UntrustedChild:
    """A child that its owner may not cover: its demand, and that of the stored child, None without one.

    With `room` it is charged in the `slot` of its owner; `is_over` says that the listed children leave too little room.
    Without it is charged in its own slot. A person writes one that `is_by_person`.
    """

    demand: Demand
    before: Demand | None
    is_over: bool = True
    slot: Slot | None = None
    room: Room | None = None
    is_by_person: bool = False


def as_child(charge: Charge, child: UntrustedChild, adapter: Adapter) -> Charge:
    """Return the charge of a child in the slot of the owner that has room for some of it."""
    if child.room is None or child.slot is None:
        return charge
    return structs.replace(
        charge,
        slot=child.slot,
        pending_write=charge.slot,
        is_new=True,
        is_child=True,
        roles=(),
        roles_before=(),
        max_run_time_before=charge.max_run_time,
        room=child.room,
        is_by_person=child.is_by_person,
        children=frozenset({adapter.resource}),
    )


@dataclass(frozen=True, slots=True)
class _OwnedKind:
    """Children of a kind, the owner that is responsible for them with its adapter `above`, and the owner's payer."""

    adapter: Adapter
    owner: Object
    above: Adapter
    pays: Object


class _Siblings(NamedTuple):
    """What the other children of an owner ask for, by uid; the names of their kinds, and when they were listed.

    `uids` has also those that ask for nothing.
    """

    costs: dict[str, Resources]
    kinds: frozenset[str]
    revision: int
    uids: frozenset[str]

    def room(self, covers: Resources, **how: Any) -> Room:
        """Return the room beside them of an owner that is charged for so much."""
        return Room(covers, self.costs, self.kinds, self.revision, **how)


class _LivePod(NamedTuple):
    """A live pod: the uid of what made it, and what it costs."""

    maker: str
    is_ending: bool
    cost: Resources


class OwnerTrust:
    """Decides whether owners pay for reviewed objects."""

    def __init__(self, context: Context, payers: Payers, beyond: Beyond, controllers: Sequence[str] = ()) -> None:
        """`controllers` are the accounts to trust in addition to Kubernetes' own, with `*` for any text."""
        self._context = context
        self._payers = payers
        self._controllers = controllers
        self._beyond = beyond

    def is_trusted(self, request: Request) -> bool:
        """Return whether the user is a controller whose ownerReferences are trusted."""
        return is_controller(request.user_info, self._controllers)

    def releases(self, request: Request, new: Object, old: Object | None, lookup: Lookup) -> bool:
        """Return whether a controller takes a stored object from the owner that paid for it, as when it is orphaned.

        Such a write is never refused: the garbage collector would retry for ever, and a pod that leaves its ReplicaSet
        runs on anyway. One that changes what the object asks for is no mere release.
        """
        return (
            old is not None
            and controller_of(old.get("metadata")) is not None
            and controller_of(new.get("metadata")) is None
            and new.get("spec") == old.get("spec")
            and self.is_trusted(request)
            and self._payers.of_stored(old, lookup) is not None
        )

    async def check_stands(
        self,
        request: Request,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        deadline: Deadline,
        *,
        is_charged: bool,
    ) -> None:
        """Refuse an owner that is gone: no controller works for it any more.

        The group that paid for it pays for what its controller makes late, so nobody else may add to that: it would be
        charged there unseen. A new object that names a group itself is that group's, and so is one that `is_charged` to
        the default of its namespace, unless some group remembers the owner. Raises Malformed, ApiError, Unreachable.
        """
        reference = controller_of(new.get("metadata"))
        is_same = old is not None and has_same_controller(old, new)
        if reference is None or is_same or self.is_trusted(request):
            return
        uid = str(reference.get("uid"))
        is_remembered = stored_label(new) is None and self._context.payers.get(uid) is not None
        if old is None and is_charged and not is_remembered:
            return
        group, version = group_and_version(reference.get("apiVersion"))
        above, made = self._context.registry.by_kind(group, str(reference.get("kind"))), adapter.group_kind
        if above is None or made not in above.creates or not (above.pays and self._context.registry.is_charged(above)):
            return
        name = str(reference.get("name"))
        if await self._stands(above, version, name, uid, request.namespace, deadline):
            return
        remedy = f"or label this object with the group that pays for it ({LABEL})" if old is None else "or keep the old"
        path, why = "metadata.ownerReferences", f"there is no {above.kind} {name} with uid {uid}"
        raise malformed(path, f"{why}: remove the reference, {remedy}")

    async def check_kept(self, request: Request, new: Object, deadline: Deadline) -> None:
        """Refuse an object that its owner's selector does not match, where the group of that owner would pay.

        That group pays for what the owner's controller made for another selector, so nobody else may add to that: it
        would be charged there unseen. The owner is read: its selector may just have changed. Raises Malformed,
        ApiError, Unreachable.
        """
        reference = controller_of(new.get("metadata"))
        if reference is None or self.is_trusted(request):
            return
        group, version = group_and_version(reference.get("apiVersion"))
        kind, name = self._context.registry.by_kind(group, str(reference.get("kind"))), str(reference.get("name"))
        if kind is None or (group, kind.kind) not in RESELECTING:
            return
        owner: Object | None = None
        with suppress(NotFound):
            owner = await self._context.client.get(
                resource_of(kind, version), name, request.namespace, timeout=deadline.seconds_left()
            )
        fresh = {(group, kind.kind, request.namespace, name): owner}

        def dropped(known: Lookup) -> Memory | None:
            return dropped_by(new, self._context.registry, known, self._context.payers)

        found = dropped(await self._context.resolver.resolve(dropped, deadline.seconds_left(), fresh))
        if found is not None:
            why = f"the selector of {kind.kind} {name} does not match the labels of this object"
            raise malformed("metadata.ownerReferences", f"{why}: remove the reference, or set labels that it selects")

    def check_above(self, new: Object, old: Object | None, lookup: Lookup) -> None:
        """Refuse an object without a group below a pod that a group pays for by its owner: nobody would pay for it.

        Few kinds have pods that make others (`Adapter.has_pods_below_pods`). Raises Malformed.
        """
        if old is not None and stored_label(old) is None and has_same_controller(old, new):
            return
        above = next(owner_chain(new, self._context.registry, lookup), None)
        if above is None or above[1].group_kind != POD:
            return
        paid = self._payers.of_stored(above[0], lookup)
        if paid is not None:
            why = f"{paid.group} pays for Pod {above[0]['metadata']['name']}, and not for what is below it"
            remedy = f"label this object with the group that pays for it ({LABEL}), or remove the reference"
            raise malformed("metadata.ownerReferences", f"{why}: {remedy}")

    async def _stands(
        self, kind: Adapter, version: str, name: str, uid: str, namespace: str, deadline: Deadline
    ) -> bool:
        """Return True if an object of this kind, name and uid is stored, in a version that the cluster serves.

        Raises ApiError, Unreachable.
        """
        resources = dict.fromkeys((*resources_of(kind), *([resource_of(kind, version)] if version else ())))
        stored = await read_stored(self._context, resources, namespace, name, deadline)
        return stored is not None and bool(stored["metadata"]["uid"] == uid)

    async def untrusted(
        self,
        request: Request,
        adapter: Adapter,
        new: Object,
        old: Object | None,
        pays: Object,
        lookup: ReferenceLookup,
        deadline: Deadline,
        *,
        is_unpaid: bool,
    ) -> UntrustedChild | None:
        """Return the child with the room that its owner has for it; None where it needs none.

        `pays` is the payer above the child. A controller is not trusted with what it adopts and no group has paid for,
        which `is_unpaid` says: it takes whatever matches. Raises Malformed, ApiError, Unreachable.
        """
        if self.is_trusted(request) and request.sub_resource not in _ASKED_BY_NO_OWNER and not is_unpaid:
            return None
        family = self._family(adapter, new, pays, lookup)
        if family is None:
            if old is not None and has_same_controller(old, new):
                return None
            # So it is below more owners than are followed, of which a group has paid for one.
            raise malformed("metadata.ownerReferences", "no owner that is followed makes such objects: remove it")
        grows = adapter.group_kind in family.above.grows
        demand, before, lookup = await self._demands(family, new, old, lookup, deadline)
        if old is not None and before is not None and adapter.creates:
            # Its pods may stay, or be made of an older version.
            models = labels_of(pays)
            as_paid = inheriting(new, models), inheriting(old, models)
            demand = (await self._beyond.of(adapter, *as_paid, demand, before, lookup, deadline)).demand
        if not growth(demand.resources, before.resources if before is not None else {}):
            was = before.missing if before is not None else {}
            if not (request.is_by_person and newly(demand.missing, was)):
                return None
        pods = self._declared(family, lookup) if adapter.group_kind == POD else NO_DEMAND
        if is_unpaid and adapter.group_kind == POD and not pods.declared:
            # Its owner wants no pods, and ends it as nobody's.
            return None
        if not is_unpaid and (is_going(pays) or self._has_ended(pays)):
            return UntrustedChild(demand, before)
        siblings = await self._siblings(family, new, deadline)
        own = str(new["metadata"].get("uid"))
        live: list[_LivePod] | None = None
        if request.sub_resource == "scale":
            live = await self._live_pods(family, {own, *siblings.uids}, deadline)
            siblings = _with_live_pods(siblings, own, live)
        if grows and family.above.surge is not None:
            # The new child replaces the old one, and both run meanwhile, however far the old one has grown.
            return UntrustedChild(demand, before) if len(siblings.costs) > 1 else None
        costs = [demand.resources, *siblings.costs.values()]
        reached = self._reached(family, costs, lookup)
        if grows:
            # The owner pays for the largest of them (`webhooks.charging.grown_children`).
            reached = reduce(larger, costs, reached)
            return UntrustedChild(demand, before) if excess(costs, reached) else None
        scaled_to: Resources = {}
        if self._may_raise(family.above, adapter):
            # A Deployment raises a ReplicaSet to all of its replicas while it knows no other.
            scaled_to = allowance(family.owner, family.above, pays, 1, lookup, self._context.config)
        if before is not None and POD in adapter.creates:
            live = await self._live_pods(family, {own}, deadline) if live is None else live
            siblings = _with_larger_pods(siblings, own, live, least_pod(demand))
        room = siblings.room(reached, scaled_to=scaled_to, declared=pods.declared, least=least_pod(pods))
        is_over = bool(excess([demand.resources, room.asked(siblings.costs.values())], reached))
        slot = slot_of_owner(family.owner, family.above)
        return UntrustedChild(demand, before, is_over, slot, room, is_by_person=request.is_by_person)

    async def raised(
        self, adapter: Adapter, new: Object, old: Object, pays: Object, lookup: ReferenceLookup, deadline: Deadline
    ) -> UntrustedChild | None:
        """Return a ReplicaSet that its Deployment's controller raises beyond what the Deployment is charged for.

        The controller raises what it has adopted, and divides pods by notes that anybody can write. The version of now
        is covered up to what is declared and the surge. What a write of the Deployment was admitted with covers nothing
        here: its promise would have to be divided. Raises Malformed, ApiError, Unreachable.
        """
        family = self._family(adapter, new, pays, lookup)
        if family is None or family.above.group_kind != DEPLOYMENT:
            return None
        if await self._is_as_declared(family, new, deadline):
            return None
        demand, before, lookup = await self._demands(family, new, old, lookup, deadline)
        siblings = await self._siblings(family, new, deadline)
        costs = [demand.resources, *siblings.costs.values()]
        reached = self._reached(family, costs, lookup)
        if not excess(costs, reached):
            return None
        slot = slot_of_owner(family.owner, family.above)
        return UntrustedChild(demand, before, slot=slot, room=siblings.room(reached))

    async def _is_as_declared(self, family: _OwnedKind, new: Object, deadline: Deadline) -> bool:
        """Return True for the version of now with no more pods than a Deployment declares and surges.

        Raises ApiError, Unreachable.
        """
        owner, declared = family.owner, replicas_of(family.owner)
        most = declared + surge_of_deployment(owner, declared)
        if replicas_of(new) > most or current_version(owner, [new]) is None:
            return False
        labels = sorted(map_at(owner, "spec", "selector", "matchLabels").items())
        stored, _ = await self._context.lists.of(
            resource_of(family.adapter),
            deadline,
            owner["metadata"]["namespace"],
            ",".join(f"{key}={value}" for key, value in labels) or None,
        )
        uid = owner["metadata"]["uid"]
        made = [each for each in stored if (controller_of(each["metadata"]) or {}).get("uid") == uid]
        return current_version(owner, made) == new["metadata"]["uid"]

    def _family(self, adapter: Adapter, new: Object, pays: Object, lookup: Lookup) -> _OwnedKind | None:
        found = responsible_owner(new, self._context.registry, lookup)
        return _OwnedKind(adapter, *found, pays) if found is not None else None

    async def _demands(
        self, family: _OwnedKind, new: Object, old: Object | None, lookup: ReferenceLookup, deadline: Deadline
    ) -> tuple[Demand, Demand | None, ReferenceLookup]:
        """Return what the child asks for and what the stored one did, with the lookup that has all they depend on.

        Raises Malformed, ApiError, Unreachable.
        """

        def ask(known: Lookup) -> None:
            self._reached(family, ({},), known)
            self._before(family, old, known)
            child_demand(new, family.adapter, family.pays, known, self._context.config)

        fresh = {reference_of(family.owner): family.owner}
        lookup = await self._context.resolver.resolve(ask, deadline.seconds_left(), fresh)
        demand = child_demand(new, family.adapter, family.pays, lookup, self._context.config)
        return demand, self._before(family, old, lookup), lookup

    def _reached(self, family: _OwnedKind, costs: Iterable[Resources], lookup: Lookup) -> Resources:
        """Return what the owner covers of children that cost so much."""
        if family.above.beside and family.adapter.group_kind not in family.above.grows:
            # What may outgrow the owner has all of its other pods.
            roles = (role for role in self._declared(family, lookup).roles if role.name in family.above.beside)
            return total(scale(role.per_pod, role.replicas) for role in roles)
        asking = sum(1 for cost in costs if cost)
        return allowance(family.owner, family.above, family.pays, asking, lookup, self._context.config)

    def _declared(self, family: _OwnedKind, lookup: Lookup) -> Demand:
        """Return what the owner asks for itself."""
        return countable_demand(family.owner, family.above, family.pays, lookup, self._context.config)

    def _has_ended(self, pays: Object) -> bool:
        """Return True for a payer that costs no more than its live pods, so that it covers no other."""
        adapter = self._context.registry.of(pays)
        return adapter is not None and has_ended(pays, adapter)

    def _may_raise(self, above: Adapter, made: Adapter) -> bool:
        """Return True where the owner's controller may raise any of its children to all of its replicas, uncharged.

        That of a Deployment may raise the version of now so far (`raised`). The controller of a Rollout is reviewed
        itself unless its account is listed.
        """
        is_raised = above.surge is not None and made.group_kind == REPLICA_SET
        return is_raised and (above.group_kind == DEPLOYMENT or bool(self._controllers))

    def _before(self, family: _OwnedKind, old: Object | None, lookup: Lookup) -> Demand | None:
        """Return the demand of the stored object, None where it is not this owner's child."""
        if old is None or not self._is_child(family, old, lookup):
            return None
        return countable_demand(old, family.adapter, family.pays, lookup, self._context.config)

    def _kinds_beside(self, family: _OwnedKind) -> list[Adapter]:
        """Return the kinds of children that share what the owner covers: one that may outgrow the owner shares none."""
        if family.adapter.group_kind in family.above.grows:
            return [family.adapter]
        kinds = (self._context.registry.by_kind(*made) for made in family.above.creates - family.above.grows)
        charged = (each for each in kinds if each is not None and self._context.registry.is_charged(each))
        return list({each.resource: each for each in (family.adapter, *charged)}.values())

    async def _siblings(self, family: _OwnedKind, child: Object, deadline: Deadline) -> _Siblings:
        """List the owner's other children in the namespace. Raises ApiError, Unreachable."""
        owner, own = family.owner["metadata"], child["metadata"]
        items: list[tuple[Adapter, Object]] = []
        revisions: list[int] = []
        kinds = self._kinds_beside(family)
        for kind in kinds:
            passing = {a.kind for a in self._context.registry.adapters if kind.group_kind in a.passes}
            stored, revision = await self._context.lists.of(resource_of(kind), deadline, owner["namespace"])
            revisions.append(int(revision) if revision.isdigit() else 0)
            items += [
                (kind, item)
                for item in stored
                if item["metadata"]["uid"] != own.get("uid")
                and (kind, item["metadata"]["name"]) != (family.adapter, own.get("name"))
                and (maker := controller_of(item["metadata"])) is not None
                and (maker["uid"] == owner["uid"] or maker["kind"] in passing)
            ]
        lookup = await self._context.resolver.resolve(
            lambda known: [self._cost(family, kind, item, known) for kind, item in items], deadline.seconds_left()
        )
        costs = {item["metadata"]["uid"]: self._cost(family, kind, item, lookup) for kind, item in items}
        names = frozenset(kind.resource for kind in kinds)
        asking = {uid: cost for uid, cost in costs.items() if cost}
        return _Siblings(asking, names, min(revisions), frozenset(costs))

    async def _live_pods(self, family: _OwnedKind, makers: Set[str], deadline: Deadline) -> list[_LivePod]:
        """Return the pods of these makers that are live. Raises ApiError, Unreachable."""
        kind = self._context.registry.by_kind(*POD)
        if kind is None:
            return []
        stored, _ = await self._context.lists.of(PODS, deadline, family.owner["metadata"]["namespace"])
        named = ((str((controller_of(pod["metadata"]) or {}).get("uid")), pod) for pod in stored)
        made = [(maker, pod, stage(life_of(pod), 0, awaited=False)) for maker, pod in named if maker in makers]
        live = [each for each in made if each[2] is not Stage.OVER]

        def cost(known: Lookup) -> list[Resources]:
            config = self._context.config
            return [child_demand_at_least(pod, kind, family.pays, known, config).resources for _, pod, _ in live]

        lookup = await self._context.resolver.resolve(cost, deadline.seconds_left())
        return [
            _LivePod(maker, at is Stage.ENDING, its) for (maker, _, at), its in zip(live, cost(lookup), strict=True)
        ]

    def _cost(self, family: _OwnedKind, kind: Adapter, item: Object, lookup: Lookup) -> Resources:
        """Return what a stored child costs: nothing if it is another owner's.

        A pod that is being deleted ends. What makes pods keeps them as long as something holds it.
        """
        is_ending = kind.group_kind == POD and item["metadata"].get("deletionTimestamp")
        if is_ending or not self._is_child(family, item, lookup):
            return {}
        return child_demand_at_least(item, kind, family.pays, lookup, self._context.config).resources

    def _is_child(self, family: _OwnedKind, obj: Object, lookup: Lookup) -> bool:
        found = responsible_owner(obj, self._context.registry, lookup)
        return found is not None and found[0]["metadata"]["uid"] == family.owner["metadata"]["uid"]


def _with_live_pods(siblings: _Siblings, own: str, live: Iterable[_LivePod]) -> _Siblings:
    """Return the siblings with what their live pods cost, and with those of the child `own` that are ending.

    A sibling that was scaled down just now asks for nothing. The policy on what a listed owner makes does not see who
    owns what a `/scale` changes (`bizrq.api.overlap`).
    """
    costs, fresh, ending = dict(siblings.costs), dict[str, Resources](), dict[str, Resources]()
    for pod in live:
        into = ending if pod.is_ending else fresh
        into[pod.maker] = add(into.get(pod.maker, {}), pod.cost)
    for maker in siblings.uids:
        costs[maker] = add(larger(costs.get(maker, {}), fresh.get(maker, {})), ending.get(maker, {}))
    costs["its own that are ending"] = ending.get(own, {})
    return siblings._replace(costs={uid: cost for uid, cost in costs.items() if cost})


def _with_larger_pods(siblings: _Siblings, own: str, live: Iterable[_LivePod], asked: Resources) -> _Siblings:
    """Return the siblings with what fresh pods of the child `own` cost beyond the next ones, of which each is `asked`.

    They stay after its template has shrunk, and others come beside them.
    """
    more = total(growth(pod.cost, asked) for pod in live if pod.maker == own and not pod.is_ending)
    return siblings._replace(costs={**siblings.costs, "its own that are larger": more}) if more else siblings
