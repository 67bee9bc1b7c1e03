"""Compute the cost of one pod from its PodSpec.

This file alone does the arithmetic that Kubernetes does with a pod: defaults, init containers and sidecars, pod-level
resources, overhead. It does not know roles, labels, models or DRA claims (`devices.dra`).

Sources, of Kubernetes v1.36: defaults of a Pod, `pkg/apis/core/v1/defaults.go` (SetDefaults_Pod, which the API server
does not apply to templates). Sums, `component-helpers/resource/helpers.go` (PodRequests, PodLimits). Names and amounts
of resources, `pkg/apis/core/validation` (ValidateContainerResourceName, ValidateResourceRequirements), which the API
server does not apply to custom resources. LimitRange, `plugin/pkg/admission/limitranger`. "must specify",
`pkg/quota/v1/evaluator/core/pods.go`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from bizrq.units import quantity
from bizrq.units.quantity import NANO, QuantityError
from bizrq.units.times import LONGEST
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.validation import (
    child_path,
    describe_value,
    expect_list,
    expect_map,
    expect_text,
    malformed,
    map_at,
    suggestion,
)

#: The resources that containers may have to state (docs/counting.md, "Missing cpu and memory").
MUST_SAY: Final = (("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory"))

#: The fields of a PodSpec, besides its containers, that decide what a pod costs and which model its devices have; and
#: those of a container.
COUNTED: Final = (
    *("overhead", "resources", "resourceClaims", "runtimeClassName"),
    *("nodeSelector", "affinity", "schedulerName", "schedulingGroup"),
)
COUNTED_OF_CONTAINER: Final = ("name", "resources", "restartPolicy", "securityContext")

#: The most roles, containers, resource names and claims that the templates of one object may have together. A claim
#: counts as so many, for it is read.
MAX_SIZE: Final = 25_000
_CLAIM_SIZE: Final = 100

#: The prefix of the implicit resource of a DRA device class.
IMPLICIT_CLASS: Final = "deviceclass.resource.kubernetes.io/"

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGEPAGES = "hugepages-"
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)


@dataclass(slots=True)
class Container:
    """The requests and limits of one container, defaulted as in a Pod, in nano-units."""

    name: str
    path: str
    requests: dict[str, int]
    limits: dict[str, int]
    sidecar: bool = False


@dataclass(slots=True)
class PodCost:
    """The cost of one pod by the name that a container uses, in nano-units.

    `missing` lists, for requests.cpu, limits.cpu, requests.memory and limits.memory, the containers that do not state
    it. A name that all containers state is absent.
    """

    requests: dict[str, int]
    limits: dict[str, int]
    missing: dict[str, list[str]] = field(default_factory=dict)
    #: The requests and limits that all containers state: no LimitRange changes them.
    stated: frozenset[str] = frozenset()
    containers: Sequence[Container] = ()
    init_containers: Sequence[Container] = ()


def pod_cost(spec: Mapping[str, Any], path: str, namespace: str, lookup: Lookup) -> PodCost:
    """Return the cost of one pod of this spec; `path` is the spec's place in the object. Raises Malformed."""
    containers = _containers(spec.get("containers"), f"{path}.containers", init=False)
    if not containers:
        raise malformed(f"{path}.containers", "is missing: a pod has at least one container")
    given = spec.get("initContainers")
    inits = _containers(given, f"{path}.initContainers", init=True) if given is not None else []

    pod_requests, pod_limits = _pod_level(spec.get("resources"), f"{path}.resources")
    if pod_limits:
        # Before any LimitRange: the API server defaults a pod when it decodes it, and then runs LimitRanger.
        for name, amount in aggregate(
            (c.requests for c in containers), ((c.requests, c.sidecar) for c in inits)
        ).items():
            if name in ("cpu", "memory"):
                pod_requests.setdefault(name, amount)
        for name, amount in pod_limits.items():
            pod_requests.setdefault(name, amount)

    stated = _stated((*containers, *inits))
    ranges = lookup.all_of("", "LimitRange", namespace)
    if ranges:
        _apply(ranges, (*containers, *inits))
    for container in containers:
        check_devices(container.requests, container.limits, container.path)
    for container in inits:
        check_devices(container.requests, container.limits, container.path)

    if inits:
        requests = aggregate((c.requests for c in containers), ((c.requests, c.sidecar) for c in inits))
        limits = aggregate((c.limits for c in containers), ((c.limits, c.sidecar) for c in inits))
    elif len(containers) == 1:
        requests, limits = dict(containers[0].requests), dict(containers[0].limits)
    else:
        requests, limits = _sum(c.requests for c in containers), _sum(c.limits for c in containers)
    requests.update(pod_requests)
    limits.update(pod_limits)

    for name, amount in _overhead(spec, path, lookup).items():
        requests[name] = requests.get(name, 0) + amount
        if limits.get(name):
            limits[name] += amount
    missing = _missing((*containers, *inits), pod_requests, pod_limits)
    return PodCost(requests, limits, missing, stated, containers, inits)


