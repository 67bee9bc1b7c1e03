"""Read declarations of kinds: `kinds.yaml`, and `adapters` of the configuration.

This file alone knows their grammar (docs/adapters.md, "The grammar"). It does not read workload objects: `pods.roles`
applies the declarations.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from bizrq.workloads.kinds.declaration import (
    Adapter,
    Codes,
    Constant,
    DeadlineRule,
    DeclarationError,
    Factor,
    FieldEquals,
    FieldNumber,
    FieldPath,
    FinishedRule,
    GroupKind,
    InjectedContainer,
    MinOf,
    PodRule,
    RetryRule,
    RoleDeclaration,
)
from bizrq.workloads.validation import MAX_COUNT, child_path, describe_value, suggestion

_T = TypeVar("_T")


class _Entry:
    """One map of a declaration. The caller names all keys that it may have, so that typing errors are found."""

    def __init__(self, value: object, where: str, keys: Iterable[str]) -> None:
        known = tuple(keys)
        if not isinstance(value, dict):
            raise DeclarationError(f"{where}: must be a map with {', '.join(known)}, not {describe_value(value)}")
        for key in value:
            if key not in known:
                close = difflib.get_close_matches(str(key)[:100], known, n=1)
                more = f"the nearest is {close[0]}" if close else f"there are: {', '.join(known)}"
                raise DeclarationError(f"{where}: {describe_value(key)} is not a known key, {more}")
        self._value = value
        self.where = where

    def path(self, key: str) -> str:
        return child_path(self.where, key)

    def __contains__(self, key: str) -> bool:
        return self._value.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value.get(key, default)
        if not isinstance(value, str):
            raise DeclarationError(f"{self.path(key)}: must be a string, not {describe_value(value)}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise DeclarationError(f"{self.path(key)}: must be true or false, not {describe_value(value)}")
        return value

    def whole(self, key: str, least: int = -MAX_COUNT) -> int:
        value = self._value.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
            raise DeclarationError(
                f"{self.path(key)}: must be a whole number from {least} to {MAX_COUNT}, not {describe_value(value)}"
            )
        return value

    def one_of(self, key: str, known: Iterable[str]) -> str:
        value = self.text(key)
        if value not in known:
            raise DeclarationError(
                f"{self.path(key)}: must be one of {', '.join(sorted(known))}, "
                f"not {describe_value(value)}{suggestion(value, known)}"
            )
        return value

    def map(self, key: str) -> dict[str, Any]:
        value = self._value.get(key)
        if not isinstance(value, dict):
            raise DeclarationError(f"{self.path(key)}: must be a map, not {describe_value(value)}")
        return value

    def all(self, key: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
        """Read every element of a list; an absent list is empty."""
        return _all(self._value.get(key, []), self.path(key), read)

    def maybe(self, key: str, read: Callable[[object, str], _T]) -> _T | None:
        return read(self._value[key], self.path(key)) if key in self else None


def _all(value: object, where: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list):
        raise DeclarationError(f"{where}: must be a list, not {describe_value(value)}")
    return tuple(read(element, f"{where}[{index}]") for index, element in enumerate(value))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise DeclarationError(f"{where}: must be a string, not {describe_value(value)}")
    return value


#: The keys of a declaration and of a role.
KEYS = (
    "match", "root", "roles", "zeroWhen", "finishedWhen", "deadline", "scale", "creates", "passes", "grows", "beside",
    "pods", "elasticMax", "surge", "code", "childRoles", "pays", "perNode", "estimate", "override",
)  # fmt: skip
ROLE_KEYS = ("name", "forEach", "key", "when", "skipWhen", "count", "template", "podSpec", "inject", "code")


def read_adapters(entries: object, where: str, codes: Codes) -> list[tuple[Adapter, bool]]:
    """Return the declared adapters, each with True if it may replace another. Raises DeclarationError."""
    found: dict[GroupKind, tuple[Adapter, bool]] = {}
    for adapter, override in _all(entries, where, partial(_adapter, codes)):
        if adapter.group_kind in found:
            raise DeclarationError(f"{where}: {adapter.resource} is declared twice")
        found[adapter.group_kind] = adapter, override
    return list(found.values())


def _adapter(codes: Codes, value: object, where: str) -> tuple[Adapter, bool]:
    entry = _Entry(value, where, KEYS)
    match = _Entry(entry.map("match"), entry.path("match"), ("group", "kind", "resource", "versions"))
    versions = match.all("versions", _text)
    if not versions:
        raise DeclarationError(f"{match.path('versions')}: name at least one version")
    root = entry.maybe("root", _at)
    read = _Reader(codes, root.keys if root else ("spec",))
    code = entry.one_of("code", codes.kinds) if "code" in entry else None
    roles = entry.all("roles", read.role)
    if not roles and code is None:
        raise DeclarationError(f"{where}: name at least one role")
    scale = entry.maybe("scale", _at)
    adapter = Adapter(
        group=match.text("group", ""),
        kind=_text(match.text("kind"), match.path("kind")),
        plural=_text(match.text("resource"), match.path("resource")),
        versions=versions,
        roles=roles,
        zero_when=entry.all("zeroWhen", read.equals),
        finished_when=entry.maybe("finishedWhen", partial(_finished, codes)),
        deadline=entry.maybe("deadline", _deadline),
        scale=scale.keys if scale else None,
        creates=frozenset(entry.all("creates", _group_kind)),
        passes=frozenset(entry.all("passes", _group_kind)),
        grows=frozenset(entry.all("grows", _group_kind)),
        beside=frozenset(entry.all("beside", _text)),
        pods=entry.maybe("pods", _pods) or PodRule(),
        elastic_max=entry.maybe("elasticMax", _at),
        surge=entry.one_of("surge", codes.surges) if "surge" in entry else None,
        code=code,
        child_roles=entry.all("childRoles", read.role),
        pays=entry.flag("pays", default=True),
        per_node=entry.flag("perNode"),
        estimate=entry.flag("estimate"),
    )
    for group, kind in sorted(adapter.grows - adapter.creates):
        raise DeclarationError(f"{entry.path('grows')}: {group}/{kind} must be in creates, too")
    return adapter, entry.flag("override")


class _Reader:
    """Reads paths. With a `root`, `spec.x` means `<root>.x`, and `$.spec.x` the object's own `spec.x`."""

    def __init__(self, codes: Codes, root: tuple[str, ...]) -> None:
        self._codes = codes
        self._root = root

    def at(self, value: object, where: str) -> FieldPath:
        if isinstance(value, str) and value.startswith("$."):
            return _at(value[2:], where)
        place = _at(value, where)
        if not place.of_element and place.keys[:1] == ("spec",):
            return FieldPath((*self._root, *place.keys[1:]))
        return place

    def role(self, value: object, where: str) -> RoleDeclaration:
        entry = _Entry(value, where, ROLE_KEYS)
        if "forEach" not in entry and "name" not in entry:
            raise DeclarationError(f"{where}: give the role a name, or forEach")
        template = entry.all("template", self.at)
        if not template:
            raise DeclarationError(f"{entry.path('template')}: name at least one place")
        count = entry.all("count", self.factor)
        if not count:
            raise DeclarationError(f"{entry.path('count')}: name at least one factor")
        for index, factor in enumerate(count):
            if not _has_value(factor):
                raise DeclarationError(f"{entry.path('count')}[{index}]: needs a default, for where it is absent")
        return RoleDeclaration(
            name=entry.text("name", ""),
            count=count,
            template=template,
            for_each=entry.maybe("forEach", self.at),
            key=entry.maybe("key", _text),
            when=entry.maybe("when", self.at),
            skip_when=entry.maybe("skipWhen", self.equals),
            pod_spec=entry.flag("podSpec"),
            inject=entry.all("inject", self.inject),
            code=entry.one_of("code", self._codes.templates) if "code" in entry else None,
        )

    def factor(self, value: object, where: str) -> Factor:
        entry = _Entry(
            value,
            where,
            (
                *("path", "default", "const", "minOf", "clampMin", "clampMax", "minus", "minusIndexes", "plus"),
                *("atLeast", "indexes"),
            ),
        )
        if "const" in entry:
            return Constant(entry.whole("const", 0))
        if "minOf" in entry:
            return MinOf(entry.all("minOf", self.factor))
        place = entry.maybe("path", self.at)
        if place is None:
            raise DeclarationError(f"{where}: needs path, const or minOf")
        return FieldNumber(
            at=place,
            default=entry.whole("default", 0) if "default" in entry else None,
            minus=entry.maybe("minus", self.factor),
            minus_indexes=entry.maybe("minusIndexes", self.at),
            plus=entry.whole("plus") if "plus" in entry else 0,
            clamp_min=entry.maybe("clampMin", self.factor),
            clamp_max=entry.maybe("clampMax", self.factor),
            at_least=entry.whole("atLeast", 0) if "atLeast" in entry else 0,
            indexes=entry.maybe("indexes", self.at),
        )

    def equals(self, value: object, where: str) -> FieldEquals:
        entry = _Entry(value, where, ("path", "equals"))
        wanted = entry._value.get("equals")
        if not isinstance(wanted, (bool, int, str)):
            raise DeclarationError(f"{entry.path('equals')}: must be true, false, a string or a whole number")
        return FieldEquals(self.at(entry.text("path"), entry.path("path")), wanted)

    def inject(self, value: object, where: str) -> InjectedContainer:
        entry = _Entry(value, where, ("when", "as", "from", "default"))
        return InjectedContainer(
            init=entry.one_of("as", ("container", "initContainer")) == "initContainer",
            default=entry.map("default"),
            when=entry.maybe("when", self.equals),
            source=entry.maybe("from", self.at),
        )


