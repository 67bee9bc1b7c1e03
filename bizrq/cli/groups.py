"""Read the groups of a cluster, once or again after every change, for the verbs that show them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import run_on
from bizrq.cli.completion import group_names
from bizrq.cli.output.failure import EXIT_UNKNOWN, warn
from bizrq.figures.words import few

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.figures.groups.source import GroupSource
    from bizrq.figures.state.enforcement import Trouble
    from bizrq.kube.client import KubeClient

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


async def read_groups(client: KubeClient, names: Sequence[str] = (), selector: str | None = None) -> GroupSource:
    """Return all groups, or where the user may not list them those of these names and what is above them.

    First says what is wrong with enforcement and counts, on stderr. Raise NoAnswer, ApiError or Unreachable.
    """
    from bizrq.figures.groups import source

    found = await source.read_groups(client, names, selector)
    await said_first(client, found.groups)
    return found


async def read_any_groups(client: KubeClient, namespace: str | None = None) -> GroupSource:
    """Return all groups, or a source that reads each by its name where the user may not list them.

    First says what is wrong with enforcement and counts, on stderr; `namespace` is for a dry run. Raise NoAnswer,
    ApiError or Unreachable.
    """
    from bizrq.figures.groups import source

    found = await source.read_any_groups(client)
    await said_first(client, found.groups, namespace)
    return found


async def read_named(client: KubeClient, names: Sequence[str]) -> GroupSource:
    """Return the groups of these names, each read by itself. Says first what is wrong, as `read_groups` does."""
    from bizrq.figures.groups import source

    found = await source.read_named(client, names)
    await said_first(client, found.groups)
    return found


async def said_first(client: KubeClient, groups: Sequence[GroupObject], namespace: str | None = None) -> list[Trouble]:
    """Print a line on stderr for each trouble, and return them; `namespace` is for a dry run. Raise Unreachable."""
    from bizrq.figures.state.enforcement import troubles_of

    found = await troubles_of(client, groups, namespace)
    for trouble in found:
        warn(trouble.message)
    return found


def end_unread(unread: Collection[str], *, so: str) -> None:
    """Say what may not be read, and end with the exit code for an unknown answer; nothing where all was read.

    `so` says what follows from it.
    """
    if unread:
        warn(f"you may not read {few(sorted(unread))}: {so}")
        raise typer.Exit(EXIT_UNKNOWN)


def watch_groups(client: KubeClient, show: Show, selector: str | None = None, names: Sequence[str] = ()) -> None:
    """Show the groups now and after every change, until an interrupt. Raise Failure.

    A recount that finds the same is no change.

    Groups that are named are each watched by their name: who may list and watch only them may do so, as with kubectl.
    Each watch needs a connection.
    """
    import asyncio

    async def work(client: KubeClient) -> None:
        if names:
            await read_named(client, names)
        else:
            await read_groups(client, selector=selector)
        shown: list[dict[str, Any]] | None = None
        while True:
            listed = {name: await _listed(client, selector, name) for name in names or [""]}
            items = [item for items, _ in listed.values() for item in items]
            if (found := [_without_versions(item) for item in items]) != shown:
                show(items)
                sys.stdout.flush()
                shown = found
            await _first([_change(client, version, selector, name) for name, (_, version) in listed.items()])
            await asyncio.sleep(_GATHER)

    with contextlib.suppress(KeyboardInterrupt):
        run_on(client, work)


def _without_versions(item: dict[str, Any]) -> dict[str, Any]:
    """Return a group as it is but for when it was written, and from which versions and when it was counted."""
    left_out = {"metadata": ("resourceVersion", "managedFields"), "status": ("countedAt", "lastReconcileTime")}
    parts = {
        part: {key: value for key, value in (item.get(part) or {}).items() if key not in keys}
        for part, keys in left_out.items()
    }
    return {**item, **parts}


async def _first(changes: Collection[Coroutine[Any, Any, None]]) -> None:
    """Return when one of the changes has come, or raise what it raises; cancel the others."""
    import asyncio

    tasks = [asyncio.ensure_future(change) for change in changes]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listed(client: KubeClient, selector: str | None, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return the group of this name, or all groups without one, and the version of the list."""
    from bizrq.figures.groups.source import list_groups, not_allowed
    from bizrq.kube.client import Forbidden

    try:
        return await list_groups(client, selector, _field(name))
    except Forbidden as error:
        if not name:
            raise
        raise not_allowed(error, name) from None


def _field(name: str) -> str | None:
    return f"metadata.name={name}" if name else None


async def _change(client: KubeClient, version: str, selector: str | None, name: str) -> None:
    """Return when the group of this name, or any without one, is newer than this resourceVersion."""
    from bizrq.kube.client import Gone
    from bizrq.store.groups import GROUPS

    field = _field(name)
    while True:
        events = client.watch(
            GROUPS, resource_version=version, label_selector=selector, field_selector=field, timeout_seconds=_WATCH
        )
        with contextlib.suppress(Gone):
            async with contextlib.aclosing(events):
                async for kind, obj in events:
                    if kind != "BOOKMARK":
                        return
                    version = obj["metadata"]["resourceVersion"]
                continue
        return
