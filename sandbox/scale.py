"""Translate the scale subresource: an object into its autoscaling/v1 Scale, and a Scale into the changed object.

Pure.
"""

from __future__ import annotations

from typing import Any

from sandbox.kinds import Resource, ScalePaths
from sandbox.selectors import selector_text
from sandbox.status import bad_request, internal_error, invalid, invalid_value

Json = dict[str, Any]

KIND = ("autoscaling", "v1", "Scale")


def _read(obj: Json, path: tuple[str, ...]) -> Any:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def of(resource: Resource, obj: Json) -> Json:
    """Return the object's Scale. A spec of 0 replicas has no `replicas`, as Go leaves out empty numbers there."""
    paths = _paths(resource)
    meta = obj["metadata"]
    replicas = _read(obj, paths.replicas)
    if replicas is None:
        if resource.custom is not None:
            raise internal_error(f'the spec replicas field ".{".".join(paths.replicas)}" does not exist')
        replicas = 0
    status: Json = {"replicas": _read(obj, paths.status) or 0}
    if resource.custom is None:
        status["selector"] = selector_text((obj.get("spec") or {}).get("selector"))
    elif selector := _read(obj, paths.selector):
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def applied(resource: Resource, obj: Json, scale: Json) -> Json:
    """Return the object with the Scale's replicas; the Scale's resourceVersion, if it has one, locks the update."""
    if scale.get("kind") != "Scale" or scale.get("apiVersion") != "autoscaling/v1":
        raise bad_request(f"{scale.get('kind')} in version {scale.get('apiVersion')} cannot be handled as a Scale")
    meta = scale.get("metadata") or {}
    name = obj["metadata"]["name"]
    if meta.get("name") not in (None, "", name):
        raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if replicas is None:
        replicas = 0
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal '
            "spec.replicas into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        raise invalid(
            "autoscaling",
            "Scale",
            name,
            [invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")],
        )
    changed = _written(obj, _paths(resource).replicas, replicas)
    lock = {key: meta[key] for key in ("resourceVersion", "uid") if meta.get(key)}
    return {**changed, "metadata": {**changed["metadata"], **lock}}


def _paths(resource: Resource) -> ScalePaths:
    if resource.scale is None:
        raise ValueError(f"{resource.plural} cannot be scaled")
    return resource.scale


def _written(obj: Json, path: tuple[str, ...], value: Any) -> Json:
    if not path:
        return value
    inner = obj.get(path[0])
    return {**obj, path[0]: _written(inner if isinstance(inner, dict) else {}, path[1:], value)}
