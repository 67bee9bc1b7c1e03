"""Turn a workload object into its sets of equal pods.

This file alone applies an adapter's declarations: how many pods of which template. It does not know costs. `special`
has what declarations cannot say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

from bizrq.workloads.kinds.declaration import (
    JOB_CONTROLLER,
    Adapter,
    Constant,
    Factor,
    FieldEquals,
    FieldNumber,
    FieldPath,
    FinishedRule,
    InjectedContainer,
    MinOf,
    RoleDeclaration,
)
from bizrq.workloads.pods.podspec import MAX_SIZE
from bizrq.workloads.pods.resize import as_running
from bizrq.workloads.validation import (
    MAX_COUNT,
    child_path,
    describe_value,
    expect_bool,
    expect_count,
    expect_list,
    expect_map,
    get_path,
    malformed,
)

#: The controllers of Kubernetes, Kubeflow, JobSet and KubeRay that keep deadlines, as `managedBy` names them.
_OWN_MANAGERS: Final = frozenset(
    {
        JOB_CONTROLLER,
        "kubeflow.org/training-operator",
        "jobset.sigs.k8s.io/jobset-controller",
        "ray.io/kuberay-operator",
    }
)
#: Indexes as the status of a Job lists them, each once and in order.
_INDEXES: Final = re.compile(r"[0-9]{1,10}(-[0-9]{1,10})?(,[0-9]{1,10}(-[0-9]{1,10})?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PodSet:
    """`count` equal pods: their PodSpec, its path in the object, and their annotations and labels.

    `surge` of them are charged in addition to the declared ones. Each may be made as one of `older` instead, and costs
    no less.
    """

    name: str
    count: int
    spec: dict[str, Any]
    path: str
    annotations: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    surge: int = 0
    older: PodSet | None = None

    @property
    def is_own(self) -> bool:
        """True if the template is in the object itself, and not in one that it refers to."""
        return " -> " not in self.path


@dataclass(frozen=True, slots=True)
class _Scope:
    """The object that paths start from, and the element of `forEach` for those with `@.`."""

    obj: dict[str, Any]
    element: Any = None
    element_path: str = ""

    def value(self, place: FieldPath) -> Any:
        if place.of_element:
            return get_path(self.element, place.keys, self.element_path)
        return get_path(self.obj, place.keys)

    def path(self, place: FieldPath) -> str:
        if place.of_element:
            return ".".join((self.element_path, *place.keys))
        return ".".join(place.keys)


def has_ended(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Return True if the status says that the workload is over. A malformed status says nothing."""
    finished = adapter.finished_when
    if finished is None or not (_has_condition(obj, finished) or _has_phase(obj, finished.phase, finished.phases)):
        return False
    return finished.unless is None or _status(obj, finished.unless.at) != finished.unless.value


def as_rerun(new: dict[str, Any], old: dict[str, Any] | None, adapter: Adapter) -> dict[str, Any]:
    """Return what a write stores without the end in its status, where the operator will run it again for that write."""
    if not adapter.reruns or old is None or new.get("spec") == old.get("spec"):
        return new
    return {key: value for key, value in new.items() if key != "status"}


def _has_condition(obj: dict[str, Any], finished: FinishedRule) -> bool:
    if finished.conditions is None:
        return False
    conditions = _status(obj, finished.conditions)
    return isinstance(conditions, list) and any(
        isinstance(c, dict)
        and isinstance(c.get("type"), str)
        and c["type"] in finished.types
        and c.get("status") == "True"
        for c in conditions
    )


def _has_phase(obj: dict[str, Any], place: FieldPath | None, phases: frozenset[str]) -> bool:
    phase = _status(obj, place) if place is not None else None
    return isinstance(phase, str) and phase in phases


def _status(obj: dict[str, Any], place: FieldPath) -> Any:
    return _value(obj, place.keys)


def _value(obj: dict[str, Any], keys: Iterable[str]) -> Any:
    value: Any = obj
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def max_run_time(obj: dict[str, Any], adapter: Adapter) -> int | None:
    """Return the longest run of the workload in milliseconds, with its retries; None without a readable bound.

    Nobody is known to keep the deadline of an object whose `managedBy`, beside it, names another controller.
    """
    if adapter.deadline is None or _is_managed_elsewhere(obj, adapter.deadline.at):
        return None
    seconds, retries = _value(obj, adapter.deadline.at.keys), _retries(obj, adapter)
    return seconds * 1000 * (retries + 1) if _is_number(seconds) and _is_number(retries) else None


