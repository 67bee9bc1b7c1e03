"""A cluster as if what `bizrq fit` has let pass were stored: the groups as copies, and objects beside those stored.

This file alone decides what of the API server the webhooks' code sees other than it is when it runs here. Nothing is
written to anybody but to these copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import UserInfo
from bizrq.kube.client import KubeClient, Resource
from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Verdict
from bizrq.settings import Settings
from bizrq.store.groups import GROUPS, GroupStore
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Reference, reference_of
from webhooks.charging.authorization import Authorizer
from webhooks.charging.deadline import Deadline
from webhooks.charging.group_commit import Check, Reserver

Object = dict[str, Any]

_OF_MYSELF = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)


class OverlayClient(KubeClient):
    """The API server with some objects more, or other than they are stored there: `add` says which."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client.endpoint)
        self._client = client
        self._added: dict[Reference, Object] = {}

    def add(self, place: Reference, obj: Object) -> None:
        self._added[place] = obj

    def added(self, place: Reference) -> Object | None:
        return self._added.get(place)

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        return await self._client.request(method, path, **how)

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> Object:
        added = self._added.get((resource.group, resource.kind, namespace or "", name))
        return added if added is not None else await super().get(resource, name, namespace, timeout=timeout)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        timeout: float | None = None,
        transform: Callable[[Object], Any] | None = None,
    ) -> tuple[list[Object], str]:
        items, version = await super().list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            timeout=timeout,
            transform=transform,
        )
        mine = {
            place: obj
            for place, obj in self._added.items()
            if place[:2] == (resource.group, resource.kind) and namespace in (None, place[2])
        }
        others = [item for item in items if reference_of(item) not in mine]
        chosen = [obj for obj in mine.values() if _is_chosen(obj, label_selector)]
        return [*others, *(chosen if transform is None else map(transform, chosen))], version


def _is_chosen(obj: Mapping[str, Any], selector: str | None) -> bool:
    """Whether a selector of the two forms that the webhooks use picks an object: `label=value` and `!label`."""
    labels = labels_of(obj)
    if selector is None:
        return True
    if selector.startswith("!"):
        return selector[1:] not in labels
    key, _, value = selector.partition("=")
    return labels.get(key) == value


class InMemoryGroupStore(GroupStore):
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
        status = old.status if old is not None else wire.GroupStatus()
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


class SelfAuthorizer(Authorizer):
    """What whoever runs this may do: anybody may ask that of themselves."""

    async def _may(self, user: UserInfo | None, verb: str, name: str, deadline: Deadline) -> bool:
        attributes = {"group": GROUPS.group, "resource": GROUPS.plural, "name": name, "verb": verb}
        review = {
            "apiVersion": _OF_MYSELF.api_version,
            "kind": _OF_MYSELF.kind,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._client.create(_OF_MYSELF, review, timeout=deadline.seconds_left())
        status = answer.get("status") or {}
        return status.get("allowed") is True and status.get("denied") is not True


class RecordingReserver(Reserver):
    """Remembers what it was last asked, and the account as it was before it answered."""

    noted: tuple[str, Charge, Account | None] | None = None

    async def reserve(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        self._note(group, charge)
        return await super().reserve(group, charge, deadline, check)

    async def dry_run(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        self._note(group, charge)
        return await super().dry_run(group, charge, deadline, check)

    def _note(self, group: str, charge: Charge) -> None:
        stored, account = self._store.cached(group), None
        if stored is not None:
            try:
                account = wire.account_of(stored, self._catalog)
            except GroupUnreadable:
                account = None
        self.noted = group, charge, account


def _without_hold(group: GroupObject) -> GroupObject:
    """Here nobody else writes: no edit has to be let pass."""
    return msgspec.structs.replace(group, status=msgspec.structs.replace(group.status, hold=None))


def _name(group: GroupObject) -> str:
    return group.name
