"""Compute what a workload object asks for.

This file alone combines the payer (`ownership.payers`), the number of pods (`roles`), the cost of each (`podspec`) and
their models (`models`). It does not know groups, ceilings or usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bizrq.quota.change import surge_remark
from bizrq.units import resources
from bizrq.units.names import base_and_model
from bizrq.units.quantity import MAX, NANO
from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.workloads import special
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards, dra, hami
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.devices.models import add_models, gpu_models, takes_model
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, labels_of
from bizrq.workloads.lookup import ALL_NODES, EmptyLookup, Lookup, Reference, TrackingLookup, group_and_version
from bizrq.workloads.ownership.payers import owner_that_pays
from bizrq.workloads.pods.eligibility import eligible_nodes, placement
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, PodCost, check_size, grace_problem, pod_cost
from bizrq.workloads.pods.roles import PodSet, has_ended, is_suspended, max_run_time, pod_set_of_template, pod_sets
from bizrq.workloads.pods.surge import with_policies
from bizrq.workloads.special.statefulset import BELOW_PARTITION, MAIN
from bizrq.workloads.validation import Malformed, describe_value, expect_count, expect_map, malformed


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """One set of equal pods: their number, and the cost of one under every emitted name, in nano-units.

    `surge` of them are charged in addition to the declared ones (`pods.surge`).
    """

    name: str
    replicas: int
    per_pod: Resources
    surge: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a workload object. `resources` has every emitted name in nano-units; an absent one is 0.

    `shared` is the cost of claims that other workloads may use too, by slot; each counts once. `missing` lists, for
    requests.cpu, limits.cpu, requests.memory and limits.memory, the containers that do not state it. `unmodelled`
    lists, for names of cards, the roles without a model where strict_models needs one. `run` is the longest run in
    milliseconds; None without a bound. `unreadable` says which fields count as the largest that they can mean, because
    they cannot be read (docs/counting.md, "Checked input"). `stated` has the requests and limits that all containers
    state, so that no LimitRange changes them; None where there are no pods. `named` has the groups that the labels of
    its pods name.
    """

    resources: Resources = field(default_factory=dict)
    roles: tuple[RoleDemand, ...] = ()
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unmodelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run: int | None = None
    unreadable: tuple[str, ...] = ()
    stated: frozenset[str] | None = None
    named: frozenset[str] = frozenset()

    @property
    def declared(self) -> int:
        """The number of pods without surge."""
        return sum(role.replicas - role.surge for role in self.roles)


NO_DEMAND = Demand()


def least_pod(demand: Demand) -> Resources:
    """Return the cost of the next pod of a workload; of several kinds of pods the least per resource."""
    roles = [role.per_pod for role in demand.roles if role.replicas]
    if not roles:
        return {}
    found = roles[0]
    for each in roles[1:]:
        found = resources.smaller(found, each)
    return found


def demand(obj: dict[str, Any], registry: Registry, lookup: Lookup, config: CountingConfig) -> Demand:
    """Return the demand of an object, labelled or not. Raises Malformed, and nothing else, for what cannot be counted.

    An object that an owner pays for costs nothing, and neither does one that has ended. A caller that sees
    pods which outlive it adds them with `demand_of_live_pods`.
    """
    adapter = adapter_of(obj, registry)
    if owner_that_pays(obj, registry, lookup) is not None:
        return NO_DEMAND
    return own_demand(obj, adapter, lookup, config)


def adapter_of(obj: dict[str, Any], registry: Registry) -> Adapter:
    """Return the adapter that counts this object. Raises Malformed for unknown kinds and versions."""
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


def own_demand(obj: dict[str, Any], adapter: Adapter, lookup: Lookup, config: CountingConfig) -> Demand:
    """Return the demand of an object regardless of its owners. Raises Malformed."""
    return _own_demand(obj, adapter, lookup, config)


def demand_at_least(
    obj: dict[str, Any], adapter: Adapter, payer: Mapping[str, Any], lookup: Lookup, config: CountingConfig
) -> Demand:
    """Return the demand of a stored object as far as it can be counted: its pods may run, and are never free.

    The labels of its `payer` name the models where its own cannot. No demand where not even its pods can be read.
    Raises nothing.
    """
    with suppress(Malformed):
        return _own_demand(obj, adapter, lookup, config, labels_of(payer))
    return NO_DEMAND


