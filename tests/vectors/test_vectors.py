"""Every shared vector: the cost of objects, and the hours that their pods and claims spend."""

from __future__ import annotations

import copy
from typing import Any

from bizrq.builtin import builtin_registry
from bizrq.hours.metering import HOUR, Interval, RecordPage, UsageRate, advance
from bizrq.hours.metering import period_total as spent_of
from bizrq.settings import settings
from bizrq.units.names import metered_resource
from bizrq.units.quantity import NANO
from bizrq.units.resources import growth, nonzero, parse_resources, total
from bizrq.units.times import parse_timestamp
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.observed import NodeContext, declared_usage, is_counted_pod, pod_usage
from bizrq.workloads.demand.offline import UsageRow, usage
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import DocumentLookup
from controller.watch.pods import SharedParts, trimmed_pod


def test_a_workload_costs_what_its_vector_says(workload_vector):
    """All resources are compared; `count/` came after the vectors were written."""
    row = row_of(workload_vector["manifest"], workload_vector.get("related", []), {})
    if "expected_error" in workload_vector:
        assert row.error is not None
        return
    assert row.error is None
    assert without_counts(row.usage or {}) == nonzero(parse_resources(workload_vector["expected"]))


def test_devices_cost_what_their_vector_says(device_vector):
    """Compare only the resources that the vector names."""
    row = row_of(manifest(device_vector), device_vector["related"], device_vector["config"])
    if device_vector.get("expectDeny"):
        assert row.error is not None
        return
    assert row.error is None
    cost = parse_resources(dict(row.usage or {}))
    assert {name: cost.get(name, 0) for name in device_vector["expected"]} == parse_resources(device_vector["expected"])
    assert not [name for name in device_vector.get("absent", []) if cost.get(name)]


def test_an_update_costs_what_its_vector_says(transition):
    """Compare usage_old and usage_new, and whether the group that pays afterwards must be checked."""
    old = transition["old"]
    new = patched(old, transition.get("patch", {}))
    before, after = charged(old, target("300m"), "g1"), charged(new, changed_target(transition), "g1")
    assert before == parse_resources(transition["usage_old"])
    elsewhere = transition["group_new"] not in (None, "g1")
    cost = charged(new, changed_target(transition), "g2") if elsewhere else after
    assert cost == parse_resources(transition["usage_new"])
    assert bool(growth(cost, {} if elsewhere else before)) is transition["check"]


def test_live_pods_use_what_their_vector_says(recount_vector):
    """Count pods on their nodes with their claims; each shared claim counts once."""
    config = settings(recount_vector["config"]).counting
    claims = [claim(given) for given in recount_vector.get("claims", [])]
    lookup = DocumentLookup([*recount_vector["related"], *claims])
    nodes = {node["name"]: {"metadata": node} for node in recount_vector.get("nodes", [])}
    place = NodeContext(nodes.get, slices_of(recount_vector.get("resourceSlices", [])))
    around = ClaimContext(recount_vector.get("labels", {}), "default", lookup, config)
    used, shared = [], {}
    for given in recount_vector["pods"]:
        pod = live_pod(given)
        owned = [c for c in claims if any(o["uid"] == given.get("uid") for o in c["metadata"]["ownerReferences"])]
        if is_counted_pod(pod, parse_timestamp("2026-01-01T00:00:00Z")):
            found = pod_usage(pod, owned, around, place)
            used.append(found.resources)
            shared |= found.shared
    cost = total([*used, *shared.values()])
    expected = parse_resources(recount_vector["expected"])
    assert {name: cost.get(name, 0) for name in expected} == expected
    assert not [name for name in recount_vector.get("absent", []) if cost.get(name)]


def test_hours_are_what_their_vector_says(cash_vector):
    """Compare the hours that a record gains between its two reconciliations."""
    begin, end = parse_timestamp(cash_vector["from"]), parse_timestamp(cash_vector["to"])
    before = advance(RecordPage(), intervals(cash_vector, begin), begin)
    after = advance(before, intervals(cash_vector, end), end)
    spent = growth(spent_of(after), spent_of(before))
    expected = {metered_resource(name): hours for name, hours in parse_resources(cash_vector["expectedHours"]).items()}
    assert {name: spent.get(name, 0) for name in expected} == {name: n * HOUR for name, n in expected.items()}


