"""What devices by claim cost (dynamic resource allocation, `resource.k8s.io`).

This file alone reads what claims, claim templates and device classes say. A claim is counted at the most that it may
get; what it got is `allocation.py`'s. It does not know containers.

The rules: docs/counting.md, "Claims", after Kubernetes v1.36 `pkg/quota/v1/evaluator/core/resource_claims.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bizrq.units import quantity
from bizrq.units.quantity import NANO, QuantityError
from bizrq.units.resources import larger, total
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards
from bizrq.workloads.devices.models import emitted_name, gpu_models, same_model, takes_model
from bizrq.workloads.labels import LABEL, MODEL_LABELS, label, labels_of, of_role
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, Sort, sort_of
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import a_count, a_flag, a_list, a_map, a_text, at, malformed, show

GROUP: Final = "resource.k8s.io"
CLAIM: Final = (GROUP, "ResourceClaim")
#: An alpha of Kubernetes 1.36: pods of one PodGroup share the claims that it names as they do.
POD_GROUP: Final = ("scheduling.k8s.io", "PodGroup")
CLAIMS: Final = f"resourceclaims.{GROUP}"
POD_GROUPS: Final = "podgroups.scheduling.k8s.io"
#: As many devices as one request can get at all (AllocationResultsMaxSize).
MOST_DEVICES: Final = 32
_SOURCES: Final = ("resourceClaimTemplateName", "resourceClaimName")


@dataclass(frozen=True)
class Claims:
    """What counting claims has to know of the workload."""

    labels: Mapping[str, Any]
    namespace: str
    lookup: Lookup
    config: CountingConfig

    def of(self, pods: PodSet) -> Claims:
        """The same for one set of pods, whose template may name models of its own."""
        labels = of_role(self.labels, pods.labels)
        return self if labels is self.labels else replace(self, labels=labels)


def of_templates(pods: PodSet, around: Claims) -> dict[str, int]:
    """What the claims that are made for each pod cost that pod. Raises Malformed.

    Every entry is a claim of its own, whether a container uses it or not.
    """
    cost: dict[str, int] = {}
    for entry in entries(pods, around):
        if entry.place is None:
            cost = total((cost, _of_template(entry, pods, around)))
    return cost


def of_shared(pods: PodSet, around: Claims) -> dict[Slot, dict[str, int]]:
    """What each claim costs that pods share, by the place that it is charged in: once, however many there are.

    Raises Malformed, also for a claim that says itself that another group pays for it.
    """
    costs: dict[Slot, dict[str, int]] = {}
    for entry in entries(pods, around):
        if entry.place is None:
            continue
        if entry.is_template:
            costs[entry.place] = _of_template(entry, pods, around)
            continue
        claim = around.lookup.get(*CLAIM, around.namespace, entry.names)
        if claim is None:
            raise malformed(entry.path, f"ResourceClaim {show(entry.names)} was not found")
        group, payer = label(around.labels, LABEL), payer_of_claim(claim)
        if group and payer and group != payer:
            raise malformed(entry.path, of_another(entry.place, payer, group))
        costs[entry.place] = devices_of(claim.get("spec"), f"{entry.path} -> {show(entry.names)}: spec", pods, around)
    return costs


def of_claim(claim: Mapping[str, Any], around: Claims) -> dict[str, int]:
    """What a claim costs by itself, whoever uses it. Raises Malformed."""
    name = show(a_map(claim.get("metadata"), "metadata").get("name"))
    pods = PodSet("claim", 0, {}, f"ResourceClaim {name}")
    return devices_of(claim.get("spec"), f"ResourceClaim {name}: spec", pods, replace(around, labels=labels_of(claim)))


def payer_of_claim(claim: Mapping[str, Any]) -> str | None:
    """The group that a claim itself names. Not for those that are made for a pod: their label came from a template.

    Raises Malformed for a label that is none.
    """
    return None if is_of_pod(claim) else label(labels_of(claim), LABEL)


def is_of_pod(claim: Mapping[str, Any]) -> bool:
    """Whether a claim was made for a pod. Raises Malformed."""
    owners = a_list(a_map(claim.get("metadata"), "metadata").get("ownerReferences"), "metadata.ownerReferences")
    return any(isinstance(owner, dict) and owner.get("kind") == "Pod" for owner in owners)


def of_another(place: Slot, payer: str, group: str) -> str:
    """Why a claim is not this group's to use."""
    kind = "ResourceClaim" if place.kind == CLAIMS else "claim of PodGroup"
    return f"{kind} {show(place.name)} is charged to group {payer}, not to {group}"


