"""bizrq uninstall: delete the objects of bizrq from a cluster."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.apply import DryRunOutput, ManifestOutput, print_objects
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.installation import waiting
from bizrq.cli.installation.deletion import delete, prune
from bizrq.cli.options import DryRun, SystemNamespace, settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_UNKNOWN, Failure, warn
from bizrq.units.text import by_number, counted

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

#: The nouns whose plural is not the noun with an s.
_MANY = {"record of hours": "records of hours", "bill (statement)": "bills (statements)"}


def uninstall(
    namespace: SystemNamespace = "bizrq-system",
    crd: Annotated[
        bool, typer.Option("--crd", help="Delete the CRDs too, and with them every group and its hours.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete with --crd what that would delete, unasked.")] = False,
    dry_run: DryRun = False,
    output: DryRunOutput = ManifestOutput.NAME,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Remove bizrq from a cluster, the webhook registration first, so that no write is refused meanwhile.

    A marker as of bizrq pause keeps the controller from registering the webhooks again; it goes last.

    Groups and their CRDs are kept without --crd, which needs --yes: it deletes all groups, and the bills with them.
    With --dry-run it counts them, and exit code 4 means that some may not be listed. The namespace is deleted only if
    install created it.
    """
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.manifests_of_web import WebPlan, web_objects
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.registration import NAME
    from bizrq.store.processes import WEB

    plan = manifests_of_bizrq.InstallPlan(namespace, "", 1, " ", client_ca=" ", api_servers=(" ",))
    made = [*manifests_of_bizrq.install_objects(settings_of(None), plan), *web_objects(plan, WebPlan("https://web"))]
    objects = list(reversed(made))
    kept = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    going = [obj for obj in objects if obj not in kept]
    # Delete the namespace after the objects in it, and what the processes store after them.
    accounts = next(
        i for i, obj in enumerate(going) if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] != WEB
    )
    going[accounts:accounts] = manifests_of_bizrq.stored_by_processes(namespace)
    registered = {"kind": REGISTRATIONS.kind, "metadata": {"name": NAME}}
    if dry_run:
        print_objects([registered, *going, *(kept if crd else [])], output)
        if crd:
            counts = run_on(client_for(where), _count)
            warn(f"--crd deletes {_sum(counts)}; save bills first")
            if None in counts.values():
                raise typer.Exit(EXIT_UNKNOWN)
        return

    async def work(client: KubeClient) -> None:
        if crd and not yes:
            lost = _sum(await _count(client))
            raise Failure(f"--crd deletes {lost}; save bills first, then add --yes", EXIT_BAD_INPUT)
        await _warn_of_up(client, namespace)
        await _keep_away(client, namespace)
        await delete(client, registered)
        await prune(client, going)
        for obj in going:
            await delete(client, obj)
        await _forget_processes(client, namespace)
        if crd:
            await _disallow(client)
            await _free_groups(client)
            for obj in kept:
                await delete(client, obj)
                await waiting.gone(client, obj)
        else:
            await _warn_of_kept_groups(client)

    run_on(client_for(where), work)


async def _warn_of_up(client: KubeClient, namespace: str) -> None:
    """Warn if bizrq up runs here: it goes on, and registers nothing again."""
    from bizrq.kube.client import Forbidden
    from bizrq.store import processes
    from bizrq.units.times import TimestampError, parse_timestamp

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


async def _forget_processes(client: KubeClient, namespace: str) -> None:
    """Delete the Leases of processes that could not do so themselves. What is left counts for nothing."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.kube.lease import LEASES
    from bizrq.store import processes

    try:
        for each in await processes.read(client, namespace):
            with contextlib.suppress(NotFound):
                await client.delete(LEASES, each.name, namespace)
    except Forbidden as error:
        warn(f"Leases of processes may be left: {error.message}")


async def _keep_away(client: KubeClient, namespace: str) -> None:
    """Keep the leader from registering again. Without the namespace, or while that ends, there is none."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.store import pause

    try:
        await pause.begin(client, namespace, pause.UNINSTALL, "")
    except NotFound:
        return
    except Forbidden as error:
        if "NamespaceTerminating" not in {cause.get("reason") for cause in error.details.get("causes") or ()}:
            raise


async def _count(client: KubeClient) -> dict[str, int | None]:
    """Return how many objects `--crd` deletes, by what they are; None for what may not be listed."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.store.groups import GROUPS
    from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS

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


def _sum(counts: dict[str, int | None]) -> str:
    known = [counted(number, noun, _MANY.get(noun, "")) for noun, number in counts.items() if number is not None]
    unread = [_MANY.get(noun, f"{noun}s") for noun, number in counts.items() if number is None]
    if unread:
        known.append(f"an unknown number of {', '.join(unread)}, which you may not list")
    return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))


async def _disallow(client: KubeClient) -> None:
    """Delete what `bizrq allow` made: a later group of the same name is another."""
    from bizrq.cli.grants import ALLOW, MANAGED
    from bizrq.cli.manifests_of_bizrq import resource_of

    for kind in ("ClusterRoleBinding", "ClusterRole"):
        resource = resource_of({"kind": kind})
        for item in (await client.list(resource, label_selector=f"{MANAGED}={ALLOW}"))[0]:
            await delete(client, item)


async def _free_groups(client: KubeClient) -> None:
    """Remove our finalizer from the groups, because the controller no longer runs."""
    from bizrq.api.group import FINALIZER
    from bizrq.kube.client import NotFound
    from bizrq.store.groups import GROUPS

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


async def _warn_of_kept_groups(client: KubeClient) -> None:
    from bizrq.api.group import FINALIZER
    from bizrq.kube.client import NotFound
    from bizrq.store.groups import GROUPS

    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    held = sum(FINALIZER in (group["metadata"].get("finalizers") or []) for group in groups)
    warn(f"{counted(len(groups), 'group')} and the CRDs are kept; bizrq uninstall --crd deletes them")
    if held:
        have = by_number(held, "has", "have")
        warn(f"{held} of them {have} used hours and cannot be deleted one by one without the controller")
