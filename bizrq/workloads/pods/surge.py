"""Count pods that a workload may have for a while in addition to those that it asks for.

This file alone knows how many pods an update adds, which of them are charged, and how far an elastic job may grow
(policy `elastic: max`). By default only surge beyond the declared pods is charged, with `surge: count` all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import (
    MAX_COUNT,
    Malformed,
    describe_value,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    expect_text,
    get_path,
    malformed,
)

T = TypeVar("T")

_PERCENT = re.compile(r"([0-9]{1,5})%", re.ASCII)
#: What plainly adds no more than the replicas. Tuples: a value of a client may have no hash.
_SMALL: Final = (None, "25%", "100%", "0%", "50%")
_STRATEGIES: Final = (None, "RollingUpdate", "Recreate")
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def surge_demand(declared: int, surge: int) -> int:
    """Return how many pods of a declared surge are demand: those beyond `declared`, while any are declared.

    So `maxSurge: 200` with two replicas is charged when it is written (docs/ownership.md, law 4).
    """
    return max(0, surge - declared) if declared > 0 else 0


def surge_of_deployment(obj: Mapping[str, Any], replicas: int) -> int:
    """Return how many pods a Deployment's rolling update adds. A field that cannot be read adds as many again."""
    spec, fields = obj.get("spec"), _Fields(replicas)
    surge = _of_deployment(spec if isinstance(spec, dict) else {}, fields)
    return max(replicas, surge) if fields.problems else surge