def _at(value: object, where: str) -> FieldPath:
    text = _text(value, where)
    if text == ".":
        return FieldPath(())
    keys = tuple(text.split("."))
    place = FieldPath(keys[1:], of_element=True) if keys[0] == "@" else FieldPath(keys)
    if not all(place.keys) or not place.keys:
        raise DeclarationError(
            f"{where}: {describe_value(text)} is not a path: write keys with dots, like spec.replicas or @.replicas"
        )
    return place


def _has_value(factor: Factor) -> bool:
    """Return True if a factor always has a number."""
    match factor:
        case Constant():
            return True
        case FieldNumber(default=default):
            return default is not None
        case MinOf(operands=operands):
            return any(_has_value(operand) for operand in operands)


def _finished(codes: Codes, value: object, where: str) -> FinishedRule:
    entry = _Entry(value, where, ("conditions", "phase", "unless", "reruns"))
    conditions = entry.maybe("conditions", lambda v, w: _Entry(v, w, ("path", "types")))
    phase, phases = entry.maybe("phase", _phase) or (None, frozenset[str]())
    if conditions is None and phase is None:
        raise DeclarationError(f"{where}: needs conditions or phase")
    return FinishedRule(
        conditions=_at(conditions.text("path"), conditions.path("path")) if conditions else None,
        types=frozenset(conditions.all("types", _text)) if conditions else frozenset(),
        phase=phase,
        phases=phases,
        unless=entry.maybe("unless", _Reader(codes, ("spec",)).equals),
        reruns=entry.flag("reruns"),
    )