def check_size(specs: Iterable[Mapping[str, Any]]) -> None:
    """Raise Malformed where the templates of an object together say more than can be counted while others wait.

    A tenant may write a megabyte of them.
    """
    size = sum(map(_size, specs))
    if size > MAX_SIZE:
        parts = f"containers, resource names and claims (each as {_CLAIM_SIZE})"
        raise malformed("spec", f"its pods have {size} {parts}: no more than {MAX_SIZE} can be counted")


def _size(spec: Mapping[str, Any]) -> int:
    size = 1
    for key in ("containers", "initContainers"):
        for each in _listed(spec, key):
            size += 1
            resources = map_at(each, "resources") if isinstance(each, dict) else {}
            limits = map_at(resources, "limits")
            # The API server gives a pod a request for each limit, and a template none.
            size += len(limits) + len(limits.keys() | map_at(resources, "requests").keys())
    return size + _CLAIM_SIZE * len(_listed(spec, "resourceClaims"))


def _listed(spec: Mapping[str, Any], key: str) -> list[Any]:
    found = spec.get(key)
    return found if isinstance(found, list) else []


def grace_problem(spec: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return why the grace period of a pod cannot be read; nothing if it can."""
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is None or (type(grace) is int and 0 <= grace <= LONGEST):
        return ()
    where, shown = f"{path}.terminationGracePeriodSeconds", describe_value(grace)
    if type(grace) is int and grace > LONGEST:
        return (f"{where}: must be at most {LONGEST} seconds, not {shown}",)
    return (f"{where}: must be a whole number of seconds from 0, not {shown}",)


def _containers(value: object, path: str, *, init: bool) -> list[Container]:
    found: list[Container] = []
    for index, given in enumerate(expect_list(value, path)):
        where = f"{path}[{index}]"
        if not isinstance(given, dict):
            raise malformed(where, f"must be a map, not {describe_value(given)}")
        name = given.get("name")
        if not isinstance(name, str) or not name or len(name) > 63 or not name.isprintable():
            name = _odd_name(name, f"{where}.name", index)
        resources = given.get("resources")
        if resources is None:
            requests, limits = {}, {}
        elif isinstance(resources, dict):
            limits = quantities(resources.get("limits"), f"{where}.resources.limits")
            requests = quantities(resources.get("requests"), f"{where}.resources.requests")
            # A missing request equals the limit (SetDefaults_Pod).
            requests = {**limits, **requests} if requests else dict(limits)
        else:
            raise malformed(f"{where}.resources", f"must be a map, not {describe_value(resources)}")
        found.append(Container(name, where, requests, limits, init and given.get("restartPolicy") == "Always"))
    return found


def _odd_name(name: object, path: str, index: int) -> str:
    text = expect_text(name, path)
    return describe_value(text) if text else f"[{index}]"


def quantities(value: object, path: str) -> dict[str, int]:
    """Return a container's map of quantities in nano-units, rounded up to milli.

    Raises Malformed for what is no map, for names that no container can ask for, and for anything but a quantity from
    0.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(
            path, f"must be a map of resource names to quantities, but is not a map: {describe_value(value)}"
        )
    amounts: dict[str, int] = {}
    for name, given in value.items():
        try:
            amount = _milli(given) if type(given) is str else quantity.round_up_milli(quantity.parse(given))
        except QuantityError as error:
            raise malformed(child_path(path, name), str(error)) from None
        if amount < 0:
            raise malformed(child_path(path, name), f"must not be negative, but is {describe_value(given)}")
        if name not in _STANDARD:
            _check_name(name, amount, path)
        amounts[name] = amount
    return amounts


@lru_cache(maxsize=4096)
def _milli(text: str) -> int:
    """Parse a quantity. Nearly all templates use the same few texts, so the result is cached."""
    return quantity.round_up_milli(quantity.parse(text))


class ResourceClass(Enum):
    """The rules that Kubernetes has for a resource name."""

    COMPUTE = "compute"
    HUGEPAGES = "hugepages"
    EXTENDED = "extended"
    IMPLICIT = "implicit"
    NATIVE = "native"
    NONE = "none"


@lru_cache(maxsize=4096)
def resource_class(name: str) -> ResourceClass:
    """Return the class of a container's resource name (`pkg/apis/core/helper`, IsExtendedResourceName)."""
    if name in _STANDARD:
        return ResourceClass.COMPUTE
    if name.startswith(_HUGEPAGES) and "/" not in name:
        return ResourceClass.HUGEPAGES
    domain, slash, rest = name.partition("/")
    if not slash or len(domain) > 253 or len(rest) > 63 or not _DOMAIN.fullmatch(domain) or not _NAME.fullmatch(rest):
        if name.startswith(IMPLICIT_CLASS) and len(name) <= len(IMPLICIT_CLASS) + 253 and _DOMAIN.fullmatch(rest):
            return ResourceClass.IMPLICIT
        return ResourceClass.NONE
    if name.startswith(IMPLICIT_CLASS):
        return ResourceClass.IMPLICIT
    if "kubernetes.io/" in name:
        return ResourceClass.NATIVE
    # A quota names it with the prefix requests., which must fit.
    return ResourceClass.NONE if name.startswith("requests.") or len(domain) > 244 else ResourceClass.EXTENDED


def _check_name(name: object, amount: int, path: str) -> None:
    if not isinstance(name, str):
        raise malformed(child_path(path, name), "is not a resource name")
    sort = resource_class(name) if len(name) <= 400 else ResourceClass.NONE
    if sort is ResourceClass.NONE:
        raise malformed(
            child_path(path, name),
            "no container can ask for this: write cpu, memory, ephemeral-storage, hugepages-<size> "
            f"or a vendor's name with its domain, like nvidia.com/gpu{suggestion(name, _STANDARD)}",
        )
    if sort in (ResourceClass.EXTENDED, ResourceClass.HUGEPAGES, ResourceClass.IMPLICIT) and amount % NANO:
        raise malformed(child_path(path, name), "must be a whole number")


def check_devices(requests: Mapping[str, int], limits: Mapping[str, int], path: str) -> None:
    """Raise Malformed unless devices and huge pages have a limit and an equal request, as Kubernetes requires."""
    for name, amount in requests.items():
        if name in _STANDARD or limits.get(name) == amount:
            continue
        if resource_class(name) in (ResourceClass.EXTENDED, ResourceClass.HUGEPAGES):
            where = child_path(f"{path}.resources", f"requests.{name}")
            if name not in limits:
                raise malformed(where, "needs an equal limit, but has none")
            raise malformed(
                where,
                f"is {quantity.text(name, amount)}, but the limit is {quantity.text(name, limits[name])}: "
                "both must be equal",
            )


def _pod_level(value: object, path: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the requests and limits that the pod states for all its containers together."""
    if value is None:
        return {}, {}
    resources = expect_map(value, path)
    requests = quantities(resources.get("requests"), f"{path}.requests")
    limits = quantities(resources.get("limits"), f"{path}.limits")
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            if name not in ("cpu", "memory") and resource_class(name) is not ResourceClass.HUGEPAGES:
                raise malformed(
                    child_path(path, f"{kind}.{name}"),
                    "a pod as a whole can state cpu, memory and hugepages only: let a container ask for this",
                )
            if name not in ("cpu", "memory") and requests.get(name, amounts[name]) != limits.get(name, amounts[name]):
                raise malformed(child_path(path, f"requests.{name}"), "must be equal to the limit")
    return requests, limits


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def aggregate(
    containers: Iterable[Mapping[str, int]], inits: Iterable[tuple[Mapping[str, int], bool]]
) -> dict[str, int]:
    """Return the most that a pod holds at any time: while it runs, or in one of its init steps.

    `inits` are in order, each with True for a sidecar. Sidecars keep running during every later step and with the
    containers. A step exceeds the sidecars before it only in what it asks for itself, so only that is compared.
    """
    running = _sum(containers)
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for asked, sidecar in inits:
        for name, amount in asked.items():
            if sidecar:
                sidecars[name] = sidecars.get(name, 0) + amount
                running[name] = running.get(name, 0) + amount
            else:
                most[name] = max(most.get(name, 0), sidecars.get(name, 0) + amount)
    for name, amount in most.items():
        if amount > running.get(name, 0) or name not in running:
            running[name] = amount
    return running


def _stated(containers: Sequence[Container]) -> frozenset[str]:
    """Return the requests and limits that all of these state, with their prefixes."""
    requests, limits = set(containers[0].requests), set(containers[0].limits)
    for container in containers[1:]:
        requests &= container.requests.keys()
        limits &= container.limits.keys()
    return _prefixed(frozenset(requests), frozenset(limits))


@lru_cache(maxsize=4096)
def _prefixed(requests: frozenset[str], limits: frozenset[str]) -> frozenset[str]:
    return frozenset({*(f"requests.{name}" for name in requests), *(f"limits.{name}" for name in limits)})


def _overhead(spec: Mapping[str, Any], path: str, lookup: Lookup) -> dict[str, int]:
    """Return the overhead of the pod: that of the template, else that of its RuntimeClass."""
    overhead = spec.get("overhead")
    if overhead:
        return quantities(overhead, f"{path}.overhead")
    runtime_class = expect_text(spec.get("runtimeClassName"), f"{path}.runtimeClassName")
    if not runtime_class:
        return {}
    found = lookup.get("node.k8s.io", "RuntimeClass", "", runtime_class)
    if found is None:
        return {}
    where = f"RuntimeClass {describe_value(runtime_class)}: overhead"
    return quantities(expect_map(found.get("overhead"), where).get("podFixed"), f"{where}.podFixed")


def _apply(ranges: Sequence[Mapping[str, Any]], containers: Iterable[Container]) -> None:
    """Give every container the defaults of the namespace's LimitRanges for what it does not state."""
    defaults = [
        pair
        for found in sorted(ranges, key=_name_of)
        for pair in _defaults(found, f"LimitRange {describe_value(_name_of(found))}: spec.limits")
    ]
    for container in containers:
        for default, default_request in defaults:
            container.limits = {**default, **container.limits}
            container.requests = {**default_request, **container.requests}


def _name_of(obj: Mapping[str, Any]) -> str:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _defaults(limit_range: Mapping[str, Any], path: str) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Return the default limits and requests of containers, completed as the API server does
    (SetDefaults_LimitRangeItem).
    """
    found: list[tuple[dict[str, int], dict[str, int]]] = []
    for index, item in enumerate(expect_list(expect_map(limit_range.get("spec"), path).get("limits"), path)):
        where = f"{path}[{index}]"
        if not isinstance(item, dict):
            raise malformed(where, f"must be a map, not {describe_value(item)}")
        if item.get("type") != "Container":
            continue
        most, least = quantities(item.get("max"), f"{where}.max"), quantities(item.get("min"), f"{where}.min")
        default = {**most, **quantities(item.get("default"), f"{where}.default")}
        default_request = {
            **least,
            **default,
            **quantities(item.get("defaultRequest"), f"{where}.defaultRequest"),
        }
        found.append((default, default_request))
    return found


def _missing(
    containers: Iterable[Container], pod_requests: Mapping[str, int], pod_limits: Mapping[str, int]
) -> dict[str, list[str]]:
    missing: dict[str, list[str]] = {}
    for container in containers:
        requests, limits = container.requests, container.limits
        if "cpu" in limits and "memory" in limits and "cpu" in requests and "memory" in requests:
            continue
        for kind, name in MUST_SAY:
            stated, of_pod = (requests, pod_requests) if kind == "requests" else (limits, pod_limits)
            if name not in stated and name not in of_pod:
                missing.setdefault(f"{kind}.{name}", []).append(container.name)
    return missing
