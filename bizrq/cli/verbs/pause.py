"""bizrq pause and resume: take the webhooks out of the way of the API server, and put them back."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import SystemNamespace
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

#: Seconds between two looks.
_LOOK = 0.5
_ASKED = "Until bizrq resume, nothing is checked: every workload and every group is admitted. Pause bizrq?"


def pause(
    namespace: SystemNamespace = "bizrq-system",
    reason: Annotated[str, typer.Option(help="Why; the marker keeps it, and doctor and install show it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Stop all checks at once, also while no process of bizrq runs.

    Deletes the webhook registration, and writes a marker, the ConfigMap bizrq-paused, so that the controller does not
    restore it. Until bizrq resume, everything is admitted. A running controller still counts it, and shows what is over
    quota; nothing is lost. Requires create on configmaps in the namespace, and delete on the registration.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise Failure("cannot ask for confirmation without a terminal: pass --yes", EXIT_BAD_INPUT)
        typer.confirm(_ASKED, abort=True, err=True)
    run_on(client_for(where), lambda client: _pause(client, namespace, reason.strip()))


def resume(
    namespace: SystemNamespace = "bizrq-system",
    timeout: Annotated[int, typer.Option(min=0, help="Seconds to wait for the registration; 0 does not wait.")] = 60,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Check again: end bizrq pause, and wait until the controller, or bizrq up, has registered the webhooks.

    What was admitted meanwhile stays. Groups that are over quota by it refuse growth until they fit again. Requires
    delete on the ConfigMap bizrq-paused.
    """
    run_on(client_for(where), lambda client: _resume(client, namespace, timeout))


async def _pause(client: KubeClient, namespace: str, reason: str) -> None:
    """Write the marker, then delete the registration: in this order no leader restores it. Raise Failure."""
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.kube.client import ApiError, NotFound
    from bizrq.registration import NAME
    from bizrq.store import pause as markers
    from bizrq.store.access import whoami

    try:
        # The name is a comfort, and some clusters do not tell it.
        by = await whoami(client)
    except ApiError:
        by = ""
    try:
        marker = await markers.begin(client, namespace, reason, by)
    except NotFound:
        raise Failure(f"there is no namespace {namespace}: pass --namespace", EXIT_BAD_INPUT) from None
    except ApiError as error:
        raise Failure(
            f"the marker cannot be written: {error.message}; without it a controller registers again. Instead: kubectl "
            f"-n {namespace} scale deployment/bizrq-controller --replicas=0, then kubectl delete "
            f"validatingwebhookconfiguration {NAME}",
            EXIT_CLUSTER,
        ) from None
    try:
        await client.delete(REGISTRATIONS, NAME)
    except NotFound:
        terminal.write("no webhooks were registered\n")
    except ApiError as error:
        raise Failure(
            f"the webhooks are still registered: {error.message}; whoever may delete it runs bizrq pause again, or "
            f"kubectl delete validatingwebhookconfiguration {NAME}",
            EXIT_CLUSTER,
        ) from None
    from rich.text import Text

    terminal.print_hanging(terminal.console(), Text(str(marker)), 2)
    terminal.write("nothing is checked until bizrq resume\n")


async def _resume(client: KubeClient, namespace: str, timeout: int) -> None:
    """Delete the marker, and wait for what the leader does then. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.output.waits import Wait
    from bizrq.store import pause as markers

    was_paused = await markers.end(client, namespace)
    terminal.write("resumed\n" if was_paused else "bizrq was not paused\n")
    until = time.monotonic() + timeout
    why = await _not_enforced(client)
    wait = Wait("until the webhooks are registered", timeout)
    while why and time.monotonic() < until:
        wait.say()
        await asyncio.sleep(_LOOK)
        why = await _not_enforced(client)
    if not why:
        terminal.write("the webhooks are registered\n")
    elif timeout:
        raise Failure(f"nothing is checked yet: {why}; {await _remedy(client, namespace)}", EXIT_CLUSTER)


async def _not_enforced(client: KubeClient) -> str:
    """Return why requests are not checked, "" where they are."""
    from bizrq.store import registered

    stored = await registered.stored(client)
    if stored is None:
        return "the webhooks are not registered"
    webhooks = stored.get("webhooks") or ()
    if any(not each["clientConfig"].get("caBundle") for each in webhooks):
        return "bizrq-certs has not written the caBundle"
    return ""


async def _remedy(client: KubeClient, namespace: str) -> str:
    """Return what to do, by who leads."""
    from bizrq.cli.rbac import CONTROLLER
    from bizrq.kube.client import ApiError
    from bizrq.kube.lease import LEASES

    try:
        lease = await client.get(LEASES, CONTROLLER, namespace)
    except ApiError:
        lease = {}
    holder = (lease.get("spec") or {}).get("holderIdentity")
    if not holder:
        return f"no controller leads: start one, or kubectl -n {namespace} get pods says why there is none"
    return (
        f"the last leader is {holder}: its log says what it waits for, and bizrq doctor what is wrong; where it "
        "does not run any more, start it again"
    )
