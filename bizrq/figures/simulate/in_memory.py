"""The ports of admission in memory: the cluster as it would be with the admitted manifests applied.

This file alone decides how that cluster differs from the real one. It never writes to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.client import Forbidden, NotFound, Resource
from bizrq.quota.account import Account
from bizrq.quota.allowance import is_line, is_line_text
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Verdict
from bizrq.store.ports import ObjectReader
from bizrq.units.names import Catalog, is_cash
from bizrq.units.resources import Resources, total
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Reference, reference_of
from webhooks.charging.group_commit import Check, NameCheck, Reserver

Object = dict[str, Any]
T = TypeVar("T")
#: Reads a group by its name, None where there is none. Raises Forbidden, other ApiErrors and Unreachable.
Fetch: TypeAlias = Callable[[str], Awaitable[GroupObject | None]]
_Get: TypeAlias = tuple[Resource, str | None, str]
_List: TypeAlias = tuple[Resource, str | None, str | None, str | None, Callable[[Object], Any] | None, bool]


class OverlayReader:
    """An ObjectReader that answers with the added objects first, and with the cluster's otherwise.

    It reads nothing twice: a command answers all manifests from one view of the cluster.
    """

    def __init__(self, stored: ObjectReader) -> None:
        self._stored = stored
        self._added: dict[Reference, Object] = {}
        self._got: dict[_Get, Object | NotFound] = {}
        self._listed: dict[_List, tuple[list[Object], str] | NotFound] = {}

    def add(self, place: Reference, obj: Object) -> None:
        self._added[place] = obj

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> Object:
        added = self._added.get((resource.group, resource.kind, namespace or "", name))
        if added is not None:
            return added
        key = resource, namespace, name
        if key not in self._got:
            self._got[key] = await _found(self._stored.get(resource, name, namespace, timeout=timeout))
        return _or_raise(self._got[key])

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
        mean: int | None = None,
        current: bool = True,
    ) -> tuple[list[Object], str]:

        def placed(obj: Object) -> Object:
            # What is kept of an object may lack its name.
            return {"place": reference_of(obj), "kept": obj if transform is None else transform(obj)}

        key = resource, namespace, label_selector, field_selector, transform, current
        if key not in self._listed:
            self._listed[key] = await _found(
                self._stored.list(
                    resource,
                    namespace,
                    label_selector=label_selector,
                    field_selector=field_selector,
                    limit=limit,
                    timeout=timeout,
                    transform=placed,
                    mean=mean,
                    current=current,
                )
            )
        items, version = _or_raise(self._listed[key])
        added = {
            place: obj
            for place, obj in self._added.items()
            if place[:2] == (resource.group, resource.kind) and namespace in (None, place[2])
        }
        others = [item["kept"] for item in items if item["place"] not in added]
        selected = [obj for obj in added.values() if _is_selected(obj, label_selector)]
        return [*others, *(selected if transform is None else map(transform, selected))], version


async def _found(read: Awaitable[T]) -> T | NotFound:
    """Return what is read, or the error that says that it is not there."""
    try:
        return await read
    except NotFound as error:
        return error


def _or_raise(found: T | NotFound) -> T:
    if isinstance(found, NotFound):
        raise found
    return found


def _is_selected(obj: Mapping[str, Any], selector: str | None) -> bool:
    """Match a label selector of one of the two forms that the webhooks use: `label=value` and `!label`."""
    labels = labels_of(obj)
    if selector is None:
        return True
    if selector.startswith("!"):
        return selector[1:] not in labels
    key, _, value = selector.partition("=")
    return labels.get(key) == value


class InMemoryGroupStore:
    """A GroupWriter on copies of the groups. Holds are dropped, because no other process writes the copies.

    So are allowances, which processes give back on demand: `ahead` has what they hold of a group, in nano-units.
    `unread` names the groups that were asked for and may not be read.
    """

    def __init__(self, groups: Iterable[GroupObject], catalog: Catalog, fetch: Fetch | None = None) -> None:
        """`fetch` reads a group that is not among these; without it there is no other."""
        self._catalog = catalog
        self._fetch = fetch
        self.unread: set[str] = set()
        #: By group, the names of which nothing used is assumed.
        self.assumed: dict[str, frozenset[str]] = {}
        self.ahead: dict[str, Resources] = {}
        self._groups = {group.name: self._copied(group) for group in groups}

    def cached(self, name: str) -> GroupObject | None:
        return self._groups.get(name)

    def values(self) -> Collection[GroupObject]:
        return self._groups.values()

    @property
    def is_complete(self) -> bool:
        return self._fetch is None

    @property
    def revision(self) -> int:
        """Return the largest number: no copy is behind."""
        return sys.maxsize

    async def read(self, name: str, timeout: float) -> GroupObject | None:
        if name not in self._groups and self._fetch is not None:
            try:
                found = await self._fetch(name)
            except Forbidden:
                self.unread.add(f"group {name}")
                return None
            if found is not None:
                self._groups[name] = self._copied(found)
        return self._groups.get(name)

    async def children(self, name: str, timeout: float | None = None) -> list[GroupObject]:
        if self._fetch is not None:
            self.unread.add(f"the groups below {name}")
        return [group for group in self._groups.values() if group.parent == name]

    async def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait for the whole timeout, because no other process writes the copies."""
        await asyncio.sleep(timeout)

    async def write_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        self._groups[name] = written = _without_hold(wire.decode(body))
        return written

    async def merge_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        """Return the group unchanged: the only merge patch is a hold, and no hold is needed here."""
        return self._groups[name]

    def apply(self, new: GroupObject) -> None:
        """Store a created or updated group as it is after its first recount.

        What a stored group uses of a name that it has had no count of is taken for 0, and `assumed` has the name.
        """
        old = self._groups.get(new.name)
        hard = wire.hard_of(new, self._catalog)
        status = old.status if old is not None else wire.GroupStatus()
        counted = status.used or {}
        unknown = {name for name in hard if name not in counted}
        cash = status.cash
        if wire.terms_of(new, self._catalog).safe and (cash is None or cash.liens is None):
            # What running workloads may still cost: nothing in a new group.
            cash = wire.with_committed(cash, {})
            unknown |= {name for name in hard if is_cash(name)}
        if old is not None:
            self.assumed[new.name] = (self.assumed.get(new.name, frozenset()) | unknown) & hard.keys()
        metadata = old.metadata if old is not None else new.metadata
        status = msgspec.structs.replace(status, used={name: counted.get(name, "0") for name in hard}, cash=cash)
        self._groups[new.name] = msgspec.structs.replace(new, metadata=metadata, status=status)

    def account(self, name: str) -> Account | None:
        """Return the account of a group, or None if the group does not exist or cannot be read."""
        group = self._groups.get(name)
        try:
            return wire.account_of(group, self._catalog) if group is not None else None
        except GroupUnreadable:
            return None

    def parent_and_siblings(self, name: str) -> list[Account]:
        """Return the accounts of the parent and then of the siblings by name; leave out the unreadable ones."""
        group = self._groups.get(name)
        if group is None or not group.parent:
            return []
        siblings = sorted(g.name for g in self._groups.values() if g.parent == group.parent and g is not group)
        names = [each for each in (group.parent, *siblings) if self._is_counted(each)]
        return [account for each in names if (account := self.account(each)) is not None]

    def _copied(self, group: GroupObject) -> GroupObject:
        """Return a copy of a stored group as if nothing of it was held ahead; entries that cannot be read stay."""
        texts = group.status.reservations
        if any(map(is_line_text, texts)):
            with contextlib.suppress(GroupUnreadable):
                self.ahead[group.name] = total(each.amount for each in wire.reservations_of(group) if is_line(each))
                rest = [text for text in texts if not is_line_text(text)]
                group = msgspec.structs.replace(group, status=msgspec.structs.replace(group.status, reservations=rest))
        return _without_hold(group)

    def _is_counted(self, name: str) -> bool:
        group = self._groups.get(name)
        try:
            return group is not None and wire.is_counted(group, self._catalog)
        except GroupUnreadable:
            return False


class RecordingReserver(Reserver):
    """A Reserver that records its last charge, and the account as it was before that charge."""

    def __init__(self, store: InMemoryGroupStore, catalog: Catalog, clock: Callable[[], float]) -> None:
        super().__init__(store, catalog=catalog, clock=clock, pace=0.0, patience=0.0)
        self._copies = store
        self.recorded: tuple[str, Charge, Account | None] | None = None

    async def reserve(
        self,
        group: str,
        charge: Charge,
        deadline: float,
        check: Check | None = None,
        name_check: NameCheck | None = None,
    ) -> Verdict:
        await self._copies.read(group, deadline)
        self.recorded = group, charge, self._copies.account(group)
        return await super().reserve(group, charge, deadline, check, name_check)

    async def dry_run(
        self,
        group: str,
        charge: Charge,
        deadline: float,
        check: Check | None = None,
        name_check: NameCheck | None = None,
    ) -> Verdict:
        await self._copies.read(group, deadline)
        self.recorded = group, charge, self._copies.account(group)
        return await super().dry_run(group, charge, deadline, check, name_check)


def _without_hold(group: GroupObject) -> GroupObject:
    return msgspec.structs.replace(group, status=msgspec.structs.replace(group.status, hold=None))