def of_implicit(requests: Mapping[str, int], pods: PodSet, around: Claims) -> dict[str, int]:
    """What containers cost that ask for a class by its implicit name, besides that name itself."""
    cost: dict[str, int] = {}
    for name, amount in requests.items():
        if name.startswith(IMPLICIT_CLASS) and amount:
            name_of_class = name.removeprefix(IMPLICIT_CLASS)
            found = _of_class(name_of_class, amount, pods.path, pods, around)
            _refuse_contradiction([(name_of_class, pods.path)], around)
            found.pop(f"requests.{name}", None)
            cost = total((cost, found))
    return cost


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim that pods name: as `name`, the claim or the template that it `names`, and where that stands.

    `place` is where it is charged once for all that share it; None where each pod has its own.
    """

    name: str
    names: str
    path: str
    is_template: bool
    place: Slot | None


def entries(pods: PodSet, around: Claims) -> list[Entry]:
    """The claims that pods name, in their order. Raises Malformed."""
    found: list[Entry] = []
    path = f"{pods.path}.resourceClaims"
    given = a_list(pods.spec.get("resourceClaims"), path)
    group, of_group = _pod_group(pods, around) if given else ("", ())
    for index, one in enumerate(given):
        where = f"{path}[{index}]"
        entry = a_map(one, where)
        names = {key: entry[key] for key in _SOURCES if entry.get(key) is not None}
        if len(names) != 1:
            raise malformed(where, "needs either resourceClaimTemplateName or resourceClaimName")
        [(key, value)] = names.items()
        name, where = a_text(entry.get("name"), f"{where}.name"), f"{where}.{key}"
        names_it, is_template, place = a_text(value, where), key != "resourceClaimName", None
        if not is_template:
            place = Slot(CLAIMS, around.namespace, names_it)
        elif any(all(other.get(k) == entry.get(k) for k in ("name", *_SOURCES)) for other in of_group):
            place = Slot(POD_GROUPS, around.namespace, f"{group}.{name}")
        found.append(Entry(name, names_it, where, is_template, place))
    return found


def _pod_group(pods: PodSet, around: Claims) -> tuple[str, Sequence[dict[str, Any]]]:
    """The PodGroup that pods belong to, and the claims that it names."""
    path = f"{pods.path}.schedulingGroup.podGroupName"
    name = a_text(at(pods.spec, ("schedulingGroup", "podGroupName"), pods.path), path)
    group = around.lookup.get(*POD_GROUP, around.namespace, name) if name else None
    claims = at(group, ("spec", "resourceClaims"), f"PodGroup {show(name)}") if group is not None else None
    return name, [claim for claim in a_list(claims, f"PodGroup {show(name)}") if isinstance(claim, dict)]


def _of_template(entry: Entry, pods: PodSet, around: Claims) -> dict[str, int]:
    """What a claim of a template may get at most."""
    template = around.lookup.get(GROUP, "ResourceClaimTemplate", around.namespace, entry.names)
    if template is None:
        raise malformed(entry.path, f"ResourceClaimTemplate {show(entry.names)} was not found")
    spec = a_map(template.get("spec"), f"{entry.path} -> spec")
    return devices_of(spec.get("spec"), f"{entry.path} -> {show(entry.names)}: spec.spec", pods, around)


def devices_of(spec: object, path: str, pods: PodSet, around: Claims) -> dict[str, int]:
    """The most that a claim of this spec may get."""
    path = f"{path}.devices"
    devices = a_map(a_map(spec, path).get("devices"), path)
    cost: dict[str, int] = {}
    for index, given in enumerate(a_list(devices.get("requests"), f"{path}.requests")):
        where = f"{path}.requests[{index}]"
        # Exactly one of them comes true: per name the most that any of them needs.
        most: dict[str, int] = {}
        classes: list[tuple[str, str]] = []
        for one, inner in _alternatives(a_map(given, where), where):
            if found := _request(one, inner, pods, around):
                most = larger(most, found)
                classes.append((one.get("deviceClassName") or "", f"{inner}.deviceClassName"))
        _refuse_contradiction(classes, around)
        cost = total((cost, most))
    return cost


def _alternatives(request: dict[str, Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """What a request may come to, each with its path."""
    given = a_list(request.get("firstAvailable"), f"{path}.firstAvailable")
    if given:
        places = [f"{path}.firstAvailable[{index}]" for index in range(len(given))]
        return [(a_map(one, place), place) for one, place in zip(given, places, strict=True)]
    if request.get("exactly") is not None:
        return [(a_map(request["exactly"], f"{path}.exactly"), f"{path}.exactly")]
    # As v1beta1 writes it.
    return [(request, path)]


def _refuse_contradiction(classes: Sequence[tuple[str, str]], around: Claims) -> None:
    """Raises Malformed where the workload declares a model that none of these classes, given with their paths, has."""
    declared = label(around.labels, MODEL_LABELS["gpu"])
    if declared is None:
        return
    others: list[str] = []
    for name, path in classes:
        model = stands_for(name, path, around)[1]
        if model is None or same_model(declared, model, around.config):
            return
        others.append(f"devices of class {show(name)} are {show(model)}")
    if others:
        said = f"{show(declared)} contradicts {classes[0][1]}: {', '.join(others)}"
        raise malformed(f"metadata.labels.{MODEL_LABELS['gpu']}", said)


def _request(request: dict[str, Any], path: str, pods: PodSet, around: Claims) -> dict[str, int]:
    mode = a_text(request.get("allocationMode"), f"{path}.allocationMode")
    if mode in ("", "ExactCount"):
        given = request.get("count")
        number = a_count(given, f"{path}.count") or 1 if given is not None else 1
    elif mode == "All":
        number = MOST_DEVICES
    else:
        # A mode that is not known allocates nothing that is, as natively.
        return {}
    if a_flag(request.get("adminAccess"), f"{path}.adminAccess") and not around.config.count_admin_access:
        return {}
    name = a_text(request.get("deviceClassName"), f"{path}.deviceClassName")
    capacity = a_map(a_map(request.get("capacity"), f"{path}.capacity").get("requests"), f"{path}.capacity.requests")
    return _of_class(name, number * NANO, f"{path}.deviceClassName", pods, around, capacity)


def amount_of(value: object) -> int:
    """A quantity that the API server or a driver wrote; what is none is 0."""
    try:
        return quantity.parse(value) if isinstance(value, str | int) else 0
    except QuantityError:
        return 0


def _of_class(
    name: str, amount: int, path: str, pods: PodSet, around: Claims, capacity: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """So many devices of a class, under every name that they are charged by."""
    resource, model = stands_for(name, path, around)
    models: tuple[str, ...] = (model,) if model is not None else ()
    if model is None and _takes_models(name, resource, around):
        models = gpu_models(around.labels, pods, around.config)
    return emitted(name, amount, _requested(capacity, models, around), resource, models, around)


def _takes_models(name: str, resource: str, around: Claims) -> bool:
    """Whether devices of a class have models: mapped to a GPU, or by what they stand for."""
    catalog = around.config.catalog
    return takes_model(f"requests.{IMPLICIT_CLASS}{name}", catalog) or takes_model(f"requests.{resource}", catalog)


def emitted(name: str, amount: int, part: int, resource: str, models: Sequence[str], around: Claims) -> dict[str, int]:
    """So many devices of a class, each of them such a part of a card."""
    catalog = around.config.catalog
    cost = {f"{name}.deviceclass.resource.k8s.io/devices": amount, f"requests.{IMPLICIT_CLASS}{name}": amount}
    if resource:
        cost[f"requests.{resource}"] = cost[f"limits.{resource}"] = amount
        if around.config.counts_cards and takes_model(f"cards.{resource}", catalog):
            cost[f"cards.{resource}"] = amount // NANO * part
    for base in [base for base in cost if takes_model(base, catalog)]:
        for model in models:
            cost[emitted_name(base, model, MODEL_LABELS["gpu"], catalog)] = cost[base]
    return cost


def _requested(capacity: Mapping[str, Any] | None, models: Sequence[str], around: Claims) -> int:
    """The part of a card that a request for some of its memory is; whole where its size is not known.

    From the configuration alone: admission and the recount have to say the same, whatever devices there are.
    """
    memory = cards.card_memory(models, around.config)
    if not capacity or memory is None or set(capacity) != {"memory"}:
        return NANO
    return cards.share(amount_of(capacity["memory"]), memory[0] * 2**20 * NANO) or NANO


def stands_for(name: str, path: str, around: Claims) -> tuple[str, str | None]:
    """The extended resource ("" for none) and the model that a device class is, as an administrator says."""
    mapped = around.config.device_class_mappings.get(name)
    if mapped is not None and mapped.model:
        return mapped.resource, mapped.model
    found = around.lookup.get(GROUP, "DeviceClass", "", name)
    if found is None:
        if mapped is None:
            raise malformed(path, f"DeviceClass {show(name)} was not found")
        return mapped.resource, None
    model = label(labels_of(found), MODEL_LABELS["gpu"])
    if mapped is not None:
        return mapped.resource, model
    where = f"{path} -> {show(name)}: spec.extendedResourceName"
    resource = a_text(a_map(found.get("spec"), where).get("extendedResourceName"), where)
    if resource and (len(resource) > 317 or sort_of(resource) is not Sort.EXTENDED):
        raise malformed(where, f"{show(resource)} is no extended resource")
    return resource, model
