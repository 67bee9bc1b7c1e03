"""What becomes of groups and their hours when bizrq is removed.

This file alone decides what is said of them, and what the controller would still have done for them.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bizrq.api.group import FINALIZER
from bizrq.cli.grants import ALLOW, MANAGED
from bizrq.cli.installation import waiting
from bizrq.cli.installation.deletion import delete
from bizrq.cli.manifests_of_bizrq import resource_of
from bizrq.cli.output.failure import warn
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.units.text import by_number, counted

Object = dict[str, Any]

#: The nouns whose plural is not the noun with an s.
_MANY = {"record of hours": "records of hours", "bill (statement)": "bills (statements)"}


async def count(client: KubeClient) -> dict[str, int | None]:
    """Return how many objects `--crd` deletes, by what they are; None for what may not be listed."""
    nouns = {GROUPS: "group", CARD_HOURS: "record of hours", STATEMENTS: "bill (statement)", CORRECTIONS: "correction"}
    counts: dict[str, int | None] = {}
    for resource, noun in nouns.items():
        try:
            items, _ = await client.list(resource, transform=lambda obj: {"metadata": obj["metadata"]})
            counts[noun] = len(items)
        except NotFound:
            counts[noun] = 0
        except Forbidden:
            counts[noun] = None
    return counts


def summed(counts: dict[str, int | None]) -> str:
    """Return these counts as words. What may not be listed is no zero among them."""
    known = [counted(number, noun, _MANY.get(noun, "")) for noun, number in counts.items() if number is not None]
    unread = [_MANY.get(noun, f"{noun}s") for noun, number in counts.items() if number is None]
    if unread:
        known.append(f"an unknown number of {', '.join(unread)}, which you may not list")
    return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))


async def delete_all(client: KubeClient, definitions: list[Object]) -> None:
    """Delete the CRDs, with them all groups and hours, and the rights to charge the groups. Raise Failure if late."""
    await _disallow(client)
    await _free_groups(client)
    for obj in definitions:
        await delete(client, obj)
        await waiting.for_deletion(client, obj)


async def _disallow(client: KubeClient) -> None:
    """Delete what `bizrq allow` made: a later group of the same name is another."""
    for kind in ("ClusterRoleBinding", "ClusterRole"):
        resource = resource_of({"kind": kind})
        for item in (await client.list(resource, label_selector=f"{MANAGED}={ALLOW}"))[0]:
            await delete(client, item)


async def _free_groups(client: KubeClient) -> None:
    """Remove our finalizer from the groups, because the controller no longer runs."""
    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    for group in groups:
        finalizers = group["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            rest = [each for each in finalizers if each != FINALIZER]
            with contextlib.suppress(NotFound):
                await client.patch(GROUPS, group["metadata"]["name"], {"metadata": {"finalizers": rest}})


async def warn_of_kept(client: KubeClient) -> None:
    """Say how many groups stay, and which of them wait for a controller when they are deleted."""
    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    held = sum(FINALIZER in (group["metadata"].get("finalizers") or []) for group in groups)
    warn(f"{counted(len(groups), 'group')} and the CRDs are kept; bizrq uninstall --crd deletes them")
    if held:
        have = by_number(held, "has", "have")
        warn(f"{held} of them {have} a record of hours and cannot be deleted one by one without the controller")
