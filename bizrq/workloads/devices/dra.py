"""Count devices that pods claim (dynamic resource allocation, `resource.k8s.io`).

This file alone reads claims, claim templates and device classes. It counts a claim at the most that it may get;
`allocation` counts what it got. It does not know containers.

The rules are in docs/counting.md, "Claims", after Kubernetes v1.36 `pkg/quota/v1/evaluator/core/resource_claims.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bizrq.units import quantity
from bizrq.units.quantity import NANO, QuantityError
from bizrq.units.resources import larger, total
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards
from bizrq.workloads.devices.models import gpu_models, model_resource_name, same_model, takes_model
from bizrq.workloads.labels import LABEL, MODEL_LABELS, label_value, labels_of, role_labels
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, ResourceClass, resource_class
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import (
    describe_value,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    expect_text,
    get_path,
    malformed,
)

GROUP: Final = "resource.k8s.io"
CLAIM: Final = (GROUP, "ResourceClaim")
#: Alpha in Kubernetes 1.36: pods of one PodGroup share the claims that it names, too.
POD_GROUP: Final = ("scheduling.k8s.io", "PodGroup")
#: The kinds that Kubernetes makes claims for.
MADE_FOR: Final = ("Pod", POD_GROUP[1])
CLAIMS: Final = f"resourceclaims.{GROUP}"
POD_GROUPS: Final = "podgroups.scheduling.k8s.io"
#: The most devices that one request can get (AllocationResultsMaxSize).
MAX_DEVICES: Final = 32
#: As many objects are asked for at once.
_AT_ONCE: Final = 32
_SOURCES: Final = ("resourceClaimTemplateName", "resourceClaimName")


@dataclass(frozen=True)
class ClaimContext:
    """The parts of a workload and its surroundings on which the cost of its claims depends."""

    labels: Mapping[str, Any]
    namespace: str
    lookup: Lookup
    config: CountingConfig

    def of(self, pods: PodSet) -> ClaimContext:
        """Return the context of one set of pods; its template may name models of its own."""
        labels = role_labels(self.labels, pods.labels)
        return self if labels is self.labels else replace(self, labels=labels)


def without_claims(pods: PodSet) -> PodSet:
    """Return a set of pods that names no claims."""
    return replace(pods, spec={key: value for key, value in pods.spec.items() if key != "resourceClaims"})


def template_claims_cost(pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """Return what the claims that are made for each pod cost one pod. Raises Malformed.

    Every entry makes a claim of its own, whether a container uses it or not.
    """
    cost: dict[str, int] = {}
    for entry in claim_references(pods, context):
        if entry.place is None:
            cost = total((cost, _of_template(entry, pods, context)))
    return cost


def shared_claims_cost(pods: PodSet, context: ClaimContext) -> dict[Slot, dict[str, int]]:
    """Return the cost of each claim that pods share, by its slot. Each counts once for all the pods. Raises Malformed.

    A claim that itself names another group is Malformed, too.
    """
    costs: dict[Slot, dict[str, int]] = {}
    for entry in claim_references(pods, context):
        if entry.place is None:
            continue
        if entry.is_template:
            costs[entry.place] = _of_template(entry, pods, context)
            continue
        claim = context.lookup.get(*CLAIM, context.namespace, entry.names)
        if claim is None:
            raise malformed(entry.path, f"ResourceClaim {describe_value(entry.names)} was not found")
        group, payer = label_value(context.labels, LABEL), claim_group(claim)
        if group and payer and group != payer:
            raise malformed(entry.path, claim_conflict(entry.place, payer, group))
        costs[entry.place] = devices_of(
            claim.get("spec"), f"{entry.path} -> {describe_value(entry.names)}: spec", pods, context
        )
    return costs


def claim_cost(claim: Mapping[str, Any], context: ClaimContext) -> dict[str, int]:
    """Return the cost of a claim alone, regardless of its users. Raises Malformed."""
    name = describe_value(expect_map(claim.get("metadata"), "metadata").get("name"))
    pods = PodSet("claim", 0, {}, f"ResourceClaim {name}")
    return devices_of(claim.get("spec"), f"ResourceClaim {name}: spec", pods, replace(context, labels=labels_of(claim)))


def claim_group(claim: Mapping[str, Any]) -> str | None:
    """Return the group that a claim itself names. Raises Malformed for an invalid label.

    None for a claim that is made for a pod: its label comes from a template.
    """
    return None if is_made_for_pod(claim) else label_value(labels_of(claim), LABEL)


def is_made_for_pod(claim: Mapping[str, Any]) -> bool:
    """Return True if a pod owns the claim. Raises Malformed."""
    return any(owner.get("kind") == "Pod" for owner in owners_of(claim))


def owners_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ownerReferences of a claim. Raises Malformed."""
    owners = expect_map(claim.get("metadata"), "metadata").get("ownerReferences")
    return [owner for owner in expect_list(owners, "metadata.ownerReferences") if isinstance(owner, dict)]


