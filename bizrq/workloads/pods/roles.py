"""From a workload object to its sets of equal pods.

This file alone interprets what an adapter declares: how many pods of which template. It does not know what a pod
costs. `coded.py` has what no declaration says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bizrq.workloads.kinds.declaration import Adapter, At, Const, Equals, Factor, Finished, Inject, MinOf, Number, Role
from bizrq.workloads.pods.resize import as_running
from bizrq.workloads.validation import MOST, a_count, a_flag, a_list, a_map, at, child, malformed, show


@dataclass(frozen=True, slots=True)
class PodSet:
    """`count` equal pods: their PodSpec, where it stands in the object, and their annotations and labels."""

    name: str
    count: int
    spec: dict[str, Any]
    path: str
    annotations: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether the template stands in the object itself, and not in one that it refers to."""
        return " -> " not in self.path


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where places lead: into the object, or into the element that a role is made for."""

    obj: dict[str, Any]
    element: Any = None
    element_path: str = ""

    def value(self, place: At) -> Any:
        if place.of_element:
            return at(self.element, place.keys, self.element_path)
        return at(self.obj, place.keys)

    def path(self, place: At) -> str:
        if place.of_element:
            return ".".join((self.element_path, *place.keys))
        return ".".join(place.keys)


def has_ended(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Whether the status says that the workload is over. What is no proper status says nothing."""
    finished = adapter.finished_when
    if finished is None or not (_has_condition(obj, finished) or _has_phase(obj, finished)):
        return False
    return finished.unless is None or _status(obj, finished.unless.at) != finished.unless.value


def _has_condition(obj: dict[str, Any], finished: Finished) -> bool:
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


def _has_phase(obj: dict[str, Any], finished: Finished) -> bool:
    if finished.phase is None:
        return False
    phase = _status(obj, finished.phase)
    return isinstance(phase, str) and phase in finished.phases


def _status(obj: dict[str, Any], place: At) -> Any:
    value: Any = obj
    for key in place.keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def longest_run(obj: dict[str, Any], adapter: Adapter) -> int | None:
    """How long the workload lets itself run, in milliseconds; None where nothing that can be read bounds it."""
    seconds = _status(obj, adapter.deadline.at) if adapter.deadline is not None else None
    return seconds * 1000 if type(seconds) is int and seconds >= 0 else None


def runs_since(obj: dict[str, Any], adapter: Adapter) -> str | None:
    """The time from which that counts, as its status has it; None before."""
    since = _status(obj, adapter.deadline.since) if adapter.deadline is not None else None
    return since if isinstance(since, str) and since else None


def is_suspended(obj: dict[str, Any], adapter: Adapter) -> bool:
    """Whether the workload says that it wants no pods now. Raises Malformed."""
    scope = _Scope(obj)
    return any(_holds(scope, flag) for flag in adapter.zero_when)


def _holds(scope: _Scope, flag: Equals) -> bool:
    value = scope.value(flag.at)
    if isinstance(flag.value, bool):
        return a_flag(value, scope.path(flag.at)) is flag.value
    return type(value) is type(flag.value) and value == flag.value


