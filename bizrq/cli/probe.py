"""A dry run that only our webhooks refuse: so the API server reaches them, and trusts their certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

NAME = "bizrq-readiness-probe"
#: What no resource of Kubernetes or of a vendor is called.
_UNKNOWN = "requests.nvidia.com/gpux"
#: How an API server begins the refusal of a webhook.
_REFUSED = "denied the request"


async def not_asked(client: KubeClient) -> str:
    """Return "" where a webhook of ours refuses the probe, else what the API server says instead.

    Raise Unreachable where the API server does not answer.
    """
    from bizrq.api import group as wire
    from bizrq.kube.client import ApiError
    from bizrq.store.groups import GROUPS

    probe = {
        "apiVersion": wire.API_VERSION,
        "kind": wire.KIND,
        "metadata": {"name": NAME},
        "spec": {"hard": {_UNKNOWN: "1"}},
    }
    try:
        await client.create(GROUPS, probe, dry_run=True)
    except ApiError as error:
        return "" if _REFUSED in error.message else error.message
    return "it accepts a group that a webhook would refuse"
