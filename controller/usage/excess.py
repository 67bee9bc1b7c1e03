"""The excess below a workload: forged children, grown pods, pods that remain from a larger demand.

This file alone compares stored objects with what they created, level by level, and computes what that adds to the
workload's cost. At each level the children of an owner together may ask for what their owner asks for, plus the surge
while one replaces another. The excess is truly held, so a way around the quota shows in `used` however it passed
admission: a forged ownerReference, a resize in place, a template that shrinks under paused pods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


#: Up to this many pods are compared one by one.
_FEW = 500


@dataclass(frozen=True, slots=True)
class Excess:
    """The resources that a workload's children ask for beyond it, and the kinds of objects that show that.

    `below` is the most that the children of any one owner ask for together, beyond it or not.
    """

    resources: Resources = field(default_factory=dict)
    kinds: frozenset[GroupKind] = frozenset()
    finding: str = ""
    #: False where all of it belongs to owners in a rolling update, or to owners whose controller has yet to act: their
    #: children follow with a lag.
    at_once: bool = False
    below: Resources = field(default_factory=dict, compare=False)


NO_EXCESS = Excess()


def _answers_for(path: Path) -> str:
    """Return the uid of the owner that answers for the last object of a path; "" for the workload itself."""
    made, _ = path[-1]
    return next((o["metadata"]["uid"] for a, o in reversed(path[:-1]) if (made.group, made.kind) in a.creates), "")


@dataclass(slots=True)
class _ChildSet:
    """The children of one owner: what each asks for, how many ask for anything, and the latest of them."""

    costs: list[Resources] = field(default_factory=list)
    asking: int = 0
    latest: tuple[str, str] = ("", "")
    #: The uids of the creators of those children that are pods.
    makers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Owned:
    """The objects below one workload, by the uid of the owner that answers for them."""

    paths: dict[str, Path]
    children: dict[str, _ChildSet]
    #: The kinds of all objects that were found, and the workload's own.
    kinds: set[GroupKind]

    def add_owner(self, path: Path) -> _ChildSet:
        """Return the children of the last object of a path."""
        uid = path[-1][1]["metadata"]["uid"]
        self.paths[uid] = path
        return self.children.setdefault(uid, _ChildSet())


def _lags(owner: Object) -> bool:
    """Return True if the owner's status says that its controller has yet to act, or that too many replicas are left."""
    spec, status = owner.get("spec") or {}, owner.get("status") or {}
    observed, wanted, left = status.get("observedGeneration"), spec.get("replicas"), status.get("replicas")
    return (isinstance(observed, int) and observed < owner["metadata"].get("generation", 0)) or (
        isinstance(wanted, int) and isinstance(left, int) and left > wanted
    )


