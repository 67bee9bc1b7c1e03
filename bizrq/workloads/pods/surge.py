"""Count pods that a workload may have for a while in addition to those that it asks for.

This file alone knows how many pods an update adds (policy `surge: count`), and how far an elastic job may grow (policy
`elastic: max`). By default neither is charged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import (
    MAX_COUNT,
    describe_value,
    expect_bool,
    expect_count,
    expect_map,
    expect_text,
    get_path,
    malformed,
)

_PERCENT = re.compile(r"([0-9]{1,5})%", re.ASCII)


def with_policies(
    obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet], config: CountingConfig
) -> Sequence[PodSet]:
    """Return the sets of pods with the counts that the policies charge. Raises Malformed."""
    if config.elastic == "max" and adapter.elastic_max is not None:
        sets = _grown(obj, adapter, sets)
    if config.surge == "count" and adapter.surge is not None:
        sets = _surged(obj, adapter.surge, sets)
    return sets


def _grown(obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet]) -> Sequence[PodSet]:
    """Set the role that /scale writes to the most that the job's elastic policy allows."""
    place = adapter.elastic_max
    most = get_path(obj, place.keys) if place is not None else None
    if place is None or most is None or not adapter.scale or len(adapter.scale) < 2:
        return sets
    number, role = expect_count(most, str(place)), adapter.scale[-2].casefold()
    return [replace(s, count=max(s.count, number)) if s.name.casefold() == role else s for s in sets]


def _surged(obj: dict[str, Any], how: str, sets: Sequence[PodSet]) -> Sequence[PodSet]:
    spec = expect_map(obj.get("spec"), "spec")
    given = spec.get("replicas")
    replicas = 1 if given is None else expect_count(given, "spec.replicas")
    rule = SURGES[how]
    if not rule.by_replicas:
        replicas = 1
    more = rule.more(spec, replicas)
    if not replicas or not more:
        return sets
    surged = [replace(s, count=s.count // replicas * (replicas + more)) for s in sets]
    if any(s.count > MAX_COUNT for s in surged):
        raise malformed("spec", f"asks for more than {MAX_COUNT} pods")
    return surged


def _of_deployment(spec: dict[str, Any], replicas: int) -> int:
    strategy = expect_map(spec.get("strategy"), "spec.strategy")
    if expect_text(strategy.get("type"), "spec.strategy.type") == "Recreate":
        return 0
    path = "spec.strategy.rollingUpdate"
    return _of(expect_map(strategy.get("rollingUpdate"), path).get("maxSurge"), "25%", replicas, f"{path}.maxSurge")


def _of_rollout(spec: dict[str, Any], replicas: int) -> int:
    """Return all replicas where traffic is switched or shared and the old version stays; else the canary's surge."""
    strategy = expect_map(spec.get("strategy"), "spec.strategy")
    canary = expect_map(strategy.get("canary"), "spec.strategy.canary")
    shrinks = expect_bool(canary.get("dynamicStableScale"), "spec.strategy.canary.dynamicStableScale")
    if strategy.get("blueGreen") is not None or (canary.get("trafficRouting") is not None and not shrinks):
        return replicas
    return _of(canary.get("maxSurge"), "25%", replicas, "spec.strategy.canary.maxSurge")


def _of_leaderworkerset(spec: dict[str, Any], replicas: int) -> int:
    path = "spec.rolloutStrategy.rollingUpdateConfiguration"
    strategy = expect_map(spec.get("rolloutStrategy"), "spec.rolloutStrategy")
    rolling = expect_map(strategy.get("rollingUpdateConfiguration"), path)
    return _of(rolling.get("maxSurge"), 0, replicas, f"{path}.maxSurge")


def _of(given: object, default: int | str, replicas: int, path: str) -> int:
    """Return a number, or a percentage of the replicas, rounded up."""
    value = default if given is None else given
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        if match is None:
            raise malformed(path, f"must be a whole number or a percentage, not {describe_value(value)}")
        return -(-replicas * int(match[1]) // 100)
    return expect_count(value, path)


@dataclass(frozen=True, slots=True)
class SurgeRule:
    """How many more replicas an update may add. `description` is for the table of docs/kinds.md.

    `more` takes the object's spec and its replicas. Without `by_replicas` the whole object is one replica.
    """

    description: str
    more: Callable[[dict[str, Any], int], int]
    by_replicas: bool = True


#: By the `surge` of a kind.
SURGES: Final[Mapping[str, SurgeRule]] = {
    "deployment": SurgeRule("`maxSurge` of its rolling update", _of_deployment),
    "leaderworkerset": SurgeRule("`maxSurge` groups", _of_leaderworkerset),
    "rollout": SurgeRule(
        "the canary's `maxSurge`; all over again where traffic is routed or for blue-green", _of_rollout
    ),
    "twice": SurgeRule("a second cluster", lambda _spec, _replicas: 1, by_replicas=False),
}
