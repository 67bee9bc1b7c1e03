"""Dry run: what admission answers to some manifests, decided by the webhooks' own code on a copy of the groups.

This file alone decides what has to be read from the cluster for that, and which review each manifest causes. Nothing is
written to the cluster. What one manifest is granted counts for the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bizrq.api import group as wire
from bizrq.api.group import KIND as GROUP_KIND
from bizrq.api.group import GroupObject
from bizrq.api.review import GroupVersionKind, GroupVersionResource, Request, UserInfo
from bizrq.figures.simulate.in_memory import Fetch, InMemoryGroupStore, OverlayReader, RecordingReserver
from bizrq.figures.simulate.installed import UnknownSettings
from bizrq.figures.simulate.lookup import RELEASED, FileReferenceReader, describe_unread, readable_payers
from bizrq.figures.simulate.manifest import as_written, place_of
from bizrq.figures.simulate.outcome import NO_GROUP, DryRunOutcome
from bizrq.figures.simulate.reviews import SYSTEM_NAMESPACE, ReviewedKind, reviewed_kinds
from bizrq.figures.simulate.unsure import UnsureAuthorizer
from bizrq.figures.words import few
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason
from bizrq.settings import Settings
from bizrq.store.access import SelfAccessReviewer, whoami
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from bizrq.store.payers import KnownPayers
from bizrq.store.reference_resolver import NAMESPACES
from bizrq.units.resources import text_of
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.offline import is_scale, objects_in
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import group_of, unknown_keys, unknown_label
from bizrq.workloads.lookup import Lookup, Reference, group_and_version
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import group_of_write
from bizrq.workloads.scope import ignored_label
from bizrq.workloads.validation import Malformed
from webhooks.charging.authorization import Authorizer
from webhooks.charging.deadline import Deadline
from webhooks.charging.later_objects import Judged
from webhooks.routes import handlers

Object = dict[str, Any]
_Recorded = tuple[str, Charge, Account | None]

#: Seconds for one verdict. Only reads take time here.
_TIMEOUT = 30.0
#: The reason of a handler that could not read something: the user may have fewer rights than the webhooks.
_UNREADABLE = Reason.TIMEOUT


@dataclass(frozen=True, slots=True)
class _Write:
    """A manifest as the API server would store it; `number` is its place among the manifests."""

    number: int
    place: Reference
    manifest: Object
    kind: ReviewedKind
    new: Object
    old: Object | None


class _Payers:
    """A PayerMemory that is empty until it is read."""

    def __init__(self) -> None:
        self.known = KnownPayers()
        self.unread: set[str] = set()

    def get(self, uid: str, /) -> Memory | None:
        return self.known.get(uid)

    def left_in(self, namespace: str) -> bool:
        return self.known.left_in(namespace)


class DryRun:
    """Run the webhooks on manifests, in their order. `unread` names what the user may not read."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        groups: Iterable[GroupObject],
        documents: Sequence[object],
        *,
        unknown: UnknownSettings | None = None,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` measures the time for each verdict, in seconds.

        Where the settings are `unknown`, so are the rights that the webhooks ask for: what lacks one is granted with a
        warning. `fetch` reads a group that is not among `groups`; without it there is no other.
        """
        settings = settings.around(SYSTEM_NAMESPACE)
        self._client = client
        self._settings = settings
        self._clock = clock
        self._manifests = list(objects_in(documents))
        self._reader = OverlayReader(client)
        self._stored_groups = list(groups)
        self._groups = InMemoryGroupStore(self._stored_groups, settings.catalog, fetch)
        self._reserver = RecordingReserver(self._groups, settings.catalog, clock)
        self._resolver = FileReferenceReader(self._reader, settings.registry, self._manifests)
        self._payers = _Payers()
        reviewer = SelfAccessReviewer(client)
        self._unknown = unknown
        #: What an answer depends on besides what is unread.
        self._undecided: set[str] = set()
        self._unsure = UnsureAuthorizer(self._reader, self._groups, reviewer, unknown.why) if unknown else None
        authorizer = self._unsure or Authorizer(self._reader, self._groups, reviewer, settings.rights)
        self._handlers = handlers(
            self._reader,
            self._groups,
            self._reserver,
            None,
            self._resolver,
            authorizer,
            self._payers,
            settings,
            SYSTEM_NAMESPACE,
        )
        self._kinds = reviewed_kinds(settings)
        self._stored: dict[Reference, Object] = {}
        self._unserved: set[Reference] = set()
        #: What was not read for any of the manifests.
        self._unread: set[str] = set()
        #: The user of the requests, by the name that refusals use.
        self._user = UserInfo(username="you")

    @property
    def unread(self) -> Collection[str]:
        """Return what the user may not read of all that was asked for, in words, sorted."""
        return sorted(self._unread | self._resolver.unread)

    async def outcomes(self) -> list[DryRunOutcome]:
        """Return an outcome for each manifest that admission reviews: groups, workloads, Scales and what they refer to.

        Raise ApiError or Unreachable.
        """
        await self._gather()
        self._forget_unread()
        found = [await self._noted(number, manifest) for number, manifest in enumerate(self._manifests)]
        return [outcome for outcome in found if outcome is not None]

    async def _noted(self, number: int, manifest: Object) -> DryRunOutcome | None:
        """Return the outcome for one manifest, with what it depends on and may not be read."""
        place = place_of(manifest)
        for each in (place, ("", "Namespace", "", place[2])):
            self._resolver.note(each)
        was_stored = place in self._stored
        outcome = await self._outcome(number, manifest)
        unread, undecided = sorted(self._resolver.unread | self._groups.unread), sorted(self._undecided)
        self._forget_unread()
        if outcome is None:
            return None
        # Only what is stored can have been released.
        released = [RELEASED] if self._payers.unread and was_stored else []
        more = [*released, *self._assumed(outcome), *self._held_ahead(outcome), *self._order(number, outcome)]
        return replace(outcome, unread=unread, undecided=undecided, warnings=[*outcome.warnings, *more])

    def _assumed(self, outcome: DryRunOutcome) -> list[str]:
        """Warn of an answer that depends on what a group of these files uses and no recount has counted yet."""
        assumed = self._groups.assumed.get(outcome.group or "", frozenset())
        names = sorted(assumed & outcome.charge.growth().keys()) if outcome.charge is not None else []
        if not names or not outcome.is_granted:
            return []
        return [f"what {outcome.group} uses of {few(names)} is not counted yet: it is taken for 0"]

    def _held_ahead(self, outcome: DryRunOutcome) -> list[str]:
        """Warn of an answer that takes room which processes hold: what they have noted by it is not known here."""
        answers = [each for each in (outcome, *outcome.later) if outcome.is_granted and each.is_granted]
        return list(dict.fromkeys(text for each in answers if (text := self._needs_ahead(each))))

    def _needs_ahead(self, granted: DryRunOutcome) -> str:
        charge, account = granted.charge, granted.account
        if charge is None or account is None:
            return ""
        more, ahead = charge.growth(), self._groups.ahead.get(account.group, {})
        needed = {
            name: held
            for name, held in ahead.items()
            if more.get(name) and name in account.hard and account.taken(name) + held + more[name] > account.hard[name]
        }
        if not needed:
            return ""
        amounts = ", ".join(f"{name}={value}" for name, value in text_of(needed).items())
        return (
            f"it needs room that webhook processes hold ahead of {account.group} ({amounts}): they give it back, "
            "without what they have admitted by it since the last recount"
        )

    def _order(self, number: int, outcome: DryRunOutcome) -> list[str]:
        """Say of a group that does not exist where it is in these files."""
        if not isinstance(outcome.verdict, Denied) or outcome.verdict.reason not in NO_GROUP:
            return []
        name = outcome.group
        places = [
            n for n, each in enumerate(self._manifests) if each.get("kind") == GROUP_KIND and place_of(each)[3] == name
        ]
        if not places or not name:
            return []
        where = "is refused above" if places[0] < number else "comes later: kubectl applies files in this order"
        return [f"group {name} is in these files, but {where}"]

    def _forget_unread(self) -> None:
        """Begin to note anew what an answer depends on."""
        self._unread |= self._resolver.unread | self._groups.unread
        self._resolver.unread, self._groups.unread, self._undecided = set(), set(), set()

    # Gather

    async def _gather(self) -> None:
        """Read the stored objects of the manifests' names, and their namespaces, all at once."""
        wanted = {place_of(each): kind for each in self._manifests if (kind := self._kind_of(each)) is not None}
        wanted |= {
            (adapter.group, adapter.kind, *place_of(each)[2:]): self._kinds[adapter.group_kind]
            for each in self._manifests
            if is_scale(each)
            for adapter in self._settings.registry.charged
            if adapter.scale is not None
        }
        namespaces = dict.fromkeys(place[2] for place in wanted if place[2])
        stored, _ = await asyncio.gather(
            asyncio.gather(*(self._read(place, kind) for place, kind in wanted.items())),
            asyncio.gather(*(self._resolver.read(("", "Namespace", "", name)) for name in namespaces)),
        )
        self._stored = {place: obj for place, obj in zip(wanted, stored, strict=True) if obj is not None}
        if any(kind.resources == (CORRECTIONS,) for kind in wanted.values()):
            self._user = UserInfo(username=await whoami(self._client))
        kinds, registry = {place[:2] for place in wanted}, self._settings.registry
        self._payers.known = await readable_payers(
            self._client, registry, self._stored_groups, kinds, self._payers.unread
        )

    async def _read(self, place: Reference, kind: ReviewedKind) -> Object | None:
        """Return the stored object of a place, None if there is none. Remember kinds that are not served."""
        if kind.is_group or not place[3]:
            return None
        served = False
        for resource in kind.resources:
            try:
                return await self._reader.get(resource, place[3], place[2] or None)
            except NotFound as error:
                served = served or bool(error.details.get("name"))
            except ValueError:
                return None
            except Forbidden:
                self._resolver.deny(place, describe_unread(resource, place[2]))
                return None
        if not served:
            self._unserved.add(place)
        return None

    # Decide

    async def _outcome(self, number: int, manifest: Object) -> DryRunOutcome | None:
        """Return the outcome for one manifest, or None if admission does not review it."""
        kind = self._kind_of(manifest)
        if kind is None and not is_scale(manifest):
            return None
        place = place_of(manifest)
        uncharged = DryRunOutcome(
            str(manifest["kind"]), place[2], place[3], None, Granted(), warnings=self._missing(place)
        )
        if not place[3]:
            return replace(uncharged, verdict=_malformed(f"{uncharged.kind}: metadata.name is missing"))
        try:
            if kind is None:
                adapter, place, manifest = self._scaled(manifest, place)
                kind = self._kinds[adapter.group_kind].scaled()
            write = self._write(number, manifest, place, kind)
            return await self._reviewed(write, uncharged)
        except Malformed as error:
            return replace(uncharged, verdict=_malformed(f"{uncharged.kind} {uncharged.full_name}: {error}"))

    def _kind_of(self, manifest: Object) -> ReviewedKind | None:
        group, _ = group_and_version(manifest.get("apiVersion"))
        return self._kinds.get((group, str(manifest.get("kind"))))

    def _missing(self, place: Reference) -> list[str]:
        """Warn of a namespace or kind that is missing: the API server rejects such an object before any webhook."""
        group, kind, namespace, _ = place
        warnings: list[str] = []
        if place in self._unserved:
            warnings.append(f"the cluster knows no {kind}{f' of {group}' if group else ''}: install its CRD first")
        unknown = not namespace or describe_unread(NAMESPACES, "") in self._resolver.unread
        if not unknown and self._namespace(namespace) is None:
            warnings.append(f"there is no namespace {namespace}: create it first")
        return warnings

    def _scaled(self, scale: Object, place: Reference) -> tuple[Adapter, Reference, Object]:
        """Return the one workload of a Scale, with the new number of replicas. Raise Malformed."""
        replicas = counting.scale_replicas(scale)
        known: list[tuple[Adapter, Reference, Object]] = []
        for adapter in self._settings.registry.charged:
            target = adapter.group, adapter.kind, place[2], place[3]
            obj = self._stored.get(target) or self._resolver.document(target)
            if adapter.scale is not None and obj is not None:
                known.append((adapter, target, obj))
        if len(known) != 1:
            what = "nothing that can be scaled" if not known else f"{len(known)} workloads that can be scaled"
            raise Malformed(f"{what} of this name: there must be one")
        [(adapter, target, obj)] = known
        return adapter, target, counting.with_scale(obj, adapter, replicas)

    def _write(self, number: int, manifest: Object, place: Reference, kind: ReviewedKind) -> _Write:
        """Return the write that `kubectl apply` makes of a manifest. Raise Malformed."""
        group = self._groups.cached(place[3]) if kind.is_group else None
        old = msgspec.to_builtins(group) if group is not None else self._stored.get(place)
        return _Write(number, place, manifest, kind, as_written(manifest, old, kind.adapter, place, number), old)

    async def _reviewed(self, write: _Write, uncharged: DryRunOutcome) -> DryRunOutcome | None:
        """Return the outcome of a write's reviews; None if it has no review and is never charged. Raise Malformed."""
        request, kind = self._request(write), write.kind
        paths = kind.paths(request, self._namespace(request.namespace))
        unknown = self._unknown_labels(write)
        if kind.adapter is None and not kind.is_group and not paths and not unknown:
            return None
        if unknown and self._settings.unknown_labels == "deny":
            return replace(uncharged, verdict=_malformed(f"{uncharged.kind} {uncharged.full_name}: {unknown[0]}"))
        uncharged = replace(uncharged, warnings=[*uncharged.warnings, *unknown])
        outcome = await self._attributed(write, await self._decided(request, uncharged, paths))
        if outcome.is_granted:
            self._apply(write)
        return outcome

    def _request(self, write: _Write) -> Request:
        resource = write.kind.resource_in(write.manifest.get("apiVersion"))
        return Request(
            uid=f"fit-{write.number}",
            operation="CREATE" if write.old is None else "UPDATE",
            kind=GroupVersionKind(resource.group, resource.version, resource.kind),
            resource=GroupVersionResource(resource.group, resource.version, resource.plural),
            name=write.new["metadata"].get("name") or f"{write.place[3]}{write.number}",
            namespace=write.place[2],
            user_info=self._user,
            object=write.new,
            old_object=write.old,
        )

    def _namespace(self, name: str) -> Object | None:
        return self._resolver.cached_lookup.get("", "Namespace", "", name)

    async def _decided(self, request: Request, outcome: DryRunOutcome, paths: Iterable[str]) -> DryRunOutcome:
        """Ask each webhook, up to the first refusal. The charge is the refused one, or else the first."""
        warnings = list(outcome.warnings)
        first: _Recorded | None = None
        later: list[DryRunOutcome] = []
        for path in paths:
            self._reserver.recorded = None
            answer = await self._handlers[path](request, Deadline(self._clock() + _TIMEOUT, self._clock))
            verdict = answer.verdict
            warnings += answer.warnings
            later += [self._later(each, outcome) for each in answer.later]
            if self._unsure is not None and self._unknown is not None:
                warnings += (lacking := self._unsure.taken())
                if lacking:
                    (self._undecided if self._unknown.may_read else self._resolver.unread).add(self._unknown.what)
            if path != "/validate/workloads" and isinstance(verdict, Denied) and verdict.reason is _UNREADABLE:
                # The user may not list what could refer to this object.
                self._resolver.unread.add(
                    f"all objects that affect {request.kind.kind} {request.namespace}/{request.name}"
                )
                continue
            if isinstance(verdict, Denied):
                denied = replace(outcome, verdict=verdict, warnings=warnings)
                return self._with_account(denied, self._reserver.recorded)
            first = first or self._reserver.recorded
        return self._with_account(replace(outcome, warnings=warnings, later=later), first)

    def _later(self, judged: Judged, of: DryRunOutcome) -> DryRunOutcome:
        """Return the outcome of a later write."""
        obj = judged.later.obj
        outcome = DryRunOutcome(
            str(obj["kind"]),
            of.namespace,
            str(obj["metadata"].get("name") or ""),
            judged.group,
            judged.verdict,
            what=judged.later.what,
            is_growth=judged.later.is_growth,
        )
        recorded = (judged.group, judged.charge, judged.account) if judged.charge is not None else None
        return self._with_account(outcome, recorded)

    def _with_account(self, outcome: DryRunOutcome, recorded: _Recorded | None) -> DryRunOutcome:
        if recorded is None:
            return outcome
        group, charge, account = recorded
        stored = self._groups.cached(group)
        family = [] if outcome.is_granted else self._groups.parent_and_siblings(group)
        parent = stored.parent if stored is not None else ""
        return replace(outcome, group=group, charge=charge, account=account, family=family, parent=parent)

    async def _attributed(self, write: _Write, outcome: DryRunOutcome) -> DryRunOutcome:
        """Name the group that pays, also where no charge was decided; drop the charges of other objects."""
        if write.kind.is_group:
            return replace(outcome, group=outcome.group or _parent_of(write.manifest))
        if write.kind.adapter is not None:
            group = outcome.group or await self._paying(write)
            return replace(outcome, group=group, warnings=[*outcome.warnings, *self._ignored(write)])
        resource = write.kind.resource_in(write.manifest.get("apiVersion"))
        if outcome.charge is not None and outcome.charge.slot == Slot(resource.key, *write.place[2:]):
            return outcome
        if outcome.is_granted:
            return replace(outcome, is_chargeable=False, group=None, charge=None, account=None)
        return replace(outcome, is_chargeable=False)

    def _ignored(self, write: _Write) -> list[str]:
        """Return a warning if the workload names a group where no webhook is asked: in an unmanaged namespace."""
        label, name = group_of(write.new), write.place[2]
        return [ignored_label(label, name)] if label is not None and self._is_unmanaged(name) else []

    def _is_unmanaged(self, name: str) -> bool:
        scope, namespace = self._settings.registry.scope, self._namespace(name)
        return name in scope.exempt or (namespace is not None and not scope.manages(namespace))

    def _unknown_labels(self, write: _Write) -> list[str]:
        """Return what the policy on labels says: a sentence for each key like ours that the write adds."""
        if write.kind.is_group or self._settings.unknown_labels == "ignore" or self._is_unmanaged(write.place[2]):
            return []
        stored = unknown_keys(write.old)
        return [unknown_label(key) for key in unknown_keys(write.new) if key not in stored]

    async def _paying(self, write: _Write) -> str | None:
        """Return the group that pays for a workload. Raise ApiError, Unreachable or Malformed."""

        def paying(known: Lookup) -> str | None:
            return group_of_write(write.new, write.old, self._settings.registry, known, self._payers)

        return paying(await self._resolver.resolve(paying, _TIMEOUT))

    # Apply

    def _apply(self, write: _Write) -> None:
        """Make a granted write visible to the manifests that follow."""
        if write.kind.is_group:
            self._groups.apply(wire.from_dict(write.new))
        elif "name" in write.new["metadata"]:
            metadata = {"resourceVersion": "1", **write.new["metadata"]}
            self._stored[write.place] = stored = {**write.new, "metadata": metadata}
            self._reader.add(write.place, stored)


def _parent_of(manifest: Mapping[str, Any]) -> str | None:
    spec = manifest.get("spec")
    parent = spec.get("parentBizGroup") if isinstance(spec, dict) else None
    return parent if isinstance(parent, str) and parent else None


async def read_groups(client: KubeClient) -> list[GroupObject]:
    """Return all groups. Raise ApiError, Unreachable or GroupUnreadable."""
    items, _ = await client.list(GROUPS)
    return [wire.from_dict(item) for item in items]


def _malformed(message: str) -> Denied:
    return Denied(Reason.MALFORMED, message)
