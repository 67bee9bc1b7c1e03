"""Read the groups of a cluster, once or again after every change, for the verbs that show them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import run_on
from bizrq.cli.completion import group_names
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, alternatives

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
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


def list_groups(client: KubeClient, selector: str | None = None) -> list[dict[str, Any]]:
    """Return all groups as stored objects. Raise Failure."""
    from bizrq.store.groups import GROUPS, without_managed_fields

    async def work(client: KubeClient) -> list[dict[str, Any]]:
        items, _ = await client.list(GROUPS, label_selector=selector, transform=without_managed_fields)
        return items

    return run_on(client, work)


def watch_groups(client: KubeClient, show: Show, selector: str | None = None) -> None:
    """Show the groups now and after every change, until an interrupt. Raise Failure."""
    import asyncio

    from bizrq.store.groups import GROUPS, without_managed_fields

    async def work(client: KubeClient) -> None:
        while True:
            items, version = await client.list(GROUPS, label_selector=selector, transform=without_managed_fields)
            show(items)
            sys.stdout.flush()
            await _change(client, version, selector)
            await asyncio.sleep(_GATHER)

    with contextlib.suppress(KeyboardInterrupt):
        run_on(client, work)


async def _change(client: KubeClient, version: str, selector: str | None) -> None:
    """Return when a group is newer than this resourceVersion."""
    from bizrq.kube.client import Gone
    from bizrq.store.groups import GROUPS

    while True:
        events = client.watch(GROUPS, resource_version=version, label_selector=selector, timeout_seconds=_WATCH)
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


def check_known(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise Failure if a wanted group does not exist."""
    for name in wanted:
        if name not in known:
            raise Failure(f"there is no group {name}; {alternatives(name, sorted(known))}", EXIT_BAD_INPUT)
