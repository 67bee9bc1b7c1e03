"""Pods that a workload may have for a while, beyond those that it asks for.

This file alone knows how many more there are while a new version replaces an old one (policy `surge: count`), and up
to what an elastic job may grow (policy `elastic: max`). By default neither is charged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import MOST, a_count, a_flag, a_map, a_text, at, malformed, show

_PERCENT = re.compile(r"([0-9]{1,5})%", re.ASCII)


def at_most(obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet], config: CountingConfig) -> Sequence[PodSet]:
    """The sets of pods with as many as the policies say to charge. Raises Malformed."""
    if config.elastic == "max" and adapter.elastic_max is not None:
        sets = _grown(obj, adapter, sets)
    if config.surge == "count" and adapter.surge is not None:
        sets = _surged(obj, adapter.surge, sets)
    return sets


def _grown(obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet]) -> Sequence[PodSet]:
    """The role that /scale writes, at the most that the job's elastic policy allows."""
    place = adapter.elastic_max
    most = at(obj, place.keys) if place is not None else None
    if place is None or most is None or not adapter.scale or len(adapter.scale) < 2:
        return sets
    number, role = a_count(most, str(place)), adapter.scale[-2].casefold()
    return [replace(s, count=max(s.count, number)) if s.name.casefold() == role else s for s in sets]


def _surged(obj: dict[str, Any], how: str, sets: Sequence[PodSet]) -> Sequence[PodSet]:
    spec = a_map(obj.get("spec"), "spec")
    given = spec.get("replicas")
    replicas = 1 if given is None else a_count(given, "spec.replicas")
    if how == "twice":
        more = replicas = 1
    elif how == "deployment":
        more = _of_deployment(a_map(spec.get("strategy"), "spec.strategy"), replicas)
    elif how == "rollout":
        more = _of_rollout(a_map(spec.get("strategy"), "spec.strategy"), replicas)
    else:
        path = "spec.rolloutStrategy.rollingUpdateConfiguration"
        strategy = a_map(spec.get("rolloutStrategy"), "spec.rolloutStrategy")
        rolling = a_map(strategy.get("rollingUpdateConfiguration"), path)
        more = _of(rolling.get("maxSurge"), 0, replicas, f"{path}.maxSurge")
    if not replicas or not more:
        return sets
    surged = [replace(s, count=s.count // replicas * (replicas + more)) for s in sets]
    if any(s.count > MOST for s in surged):
        raise malformed("spec", f"asks for more than {MOST} pods")
    return surged


def _of_deployment(strategy: dict[str, Any], replicas: int) -> int:
    if a_text(strategy.get("type"), "spec.strategy.type") == "Recreate":
        return 0
    path = "spec.strategy.rollingUpdate"
    return _of(a_map(strategy.get("rollingUpdate"), path).get("maxSurge"), "25%", replicas, f"{path}.maxSurge")


def _of_rollout(strategy: dict[str, Any], replicas: int) -> int:
    """Both versions in full where traffic is switched or shared out, unless the old one shrinks; else the surge."""
    canary = a_map(strategy.get("canary"), "spec.strategy.canary")
    shrinks = a_flag(canary.get("dynamicStableScale"), "spec.strategy.canary.dynamicStableScale")
    if strategy.get("blueGreen") is not None or (canary.get("trafficRouting") is not None and not shrinks):
        return replicas
    return _of(canary.get("maxSurge"), "25%", replicas, "spec.strategy.canary.maxSurge")


def _of(given: object, default: int | str, replicas: int, path: str) -> int:
    """A number, or a percentage of the replicas, rounded up."""
    value = default if given is None else given
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        if match is None:
            raise malformed(path, f"must be a whole number or a percentage, not {show(value)}")
        return -(-replicas * int(match[1]) // 100)
    return a_count(value, path)
