"""Knative Service: an estimate. The Deployments of its revisions are charged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet, pod_set_of_template
from bizrq.workloads.validation import MAX_COUNT, child_path, describe_value, expect_list, expect_map, malformed

DESCRIPTION = (
    "an estimate: the larger of the annotations min-scale and initial-scale (1 if absent) times `spec.template` "
    "with its queue-proxy. The Deployments of its revisions pay"
)

#: The sidecar that Knative adds, with the defaults of its config-deployment.
_QUEUE = {"name": "queue-proxy", "resources": {"requests": {"cpu": "25m"}}}
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the pods that a revision starts with: its minimum scale, or its initial scale, which is 1 by default."""
    path = "spec.template"
    pods = pod_set_of_template("revision", 1, expect_map(obj.get("spec"), "spec").get("template"), path)
    count = max(
        _scale(pods.annotations, ("min-scale", "minScale"), 0),
        _scale(pods.annotations, ("initial-scale", "initialScale"), 1),
    )
    own = expect_list(pods.spec.get("containers"), child_path(pods.path, "containers"))
    return [replace(pods, count=count, spec={**pods.spec, "containers": [*own, _QUEUE]})]


def most(pods: PodSet) -> int:
    """Return the most pods that the revision of these may have; 0 is no bound."""
    return _scale(pods.annotations, ("max-scale", "maxScale"), 0)


def _scale(annotations: Mapping[str, Any], spellings: Sequence[str], default: int) -> int:
    """Return the number of an annotation in the first of its spellings that is present."""
    keys = [key for what in spellings if (key := f"autoscaling.knative.dev/{what}") in annotations]
    if not keys:
        return default
    key = keys[0]
    text = annotations[key]
    if not isinstance(text, str) or not _WHOLE.fullmatch(text) or int(text) > MAX_COUNT:
        raise malformed(
            f"spec.template.metadata.annotations.{key}", f"must be a whole number, not {describe_value(text)}"
        )
    return int(text)
