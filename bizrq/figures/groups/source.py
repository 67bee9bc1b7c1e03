"""The groups that a person may read: all of them, or each by its name.

This file alone decides what is read where the right to list groups is lacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bizrq.api.group import GroupObject, GroupUnreadable, from_dict
from bizrq.figures.errors import BadValue, NotAllowed, UnknownGroup, Unreadable
from bizrq.figures.words import alternatives
from bizrq.kube.client import ApiError, Forbidden, KubeClient, NotFound
from bizrq.store.groups import GROUPS, without_managed_fields

#: The HTTP status for a selector that means nothing.
_BAD_REQUEST = 400


class ReadGroups(Protocol):
    """Groups that were read; unless `is_complete`, there may be more that the user may not read."""

    @property
    def groups(self) -> Sequence[GroupObject]: ...

    @property
    def is_complete(self) -> bool: ...


class GroupSource:
    """The groups that a person may read: all of them where they may list groups, else each by its name.

    `unread` names what they may not read, in words.
    """

    def __init__(self, client: KubeClient, items: Sequence[dict[str, Any]] = (), *, is_complete: bool = True) -> None:
        """`items` are the groups that are read already; if they are all, `is_complete`."""
        self._client = client
        self.is_complete = is_complete
        self.items: dict[str, dict[str, Any]] = {item["metadata"]["name"]: item for item in items}
        self._missing: set[str] = set()
        self._denied: dict[str, Forbidden] = {}
        self.unread: set[str] = set()

    @property
    def groups(self) -> list[GroupObject]:
        """Return what is read, decoded. Raise Unreadable."""
        return decode_groups(list(self.items.values()))

    async def get(self, name: str) -> dict[str, Any] | None:
        """Return a stored group, None where there is none or where it may not be read, which `unread` says.

        Raise ApiError or Unreachable.
        """
        if name in self.items or name in self._missing or self.is_complete:
            return self.items.get(name)
        if name not in self._denied:
            try:
                self.items[name] = without_managed_fields(await self._client.get(GROUPS, name))
            except NotFound as error:
                _check_installed(error)
                self._missing.add(name)
            except Forbidden as error:
                self._denied[name] = error
        if name in self._denied:
            self.unread.add(f"group {name}")
        return self.items.get(name)

    async def fetch(self, name: str) -> GroupObject | None:
        """Return a stored group, None where there is none.

        Raise Forbidden, another ApiError, Unreachable or Unreadable.
        """
        item = await self.get(name)
        if name in self._denied:
            raise self._denied[name]
        return None if item is None else decode_groups([item])[0]

    async def named(self, names: Sequence[str]) -> None:
        """Read these groups, and what is above them as far as that may be read.

        Raise UnknownGroup for a group that does not exist, NotAllowed where none of them may be read, and other
        ApiErrors.
        """
        for name in names:
            each, seen = await self.get(name), {name, ""}
            while each is not None:
                parent = (each.get("spec") or {}).get("parentBizGroup") or ""
                each = None if parent in seen else await self.get(parent)
                seen.add(parent)
        denied = [name for name in names if name in self._denied]
        check_known([name for name in names if name not in denied], sorted(self.items), is_complete=self.is_complete)
        if len(denied) == len(names) and denied:
            raise not_allowed(self._denied[denied[0]], denied[0])


def not_allowed(error: Forbidden, name: str) -> NotAllowed:
    """Return the refusal to read a group, with what to do."""
    return NotAllowed(f"{error}; ask an administrator to run: bizrq allow --read USER {name}")


def _check_installed(error: ApiError) -> None:
    """Raise the error again where it is not about one group: then the cluster does not know the kind."""
    if not error.details.get("name"):
        raise error


async def read_groups(client: KubeClient, names: Sequence[str] = (), selector: str | None = None) -> GroupSource:
    """Return all groups, or where the user may not list them those of these names and what is above them.

    Without a name the list is all there is to read. Raise NoAnswer, ApiError or Unreachable.
    """
    try:
        return GroupSource(client, (await list_groups(client, selector))[0])
    except Forbidden as error:
        if not names:
            hint = "name a group that you may read, or ask for the role bizrq-viewer"
            raise NotAllowed(f"{error}; {hint}") from None
    source = GroupSource(client, is_complete=False)
    await source.named(names)
    return source


async def read_any_groups(client: KubeClient) -> GroupSource:
    """Return all groups, or a source that reads each by its name where the user may not list them.

    Raise ApiError or Unreachable.
    """
    try:
        return GroupSource(client, (await list_groups(client))[0])
    except Forbidden:
        return GroupSource(client, is_complete=False)


async def read_named(client: KubeClient, names: Sequence[str]) -> GroupSource:
    """Return the groups of these names, each read by itself. Raise NoAnswer, ApiError or Unreachable."""
    source = GroupSource(client, is_complete=False)
    for name in names:
        await source.get(name)
    missing = [name for name in names if name not in source.items and f"group {name}" not in source.unread]
    if missing:
        check_known(missing, await known_names(client), is_complete=False)
    if not source.items and names:
        await source.named(names)
    return source


async def list_groups(
    client: KubeClient, selector: str | None = None, named: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return all groups, and the version of the list. Raise BadValue, Forbidden, another ApiError or Unreachable."""
    try:
        return await client.list(
            GROUPS, label_selector=selector, field_selector=named, transform=without_managed_fields
        )
    except ApiError as error:
        if selector is None or error.status != _BAD_REQUEST:
            raise
        forms = "write key=value, key!=value, key or !key, with commas between them"
        raise BadValue(f"{selector}: no label selector: {forms}", "selector") from None


async def known_names(client: KubeClient) -> list[str]:
    """Return the names of all groups for a message, none where the user may not list them."""
    try:
        return sorted(item["metadata"]["name"] for item in (await list_groups(client))[0])
    except Forbidden:
        return []


def decode_groups(items: Sequence[dict[str, Any]]) -> list[GroupObject]:
    """Decode stored objects. Raise Unreadable."""
    try:
        return [from_dict(item) for item in items]
    except GroupUnreadable as error:
        raise Unreadable(str(error)) from None


def check_known(wanted: Sequence[str], known: Sequence[str], *, is_complete: bool = True) -> None:
    """Raise UnknownGroup if a wanted group does not exist. Unless `is_complete`, there may be more than the known."""
    for name in wanted:
        if name not in known:
            others = f"; {alternatives(name, sorted(known))}" if known or is_complete else ""
            raise UnknownGroup(name, f"there is no group {name}{others}")
