"""What devices by claim cost (dynamic resource allocation, `resource.k8s.io`).

This file alone reads resource claims, claim templates and device classes. It does not know containers.

Rules D1 to D10 of the devices' specification, after Kubernetes v1.36 `pkg/quota/v1/evaluator/core/resource_claims.go`.
A claim is counted at the most that it may get; what it got is for whoever sees its status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bizrq.quota.quantity import NANO
from bizrq.quota.resources import larger, total
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.labels import LABEL, MODEL_LABELS, label, labels_of
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.malformed import a_count, a_flag, a_list, a_map, a_text, malformed, show
from bizrq.workloads.models import emitted_name, gpu_models, same_model, takes_model
from bizrq.workloads.podspec import IMPLICIT_CLASS, Sort, sort_of
from bizrq.workloads.roles import PodSet

GROUP: Final = "resource.k8s.io"
#: As many devices as one request can get at all (AllocationResultsMaxSize).
MOST_DEVICES: Final = 32


@dataclass(frozen=True)
class Claims:
    """What counting claims has to know of the workload."""

    labels: Mapping[str, Any]
    namespace: str
    lookup: Lookup
    config: CountingConfig


def of_templates(pods: PodSet, around: Claims) -> dict[str, int]:
    """What the claims that are made for each pod cost that pod. Raises Malformed.

    Every entry is a claim of its own, whether a container uses it or not (D1, D3).
    """
    cost: dict[str, int] = {}
    for name, path in _named(pods, "resourceClaimTemplateName"):
        template = around.lookup.get(GROUP, "ResourceClaimTemplate", around.namespace, name)
        if template is None:
            raise malformed(path, f"ResourceClaimTemplate {show(name)} was not found")
        spec = a_map(template.get("spec"), f"{path} -> spec")
        cost = total((cost, _devices(spec.get("spec"), f"{path} -> {show(name)}: spec.spec", pods, around)))
    return cost


def of_shared(pods: PodSet, around: Claims) -> dict[str, dict[str, int]]:
    """What each claim costs that all the pods share, by its name: once, however many pods there are (D2).

    Raises Malformed, also for a claim that says itself that another group pays for it.
    """
    costs: dict[str, dict[str, int]] = {}
    for name, path in _named(pods, "resourceClaimName"):
        claim = around.lookup.get(GROUP, "ResourceClaim", around.namespace, name)
        if claim is None:
            raise malformed(path, f"ResourceClaim {show(name)} was not found")
        group, payer = label(around.labels, LABEL), label(labels_of(claim), LABEL)
        if group and payer and group != payer:
            raise malformed(path, f"ResourceClaim {show(name)} is charged to group {payer}, not to {group}")
        costs[name] = _devices(claim.get("spec"), f"{path} -> {show(name)}: spec", pods, around)
    return costs


def of_implicit(requests: Mapping[str, int], pods: PodSet, around: Claims) -> dict[str, int]:
    """What containers cost that ask for a class by its implicit name, besides that name itself (D7)."""
    cost: dict[str, int] = {}
    for name, amount in requests.items():
        if name.startswith(IMPLICIT_CLASS) and amount:
            found = _of_class(name.removeprefix(IMPLICIT_CLASS), amount, pods.path, pods, around)
            found.pop(f"requests.{name}", None)
            cost = total((cost, found))
    return cost


def _named(pods: PodSet, field: str) -> list[tuple[str, str]]:
    """The claims that pods name in this field, each with its place."""
    found: list[tuple[str, str]] = []
    path = f"{pods.path}.resourceClaims"
    for index, given in enumerate(a_list(pods.spec.get("resourceClaims"), path)):
        where = f"{path}[{index}]"
        entry = a_map(given, where)
        names = {key: entry.get(key) for key in ("resourceClaimTemplateName", "resourceClaimName")}
        if sum(value is not None for value in names.values()) != 1:
            raise malformed(where, "needs either resourceClaimTemplateName or resourceClaimName")
        if names[field] is not None:
            found.append((a_text(names[field], f"{where}.{field}"), f"{where}.{field}"))
    return found


def _devices(spec: object, path: str, pods: PodSet, around: Claims) -> dict[str, int]:
    """The most that a claim of this spec may get."""
    path = f"{path}.devices"
    devices = a_map(a_map(spec, path).get("devices"), path)
    cost: dict[str, int] = {}
    for index, given in enumerate(a_list(devices.get("requests"), f"{path}.requests")):
        where = f"{path}.requests[{index}]"
        request = a_map(given, where)
        alternatives = request.get("firstAvailable")
        if alternatives:
            # Exactly one of them comes true: per name the most that any of them needs (D5).
            most: dict[str, int] = {}
            for number, one in enumerate(a_list(alternatives, f"{where}.firstAvailable")):
                inner = f"{where}.firstAvailable[{number}]"
                most = larger(most, _request(a_map(one, inner), inner, pods, around))
            cost = total((cost, most))
        elif request.get("exactly") is not None:
            where = f"{where}.exactly"
            cost = total((cost, _request(a_map(request["exactly"], where), where, pods, around)))
        else:
            # As v1beta1 writes it.
            cost = total((cost, _request(request, where, pods, around)))
    return cost


def _request(request: dict[str, Any], path: str, pods: PodSet, around: Claims) -> dict[str, int]:
    mode = a_text(request.get("allocationMode"), f"{path}.allocationMode")
    if mode in ("", "ExactCount"):
        given = request.get("count")
        number = a_count(given, f"{path}.count") or 1 if given is not None else 1
    elif mode == "All":
        number = MOST_DEVICES
    else:
        raise malformed(f"{path}.allocationMode", f"must be ExactCount or All, not {show(mode)}")
    if a_flag(request.get("adminAccess"), f"{path}.adminAccess") and not around.config.count_admin_access:
        return {}
    name = a_text(request.get("deviceClassName"), f"{path}.deviceClassName")
    return _of_class(name, number * NANO, f"{path}.deviceClassName", pods, around)


def _of_class(name: str, amount: int, path: str, pods: PodSet, around: Claims) -> dict[str, int]:
    """So many devices of a class, under every name that they are charged by (D7, D10)."""
    resource, model = _stands_for(name, path, around)
    cost = {f"{name}.deviceclass.resource.k8s.io/devices": amount, f"requests.{IMPLICIT_CLASS}{name}": amount}
    if resource:
        cost[f"requests.{resource}"] = cost[f"limits.{resource}"] = amount
    bases = [base for base in cost if takes_model(base, around.config.catalog)]
    if bases:
        for found in _models(model, name, path, pods, around):
            for base in bases:
                cost[emitted_name(base, found, MODEL_LABELS["gpu"], around.config.catalog)] = amount
    return cost


def _stands_for(name: str, path: str, around: Claims) -> tuple[str, str | None]:
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


def _models(of_class: str | None, name: str, path: str, pods: PodSet, around: Claims) -> tuple[str, ...]:
    """The class's own model before the workload's. Raises Malformed where the two contradict each other."""
    proved: Callable[[], tuple[str, ...]] = lambda: gpu_models(around.labels, pods, around.config)  # noqa: E731
    if of_class is None:
        return proved()
    declared = label(around.labels, MODEL_LABELS["gpu"])
    if declared is not None and not same_model(declared, of_class, around.config):
        raise malformed(
            f"metadata.labels.{MODEL_LABELS['gpu']}",
            f"{show(declared)} contradicts {path}: devices of class {show(name)} are {show(of_class)}",
        )
    return (of_class,)
