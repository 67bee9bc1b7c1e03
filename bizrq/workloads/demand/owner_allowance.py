"""Compute what the children of an owner may ask for without paying for themselves.

This file alone compares an owner with its children. Anybody can write an ownerReference, so an unverified one covers no
more than the owner is charged for anyway. It does not know who made a child, nor what a group has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bizrq.units import resources
from bizrq.units.resources import Resources, growth
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.counting import NO_DEMAND, Demand, demand_at_least, own_demand
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import inheriting, labels_of
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.owners import owner_chain
from bizrq.workloads.pods.surge import SURGES
from bizrq.workloads.validation import Malformed


def responsible_owner(
    obj: Mapping[str, Any], registry: Registry, lookup: Lookup
) -> tuple[dict[str, Any], Adapter] | None:
    """Return the nearest object above this one that makes such objects, with its adapter; None without one.

    An object that an owner only passes on is not its own, as a leader pod's StatefulSet of workers.
    """
    group, _ = group_and_version(obj.get("apiVersion"))
    for owner, adapter, _ in owner_chain(obj, registry, lookup):
        if (group, obj.get("kind")) in adapter.creates:
            return owner, adapter
    return None


def child_demand(
    child: dict[str, Any], adapter: Adapter, pays: Mapping[str, Any], lookup: Lookup, config: CountingConfig
) -> Demand:
    """Return the demand of a child, with the payer's models where it names none. Raises Malformed.

    It excludes count/ and shared claims: the payer pays for those once.
    """
    return _of_pods(own_demand(inheriting(child, labels_of(pays)), adapter, lookup, config))


def child_demand_at_least(
    child: dict[str, Any], adapter: Adapter, pays: Mapping[str, Any], lookup: Lookup, config: CountingConfig
) -> Demand:
    """Return what `child_demand` does for a stored child, as far as that can be counted: it may run, and is never free.

    Its labels or a claim template may be wrong or gone since. Raises nothing.
    """
    try:
        return child_demand(child, adapter, pays, lookup, config)
    except Malformed:
        return _of_pods(demand_at_least(child, adapter, pays, lookup, config))


def _of_pods(found: Demand) -> Demand:
    asked = resources.total(resources.scale(role.per_pod, role.replicas) for role in found.roles)
    return replace(found, resources=resources.nonzero(asked))


def countable_demand(
    child: dict[str, Any], adapter: Adapter, pays: Mapping[str, Any], lookup: Lookup, config: CountingConfig
) -> Demand:
    """Return what `child_demand` does, and no demand where that cannot be counted: it covers nothing."""
    try:
        return child_demand(child, adapter, pays, lookup, config)
    except Malformed:
        return NO_DEMAND


def allowance(
    owner: dict[str, Any],
    adapter: Adapter,
    pays: Mapping[str, Any],
    children: int,
    lookup: Lookup,
    config: CountingConfig,
) -> Resources:
    """Return what an owner is charged for, with the surge where one of several children replaces another, or has it.

    `children` is the number of those that ask for anything. `pays` is the payer of the owner, most often itself. An
    owner that cannot be counted covers nothing.
    """
    if children > 1 or (children and adapter.surge is not None and SURGES[adapter.surge].in_one_child):
        config = replace(config, surge="count")
    return countable_demand(owner, adapter, pays, lookup, config).resources


def excess(children: Iterable[Resources], reached: Resources) -> dict[str, int]:
    """Return what the children ask for beyond what their owner is charged for; empty where nothing."""
    return growth(resources.total(children), reached)
