"""Read what a running pod and its containers hold after an in-place resize.

This file alone compares a pod's spec with its status. It does not know sums. Source:
`component-helpers/resource/helpers.go` (aggregateContainerResourcesByFn, PodRequests, PodLimits) of Kubernetes v1.36.
"""

from __future__ import annotations

from typing import Any

from bizrq.units import quantity
from bizrq.units.quantity import QuantityError
from bizrq.workloads.validation import child_path, expect_map, malformed

#: The fields of a pod's status, or of a container's, that show what it holds.
HELD = ("resources", "allocatedResources")
#: The statuses of the containers in each list of a spec.
STATUSES = {"containers": "containerStatuses", "initContainers": "initContainerStatuses"}
#: The fields of a pod's status that show what it and its containers hold.
TOLD = (*HELD, *STATUSES.values(), "conditions")


def as_running(pod: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the pod and each container at the most of request, allocation and actual resources.

    A resize that the node has called infeasible does not count. Raises Malformed.
    """
    status = pod.get("status")
    if not isinstance(status, dict):
        return spec
    infeasible = _is_infeasible(status.get("conditions"), (pod.get("metadata") or {}).get("generation"))
    running = spec
    asks = spec.get("resources")
    if isinstance(asks, dict) and any(map(status.get, HELD)):
        held = _most(asks, status, infeasible, "status")
        # A name that the pod does not state is that of its containers.
        stated = {part: {name: of[name] for name in of if name in (asks.get(part) or ())} for part, of in held.items()}
        running = {**running, "resources": stated}
    for key, statuses in STATUSES.items():
        containers, statuses_by_name = spec.get(key), _by_name(status.get(statuses))
        if statuses_by_name and isinstance(containers, list):
            running = {
                **running,
                key: [_of_container(c, statuses_by_name, infeasible, f"status.{statuses}") for c in containers],
            }
    return running


def _is_infeasible(conditions: object, generation: object) -> bool:
    """Return True where the node says so of what the pod asks for in this generation, and not of an earlier resize."""
    return isinstance(conditions, list) and any(
        isinstance(c, dict)
        and c.get("type") == "PodResizePending"
        and c.get("reason") == "Infeasible"
        and c.get("observedGeneration") == generation
        for c in conditions
    )


def _by_name(statuses: object) -> dict[str, dict[str, Any]]:
    if not isinstance(statuses, list):
        return {}
    named = [s for s in statuses if isinstance(s, dict) and isinstance(s.get("name"), str)]
    return {s["name"]: s for s in named if any(map(s.get, HELD))}


def _of_container(container: Any, statuses_by_name: dict[str, dict[str, Any]], infeasible: bool, path: str) -> Any:
    name = container.get("name") if isinstance(container, dict) else None
    if not isinstance(name, str) or name not in statuses_by_name:
        return container
    asks = container.get("resources")
    if asks is not None and not isinstance(asks, dict):
        return container
    return {**container, "resources": _most(asks or {}, statuses_by_name[name], infeasible, child_path(path, name))}


def _most(asks: dict[str, Any], status: dict[str, Any], infeasible: bool, path: str) -> dict[str, Any]:
    """Return the resources of what asks for these, and whose status shows what it has."""
    has, allocated = expect_map(status.get("resources"), f"{path}.resources"), status.get("allocatedResources")
    if infeasible:
        asks = {}
    requests = [asks.get("requests"), has.get("requests"), allocated]
    limits = [asks.get("limits"), has.get("limits")]
    return {"requests": _larger(requests, f"{path}.requests"), "limits": _larger(limits, f"{path}.limits")}


def _larger(lists: list[Any], path: str) -> dict[str, Any]:
    """Return the larger quantity of each name, in its original text."""
    found: dict[str, Any] = {}
    amounts: dict[str, int] = {}
    for given in lists:
        for name, value in expect_map(given, path).items():
            try:
                amount = quantity.parse(value)
            except QuantityError as error:
                raise malformed(child_path(path, name), str(error)) from None
            if name not in found or amount > amounts[name]:
                found[name], amounts[name] = value, amount
    return found
