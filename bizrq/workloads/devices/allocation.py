"""Count the devices that were allocated to claims.

This file alone reads allocations and ResourceSlices (docs/counting.md, "Allocated claims"). Each device has the class
of the request that it serves, the model that its slice names, and costs the part of a card that it consumes. It does
not know the most that a claim may get: see `dra`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bizrq.units.quantity import NANO
from bizrq.units.resources import total
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards
from bizrq.workloads.devices.dra import ClaimContext, amount_of, charged_names, devices_of, mapped_resource
from bizrq.workloads.devices.models import gpu_models, known_model
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import describe_value, expect_list, expect_map, expect_text, malformed

#: Attributes that name a device's model: of NVIDIA's driver, and of drivers that follow the example driver.
_MODEL_ATTRIBUTES: Final = ("productName", "model")
_RESULTS: Final = "status.allocation.devices.results"

Slices: TypeAlias = Callable[[str, str], Sequence[Mapping[str, Any]]]
"""The ResourceSlices of a driver's pool."""


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    """The cost of a claim in nano-units by resource name, and the models that its devices show."""

    resources: Mapping[str, int]
    models: frozenset[str] = frozenset()


def allocation_cost(claim: Mapping[str, Any], pods: PodSet, context: ClaimContext, slices: Slices) -> AllocatedClaim:
    """Return what a claim was allocated, or the most that it may get while nothing is allocated. Raises Malformed.

    Each device has the class of the request that it was allocated for and the model that its ResourceSlice names.
    """
    path = f"ResourceClaim {describe_value(expect_map(claim.get('metadata'), 'metadata').get('name'))}"
    allocation = expect_map(
        expect_map(claim.get("status"), f"{path}: status").get("allocation"), f"{path}: status.allocation"
    )
    spec = claim.get("spec")
    if not allocation:
        return AllocatedClaim(devices_of(spec, f"{path}: spec", pods, context))
    classes = _classes(spec, f"{path}: spec.devices")
    where = f"{path}: status.allocation.devices"
    cost: dict[str, int] = {}
    models: set[str] = set()
    for index, given in enumerate(
        expect_list(expect_map(allocation.get("devices"), where).get("results"), f"{where}.results")
    ):
        result = expect_map(given, f"{where}.results[{index}]")
        if result.get("adminAccess") and not context.config.count_admin_access:
            continue
        name = classes.get(str(result.get("request")))
        if name is None:
            raise malformed(
                f"{where}.results[{index}].request",
                f"{describe_value(result.get('request'))} is not one of its requests",
            )
        device = _device(result, slices)
        model = _model_of(device, context.config)
        if model is not None:
            models.add(model)
        cost = total((cost, _of_device(name, result, device, model, where, pods, context, slices)))
    return AllocatedClaim(cost, frozenset(models))


def _classes(spec: object, path: str) -> dict[str, str]:
    """Return the device class of each request of a claim. The key of an alternative is "request/alternative"."""
    classes: dict[str, str] = {}
    for given in expect_list(
        expect_map(expect_map(spec, path).get("devices"), path).get("requests"), f"{path}.requests"
    ):
        request = expect_map(given, f"{path}.requests")
        name = str(request.get("name"))
        exactly = expect_map(request.get("exactly"), f"{path}.requests.exactly") or request
        classes[name] = expect_text(exactly.get("deviceClassName"), f"{path}.requests.exactly.deviceClassName")
        for one in expect_list(request.get("firstAvailable"), f"{path}.requests.firstAvailable"):
            inner = expect_map(one, f"{path}.requests.firstAvailable")
            key = f"{name}/{inner.get('name')}"
            classes[key] = expect_text(inner.get("deviceClassName"), f"{path}.requests.firstAvailable.deviceClassName")
    return classes


def _device(result: Mapping[str, Any], slices: Slices) -> Mapping[str, Any]:
    """Return the device of a result in the newest generation of its pool; empty where there is none."""
    newest, found = -1, {}
    for held in slices(str(result.get("driver")), str(result.get("pool"))):
        spec = expect_map(held.get("spec"), "ResourceSlice: spec")
        generation = expect_map(spec.get("pool"), "ResourceSlice: spec.pool").get("generation")
        if not isinstance(generation, int) or generation < newest:
            continue
        if generation > newest:
            newest, found = generation, {}
        for device in expect_list(spec.get("devices"), "ResourceSlice: spec.devices"):
            if isinstance(device, dict) and device.get("name") == result.get("device"):
                found = device
    return found


def _model_of(device: Mapping[str, Any], config: CountingConfig) -> str | None:
    """Return the model that a device's attributes name; None for one that the configuration does not know."""
    attributes = expect_map(device.get("attributes"), "ResourceSlice: attributes")
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
    context: ClaimContext,
    slices: Slices,
) -> dict[str, int]:
    resource, of_class = mapped_resource(name, path, context)
    part = _part(result, device, slices)
    models = (model,) if model is not None else (of_class,) if of_class is not None else None
    if models is None:
        models = gpu_models(context.labels, pods, context.config)
    return charged_names(name, NANO, part, resource, models, context)


def _part(result: Mapping[str, Any], device: Mapping[str, Any], slices: Slices) -> int:
    """Return the part of a card that an allocated device is, in billionths of a card.

    It follows from the consumed capacity or from the counters that the device uses. Without either it is the whole
    card.
    """
    shares: list[int] = []
    consumed = expect_map(result.get("consumedCapacity"), f"{_RESULTS}.consumedCapacity")
    capacity = expect_map(device.get("capacity"), "ResourceSlice: capacity")
    for name, amount in consumed.items():
        whole = amount_of(expect_map(capacity.get(name), "ResourceSlice: capacity").get("value"))
        if whole:
            shares.append(cards.share(amount_of(amount), whole))
    counters = {
        str(group.get("name")): expect_map(group.get("counters"), "ResourceSlice: sharedCounters")
        for held in slices(str(result.get("driver")), str(result.get("pool")))
        for group in expect_list(
            expect_map(held.get("spec"), "spec").get("sharedCounters"), "ResourceSlice: sharedCounters"
        )
        if isinstance(group, dict)
    }
    for given in expect_list(device.get("consumesCounters"), "ResourceSlice: consumesCounters"):
        used = expect_map(given, "ResourceSlice: consumesCounters")
        whole = counters.get(str(used.get("counterSet")), {})
        for name, value in expect_map(used.get("counters"), "ResourceSlice: counters").items():
            most = amount_of(expect_map(whole.get(name), "ResourceSlice: counters").get("value"))
            if most:
                shares.append(cards.share(amount_of(expect_map(value, "ResourceSlice: counters").get("value")), most))
    return max(shares, default=NANO)
