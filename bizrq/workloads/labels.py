"""The labels by which a workload says whom it charges and which models it uses.

This file alone reads them. It does not know which groups or models there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bizrq.workloads.validation import a_map, a_text, at, malformed, show

LABEL: Final = "biz.group.resource.quota"
#: On a Namespace, with the value "true": every workload there has to charge a group.
REQUIRED: Final = f"{LABEL}/required"
MODEL_LABELS: Final[Mapping[str, str]] = {
    "cpu": f"{LABEL}/cpu-type",
    "memory": f"{LABEL}/memory-type",
    "gpu": f"{LABEL}/gpu-type",
}

_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def labels_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """`metadata.labels`; raises Malformed where either is no map.

    The API server gives a Job without any those of its pod template (kubernetes `batch/v1/defaults.go`).
    """
    labels = a_map(a_map(obj.get("metadata"), "metadata").get("labels"), "metadata.labels")
    if labels or (obj.get("kind"), obj.get("apiVersion")) != ("Job", "batch/v1"):
        return labels
    keys = ("spec", "template", "metadata", "labels")
    return a_map(at(obj, keys), ".".join(keys))


def group_of(obj: Mapping[str, Any]) -> str | None:
    """The group that an object says it charges; no label and an empty one are None. Raises Malformed."""
    return label(labels_of(obj), LABEL)


def model_of(labels: Mapping[str, Any], what: str) -> str | None:
    """The model of "cpu", "memory" or "gpu" that labels declare. Raises Malformed."""
    return label(labels, MODEL_LABELS[what])


def of_role(labels: Mapping[str, Any], template: Mapping[str, Any]) -> Mapping[str, Any]:
    """A workload's labels as they hold for one role: a model that the role's pod template names goes before."""
    own = {key: template[key] for key in MODEL_LABELS.values() if template.get(key)}
    return {**labels, **own} if own else labels


def label(labels: Mapping[str, Any], key: str) -> str | None:
    """The value of one label; absent and empty are None. Raises Malformed where it is no label value."""
    value = labels.get(key)
    if not value and (value is None or value == ""):
        return None
    text = a_text(value, f"metadata.labels.{key}")
    if not _VALUE.fullmatch(text):
        raise malformed(
            f"metadata.labels.{key}",
            f"{show(text)} is no label value: write at most 63 letters, digits, '-', '_' or '.', "
            "with a letter or digit at both ends",
        )
    return text
