"""Decide how many replicas each ReplicaSet of a Deployment has next.

It decides numbers only. Pure. The rules are those of kubernetes pkg/controller/deployment (rolling.go, recreate.go,
sync.go, util/deployment_util.go); a ReplicaSet's annotations say what its Deployment asked for when it was scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

DESIRED, MAX = "deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas"


@dataclass(frozen=True)
class Size:
    """A ReplicaSet's replicas, its available pods, and what its Deployment asked for; None is not known."""

    replicas: int
    available: int = 0
    desired: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class Bounds:
    """A Deployment's replicas, and how many pods more or fewer a rolling update may have."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.replicas + self.surge if self.replicas > 0 else 0


def bounds(spec: Json) -> Bounds:
    """Read the bounds: a surge rounds up, what may be unavailable rounds down, and one of them is not 0."""
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(replicas, 0, replicas)
    rolling = strategy.get("rollingUpdate") or {}
    surge = _amount(rolling.get("maxSurge", "25%"), replicas, math.ceil)
    unavailable = _amount(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    return Bounds(replicas, surge, unavailable if surge or unavailable else 1)


def size(replica_set: Json) -> Size:
    annotations = replica_set["metadata"].get("annotations") or {}

    def noted(name: str) -> int | None:
        text = annotations.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else None

    status = replica_set.get("status") or {}
    replicas = (replica_set.get("spec") or {}).get("replicas", 1)
    return Size(replicas, status.get("availableReplicas", 0), noted(DESIRED), noted(MAX))


def is_scaled(limits: Bounds, every: Sequence[Size]) -> bool:
    """Return True where the Deployment's replicas changed since its ReplicaSets were scaled."""
    return any(each.desired not in (None, limits.replicas) for each in every if each.replicas > 0)


def first_size(limits: Bounds, others: Sequence[Size]) -> int:
    """Return the replicas of a ReplicaSet that is new."""
    return _grown(limits, Size(0), others)


def rolled(limits: Bounds, new: Size, old: Sequence[Size]) -> tuple[int, list[int]]:
    """Return the replicas of the new ReplicaSet and of the old ones, oldest first, one step on."""
    if new.replicas != limits.replicas:
        grown = limits.replicas if new.replicas > limits.replicas else _grown(limits, new, old)
        if grown != new.replicas:
            return grown, [each.replicas for each in old]
    total = new.replicas + sum(each.replicas for each in old)
    least = limits.replicas - limits.unavailable
    left = total - least - (new.replicas - new.available)
    sizes = [each.replicas for each in old]
    for number, each in enumerate(old):
        unhealthy = min(max(left, 0), max(0, each.replicas - each.available))
        sizes[number] -= unhealthy
        left -= unhealthy
    if left > 0:
        spare = new.available + sum(each.available for each in old) - least
        for number, _ in enumerate(old):
            gone = min(sizes[number], max(0, spare))
            sizes[number] -= gone
            spare -= gone
    return new.replicas, sizes


def scaled(limits: Bounds, every: Sequence[Size], newest: int | None, wanted: int) -> list[int]:
    """Return the replicas of all ReplicaSets, oldest first, after the Deployment was scaled or while it is paused.

    `newest` is the place of the one with the present template, `wanted` the Deployment's status.replicas.
    """
    sizes = [each.replicas for each in every]
    active = [number for number, each in enumerate(every) if each.replicas > 0]
    if len(active) < 2:
        only = active[0] if active else newest if newest is not None else len(every) - 1
        if only >= 0:
            sizes[only] = limits.replicas
        return sizes
    if newest is not None:
        new = every[newest]
        if new.replicas == limits.replicas == new.available and new.desired == limits.replicas:
            return [limits.replicas if number == newest else 0 for number in range(len(every))]
    missing = limits.most - sum(sizes)
    # The largest first; of equal ones the newest where pods are added, else the oldest.
    order = sorted(active, key=lambda number: (-every[number].replicas, -number if missing > 0 else number))
    added = 0
    for number in order if missing else ():
        share = _share(limits, every[number], wanted)
        part = min(share, missing - added) if missing > 0 else max(share, missing - added)
        sizes[number] += part
        added += part
    if order:
        sizes[order[0]] = max(0, sizes[order[0]] + missing - added)
    return sizes


def _grown(limits: Bounds, new: Size, others: Sequence[Size]) -> int:
    room = limits.replicas + limits.surge - new.replicas - sum(each.replicas for each in others)
    return new.replicas + max(0, min(room, limits.replicas - new.replicas))


def _share(limits: Bounds, each: Size, wanted: int) -> int:
    """Return how much of a change one ReplicaSet takes, by its part of all pods."""
    if limits.replicas == 0:
        return -each.replicas
    before = each.most or wanted
    return round(each.replicas * limits.most / before) - each.replicas if before else 0


def _amount(value: Any, replicas: int, to_whole: Any) -> int:
    if isinstance(value, str):
        percent = value.removesuffix("%")
        return to_whole(int(percent) * replicas / 100) if percent.isascii() and percent.isdigit() else 0
    return value if isinstance(value, int) else 0
