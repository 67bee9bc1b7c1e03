"""Dry runs that only our webhooks refuse: so the API server reaches them, and trusts their certificate.

This file alone decides what an answer of the API server says about the webhooks. Nothing is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient, Resource

#: How an API server begins the refusal of a webhook.
_REFUSED = "denied the request"
#: How it begins to say that a webhook could not be asked.
_FAILED = "failed calling webhook"
#: How RBAC refuses a request, before any webhook is asked.
UNAUTHORIZED = re.compile(r"forbidden: User .+ cannot ")
#: What is said where no webhook is asked.
ACCEPTED = "it accepts a group that a webhook would refuse"


@dataclass(frozen=True, slots=True)
class Probed:
    """An answer to the probe: whether a webhook of ours was asked, None where that is not known; and what was said."""

    asked: bool | None
    said: str = ""


async def not_asked(client: KubeClient) -> str:
    """Return "" where a webhook of ours refuses the probe, else what the API server says instead.

    Raise Unreachable where the API server does not answer.
    """
    probed = await of_groups(client)
    return "" if probed.asked else probed.said


async def of_groups(client: KubeClient, timeout: float | None = None) -> Probed:
    """Create a group as a dry run. Who may not create groups does not learn it. Raise Unreachable."""
    from bizrq.probe import group_probe
    from bizrq.store.groups import GROUPS

    said = await _said(client, GROUPS, group_probe(), timeout)
    if said is None:
        return Probed(False, ACCEPTED)
    if _REFUSED in said:
        return Probed(True)
    return Probed(None if UNAUTHORIZED.search(said) else False, said)


async def of_workloads(client: KubeClient, namespace: str, timeout: float | None = None) -> Probed:
    """Create a Deployment of a group that does not exist as a dry run. Raise Unreachable.

    Where it is accepted nothing is known: perhaps the namespace is not managed.
    """
    from bizrq.kube.client import Resource
    from bizrq.probe import NAME, workload_probe

    probe = workload_probe(namespace)
    said = await _said(client, Resource("apps", "v1", "deployments", "Deployment"), probe, timeout)
    if said is None:
        return Probed(None, f"a dry run in namespace {namespace} is accepted: perhaps it is not managed")
    if _REFUSED in said and NAME in said:
        return Probed(True)
    return Probed(False if _FAILED in said else None, said)


async def _said(client: KubeClient, resource: Resource, probe: dict[str, Any], timeout: float | None) -> str | None:
    """Return the message of the API server's refusal, None where it accepts the object."""
    from bizrq.kube.client import ApiError

    try:
        await client.create(resource, probe, dry_run=True, timeout=timeout)
    except ApiError as error:
        return error.message
    return None
