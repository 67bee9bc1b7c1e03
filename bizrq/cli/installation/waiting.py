"""Wait for what an installation or its removal needs of the cluster."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from bizrq.cli.apply import named
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure, progress

if TYPE_CHECKING:
    from bizrq.cli.manifests_of_bizrq import InstallPlan
    from bizrq.kube.client import KubeClient

#: Seconds to wait for the deletion of a CRD, and until it is established.
_GONE, _ESTABLISHED = 120.0, 60.0
#: Seconds between two lines about the same wait.
_TELL = 15.0


async def controlled(client: KubeClient, namespace: str, timeout: int) -> None:
    """Return when all controllers are as they were applied. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.rbac import CONTROLLER, WEBHOOKS
    from controller.registration import is_rolled_out

    deployments = resource_of({"kind": "Deployment"})
    until = time.monotonic() + timeout
    progress(f"waiting up to {timeout} s for the rollout of deployment {CONTROLLER}; {WEBHOOKS} follows")
    while not is_rolled_out(await client.get(deployments, CONTROLLER, namespace)):
        if time.monotonic() > until:
            raise Failure(
                f"the rollout of {CONTROLLER} did not end within {timeout} s, so {WEBHOOKS} is as it was before; check "
                f"kubectl -n {namespace} describe pods, then run install again, or with --no-wait",
                EXIT_CLUSTER,
            )
        await asyncio.sleep(1.0)


async def served(client: KubeClient, plan: InstallPlan, timeout: int) -> None:
    """Return when a webhook is ready. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.rbac import WEBHOOKS

    deployments = resource_of({"kind": "Deployment"})
    started = time.monotonic()
    until, told = started + timeout, started
    progress(f"waiting up to {timeout} s for a ready webhook of deployment {WEBHOOKS}")
    while True:
        stored = await client.get(deployments, WEBHOOKS, plan.namespace)
        if (stored.get("status") or {}).get("availableReplicas"):
            return
        if time.monotonic() > until:
            raise Failure(
                f"no webhook became ready within {timeout} s, so none is registered and nothing is refused; check "
                f"kubectl -n {plan.namespace} describe pods, then run install again, or with --no-wait",
                EXIT_CLUSTER,
            )
        if time.monotonic() >= told + _TELL:
            told = time.monotonic()
            progress(f"still waiting for a ready webhook: {told - started:.0f} of {timeout} s")
        await asyncio.sleep(1.0)


async def registered(client: KubeClient, plan: InstallPlan, timeout: int) -> None:
    """Return when the leader has registered the webhooks. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.rbac import CONTROLLER
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.kube.client import NotFound
    from bizrq.registration import NAME

    until = time.monotonic() + timeout
    while True:
        try:
            await client.get(REGISTRATIONS, NAME)
        except NotFound:
            if time.monotonic() > until:
                raise Failure(
                    f"the controller has not registered the webhooks within {timeout} s, so nothing is refused; "
                    f"kubectl -n {plan.namespace} logs deployment/{CONTROLLER} says why",
                    EXIT_CLUSTER,
                ) from None
            await asyncio.sleep(1.0)
        else:
            return


async def established(client: KubeClient, obj: dict[str, Any]) -> None:
    """Return when the API server knows the kind, which a policy may take as parameters. Raise Failure if late."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of

    until = time.monotonic() + _ESTABLISHED
    while time.monotonic() < until:
        stored = await client.get(resource_of(obj), obj["metadata"]["name"])
        conditions = (stored.get("status") or {}).get("conditions") or ()
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        await asyncio.sleep(0.1)
    why = f"{named(obj)} is not established after {_ESTABLISHED:.0f} s: kubectl describe says why"
    raise Failure(why, EXIT_CLUSTER)


async def gone(client: KubeClient, obj: dict[str, Any]) -> None:
    """Return when a CRD is deleted with all of its objects. Raise Failure after a timeout."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    progress(f"waiting up to {_GONE:.0f} s until {named(obj)} is deleted with all of its objects")
    until = time.monotonic() + _GONE
    with contextlib.suppress(NotFound):
        while time.monotonic() < until:
            await client.get(resource_of(obj), obj["metadata"]["name"])
            await asyncio.sleep(0.2)
        raise Failure(
            f"{named(obj)} still exists after {_GONE:.0f} s: a finalizer keeps one of its objects", EXIT_CLUSTER
        )