def _own_demand(
    obj: dict[str, Any],
    adapter: Adapter,
    lookup: Lookup,
    config: CountingConfig,
    payer: Mapping[str, Any] | None = None,
) -> Demand:
    """Return the demand of an object; with the labels of a `payer`, as far as it can be counted."""
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
    stated: frozenset[str] | None = None
    named: set[str] = set()
    sets, unreadable = with_policies(obj, adapter, _pod_sets(obj, adapter, around.namespace, lookup), config)
    # What is stored runs, however large it is.
    if payer is None:
        check_size(pods.spec for pods in sets)
    for pods in sets:
        unreadable += grace_problem(pods.spec, pods.path)
        cost = pod_cost(pods.spec, pods.path, around.namespace, lookup)
        per_pod = charged_cost(cost, pods, around) if payer is None else _cost_at_least(cost, pods, around, payer)
        if pods.older is not None:
            per_pod = resources.larger(per_pod, _older_cost(pods.older, around))
        roles.append(RoleDemand(pods.name, pods.count, per_pod, pods.surge))
        if label := pods.labels.get(LABEL):
            # Anything else than a text is no group's name.
            named.add(label if isinstance(label, str) else "")
        if pods.count:
            stated = cost.stated if stated is None else stated & cost.stated
            claims = _shared_claims(pods, around, at_least=payer is not None)
            if pods.older is not None:
                claims = larger_by_slot(claims, _shared_claims(pods.older, around, at_least=True))
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
        unreadable,
        stated,
        frozenset(named),
    )


