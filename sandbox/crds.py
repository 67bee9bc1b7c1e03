"""Read a CustomResourceDefinition: the resources that it adds, or the errors that it has.

It decides the served resources and the status of a definition. Pure.
"""

from __future__ import annotations

from typing import Any

from sandbox.kinds import Column, Custom, Resource, ScalePaths
from sandbox.schema import SchemaError, compile_schema
from sandbox.status import FieldError, invalid_value, required
from sandbox.tables import is_readable

Json = dict[str, Any]

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"


def fill_defaults(crd: Json) -> None:
    """Fill in singular, list kind and conversion, in place."""
    spec = crd["spec"] = dict(crd.get("spec") or {})
    names = spec["names"] = dict(spec.get("names") or {})
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", kind + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def resources(crd: Json) -> tuple[list[Resource], list[FieldError]]:
    """Return the resources that the definition serves, and its errors."""
    errors: list[FieldError] = []
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    group, plural, kind = spec.get("group", ""), names.get("plural", ""), names.get("kind", "")
    for path, value in (("spec.group", group), ("spec.names.plural", plural), ("spec.names.kind", kind)):
        if not value:
            errors.append(required(path))
    if crd["metadata"].get("name") != f"{plural}.{group}":
        errors.append(
            invalid_value("metadata.name", crd["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group')
        )
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        errors.append(required("spec.scope"))
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        errors.append(
            invalid_value("spec.conversion.strategy", "Webhook", "the sandbox does not convert between versions")
        )
    versions = spec.get("versions") or []
    stored = [version["name"] for version in versions if version.get("storage")]
    if len(stored) != 1:
        errors.append(
            invalid_value("spec.versions", len(stored), "must have exactly one version marked as storage version")
        )
    if errors:
        return [], errors
    served: list[Resource] = []
    for index, version in enumerate(versions):
        resource = _resource(spec, names, version, stored[0], f"spec.versions[{index}]", errors)
        if version.get("served") and resource is not None:
            served.append(resource)
    return served, errors


def _resource(
    spec: Json, names: Json, version: Json, stored: str, path: str, errors: list[FieldError]
) -> Resource | None:
    openapi = (version.get("schema") or {}).get("openAPIV3Schema")
    if not isinstance(openapi, dict):
        errors.append(required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
        return None
    try:
        schema = compile_schema(openapi, f"{path}.schema.openAPIV3Schema")
    except SchemaError as error:
        errors.extend(error.errors)
        return None
    subresources = version.get("subresources") or {}
    columns: list[Json] = version.get("additionalPrinterColumns") or []
    if not columns:
        columns = [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
    for index, column in enumerate(columns):
        if not is_readable(column["jsonPath"]):
            text = 'the sandbox reads fields, [-1:] and [?(@.field=="text")]'
            field = f"{path}.additionalPrinterColumns[{index}].jsonPath"
            errors.append(invalid_value(field, column["jsonPath"], text))
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        short=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status="status" in subresources,
        scale=_scale_paths(subresources.get("scale")),
        stored_as=stored,
        custom=Custom(
            schema=schema,
            openapi=openapi,
            columns=tuple(
                Column(
                    column["name"],
                    column["type"],
                    column["jsonPath"],
                    column.get("priority", 0),
                    column.get("description", ""),
                    column.get("format", ""),
                )
                for column in columns
            ),
            selectable=frozenset(
                field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
            ),
        ),
    )


def _scale_paths(scale: Json | None) -> ScalePaths | None:
    if scale is None:
        return None

    def path(field: str) -> tuple[str, ...]:
        return tuple(part for part in scale.get(field, "").split(".") if part)

    return ScalePaths(path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath"))


def status(crd: Json, now: str) -> Json:
    """Return the status of an accepted definition, which is established at once."""
    spec = crd["spec"]
    before = crd.get("status") or {}
    conditions = before.get("conditions") or [
        {
            "type": "NamesAccepted",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    kept = before.get("storedVersions") or []
    return {
        "conditions": conditions,
        "acceptedNames": spec["names"],
        "storedVersions": kept + [name for name in stored if name not in kept],
    }
