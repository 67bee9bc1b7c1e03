"""Show objects as rows of a meta.k8s.io/v1 Table, which `kubectl get` prints.

It decides columns and cells. Ages are by the sandbox's clock. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sandbox.clock import parse_time
from sandbox.kinds import Resource

Json = dict[str, Any]
Cell = Callable[[Json, datetime], Any]


def age(stamp: str | None, now: datetime) -> str:
    """Return an age as kubectl's duration.HumanDuration does: two units at most, coarser as it grows."""
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


def _deployment_ready(obj: Json, now: datetime) -> str:
    return f"{_at(obj, 'status.readyReplicas', 0)}/{_at(obj, 'spec.replicas', 0)}"


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


Column = tuple[str, str, int, Cell]  # name, type, priority (0 is always shown, 1 with -o wide), cell

_NAME: Column = ("Name", "string", 0, _name)
_AGE: Column = ("Age", "string", 0, _created)
#: The columns of built-in kinds; those that are not here have name and age.
_TABLES: dict[tuple[str, str], tuple[Column, ...]] = {
    ("", "pods"): (
        _NAME,
        ("Ready", "string", 0, _pod_ready),
        ("Status", "string", 0, _pod_status),
        _AGE,
        ("Node", "string", 1, _path("spec.nodeName", "<none>")),
    ),
    ("apps", "deployments"): (
        _NAME,
        ("Ready", "string", 0, _deployment_ready),
        ("Up-to-date", "integer", 0, _path("status.updatedReplicas", 0)),
        ("Available", "integer", 0, _path("status.availableReplicas", 0)),
        _AGE,
    ),
}

_STEP = re.compile(r"""\.([A-Za-z0-9_-]+)|\[(-1:)\]|\[\?\(@\.(\w+)==['"]([^'"]*)['"]\)\]""")


def is_readable(path: str) -> bool:
    """Return whether a printer column's JSONPath has only the steps that _json_path knows."""
    return re.fullmatch(f"({_STEP.pattern})+", path) is not None


def _json_path(obj: Json, path: str) -> Any:
    """Return the value at a printer column's JSONPath: fields, the last item [-1:], the item [?(@.field=="text")]."""
    value: Any = obj
    for field, last, where, wanted in _STEP.findall(path):
        if field:
            value = value.get(field) if isinstance(value, dict) else None
        elif not isinstance(value, list):
            return None
        elif last:
            value = value[-1] if value else None
        else:
            value = next((item for item in value if isinstance(item, dict) and str(item.get(where)) == wanted), None)
    return value


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
