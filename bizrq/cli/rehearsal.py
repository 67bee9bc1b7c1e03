"""What admission would say to some documents, on a copy of the cluster's groups.

This file alone decides what of the cluster has to be read for that. The verdicts are the webhooks' own: their code
runs here with groups that are copies, so that nothing is stored, and what one document is granted counts for the next.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import GroupVersionKind, GroupVersionResource, Request, UserInfo
from bizrq.cli.around import Around
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.groups import GROUPS, GroupStore
from bizrq.kube.related import CONTEXT, resources_of
from bizrq.quota.ledger import Account, Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.settings import Settings
from bizrq.workloads import counting
from bizrq.workloads.adapters import Adapter
from bizrq.workloads.lookup import CLUSTER_WIDE, Reference, group_and_version
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.owners import charged_group
from bizrq.workloads.usage import is_scale, objects_in
from webhooks import registration
from webhooks.children import Children
from webhooks.groups import Groups
from webhooks.references import References
from webhooks.reserve import Check, Reserver
from webhooks.rights import Rights
from webhooks.workloads import Workloads

Object = dict[str, Any]

_OF_MYSELF = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
#: Who asks, as refusals name them.
_ME = UserInfo(username="you")
#: Kinds whose change may make another workload grow.
_REFERRED = {(resource.group, resource.kind) for resource in CONTEXT}
#: Seconds for one verdict; nothing waits for anything here but reads.
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one document, with the charge and the account (as it was before) that it was decided on.

    `group` is who would pay, None for nobody; `charge` is None where nobody was asked.
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

    @property
    def fits(self) -> bool:
        return isinstance(self.verdict, Granted)


class Rehearsal:
    """The webhooks, asked about documents in their order. `unread` says what nobody let us see."""

    def __init__(
        self, client: KubeClient, settings: Settings, groups: Iterable[GroupObject], documents: Sequence[object]
    ) -> None:
        self._client = client
        self._settings = settings
        self._documents = list(objects_in(documents))
        self._groups = _Copies(client, groups)
        self._reserver = _Noting(self._groups, catalog=settings.catalog, pace=0.0, patience=0.0)
        self._around = Around(client, settings.registry, self._documents)
        rights = _Mine(client, self._groups, settings.rights)
        self._references = References(
            client, self._reserver, self._around, rights, settings.registry, settings.counting
        )
        self._workloads = Workloads(
            client,
            self._reserver,
            self._around,
            rights,
            self._references,
            Children(client, self._around, settings.registry, settings.counting, settings.controllers),
            settings.registry,
            settings.counting,
            exempt=registration.exempt("bizrq-system"),
        )
        self._tree = Groups(
            client,
            self._groups,
            self._reserver,
            self._around,
            rights,
            settings.registry,
            settings.counting,
            catalog=settings.catalog,
        )
        self._stored: dict[Reference, Object] = {}

    @property
    def unread(self) -> Collection[str]:
        return sorted(self._around.unread)

    async def outcomes(self) -> list[Outcome]:
        """An outcome for every document that is a group, of a charged kind, or a Scale of one; raises ApiError."""
        await self._gather()
        found: list[Outcome] = []
        for number, document in enumerate(self._documents):
            outcome = await self._outcome(number, document)
            if outcome is not None:
                found.append(outcome)
        return found

    async def _gather(self) -> None:
        """Read what is stored under the documents' names, and their namespaces, all at once."""
        wanted = [(place_of(d), adapter) for d in self._documents if (adapter := self._charged(d)) is not None]
        wanted += [
            ((adapter.group, adapter.kind, *place_of(d)[2:]), adapter)
            for d in self._documents
            if is_scale(d)
            for adapter in self._settings.registry.charged
            if adapter.scale is not None
        ]
        namespaces = dict.fromkeys(place[2] for place, _ in wanted)
        stored, _ = await asyncio.gather(
            asyncio.gather(*(self._read(place, adapter) for place, adapter in dict(wanted).items())),
            asyncio.gather(*(self._around.read(("", "Namespace", "", name)) for name in namespaces)),
        )
        self._stored = {place: obj for place, obj in zip(dict(wanted), stored, strict=True) if obj is not None}

    async def _read(self, place: Reference, adapter: Adapter) -> Object | None:
        for resource in resources_of(adapter):
            try:
                return await self._client.get(resource, place[3], place[2])
            except NotFound:
                continue
            except ValueError:
                break
            except Forbidden:
                self._around.unread.add(f"{adapter.plural} in {place[2]}")
                break
        return None

    def _charged(self, document: Object) -> Adapter | None:
        adapter = self._settings.registry.of(document)
        return adapter if adapter is not None and self._settings.registry.is_charged(adapter) else None

    async def _outcome(self, number: int, document: Object) -> Outcome | None:
        group, version = group_and_version(document.get("apiVersion"))
        kind = document.get("kind")
        is_group = (group, kind) == (wire.API_GROUP, wire.KIND)
        adapter = self._charged(document)
        if not is_group and adapter is None and not is_scale(document):
            return None
        place = place_of(document)
        nobody = Outcome(str(kind), "" if is_group else place[2], place[3], None, Granted())
        if not place[3]:
            return replace(nobody, verdict=_malformed(f"{kind}: metadata.name is missing"))
        if is_group:
            return await self._of_group(number, nobody, document)
        try:
            if adapter is None:
                adapter, place, document = self._scaled(document, place)
                _, version = group_and_version(document.get("apiVersion"))
            return await self._of_workload(number, nobody, document, place, adapter, version)
        except Malformed as error:
            return replace(nobody, verdict=_malformed(f"{kind} {place[2]}/{place[3]}: {error}"))

    def _scaled(self, scale: Object, place: Reference) -> tuple[Adapter, Reference, Object]:
        """The one workload that a Scale means, with its replicas; raises Malformed."""
        wanted = counting.scale_replicas(scale)
        candidates = [
            (adapter, found, self._stored.get(found) or self._around.given(found))
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

    async def _of_workload(
        self, number: int, nobody: Outcome, document: Object, place: Reference, adapter: Adapter, version: str
    ) -> Outcome:
        old = self._stored.get(place)
        new = _as_written(document, old, adapter, number)
        request = Request(
            uid=f"fit-{number}",
            operation="CREATE" if old is None else "UPDATE",
            kind=GroupVersionKind(adapter.group, version, adapter.kind),
            resource=GroupVersionResource(adapter.group, version, adapter.plural),
            name=new["metadata"].get("name") or f"{place[3]}{number}",
            namespace=place[2],
            user_info=_ME,
            object=new,
            old_object=old,
        )
        self._reserver.noted = None
        verdict = await self._workloads.admit(request, time.monotonic() + _PATIENCE)
        if isinstance(verdict, Granted) and old is not None and (adapter.group, adapter.kind) in _REFERRED:
            verdict = await self._of_what_it_bears_on(request)
        payer = charged_group(new, self._around.watched)
        outcome = self._with_account(replace(nobody, group=payer, verdict=verdict))
        if outcome.fits and "name" in new["metadata"]:
            self._stored[place] = {**new, "metadata": {"resourceVersion": "1", **new["metadata"]}}
        return outcome

    async def _of_what_it_bears_on(self, request: Request) -> Verdict:
        """The verdict on what a change of an object does to workloads that refer to it."""
        verdict = await self._references.admit(request, time.monotonic() + _PATIENCE)
        if isinstance(verdict, Denied) and verdict.reason is Reason.TIMEOUT:
            # Whoever runs this may not list what could refer to it.
            self._around.unread.add(f"what refers to {request.kind.kind} {request.namespace}/{request.name}")
            return Granted()
        return verdict

    async def _of_group(self, number: int, nobody: Outcome, document: Object) -> Outcome:
        old = self._groups.cached(nobody.name)
        stored = msgspec.to_builtins(old) if old is not None else None
        metadata = {**document["metadata"], "uid": old.metadata.uid if old is not None else f"fit-{number}"}
        new = {**document, "metadata": metadata}
        request = Request(
            uid=f"fit-{number}",
            operation="CREATE" if old is None else "UPDATE",
            kind=GroupVersionKind(*_of(GROUPS)),
            resource=GroupVersionResource(GROUPS.group, GROUPS.version, GROUPS.plural),
            name=nobody.name,
            user_info=_ME,
            object=new,
            old_object=stored,
        )
        self._reserver.noted = None
        answer = await self._tree.admit(request, time.monotonic() + _PATIENCE)
        parent = (document.get("spec") or {}).get("parentBizGroup") if isinstance(document.get("spec"), dict) else None
        group = parent if isinstance(parent, str) and parent else None
        outcome = self._with_account(replace(nobody, group=group, verdict=answer.verdict, warnings=answer.warnings))
        if outcome.fits:
            self._groups.enter(wire.from_dict(new), old, self._settings)
        return outcome

    def _with_account(self, outcome: Outcome) -> Outcome:
        noted = self._reserver.noted
        if noted is None:
            return outcome
        group, charge, account = noted
        stored = self._groups.cached(group)
        family = self._groups.family(group, self._settings) if isinstance(outcome.verdict, Denied) else []
        return replace(
            outcome,
            group=group,
            charge=charge,
            account=account,
            family=family,
            parent=stored.parent if stored is not None else "",
        )


class _Copies(GroupStore):
    """Groups as they were listed; what is written to them stays here."""

    def __init__(self, client: KubeClient, groups: Iterable[GroupObject]) -> None:
        super().__init__(client)
        self._newest = {group.name: _without_hold(group) for group in groups}

    async def read(self, name: str, timeout: float) -> GroupObject | None:
        return self.cached(name)

    async def children(self, name: str) -> list[GroupObject]:
        return [group for group in self.values() if group.parent == name]

    async def write_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        self._newest[name] = written = _without_hold(wire.decode(body))
        return written

    def enter(self, asked: GroupObject, old: GroupObject | None, settings: Settings) -> None:
        """A group as it will be once it is stored and counted."""
        hard = wire.hard_of(asked, settings.catalog)
        status = old.status if old is not None else wire.Status()
        used = {**dict.fromkeys(hard, "0"), **(status.used or {})}
        metadata = old.metadata if old is not None else asked.metadata
        status = msgspec.structs.replace(status, used={name: used[name] for name in hard})
        self._newest[asked.name] = msgspec.structs.replace(asked, metadata=metadata, status=status)

    def family(self, name: str, settings: Settings) -> list[Account]:
        """The accounts of the parent and of the siblings of a group, those that can be read."""
        group = self.cached(name)
        if group is None or not group.parent:
            return []
        siblings = sorted((g for g in self.values() if g.parent == group.parent and g is not group), key=_name)
        parent = self.cached(group.parent)
        found: list[Account] = []
        for other in [*([parent] if parent is not None else []), *siblings]:
            try:
                if wire.is_counted(other, settings.catalog):
                    found.append(wire.account_of(other, settings.catalog))
            except GroupUnreadable:
                continue
        return found


class _Mine(Rights):
    """What whoever runs this may do: anybody may ask that of themselves."""

    async def _may(self, user: UserInfo | None, verb: str, name: str, deadline: float) -> bool:
        attributes = {"group": GROUPS.group, "resource": GROUPS.plural, "name": name, "verb": verb}
        review = {
            "apiVersion": _OF_MYSELF.api_version,
            "kind": _OF_MYSELF.kind,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._client.create(_OF_MYSELF, review, timeout=max(0.1, deadline - time.monotonic()))
        status = answer.get("status") or {}
        return status.get("allowed") is True and status.get("denied") is not True


class _Noting(Reserver):
    """Remembers what it was last asked, and the account as it was before it answered."""

    noted: tuple[str, Charge, Account | None] | None = None

    async def reserve(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        self._note(group, charge)
        return await super().reserve(group, charge, deadline, check)

    async def consider(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        self._note(group, charge)
        return await super().consider(group, charge, deadline, check)

    def _note(self, group: str, charge: Charge) -> None:
        stored, account = self._store.cached(group), None
        if stored is not None:
            try:
                account = wire.account_of(stored, self._catalog)
            except GroupUnreadable:
                account = None
        self.noted = group, charge, account


async def list_groups(client: KubeClient) -> list[GroupObject]:
    """All groups; raises ApiError, Unreachable and GroupUnreadable."""
    items, _ = await client.list(GROUPS)
    return [wire.from_dict(item) for item in items]


def in_namespace(document: object, namespace: str) -> object:
    """The document with the namespace that it has where it names none."""
    if not isinstance(document, dict):
        return document
    if document.get("kind") == "List" and isinstance(document.get("items"), list):
        return {**document, "items": [in_namespace(item, namespace) for item in document["items"]]}
    metadata = document.get("metadata")
    group, _ = group_and_version(document.get("apiVersion"))
    alone = (group, document.get("kind")) in CLUSTER_WIDE or document.get("kind") == wire.KIND
    if alone or not isinstance(metadata, dict) or metadata.get("namespace"):
        return document
    return {**document, "metadata": {**metadata, "namespace": namespace}}


def place_of(document: Mapping[str, Any]) -> Reference:
    """Where a document would be stored; a name that is generated ends where its random letters would be."""
    group, _ = group_and_version(document.get("apiVersion"))
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, name = metadata.get("namespace"), metadata.get("name") or metadata.get("generateName")
    return (
        group,
        str(document.get("kind")),
        namespace if isinstance(namespace, str) and namespace else "default",
        name if isinstance(name, str) else "",
    )


def _as_written(document: Object, old: Object | None, adapter: Adapter, number: int) -> Object:
    """The document as `kubectl apply` would have it stored, as far as it is charged.

    A uid that no other has; of a stored object the uid and version, and where the file says nothing of the replicas,
    the number that stands there.
    """
    new = copy.copy(document)
    metadata = document["metadata"]
    if old is None:
        new["metadata"] = {**metadata, "uid": f"fit-{number}"}
        return new
    stored = {key: old["metadata"][key] for key in ("uid", "resourceVersion") if key in old["metadata"]}
    new["metadata"] = {**metadata, **stored}
    if adapter.scale is None:
        return new
    was, mine = _at(old, adapter.scale), _at(document, adapter.scale)
    return counting.with_scale(new, adapter, was) if mine is None and isinstance(was, int) else new


def _at(obj: object, path: Iterable[str]) -> object:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _malformed(message: str) -> Denied:
    return Denied(Reason.MALFORMED, message)


def _without_hold(group: GroupObject) -> GroupObject:
    """Here nobody else writes: no edit has to be let pass."""
    return msgspec.structs.replace(group, status=msgspec.structs.replace(group.status, hold=None))


def _name(group: GroupObject) -> str:
    return group.name


def _of(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.kind
