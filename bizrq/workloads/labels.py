"""Read the labels by which a workload names its group and its models.

This file alone reads them. It does not know which groups or models exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from bizrq.units.text import printable
from bizrq.workloads.validation import (
    Malformed,
    describe_value,
    expect_map,
    expect_text,
    get_path,
    malformed,
    suggestion,
)

LABEL: Final = "biz.group.resource.quota"
#: The label of a Namespace whose workloads must all charge a group, with the value "true".
REQUIRED: Final = f"{LABEL}/required"
MODEL_LABELS: Final[Mapping[str, str]] = {
    "cpu": f"{LABEL}/cpu-type",
    "memory": f"{LABEL}/memory-type",
    "gpu": f"{LABEL}/gpu-type",
}

#: What the keys of our labels begin with.
PREFIX: Final = "biz.group.resource."
#: Every key of ours.
KNOWN: Final = (LABEL, *MODEL_LABELS.values(), REQUIRED)

#: Models by what they are of: "cpu", "gpu" or "memory", sorted.
Models: TypeAlias = tuple[tuple[str, str], ...]

_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def labels_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return `metadata.labels`. Raises Malformed where either is no map.

    The API server gives a Job without labels those of its pod template (kubernetes `batch/v1/defaults.go`).
    """
    labels = expect_map(expect_map(obj.get("metadata"), "metadata").get("labels"), "metadata.labels")
    if labels or (obj.get("kind"), obj.get("apiVersion")) != ("Job", "batch/v1"):
        return labels
    keys = ("spec", "template", "metadata", "labels")
    return expect_map(get_path(obj, keys), ".".join(keys))


def group_of(obj: Mapping[str, Any]) -> str | None:
    """Return the group that an object's label names; None without a label or with an empty one. Raises Malformed."""
    return label_value(labels_of(obj), LABEL)


def unknown_keys(obj: object) -> list[str]:
    """Return the keys like ours that nothing reads, of an object's labels and of those of its templates, sorted."""
    found: set[str] = set()
    rest = [obj]
    while rest:
        each = rest.pop()
        if isinstance(each, list):
            rest += each
        elif isinstance(each, dict):
            rest += each.values()
            metadata = each.get("metadata")
            labels = metadata.get("labels") if isinstance(metadata, dict) else None
            if isinstance(labels, dict):
                found |= {key for key in labels if isinstance(key, str) and key.startswith(PREFIX)}
    return sorted(found - {*KNOWN})


def unknown_label(key: str) -> str:
    """Return the sentence about a key like ours that nothing reads."""
    return f"bizrq reads no label {printable(key)}, so it has no effect{suggestion(key, KNOWN)}"


def model_of(labels: Mapping[str, Any], what: str) -> str | None:
    """Return the model of "cpu", "memory" or "gpu" that labels declare. Raises Malformed."""
    return label_value(labels, MODEL_LABELS[what])


def models_of(obj: Mapping[str, Any]) -> Models:
    """Return the models that an object's labels declare; none where they cannot be read."""
    try:
        labels = labels_of(obj)
        found = ((what, model_of(labels, what)) for what in sorted(MODEL_LABELS))
        return tuple((what, model) for what, model in found if model is not None)
    except Malformed:
        return ()


def with_models(obj: Mapping[str, Any], models: Models) -> dict[str, Any]:
    """Return an object with the models of its payer, where it declares none itself. Raises Malformed."""
    return inheriting(obj, {MODEL_LABELS[what]: model for what, model in models})


def inheriting(obj: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the model labels of what pays for it, where it has none itself. Raises Malformed."""
    metadata, labels = expect_map(obj.get("metadata"), "metadata"), labels_of(obj)
    # As for a role: an empty label names no model, so it hides none.
    inherited = {key: above[key] for key in MODEL_LABELS.values() if above.get(key) and not labels.get(key)}
    return {**obj, "metadata": {**metadata, "labels": {**labels, **inherited}}}


def role_labels(labels: Mapping[str, Any], template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a workload's labels for one role: a model in the role's pod template has precedence."""
    own = {key: template[key] for key in MODEL_LABELS.values() if template.get(key)}
    return {**labels, **own} if own else labels


def label_value(labels: Mapping[str, Any], key: str) -> str | None:
    """Return the value of one label; None where it is absent or empty. Raises Malformed for an invalid value."""
    value = labels.get(key)
    if not value and (value is None or value == ""):
        return None
    text = expect_text(value, f"metadata.labels.{key}")
    if not _VALUE.fullmatch(text):
        raise malformed(
            f"metadata.labels.{key}",
            f"{describe_value(text)} is no label value: write at most 63 letters, digits, '-', '_' or '.', "
            "with a letter or digit at both ends",
        )
    return text
