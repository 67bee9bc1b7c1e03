"""What `bizrq uninstall` deletes, and the processes that might put it back.

This file alone decides the order: the registration first, the CRDs last, and the namespace after what is in it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from bizrq.cli.installation.deletion import delete, prune
from bizrq.cli.manifests_of_bizrq import InstallPlan, install_objects, stored_by_processes
from bizrq.cli.manifests_of_web import WebPlan, web_objects
from bizrq.cli.options import settings_of
from bizrq.cli.output.failure import warn
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.kube.lease import LEASES
from bizrq.registration import NAME
from bizrq.store import pause, processes
from bizrq.units.times import TimestampError, parse_timestamp

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """What uninstall deletes, in order. With the `definitions`, the CRDs, go all groups and their hours."""

    objects: list[Object]
    definitions: list[Object]


def removal(namespace: str) -> Removal:
    """Return what an installation in this namespace may have: all that any flags of install create."""
    plan = InstallPlan(namespace, "", 1, " ", client_ca=" ", api_servers=(" ",))
    made = [*install_objects(settings_of(None), plan), *web_objects(plan, WebPlan("https://web"))]
    objects = list(reversed(made))
    definitions = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    going = [obj for obj in objects if obj not in definitions]
    # Delete the namespace after the objects in it, and what the processes store after them.
    accounts = next(
        i for i, obj in enumerate(going) if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] != processes.WEB
    )
    going[accounts:accounts] = stored_by_processes(namespace)
    registered = {"kind": REGISTRATIONS.kind, "metadata": {"name": NAME}}
    return Removal([registered, *going], definitions)


async def remove(client: KubeClient, namespace: str, objects: list[Object]) -> None:
    """Delete the objects, and what an earlier install or a process that was killed has left."""
    await _warn_of_up(client, namespace)
    await _keep_away(client, namespace)
    registered, *others = objects
    await delete(client, registered)
    await prune(client, others)
    for obj in others:
        await delete(client, obj)
    await _forget_processes(client, namespace)


async def _warn_of_up(client: KubeClient, namespace: str) -> None:
    """Warn if bizrq up runs here: it goes on, and registers nothing again."""
    try:
        stored = await processes.read(client, namespace)
    except Forbidden:
        # The Leases are deleted later, which says that they may not be read.
        return
    now = int(time.time() * 1000)
    for each in stored:
        with contextlib.suppress(TimestampError):
            if each.info.process == processes.UP and now - parse_timestamp(each.renewed) < processes.DURATION * 1000:
                host = each.info.identity.partition("_")[0]
                warn(f"bizrq up runs on {host}, and checks nothing any more: stop it; a new start registers again")


async def _keep_away(client: KubeClient, namespace: str) -> None:
    """Keep the leader from registering again. Without the namespace, or while that ends, there is none."""
    try:
        await pause.begin(client, namespace, pause.UNINSTALL, "")
    except NotFound:
        return
    except Forbidden as error:
        if "NamespaceTerminating" not in {cause.get("reason") for cause in error.details.get("causes") or ()}:
            raise


async def _forget_processes(client: KubeClient, namespace: str) -> None:
    """Delete the Leases of processes that could not do so themselves. What is left counts for nothing."""
    try:
        for each in await processes.read(client, namespace):
            with contextlib.suppress(NotFound):
                await client.delete(LEASES, each.name, namespace)
    except Forbidden as error:
        warn(f"Leases of processes may be left: {error.message}")
