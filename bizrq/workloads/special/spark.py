"""SparkApplication: a driver and executors, whose resources are in Spark's own units.

Sources: spark-operator `internal/scheduler/yunikorn/resourceusage` (memory.go, cpu.go), after Spark's
`BasicExecutorFeatureStep`. Settings elsewhere that would change the sums are rejected.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import (
    describe_value,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    expect_text,
    malformed,
)

DESCRIPTION = (
    "1 driver and `spec.executor.instances` (1 if absent) executors; with dynamicAllocation no fewer than "
    "`initialExecutors` and `minExecutors`. Sizes by Spark's arithmetic: memory and its overhead, `coreRequest` or "
    "`cores`, `coreLimit`, `gpu`"
)

_BYTES = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_MEMORY = re.compile(r"([0-9]{1,12})(?:(b)|([kmgtp])b?)?", re.ASCII | re.IGNORECASE)
_FACTOR = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?", re.ASCII)
_LEAST_OVERHEAD = 384
_NAMESPACE = "spark.kubernetes.namespace"
#: Settings that would override counts and sizes of the object.
_OVERRIDES = re.compile(
    r"spark\.(driver|executor)\.(memory|cores|instances|memoryOverhead|memoryOverheadFactor|minMemoryOverhead)"
    # Older names of the same.
    r"|spark\.yarn\.(driver|executor)\.memoryOverhead"
    r"|spark\.executor\.resource\..*|spark\.driver\.resource\..*|spark\.dynamicAllocation\..*"
    r"|spark\.kubernetes\.memoryOverheadFactor"
    r"|spark\.kubernetes\.(driver|executor)\.(request\.cores|limit\.cores|podTemplateFile)"
)


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return the driver, and as many executors as the application starts with."""
    spec = expect_map(obj.get("spec"), "spec")
    conf = expect_map(spec.get("sparkConf"), "spec.sparkConf")
    for key in conf:
        if not isinstance(key, str) or _OVERRIDES.fullmatch(key):
            raise malformed(
                f"spec.sparkConf[{describe_value(key)}]", "cannot be counted: set it in driver and executor"
            )
    if conf.get(_NAMESPACE, namespace) != namespace:
        raise malformed(
            f"spec.sparkConf[{_NAMESPACE}]", f"must be {namespace}: pods elsewhere would be of another object"
        )
    driver, executor = expect_map(spec.get("driver"), "spec.driver"), expect_map(spec.get("executor"), "spec.executor")
    return [
        _pods("driver", 1, driver, spec, 0),
        _pods("executor", _executors(spec, executor), executor, spec, _beside(spec, conf)),
    ]


def _pods(name: str, count: int, role: dict[str, Any], spec: dict[str, Any], beside: int) -> PodSet:
    path = f"spec.{name}"
    annotations = expect_map(role.get("annotations"), f"{path}.annotations")
    labels = expect_map(role.get("labels"), f"{path}.labels")
    return PodSet(name, count, _pod(spec, role, path, beside), path, annotations, labels)


def _executors(spec: dict[str, Any], executor: dict[str, Any]) -> int:
    numbers = [_count(executor, "instances", "spec.executor", 1)]
    path = "spec.dynamicAllocation"
    dynamic = expect_map(spec.get("dynamicAllocation"), path)
    if expect_bool(dynamic.get("enabled"), f"{path}.enabled"):
        numbers += [_count(dynamic, key, path, 0) for key in ("initialExecutors", "minExecutors")]
    return max(numbers)


def _count(place: dict[str, Any], key: str, path: str, default: int) -> int:
    value = place.get(key)
    return default if value is None else expect_count(value, f"{path}.{key}")


def _pod(spec: dict[str, Any], role: dict[str, Any], path: str, beside: int) -> dict[str, Any]:
    """Return the PodSpec that Spark makes of a role; `beside` is an executor's memory outside of its heap, in MiB."""
    if role.get("template") is not None:
        raise malformed(f"{path}.template", "pod templates of Spark cannot be counted")
    memory = _mib(role.get("memory"), f"{path}.memory", 1024)
    overhead = _mib(role.get("memoryOverhead"), f"{path}.memoryOverhead", -1)
    if overhead < 0:
        overhead = max(int(_factor(spec) * memory), _LEAST_OVERHEAD)
    total = memory + overhead + beside
    limit = role.get("memoryLimit")
    cores = _count(role, "cores", path, 1)
    requests: dict[str, Any] = {"cpu": role.get("coreRequest") or cores, "memory": f"{total}Mi"}
    limits: dict[str, Any] = {"memory": f"{total}Mi" if limit is None else _limit(limit, f"{path}.memoryLimit")}
    if role.get("coreLimit"):
        limits["cpu"] = role["coreLimit"]
    gpu = role.get("gpu")
    if gpu is not None:
        gpu = expect_map(gpu, f"{path}.gpu")
        limits[expect_text(gpu.get("name"), f"{path}.gpu.name")] = _count(gpu, "quantity", f"{path}.gpu", 0)
    main = {"name": path.rpartition(".")[2], "resources": {"requests": requests, "limits": limits}}
    # The application's node selector applies to both roles.
    own = {"nodeSelector": spec.get("nodeSelector")}
    return {
        **own,
        **{key: role[key] for key in ("nodeSelector", "affinity", "schedulerName") if role.get(key) is not None},
        "containers": [main, *expect_list(role.get("sidecars"), f"{path}.sidecars")],
        "initContainers": [*expect_list(role.get("initContainers"), f"{path}.initContainers")],
    }


def _factor(spec: dict[str, Any]) -> Fraction:
    """Return the part of the heap that is added as overhead."""
    given = spec.get("memoryOverheadFactor")
    if given is None:
        return Fraction(1, 10) if spec.get("type") in ("Java", "Scala") else Fraction(4, 10)
    text = expect_text(given, "spec.memoryOverheadFactor")
    if not _FACTOR.fullmatch(text):
        raise malformed("spec.memoryOverheadFactor", f"must be a number like 0.1, not {describe_value(text)}")
    return Fraction(text)


def _beside(spec: dict[str, Any], conf: dict[str, Any]) -> int:
    """Return an executor's memory outside of the heap in MiB: Python workers and off-heap memory."""
    mib = 0
    if spec.get("type") == "Python":
        mib += _mib(conf.get("spark.executor.pyspark.memory"), "spec.sparkConf[spark.executor.pyspark.memory]", 0)
    enabled = expect_text(conf.get("spark.memory.offHeap.enabled"), "spec.sparkConf[spark.memory.offHeap.enabled]")
    if enabled.casefold() not in ("", "false"):
        size = conf.get("spark.memory.offHeap.size")
        mib += _mib(size, "spec.sparkConf[spark.memory.offHeap.size]", 0, bare="b")
    return mib


def _mib(value: object, path: str, default: int, bare: str = "m") -> int:
    """Return the MiB of a JVM memory text (512m, 2g), rounded down. `bare` is the unit of a bare number."""
    if value is None:
        return default
    text = expect_text(value, path)
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise malformed(path, f"must be a memory like 512m or 2g, not {describe_value(text)}")
    return int(match[1]) * _BYTES[(match[2] or match[3] or bare).lower()] // 2**20


def _limit(value: object, path: str) -> str:
    """Return a memory limit as a quantity. A unit that the JVM does not have is Kubernetes' own (3Gi)."""
    text = expect_text(value, path)
    return f"{_mib(text, path, 0)}Mi" if _MEMORY.fullmatch(text) else text