def is_surging(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Return True where an object's controller makes the new version while the old one runs.

    A kind with a pod per node does so if it declares a surge. One that cannot be read is none.
    """
    rule = SURGES.get(adapter.surge) if adapter.surge is not None else None
    if rule is None or not rule.per_node:
        return rule is not None
    spec, fields = obj.get("spec"), _Fields(1)
    return isinstance(spec, dict) and rule.more(spec, fields) > 0 and not fields.problems


def with_policies(
    obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet], config: CountingConfig
) -> tuple[Sequence[PodSet], tuple[str, ...]]:
    """Return the sets of pods with the counts that are charged, and what of the surge cannot be read.

    A field of the surge that cannot be read counts as the largest that it can mean. Raises Malformed for all others.
    """
    if config.elastic == "max" and adapter.elastic_max is not None:
        sets = _grown(obj, adapter, sets)
    return _surged(obj, adapter.surge, sets, config) if adapter.surge is not None else (sets, ())


def _grown(obj: dict[str, Any], adapter: Adapter, sets: Sequence[PodSet]) -> Sequence[PodSet]:
    """Set the role that /scale writes to the most that the job's elastic policy allows."""
    place = adapter.elastic_max
    most = get_path(obj, place.keys) if place is not None else None
    if place is None or most is None or not adapter.scale or len(adapter.scale) < 2:
        return sets
    number, role = expect_count(most, str(place)), adapter.scale[-2].casefold()
    return [replace(s, count=max(s.count, number)) if s.name.casefold() == role else s for s in sets]


def _surged(
    obj: dict[str, Any], how: str, sets: Sequence[PodSet], config: CountingConfig
) -> tuple[Sequence[PodSet], tuple[str, ...]]:
    rule, spec = SURGES[how], obj.get("spec")
    if config.surge != "count" and type(spec) is dict and rule.is_plain(spec):
        return sets, ()
    spec = expect_map(spec, "spec")
    replicas = _replicas(spec, rule, sets)
    fields = _Fields(replicas)
    surge = rule.more(spec, fields)
    problems = tuple(fields.problems)
    if problems:
        surge = max(replicas, surge)
    more = surge if config.surge == "count" else surge_demand(replicas, surge)
    if not replicas or not more:
        return sets, problems
    surged = [replace(s, count=s.count + s.count // replicas * more, surge=s.count // replicas * more) for s in sets]
    if any(s.count > MAX_COUNT for s in surged):
        raise malformed("spec", f"asks for more than {MAX_COUNT} pods")
    return surged, problems


def _replicas(spec: dict[str, Any], rule: SurgeRule, sets: Sequence[PodSet]) -> int:
    """Return of how many equal parts the object is: replicas, nodes, or one. Raises Malformed."""
    if rule.per_node:
        return max((pods.count for pods in sets), default=0)
    given = spec.get("replicas")
    replicas = 1 if given is None else expect_count(given, "spec.replicas")
    return replicas if rule.by_replicas else 1


class _Fields:
    """Reads the fields of a surge. Each that cannot be read is a problem, and counts as the largest it can mean."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.problems: list[str] = []

    def map(self, value: object, path: str) -> dict[str, Any]:
        return self._read(expect_map, value, path, {})

    def list(self, value: object, path: str) -> Sequence[Any]:
        return self._read(expect_list, value, path, ())

    def text(self, value: object, path: str) -> str:
        return self._read(expect_text, value, path, "")

    def bool(self, value: object, path: str) -> bool:
        return self._read(expect_bool, value, path, False)

    def number(self, value: object, default: int | str, path: str) -> int:
        """Return a number, or a percentage of the replicas, rounded up."""
        given = default if value is None else value
        if not isinstance(given, str):
            return self._read(expect_count, given, path, self.replicas)
        if match := _PERCENT.fullmatch(given):
            return self.percent(int(match[1]))
        shown = describe_value(given)
        self.problems.append(f"{path}: must be a whole number or a percentage, not {shown}")
        number = _NUMBER.search(shown)
        # Some controllers read "200" as a percentage.
        return max(int(number[0]), self.percent(int(number[0]))) if number else self.replicas

    def percent(self, percentage: int) -> int:
        return -(-self.replicas * percentage // 100)

    def _read(self, expect: Callable[[object, str], T], value: object, path: str, otherwise: T) -> T:
        try:
            return expect(value, path)
        except Malformed as error:
            self.problems.append(str(error))
            return otherwise


def _of_deployment(spec: dict[str, Any], fields: _Fields) -> int:
    return _of_rolling_update(spec, fields, "strategy", off="Recreate", default="25%")


def _is_plain_deployment(spec: dict[str, Any]) -> bool:
    strategy = spec.get("strategy")
    if strategy is None:
        return True
    if type(strategy) is not dict or strategy.get("type") not in _STRATEGIES:
        return False
    rolling = strategy.get("rollingUpdate")
    return rolling is None or (type(rolling) is dict and rolling.get("maxSurge") in _SMALL)


def _of_daemonset(spec: dict[str, Any], fields: _Fields) -> int:
    """Return the surge, which adds no more than a pod to each node (kubernetes pkg/controller/daemon/update.go)."""
    return min(fields.replicas, _of_rolling_update(spec, fields, "updateStrategy", off="OnDelete", default=0))


def _of_rolling_update(spec: dict[str, Any], fields: _Fields, key: str, *, off: str, default: int | str) -> int:
    """Return the `maxSurge` of the strategy at `key`: none where its type is `off`."""
    strategy = fields.map(spec.get(key), f"spec.{key}")
    if fields.text(strategy.get("type"), f"spec.{key}.type") == off:
        return 0
    path = f"spec.{key}.rollingUpdate"
    rolling = fields.map(strategy.get("rollingUpdate"), path)
    return fields.number(rolling.get("maxSurge"), default, f"{path}.maxSurge")


def _of_rollout(spec: dict[str, Any], fields: _Fields) -> int:
    """Return all replicas where traffic is switched or shared and the old version stays; else the canary's surge.

    A preview or a step of the canary may state a larger number (Argo Rollouts, `utils/replicaset`).
    """
    strategy = fields.map(spec.get("strategy"), "spec.strategy")
    if strategy.get("blueGreen") is not None:
        path = "spec.strategy.blueGreen"
        preview = fields.map(strategy["blueGreen"], path).get("previewReplicaCount")
        return max(fields.replicas, fields.number(preview, 0, f"{path}.previewReplicaCount"))
    path = "spec.strategy.canary"
    canary = fields.map(strategy.get("canary"), path)
    shrinks = fields.bool(canary.get("dynamicStableScale"), f"{path}.dynamicStableScale")
    surge = fields.number(canary.get("maxSurge"), "25%", f"{path}.maxSurge")
    if canary.get("trafficRouting") is None:
        return surge
    most = surge if shrinks else fields.replicas
    for index, step in enumerate(fields.list(canary.get("steps"), f"{path}.steps")):
        where = f"{path}.steps[{index}]"
        scale = fields.map(fields.map(step, where).get("setCanaryScale"), f"{where}.setCanaryScale")
        most = max(most, fields.number(scale.get("replicas"), 0, f"{where}.setCanaryScale.replicas"))
        weight = fields.number(scale.get("weight"), 0, f"{where}.setCanaryScale.weight")
        most = max(most, fields.percent(weight))
    return most


def _of_leaderworkerset(spec: dict[str, Any], fields: _Fields) -> int:
    path = "spec.rolloutStrategy.rollingUpdateConfiguration"
    strategy = fields.map(spec.get("rolloutStrategy"), "spec.rolloutStrategy")
    rolling = fields.map(strategy.get("rollingUpdateConfiguration"), path)
    return fields.number(rolling.get("maxSurge"), 0, f"{path}.maxSurge")


@dataclass(frozen=True, slots=True)
class SurgeRule:
    """How many more replicas an update may add. `description` is for the table of docs/kinds.md.

    `more` takes the object's spec. Without `by_replicas` the whole object is one replica; with `per_node` it has as
    many as there are nodes that its pods fit. `in_one_child` is True where no second child has the surge: one is scaled
    up. `is_plain` returns True for a spec that plainly adds no more than its replicas, which most do: so most are
    counted fast.
    """

    description: str
    more: Callable[[dict[str, Any], _Fields], int]
    by_replicas: bool = True
    per_node: bool = False
    in_one_child: bool = False
    is_plain: Callable[[dict[str, Any]], bool] = lambda _spec: False


#: By the `surge` of a kind.
SURGES: Final[Mapping[str, SurgeRule]] = {
    "daemonset": SurgeRule(
        "`maxSurge` of its rolling update, no more than one for each node", _of_daemonset, per_node=True
    ),
    "deployment": SurgeRule("`maxSurge` of its rolling update", _of_deployment, is_plain=_is_plain_deployment),
    "leaderworkerset": SurgeRule("`maxSurge` groups", _of_leaderworkerset, in_one_child=True),
    "rollout": SurgeRule(
        "the canary's `maxSurge`; all over again, or what a step or preview adds, where traffic is routed",
        _of_rollout,
    ),
    "twice": SurgeRule("a second cluster", lambda _spec, _fields: 1, by_replicas=False),
}
