"""Decide if the controller of an object has acted on the spec that is stored.

This file alone reads that from `status.observedGeneration`. Not every kind has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_observed(obj: Mapping[str, Any]) -> bool | None:
    """Return True once the status is of the stored spec; None where it does not say. Raises nothing.

    A Rollout writes the number as text.
    """
    metadata, status = obj.get("metadata") or {}, obj.get("status")
    observed = _number(status.get("observedGeneration")) if isinstance(status, dict) else None
    if observed is None:
        return None
    return observed >= (_number(metadata.get("generation")) or 0)


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