def intervals(vector: dict[str, Any], now: int) -> dict[str, Interval]:
    """Return the pods and the claims of a vector as a controller sees them at a moment."""
    config = settings(vector["config"]).counting
    around = ClaimContext(vector.get("labels", {}), "default", DocumentLookup([]), config)
    found: dict[str, Interval] = {}
    for given in vector.get("pods", []):
        pod = live_pod({**given, "status": timed(given)})
        kept = trimmed_pod(
            {**pod, "metadata": {"uid": given["name"], "resourceVersion": "1", **pod["metadata"]}}, SharedParts()
        )
        if kept.started is not None and kept.started <= now:
            ended = kept.ended if kept.ended is not None and kept.ended <= now else None
            found[kept.uid] = Interval(
                kept.started, ended, UsageRate("w", tuple(declared_usage(pod, around).resources.items()))
            )
    for given in vector.get("claims", []):
        start, freed = parse_timestamp(given["allocationTimestamp"]), parse_timestamp(given["deallocatedAt"])
        if start <= now:
            rate = UsageRate("w", (("requests.nvidia.com/gpu", given["devices"] * NANO),))
            found[given["name"]] = Interval(start, freed if freed <= now else None, rate)
    return found


def timed(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status with the times at which a pod was bound and its container ended."""
    status: dict[str, Any] = {}
    if "scheduledAt" in pod:
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["scheduledAt"]}
        status["conditions"] = [bound]
    if "finishedAt" in pod:
        status["containerStatuses"] = [{"name": "c", "state": {"terminated": {"finishedAt": pod["finishedAt"]}}}]
    return status


def live_pod(pod: dict[str, Any]) -> dict[str, Any]:
    limits = pod.get("limits", {"nvidia.com/gpu": pod.get("gpu", 0)})
    spec = pod.get("spec", {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]})
    more = {key: pod[key] for key in ("resourceClaims", "nodeName") if key in pod}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: pod[key] for key in ("name", "uid", "annotations", "labels") if key in pod},
        "spec": {**spec, **more},
        "status": {"phase": pod["phase"], **pod.get("status", {})},
    }


def claim(given: dict[str, Any]) -> dict[str, Any]:
    owner = given.get("ownerPod")
    owners = [{"apiVersion": "v1", "kind": "Pod", "controller": True, **owner}] if owner else []
    more = {key: given[key] for key in ("labels", "annotations", "creationTimestamp") if key in given}
    allocation = {"devices": {"results": given["results"]}} if "results" in given else None
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": given["name"], "ownerReferences": owners, **more},
        "spec": {"devices": {"requests": given.get("requests", [])}},
        "status": {"allocation": allocation} if allocation else {},
    }


def slices_of(given: list[dict[str, Any]]) -> Any:
    """Return the ResourceSlices of a vector by driver and pool."""

    def found(driver: str, pool: str) -> list[dict[str, Any]]:
        return [
            {"spec": {**one, "pool": {"name": pool, "generation": one["generation"]}}}
            for one in given
            if (one["driver"], one["pool"]) == (driver, pool)
        ]

    return found


def row_of(document: dict[str, Any], related: list[Any], knobs: dict[str, Any]) -> UsageRow:
    wanted = (document["kind"], document["metadata"]["name"])
    found = settings(knobs)
    rows = usage([document, *related], found.counting, found.registry)
    [row] = [row for row in rows if (row.kind, row.name) == wanted]
    return row


def manifest(vector: dict[str, Any]) -> dict[str, Any]:
    if "manifest" in vector:
        return vector["manifest"]
    spec: dict[str, Any] = {"template": vector["podTemplate"]}
    if vector.get("replicas") is not None:
        spec["replicas"] = vector["replicas"]
    return {
        "apiVersion": "apps/v1",
        "kind": vector.get("kind", "Deployment"),
        "metadata": {"name": "w", "labels": vector.get("labels", {})},
        "spec": spec,
    }


def without_counts(cost: Any) -> dict[str, int]:
    return parse_resources({name: text for name, text in cost.items() if not name.startswith("count/")})


def charged(obj: dict[str, Any], related: list[Any], group: str) -> dict[str, int]:
    """Return what the object costs a group, without counts."""
    if group_of(obj) != group:
        return {}
    cost = counting.demand(obj, builtin_registry(), DocumentLookup(related), settings({}).counting).resources
    return {name: amount for name, amount in cost.items() if not name.startswith("count/")}


def patched(obj: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


def changed_target(vector: dict[str, Any]) -> list[Any]:
    return target("600m" if "changed_object" in vector else "300m")


def target(cpu: str) -> list[Any]:
    """Return the Deployment that the Rollout of these vectors refers to."""
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "ref", "namespace": "team-a"},
            "spec": {"replicas": 0, "template": {"spec": {"containers": containers}}},
        }
    ]
