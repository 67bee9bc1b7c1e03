"""What an object will make, or grow to, after its own admission.

This file alone derives that. It decides nothing: each of these writes is admitted when it comes. So an answer from here
is a warning in admission, and tells people of it before they apply. It reads no other object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bizrq.units.text import counted
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import EmptyLookup, group_and_version
from bizrq.workloads.owners import namespace_name
from bizrq.workloads.special import knative, kserve
from bizrq.workloads.validation import (
    MAX_COUNT,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    expect_text,
    get_path,
    malformed,
)

Object = dict[str, Any]

#: KEDA scales to so many replicas, or Jobs, where nothing says how many (keda `scaledobject_types.go`).
_KEDA_DEFAULT = 100
#: The longest name that an API server stores.
_LONGEST = 253
#: A list of worker groups or components is read up to here.
_MOST = 100


class Later(NamedTuple):
    """An object that will be written. `what` names it in messages.

    Where `is_growth`, it is the same object in its largest state, otherwise one that is made of it.
    """

    what: str
    obj: Object
    is_growth: bool = False


class Scaling(NamedTuple):
    """What an autoscaler scales: the API group, kind and name of its target, and the most replicas that it may set."""

    group: str
    kind: str
    name: str
    most: int
    field: str


def later(obj: Object, adapter: Adapter) -> list[Later]:
    """Return the objects that one of this kind will make, and its largest state. Raises Malformed.

    None for kinds that neither make charged objects nor grow on their own, and while the object is suspended.
    """
    makes = _MAKERS.get(adapter.code or adapter.kind)
    grown = _GROWN.get(adapter.group_kind, _elastic)(obj, adapter) if makes is None else None
    if makes is None and grown is None:
        return []
    subject = f"{adapter.kind} {namespace_name(obj)[:_LONGEST]}/{_name(obj)}"
    if makes is not None:
        return makes(obj, subject, adapter)
    return [Later(f"{subject} in its largest state ({grown[1]})", grown[0], is_growth=True)] if grown else []


def scaling(obj: Object) -> Scaling | None:
    """Return what a HorizontalPodAutoscaler or a ScaledObject scales; None where it names no target.

    Raises Malformed.
    """
    spec = expect_map(obj.get("spec"), "spec")
    reference = expect_map(spec.get("scaleTargetRef"), "spec.scaleTargetRef")
    api_version, kind, name = reference.get("apiVersion"), reference.get("kind"), reference.get("name")
    if obj.get("kind") == "ScaledObject":
        field, default = "maxReplicaCount", _KEDA_DEFAULT
        api_version, kind = api_version or "apps/v1", kind or "Deployment"
    else:
        field, default = "maxReplicas", None
    if not isinstance(kind, str) or not isinstance(name, str):
        return None
    given = spec.get(field, default)
    group, _ = group_and_version(api_version)
    return Scaling(group, kind, name, expect_count(default if given is None else given, f"spec.{field}"), field)


def _name(obj: Object) -> str:
    metadata = expect_map(obj.get("metadata"), "metadata")
    return expect_text(metadata.get("name") or metadata.get("generateName"), "metadata.name")[:_LONGEST]


def _made(obj: Object, api_version: str, kind: str, name: str, labels: Mapping[str, Any], spec: Object) -> Object:
    metadata = {"name": name, "namespace": namespace_name(obj), "labels": dict(labels)}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _jobs(obj: Object, subject: str, adapter: Adapter) -> list[Later]:
    """Return the Job of a CronJob, with the labels of jobTemplate (kubernetes `cronjob/utils.go`)."""
    spec = expect_map(obj.get("spec"), "spec")
    if expect_bool(spec.get("suspend"), "spec.suspend"):
        return []
    template = expect_map(spec.get("jobTemplate"), "spec.jobTemplate")
    job = _made(obj, "batch/v1", "Job", _name(obj), labels_of(template), expect_map(template.get("spec"), "spec"))
    return [Later(f"each Job of {subject}", job)]


def _scaled_jobs(obj: Object, subject: str, adapter: Adapter) -> list[Later]:
    """Return a Job of a ScaledJob, which has its labels, and one as large as all that KEDA runs at the same time."""
    spec, path = expect_map(obj.get("spec"), "spec"), "spec.jobTargetRef"
    target = expect_map(spec.get("jobTargetRef"), path)
    given = spec.get("maxReplicaCount")
    most = expect_count(_KEDA_DEFAULT if given is None else given, "spec.maxReplicaCount")

    def job(number: int) -> Object:
        sizes = {key: target.get(key) for key in ("parallelism", "completions") if target.get(key) is not None}
        grown = {key: expect_count(size, f"{path}.{key}") * number for key, size in {"parallelism": 1, **sizes}.items()}
        return _made(obj, "batch/v1", "Job", _name(obj), labels_of(obj), {**target, **grown})

    begins = [Later(f"each Job of {subject}", job(1))] if most else []
    if not 1 < most < MAX_COUNT:
        return begins
    return [*begins, Later(f"{subject} in its largest state ({counted(most, 'Job')})", job(most), is_growth=True)]


def _applications(obj: Object, subject: str, adapter: Adapter) -> list[Later]:
    """Return the application of a schedule: it has the labels of the schedule."""
    spec = expect_map(obj.get("spec"), "spec")
    if expect_bool(spec.get("suspend"), "spec.suspend"):
        return []
    template = expect_map(spec.get("template"), "spec.template")
    made = _made(
        obj, f"{adapter.group}/{adapter.versions[0]}", "SparkApplication", _name(obj), labels_of(obj), template
    )
    return [Later(f"each SparkApplication of {subject}", made)]


def _services(obj: Object, subject: str, adapter: Adapter) -> list[Later]:
    """Return the Deployments of an InferenceService as they begin, and at their most replicas."""
    spec = expect_map(obj.get("spec"), "spec")
    found: list[Later] = []
    for pods in kserve.pod_sets(obj, adapter, namespace_name(obj), EmptyLookup()):
        most = expect_count(expect_map(spec[pods.name], pods.path).get("maxReplicas") or 0, f"{pods.path}.maxReplicas")
        labels = {**labels_of(obj), **pods.labels}
        name = f"{_name(obj)}-{pods.name}"
        found += _deployments(obj, f"Deployment {name} of {subject}", name, labels, pods.spec, pods.count, most)
    return found


def _revisions(obj: Object, subject: str, adapter: Adapter) -> list[Later]:
    """Return the Deployment of a Knative Service's next revision: it has the labels of the template."""
    [pods] = knative.pod_sets(obj, adapter, namespace_name(obj), EmptyLookup())
    name = f"{_name(obj)}-revision"
    what = f"the Deployment of {subject}"
    return _deployments(obj, what, name, pods.labels, pods.spec, pods.count, knative.most(pods))


