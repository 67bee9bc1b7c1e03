"""What a workload object asks for in all.

This file alone brings together who pays (`owners`), how many pods (`roles`), what each costs (`podspec`) and which
models they use (`models`). It does not know groups, limits or what is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bizrq.units import resources
from bizrq.units.names import base_and_model
from bizrq.units.quantity import MAX, NANO
from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.workloads import special
from bizrq.workloads.config import DEFAULT, CountingConfig
from bizrq.workloads.devices import cards, dra, hami
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.devices.models import add_models, gpu_models, takes_model
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, labels_of
from bizrq.workloads.lookup import ALL_NODES, EmptyLookup, Lookup, Reference, TrackingLookup, group_and_version
from bizrq.workloads.owners import payer
from bizrq.workloads.pods.eligibility import eligible_count, placement
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, PodCost, pod_cost
from bizrq.workloads.pods.roles import PodSet, has_ended, is_suspended, max_run_time, pod_set_of_template, pod_sets
from bizrq.workloads.pods.surge import with_policies
from bizrq.workloads.validation import Malformed, describe_value, expect_count, expect_map, malformed


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """One set of equal pods: how many, and what one of them costs under every emitted name, in nano-units."""

    name: str
    replicas: int
    per_pod: Resources


@dataclass(frozen=True, slots=True)
class Demand:
    """What a workload object asks for. `resources` has every emitted name, in nano-units; an absent one is 0.

    `shared` is what claims cost besides that others may name as well, by the place that each is charged in, once.
    `missing` tells for requests.cpu, limits.cpu, requests.memory and limits.memory which containers do not state it;
    `unmodelled` for names of cards which roles say no model, where they have to (strict_models).
    `run` is how long it runs at most, in milliseconds, None where nothing bounds it.
    """

    resources: Resources = field(default_factory=dict)
    roles: tuple[RoleDemand, ...] = ()
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unmodelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run: int | None = None


NO_DEMAND = Demand()


def demand(obj: dict[str, Any], registry: Registry, lookup: Lookup, config: CountingConfig = DEFAULT) -> Demand:
    """What the object asks for, labelled or not. Raises Malformed, and nothing else, for whatever cannot be counted.

    An object that a charged, labelled one made costs nothing, and so does one that has ended: pods which outlive it
    are added by whoever can see them (`of_live_pods`).
    """
    adapter = adapter_of(obj, registry)
    if payer(obj, registry, lookup) is not None:
        return NO_DEMAND
    return own_demand(obj, adapter, lookup, config)


def adapter_of(obj: dict[str, Any], registry: Registry) -> Adapter:
    """The adapter that counts this object. Raises Malformed for kinds and versions that are not known."""
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    adapter = registry.of(obj)
    if adapter is None:
        raise malformed(
            "kind", f"{describe_value(kind)} of {describe_value(api_version)} is not a kind that can be counted"
        )
    _, version = group_and_version(api_version)
    if version not in adapter.versions:
        raise malformed(
            "apiVersion",
            f"{describe_value(api_version)} is not supported for {adapter.kind}: use {', '.join(adapter.versions)}",
        )
    return adapter


def own_demand(obj: dict[str, Any], adapter: Adapter, lookup: Lookup, config: CountingConfig = DEFAULT) -> Demand:
    """As `demand`, whoever made the object."""
    if has_ended(obj, adapter):
        return NO_DEMAND
    total: dict[str, int] = {f"count/{adapter.resource}": NANO}
    run = max_run_time(obj, adapter)
    if is_suspended(obj, adapter) and config.suspended == "zero":
        return Demand(total, run=run)
    around = ClaimContext(labels_of(obj), namespace_of(obj), lookup, config)
    roles: list[RoleDemand] = []
    missing: dict[str, list[str]] = {}
    unmodelled: dict[str, list[str]] = {}
    shared: dict[Slot, Resources] = {}
    for pods in with_policies(obj, adapter, _pod_sets(obj, adapter, around.namespace, lookup), config):
        cost = pod_cost(pods.spec, pods.path, around.namespace, lookup)
        per_pod = charged_cost(cost, pods, around)
        roles.append(RoleDemand(pods.name, pods.count, per_pod))
        if pods.count:
            claims = dra.shared_claims_cost(pods, around.of(pods)) if pods.spec.get("resourceClaims") else {}
            shared = larger_by_slot(shared, claims)
            if config.strict_models:
                for name in _without_model((per_pod, *claims.values()), config):
                    unmodelled.setdefault(name, []).append(pods.name)
            for name, containers in cost.missing.items():
                missing.setdefault(name, []).extend(containers)
            for name, amount in per_pod.items():
                total[name] = total.get(name, 0) + amount * pods.count
    return Demand(
        _bounded(total),
        tuple(roles),
        shared,
        {name: tuple(containers) for name, containers in missing.items()},
        {name: tuple(names) for name, names in unmodelled.items()},
        run,
    )


def total_demand(demand: Demand) -> Resources:
    """What an object asks for with the claims that others may name as well."""
    return resources.total((demand.resources, *demand.shared.values())) if demand.shared else demand.resources


def larger_by_slot(some: Mapping[Slot, Resources], others: Mapping[Slot, Resources]) -> dict[Slot, Resources]:
    """Of claims that both name the larger of what each makes of it, name by name."""
    found = dict(some)
    for place, cost in others.items():
        found[place] = resources.larger(found[place], cost) if place in found else cost
    return found


def _without_model(costs: Iterable[Resources], config: CountingConfig) -> list[str]:
    """The names of cards of which no model is said."""
    names = {name for cost in costs for name in cost if "/" in name}
    modelled = {found[0] for name in names if (found := base_and_model(name, config.catalog)) is not None}
    return sorted(name for name in names - modelled if takes_model(name, config.catalog))


def _bounded(total: dict[str, int]) -> dict[str, int]:
    """The total, which no resource of may exceed what Kubernetes can hold. Raises Malformed."""
    for name, amount in total.items():
        if amount > MAX:
            raise malformed("", f"the pods together ask for more than 9223372036854775807 of {name}")
    return total


def _pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    templates = {name: lambda o, find=find: find(o, namespace, lookup) for name, find in special.TEMPLATES.items()}

    def declared() -> list[PodSet]:
        return pod_sets(obj, adapter, templates)

    coder = special.KINDS.get(adapter.code) if adapter.code else None
    sets = coder(obj, declared, namespace, lookup) if coder else declared()
    return _on_nodes(sets, lookup) if adapter.per_node else sets


def _on_nodes(sets: list[PodSet], lookup: Lookup) -> list[PodSet]:
    """Raise each count to the number of nodes that the pods fit. Raises Malformed.

    What a status says of more pods stays: nodes that are gone, or that no longer fit, may have them still.
    """
    nodes = lookup.all_of(*ALL_NODES[:3])
    return [replace(pods, count=max(pods.count, eligible_count(pods.spec, pods.path, nodes))) for pods in sets]


def may_grow_on_nodes(
    new: dict[str, Any], old: dict[str, Any], adapter: Adapter, lookup: Lookup, config: CountingConfig = DEFAULT
) -> bool:
    """Return False where a change of a kind with a pod per node asks for no more, whichever nodes there are.

    It runs where it did, and no pod asks for more. Raises Malformed where the new object cannot be counted.
    """
    after, places = own_demand(new, adapter, lookup, config).roles, _placements(new, adapter, lookup)
    try:
        before, known = own_demand(old, adapter, lookup, config).roles, _placements(old, adapter, lookup)
    except Malformed:
        return True
    if places != known or [role.name for role in after] != [role.name for role in before]:
        return True
    return any(resources.growth(now.per_pod, was.per_pod) for now, was in zip(after, before, strict=True))


def _placements(obj: dict[str, Any], adapter: Adapter, lookup: Lookup) -> list[object]:
    sets = _pod_sets(obj, adapter, namespace_of(obj), lookup)
    return [placement(pods.spec, pods.path) for pods in sets]


def charged_cost(cost: PodCost, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """The cost of one pod under every name that it is charged by: requests., limits., pods, cards., models, claims.

    What all the pods share is not in it. Raises Malformed.
    """
    context = context.of(pods)
    per_pod = hami.adjust(cost, pods, context)
    implicit = False
    for name, amount in cost.requests.items():
        if amount:
            per_pod[f"requests.{name}"] = amount
            implicit = implicit or name.startswith(IMPLICIT_CLASS)
    for name, amount in cost.limits.items():
        if amount and not name.startswith(IMPLICIT_CLASS):
            per_pod[f"limits.{name}"] = amount
    per_pod["pods"] = NANO
    if context.config.counts_cards:
        per_pod = _with_cards(per_pod, cost, pods, context)
    add_models(per_pod, context.labels, pods, context.config)
    if implicit:
        per_pod = resources.total((per_pod, dra.implicit_claims_cost(cost.requests, pods, context)))
    if pods.spec.get("resourceClaims"):
        per_pod = resources.total((per_pod, dra.template_claims_cost(pods, context)))
    return per_pod


def _with_cards(per_pod: dict[str, int], cost: PodCost, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """The cost of one pod with the cards that it takes besides those that HAMi shares."""
    config = context.config
    memory = cards.card_memory(gpu_models(context.labels, pods, config), config)
    shared = {
        name for device in hami.shared_devices() if device.cards in per_pod for name in (device.count, *device.parts)
    }
    others = {name: amount for name, amount in cost.requests.items() if name not in shared}
    otherwise = cards.cards_of_counts_as(cost.requests, pods.annotations, memory, config)
    return resources.total((per_pod, cards.cards_of_names(others, memory, config.catalog), otherwise))


def namespace_of(obj: Mapping[str, Any]) -> str:
    """`metadata.namespace`, `default` where it is absent. Raises Malformed where metadata is no map."""
    namespace = expect_map(obj.get("metadata"), "metadata").get("namespace")
    return namespace if isinstance(namespace, str) and namespace else "default"


def demand_of_live_pods(
    obj: Mapping[str, Any], pods: Iterable[dict[str, Any]], lookup: Lookup, config: CountingConfig = DEFAULT
) -> Demand:
    """What the pods of an ended workload still hold, those that are not over. Raises Malformed.

    `pods` are all that it made. For kinds whose adapter `lingers`, under the policy `terminal: live-pods`; the models
    are those of the workload.
    """
    around = ClaimContext(labels_of(obj), namespace_of(obj), lookup, config)
    total: dict[str, int] = {}
    shared: dict[Slot, Resources] = {}
    for pod in pods:
        if is_terminated(pod):
            continue
        found = pod_set_of_template("pod", 1, pod, "")
        cost = pod_cost(found.spec, found.path, around.namespace, lookup)
        for name, amount in charged_cost(cost, found, around).items():
            total[name] = total.get(name, 0) + amount
        if found.spec.get("resourceClaims"):
            shared = larger_by_slot(shared, dra.shared_claims_cost(found, around.of(found)))
    return Demand(total, shared=shared)


def with_children(
    own: Demand, children: Sequence[Demand], adapter: Adapter, config: CountingConfig = DEFAULT
) -> Demand:
    """What an object asks for whose children (`grows`) may ask for more than it says itself: whichever is more.

    Of several the largest counts, since one is about to replace another; all of them do so under `surge: count`. One
    that is suspended or has ended asks for no pods, and its children are about to go.
    """
    if not children or not own.roles:
        return own
    grown: Resources = {}
    shared = own.shared
    for child in children:
        shared = larger_by_slot(shared, child.shared)
        asks = {name: amount for name, amount in child.resources.items() if not name.startswith("count/")}
        counted = adapter.surge is not None and config.surge == "count"
        grown = resources.add(grown, asks) if counted else resources.larger(grown, asks)
    beside = [resources.scale(role.per_pod, role.replicas) for role in own.roles if role.name in adapter.beside]
    return replace(own, resources=resources.larger(own.resources, resources.total((grown, *beside))), shared=shared)


def check_template_labels(obj: dict[str, Any], adapter: Adapter, group: str, lookup: Lookup) -> None:
    """Whether an object's pod templates name no other group than it charges, as they must when it is created or moved.

    What is made of the template carries its label, and somebody reading it would think that another group pays. Raises
    Malformed. Not for stored objects: after a move the template goes on naming the old group for a while.
    """
    try:
        sets = _pod_sets(obj, adapter, namespace_of(obj), lookup)
    except Malformed:
        if adapter.code is None:
            raise
        # What such a kind refers to need not be there before it wants pods.
        return
    for pods in sets:
        named = pods.labels.get(LABEL)
        if pods.is_own and pods.path != "spec" and named and named != group:
            raise malformed(
                pods.path.removesuffix(".spec"),
                f"its label {LABEL} names the group {describe_value(named)}, "
                f"but the {adapter.kind} is charged to {group}",
            )


def is_live(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Whether a stored object is one that count/ counts, if nothing above it pays: it has not ended."""
    return not has_ended(obj, adapter)


