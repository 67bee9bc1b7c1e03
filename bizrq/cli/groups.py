"""Read the groups of a cluster, once or again after every change, for the verbs that show them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import run_on
from bizrq.cli.completion import group_names
from bizrq.cli.output.failure import (
    EXIT_BAD_INPUT,
    EXIT_CLUSTER,
    EXIT_UNKNOWN,
    Failure,
    alternatives,
    few,
    warn,
)

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.cli.enforcement import Trouble
    from bizrq.kube.client import ApiError, Forbidden, KubeClient

Group = Annotated[
    str | None, typer.Argument(help="Show only this group and the groups below it.", autocompletion=group_names)
]
Selector = Annotated[
    str | None, typer.Option("--selector", "-l", help="Show only groups that match this label selector.")
]
OnlyResource = Annotated[
    str | None, typer.Option("--resource", "-r", help="Show only this resource and its models, for example limits.cpu.")
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Print again after every change, until Ctrl-C.")]

#: Seconds to collect changes before the groups are shown again.
_GATHER = 0.5
#: Seconds until a watch is restarted.
_WATCH = 240

#: Prints the groups, given as stored objects.
Show = Callable[[list[dict[str, Any]]], None]


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
        #: What was said first of enforcement and counts.
        self.troubles: list[Trouble] = []

    @property
    def groups(self) -> list[GroupObject]:
        """Return what is read, decoded. Raise Failure."""
        return decode_groups(list(self.items.values()))

    async def get(self, name: str) -> dict[str, Any] | None:
        """Return a stored group, None where there is none or where it may not be read, which `unread` says.

        Raise ApiError or Unreachable.
        """
        from bizrq.kube.client import Forbidden, NotFound
        from bizrq.store.groups import GROUPS, without_managed_fields

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
        """Return a stored group, None where there is none. Raise Forbidden, another ApiError, Unreachable, Failure."""
        item = await self.get(name)
        if name in self._denied:
            raise self._denied[name]
        return None if item is None else decode_groups([item])[0]

    async def named(self, names: Sequence[str]) -> None:
        """Read these groups, and what is above them as far as that may be read.

        Raise Failure for a group that does not exist, Forbidden where none of them may be read, and other ApiErrors.
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
            raise self._denied[denied[0]]


def _check_installed(error: ApiError) -> None:
    """Raise the error again where it is not about one group: then the cluster does not know the kind."""
    if not error.details.get("name"):
        raise error


async def read_groups(
    client: KubeClient, names: Sequence[str] = (), selector: str | None = None, *, quiet: bool = False
) -> GroupSource:
    """Return all groups, or where the user may not list them those of these names and what is above them.

    Without a name the list is all there is to read. First says what is wrong with enforcement and counts, on stderr,
    unless `quiet`. Raise Failure, ApiError or Unreachable.
    """
    from bizrq.cli.enforcement import said_first
    from bizrq.kube.client import Forbidden

    try:
        source = GroupSource(client, (await _list(client, selector))[0])
    except Forbidden as error:
        if not names:
            hint = "name a group that you may read, or ask for the role bizrq-viewer"
            raise Failure(f"{error}; {hint}", EXIT_CLUSTER) from None
        source = GroupSource(client, is_complete=False)
        await source.named(names)
    if not quiet:
        source.troubles = await said_first(client, source.groups)
    return source


async def read_any_groups(client: KubeClient, namespace: str | None = None) -> GroupSource:
    """Return all groups, or a source that reads each by its name where the user may not list them.

    First says what is wrong with enforcement and counts, on stderr; `namespace` is for a dry run. Raise Failure,
    ApiError or Unreachable.
    """
    from bizrq.cli.enforcement import said_first
    from bizrq.kube.client import Forbidden

    try:
        source = GroupSource(client, (await _list(client))[0])
    except Forbidden:
        source = GroupSource(client, is_complete=False)
    await said_first(client, source.groups, namespace)
    return source


async def _list(
    client: KubeClient, selector: str | None = None, named: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return all groups, and the version of the list. Raise Forbidden, another ApiError or Unreachable."""
    from bizrq.store.groups import GROUPS, without_managed_fields

    return await client.list(GROUPS, label_selector=selector, field_selector=named, transform=without_managed_fields)


async def read_named(client: KubeClient, names: Sequence[str]) -> GroupSource:
    """Return the groups of these names, each read by itself. Says first what is wrong, as `read_groups` does."""
    from bizrq.cli.enforcement import said_first

    source = GroupSource(client, is_complete=False)
    for name in names:
        await source.get(name)
    missing = [name for name in names if name not in source.items and f"group {name}" not in source.unread]
    if missing:
        check_known(missing, await known_names(client), is_complete=False)
    if not source.items and names:
        await source.named(names)
    await said_first(client, source.groups)
    return source


async def known_names(client: KubeClient) -> list[str]:
    """Return the names of all groups for a message, none where the user may not list them."""
    from bizrq.kube.client import Forbidden

    try:
        return sorted(item["metadata"]["name"] for item in (await _list(client))[0])
    except Forbidden:
        return []


def end_unread(unread: Collection[str], *, so: str) -> None:
    """Say what may not be read, and end with the exit code for an unknown answer; nothing where all was read.

    `so` says what follows from it.
    """
    if unread:
        warn(f"you may not read {few(sorted(unread))}: {so}")
        raise typer.Exit(EXIT_UNKNOWN)


def watch_groups(client: KubeClient, show: Show, selector: str | None = None, names: Sequence[str] = ()) -> None:
    """Show the groups now and after every change, until an interrupt; of one name, only that is read. Raise Failure.

    Who may list and watch one group alone may do so by its name, as with kubectl.
    """
    import asyncio

    async def work(client: KubeClient) -> None:
        named = f"metadata.name={names[0]}" if len(names) == 1 else None
        if named is None:
            await read_groups(client, selector=selector)
        else:
            await read_named(client, names)
        while True:
            items, version = await _list(client, selector, named)
            show(items)
            sys.stdout.flush()
            await _change(client, version, selector, named)
            await asyncio.sleep(_GATHER)

    with contextlib.suppress(KeyboardInterrupt):
        run_on(client, work)


async def _change(client: KubeClient, version: str, selector: str | None, named: str | None) -> None:
    """Return when a group is newer than this resourceVersion."""
    from bizrq.kube.client import Gone
    from bizrq.store.groups import GROUPS

    while True:
        events = client.watch(
            GROUPS, resource_version=version, label_selector=selector, field_selector=named, timeout_seconds=_WATCH
        )
        with contextlib.suppress(Gone):
            async with contextlib.aclosing(events):
                async for kind, obj in events:
                    if kind != "BOOKMARK":
                        return
                    version = obj["metadata"]["resourceVersion"]
                continue
        return


def decode_groups(items: Sequence[dict[str, Any]]) -> list[GroupObject]:
    """Decode stored objects. Raise Failure."""
    from bizrq.api.group import GroupUnreadable, from_dict

    try:
        return [from_dict(item) for item in items]
    except GroupUnreadable as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def check_known(wanted: Sequence[str], known: Sequence[str], *, is_complete: bool = True) -> None:
    """Raise Failure if a wanted group does not exist. Unless `is_complete`, there may be more than the known ones."""
    for name in wanted:
        if name not in known:
            others = f"; {alternatives(name, sorted(known))}" if known or is_complete else ""
            raise Failure(f"there is no group {name}{others}", EXIT_BAD_INPUT)