def _deployments(
    obj: Object, what: str, name: str, labels: Mapping[str, Any], pod_spec: Object, count: int, most: int
) -> list[Later]:
    """Return a Deployment as it begins and, where an autoscaler may set more, at its most; 0 is no bound."""

    def sized(replicas: int) -> Object:
        template = {"metadata": {"labels": dict(labels)}, "spec": pod_spec}
        return _made(obj, "apps/v1", "Deployment", name, labels, {"replicas": replicas, "template": template})

    begins = [Later(what, sized(count))] if count else []
    if not count < most < MAX_COUNT:
        return begins
    return [*begins, Later(f"{what} in its largest state ({counted(most, 'replica')})", sized(most), is_growth=True)]


def _elastic(obj: Object, adapter: Adapter) -> tuple[Object, str] | None:
    """Return an elastic job as it is: the counting policy `elastic: max` counts its largest state."""
    most = get_path(obj, adapter.elastic_max.keys) if adapter.elastic_max is not None else None
    if most is None or expect_count(most, str(adapter.elastic_max)) == MAX_COUNT:
        return None
    return obj, f"{adapter.elastic_max} {most}"


def _ray(obj: Object, adapter: Adapter) -> tuple[Object, str] | None:
    """Return a Ray cluster with maxReplicas workers in each group that has a bound, where Ray scales it itself."""
    keys = _RAY_ROOTS[adapter.kind]
    path = ".".join(keys)
    cluster = expect_map(get_path(obj, keys), path)
    if not expect_bool(cluster.get("enableInTreeAutoscaling"), f"{path}.enableInTreeAutoscaling"):
        return None
    groups = expect_list(cluster.get("workerGroupSpecs"), f"{path}.workerGroupSpecs")
    if len(groups) > _MOST:
        raise malformed(f"{path}.workerGroupSpecs", f"more than {_MOST} groups are not looked at")
    grown: list[Object] = []
    for index, each in enumerate(groups):
        at = f"{path}.workerGroupSpecs[{index}]"
        group = expect_map(each, at)
        most = group.get("maxReplicas")
        bounded = most is not None and expect_count(most, f"{at}.maxReplicas") < MAX_COUNT
        grown.append({**group, "replicas": most} if bounded else group)
    if grown == list(groups):
        return None
    cluster = {**cluster, "workerGroupSpecs": grown}
    spec = expect_map(obj.get("spec"), "spec")
    return {**obj, "spec": cluster if len(keys) == 1 else {**spec, keys[1]: cluster}}, "maxReplicas of its workers"


def _spark(obj: Object, adapter: Adapter) -> tuple[Object, str] | None:
    """Return an application with maxExecutors, where Spark scales it itself."""
    spec, path = expect_map(obj.get("spec"), "spec"), "spec.dynamicAllocation"
    dynamic = expect_map(spec.get("dynamicAllocation"), path)
    most = dynamic.get("maxExecutors")
    if not expect_bool(dynamic.get("enabled"), f"{path}.enabled") or most is None:
        return None
    if expect_count(most, f"{path}.maxExecutors") == MAX_COUNT:
        return None
    grown = {**dynamic, "initialExecutors": most}
    return {**obj, "spec": {**spec, "dynamicAllocation": grown}}, f"maxExecutors {most}"


_MAKERS: Final[Mapping[str, Callable[[Object, str, Adapter], list[Later]]]] = {
    "cronjob": _jobs,
    "ScaledJob": _scaled_jobs,
    "scheduledsparkapplication": _applications,
    "inferenceservice": _services,
    "knative-service": _revisions,
}
_RAY_ROOTS: Final = {
    "RayCluster": ("spec",),
    "RayService": ("spec", "rayClusterConfig"),
    "RayJob": ("spec", "rayClusterSpec"),
}
_GROWN: Final[Mapping[tuple[str, str], Callable[[Object, Adapter], tuple[Object, str] | None]]] = {
    **{("ray.io", kind): _ray for kind in _RAY_ROOTS},
    ("sparkoperator.k8s.io", "SparkApplication"): _spark,
}