def pod_sets(obj: dict[str, Any], adapter: Adapter, coded: Mapping[str, Any]) -> list[PodSet]:
    """The sets of pods that an object's declared roles make. Raises Malformed.

    `coded` finds the template of a role that is declared with `code`: a function of the object to (template, path).
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
                if count > MOST:
                    raise malformed(scope.element_path or "spec", f"asks for more than {MOST} pods")
            pod_set = (
                of_pod_spec(name, count, template, path) if role.pod_spec else of_template(name, count, template, path)
            )
            sets.append(_injected(role.inject, scope, pod_set) if role.inject else pod_set)
    return sets


def of_template(name: str, count: int, template: object, path: str) -> PodSet:
    """A set of pods of a PodTemplateSpec that stands at path ("" for a Pod itself). Raises Malformed."""
    found = a_map(template, path)
    spec_path = child(path, "spec")
    spec = found.get("spec")
    if spec is None:
        raise malformed(spec_path, "is missing: the pods that this makes cannot be known")
    metadata = a_map(found.get("metadata"), child(path, "metadata"))
    spec = a_map(spec, spec_path)
    return PodSet(
        name,
        count,
        spec if path else as_running(found, spec),
        spec_path,
        a_map(metadata.get("annotations"), child(path, "metadata.annotations")),
        a_map(metadata.get("labels"), child(path, "metadata.labels")),
    )


def of_pod_spec(name: str, count: int, spec: object, path: str) -> PodSet:
    """A set of pods of a PodSpec that stands at path. Raises Malformed."""
    return PodSet(name, count, a_map(spec, path), path)


def _instances(role: Role, obj: dict[str, Any]) -> Iterator[tuple[str, _Scope]]:
    """The name of every set of pods that a role makes, and what its places lead into."""
    scope = _Scope(obj)
    if role.for_each is None:
        yield role.name, scope
        return
    found, path = scope.value(role.for_each), scope.path(role.for_each)
    if found is None:
        return
    elements: Sequence[tuple[str, Any, str]]
    if isinstance(found, dict):
        elements = [(_name(key), element, child(path, key)) for key, element in found.items()]
    elif isinstance(found, list):
        elements = [
            (_element_name(element) or str(index), element, f"{path}[{index}]") for index, element in enumerate(found)
        ]
    else:
        raise malformed(path, f"must be a map or a list, not {show(found)}")
    for name, element, where in elements:
        if role.key is not None and name.casefold() != role.key.casefold():
            continue
        if not isinstance(element, dict):
            raise malformed(where, f"must be a map, not {show(element)}")
        yield name, _Scope(obj, element, where)


def _name(key: object) -> str:
    return key if isinstance(key, str) and len(key) <= 63 and key.isprintable() else show(key)


def _element_name(element: object) -> str:
    if isinstance(element, dict):
        for key in ("name", "groupName"):
            name = element.get(key)
            if isinstance(name, str) and name:
                return _name(name)
    return ""


def _template(role: Role, scope: _Scope) -> tuple[object, str]:
    for place in role.template:
        if not place.keys:
            return scope.element if place.of_element else scope.obj, scope.element_path
        value = scope.value(place)
        if value is not None:
            return value, scope.path(place)
    raise malformed(scope.path(role.template[0]), "is missing: the pods that this makes cannot be known")


def _number(factor: Factor, scope: _Scope) -> int | None:
    """What a factor comes to; None where it is absent and has no default. Raises Malformed."""
    match factor:
        case Number():
            return _read_number(factor, scope)
        case Const(value=value):
            return value
        case MinOf(operands=operands):
            present = [n for operand in operands if (n := _number(operand, scope)) is not None]
            return min(present, default=None)


def _read_number(factor: Number, scope: _Scope) -> int | None:
    value = scope.value(factor.at)
    if value is None:
        if factor.default is None:
            return None
        number = factor.default
    else:
        number = a_count(value, scope.path(factor.at))
    if factor.minus is not None:
        number -= _number(factor.minus, scope) or 0
    number = max(0, number + factor.plus)
    if factor.clamp_max is not None and (most := _number(factor.clamp_max, scope)) is not None:
        number = min(number, most)
    if factor.clamp_min is not None and (least := _number(factor.clamp_min, scope)) is not None:
        number = max(number, least)
    return max(number, factor.at_least)


def _injected(added: Sequence[Inject], scope: _Scope, pod_set: PodSet) -> PodSet:
    """The pods with the containers that the kind's operator adds to them, after the user's own."""
    spec = pod_set.spec
    for inject in added:
        if inject.when is not None and not _holds(scope, inject.when):
            continue
        asked = scope.value(inject.source) if inject.source is not None else None
        key = "initContainers" if inject.init else "containers"
        own = a_list(spec.get(key), child(pod_set.path, key))
        spec = {
            **spec,
            key: [*own, {"name": "injected", "resources": asked if asked is not None else inject.default}],
        }
    return replace(pod_set, spec=spec)
