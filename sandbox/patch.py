"""Apply a patch to an object: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch.

It decides only the resulting object; conflicts, admission and retries are elsewhere. No input is changed in place.
The merge keys are those of the built-in types' patchMergeKey tags.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import jsonpatch
import jsonpointer

from sandbox.status import ApiError, bad_request, invalid_value, too_large

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_MOST_OPERATIONS = 10_000

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
    "webhooks": "name",
}
_CONTAINER_LISTS = frozenset({"containers", "initContainers", "ephemeralContainers"})
_PRIMITIVE_SETS = frozenset({"finalizers"})


def apply(patch_type: str, obj: Json, patch: Any) -> Json:
    """Return the object after the patch. 400 for a malformed patch, 422 for one that does not apply."""
    match patch_type:
        case "application/json-patch+json":
            return json_patch(obj, patch)
        case "application/merge-patch+json":
            result = merge_patch(obj, patch)
        case _:
            if not isinstance(patch, dict):
                raise bad_request("the strategic merge patch must be an object")
            result = strategic_merge(obj, patch)
    if not isinstance(result, dict):
        raise bad_request("the patched object is not an object")
    return result


def json_patch(obj: Json, operations: Any) -> Json:
    if not isinstance(operations, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )
    if len(operations) > _MOST_OPERATIONS:
        raise too_large(f"The allowed maximum operations in a JSON patch is {_MOST_OPERATIONS}, got {len(operations)}")
    try:
        result = jsonpatch.JsonPatch(operations).apply(obj)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(str(error)) from error
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as error:
        raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {}) from error
    if not isinstance(result, dict):
        raise ApiError(422, "Invalid", str(invalid_value("patch", result, "the result is not an object")))
    return result


def merge_patch(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge(target: Json, patch: Json, inside: str = "") -> Json:
    """Merge by the built-in types' keys. `inside` names the list of the target: containers' ports have another key."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found: {directive}")
    result = dict(target)
    if "$retainKeys" in patch:
        kept = set(patch["$retainKeys"])
        if lost := [
            key for key, value in patch.items() if not key.startswith("$") and value is not None and key not in kept
        ]:
            raise bad_request(f"a $retainKeys list must name every key that the patch sets, not without {lost[0]}")
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or () if item not in value]
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        order = patch.get(f"$setElementOrder/{key}")
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = strategic_merge(old if isinstance(old, dict) else {}, value, inside)
        elif isinstance(value, list):
            result[key] = _merge_list(key, old if isinstance(old, list) else [], value, order, inside)
        else:
            result[key] = value
    for key, order in patch.items():
        name = key.removeprefix("$setElementOrder/")
        if name != key and name not in patch and isinstance(result.get(name), list):
            result[name] = _ordered(result[name], order, _merge_key(name, inside))
    return result


def _merge_key(name: str, inside: str) -> str | None:
    if name == "ports":
        return "containerPort" if inside in _CONTAINER_LISTS else "port"
    return _MERGE_KEYS.get(name)


def _merge_list(name: str, old: list[Any], patch: list[Any], order: list[Any] | None, inside: str) -> list[Any]:
    key = _merge_key(name, inside)
    if name in _PRIMITIVE_SETS:
        return _ordered(old + [item for item in patch if item not in old], order, None)
    if key is None or any(not isinstance(item, dict) for item in [*old, *patch]):
        return copy.deepcopy(patch)
    if any(item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    result = list(old)
    for change in patch:
        if key not in change:
            raise bad_request(f"map: {change} does not contain declared merge key: {key}")
        at = next((index for index, item in enumerate(result) if item.get(key) == change[key]), None)
        if change.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(strategic_merge({}, change, name))
        else:
            result[at] = strategic_merge(result[at], change, name)
    return _ordered(result, order, key)


def _ordered(items: list[Any], order: Sequence[Any] | None, key: str | None) -> list[Any]:
    """Put the items that `order` names in that order; keep every other one behind its predecessor."""
    if not order:
        return items

    def identity(item: Any) -> Any:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    followers: dict[Any, list[Any]] = {}
    behind: Any = None
    named: dict[Any, Any] = {}
    for item in items:
        name = identity(item)
        if name in wanted:
            named[name] = item
            behind = name
        else:
            followers.setdefault(behind, []).append(item)
    result = list(followers.get(None, ()))
    for name in wanted:
        if name in named:
            result.append(named[name])
            result.extend(followers.get(name, ()))
    return result