class ExcessUsage:
    """Compares workloads with what is below them."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config

    def of(self, adapter: Adapter, workload: Object, charged: Resources, lookup: Lookup) -> Excess:
        """Return what the workload's children ask for beyond what it is `charged`.

        Nothing for a workload that has ended. A child that cannot be counted adds nothing, nor does a child of a kind
        that pays for itself. Raises nothing.
        """
        if not adapter.creates or not adapter.pays or has_ended(workload, adapter):
            return NO_EXCESS
        owned = self._gather(adapter, workload, lookup)
        # What its children may grow to is part of its charge already.
        grown = {workload["metadata"]["uid"]: charged} if adapter.grows else {}
        return self._found(owned, workload, grown, lookup)

    def _gather(self, adapter: Adapter, workload: Object, lookup: Lookup) -> _Owned:
        """Collect what is below the workload, level by level, by the owner that answers for it."""
        owned = _Owned({}, {}, {(adapter.group, adapter.kind)})
        level: list[Path] = [((adapter, workload),)]
        for _ in range(MAX_HOPS):
            level = [below for path in level for below in self._gather_below(path, owned, lookup)]
        return owned

    def _gather_below(self, path: Path, owned: _Owned, lookup: Lookup) -> list[Path]:
        """Collect the direct children of the last object of a path. Returns the paths to look below next."""
        adapter, workload = path[0]
        below: list[Path] = []
        for made in sorted({*path[-1][0].creates, *path[-1][0].passes}):
            maker = self._cluster.registry.by_kind(*made)
            answers = next((n for n in range(len(path), 0, -1) if made in path[n - 1][0].creates), 0)
            if maker is None or not answers:
                continue
            children_of_owner = owned.add_owner(path[:answers])
            if made == POD:
                owned.kinds.add(POD)
                self._add_pods(children_of_owner, path, maker, workload, lookup)
                if "Pod" in adapter.pods.owner_chain:
                    below.extend((*path, (maker, pod.plain())) for pod in self._pods(path))
            else:
                children = list(self._cluster.descendants.made_by(path[-1][1], made))
                owned.kinds.update([made] if children else [])
                self._add(children_of_owner, children, maker, workload, lookup)
                below.extend((*path, (maker, child)) for child in children)
        return below

    def child_cost(self, child: Object, pays: Object) -> Resources:
        """Return what one child of the payer asks for by itself. Nothing where it cannot be counted."""
        adapter = self._cluster.registry.of(child)
        return self._cost(child, adapter, pays, self._cluster.resolver.cached_lookup) if adapter is not None else {}

    def _cost(self, child: Object, adapter: Adapter, pays: Object, lookup: Lookup) -> Resources:
        try:
            return child_demand(child, adapter, pays, lookup, self._config).resources
        except Malformed:
            return {}

    def _found(self, owned: _Owned, workload: Object, grown: Mapping[str, Resources], lookup: Lookup) -> Excess:
        """Add up, from the lowest owners upwards, what children ask for beyond their owner.

        Each owner has an allowance: what it asks for, plus its surge while one child replaces another; or what it is
        charged, if it is in `grown`. What its children ask for beyond that is its own excess. What hangs below them
        beyond them is `deeper`: it first fills the room that the children leave of what the owner asks for without its
        surge, because the controller that creates the children lags then. The rest goes on to the owner above.

        The excess counts `at_once` if some part of it is no lag. A part is a lag if its owner rolls from one version to
        the next (its kind has a surge), or says itself that it has yet to act, or if it only follows such a part.
        """
        findings: list[str] = []
        below: Resources = {}
        #: By uid of an owner ("" is above the workload): the excess of the owners below, and whether all of it lags.
        passed: dict[str, tuple[Resources, bool]] = {}
        for uid, path in sorted(owned.paths.items(), key=lambda each: len(each[1]), reverse=True):
            children, (maker, owner) = owned.children[uid], path[-1]
            asked, own = resources.total(children.costs), grown.get(uid, {})
            below = resources.larger(below, asked)
            reached = allowance(owner, maker, workload, children.asking, lookup, self._config)
            beyond = excess(children.costs, resources.larger(reached, own))
            if beyond:
                findings.append(self._finding(maker, owner, children, beyond))
            deeper, deeper_lags = passed.pop(uid, ({}, True))
            if deeper:
                # Of one child, so without a surge.
                plain = allowance(owner, maker, workload, 1, lookup, self._config)
                room = resources.subtract_floor(resources.larger(plain, own), asked)
                deeper = resources.nonzero(resources.subtract_floor(deeper, room))
            at_once = (bool(beyond) and maker.surge is None and not _lags(owner)) or (bool(deeper) and not deeper_lags)
            above = _answers_for(path)
            more, lags = passed.get(above, ({}, True))
            passed[above] = resources.total((more, beyond, deeper)), lags and not at_once
        more, lags = passed.get("", ({}, True))
        if not more:
            return Excess(below=below)
        return Excess(more, frozenset(owned.kinds), "; ".join(findings), not lags, below)

    def _finding(self, maker: Adapter, owner: Object, children: _ChildSet, beyond: Resources) -> str:
        """Return what people read of an owner whose children ask for too much."""
        amounts = ", ".join(f"{name}={quantity.text(name, beyond[name])}" for name in sorted(beyond)[:4])
        metadata = owner["metadata"]
        return (
            f"what {maker.resource}/{metadata['namespace']}/{metadata['name']} owns "
            f"(latest: {self._latest(children)}) asks for more than it does: {amounts}"
        )

    def _pods(self, path: Path) -> Collection[Pod]:
        return self._cluster.descendants.pods_made_by(path[-1][1]["metadata"]["uid"])

    def _add_pods(self, children: _ChildSet, path: Path, adapter: Adapter, pays: Object, lookup: Lookup) -> None:
        """Count the pods of the last object of a path, each equivalence class once."""
        sorts: dict[tuple[int, int], tuple[Pod, int]] = {}
        maker = path[-1][1]["metadata"]["uid"]
        children.makers.append(maker)
        for pod, many in self._cluster.descendants.grouped_pods_made_by(maker):
            if pod.is_active:
                key = (id(pod), 0) if pod.is_resized else (id(pod.spec), id(pod.labels))
                first, count = sorts.get(key, (pod, 0))
                sorts[key] = first, count + many
        for pod, count in sorts.values():
            cost = self._cost(pod.plain(), adapter, pays, lookup)
            children.costs.append(resources.scale(cost, count))
            children.asking += count

    def _latest(self, children: _ChildSet) -> str:
        """Return the latest child as text. Of very many pods, only one of each equivalence class is compared."""
        latest = children.latest
        for maker in children.makers:
            sorts = self._cluster.descendants.grouped_pods_made_by(maker)
            few = sum(many for _, many in sorts) <= _FEW
            for pod in self._cluster.descendants.pods_made_by(maker) if few else [one for one, _ in sorts]:
                if pod.is_active:
                    latest = max(latest, (str(pod.created or 0).zfill(15), f"Pod {pod.name}"))
        return latest[1]

    def _add(
        self, found: _ChildSet, children: Iterable[Object], adapter: Adapter, pays: Object, lookup: Lookup
    ) -> None:
        """Count children of any kind but pods one by one. Children that are being deleted ask for nothing."""
        for child in children:
            if child["metadata"].get("deletionTimestamp"):
                continue
            cost = self._cost(child, adapter, pays, lookup)
            found.costs.append(cost)
            if cost:
                found.asking += 1
                at = str(child["metadata"].get("creationTimestamp", ""))
                found.latest = max(found.latest, (at, f"{adapter.kind} {child['metadata']['name']}"))