def is_charged_for_pods(obj: dict[str, Any], adapter: Adapter, config: CountingConfig = DEFAULT) -> bool:
    """Whether a workload has ended and costs what pods of it still run (`of_live_pods`)."""
    return adapter.lingers and config.terminal == "live-pods" and has_ended(obj, adapter)


def is_terminated(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has ended."""
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")


def with_scale(obj: dict[str, Any], adapter: Adapter, replicas: int) -> dict[str, Any]:
    """A copy of the object with the number that its /scale subresource writes; the original is not changed.

    Raises Malformed for what is no count, for kinds that have no /scale, and where there is no place for it.
    """
    if adapter.scale is None:
        raise malformed("kind", f"{adapter.kind} cannot be scaled")
    number = expect_count(replicas, "spec.replicas")
    copy: dict[str, Any] = {**obj}
    place, path = copy, ""
    for key in adapter.scale[:-1]:
        path = f"{path}.{key}" if path else key
        place[key] = {**expect_map(place.get(key), path)}
        place = place[key]
    place[adapter.scale[-1]] = number
    return copy


def scale_replicas(scale: Mapping[str, Any]) -> int:
    """The replicas that an `autoscaling/v1` Scale asks for: 0 where it says nothing. Raises Malformed."""
    replicas = expect_map(scale.get("spec"), "spec").get("replicas")
    return 0 if replicas is None else expect_count(replicas, "spec.replicas")


def references(
    obj: dict[str, Any], adapter: Adapter, lookup: Lookup | None = None, config: CountingConfig = DEFAULT
) -> list[Reference]:
    """The other objects that the demand depends on: (group, kind, namespace or "", name or "" for all of the kind).

    Found by asking for the demand and noting its questions, so that it cannot differ from them. Without a lookup what
    a missing object would refer to in turn stays unknown. Raises nothing.
    """
    recording = TrackingLookup(lookup or EmptyLookup())
    # Whoever wants the demand will hear of what is wrong; a missing object is what this is asked for.
    with suppress(Malformed):
        own_demand(obj, adapter, recording, config)
    return list(recording.asked)
