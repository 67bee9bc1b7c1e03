"""TrainJob: its templates are in a training runtime, which the job scales and sizes.

Source: Kubeflow trainer `pkg/runtime/core/trainingruntime.go` (newRuntimeInfo) and the MPI plugin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import controller_of
from bizrq.workloads.pods.roles import PodSet, pod_set_of_template
from bizrq.workloads.pods.roles import pod_sets as pod_sets_of_roles
from bizrq.workloads.validation import (
    Malformed,
    child_path,
    describe_value,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    expect_text,
    get_path,
    malformed,
)

DESCRIPTION = (
    "the jobs of its runtime: `spec.trainer.numNodes` (what the runtime says if absent) for the trainer, "
    "`parallelism` for others, `resourcesPerNode` laid over the trainer's. No less than the JobSet that was made "
    "of it"
)

_GROUP = "trainer.kubeflow.org"
_CLUSTER, _NAMESPACED = "ClusterTrainingRuntime", "TrainingRuntime"
#: The kind of the runtimes of a namespace.
RUNTIME: GroupKind = (_GROUP, _NAMESPACED)
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE = "node"
_JOBSET = ("jobset.x-k8s.io", "JobSet")


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the pods of the runtime, and no less than those of its JobSet. Raises Malformed where neither can be
    counted.

    Later edits of a runtime do not change a JobSet that exists.
    """
    found: list[PodSet] = []
    wrong: Malformed | None = None
    for count in (_of_runtime, _of_jobset):
        try:
            found += count(obj, adapter, namespace, lookup)
        except Malformed as error:
            wrong = wrong or error
    if wrong is not None and not found:
        raise wrong
    sets: dict[str, PodSet] = {}
    for pods in found:
        # The JobSet's sets come last: its templates replace the runtime's, with the larger count of both.
        known = sets.get(pods.name)
        sets[pods.name] = pods if known is None else replace(pods, count=max(pods.count, known.count))
    return list(sets.values())


