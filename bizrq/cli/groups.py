"""The groups of a cluster, for the verbs that show them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import ask
from bizrq.cli.kubectl_plugin import group_names
from bizrq.cli.output.failure import BAD_INPUT, Failure, instead_of

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.kube.client import KubeClient

Group = Annotated[str | None, typer.Argument(help="Only this group and what is below it.", autocompletion=group_names)]
Selector = Annotated[str | None, typer.Option("--selector", "-l", help="Only groups with these labels, as kubectl's.")]
OnlyResource = Annotated[
    str | None, typer.Option("--resource", "-r", help="Only this resource and its models, like limits.cpu.")
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Print it again whenever something changes, until Ctrl-C.")]

#: Seconds for which changes are gathered before they are shown.
_GATHER = 0.5
#: Seconds after which a watch is begun anew.
_WATCH = 240

#: What a verb prints, of the groups as the API server has them.
Show = Callable[[list[dict[str, Any]]], None]


def listed(client: KubeClient, selector: str | None = None) -> list[dict[str, Any]]:
    """All groups as objects; raises Failure."""
    from bizrq.store.groups import GROUPS, without_managed_fields

    async def work(client: KubeClient) -> list[dict[str, Any]]:
        items, _ = await client.list(GROUPS, label_selector=selector, transform=without_managed_fields)
        return items

    return ask(client, work)


def watched(client: KubeClient, show: Show, selector: str | None = None) -> None:
    """Show the groups, and again after every change, until somebody interrupts. Raises Failure."""
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
        ask(client, work)


async def _change(client: KubeClient, version: str, selector: str | None) -> None:
    """Return when a group has changed since this version."""
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


def decoded(items: Sequence[dict[str, Any]]) -> list[GroupObject]:
    """The objects as groups; raises Failure."""
    from bizrq.api.group import GroupUnreadable, from_dict

    try:
        return [from_dict(item) for item in items]
    except GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None


def check_known(wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raises Failure where a group is asked for that is not there."""
    for name in wanted:
        if name not in known:
            raise Failure(f"there is no group {name}; {instead_of(name, sorted(known))}", BAD_INPUT)
