"""A small language for workloads and what they cost.

A pod is written as its containers, with | between them: "cpu=1/2 mem=1Gi gpu=/2". `a=1` is a request, `a=/2` a limit,
`a=1/2` both. The words init and sidecar in front make a container one of those; `pod:` states it for the whole pod.
A cost is written as "cpu=4 limits.cpu=4 pods=2", where the short names mean requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from bizrq.builtin import builtin_registry, shared_devices
from bizrq.settings import settings
from bizrq.units import quantity
from bizrq.workloads.config import CountingConfig, Hami
from bizrq.workloads.demand import counting, offline
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.demand.offline import UsageRow
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.validation import Malformed

Object = dict[str, Any]

#: Counting without a configuration.
CONFIG = settings({}).counting

SHORT = {"mem": "memory", "gpu": "nvidia.com/gpu", "disk": "ephemeral-storage"}


def template(text: str, **spec: Any) -> Object:
    """A PodTemplateSpec of such a text; further fields of its PodSpec by name."""
    containers, inits = [], []
    for index, part in enumerate(text.split("|")):
        words = part.split()
        if words[:1] == ["pod:"]:
            spec["resources"] = _resources(words[1:])
            continue
        container: Object = {"name": f"c{index}", "resources": _resources([w for w in words if "=" in w])}
        if "sidecar" in words:
            container["restartPolicy"] = "Always"
        (inits if {"init", "sidecar"} & set(words) else containers).append(container)
    return {"spec": {"containers": containers, **({"initContainers": inits} if inits else {}), **spec}}


def _resources(words: Iterable[str]) -> Object:
    found: Object = {}
    for word in words:
        name, _, value = word.partition("=")
        request, _, limit = value.partition("/")
        for key, text in (("requests", request), ("limits", limit)):
            if text:
                found.setdefault(key, {})[SHORT.get(name, name)] = text
    return found


def workload(api_version: str, kind: str, spec: Any, group: str | None = "nlp", **labels: str) -> Object:
    """An object of team-a named w; labels are group, cpu, gpu and memory (the models)."""
    given = {MODEL_LABELS[what]: model for what, model in labels.items()}
    if group is not None:
        given[LABEL] = group
    metadata = {"name": "w", "namespace": "team-a", "uid": "uid-w", "labels": given}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def deployment(replicas: Any, pod: str | Object, **labels: Any) -> Object:
    return workload("apps/v1", "Deployment", {"replicas": replicas, "template": _template(pod)}, **labels)


def rollout(replicas: Any, pod: str | Object, **labels: Any) -> Object:
    return workload("argoproj.io/v1alpha1", "Rollout", {"replicas": replicas, "template": _template(pod)}, **labels)


def tfjob(labels: dict[str, str] | None = None, **roles: tuple[Any, str | Object]) -> Object:
    specs = {role: {"replicas": replicas, "template": _template(pod)} for role, (replicas, pod) in roles.items()}
    return workload("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": specs}, **(labels or {}))


def _template(pod: str | Object) -> Object:
    return template(pod) if isinstance(pod, str) else pod


def count(
    obj: Object,
    *related: Object,
    config: CountingConfig = CONFIG,
    registry: Registry | None = None,
) -> Demand:
    return counting.demand(obj, registry or builtin_registry(), DocumentLookup([obj, *related]), config)


def usage(
    documents: Iterable[object], config: CountingConfig = CONFIG, registry: Registry | None = None
) -> list[UsageRow]:
    """The rows of `bizrq usage` without further kinds."""
    return offline.usage(documents, config, registry or builtin_registry())


def served_by_hami(*vendors: str) -> Hami:
    """HAMi switched on, for NVIDIA's devices or for those of these vendors."""
    return Hami(enabled=True, devices=tuple(d for d in shared_devices() if d.vendor in (vendors or ("nvidia",))))


def cost(text: str) -> dict[str, int]:
    """Nano-units by name, of a text."""
    result: dict[str, int] = {}
    for word in text.split():
        name, _, value = word.rpartition("=")
        name = SHORT.get(name, name)
        if name in ("cpu", "memory", "ephemeral-storage") or (name == "nvidia.com/gpu"):
            name = f"requests.{name}"
        result[name] = quantity.parse(value)
    return result


def costs(demand: Demand, text: str) -> bool:
    """Whether a demand is exactly this, `count/` aside."""
    found = {name: amount for name, amount in counting.total_demand(demand).items() if not name.startswith("count/")}
    assert found == cost(text)
    return True


def refusal(obj: Object, *related: Object, config: CountingConfig = CONFIG) -> str:
    """Why an object cannot be counted: one line of plain text."""
    with pytest.raises(Malformed) as caught:
        count(obj, *related, config=config)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isascii()
    assert len(message) < 400
    return message
