"""What claims for devices got, as their status tells it.

This file alone reads allocations and ResourceSlices: each device is of the class of the request that it was given for
(docs/counting.md, "Allocated claims"), of its slice's model, and such a part of a card as it consumes. It does not
know what a claim may get at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bizrq.units.quantity import NANO
from bizrq.units.resources import total
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards
from bizrq.workloads.devices.dra import Claims, amount_of, devices_of, emitted, stands_for
from bizrq.workloads.devices.models import gpu_models, known_model
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import a_list, a_map, a_text, malformed, show

#: Attributes that name a device's model: NVIDIA's driver, and the drivers that follow the example.
_MODEL_ATTRIBUTES: Final = ("productName", "model")
_RESULTS: Final = "status.allocation.devices.results"

Slices: TypeAlias = Callable[[str, str], Sequence[Mapping[str, Any]]]
"""The ResourceSlices of a driver's pool."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a claim costs, and which models its devices show."""

    resources: Mapping[str, int]
    models: frozenset[str] = frozenset()


def of_allocation(claim: Mapping[str, Any], pods: PodSet, around: Claims, slices: Slices) -> Allocated:
    """What a claim got, or the most that it may get while nothing is allocated. Raises Malformed.

    Each device is of the class of the request that it was given for, and of the model that its ResourceSlice
    tells.
    """
    path = f"ResourceClaim {show(a_map(claim.get('metadata'), 'metadata').get('name'))}"
    allocation = a_map(a_map(claim.get("status"), f"{path}: status").get("allocation"), f"{path}: status.allocation")
    spec = claim.get("spec")
    if not allocation:
        return Allocated(devices_of(spec, f"{path}: spec", pods, around))
    classes = _classes(spec, f"{path}: spec.devices")
    where = f"{path}: status.allocation.devices"
    cost: dict[str, int] = {}
    models: set[str] = set()
    for index, given in enumerate(a_list(a_map(allocation.get("devices"), where).get("results"), f"{where}.results")):
        result = a_map(given, f"{where}.results[{index}]")
        if result.get("adminAccess") and not around.config.count_admin_access:
            continue
        name = classes.get(str(result.get("request")))
        if name is None:
            raise malformed(f"{where}.results[{index}].request", f"{show(result.get('request'))} is no request of it")
        device = _device(result, slices)
        model = _model_of(device, around.config)
        if model is not None:
            models.add(model)
        cost = total((cost, _of_device(name, result, device, model, where, pods, around, slices)))
    return Allocated(cost, frozenset(models))


def _classes(spec: object, path: str) -> dict[str, str]:
    """The device class of each request of a claim, and of each alternative as "request/alternative"."""
    classes: dict[str, str] = {}
    for given in a_list(a_map(a_map(spec, path).get("devices"), path).get("requests"), f"{path}.requests"):
        request = a_map(given, f"{path}.requests")
        name = str(request.get("name"))
        exactly = a_map(request.get("exactly"), f"{path}.requests.exactly") or request
        classes[name] = a_text(exactly.get("deviceClassName"), f"{path}.requests.exactly.deviceClassName")
        for one in a_list(request.get("firstAvailable"), f"{path}.requests.firstAvailable"):
            inner = a_map(one, f"{path}.requests.firstAvailable")
            key = f"{name}/{inner.get('name')}"
            classes[key] = a_text(inner.get("deviceClassName"), f"{path}.requests.firstAvailable.deviceClassName")
    return classes


def _device(result: Mapping[str, Any], slices: Slices) -> Mapping[str, Any]:
    """The device of a result as the newest generation of its pool tells it; empty where none does."""
    newest, found = -1, {}
    for held in slices(str(result.get("driver")), str(result.get("pool"))):
        spec = a_map(held.get("spec"), "ResourceSlice: spec")
        generation = a_map(spec.get("pool"), "ResourceSlice: spec.pool").get("generation")
        if not isinstance(generation, int) or generation < newest:
            continue
        if generation > newest:
            newest, found = generation, {}
        for device in a_list(spec.get("devices"), "ResourceSlice: spec.devices"):
            if isinstance(device, dict) and device.get("name") == result.get("device"):
                found = device
    return found


def _model_of(device: Mapping[str, Any], config: CountingConfig) -> str | None:
    """The model that a device's attributes name, as far as the configuration knows it."""
    attributes = a_map(device.get("attributes"), "ResourceSlice: attributes")
    for key in _MODEL_ATTRIBUTES:
        for name, value in sorted(attributes.items()):
            if name.rpartition("/")[2] == key and isinstance(value, dict) and isinstance(value.get("string"), str):
                return known_model(value["string"], config)
    return None


def _of_device(
    name: str,
    result: Mapping[str, Any],
    device: Mapping[str, Any],
    model: str | None,
    path: str,
    pods: PodSet,
    around: Claims,
    slices: Slices,
) -> dict[str, int]:
    resource, of_class = stands_for(name, path, around)
    part = _part(result, device, slices)
    models = (model,) if model is not None else (of_class,) if of_class is not None else None
    if models is None:
        models = gpu_models(around.labels, pods, around.config)
    return emitted(name, NANO, part, resource, models, around)


def _part(result: Mapping[str, Any], device: Mapping[str, Any], slices: Slices) -> int:
    """How much of a card a device is that was allocated: by its shared capacity, or by the counters that it uses.

    Whole, where neither is told.
    """
    shares: list[int] = []
    consumed = a_map(result.get("consumedCapacity"), f"{_RESULTS}.consumedCapacity")
    capacity = a_map(device.get("capacity"), "ResourceSlice: capacity")
    for name, amount in consumed.items():
        whole = amount_of(a_map(capacity.get(name), "ResourceSlice: capacity").get("value"))
        if whole:
            shares.append(cards.share(amount_of(amount), whole))
    counters = {
        str(group.get("name")): a_map(group.get("counters"), "ResourceSlice: sharedCounters")
        for held in slices(str(result.get("driver")), str(result.get("pool")))
        for group in a_list(a_map(held.get("spec"), "spec").get("sharedCounters"), "ResourceSlice: sharedCounters")
        if isinstance(group, dict)
    }
    for given in a_list(device.get("consumesCounters"), "ResourceSlice: consumesCounters"):
        used = a_map(given, "ResourceSlice: consumesCounters")
        whole = counters.get(str(used.get("counterSet")), {})
        for name, value in a_map(used.get("counters"), "ResourceSlice: counters").items():
            most = amount_of(a_map(whole.get(name), "ResourceSlice: counters").get("value"))
            if most:
                shares.append(cards.share(amount_of(a_map(value, "ResourceSlice: counters").get("value")), most))
    return max(shares, default=NANO)