def max_run_time_left(obj: dict[str, Any], adapter: Adapter) -> int | None:
    """Return the longest run that is left of `max_run_time` as the present run begins."""
    most = max_run_time(obj, adapter)
    if most is None or adapter.deadline is None or adapter.deadline.retries is None:
        return most
    runs, failed = _retries(obj, adapter) + 1, _status(obj, adapter.deadline.retries.failed)
    return most // runs * max(1, runs - failed) if _is_number(failed) else most


def _retries(obj: dict[str, Any], adapter: Adapter) -> Any:
    """Return how often a failed run is followed by another, as the object has it."""
    if adapter.deadline is None or adapter.deadline.retries is None:
        return 0
    given = _value(obj, adapter.deadline.retries.limit.keys)
    return 0 if given is None else given


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _is_managed_elsewhere(obj: dict[str, Any], deadline: FieldPath) -> bool:
    manager = _value(obj, (*deadline.keys[:-1], "managedBy"))
    return bool(manager) and not (isinstance(manager, str) and manager in _OWN_MANAGERS)


def run_started_at(obj: dict[str, Any], adapter: Adapter) -> str | None:
    """Return the time from which the present run counts, as the status has it; None while there is none."""
    rule = adapter.deadline
    if rule is None or (rule.retries is not None and _has_phase(obj, rule.retries.phase, rule.retries.phases)):
        return None
    since = _status(obj, rule.since)
    return since if isinstance(since, str) and since else None


