"""Find the charged workloads that refer to an object.

They are listed in the object's namespace when it is written. That is rare, and an index kept by watch would have to be
read again before it could be believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from bizrq.workloads.demand import counting
from bizrq.workloads.devices.dra import CLAIM, POD_GROUP
from bizrq.workloads.kinds.declaration import POD, TRAIN_JOB, Adapter, GroupKind
from bizrq.workloads.lookup import Lookup, OverlayLookup, Reference
from bizrq.workloads.owners import charged_group
from bizrq.workloads.ownership.payers import anywhere, paid_by
from bizrq.workloads.special.rollout import REFERABLE
from bizrq.workloads.special.trainjob import RUNTIME
from bizrq.workloads.validation import Malformed
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import is_going, is_served, list_kinds, stored_demand

Object = dict[str, Any]

CLAIM_TEMPLATE: GroupKind = ("resource.k8s.io", "ResourceClaimTemplate")


@dataclass(frozen=True, slots=True)
class ReferenceUser:
    """A stored workload that refers to an object, the group that it charges, and the objects that say so.

    `payer` is the uid of what is charged for it: another object's, if that made it. `is_made` is True for that, and
    for what a workload has left.
    """

    adapter: Adapter
    obj: Object
    group: str
    lookup: Lookup
    payer: str
    is_made: bool = False


class ReferenceUsers:
    """Finds the users of objects in one cluster."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Kinds that the cluster was seen to serve.
        self._served: set[GroupKind] = set()

    async def may_have(self, reference: Reference, deadline: Deadline) -> bool:
        """Return False where the cluster serves no kind that may refer to an object. Raises ApiError, Unreachable."""
        if is_of_claims(reference):
            return True
        for kind in self._kinds(reference):
            if kind.group_kind in self._served or await is_served(self._context, kind, reference[2], deadline):
                self._served.add(kind.group_kind)
                return True
        return False

    async def may_use(
        self, reference: Reference, deadline: Deadline, *, current: bool = True
    ) -> list[tuple[Adapter, Object]]:
        """Return the objects of its namespace whose kinds may refer to an object. Raises ApiError, Unreachable.

        Unless `current`, they are what the API server's cache has, which may be behind.
        """
        return await list_kinds(self._context, self._kinds(reference), reference[2], deadline, current=current)

    def _kinds(self, reference: Reference) -> list[Adapter]:
        return [adapter for adapter in self._context.registry.charged if _may_refer(adapter, reference)]

    async def find(
        self,
        reference: Reference,
        contents: Sequence[Object | None],
        deadline: Deadline,
        listed: Sequence[tuple[Adapter, Object]] | None = None,
        *,
        made: bool = False,
        held: bool = False,
    ) -> list[ReferenceUser]:
        """Return the charged workloads of the namespace that ask for an object with any of these contents.

        `listed` is what `may_use` has returned, if that is known. With `made` also what workloads have made or left and
        what makes pods itself: such a ReplicaSet may be of an older version. With `held` that and the pods that
        run, each with the group that pays for it: what made them may name the object no more.

        Raises ApiError, Unreachable.
        """
        registry, resolver = self._context.registry, self._context.resolver
        of_claims, name = is_of_claims(reference), reference[3].encode()
        listed = await self.may_use(reference, deadline) if listed is None else listed
        # Most objects name it nowhere, and need not be counted. Templates that are stored elsewhere may name it.
        found = [
            (adapter, obj)
            for adapter, obj in listed
            if _may_name(obj, name) or (of_claims and (adapter.refers or adapter.code is not None))
        ]

        def asks(adapter: Adapter, obj: Object, lookup: Lookup) -> bool:
            # Each content is asked for, so that all that any of them refers to becomes known.
            asked = [
                counting.references(obj, adapter, OverlayLookup(lookup, reference, content), self._context.config)
                for content in contents
            ]
            return any(reference in each for each in asked)

        def payer_of_user(adapter: Adapter, obj: Object, lookup: Lookup) -> tuple[str, str, bool] | None:
            """Return the group that pays for an object that asks for it, the uid of what is charged, and `is_made`."""
            payer = obj["metadata"]["uid"]
            try:
                group = charged_group(obj, registry, lookup)
            except Malformed:
                return None
            paid = paid_by(obj, registry, lookup, self._context.payers, anywhere)
            is_made = paid is not None and paid.is_by_another
            if paid is not None and paid.is_by_another:
                is_user = held and adapter.group_kind == POD and not counting.is_terminated(obj)
                # What it names may be gone by now, and is to come again.
                known = OverlayLookup(lookup, reference, contents[0])
                is_user = is_user or ((made or held) and self._makes_pods(adapter, obj, known))
                group, payer = paid.group if is_user else None, paid.payer
            return (group, payer, is_made) if group is not None and asks(adapter, obj, lookup) else None

        lookup = await resolver.resolve(
            lambda known: [payer_of_user(*each, known) for each in found], deadline.seconds_left()
        )
        paid = ((each, payer_of_user(*each, lookup)) for each in found)
        return [ReferenceUser(*each, payer[0], lookup, payer[1], payer[2]) for each, payer in paid if payer is not None]

    def need(self, reference: Reference, stored: Object, users: Sequence[ReferenceUser]) -> list[ReferenceUser]:
        """Return those users of a stored object that may not lose it.

        A claim may still be in use by pods that end. Of a template, only who goes on making pods needs it.
        """
        if is_of_claims(reference):
            return list(users)
        return [each for each in users if not is_going(each.obj) and self._may_make_pods(each, reference, stored)]

    def _may_make_pods(self, user: ReferenceUser, reference: Reference, stored: Object) -> bool:
        """Return False for a user that asks for no pods. One that cannot be counted may ask for some."""
        lookup = OverlayLookup(user.lookup, reference, stored)
        with suppress(Malformed):
            return counting.own_demand(user.obj, user.adapter, lookup, self._context.config).declared > 0
        return True

    def _makes_pods(self, adapter: Adapter, obj: Object, lookup: Lookup) -> bool:
        demand = stored_demand(self._context, obj, adapter, lookup)
        return bool(adapter.creates) and any(role.replicas for role in demand.roles)


def has_template_of(adapter: Adapter, reference: Reference) -> bool:
    """Return True for an object that the pod templates of a kind may be in."""
    kind = reference[:2]
    return (adapter.refers and kind in REFERABLE) or (adapter.group_kind == TRAIN_JOB and kind == RUNTIME)


def _may_refer(adapter: Adapter, reference: Reference) -> bool:
    """Return True for a kind whose objects may name this one: pods name claims, a TrainJob its runtime."""
    return is_of_claims(reference) or has_template_of(adapter, reference)


def _may_name(obj: Object, name: bytes) -> bool:
    """Return True where a name stands somewhere in an object, or where the object is nested too deep to tell."""
    try:
        return name in orjson.dumps(obj)
    except orjson.JSONEncodeError:
        return True


def is_of_claims(reference: Reference) -> bool:
    return reference[:2] in (CLAIM_TEMPLATE, CLAIM, POD_GROUP)