def claim_conflict(place: Slot, payer: str, group: str) -> str:
    """Return the message for a claim that another group pays for."""
    kind = "ResourceClaim" if place.kind == CLAIMS else "claim of PodGroup"
    return f"{kind} {describe_value(place.name)} is charged to group {payer}, not to {group}"


def implicit_claims_cost(requests: Mapping[str, int], pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """Return what containers cost that ask for a class by its implicit name, without that name itself."""
    cost: dict[str, int] = {}
    for name, amount in requests.items():
        if name.startswith(IMPLICIT_CLASS) and amount:
            name_of_class = name.removeprefix(IMPLICIT_CLASS)
            found = _of_class(name_of_class, amount, pods.path, pods, context)
            _refuse_contradiction([(name_of_class, pods.path)], context)
            found.pop(f"requests.{name}", None)
            cost = total((cost, found))
    return cost


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """One entry of a pod's `resourceClaims`: its `name`, and the claim or template that it `names`.

    `path` is the place of the entry. `place` is the slot of a claim that pods share; None where each pod has its own.
    """

    name: str
    names: str
    path: str
    is_template: bool
    place: Slot | None


def claim_references(pods: PodSet, context: ClaimContext) -> list[ClaimReference]:
    """Return the entries of `resourceClaims` in their order. Raises Malformed."""
    found: list[ClaimReference] = []
    path = f"{pods.path}.resourceClaims"
    given = expect_list(pods.spec.get("resourceClaims"), path)
    group, of_group = _pod_group(pods, context) if given else ("", ())
    for index, one in enumerate(given):
        where = f"{path}[{index}]"
        entry = expect_map(one, where)
        names = {key: entry[key] for key in _SOURCES if entry.get(key) is not None}
        if len(names) != 1:
            raise malformed(where, "needs either resourceClaimTemplateName or resourceClaimName")
        [(key, value)] = names.items()
        name, where = expect_text(entry.get("name"), f"{where}.name"), f"{where}.{key}"
        names_it, is_template, place = expect_text(value, where), key != "resourceClaimName", None
        if not is_template:
            place = Slot(CLAIMS, context.namespace, names_it)
        elif any(all(other.get(k) == entry.get(k) for k in ("name", *_SOURCES)) for other in of_group):
            place = Slot(POD_GROUPS, context.namespace, f"{group}.{name}")
        found.append(ClaimReference(name, names_it, where, is_template, place))
    _ask(found, context)
    return found


def _ask(entries: Iterable[ClaimReference], context: ClaimContext) -> None:
    """Ask for the first `_AT_ONCE` objects that are not known: a count ends at the first, and asks for it alone."""
    missing = 0
    for entry in entries:
        kind = (GROUP, "ResourceClaimTemplate") if entry.is_template else CLAIM
        missing += context.lookup.get(*kind, context.namespace, entry.names) is None
        if missing == _AT_ONCE:
            return


def _pod_group(pods: PodSet, context: ClaimContext) -> tuple[str, Sequence[dict[str, Any]]]:
    """Return the name of the pods' PodGroup and the claims that it names."""
    path = f"{pods.path}.schedulingGroup.podGroupName"
    name = expect_text(get_path(pods.spec, ("schedulingGroup", "podGroupName"), pods.path), path)
    group = context.lookup.get(*POD_GROUP, context.namespace, name) if name else None
    claims = (
        get_path(group, ("spec", "resourceClaims"), f"PodGroup {describe_value(name)}") if group is not None else None
    )
    return name, [claim for claim in expect_list(claims, f"PodGroup {describe_value(name)}") if isinstance(claim, dict)]


def _of_template(entry: ClaimReference, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """Return the most that a claim of a template may get."""
    template = context.lookup.get(GROUP, "ResourceClaimTemplate", context.namespace, entry.names)
    if template is None:
        raise malformed(entry.path, f"ResourceClaimTemplate {describe_value(entry.names)} was not found")
    spec = expect_map(template.get("spec"), f"{entry.path} -> spec")
    return devices_of(spec.get("spec"), f"{entry.path} -> {describe_value(entry.names)}: spec.spec", pods, context)


def devices_of(spec: object, path: str, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    """Return the most that a claim of this spec may get."""
    path = f"{path}.devices"
    devices = expect_map(expect_map(spec, path).get("devices"), path)
    cost: dict[str, int] = {}
    for index, given in enumerate(expect_list(devices.get("requests"), f"{path}.requests")):
        where = f"{path}.requests[{index}]"
        # Exactly one alternative is allocated, so the largest amount of each name counts.
        most: dict[str, int] = {}
        classes: list[tuple[str, str]] = []
        for one, inner in _alternatives(expect_map(given, where), where):
            if found := _request(one, inner, pods, context):
                most = larger(most, found)
                classes.append((one.get("deviceClassName") or "", f"{inner}.deviceClassName"))
        _refuse_contradiction(classes, context)
        cost = total((cost, most))
    return cost


def _alternatives(request: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the alternatives of a request, each with its path."""
    given = expect_list(request.get("firstAvailable"), f"{path}.firstAvailable")
    if given:
        places = [f"{path}.firstAvailable[{index}]" for index in range(len(given))]
        return [(expect_map(one, place), place) for one, place in zip(given, places, strict=True)]
    if request.get("exactly") is not None:
        return [(expect_map(request["exactly"], f"{path}.exactly"), f"{path}.exactly")]
    # The form of v1beta1.
    return [(request, path)]


def _refuse_contradiction(classes: Sequence[tuple[str, str]], context: ClaimContext) -> None:
    """Raise Malformed where the workload declares a model that none of these classes has.

    `classes` are names with their paths.
    """
    declared = label_value(context.labels, MODEL_LABELS["gpu"])
    if declared is None:
        return
    others: list[str] = []
    for name, path in classes:
        model = mapped_resource(name, path, context)[1]
        if model is None or same_model(declared, model, context.config):
            return
        others.append(f"devices of class {describe_value(name)} are {describe_value(model)}")
    if others:
        said = f"{describe_value(declared)} contradicts {classes[0][1]}: {', '.join(others)}"
        raise malformed(f"metadata.labels.{MODEL_LABELS['gpu']}", said)


def _request(request: dict[str, Any], path: str, pods: PodSet, context: ClaimContext) -> dict[str, int]:
    mode = expect_text(request.get("allocationMode"), f"{path}.allocationMode")
    if mode in ("", "ExactCount"):
        given = request.get("count")
        number = expect_count(given, f"{path}.count") or 1 if given is not None else 1
    elif mode == "All":
        number = MAX_DEVICES
    else:
        # An unknown mode allocates nothing, as in native quota.
        return {}
    if expect_bool(request.get("adminAccess"), f"{path}.adminAccess") and not context.config.count_admin_access:
        return {}
    name = expect_text(request.get("deviceClassName"), f"{path}.deviceClassName")
    capacity = expect_map(
        expect_map(request.get("capacity"), f"{path}.capacity").get("requests"), f"{path}.capacity.requests"
    )
    return _of_class(name, number * NANO, f"{path}.deviceClassName", pods, context, capacity)


def amount_of(value: object) -> int:
    """Return a quantity from the API server or a driver in nano-units; 0 for what is no quantity."""
    try:
        return quantity.parse(value) if isinstance(value, str | int) else 0
    except QuantityError:
        return 0


def _of_class(
    name: str, amount: int, path: str, pods: PodSet, context: ClaimContext, capacity: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """Return the cost of devices of a class under every name that they are charged by. `amount` is in nano-units."""
    resource, model = mapped_resource(name, path, context)
    models: tuple[str, ...] = (model,) if model is not None else ()
    if model is None and _takes_models(name, resource, context):
        models = gpu_models(context.labels, pods, context.config)
    return charged_names(name, amount, _requested(capacity, models, context), resource, models, context)


def _takes_models(name: str, resource: str, context: ClaimContext) -> bool:
    """Return True if devices of a class have models: the class or its extended resource is a GPU."""
    catalog = context.config.catalog
    return takes_model(f"requests.{IMPLICIT_CLASS}{name}", catalog) or takes_model(f"requests.{resource}", catalog)


def charged_names(
    name: str, amount: int, part: int, resource: str, models: Sequence[str], context: ClaimContext
) -> dict[str, int]:
    """Return `amount` devices of a class under every name that they are charged by.

    Each device is `part` of a card, in billionths.
    """
    catalog = context.config.catalog
    cost = {f"{name}.deviceclass.resource.k8s.io/devices": amount, f"requests.{IMPLICIT_CLASS}{name}": amount}
    if resource:
        cost[f"requests.{resource}"] = cost[f"limits.{resource}"] = amount
        if context.config.counts_cards and takes_model(f"cards.{resource}", catalog):
            cost[f"cards.{resource}"] = amount // NANO * part
    for base in [base for base in cost if takes_model(base, catalog)]:
        for model in models:
            cost[model_resource_name(base, model, MODEL_LABELS["gpu"], catalog)] = cost[base]
    return cost


def _requested(capacity: Mapping[str, Any] | None, models: Sequence[str], context: ClaimContext) -> int:
    """Return the part of a card that a request for memory asks for; the whole where the card's size is not known.

    It follows from the configuration alone: admission and the recount must agree, whatever devices exist.
    """
    memory = cards.card_memory(models, context.config)
    if not capacity or memory is None or set(capacity) != {"memory"}:
        return NANO
    return cards.share(amount_of(capacity["memory"]), memory[0] * 2**20 * NANO) or NANO


def mapped_resource(name: str, path: str, context: ClaimContext) -> tuple[str, str | None]:
    """Return the extended resource ("" for none) and the model that an administrator maps a device class to."""
    mapped = context.config.device_class_mappings.get(name)
    if mapped is not None and mapped.model:
        return mapped.resource, mapped.model
    found = context.lookup.get(GROUP, "DeviceClass", "", name)
    if found is None:
        if mapped is None:
            raise malformed(path, f"DeviceClass {describe_value(name)} was not found")
        return mapped.resource, None
    model = label_value(labels_of(found), MODEL_LABELS["gpu"])
    if mapped is not None:
        return mapped.resource, model
    where = f"{path} -> {describe_value(name)}: spec.extendedResourceName"
    resource = expect_text(expect_map(found.get("spec"), where).get("extendedResourceName"), where)
    if resource and (len(resource) > 317 or resource_class(resource) is not ResourceClass.EXTENDED):
        raise malformed(where, f"{describe_value(resource)} is not an extended resource")
    return resource, model
