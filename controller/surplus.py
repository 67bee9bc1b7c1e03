"""What hangs below a workload and asks for more than the workload does: forged children, grown pods, what lags behind.

This file alone compares stored objects with what they made, level by level, and says what that adds to the workload's
cost. At each level the children of an owner together may ask for what their owner asks for, and while one replaces
another for the surge besides. What is counted so is truly held, so that a way round a quota (a forged ownerReference, a
resize in place, a template that shrinks under paused pods) shows in `used` however it got past admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from bizrq.quota import quantity, resources
from bizrq.quota.resources import Resources
from bizrq.workloads.adapters import Adapter, GroupKind
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.owners import MOST_HOPS
from bizrq.workloads.reach import child_demand, reach, surplus
from bizrq.workloads.roles import has_ended
from controller.cluster import POD, Cluster
from controller.pods import Pod

Object = dict[str, Any]
Path = tuple[tuple[Adapter, Object], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What a workload's children ask for beyond it, and which kinds of objects told that; empty where nothing."""

    resources: Resources = field(default_factory=dict)
    kinds: frozenset[GroupKind] = frozenset()
    finding: str = ""
    #: False where all of it is of owners that roll from one version to the next: their children follow with a lag.
    at_once: bool = False


NOTHING = Found()


@dataclass(slots=True)
class _Brood:
    """The children of one owner: what they ask for in all, how many ask, and the latest of them."""

    costs: list[Resources] = field(default_factory=list)
    asking: int = 0
    latest: tuple[str, str] = ("", "")


class Surplus:
    """Compares the workloads of a cluster with what is below them."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config

    def of(self, adapter: Adapter, workload: Object, charged: Resources, lookup: Lookup) -> Found:
        """What the workload's children ask for beyond what it is `charged`; nothing of one that has ended.

        A child that cannot be counted adds nothing, and one of a kind that does not pay is its own. Raises nothing.
        """
        if not adapter.creates or not adapter.pays or has_ended(workload, adapter):
            return NOTHING
        owners: dict[str, Path] = {}
        broods: dict[str, _Brood] = {}
        kinds = {(adapter.group, adapter.kind)}
        level: list[Path] = [((adapter, workload),)]
        for _ in range(MOST_HOPS):
            below: list[Path] = []
            for path in level:
                for made in sorted({*path[-1][0].creates, *path[-1][0].passes}):
                    maker = self._cluster.registry.by_kind(*made)
                    answers = next((n for n in range(len(path), 0, -1) if made in path[n - 1][0].creates), 0)
                    if maker is None or not answers:
                        continue
                    owner = path[answers - 1][1]["metadata"]["uid"]
                    owners[owner] = path[:answers]
                    brood = broods.setdefault(owner, _Brood())
                    if made == POD:
                        self._add_pods(brood, path, maker, workload, lookup)
                        if "Pod" in adapter.pods.owner_chain:
                            below.extend((*path, (maker, pod.plain())) for pod in self._pods(path))
                    else:
                        children = list(self._cluster.made_by(path[-1][1], made))
                        kinds.update([made] if children else [])
                        self._add(brood, children, maker, workload, lookup)
                        below.extend((*path, (maker, child)) for child in children)
            level = below
        # What its children may grow to is part of its charge already.
        grown = {workload["metadata"]["uid"]: charged} if adapter.grows else {}
        return self._found(owners, broods, workload, grown, lookup, frozenset(kinds))

    def child_cost(self, child: Object, pays: Object) -> Resources:
        """What one child of the payer asks for by itself, nothing where that cannot be told."""
        adapter = self._cluster.registry.of(child)
        return self._cost(child, adapter, pays, self._cluster.related.watched) if adapter is not None else {}

    def _cost(self, child: Object, adapter: Adapter, pays: Object, lookup: Lookup) -> Resources:
        try:
            return child_demand(child, adapter, pays, lookup, self._config).resources
        except Malformed:
            return {}

    def _found(
        self,
        owners: dict[str, Path],
        broods: dict[str, _Brood],
        workload: Object,
        grown: Mapping[str, Resources],
        lookup: Lookup,
        kinds: frozenset[GroupKind],
    ) -> Found:
        more: dict[str, int] = {}
        findings: list[str] = []
        at_once = False
        for uid, brood in broods.items():
            maker, owner = owners[uid][-1]
            reached = reach(owner, maker, workload, brood.asking, lookup, self._config)
            beyond = surplus(brood.costs, resources.larger(reached, grown.get(uid, {})))
            if not beyond:
                continue
            more, at_once = resources.total((more, beyond)), at_once or maker.surge is None
            held = ", ".join(f"{name}={quantity.text(name, beyond[name])}" for name in sorted(beyond)[:4])
            findings.append(
                f"what {maker.resource}/{owner['metadata']['namespace']}/{owner['metadata']['name']} owns "
                f"(last {brood.latest[1]}) asks for more than it does: {held}"
            )
        return Found(more, kinds, "; ".join(findings), at_once) if more else NOTHING

    def _pods(self, path: Path) -> list[Pod]:
        return cast("list[Pod]", list(self._cluster.pods.store.kept_index("owner", path[-1][1]["metadata"]["uid"])))

    def _add_pods(self, brood: _Brood, path: Path, adapter: Adapter, pays: Object, lookup: Lookup) -> None:
        """Pods differ little: each sort of them is counted once."""
        sorts: dict[tuple[int, int], tuple[Pod, int]] = {}
        for pod in self._pods(path):
            if not pod.is_active:
                continue
            brood.latest = max(brood.latest, (str(pod.created or 0).zfill(15), f"Pod {pod.name}"))
            key = (id(pod), 0) if pod.is_resized else (id(pod.spec), id(pod.labels))
            first, count = sorts.get(key, (pod, 0))
            sorts[key] = first, count + 1
        for pod, count in sorts.values():
            cost = self._cost(pod.plain(), adapter, pays, lookup)
            brood.costs.append(resources.scale(cost, count))
            brood.asking += count

    def _add(self, brood: _Brood, children: list[Object], adapter: Adapter, pays: Object, lookup: Lookup) -> None:
        for child in children:
            if child["metadata"].get("deletionTimestamp"):
                continue
            cost = self._cost(child, adapter, pays, lookup)
            brood.costs.append(cost)
            if cost:
                brood.asking += 1
                at = str(child["metadata"].get("creationTimestamp", ""))
                brood.latest = max(brood.latest, (at, f"{adapter.kind} {child['metadata']['name']}"))
