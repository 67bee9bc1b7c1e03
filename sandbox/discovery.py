"""Describe what the sandbox serves: API groups, resources, version and OpenAPI v3.

It decides the documents that kubectl and client libraries read before anything else. OpenAPI has the schemas of custom
resources and only open ones of the built-in kinds. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from sandbox.kinds import Kinds, Resource
from sandbox.patch import JSON_PATCH, MERGE_PATCH

Json = dict[str, Any]

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-bizrq-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

_MAIN_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


def core_versions(address: str) -> Json:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def groups(kinds: Kinds) -> Json:
    found = [group(kinds, name) for name in kinds.groups() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [item for item in found if item is not None]}


def group(kinds: Kinds, name: str) -> Json | None:
    """Return one API group, or None if it is not served."""
    versions = kinds.groups().get(name)
    if not versions:
        return None
    named = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": named, "preferredVersion": named[0]}


def resources(kinds: Kinds, group_name: str, version: str) -> Json | None:
    listed: list[Json] = []
    for resource in sorted(kinds, key=lambda resource: resource.plural):
        if (resource.group, resource.version) != (group_name, version):
            continue
        entry: Json = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": [verb for verb in (_CUSTOM_VERBS if resource.custom else _MAIN_VERBS) if verb in resource.verbs],
        }
        if resource.short:
            entry["shortNames"] = list(resource.short)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        listed.append(entry)
        listed.extend(_subresources(resource))
    if not listed:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group_name}/{version}" if group_name else version,
        "resources": listed,
    }


def _subresources(resource: Resource) -> list[Json]:
    def entry(name: str, kind: str, verbs: list[str], **more: str) -> Json:
        return {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            **more,
            "kind": kind,
            "verbs": verbs,
        }

    found: list[Json] = []
    if resource.scale is not None:
        found.append(entry("scale", "Scale", ["get", "patch", "update"], group="autoscaling", version="v1"))
    if resource.status:
        found.append(entry("status", resource.kind, ["get", "patch", "update"]))
    if "binding" in resource.subresources:
        found.append(entry("binding", "Binding", ["create"]))
    if "eviction" in resource.subresources:
        found.append(entry("eviction", "Eviction", ["create"], group="policy", version="v1"))
    if "resize" in resource.subresources:
        found.append(entry("resize", resource.kind, ["get", "patch", "update"]))
    if "finalize" in resource.subresources:
        found.append(entry("finalize", resource.kind, ["update"]))
    return found


def openapi_index(kinds: Kinds) -> Json:
    paths: Json = {}
    for group_name, versions in kinds.groups().items():
        for version in versions:
            path = f"apis/{group_name}/{version}" if group_name else f"api/{version}"
            document = orjson.dumps(openapi(kinds, group_name, version))
            digest = hashlib.sha256(document).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def openapi(kinds: Kinds, group_name: str, version: str) -> Json | None:
    """Return the OpenAPI v3 document of one group version, or None if it is not served."""
    served = [r for r in kinds if (r.group, r.version) == (group_name, version)]
    if not served:
        return None
    schemas: Json = {}
    paths: Json = {}
    for resource in served:
        name = ".".join([*reversed((group_name or "core.api.k8s.io").split(".")), version, resource.kind])
        gvk = {"group": group_name, "version": version, "kind": resource.kind}
        schemas[name] = {**_object_schema(resource), "x-kubernetes-group-version-kind": [gvk]}
        prefix = f"/apis/{group_name}/{version}" if group_name else f"/api/{version}"
        scope = "/namespaces/{namespace}" if resource.namespaced else ""
        path = f"{prefix}{scope}/{resource.plural}/{{name}}"
        paths[path] = {method: _operation(resource, method, name, gvk) for method in ("get", "patch", "put")}
        paths[path.removesuffix("/{name}")] = {
            "get": _operation(resource, "list", name, gvk),
            "post": _operation(resource, "post", name, gvk),
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "bizrq sandbox", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


_META_SCHEMA: Json = {
    "type": "object",
    "description": "Standard object's metadata.",
    "x-kubernetes-preserve-unknown-fields": True,
}


_PARTS = ("spec", "status")
_LEFT_OUT = "The sandbox does not have the fields of Kubernetes' own kinds here; a cluster has."


def _object_schema(resource: Resource) -> Json:
    base: Json = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _META_SCHEMA}
    if resource.custom is None:
        return {
            "type": "object",
            "description": f"{resource.kind} of Kubernetes. {_LEFT_OUT}",
            "properties": {**base, **{part: {"type": "object", "description": _LEFT_OUT} for part in _PARTS}},
            "x-kubernetes-preserve-unknown-fields": True,
        }
    schema = resource.custom.openapi
    properties = {**(schema.get("properties") or {})}
    for name, part in base.items():
        properties[name] = {**part, **(properties.get(name) or {})} if name != "metadata" else part
    return {**schema, "properties": properties}


def _operation(resource: Resource, method: str, schema: str, gvk: Json) -> Json:
    reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
        if method in ("patch", "put", "post")
    ]
    operation: Json = {
        "operationId": f"{method}{resource.kind}",
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": reference}}},
        "x-kubernetes-action": method,
        "x-kubernetes-group-version-kind": gvk,
    }
    if method == "patch":
        # With strategic patches listed here kubectl builds them from these schemas. Ours are open, so
        # kubectl must use its own types. The server accepts more than it lists.
        types = (JSON_PATCH, MERGE_PATCH)
        operation["requestBody"] = {"content": {kind: {"schema": {"type": "object"}} for kind in types}}
    elif method in ("put", "post"):
        operation["requestBody"] = {"content": {"application/json": reference}}
    return operation