def _of_jobset(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the sets of the JobSet that the operator made for the job; none before that."""
    metadata = expect_map(obj.get("metadata"), "metadata")
    name, uid = metadata.get("name"), metadata.get("uid")
    jobset = lookup.get(*_JOBSET, namespace, name) if isinstance(name, str) and name and uid else None
    if jobset is None:
        return []
    owner = controller_of(jobset.get("metadata"))
    if owner is None or owner.get("uid") != uid:
        return []
    return pod_sets_of_roles(jobset, replace(adapter, roles=adapter.child_roles), {})


def _of_runtime(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return a set of pods for each job of the runtime. The operator makes each job once, whatever its `replicas`."""
    spec = expect_map(obj.get("spec"), "spec")
    trainer = expect_map(spec.get("trainer"), "spec.trainer")
    runtime, where = _runtime(spec, namespace, lookup)
    policy_path = f"{where}spec.mlPolicy"
    policy = expect_map(runtime.get("mlPolicy"), policy_path)
    nodes = _count(trainer, "numNodes", "spec.trainer", _count(policy, "numNodes", policy_path, 1))
    mpi = policy.get("mpi")
    launcher_is_node = mpi is not None and expect_bool(
        expect_map(mpi, f"{policy_path}.mpi").get("runLauncherAsNode"), f"{policy_path}.mpi.runLauncherAsNode"
    )
    patches = _patches(spec)
    sets: list[PodSet] = []
    jobs_path = f"{where}spec.template.spec.replicatedJobs"
    jobs = expect_list(get_path(runtime, ("template", "spec", "replicatedJobs"), f"{where}spec"), jobs_path)
    for index, given in enumerate(jobs):
        path = f"{jobs_path}[{index}]"
        job = expect_map(given, path)
        name = expect_text(job.get("name"), f"{path}.name") or str(index)
        if any(pods.name == name for pods in sets):
            name = f"{name}@{index}"
        template = expect_map(job.get("template"), f"{path}.template")
        job_spec = expect_map(template.get("spec"), f"{path}.template.spec")
        labels = get_path(template, ("metadata", "labels"), f"{path}.template")
        trains = expect_map(labels, f"{path}.template.metadata.labels").get(_STEP) == "trainer"
        scaled = name == _NODE if mpi is not None else trains
        if scaled:
            number = max(nodes - 1, 1) if launcher_is_node else nodes
        else:
            number = _count(job_spec, "parallelism", f"{path}.template.spec", 1)
        pods = pod_set_of_template(name, number, job_spec.get("template"), f"{path}.template.spec.template")
        if trains or (launcher_is_node and name == _NODE):
            pods = _sized(pods, trainer.get("resourcesPerNode"))
        for patch, patch_path in patches.get(job.get("name"), ()):
            pods = _patched(pods, patch, patch_path)
        sets.append(pods)
    return sets


def _runtime(spec: dict[str, Any], namespace: str, lookup: Lookup) -> tuple[dict[str, Any], str]:
    """Return the spec of the runtime that the job refers to, and the prefix of its paths."""
    path = "spec.runtimeRef"
    reference = expect_map(spec.get("runtimeRef"), path)
    kind = expect_text(reference.get("kind"), f"{path}.kind") or _CLUSTER
    name = expect_text(reference.get("name"), f"{path}.name")
    if kind not in (_CLUSTER, _NAMESPACED):
        raise malformed(f"{path}.kind", f"must be {_CLUSTER} or {_NAMESPACED}, not {describe_value(kind)}")
    found = lookup.get(_GROUP, kind, "" if kind == _CLUSTER else namespace, name)
    if found is None:
        raise malformed(path, f"{kind} {describe_value(name)} was not found")
    where = f"{path} -> {kind} {describe_value(name)}: "
    return expect_map(found.get("spec"), f"{where}spec"), where


def _patches(spec: dict[str, Any]) -> dict[object, list[tuple[dict[str, Any], str]]]:
    """Return the patches of pod templates by the name of their job, in their order, each with its path."""
    found: dict[object, list[tuple[dict[str, Any], str]]] = {}
    for index, given in enumerate(expect_list(spec.get("runtimePatches"), "spec.runtimePatches")):
        path = f"spec.runtimePatches[{index}]"
        keys = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        path, jobs = f"{path}.{'.'.join(keys)}", get_path(given, keys, path)
        for number, job in enumerate(expect_list(jobs, path)):
            patch = get_path(job, ("template", "spec", "template"), f"{path}[{number}]")
            name = expect_text(get_path(job, ("name",), f"{path}[{number}]"), f"{path}[{number}].name")
            where = f"{path}[{number}].template.spec.template"
            found.setdefault(name, []).append((expect_map(patch, where), where))
    return found


def _patched(pods: PodSet, patch: dict[str, Any], path: str) -> PodSet:
    """Return the pods with a patch's node constraints and labels; a patch cannot change amounts."""
    metadata, spec = (
        expect_map(patch.get("metadata"), f"{path}.metadata"),
        expect_map(patch.get("spec"), f"{path}.spec"),
    )
    labels = expect_map(metadata.get("labels"), f"{path}.metadata.labels")
    annotations = expect_map(metadata.get("annotations"), f"{path}.metadata.annotations")
    merged = {
        key: {**expect_map(pods.spec.get(key), f"{pods.path}.{key}"), **expect_map(spec[key], f"{path}.spec.{key}")}
        for key in ("nodeSelector", "affinity")
        if spec.get(key) is not None
    }
    return replace(
        pods,
        spec={**pods.spec, **merged},
        labels={**pods.labels, **labels},
        annotations={**pods.annotations, **annotations},
    )


def _count(place: dict[str, Any], key: str, path: str, default: int) -> int:
    value = place.get(key)
    return default if value is None else expect_count(value, f"{path}.{key}")


def _sized(pods: PodSet, resources: object) -> PodSet:
    """Return the pods with the job's resources merged over those of the container `node`."""
    if resources is None:
        return pods
    path = "spec.trainer.resourcesPerNode"
    asked = expect_map(resources, path)
    containers_path = child_path(pods.path, "containers")
    containers: list[Any] = []
    for given in expect_list(pods.spec.get("containers"), containers_path):
        if not isinstance(given, dict) or given.get("name") != _NODE:
            containers.append(given)
            continue
        own = expect_map(given.get("resources"), containers_path)
        merged = {
            kind: {**expect_map(own.get(kind), containers_path), **expect_map(asked.get(kind), f"{path}.{kind}")}
            for kind in ("requests", "limits")
        }
        containers.append({**given, "resources": merged})
    return replace(pods, spec={**pods.spec, "containers": containers})