def is_suspended(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Return True if the workload wants no pods now. Raises Malformed."""
    scope = _Scope(obj)
    return any(_holds(scope, flag) for flag in adapter.zero_when)


def _holds(scope: _Scope, flag: FieldEquals) -> bool:
    value = scope.value(flag.at)
    if isinstance(flag.value, bool):
        return expect_bool(value, scope.path(flag.at)) is flag.value
    return type(value) is type(flag.value) and value == flag.value


def pod_sets(obj: dict[str, Any], adapter: Adapter, coded: Mapping[str, Any]) -> list[PodSet]:
    """Return the sets of pods of an object's declared roles. Raises Malformed.

    `coded` finds the template of a role with `code`: it maps the name to a function from the object to (template,
    path).
    """
    sets: list[PodSet] = []
    names: set[str] = set()
    for role in adapter.roles:
        for name, scope in _instances(role, obj):
            if role.when is not None and scope.value(role.when) is None:
                continue
            if role.skip_when is not None and _holds(scope, role.skip_when):
                continue
            if name in names:
                name = f"{name}@{scope.element_path or len(sets)}"
            names.add(name)
            find = coded.get(role.code) if role.code else None
            template, path = find(obj) if find else (None, "")
            if template is None:
                template, path = _template(role, scope)
            count = 1
            for factor in role.count:
                count *= _number(factor, scope) or 0
                if count > MAX_COUNT:
                    raise malformed(scope.element_path or "spec", f"asks for more than {MAX_COUNT} pods")
            pod_set = (
                pod_set_of_spec(name, count, template, path)
                if role.pod_spec
                else pod_set_of_template(name, count, template, path)
            )
            sets.append(_injected(role.inject, scope, pod_set) if role.inject else pod_set)
    return sets


def pod_set_of_template(name: str, count: int, template: object, path: str) -> PodSet:
    """Return a set of pods of a PodTemplateSpec at `path`, which is "" for a Pod itself. Raises Malformed."""
    found, prefix = expect_map(template, path), f"{path}." if path else ""
    spec_path, metadata_path = f"{prefix}spec", f"{prefix}metadata"
    spec = found.get("spec")
    if spec is None:
        raise malformed(spec_path, "is missing: the pods that this makes cannot be known")
    metadata = expect_map(found.get("metadata"), metadata_path)
    spec = expect_map(spec, spec_path)
    return PodSet(
        name,
        count,
        spec if path else as_running(found, spec),
        spec_path,
        expect_map(metadata.get("annotations"), f"{metadata_path}.annotations"),
        expect_map(metadata.get("labels"), f"{metadata_path}.labels"),
    )


def pod_set_of_spec(name: str, count: int, spec: object, path: str) -> PodSet:
    """Return a set of pods of a PodSpec at `path`. Raises Malformed."""
    return PodSet(name, count, expect_map(spec, path), path)


def _instances(role: RoleDeclaration, obj: dict[str, Any]) -> Iterator[tuple[str, _Scope]]:
    """Yield the name of every set of pods that a role makes, with the scope of its paths."""
    scope = _Scope(obj)
    if role.for_each is None:
        yield role.name, scope
        return
    found, path = scope.value(role.for_each), scope.path(role.for_each)
    if found is None:
        return
    elements: Sequence[tuple[str, Any, str]]
    if isinstance(found, dict):
        elements = [(_name(key), element, child_path(path, key)) for key, element in found.items()]
    elif isinstance(found, list):
        elements = [
            (_element_name(element) or str(index), element, f"{path}[{index}]") for index, element in enumerate(found)
        ]
    else:
        raise malformed(path, f"must be a map or a list, not {describe_value(found)}")
    if len(elements) > MAX_SIZE:
        raise malformed(path, f"has {len(elements)} entries: no more than {MAX_SIZE} can be counted")
    for name, element, where in elements:
        if role.key is not None and name.casefold() != role.key.casefold():
            continue
        if not isinstance(element, dict):
            raise malformed(where, f"must be a map, not {describe_value(element)}")
        yield name, _Scope(obj, element, where)


def _name(key: object) -> str:
    return key if isinstance(key, str) and len(key) <= 63 and key.isprintable() else describe_value(key)


def _element_name(element: object) -> str:
    if isinstance(element, dict):
        for key in ("name", "groupName"):
            name = element.get(key)
            if isinstance(name, str) and name:
                return _name(name)
    return ""


def _template(role: RoleDeclaration, scope: _Scope) -> tuple[object, str]:
    for place in role.template:
        if not place.keys:
            return scope.element if place.of_element else scope.obj, scope.element_path
        value = scope.value(place)
        if value is not None:
            return value, scope.path(place)
    raise malformed(scope.path(role.template[0]), "is missing: the pods that this makes cannot be known")


def _number(factor: Factor, scope: _Scope) -> int | None:
    """Return the number of a factor; None where it is absent and has no default. Raises Malformed."""
    match factor:
        case FieldNumber():
            return _read_number(factor, scope)
        case Constant(value=value):
            return value
        case MinOf(operands=operands):
            present = [n for operand in operands if (n := _number(operand, scope)) is not None]
            return min(present, default=None)


def _read_number(factor: FieldNumber, scope: _Scope) -> int | None:
    value = scope.value(factor.at)
    if value is None:
        if factor.default is None:
            return None
        number = factor.default
    else:
        number = expect_count(value, scope.path(factor.at))
    below = number
    if factor.minus is not None:
        number -= min(_number(factor.minus, scope) or 0, _most_indexes(factor.minus, scope, below))
    if factor.minus_indexes is not None and (listed := scope.value(factor.minus_indexes)) is not None:
        number -= _indexes(listed, below)
    number = max(0, number + factor.plus)
    if factor.clamp_max is not None and (most := _number(factor.clamp_max, scope)) is not None:
        number = min(number, most)
    if factor.clamp_min is not None and (least := _number(factor.clamp_min, scope)) is not None:
        number = max(number, least)
    return max(number, factor.at_least)


def _most_indexes(factor: Factor, scope: _Scope, below: int) -> int:
    """Return how many indexes below a number the field that a factor names lists; the number without such a field."""
    place = factor.indexes if isinstance(factor, FieldNumber) else None
    listed = scope.value(place) if place is not None else None
    return _indexes(listed, below) if listed is not None else below


def _indexes(text: object, below: int) -> int:
    """Return how many indexes below a number a text such as "0,3-5" lists; none where it cannot be read.

    Source: kubernetes pkg/controller/job/indexed_job_utils.go, parseIndexesFromString.
    """
    if not isinstance(text, str) or not _INDEXES.fullmatch(text):
        return 0
    spans = (span.partition("-") for span in text.split(","))
    return sum(max(0, min(int(last or first), below - 1) - int(first) + 1) for first, _, last in spans)


def _injected(added: Sequence[InjectedContainer], scope: _Scope, pod_set: PodSet) -> PodSet:
    """Return the pods with the containers that the kind's operator adds after the user's own."""
    spec = pod_set.spec
    for inject in added:
        if inject.when is not None and not _holds(scope, inject.when):
            continue
        asked = scope.value(inject.source) if inject.source is not None else None
        key = "initContainers" if inject.init else "containers"
        own = expect_list(spec.get(key), child_path(pod_set.path, key))
        spec = {
            **spec,
            key: [*own, {"name": "injected", "resources": asked if asked is not None else inject.default}],
        }
    return replace(pod_set, spec=spec)
