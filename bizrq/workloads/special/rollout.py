"""Rollout: its template may be in another workload (`workloadRef`; argo-rollouts, rollout/templateref.go)."""

from __future__ import annotations

from typing import Any

from bizrq.workloads.kinds.declaration import DEPLOYMENT, REPLICA_SET
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.validation import describe_value, expect_map, expect_text, malformed

DESCRIPTION = "or the template of `spec.workloadRef`"

#: The path of the template in the kinds that a Rollout may refer to.
REFERABLE = {
    DEPLOYMENT: ("spec", "template"),
    REPLICA_SET: ("spec", "template"),
    ("", "PodTemplate"): ("template",),
}


def template(obj: dict[str, Any], namespace: str, lookup: Lookup) -> tuple[object, str]:
    """Return the template of the workload that a Rollout refers to. Raises Malformed."""
    spec = expect_map(obj.get("spec"), "spec")
    reference, template = spec.get("workloadRef"), spec.get("template")
    path = "spec.workloadRef"
    if reference is None:
        if template is None:
            raise malformed("spec", "has neither template nor workloadRef: the pods that this makes cannot be known")
        return None, ""
    expect_map(reference, path)
    # Clients that know the type write an empty template with a workloadRef.
    if isinstance(template, dict) and expect_map(template.get("spec"), "spec.template.spec").get("containers"):
        raise malformed("spec", "has both template and workloadRef, of which Argo Rollouts takes only one")
    group, _ = group_and_version(expect_text(reference.get("apiVersion"), f"{path}.apiVersion"))
    kind, name = expect_text(reference.get("kind"), f"{path}.kind"), expect_text(reference.get("name"), f"{path}.name")
    where = REFERABLE.get((group, kind))
    if where is None:
        known = ", ".join(f"{g}/{k}" if g else k for g, k in REFERABLE)
        raise malformed(path, f"{describe_value(f'{group}/{kind}')} cannot be referred to, only {known}")
    found = lookup.get(group, kind, namespace, name) if name else None
    if found is None:
        raise malformed(path, f"{kind} {describe_value(name)} was not found in namespace {describe_value(namespace)}")
    target = f"{path} -> {kind} {describe_value(name)}: "
    value: Any = found
    for key in where:
        value = expect_map(value, f"{target}{'.'.join(where)}").get(key)
    if value is None:
        raise malformed(f"{target}{'.'.join(where)}", "is missing: the pods that this makes cannot be known")
    return value, f"{target}{'.'.join(where)}"
