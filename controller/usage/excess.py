"""The excess of the objects between a workload and its pods: forged ReplicaSets and Jobs, or ones that were scaled.

This file alone compares stored objects with what they created, level by level. At each level the children of an owner
together may ask for what their owner asks for, plus the surge while one replaces another. The rest counts as demand of
the workload: the children's controllers make pods for it. `controller.usage.pod_charge` counts the pods themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bizrq.units import quantity, resources
from bizrq.units.resources import Resources
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.owner_allowance import allowance, child_demand_at_least, excess
from bizrq.workloads.kinds.declaration import DEPLOYMENT, Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.ownership.takeover import takeover
from controller.usage.below import Below, Owner
from controller.watch.cluster import Cluster

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Excess:
    """The resources that objects below a workload ask for beyond it, and that in words."""

    resources: Resources = field(default_factory=dict)
    finding: str = ""


NO_EXCESS = Excess()


class ExcessUsage:
    """Compares workloads with the objects below them that are not pods."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config

    def of(self, adapter: Adapter, workload: Object, below: Below, charged: Resources, lookup: Lookup) -> Excess:
        """Return what the objects below a workload ask for beyond what it is `charged`.

        A child that is being deleted adds nothing. Raises nothing.

        From the lowest owners upwards: each owner has an allowance, which is what it asks for, plus its surge while one
        child replaces another. What its children ask for beyond that is its own excess. That of the owners below first
        fills the room that the children leave of what the owner asks for without its surge. The rest goes on upwards.
        """
        # What its children may grow to is part of its charge already.
        grown = {workload["metadata"]["uid"]: charged} if adapter.grows else {}
        findings: list[str] = []
        #: By uid of an owner ("" is above the workload): the excess of the owners below it.
        passed: dict[str, Resources] = {}
        for owner in sorted(below.owners.values(), key=lambda each: len(each.path), reverse=True):
            deeper = passed.pop(owner.uid, {})
            if not owner.children and not deeper:
                continue
            (maker, obj), own = owner.path[-1], grown.get(owner.uid, {})
            asked = [cost for child, stored in owner.children if (cost := self._asks(stored, child, workload, lookup))]
            reached = allowance(obj, maker, workload, len(asked), lookup, self._config)
            if own:
                # The surge comes besides what its children have grown to.
                alone = allowance(obj, maker, workload, 0, lookup, self._config)
                reached = resources.add(resources.larger(alone, own), resources.growth(reached, alone))
            beyond = excess([*asked, *self._takes_over(owner, workload, lookup)], reached)
            if beyond:
                findings.append(self._finding(owner.path[-1], owner.children, beyond))
            if deeper:
                # Of no child, so without a surge.
                plain = resources.larger(allowance(obj, maker, workload, 0, lookup, self._config), own)
                room = resources.subtract_floor(plain, resources.total(asked))
                deeper = resources.nonzero(resources.subtract_floor(deeper, room))
            passed[owner.above] = resources.total((passed.get(owner.above, {}), beyond, deeper))
        more = passed.get("", {})
        return Excess(more, "; ".join(findings)) if more else NO_EXCESS

    def child_cost(self, child: Object, pays: Object) -> Resources:
        """Return what one child of the payer asks for by itself, as far as that can be counted."""
        adapter = self._cluster.registry.of(child)
        return self.cost(child, adapter, pays, self._cluster.resolver.cached_lookup) if adapter is not None else {}

    def cost(self, child: Object, adapter: Adapter, pays: Object, lookup: Lookup) -> Resources:
        """Return what a child of the payer asks for, as far as that can be counted."""
        return child_demand_at_least(child, adapter, pays, lookup, self._config).resources

    def _asks(self, child: Object, adapter: Adapter, pays: Object, lookup: Lookup) -> Resources:
        """Return what a child asks for; one that is being deleted asks for nothing."""
        going = child["metadata"].get("deletionTimestamp") is not None
        return {} if going else self.cost(child, adapter, pays, lookup)

    def _takes_over(self, owner: Owner, pays: Object, lookup: Lookup) -> list[Resources]:
        """Return what the pods cost that the controller of a paused Deployment has yet to add to older versions.

        The version that ran is gone, and another is to take over.
        """
        adapter, obj = owner.path[-1]
        if adapter.group_kind != DEPLOYMENT or not (obj.get("spec") or {}).get("paused"):
            return []
        taken, found = takeover(obj, [child for _, child in owner.children]), dict[str, int]()
        for version in taken.versions:
            spec = {**obj["spec"], "replicas": taken.pods, "template": (version.get("spec") or {}).get("template")}
            found = resources.larger(found, self.cost({**obj, "spec": spec}, adapter, pays, lookup))
        return [found] if found else []

    def _finding(
        self, owner: tuple[Adapter, Object], children: list[tuple[Adapter, Object]], beyond: Mapping[str, int]
    ) -> str:
        latest = max(
            (str(child["metadata"].get("creationTimestamp", "")), f"{adapter.kind} {child['metadata']['name']}")
            for adapter, child in children
        )
        return surplus_message(*owner, latest[1], beyond)


def surplus_message(adapter: Adapter, owner: Object, latest: str, beyond: Mapping[str, int]) -> str:
    """Return what people read of an owner whose children ask for too much."""
    amounts = ", ".join(f"{name}={quantity.text(name, beyond[name])}" for name in sorted(beyond)[:4])
    metadata = owner["metadata"]
    return (
        f"what {adapter.resource}/{metadata['namespace']}/{metadata['name']} owns "
        f"(latest: {latest}) asks for more than it does: {amounts}"
    )
