"""Set the metadata, status and generation of an object that is created, updated or deleted.

It decides the fields that clients cannot set. Pure. The rules are those of apiserver's registry/rest (BeforeCreate,
BeforeUpdate, BeforeDelete) and of each kind's strategy.
"""

from __future__ import annotations

from typing import Any

from sandbox.kinds import Resource
from sandbox.status import (
    ApiError,
    FieldError,
    bad_request,
    conflict,
    forbidden_field,
    invalid,
    invalid_value,
)

Json = dict[str, Any]

_RESIZABLE = frozenset({"cpu", "memory"})
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_PROTECTED_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})
_INITIAL_STATUS: dict[str, Json] = {
    "namespaces": {"phase": "Active"},
    "persistentvolumeclaims": {"phase": "Pending"},
    "persistentvolumes": {"phase": "Pending"},
}
_STATUS_MAY_SET_METADATA = frozenset({"pods", "nodes", "namespaces"})


def check_identity(resource: Resource, body: Json, namespace: str, name: str | None) -> None:
    """Refuse a body that is not of the resource's kind or disagrees with the path; `name` None is a create."""
    if resource.custom is None and not body.get("kind") and not body.get("apiVersion"):
        body |= {"apiVersion": resource.api_version, "kind": resource.kind}
    if body.get("apiVersion") != resource.api_version or body.get("kind") != resource.kind:
        if not body.get("kind"):
            raise bad_request("Object 'Kind' is missing in the request body")
        raise bad_request(
            f'{body.get("kind")} in version "{str(body.get("apiVersion", "")).rpartition("/")[2]}" cannot be '
            f"handled as a {resource.kind}: the API version in the data ({body.get('apiVersion')}) does not match "
            f"the expected API version ({resource.api_version})"
        )
    meta = body.get("metadata")
    if meta is None:
        meta = body["metadata"] = {}
    if not isinstance(meta, dict):
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            "json: cannot unmarshal metadata into an object"
        )
    for field in ("labels", "annotations"):
        values = meta.get(field)
        if values is not None and (
            not isinstance(values, dict) or any(not isinstance(value, str) for value in values.values())
        ):
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"json: cannot unmarshal metadata.{field}: every value must be a string"
            )
    for field, wanted in (("finalizers", str), ("ownerReferences", dict)):
        entries = meta.get(field)
        if entries is not None and (
            not isinstance(entries, list) or any(not isinstance(entry, wanted) for entry in entries)
        ):
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"json: cannot unmarshal metadata.{field}"
            )
    if resource.namespaced and meta.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if name is not None and meta.get("name") != name:
        if meta.get("name"):
            raise bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")
        raise bad_request("the name of the object () does not match the name on the URL (" + name + ")")


def _stated(meta: Json) -> Json:
    """Return metadata without null and empty fields, which ObjectMeta omits."""
    return {key: value for key, value in meta.items() if value not in (None, {}, [])}


def created(resource: Resource, body: Json, namespace: str, uid: str, now: str, name: str) -> Json:
    """Return a new object with the fields that the system sets, without status where that is a subresource."""
    meta = _stated(body["metadata"])
    if meta.get("resourceVersion"):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
    for field in (
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ):
        meta.pop(field, None)
    meta |= {"name": name, "uid": uid, "creationTimestamp": now}
    meta.pop("namespace", None)
    if resource.namespaced:
        meta["namespace"] = namespace
    if resource.generation or resource.custom:
        meta["generation"] = 1
    obj = {**body, "metadata": meta}
    if resource.status and resource.plural != "nodes":
        obj.pop("status", None)
        if resource.custom is None:
            obj["status"] = dict(_INITIAL_STATUS.get(resource.plural, {}))
    return obj


