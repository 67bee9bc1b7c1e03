"""How far an owner's charge reaches: what those that it made may ask for without paying for themselves.

This file alone compares an owner with its children. Anybody can write an ownerReference, so one that nobody vouches
for is worth no more than what the owner is charged for anyway. It does not know who made a child, nor what a group has
left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bizrq.units import resources
from bizrq.units.resources import Resources, growth
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.counting import Demand, own_demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import MODEL_LABELS, labels_of
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.owners import makers
from bizrq.workloads.validation import Malformed, a_map


def answerable(obj: Mapping[str, Any], registry: Registry, lookup: Lookup) -> tuple[dict[str, Any], Adapter] | None:
    """The nearest object above this one whose own pods or children such an object is among; None where there is none.

    What an owner only passes on (a leader's pod its workers' StatefulSet) is not its own.
    """
    group, _ = group_and_version(obj.get("apiVersion"))
    for owner, adapter, _ in makers(obj, registry, lookup):
        if (group, obj.get("kind")) in adapter.creates:
            return owner, adapter
    return None


def child_demand(
    child: dict[str, Any], adapter: Adapter, pays: Mapping[str, Any], lookup: Lookup, config: CountingConfig
) -> Demand:
    """What a child asks for, under the models of whoever pays where it names none. Raises Malformed.

    In count/ it is none of its own, nor does it pay for claims that others use as well: those are the payer's, once.
    """
    above, metadata = labels_of(pays), a_map(child.get("metadata"), "metadata")
    models = {label: above[label] for label in MODEL_LABELS.values() if above.get(label)}
    known = {**child, "metadata": {**metadata, "labels": {**models, **labels_of(child)}}}
    found = own_demand(known, adapter, lookup, config)
    asked = resources.total(resources.scale(role.per_pod, role.replicas) for role in found.roles)
    return replace(found, resources=resources.nonzero(asked))


def reach(
    owner: dict[str, Any],
    adapter: Adapter,
    pays: Mapping[str, Any],
    children: int,
    lookup: Lookup,
    config: CountingConfig,
) -> Resources:
    """What an owner is charged for, and where one of several children replaces another, the surge that goes with it.

    An owner that cannot be counted reaches nothing. `children` are those that ask for anything, `pays` is whoever pays
    for the owner, most often itself.
    """
    if children > 1:
        config = replace(config, surge="count")
    try:
        return child_demand(owner, adapter, pays, lookup, config).resources
    except Malformed:
        return {}


def surplus(children: Iterable[Resources], reached: Resources) -> dict[str, int]:
    """What the children ask for beyond what their owner is charged for; empty where they do not."""
    return growth(resources.total(children), reached)
