"""What `kubectl get` shows: an object as a row of a meta.k8s.io/v1 Table.

It decides columns and cells. Ages are counted on the sandbox's clock, since creation times come from it. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from sandbox.clock import parse_time
from sandbox.kinds import Resource

Json = dict[str, Any]
Cell = Callable[[Json, datetime], Any]


def age(stamp: str | None, now: datetime) -> str:
    """Like kubectl's duration.HumanDuration: two units at most, coarser as it grows."""
    if not stamp:
        return "<unknown>"
    seconds = max(0, int((now - parse_time(stamp)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400

    def two(big: int, big_unit: str, small: int, small_unit: str) -> str:
        return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"

    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return two(days // 365, "y", days % 365, "d")


def _at(obj: Json, path: str, default: Any = None) -> Any:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return default if value is None else value


def _path(path: str, default: Any = None) -> Cell:
    return lambda obj, now: _at(obj, path, default)


def _name(obj: Json, now: datetime) -> Any:
    return obj["metadata"]["name"]


def _created(obj: Json, now: datetime) -> Any:
    return age(_at(obj, "metadata.creationTimestamp"), now)


def _ready(ready: str, wanted: str) -> Cell:
    return lambda obj, now: f"{_at(obj, ready, 0)}/{_at(obj, wanted, 0)}"


def _containers(field: str) -> Cell:
    def cell(obj: Json, now: datetime) -> str:
        spec = _at(obj, "spec.template.spec", {})
        return ",".join(str(container.get(field)) for container in spec.get("containers") or ())

    return cell


def _selector(obj: Json, now: datetime) -> str:
    labels = _at(obj, "spec.selector.matchLabels") or _at(obj, "spec.selector") or {}
    return ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if isinstance(v, str)) or "<none>"


def _pod_status(obj: Json, now: datetime) -> str:
    status = obj.get("status") or {}
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    if status.get("reason"):
        return status["reason"]
    phase: str = status.get("phase", "Unknown")
    return {"Succeeded": "Completed", "Failed": "Error"}.get(phase, phase)


def _pod_ready(obj: Json, now: datetime) -> str:
    statuses = _at(obj, "status.containerStatuses", [])
    total = len(_at(obj, "spec.containers", []))
    return f"{sum(bool(status.get('ready')) for status in statuses)}/{total}"


def _pod_restarts(obj: Json, now: datetime) -> str:
    return str(sum(status.get("restartCount", 0) for status in _at(obj, "status.containerStatuses", [])))


def _node_status(obj: Json, now: datetime) -> str:
    ready = next((c for c in _at(obj, "status.conditions", []) if c.get("type") == "Ready"), None)
    state = "Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"
    return state + (",SchedulingDisabled" if _at(obj, "spec.unschedulable") else "")


def _node_roles(obj: Json, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in obj["metadata"].get("labels") or {} if key.startswith(prefix)]
    return ",".join(sorted(roles)) or "<none>"


def _service_ports(obj: Json, now: datetime) -> str:
    ports = _at(obj, "spec.ports", [])
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _job_status(obj: Json, now: datetime) -> str:
    for condition in _at(obj, "status.conditions", []):
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed", "Suspended"):
            return condition["type"]
    return "Running"


def _job_duration(obj: Json, now: datetime) -> str:
    start, end = _at(obj, "status.startTime"), _at(obj, "status.completionTime")
    if not start:
        return ""
    return age(start, parse_time(end) if end else now)


def _event_object(obj: Json, now: datetime) -> str:
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_seen(obj: Json, now: datetime) -> str:
    return age(obj.get("lastTimestamp") or obj.get("eventTime") or _at(obj, "metadata.creationTimestamp"), now)


Column = tuple[str, str, int, Cell]  # name, type, priority (0 is always shown, 1 with -o wide), cell

_NAME: Column = ("Name", "string", 0, _name)
_AGE: Column = ("Age", "string", 0, _created)
_WIDE_TEMPLATE: tuple[Column, ...] = (
    ("Containers", "string", 1, _containers("name")),
    ("Images", "string", 1, _containers("image")),
    ("Selector", "string", 1, _selector),
)


def _count(name: str, path: str) -> Column:
    return (name, "integer", 0, _path(path, 0))


def _text(name: str, path: str, default: Any = "", priority: int = 0) -> Column:
    return (name, "string", priority, _path(path, default))


_TABLES: dict[tuple[str, str], tuple[Column, ...]] = {
    ("", "pods"): (
        _NAME,
        ("Ready", "string", 0, _pod_ready),
        ("Status", "string", 0, _pod_status),
        ("Restarts", "string", 0, _pod_restarts),
        _AGE,
        _text("IP", "status.podIP", "<none>", 1),
        _text("Node", "spec.nodeName", "<none>", 1),
    ),
    ("", "nodes"): (
        _NAME,
        ("Status", "string", 0, _node_status),
        ("Roles", "string", 0, _node_roles),
        _AGE,
        _text("Version", "status.nodeInfo.kubeletVersion"),
    ),
    ("", "namespaces"): (_NAME, _text("Status", "status.phase"), _AGE),
    ("", "services"): (
        _NAME,
        _text("Type", "spec.type", "ClusterIP"),
        _text("Cluster-IP", "spec.clusterIP", "<none>"),
        _text("External-IP", "spec.externalName", "<none>"),
        ("Port(s)", "string", 0, _service_ports),
        _AGE,
        ("Selector", "string", 1, _selector),
    ),
    ("", "configmaps"): (_NAME, ("Data", "integer", 0, lambda o, n: len(o.get("data") or {})), _AGE),
    ("", "secrets"): (
        _NAME,
        _text("Type", "type", "Opaque"),
        ("Data", "integer", 0, lambda o, n: len(o.get("data") or {})),
        _AGE,
    ),
    ("", "events"): (
        ("Last Seen", "string", 0, _event_seen),
        _text("Type", "type"),
        _text("Reason", "reason"),
        ("Object", "string", 0, _event_object),
        ("Message", "string", 0, lambda o, n: (o.get("message") or o.get("note") or "").strip()),
    ),
    ("apps", "deployments"): (
        _NAME,
        ("Ready", "string", 0, _ready("status.readyReplicas", "spec.replicas")),
        _count("Up-to-date", "status.updatedReplicas"),
        _count("Available", "status.availableReplicas"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    ("apps", "replicasets"): (
        _NAME,
        _count("Desired", "spec.replicas"),
        _count("Current", "status.replicas"),
        _count("Ready", "status.readyReplicas"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    ("apps", "statefulsets"): (
        _NAME,
        ("Ready", "string", 0, _ready("status.readyReplicas", "spec.replicas")),
        _AGE,
        *_WIDE_TEMPLATE[:2],
    ),
    ("apps", "daemonsets"): (
        _NAME,
        _count("Desired", "status.desiredNumberScheduled"),
        _count("Current", "status.currentNumberScheduled"),
        _count("Ready", "status.numberReady"),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    ("batch", "jobs"): (
        _NAME,
        ("Status", "string", 0, _job_status),
        ("Completions", "string", 0, _ready("status.succeeded", "spec.completions")),
        ("Duration", "string", 0, _job_duration),
        _AGE,
        *_WIDE_TEMPLATE,
    ),
    ("coordination.k8s.io", "leases"): (_NAME, _text("Holder", "spec.holderIdentity"), _AGE),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        _NAME,
        _text("Created At", "metadata.creationTimestamp"),
    ),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): (
        _NAME,
        ("Webhooks", "integer", 0, lambda o, n: len(o.get("webhooks") or ())),
        _AGE,
    ),
}


def _json_path(obj: Json, path: str) -> Any:
    """The simple JSONPaths that printer columns use: fields, ['quoted fields'], [index], [?(@.f=="v")]."""
    values: list[Any] = [obj]
    for name, quoted, index, where, wanted in _steps(path):
        found: list[Any] = []
        for value in values:
            if name or quoted:
                key = name or quoted
                if isinstance(value, dict) and key in value:
                    found.append(value[key])
            elif index:
                if isinstance(value, list):
                    found.extend(value if index == "*" else value[-1:] if index == "-1:" else value[int(index) :][:1])
            elif isinstance(value, list):
                found.extend(v for v in value if isinstance(v, dict) and str(v.get(where)) == wanted)
        values = found
    return values[0] if values else None


def _steps(path: str) -> Iterable[tuple[str, str, str, str, str]]:
    return re.findall(
        r"""\.([A-Za-z0-9_\-]+(?:\\\.[A-Za-z0-9_\-/]+)*)"""
        r"""|\[['"]([^'"]+)['"]\]|\[(\d+|\*|-1:)\]|\[\?\(@\.([\w]+)\s*==\s*['"]([^'"]*)['"]\)\]""",
        path,
    )


def _custom_cell(kind: str, path: str) -> Cell:
    def cell(obj: Json, now: datetime) -> Any:
        value = _json_path(obj, path)
        if kind == "date":
            return age(value, now) if isinstance(value, str) else "<unknown>"
        if isinstance(value, (dict, list)):
            return json.dumps(value, separators=(",", ":"))
        return value

    return cell


def columns(resource: Resource) -> tuple[Column, ...]:
    if resource.custom is not None:
        return (
            _NAME,
            *(
                (column.name, column.type, column.priority, _custom_cell(column.type, column.json_path))
                for column in resource.custom.columns
            ),
        )
    return _TABLES.get(resource.store, (_NAME, _AGE))


def definitions(resource: Resource) -> list[Json]:
    found: list[Json] = []
    for name, kind, priority, _ in columns(resource):
        form = "name" if name == "Name" else ""
        found.append({"name": name, "type": kind, "format": form, "description": name, "priority": priority})
    if resource.custom is not None:
        for definition, column in zip(found[1:], resource.custom.columns, strict=True):
            definition |= {"description": column.description or column.name, "format": column.format}
    return found


def row(resource: Resource, obj: Json, now: datetime, include: str = "Metadata") -> Json:
    cells = [cell(obj, now) for _, _, _, cell in columns(resource)]
    result: Json = {"cells": cells}
    if include == "Object":
        result["object"] = obj
    elif include != "None":
        result["object"] = partial(obj)
    return result


def partial(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(resource: Resource, rows: list[Json], meta: Json, *, headed: bool = True) -> Json:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions(resource) if headed else None,
        "rows": rows,
    }
