"""What the command line sends to find out whether webhooks answer: dry runs that only they refuse.

This file alone says what a probe is. The command line sends it, and the webhooks know it again.
"""

from __future__ import annotations

from typing import Any, Final

from bizrq.api import group as wire
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Reason
from bizrq.workloads.kinds.declaration import DEPLOYMENT
from bizrq.workloads.labels import LABEL, labels_of
from bizrq.workloads.validation import Malformed

NAME: Final = "bizrq-readiness-probe"
#: What no resource of Kubernetes or of a vendor is called.
_UNKNOWN: Final = {"requests.nvidia.com/gpux": "1"}


def group_probe() -> dict[str, Any]:
    """Return a group that the webhooks refuse and the CRD's schema does not."""
    return {
        "apiVersion": wire.API_VERSION,
        "kind": wire.KIND,
        "metadata": {"name": NAME},
        "spec": {"hard": dict(_UNKNOWN)},
    }


def workload_probe(namespace: str) -> dict[str, Any]:
    """Return a Deployment of a group that does not exist."""
    labels = {LABEL: NAME}
    container = {"name": "none", "image": "none", "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def is_refused_probe(request: Request, denied: Denied) -> bool:
    """Return True for the refusal of a probe, for the reason that a probe is refused for, and of nothing else."""
    sent = request.object or {}
    if not request.dry_run or request.operation != "CREATE" or request.sub_resource or request.name != NAME:
        return False
    if (request.kind.group, request.kind.kind) == (wire.API_GROUP, wire.KIND):
        spec = sent.get("spec")
        return denied.reason is Reason.BAD_HARD and isinstance(spec, dict) and spec.get("hard") == _UNKNOWN
    if (request.kind.group, request.kind.kind) != DEPLOYMENT or denied.reason is not Reason.NO_GROUP:
        return False
    try:
        return labels_of(sent) == {LABEL: NAME}
    except Malformed:
        return False