def _phase(value: object, where: str) -> tuple[FieldPath, frozenset[str]]:
    """Return the place of a phase, and the values that are meant."""
    entry = _Entry(value, where, ("path", "values"))
    return _at(entry.text("path"), entry.path("path")), frozenset(entry.all("values", _text))


def _deadline(value: object, where: str) -> DeadlineRule:
    entry = _Entry(value, where, ("path", "since", "retries"))
    return DeadlineRule(
        _at(entry.text("path"), entry.path("path")),
        _at(entry.text("since"), entry.path("since")),
        entry.maybe("retries", _retries),
    )


def _retries(value: object, where: str) -> RetryRule:
    entry = _Entry(value, where, ("path", "failed", "phase"))
    phase = entry.maybe("phase", _phase)
    if phase is None:
        raise DeclarationError(f"{where}: needs phase")
    return RetryRule(
        _at(entry.text("path"), entry.path("path")),
        _at(entry.text("failed"), entry.path("failed")),
        *phase,
    )


def _pods(value: object, where: str) -> PodRule:
    # Anybody can set labels, so owners decide; `selector` and `via` are accepted and have no effect.
    entry = _Entry(value, where, ("selector", "ownerChain", "via"))
    for key in ("selector", "via"):
        entry.text(key, "")
    return PodRule(entry.all("ownerChain", _text))


def _group_kind(value: object, where: str) -> GroupKind:
    group, slash, kind = _text(value, where).partition("/")
    if not slash or not kind:
        raise DeclarationError(f"{where}: {describe_value(value)} must be group/Kind, and /Kind for the core group")
    return group, kind
