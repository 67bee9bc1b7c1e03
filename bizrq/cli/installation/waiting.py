"""Wait for what an installation or its removal needs of the cluster.

This file alone decides how long a verb waits, and what it waits for and what it says at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bizrq import registration
from bizrq.cli.apply import named
from bizrq.cli.manifests_of_bizrq import resource_of
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure
from bizrq.cli.output.waits import Wait
from bizrq.cli.rbac import CONTROLLER, WEBHOOKS
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient, NotFound, Resource
from controller.registration import is_rolled_out

Object = dict[str, Any]

#: Seconds to wait for the deletion of a CRD, and until it is established.
_GONE, _ESTABLISHED = 120.0, 60.0
#: Seconds after which a wait that seldom takes one is told.
_SELDOM = 2.0
_DEPLOYMENTS = resource_of({"kind": "Deployment"})


async def until(
    reached: Callable[[], Awaitable[bool]],
    seconds: float,
    late: str,
    *,
    what: str,
    more: str = "",
    quiet: float = 0.0,
    pause: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Return when the condition is met, which is asked at least once. Raise Failure with the text `late` otherwise.

    `what` is said after `quiet` seconds, with `more`, and again from time to time.
    """
    wait, started = Wait(what, seconds, more=more, quiet=quiet, clock=clock), clock()
    wait.say()
    while not await reached():
        if clock() > started + seconds:
            raise Failure(late, EXIT_CLUSTER)
        wait.say()
        await sleep(pause)


async def for_controllers(client: KubeClient, namespace: str, timeout: int) -> None:
    """Return when all controllers are as they were applied. Raise Failure after `timeout` seconds."""

    async def are_rolled_out() -> bool:
        return is_rolled_out(await client.get(_DEPLOYMENTS, CONTROLLER, namespace))

    late = (
        f"the rollout of {CONTROLLER} did not end within {timeout} s, so {WEBHOOKS} is as it was before; check "
        f"kubectl -n {namespace} describe pods, then run install again, or with --no-wait"
    )
    what = f"for the rollout of deployment {CONTROLLER}"
    await until(are_rolled_out, timeout, late, what=what, more=f"; {WEBHOOKS} follows")


async def for_webhooks(client: KubeClient, namespace: str, timeout: int) -> None:
    """Return when a webhook is ready. Raise Failure after `timeout` seconds."""

    async def is_one_ready() -> bool:
        stored = await client.get(_DEPLOYMENTS, WEBHOOKS, namespace)
        return bool((stored.get("status") or {}).get("availableReplicas"))

    late = (
        f"no webhook became ready within {timeout} s, so none is registered and nothing is refused; check "
        f"kubectl -n {namespace} describe pods, then run install again, or with --no-wait"
    )
    await until(is_one_ready, timeout, late, what="for a ready webhook", more=f" of deployment {WEBHOOKS}")


async def for_registration(client: KubeClient, namespace: str, timeout: int) -> None:
    """Return when the leader has registered the webhooks. Raise Failure after `timeout` seconds."""

    async def is_registered() -> bool:
        return await _exists(client, REGISTRATIONS, registration.NAME)

    late = (
        f"the controller has not registered the webhooks within {timeout} s, so nothing is refused; "
        f"kubectl -n {namespace} logs deployment/{CONTROLLER} says why"
    )
    await until(is_registered, timeout, late, what="until the controller has registered the webhooks")


async def for_established(client: KubeClient, crd: Object) -> None:
    """Return when the API server knows the kind, which a policy may take as parameters. Raise Failure if late."""

    async def is_established() -> bool:
        stored = await client.get(resource_of(crd), crd["metadata"]["name"])
        conditions = (stored.get("status") or {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    late = f"{named(crd)} is not established after {_ESTABLISHED:.0f} s: kubectl describe says why"
    what = f"until {named(crd)} is established"
    await until(is_established, _ESTABLISHED, late, what=what, quiet=_SELDOM, pause=0.1)


async def for_deletion(client: KubeClient, crd: Object) -> None:
    """Return when a CRD is deleted with all of its objects. Raise Failure after a timeout."""

    async def is_deleted() -> bool:
        return not await _exists(client, resource_of(crd), crd["metadata"]["name"])

    late = f"{named(crd)} still exists after {_GONE:.0f} s: a finalizer keeps one of its objects"
    what = f"until {named(crd)} is deleted with all of its objects"
    await until(is_deleted, _GONE, late, what=what, pause=0.2)


async def _exists(client: KubeClient, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, name)
    except NotFound:
        return False
    return True
