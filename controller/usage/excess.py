"""What hangs below a workload and asks for more than the workload does: forged children, grown pods, what lags behind.

This file alone compares stored objects with what they made, level by level, and says what that adds to the workload's
cost. At each level the children of an owner together may ask for what their owner asks for, and while one replaces
another for the surge besides. What is counted so is truly held, so that a way round a quota (a forged ownerReference, a
resize in place, a template that shrinks under paused pods) shows in `used` however it got past admission.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from bizrq.units import quantity, resources
from bizrq.units.resources import Resources
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.owner_allowance import allowance, child_demand, excess
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import MAX_HOPS
from bizrq.workloads.pods.roles import has_ended
from bizrq.workloads.validation import Malformed
from controller.watch.cluster import Cluster
from controller.watch.informers import POD
from controller.watch.pods import Pod

Object = dict[str, Any]
Path = tuple[tuple[Adapter, Object], ...]


#: So many pods are gone through one by one.
_FEW = 500


@dataclass(frozen=True, slots=True)
class Excess:
    """What a workload's children ask for beyond it, and which kinds of objects told that; empty where nothing.

    `below` is the most that the children of any one owner ask for together, beyond it or not.
    """

    resources: Resources = field(default_factory=dict)
    kinds: frozenset[GroupKind] = frozenset()
    finding: str = ""
    #: False where all of it is of owners that roll from one version to the next, or whose controller has not acted on
    #: what is written yet: their children follow with a lag.
    at_once: bool = False
    below: Resources = field(default_factory=dict, compare=False)


NO_EXCESS = Excess()


def _answers_for(path: Path) -> str:
    """The uid of the owner whose children the last of a path is among; "" for the workload itself."""
    made, _ = path[-1]
    return next((o["metadata"]["uid"] for a, o in reversed(path[:-1]) if (made.group, made.kind) in a.creates), "")


@dataclass(slots=True)
class _ChildSet:
    """The children of one owner: what they ask for in all, how many ask, and the latest of them."""

    costs: list[Resources] = field(default_factory=list)
    asking: int = 0
    latest: tuple[str, str] = ("", "")
    #: Who made those of them that are pods.
    makers: list[str] = field(default_factory=list)


def _lags(owner: Object) -> bool:
    """Whether its controller says itself that it has yet to act on what is written, or that too many are left."""
    spec, status = owner.get("spec") or {}, owner.get("status") or {}
    observed, wanted, left = status.get("observedGeneration"), spec.get("replicas"), status.get("replicas")
    return (isinstance(observed, int) and observed < owner["metadata"].get("generation", 0)) or (
        isinstance(wanted, int) and isinstance(left, int) and left > wanted
    )


class ExcessUsage:
    """Compares the workloads of a cluster with what is below them."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config

    def of(self, adapter: Adapter, workload: Object, charged: Resources, lookup: Lookup) -> Excess:
        """What the workload's children ask for beyond what it is `charged`; nothing of one that has ended.

        A child that cannot be counted adds nothing, and one of a kind that does not pay is its own. Raises nothing.
        """
        if not adapter.creates or not adapter.pays or has_ended(workload, adapter):
            return NO_EXCESS
        owners: dict[str, Path] = {}
        child_sets: dict[str, _ChildSet] = {}
        kinds = {(adapter.group, adapter.kind)}
        level: list[Path] = [((adapter, workload),)]
        for _ in range(MAX_HOPS):
            below: list[Path] = []
            for path in level:
                for made in sorted({*path[-1][0].creates, *path[-1][0].passes}):
                    maker = self._cluster.registry.by_kind(*made)
                    answers = next((n for n in range(len(path), 0, -1) if made in path[n - 1][0].creates), 0)
                    if maker is None or not answers:
                        continue
                    owner = path[answers - 1][1]["metadata"]["uid"]
                    owners[owner] = path[:answers]
                    brood = child_sets.setdefault(owner, _ChildSet())
                    if made == POD:
                        kinds.add(POD)
                        self._add_pods(brood, path, maker, workload, lookup)
                        if "Pod" in adapter.pods.owner_chain:
                            below.extend((*path, (maker, pod.plain())) for pod in self._pods(path))
                    else:
                        children = list(self._cluster.descendants.made_by(path[-1][1], made))
                        kinds.update([made] if children else [])
                        self._add(brood, children, maker, workload, lookup)
                        below.extend((*path, (maker, child)) for child in children)
            level = below
        # What its children may grow to is part of its charge already.
        grown = {workload["metadata"]["uid"]: charged} if adapter.grows else {}
        return self._found(owners, child_sets, workload, grown, lookup, frozenset(kinds))

    def child_cost(self, child: Object, pays: Object) -> Resources:
        """What one child of the payer asks for by itself, nothing where that cannot be told."""
        adapter = self._cluster.registry.of(child)
        return self._cost(child, adapter, pays, self._cluster.resolver.cached_lookup) if adapter is not None else {}

    def _cost(self, child: Object, adapter: Adapter, pays: Object, lookup: Lookup) -> Resources:
        try:
            return child_demand(child, adapter, pays, lookup, self._config).resources
        except Malformed:
            return {}

    def _found(
        self,
        owners: dict[str, Path],
        broods: dict[str, _ChildSet],
        workload: Object,
        grown: Mapping[str, Resources],
        lookup: Lookup,
        kinds: frozenset[GroupKind],
    ) -> Excess:
        findings: list[str] = []
        below: Resources = {}
        #: By owner, what hangs below its children beyond them, and whether all of that is no more than a lag.
        passed: dict[str, tuple[Resources, bool]] = {}
        for uid in sorted(broods, key=lambda each: len(owners[each]), reverse=True):
            children, path = broods[uid], owners[uid]
            (maker, owner), own = path[-1], grown.get(uid, {})
            asked = resources.total(children.costs)
            below = resources.larger(below, asked)
            reached = allowance(owner, maker, workload, children.asking, lookup, self._config)
            beyond = excess(children.costs, resources.larger(reached, own))
            if beyond:
                held = ", ".join(f"{name}={quantity.text(name, beyond[name])}" for name in sorted(beyond)[:4])
                findings.append(
                    f"what {maker.resource}/{owner['metadata']['namespace']}/{owner['metadata']['name']} owns "
                    f"(last {self._latest(children)}) asks for more than it does: {held}"
                )
            deeper, lags = passed.pop(uid, ({}, True))
            if deeper:
                # What its children do not ask for is room for what hangs below them: one who makes them lags.
                plain = allowance(owner, maker, workload, 1, lookup, self._config)
                room = resources.subtract_floor(resources.larger(plain, own), asked)
                deeper = resources.nonzero(resources.subtract_floor(deeper, room))
            above = _answers_for(path)
            more, lag = passed.get(above, ({}, True))
            at_once = (bool(beyond) and maker.surge is None and not _lags(owner)) or (bool(deeper) and not lags)
            passed[above] = resources.total((more, beyond, deeper)), lag and not at_once
        more, lag = passed.get("", ({}, True))
        return Excess(more, kinds, "; ".join(findings), not lag, below) if more else Excess(below=below)

    def _pods(self, path: Path) -> Collection[Pod]:
        return self._cluster.descendants.pods_made_by(path[-1][1]["metadata"]["uid"])

    def _add_pods(self, brood: _ChildSet, path: Path, adapter: Adapter, pays: Object, lookup: Lookup) -> None:
        """Pods differ little: each sort of them is counted once."""
        sorts: dict[tuple[int, int], tuple[Pod, int]] = {}
        maker = path[-1][1]["metadata"]["uid"]
        brood.makers.append(maker)
        for pod, many in self._cluster.descendants.grouped_pods_made_by(maker):
            if pod.is_active:
                key = (id(pod), 0) if pod.is_resized else (id(pod.spec), id(pod.labels))
                first, count = sorts.get(key, (pod, 0))
                sorts[key] = first, count + many
        for pod, count in sorts.values():
            cost = self._cost(pod.plain(), adapter, pays, lookup)
            brood.costs.append(resources.scale(cost, count))
            brood.asking += count

    def _latest(self, brood: _ChildSet) -> str:
        """The latest of a brood, in words; of very many pods that of one of each sort."""
        latest = brood.latest
        for maker in brood.makers:
            sorts = self._cluster.descendants.grouped_pods_made_by(maker)
            few = sum(many for _, many in sorts) <= _FEW
            for pod in self._cluster.descendants.pods_made_by(maker) if few else [one for one, _ in sorts]:
                if pod.is_active:
                    latest = max(latest, (str(pod.created or 0).zfill(15), f"Pod {pod.name}"))
        return latest[1]

    def _add(self, brood: _ChildSet, children: list[Object], adapter: Adapter, pays: Object, lookup: Lookup) -> None:
        for child in children:
            if child["metadata"].get("deletionTimestamp"):
                continue
            cost = self._cost(child, adapter, pays, lookup)
            brood.costs.append(cost)
            if cost:
                brood.asking += 1
                at = str(child["metadata"].get("creationTimestamp", ""))
                brood.latest = max(brood.latest, (at, f"{adapter.kind} {child['metadata']['name']}"))
