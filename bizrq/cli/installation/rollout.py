"""Apply a planned installation to a cluster.

This file alone decides the order in which an installation takes effect, and what each step waits for.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bizrq.api import priority
from bizrq.cli.apply import apply, named, report
from bizrq.cli.installation import waiting
from bizrq.cli.installation.deletion import delete, prune
from bizrq.cli.installation.installed import Installed
from bizrq.cli.installation.planned import Planned, removed
from bizrq.cli.manifests_of_bizrq import outdated, resource_of
from bizrq.cli.manifests_of_web import keys
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure, warn
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient
from bizrq.store import pause
from bizrq.store.processes import WEBHOOKS

Object = dict[str, Any]


_CRD = "CustomResourceDefinition"
#: The kinds that come first: a cluster may reject API priority, and the policies refer to a CRD.
_FIRST = (*priority.KINDS, _CRD)


async def roll_out(client: KubeClient, planned: Planned, installed: Installed, timeout: int | None) -> None:
    """Apply all objects, then delete what only an earlier install made. Raise Failure.

    Wait for the processes for up to `timeout` seconds each time, or not at all with None.
    """
    namespace = planned.plan.namespace
    await _apply_first(client, planned)
    await _apply_processes(client, planned, installed, timeout)
    if timeout is not None:
        await waiting.for_webhooks(client, namespace, timeout)
    await _remove_outdated(client, planned)
    if marker := await pause.read(client, namespace):
        warn(f"{marker}; the webhooks are not registered until bizrq resume")
    elif timeout is not None:
        await waiting.for_registration(client, namespace, timeout)


async def _apply_first(client: KubeClient, planned: Planned) -> None:
    """Apply API priority and the CRDs, and wait until these are established. Raise Failure."""
    for obj in planned.objects:
        if obj["kind"] in priority.KINDS:
            await _apply_priority(client, obj)
    definitions = [obj for obj in planned.objects if obj["kind"] == _CRD]
    for obj in definitions:
        await apply(client, obj)
    for obj in definitions:
        await waiting.for_established(client, obj)


async def _apply_processes(client: KubeClient, planned: Planned, installed: Installed, timeout: int | None) -> None:
    """Apply the rights and the processes; running webhooks change after the controllers. Raise Failure if late."""
    namespace, has_webhooks = planned.plan.namespace, WEBHOOKS in installed.deployments
    for obj in planned.objects:
        if obj["kind"] in _FIRST:
            continue
        if timeout is not None and has_webhooks and _is_webhooks(obj):
            await waiting.for_controllers(client, namespace, timeout)
        await apply(client, obj)
    if planned.web:
        await _make_keys(client, namespace)
    for obj in planned.web:
        await apply(client, obj)


async def _remove_outdated(client: KubeClient, planned: Planned) -> None:
    """Delete what earlier installs, and processes of earlier versions, made."""
    for line in removed(await prune(client, planned.all_objects)):
        warn(line)
    for obj in outdated(planned.plan.namespace):
        await delete(client, obj)


def _is_webhooks(obj: Object) -> bool:
    return obj["kind"] == "Deployment" and obj["metadata"]["name"] == WEBHOOKS


async def _apply_priority(client: KubeClient, obj: Object) -> None:
    """Apply an object of API priority. Raise Failure, with the field that the cluster rejects."""
    try:
        await apply(client, obj)
    except ApiError as error:
        causes = [c for c in error.details.get("causes") or () if isinstance(c, dict) and c.get("field")]
        why = "; ".join(f"{c['field']}: {c.get('message', '')}" for c in causes) or str(error)
        raise Failure(
            f"{named(obj)} is rejected: {why}; nothing but the objects listed above is installed; run install with "
            '--no-api-priority, and see docs/operations.md, "API priority"',
            EXIT_CLUSTER,
        ) from None


async def _make_keys(client: KubeClient, namespace: str) -> None:
    """Make the Secret with the keys of the web UI, where there is none: other keys would sign everybody out."""
    secret = keys(namespace)
    with contextlib.suppress(AlreadyExists):
        await client.create(resource_of(secret), secret)
        report(secret, "created")
