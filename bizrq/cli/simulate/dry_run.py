"""What admission would say to some documents, on a copy of the cluster's groups.

This file alone decides what of the cluster has to be read for that, and which reviews a document means. The verdicts
are the webhooks' own: their code runs here (`bizrq.cli.simulate.in_memory`), so that nothing is stored,
and what one document is granted counts for the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bizrq.api import group as wire
from bizrq.api import selector
from bizrq.api.group import GroupObject
from bizrq.api.review import GroupVersionKind, GroupVersionResource, Request, UserInfo
from bizrq.cli.cluster import whoami
from bizrq.cli.simulate.in_memory import InMemoryGroupStore, OverlayClient, RecordingReserver, SelfAuthorizer
from bizrq.cli.simulate.lookup import FileReferenceResolver
from bizrq.cli.simulate.manifest import as_written, place_of
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.settings import Settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from bizrq.store.reference_resolver import CONTEXT, NAMESPACES, resources_of
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.offline import is_scale, objects_in
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import Reference, group_and_version
from bizrq.workloads.owners import charged_group
from bizrq.workloads.validation import Malformed
from webhooks import registration
from webhooks.charging.deadline import Deadline
from webhooks.routes import handlers

Object = dict[str, Any]

#: Seconds for one verdict; nothing waits for anything here but reads.
_PATIENCE = 30.0
#: The answer of admission where it could not look: whoever runs this may be allowed less than it.
_UNSEEN = Reason.TIMEOUT
_HERE = "bizrq-system"
#: What admission reviews besides workloads and groups.
_OTHERS: tuple[tuple[Resource, ...], ...] = (
    (NAMESPACES,),
    (CORRECTIONS,),
    *((resource,) for resource in CONTEXT),
    tuple(
        Resource("autoscaling", version, "horizontalpodautoscalers", "HorizontalPodAutoscaler")
        for version in ("v2", "v1")
    ),
)


#: A Scale as it is looked at here: the workload with its replicas, whatever selectors say of that.
_SCALE: Mapping[str, Any] = {
    "clientConfig": {"url": "/validate/workloads"},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "operations": ["CREATE", "UPDATE"]}],
}


@dataclass(frozen=True, slots=True)
class DryRunOutcome:
    """The verdict on one document, with the charge and the account (as it was before) that it was decided on.

    `group` is who would pay, None for nobody; `pays` whether such documents are charged at all; `charge` is None where
    nobody was asked.
    """

    kind: str
    namespace: str
    name: str
    group: str | None
    verdict: Verdict
    charge: Charge | None = None
    account: Account | None = None
    family: Sequence[Account] = ()
    """The accounts of the group's parent, where it has one, and then of its siblings by name."""
    parent: str = ""
    warnings: Sequence[str] = ()
    pays: bool = True

    @property
    def fits(self) -> bool:
        return isinstance(self.verdict, Granted)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind that admission reviews: in each version where it is stored, and by which of its webhooks."""

    resources: tuple[Resource, ...]
    webhooks: tuple[Mapping[str, Any], ...]
    adapter: Adapter | None = None

    @property
    def is_group(self) -> bool:
        return self.resources == (GROUPS,)


class DryRun:
    """The webhooks, asked about documents in their order. `unread` says what nobody let us see."""

    def __init__(
        self, client: KubeClient, settings: Settings, groups: Iterable[GroupObject], documents: Sequence[object]
    ) -> None:
        self._client = OverlayClient(client)
        self._settings = settings
        self._documents = list(objects_in(documents))
        self._groups = InMemoryGroupStore(self._client, groups)
        self._reserver = RecordingReserver(self._groups, catalog=settings.catalog, pace=0.0, patience=0.0)
        self._resolver = FileReferenceResolver(self._client, settings.registry, self._documents)
        rights = SelfAuthorizer(self._client, self._groups, settings.rights)
        self._doors = handlers(self._client, self._groups, self._reserver, self._resolver, rights, settings, _HERE)
        self._kinds = dict(_kinds(settings))
        self._stored: dict[Reference, Object] = {}
        self._unserved: set[Reference] = set()
        #: Who asks, as refusals name them.
        self._me = UserInfo(username="you")

    @property
    def unread(self) -> Collection[str]:
        return sorted(self._resolver.unread)

    async def outcomes(self) -> list[DryRunOutcome]:
        """An outcome for every document that is a group, a workload or a Scale of one, or what admission looks at
        besides; raises ApiError.
        """
        await self._gather()
        found: list[DryRunOutcome] = []
        for number, document in enumerate(self._documents):
            outcome = await self._outcome(number, document)
            if outcome is not None:
                found.append(outcome)
        return found

    async def _gather(self) -> None:
        """Read what is stored under the documents' names, and their namespaces, all at once."""
        wanted = {place_of(d): kind for d in self._documents if (kind := self._kind(d)) is not None}
        wanted |= {
            (adapter.group, adapter.kind, *place_of(d)[2:]): self._kinds[adapter.group, adapter.kind]
            for d in self._documents
            if is_scale(d)
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
            self._me = UserInfo(username=await whoami(self._client))

    async def _read(self, place: Reference, kind: _Kind) -> Object | None:
        """What is stored there; None for nothing, which may be because the cluster knows no such kind."""
        if kind.is_group or not place[3]:
            return None
        served = False
        for resource in kind.resources:
            try:
                return await self._client.get(resource, place[3], place[2] or None)
            except NotFound as error:
                served = served or bool(error.details.get("name"))
            except ValueError:
                return None
            except Forbidden:
                self._resolver.unread.add(f"{resource.plural} in {place[2]}" if place[2] else resource.plural)
                return None
        if not served:
            self._unserved.add(place)
        return None

    def _kind(self, document: Object) -> _Kind | None:
        """How admission looks at documents of this kind; None where it does not."""
        group, _ = group_and_version(document.get("apiVersion"))
        return self._kinds.get((group, str(document.get("kind"))))

    async def _outcome(self, number: int, document: Object) -> DryRunOutcome | None:
        kind = self._kind(document)
        if kind is None and not is_scale(document):
            return None
        place = place_of(document)
        nobody = DryRunOutcome(
            str(document["kind"]), place[2], place[3], None, Granted(), warnings=self._missing(place)
        )
        if not place[3]:
            return replace(nobody, verdict=_malformed(f"{nobody.kind}: metadata.name is missing"))
        try:
            if kind is not None:
                return await self._reviewed(number, nobody, document, place, kind)
            adapter, place, document = self._scaled(document, place)
            scaled = replace(self._kinds[adapter.group, adapter.kind], webhooks=(_SCALE,))
            return await self._reviewed(number, nobody, document, place, scaled)
        except Malformed as error:
            where = f"{place[2]}/{place[3]}" if place[2] else place[3]
            return replace(nobody, verdict=_malformed(f"{nobody.kind} {where}: {error}"))

    def _missing(self, place: Reference) -> list[str]:
        """What the API server would miss before it asks anybody: a namespace, or the kind."""
        group, kind, namespace, _ = place
        told: list[str] = []
        if place in self._unserved:
            told.append(f"the cluster knows no {kind}{f' of {group}' if group else ''}: install its CRD first")
        unseen = not namespace or NAMESPACES.plural in self._resolver.unread
        if not unseen and self._resolver.cached_lookup.get("", "Namespace", "", namespace) is None:
            told.append(f"there is no namespace {namespace}: create it first")
        return told

    def _scaled(self, scale: Object, place: Reference) -> tuple[Adapter, Reference, Object]:
        """The one workload that a Scale means, with its replicas; raises Malformed."""
        wanted = counting.scale_replicas(scale)
        candidates = [
            (adapter, found, self._stored.get(found) or self._resolver.given(found))
            for adapter in self._settings.registry.charged
            if adapter.scale is not None
            for found in [(adapter.group, adapter.kind, place[2], place[3])]
        ]
        known = [(adapter, found, obj) for adapter, found, obj in candidates if obj is not None]
        if len(known) != 1:
            what = "nothing that can be scaled" if not known else f"{len(known)} workloads that can be scaled"
            raise Malformed(f"{what} of this name: there must be one")
        [(adapter, found, obj)] = known
        return adapter, found, counting.with_scale(obj, adapter, wanted)

    async def _reviewed(
        self, number: int, nobody: DryRunOutcome, document: Object, place: Reference, kind: _Kind
    ) -> DryRunOutcome | None:
        """The outcome of the reviews that a write of the document means; None where it means none and costs nothing.

        Raises Malformed.
        """
        group = self._groups.cached(place[3]) if kind.is_group else None
        old = msgspec.to_builtins(group) if group is not None else self._stored.get(place)
        new = as_written(document, old, kind.adapter, place, number)
        resource = next((r for r in kind.resources if r.api_version == document.get("apiVersion")), kind.resources[0])
        request = Request(
            uid=f"fit-{number}",
            operation="CREATE" if old is None else "UPDATE",
            kind=GroupVersionKind(resource.group, resource.version, resource.kind),
            resource=GroupVersionResource(resource.group, resource.version, resource.plural),
            name=new["metadata"].get("name") or f"{place[3]}{number}",
            namespace=place[2],
            user_info=self._me,
            object=new,
            old_object=old,
        )
        paths = self._asked(request, kind)
        if kind.adapter is None and not kind.is_group and not paths:
            return None
        outcome = await self._decided(request, replace(nobody, pays=False), paths)
        if kind.is_group:
            outcome = replace(outcome, pays=True, group=outcome.group or _parent_of(document))
        elif kind.adapter is not None:
            outcome = replace(
                outcome, pays=True, group=outcome.group or charged_group(new, self._resolver.cached_lookup)
            )
        elif outcome.charge is not None and outcome.charge.slot == Slot(resource.key, *place[2:]):
            outcome = replace(outcome, pays=True)
        elif outcome.fits:
            # What was asked was others' charge.
            outcome = replace(outcome, group=None, charge=None, account=None)
        if outcome.fits:
            self._let_in(place, new, kind, group)
        return outcome

    def _asked(self, request: Request, kind: _Kind) -> list[str]:
        """The paths of the webhooks that are asked, each once: by the operation, and by their selectors."""
        if request.resource.resource == NAMESPACES.plural and not _names_group(request):
            return []
        inside = request.object if request.resource.resource == NAMESPACES.plural else self._namespace(request)
        labels = {**_labels(inside), "kubernetes.io/metadata.name": request.namespace or request.name}
        written = [_labels(obj) for obj in (request.object, request.old_object) if obj is not None]
        return list(
            dict.fromkeys(
                webhook["clientConfig"]["url"]
                for webhook in kind.webhooks
                if any(_is_of(rule, kind.resources, request.operation) for rule in webhook["rules"])
                and selector.matches(webhook.get("namespaceSelector"), labels)
                and any(selector.matches(webhook.get("objectSelector"), each) for each in written)
            )
        )

    def _namespace(self, request: Request) -> Object | None:
        return self._resolver.cached_lookup.get("", "Namespace", "", request.namespace)

    async def _decided(self, request: Request, outcome: DryRunOutcome, paths: Iterable[str]) -> DryRunOutcome:
        """The outcome by these webhooks, which all have to say yes; its charge is the refused one, else the first."""
        warnings = list(outcome.warnings)
        noted: tuple[str, Charge, Account | None] | None = None
        for path in paths:
            self._reserver.noted = None
            answer = await self._doors[path](request, Deadline(time.monotonic() + _PATIENCE))
            verdict = answer.verdict
            warnings += answer.warnings
            if path != "/validate/workloads" and isinstance(verdict, Denied) and verdict.reason is _UNSEEN:
                # Whoever runs this may not list what could refer to it.
                self._resolver.unread.add(f"what bears on {request.kind.kind} {request.namespace}/{request.name}")
                continue
            if isinstance(verdict, Denied):
                return self._with_account(replace(outcome, verdict=verdict, warnings=warnings), self._reserver.noted)
            noted = noted or self._reserver.noted
        return self._with_account(replace(outcome, warnings=warnings), noted)

    def _with_account(self, outcome: DryRunOutcome, noted: tuple[str, Charge, Account | None] | None) -> DryRunOutcome:
        if noted is None:
            return outcome
        group, charge, account = noted
        stored = self._groups.cached(group)
        family = [] if outcome.fits else self._groups.family(group, self._settings)
        parent = stored.parent if stored is not None else ""
        return replace(outcome, group=group, charge=charge, account=account, family=family, parent=parent)

    def _let_in(self, place: Reference, new: Object, kind: _Kind, old: GroupObject | None) -> None:
        """Have what was granted stand there for the documents that follow."""
        if kind.is_group:
            self._groups.enter(wire.from_dict(new), old, self._settings)
        elif "name" in new["metadata"]:
            self._stored[place] = stored = {**new, "metadata": {"resourceVersion": "1", **new["metadata"]}}
            self._client.add(place, stored)


def _kinds(settings: Settings) -> Iterator[tuple[tuple[str, str], _Kind]]:
    """What admission looks at when it is created or changed, as its registration says."""
    webhooks = registration.configuration(settings.registry, lambda path: {"url": path}, namespace=_HERE)["webhooks"]
    adapters = [(resources_of(adapter), adapter) for adapter in settings.registry.charged]
    seen: set[tuple[str, str]] = set()
    for resources, adapter in [((GROUPS,), None), *adapters, *((each, None) for each in _OTHERS)]:
        named = resources[0].group, resources[0].kind
        asked = tuple(
            webhook
            for webhook in webhooks
            if any(_is_of(rule, resources, "CREATE", "UPDATE") for rule in webhook["rules"])
        )
        if asked and named not in seen:
            seen.add(named)
            yield named, _Kind(resources, asked, adapter)


def _is_of(rule: Mapping[str, Any], resources: Sequence[Resource], *operations: str) -> bool:
    """Whether a rule of the registration is about writes of these kinds, by one of these operations."""

    def names(key: str, *wanted: str) -> bool:
        return "*" in rule[key] or any(each in rule[key] for each in wanted)

    about = any(names("apiGroups", r.group) and names("resources", r.plural) for r in resources)
    return about and names("operations", *operations)


def _names_group(request: Request) -> bool:
    """Whether a namespace has a default group, or had one."""
    return any(LABEL in _labels(obj) for obj in (request.object, request.old_object) if obj is not None)


def _labels(obj: Mapping[str, Any] | None) -> dict[str, str]:
    """The labels of an object, as far as they can be read: what is wrong with them its own webhook says."""
    metadata = (obj or {}).get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return {k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, dict) else {}


def _parent_of(document: Mapping[str, Any]) -> str | None:
    spec = document.get("spec")
    parent = spec.get("parentBizGroup") if isinstance(spec, dict) else None
    return parent if isinstance(parent, str) and parent else None


async def read_groups(client: KubeClient) -> list[GroupObject]:
    """All groups; raises ApiError, Unreachable and GroupUnreadable."""
    items, _ = await client.list(GROUPS)
    return [wire.from_dict(item) for item in items]


def _malformed(message: str) -> Denied:
    return Denied(Reason.MALFORMED, message)