def updated(resource: Resource, new: Json, old: Json, subresource: str) -> Json:
    """Return the object that an update stores; 409 if its resourceVersion is not the stored one."""
    before = old["metadata"]
    name = before["name"]
    meta = _stated(new["metadata"])
    _check_lock(resource, meta, before)
    errors = _immutable(meta, before)
    if errors:
        raise invalid(resource.group, resource.kind, name, errors)
    for field in ("managedFields", "selfLink"):
        meta.pop(field, None)
    for field in (
        "resourceVersion",
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    if subresource == "status":
        return _status_update(resource, new, old, meta)
    result = {**new, "metadata": meta}
    if resource.status and subresource != "binding":
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if resource.namespaced is False and resource.plural == "namespaces" and not subresource:
        result["spec"] = {
            **(new.get("spec") or {}),
            "finalizers": (old.get("spec") or {}).get("finalizers", []),
        }
    return result


def count_generation(resource: Resource, obj: Json, old: Json) -> None:
    """Increment the generation, in place, if the part that it counts changed."""
    generation = old["metadata"].get("generation")
    if generation is not None and _substance(resource, obj) != _substance(resource, old):
        obj["metadata"]["generation"] = generation + 1


def resized(resource: Resource, new: Json, old: Json) -> Json:
    """Return a pod with the cpu and memory of its resize; refuse other changes (ValidatePodResize)."""
    spec = dict(old.get("spec") or {})
    wanted = {c.get("name"): c for c in (new.get("spec") or {}).get("containers") or ()}
    containers = []
    for container in spec.get("containers") or ():
        asked = (wanted.get(container["name"]) or container).get("resources") or {}
        has = container.get("resources") or {}
        amounts = {
            key: {**_others(has.get(key)), **{n: v for n, v in (asked.get(key) or {}).items() if n in _RESIZABLE}}
            for key in ("limits", "requests")
        }
        containers.append(
            {**container, "resources": {**has, **{key: found for key, found in amounts.items() if found}}}
        )
    spec["containers"] = containers
    if spec != (new.get("spec") or {}):
        text = "Forbidden: only cpu and memory resources are mutable"
        raise invalid(
            resource.group, resource.kind, old["metadata"]["name"], [FieldError("FieldValueForbidden", "spec", text)]
        )
    return {**new, "spec": spec}


def _others(amounts: Any) -> Json:
    return {name: amount for name, amount in (amounts or {}).items() if name not in _RESIZABLE}


def _check_lock(resource: Resource, meta: Json, before: Json) -> None:
    if meta.get("uid") and meta["uid"] != before["uid"]:
        raise conflict(
            resource.group,
            resource.plural,
            before["name"],
            f"StorageError: invalid object, Code: 4, Key: {_key(resource, before)}, ResourceVersion: 0, "
            f"AdditionalErrorMsg: Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {before['uid']}",
        )
    version = meta.get("resourceVersion")
    if version in (None, "", "0"):
        if resource.custom is not None:
            raise invalid(
                resource.group,
                resource.plural,
                before["name"],
                [FieldError("FieldValueInvalid", "metadata.resourceVersion",
                            "Invalid value: 0: must be specified for an update")],
            )  # fmt: skip
        return
    if version != before["resourceVersion"]:
        raise conflict(resource.group, resource.plural, before["name"])


def _key(resource: Resource, meta: Json) -> str:
    """Return the object's key in etcd, which the message of a uid conflict shows."""
    return "/" + "/".join(
        part for part in ("registry", resource.group if resource.custom else "", resource.plural,
                          meta.get("namespace", ""), meta["name"]) if part
    )  # fmt: skip


def _immutable(meta: Json, before: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    if "deletionTimestamp" in before:
        old = set(before.get("finalizers") or ())
        fresh = [item for item in meta.get("finalizers") or () if item not in old]
        if fresh:
            names = ", ".join(f'"{item}"' for item in fresh)
            errors.append(
                forbidden_field(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, found new finalizers "
                    f"[]string{{{names}}}",
                )
            )
    errors.extend(
        invalid_value(f"metadata.{field}", meta[field], "field is immutable")
        for field in ("name", "namespace")
        if field in before and meta.get(field) not in (None, before[field])
    )
    return errors


def _status_update(resource: Resource, new: Json, old: Json, meta: Json) -> Json:
    """Return the stored object with the new status, and the metadata that the kind's status strategy lets through."""
    result = dict(old)
    if resource.custom is None:
        if resource.plural not in _STATUS_MAY_SET_METADATA:
            meta = {key: value for key, value in meta.items() if key != "labels"}
            meta |= {key: value for key, value in old["metadata"].items() if key == "labels"}
        result["metadata"] = meta
    result.pop("status", None)
    if "status" in new:
        result["status"] = new["status"]
    return result


def _substance(resource: Resource, obj: Json) -> Any:
    """Return the part of an object whose changes the generation counts."""
    if resource.custom is None:
        annotations = obj["metadata"].get("annotations") if resource.plural == "deployments" else None
        return [obj.get("spec"), obj.get("webhooks"), annotations or None]
    ignored = ("metadata", "status", "apiVersion") if resource.status else ("metadata", "apiVersion")
    return {key: value for key, value in obj.items() if key not in ignored}


def propagation_finalizers(resource: Resource, obj: Json, options: Json) -> tuple[list[str], str | None]:
    """Return the finalizers after a delete with these options, and a warning where a Job's delete has none."""
    finalizers: list[str] = list(obj["metadata"].get("finalizers") or ())
    policy, warning = options.get("propagationPolicy"), None
    if options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    if policy is None:
        if (resource.group, resource.plural) != ("batch", "jobs") or set(finalizers) & {ORPHAN, FOREGROUND}:
            return finalizers, None
        policy = "Orphan"
        warning = (
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove "
            "them or set propagationPolicy=Orphan to suppress this warning"
        )
    finalizers = [item for item in finalizers if item not in (ORPHAN, FOREGROUND)]
    if policy == "Orphan":
        finalizers.append(ORPHAN)
    elif policy == "Foreground":
        finalizers.append(FOREGROUND)
    elif policy != "Background":
        raise invalid(
            "meta.k8s.io",
            "DeleteOptions",
            "",
            [
                FieldError(
                    "FieldValueNotSupported",
                    "propagationPolicy",
                    f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan", "nil"',
                )
            ],
        )
    return finalizers, warning


def grace_seconds(resource: Resource, obj: Json, options: Json) -> int:
    """Return a pod's grace period; 0 is at once. Only bound pods that have not ended have one."""
    if resource.plural != "pods" or resource.group:
        return 0
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    seconds = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, seconds)


def check_preconditions(resource: Resource, obj: Json, options: Json) -> None:
    wanted, meta = options.get("preconditions") or {}, obj["metadata"]
    for field, label, why in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        value = wanted.get(field)
        if value is not None and value != meta[field]:
            raise conflict(
                resource.group,
                resource.kind,
                meta["name"],
                f"the {label} in the precondition ({value}) does not match the {label} in record ({meta[field]}). "
                f"The object might have been {why}",
            )


def deletable(resource: Resource, name: str) -> None:
    if resource.plural == "namespaces" and not resource.group and name in _PROTECTED_NAMESPACES:
        raise ApiError(
            403,
            "Forbidden",
            f'namespaces "{name}" is forbidden: this namespace may not be deleted',
            {"name": name, "kind": "namespaces"},
        )


def to_storage(resource: Resource, obj: Json) -> Json:
    """Return an object of a served version in the storage version."""
    return obj if obj["apiVersion"] == resource.storage_version else {**obj, "apiVersion": resource.storage_version}


def from_storage(resource: Resource, obj: Json) -> Json:
    """Return a stored object in the served version."""
    return obj if obj.get("apiVersion") == resource.api_version else {**obj, "apiVersion": resource.api_version}