def _cost_at_least(cost: PodCost, pods: PodSet, around: ClaimContext, payer: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the cost of one stored pod, without what cannot be counted of its models, claims and annotations.

    Raises Malformed where nothing can be.
    """
    unlabelled = replace(pods, labels={})
    bare = replace(unlabelled, annotations={})
    for labels, each in ((around.labels, pods), (payer, unlabelled), ({}, unlabelled)):
        for counted in (each, dra.without_claims(each)):
            with suppress(Malformed):
                return charged_cost(cost, counted, replace(around, labels=labels))
    return charged_cost(cost, dra.without_claims(bare), replace(around, labels={}))


def _shared_claims(pods: PodSet, around: ClaimContext, *, at_least: bool) -> Mapping[Slot, Resources]:
    """Return the cost of the claims that pods share; none where they cannot be counted and `at_least` is True."""
    if not pods.spec.get("resourceClaims"):
        return {}
    try:
        return dra.shared_claims_cost(pods, around.of(pods))
    except Malformed:
        if at_least:
            return {}
        raise


def _older_cost(pods: PodSet, around: ClaimContext) -> Resources:
    """Return the cost of a pod of an older revision, as far as it can be counted: it was once."""
    with suppress(Malformed):
        cost = pod_cost(pods.spec, pods.path, around.namespace, around.lookup)
        return _cost_at_least(cost, pods, around, around.labels)
    return {}


def check_readable(demand: Demand, stored: Demand | None) -> None:
    """Raise Malformed where a field cannot be read that the stored object, None where there is none, does not have so.

    So a person cannot write such a field, and an object that has one already may still be changed otherwise.
    """
    known = stored.unreadable if stored is not None else ()
    for problem in demand.unreadable:
        if problem not in known:
            raise Malformed(problem)


def surge_remarks(demand: Demand) -> list[str]:
    """Return how many pods of each role are surge that is charged."""
    return [surge_remark(role.name, role.replicas, role.surge) for role in demand.roles if role.surge]


def total_demand(demand: Demand) -> Resources:
    """Return the demand with the claims that other workloads may use too."""
    return resources.total((demand.resources, *demand.shared.values())) if demand.shared else demand.resources


def beside_stored(demand: Demand, before: Demand, shift: int = 0) -> Resources:
    """Return what stored pods cost beyond the demand that stay while others are added (docs/ownership.md, law 4).

    In a role that gets more pods, those are the stored ones, where they cost more than those of the new template: its
    controller adds the others beside them, and may replace none. A pod with the ordinal n becomes the n + `shift`th of
    the declared ones, and one that is not among these stays at what it costs.
    """
    stored, asked = _by_controller(before), _by_controller(demand)
    stay = [cost for name in stored.keys() & asked.keys() for cost in _staying(stored[name], asked[name], shift)]
    return resources.nonzero(resources.total(stay))


def stored_on_nodes(
    new: dict[str, Any], old: dict[str, Any], before: Demand, adapter: Adapter, lookup: Lookup
) -> Resources:
    """Return what stored pods cost, of a kind with one on each node, that stay where the new object makes none.

    Its controller deletes no pods that a taint with the effect NoSchedule would keep away now (kubernetes
    pkg/controller/daemon/daemon_controller.go, NodeShouldRunDaemonPod: shouldContinueRunning). Raises Malformed.
    """
    costs = {role.name: role.per_pod for role in before.roles}
    if not costs:
        return {}
    nodes = lookup.all_of(*ALL_NODES[:3])
    namespace = namespace_of(new)
    instead = {pods.name: pods for pods in _pod_sets(new, adapter, namespace, lookup)}
    stay: list[Resources] = []
    for pods in _pod_sets(old, adapter, namespace, lookup):
        then = instead.get(pods.name)
        if then is not None and placement(then.spec, then.path) != placement(pods.spec, pods.path):
            made = set(eligible_nodes(then.spec, then.path, nodes))
            kept = set(eligible_nodes(then.spec, then.path, nodes, made=False)) - made
            kept &= set(eligible_nodes(pods.spec, pods.path, nodes))
            # The status may count some of these, and the demand goes by the larger of both.
            beyond = max(0, len(made) + len(kept) - then.count)
            stay.append(resources.scale(costs.get(pods.name, {}), beyond))
    return resources.nonzero(resources.total(stay))


def _by_controller(demand: Demand) -> dict[str, list[RoleDemand]]:
    """Return the roles of which a controller counts the pods together, in the order of their ordinals."""
    found: dict[str, list[RoleDemand]] = {}
    for role in sorted(demand.roles, key=lambda role: role.name != BELOW_PARTITION):
        found.setdefault(MAIN if role.name == BELOW_PARTITION else role.name, []).append(role)
    return found


def _staying(stored: Sequence[RoleDemand], asked: Sequence[RoleDemand], shift: int) -> Iterator[Resources]:
    """Yield what stored pods cost beyond those that are asked for in their place; nothing if no others are added."""
    before, after = (sum(role.replicas for role in roles) for roles in (stored, asked))
    kept, costs = 0, list[Resources]()
    for pods, cost in _ranges(stored, shift):
        out = len(pods)
        for others, instead in _ranges(asked):
            both = len(range(max(pods.start, others.start), min(pods.stop, others.stop)))
            costs.append(resources.scale(resources.growth(cost, instead), both))
            out -= both
            kept += both
        costs.append(resources.scale(cost, out))
    if after > (kept if shift else before):
        yield from costs


def _ranges(roles: Sequence[RoleDemand], start: int = 0) -> Iterator[tuple[range, Resources]]:
    """Yield the numbers of the declared pods of each role, one role after another, and what a pod costs."""
    for role in roles:
        pods = range(start, start + role.replicas - role.surge)
        yield pods, role.per_pod
        start = pods.stop


def larger_by_slot(some: Mapping[Slot, Resources], others: Mapping[Slot, Resources]) -> dict[Slot, Resources]:
    """Merge costs of claims; where both name a slot, take the larger amount of each resource."""
    found = dict(some)
    for place, cost in others.items():
        found[place] = resources.larger(found[place], cost) if place in found else cost
    return found


def _without_model(costs: Iterable[Resources], config: CountingConfig) -> list[str]:
    """Return the names of cards that have no model."""
    names = {name for cost in costs for name in cost if "/" in name}
    modelled = {found[0] for name in names if (found := base_and_model(name, config.catalog)) is not None}
    return sorted(name for name in names - modelled if takes_model(name, config.catalog))


def _bounded(total: dict[str, int]) -> dict[str, int]:
    """Return the total. Raises Malformed where a resource exceeds what Kubernetes can hold."""
    for name, amount in total.items():
        if amount > MAX:
            raise malformed("", f"the pods together ask for more than 9223372036854775807 of {name}")
    return total


def _pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    if adapter.code is not None:
        sets = special.KINDS[adapter.code].pod_sets(obj, adapter, namespace, lookup)
    else:
        templates = {
            name: lambda o, module=module: module.template(o, namespace, lookup)
            for name, module in special.TEMPLATES.items()
        }
        sets = pod_sets(obj, adapter, templates)
    return _on_nodes(sets, lookup) if adapter.per_node else sets


def _on_nodes(sets: list[PodSet], lookup: Lookup) -> list[PodSet]:
    """Raise each count to the number of nodes that the pods fit. Raises Malformed.

    A larger count in the status stays: nodes that are gone or no longer fit may still have pods.
    """
    nodes = lookup.all_of(*ALL_NODES[:3])
    return [replace(pods, count=max(pods.count, len(eligible_nodes(pods.spec, pods.path, nodes)))) for pods in sets]


def may_grow_on_nodes(
    new: dict[str, Any], old: dict[str, Any], adapter: Adapter, lookup: Lookup, config: CountingConfig
) -> bool:
    """Return False where a change of a kind with a pod per node asks for no more, whichever nodes exist.

    Its placement is then the same, and no pod asks for more, nor does its surge where that is charged. Raises Malformed
    where the new object cannot be counted.
    """
    after, places = own_demand(new, adapter, lookup, config).roles, _placements(new, adapter, lookup)
    try:
        before, known = own_demand(old, adapter, lookup, config).roles, _placements(old, adapter, lookup)
    except Malformed:
        return True
    if config.surge == "count" and _update_strategy(new) != _update_strategy(old):
        return True
    if places != known or [role.name for role in after] != [role.name for role in before]:
        return True
    return any(resources.growth(now.per_pod, was.per_pod) for now, was in zip(after, before, strict=True))


def _update_strategy(obj: dict[str, Any]) -> object:
    spec = obj.get("spec")
    return spec.get("updateStrategy") if isinstance(spec, dict) else None


def has_same_pods(
    new: dict[str, Any], old: dict[str, Any], adapter: Adapter, lookup: Lookup, config: CountingConfig
) -> bool:
    """Return True where a change keeps all templates and raises no count: it is no growth, whatever they refer to."""
    if labels_of(new) != labels_of(old):
        return False
    try:
        after, before = (
            with_policies(obj, adapter, _pod_sets(obj, adapter, namespace_of(obj), lookup), config)[0]
            for obj in (new, old)
        )
    except Malformed:
        return False
    return len(after) == len(before) and all(
        now.count <= was.count and _decisive(now) == _decisive(was) for now, was in zip(after, before, strict=True)
    )


#: What a container may change without asking for more.
_IMMATERIAL: Final = frozenset({"image", "command", "args", "env"})
_RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"


def counted_annotations(config: CountingConfig) -> tuple[str, ...]:
    """Return the annotations of pods that counting reads with this configuration."""
    return tuple(dict.fromkeys((*hami.counted_annotations(config), *asking_annotations(config))))


def asking_annotations(config: CountingConfig) -> tuple[str, ...]:
    """Return the annotations of pods that decide what they ask for; what a pod got is in others."""
    return tuple(dict.fromkeys((*hami.asking_annotations(config), *cards.annotations_of_counts_as(config))))


def _decisive(pods: PodSet) -> PodSet:
    """Return a set of pods without its count and without what counting never reads."""
    spec = dict(pods.spec)
    for key in ("containers", "initContainers"):
        if isinstance(given := spec.get(key), list):
            spec[key] = [
                {k: v for k, v in each.items() if k not in _IMMATERIAL} if isinstance(each, dict) else each
                for each in given
            ]
    annotations = {key: value for key, value in pods.annotations.items() if key != _RESTARTED}
    return replace(pods, count=0, surge=0, spec=spec, annotations=annotations)


def _placements(obj: dict[str, Any], adapter: Adapter, lookup: Lookup) -> list[object]:
    sets = _pod_sets(obj, adapter, namespace_of(obj), lookup)
    return [placement(pods.spec, pods.path) for pods in sets]


def charged_cost(cost: PodCost, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """Return the cost of one pod under every name that it is charged by: requests., limits., pods, cards., models,
    claims.

    It excludes claims that pods share. Raises Malformed.
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
    """Add to the cost of one pod the cards that it takes in addition to those that HAMi shares."""
    config = context.config
    memory = cards.card_memory(gpu_models(context.labels, pods, config), config)
    shared = {
        name for device in config.hami.devices if device.cards in per_pod for name in (device.count, *device.parts)
    }
    others = {name: amount for name, amount in cost.requests.items() if name not in shared}
    otherwise = cards.cards_of_counts_as(cost.requests, pods.annotations, memory, config)
    return resources.total((per_pod, cards.cards_of_names(others, memory, config.catalog), otherwise))


def namespace_of(obj: Mapping[str, Any]) -> str:
    """Return `metadata.namespace`, or `default` where it is absent. Raises Malformed where metadata is no map."""
    namespace = expect_map(obj.get("metadata"), "metadata").get("namespace")
    return namespace if isinstance(namespace, str) and namespace else "default"


def demand_of_live_pods(
    obj: Mapping[str, Any], pods: Iterable[dict[str, Any]], lookup: Lookup, config: CountingConfig
) -> Demand:
    """Return what the pods of an ended workload still hold; terminated pods hold nothing. Raises Malformed.

    `pods` are all pods that it made. This is for the policy `terminal: live-pods`. The models are the workload's.
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


def with_children(own: Demand, children: Sequence[Demand], adapter: Adapter, config: CountingConfig) -> Demand:
    """Return the larger of an object's own demand and that of its children (`grows`), which may exceed it.

    Of several children the largest counts, since one is about to replace another. Under `surge: count` all of them
    count. An object that is suspended or has ended asks for no pods, and its children are about to go.
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
    added = [resources.scale(role.per_pod, role.replicas) for role in own.roles if role.name in adapter.beside]
    together = resources.larger(own.resources, resources.total((grown, *added)))
    return replace(own, resources=together, shared=shared, stated=frozenset())


def check_template_labels(obj: dict[str, Any], adapter: Adapter, demand: Demand, group: str, lookup: Lookup) -> None:
    """Raise Malformed where an object's pod templates name another group than the one that it charges.

    What the template makes has its label, and a reader would think that another group pays. Call it when an object is
    created or moved. A stored object's template keeps the old group for a while after a move. `demand` is the object's.
    """
    if demand.roles and demand.named <= {group}:
        return
    try:
        sets = _pod_sets(obj, adapter, namespace_of(obj), lookup)
    except Malformed:
        if adapter.code is None:
            raise
        # The objects that such a kind refers to may be missing until it wants pods.
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
    """Return True if count/ counts a stored object that nothing above it pays for: it has not ended."""
    return not has_ended(obj, adapter)


def is_charged_for_pods(obj: dict[str, Any], adapter: Adapter, config: CountingConfig) -> bool:
    """Return True if a workload has ended and is charged for pods that still run (`demand_of_live_pods`)."""
    return bool(adapter.creates) and config.terminal == "live-pods" and has_ended(obj, adapter)


def is_terminated(pod: Mapping[str, Any]) -> bool:
    """Return True if a pod has ended."""
    status = pod.get("status")
    return isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")


def with_scale(obj: dict[str, Any], adapter: Adapter, replicas: int) -> dict[str, Any]:
    """Return a copy of the object with the number that its /scale subresource writes.

    Raises Malformed for what is no count, for kinds without /scale, and where the path leads through what is no map.
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
    """Return the replicas of an `autoscaling/v1` Scale; 0 where it has none. Raises Malformed."""
    replicas = expect_map(scale.get("spec"), "spec").get("replicas")
    return 0 if replicas is None else expect_count(replicas, "spec.replicas")


def references(obj: dict[str, Any], adapter: Adapter, lookup: Lookup | None, config: CountingConfig) -> list[Reference]:
    """Return the other objects on which the demand depends.

    A reference is (group, kind, namespace or "", name or "" for all of the kind). They are the lookups that
    `own_demand` makes, so both always agree. Without a lookup the references of a missing object stay unknown. Raises
    nothing.
    """
    recording = TrackingLookup(lookup or EmptyLookup())
    # Counting reports the error itself; a missing object is a valid answer here.
    with suppress(Malformed):
        own_demand(obj, adapter, recording, config)
    return list(recording.asked)
