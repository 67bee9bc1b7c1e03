"""Which kinds of workload there are, and where in each of them counts and pod templates stand.

This file alone reads declarations of kinds (`kinds.yaml`, and `adapters` of the configuration) and keeps the registry.
It does not look at workload objects: `roles.py` interprets what is read here. The head of `kinds.yaml` is the grammar.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, Final, TypeAlias, TypeVar

import yaml

from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.malformed import MOST, child, nearest, show

GroupKind: TypeAlias = tuple[str, str]
"""An API group ("" for core) and a kind in it."""

#: What is written in code, by the name that a declaration calls it by.
CODED_TEMPLATES: Final = frozenset({"rollout-workloadref"})
CODED_KINDS: Final = frozenset(
    {
        "cronjob",
        "inferenceservice",
        "knative-service",
        "rayjob",
        "scheduledsparkapplication",
        "sparkapplication",
        "trainjob",
    }
)
CODED_SURGES: Final = frozenset({"deployment", "leaderworkerset", "rollout", "twice"})


class DeclarationError(ValueError):
    """A declaration of a kind that cannot be used. One line: where, what is wrong, what to write."""


@dataclass(frozen=True, slots=True)
class At:
    """A place: keys to follow from the object, or (`@.`) from the element that a role is made for."""

    keys: tuple[str, ...]
    of_element: bool = False

    def __str__(self) -> str:
        return ".".join(("@", *self.keys) if self.of_element else self.keys) or "."


@dataclass(frozen=True, slots=True)
class Const:
    """Always the same number."""

    value: int


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number that stands in the object; `default` where it is absent, None being "no such operand".

    Then, in this order: less `minus`, more `plus`, never below 0, at most `clamp_max`, at least `clamp_min` (the
    larger of two that contradict each other) and `at_least`.
    """

    at: At
    default: int | None = None
    minus: Factor | None = None
    plus: int = 0
    clamp_min: Factor | None = None
    clamp_max: Factor | None = None
    at_least: int = 0


@dataclass(frozen=True, slots=True)
class MinOf:
    """The smallest of the operands that are present."""

    operands: tuple[Factor, ...]


Factor: TypeAlias = Const | Number | MinOf


@dataclass(frozen=True, slots=True)
class Equals:
    """True where the value at a place is this one."""

    at: At
    value: bool | int | str


@dataclass(frozen=True, slots=True)
class Inject:
    """A container that the kind's operator adds to the role's pods, with these `resources`."""

    init: bool
    default: Mapping[str, Any]
    when: Equals | None = None
    source: At | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """One set of equal pods, or one for every element of `for_each` (with `key`: of that key, in any case)."""

    name: str
    count: tuple[Factor, ...]
    template: tuple[At, ...]
    for_each: At | None = None
    key: str | None = None
    when: At | None = None
    skip_when: Equals | None = None
    pod_spec: bool = False
    inject: tuple[Inject, ...] = ()
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What tells that a workload has ended: a true condition of one of these types, or one of these phases.

    Nothing does so where `unless` holds.
    """

    conditions: At | None = None
    types: frozenset[str] = frozenset()
    phase: At | None = None
    phases: frozenset[str] = frozenset()
    unless: Equals | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """Where an object says how many seconds it runs at most, and from when they count."""

    at: At
    since: At


@dataclass(frozen=True, slots=True)
class Pods:
    """How a workload's pods are found: by their owners, of which these kinds may stand between."""

    owner_chain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """One kind of workload. `scale` is the place that its /scale subresource writes."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    roles: tuple[Role, ...] = ()
    zero_when: tuple[Equals, ...] = ()
    finished_when: Finished | None = None
    deadline: Deadline | None = None
    scale: tuple[str, ...] | None = None
    creates: frozenset[GroupKind] = frozenset()
    #: Kinds that its objects own on behalf of whoever is above them: the walk goes on, nobody pays here.
    passes: frozenset[GroupKind] = frozenset()
    #: Those of `creates` that may come to ask for more than it says, each as it stands (a cluster that scales itself).
    grows: frozenset[GroupKind] = frozenset()
    #: Roles that such a child does not have: they are added to what the child asks for.
    beside: frozenset[str] = frozenset()
    pods: Pods = Pods()
    elastic_max: At | None = None
    surge: str | None = None
    code: str | None = None
    #: After its end a workload may go on holding pods, and those are charged (policy `terminal`).
    lingers: bool = False
    #: False for kinds that do not pay for what they make (a CronJob's Jobs are charged).
    pays: bool = True
    #: What is counted is no more than an estimate, so that nobody charges it unless somebody asks for it.
    estimate: bool = False

    @cached_property
    def resource(self) -> str:
        """`deployments.apps`, and `pods` for the core group: the name in slots, in `charged_names` and in count/."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def reads_status(self) -> bool:
        """Whether what an object of the kind asks for may change with its status alone."""
        counts = any(_reads_status(factor) for role in self.roles for factor in role.count)
        return counts or self.finished_when is not None or self.code is not None

    @cached_property
    def refers(self) -> bool:
        """Whether the template of its objects may stand in another object."""
        return any(role.code is not None for role in self.roles)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]


def _reads_status(factor: Factor | None) -> bool:
    if isinstance(factor, Number):
        below = (factor.minus, factor.clamp_min, factor.clamp_max)
        return factor.at.keys[:1] == ("status",) or any(map(_reads_status, below))
    return isinstance(factor, MinOf) and any(map(_reads_status, factor.operands))


@dataclass(frozen=True)
class Registry:
    """The kinds that are known, by group and kind, and by group and plural; `charged_names` are those that pay."""

    adapters: tuple[Adapter, ...]
    charged_names: frozenset[str]
    _by_kind: dict[GroupKind, Adapter] = field(init=False, repr=False, compare=False)
    _by_resource: dict[tuple[str, str], Adapter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_kind", {(a.group, a.kind): a for a in self.adapters})
        object.__setattr__(self, "_by_resource", {(a.group, a.plural): a for a in self.adapters})

    def by_kind(self, group: str, kind: str) -> Adapter | None:
        return self._by_kind.get((group, kind))

    def by_resource(self, group: str, plural: str) -> Adapter | None:
        return self._by_resource.get((group, plural))

    def of(self, obj: Mapping[str, Any]) -> Adapter | None:
        """The adapter of an object's group and kind, in whatever version."""
        kind = obj.get("kind")
        group, _ = group_and_version(obj.get("apiVersion"))
        return self._by_kind.get((group, kind)) if isinstance(kind, str) else None

    @cached_property
    def charged(self) -> tuple[Adapter, ...]:
        """The adapters of the kinds that are charged, in the order of their declaration."""
        return tuple(a for a in self.adapters if self.is_charged(a))

    def is_charged(self, adapter: Adapter) -> bool:
        return adapter.resource in self.charged_names

    def only(self, names: Iterable[str]) -> Registry:
        """The same kinds, of which only these are charged (`deployments.apps`, …). Raises DeclarationError."""
        chosen = frozenset(names)
        known = {a.resource: a for a in self.adapters}
        for name in sorted(chosen, key=str):
            if name not in known:
                raise DeclarationError(f"{show(name)} is no kind that is known{nearest(name, known)}")
        return replace(self, charged_names=chosen)

    def everything(self) -> Registry:
        """The same kinds, all of them charged."""
        return replace(self, charged_names=frozenset(a.resource for a in self.adapters))

    def extended(self, entries: object) -> Registry:
        """With the declarations of a configuration (`adapters`) added, and charged.

        One for a kind that is there already must say `override: true`. Raises DeclarationError.
        """
        added = read_adapters(entries, "adapters")
        known = dict(self._by_kind)
        plurals = dict(self._by_resource)
        for index, (adapter, override) in enumerate(added):
            old = known.get((adapter.group, adapter.kind)) or plurals.get((adapter.group, adapter.plural))
            if old is not None and not override:
                raise DeclarationError(
                    f"adapters[{index}]: {adapter.resource} is known already: override: true replaces it"
                )
            if old is not None:
                known.pop((old.group, old.kind), None)
            known[adapter.group, adapter.kind] = adapter
            plurals[adapter.group, adapter.plural] = adapter
        charged = self.charged_names | {a.resource for a, _ in added if not a.estimate}
        return Registry(tuple(known.values()), frozenset(charged))


@cache
def builtin() -> Registry:
    """All kinds that bizrq ships declarations of, all of them charged but those that are only estimated."""
    text = resources.files("bizrq.workloads").joinpath("kinds.yaml").read_text("utf-8")
    adapters = tuple(adapter for adapter, _ in read_adapters(yaml.safe_load(text), "kinds.yaml"))
    return Registry(adapters, frozenset(a.resource for a in adapters if not a.estimate))


# Reading declarations.

_T = TypeVar("_T")


class _Entry:
    """One map of a declaration. Whoever reads it names all keys it may have, so that a slip of the pen is found."""

    def __init__(self, value: object, where: str, keys: Iterable[str]) -> None:
        known = tuple(keys)
        if not isinstance(value, dict):
            raise DeclarationError(f"{where}: must be a map with {', '.join(known)}, not {show(value)}")
        for key in value:
            if key not in known:
                close = difflib.get_close_matches(str(key)[:100], known, n=1, cutoff=0.0)
                raise DeclarationError(f"{where}: {show(key)} is no key here, the nearest is {close[0]}")
        self._value = value
        self.where = where

    def path(self, key: str) -> str:
        return child(self.where, key)

    def __contains__(self, key: str) -> bool:
        return self._value.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value.get(key, default)
        if not isinstance(value, str):
            raise DeclarationError(f"{self.path(key)}: must be a text, not {show(value)}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise DeclarationError(f"{self.path(key)}: must be true or false, not {show(value)}")
        return value

    def whole(self, key: str, least: int = -MOST) -> int:
        value = self._value.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise DeclarationError(
                f"{self.path(key)}: must be a whole number from {least} to {MOST}, not {show(value)}"
            )
        return value

    def one_of(self, key: str, known: Iterable[str]) -> str:
        value = self.text(key)
        if value not in known:
            raise DeclarationError(
                f"{self.path(key)}: must be one of {', '.join(sorted(known))}, not {show(value)}{nearest(value, known)}"
            )
        return value

    def map(self, key: str) -> dict[str, Any]:
        value = self._value.get(key)
        if not isinstance(value, dict):
            raise DeclarationError(f"{self.path(key)}: must be a map, not {show(value)}")
        return value

    def all(self, key: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
        """Every element of a list, read; absent is none."""
        return _all(self._value.get(key, []), self.path(key), read)

    def maybe(self, key: str, read: Callable[[object, str], _T]) -> _T | None:
        return read(self._value[key], self.path(key)) if key in self else None


def _all(value: object, where: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
    if not isinstance(value, list):
        raise DeclarationError(f"{where}: must be a list, not {show(value)}")
    return tuple(read(element, f"{where}[{index}]") for index, element in enumerate(value))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise DeclarationError(f"{where}: must be a text, not {show(value)}")
    return value


_KEYS = (
    "match", "root", "roles", "zeroWhen", "finishedWhen", "deadline", "scale", "creates", "passes", "grows", "beside",
    "pods", "elasticMax", "surge", "code", "lingers", "pays", "estimate", "override",
)  # fmt: skip


def read_adapters(entries: object, where: str) -> list[tuple[Adapter, bool]]:
    """The adapters that are declared, each with whether it may replace another. Raises DeclarationError."""
    found: dict[GroupKind, tuple[Adapter, bool]] = {}
    for adapter, override in _all(entries, where, _adapter):
        if (adapter.group, adapter.kind) in found:
            raise DeclarationError(f"{where}: {adapter.resource} is declared twice")
        found[adapter.group, adapter.kind] = adapter, override
    return list(found.values())


def _adapter(value: object, where: str) -> tuple[Adapter, bool]:
    entry = _Entry(value, where, _KEYS)
    match = _Entry(entry.map("match"), entry.path("match"), ("group", "kind", "resource", "versions"))
    versions = match.all("versions", _text)
    if not versions:
        raise DeclarationError(f"{match.path('versions')}: name at least one version")
    root = entry.maybe("root", _at)
    read = _Reader(root.keys if root else ("spec",))
    code = entry.one_of("code", CODED_KINDS) if "code" in entry else None
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
        finished_when=entry.maybe("finishedWhen", _finished),
        deadline=entry.maybe("deadline", _deadline),
        scale=scale.keys if scale else None,
        creates=frozenset(entry.all("creates", _group_kind)),
        passes=frozenset(entry.all("passes", _group_kind)),
        grows=frozenset(entry.all("grows", _group_kind)),
        beside=frozenset(entry.all("beside", _text)),
        pods=entry.maybe("pods", _pods) or Pods(),
        elastic_max=entry.maybe("elasticMax", _at),
        surge=entry.one_of("surge", CODED_SURGES) if "surge" in entry else None,
        code=code,
        lingers=entry.flag("lingers"),
        pays=entry.flag("pays", default=True),
        estimate=entry.flag("estimate"),
    )
    for group, kind in sorted(adapter.grows - adapter.creates):
        raise DeclarationError(f"{entry.path('grows')}: {group}/{kind} must stand in creates, too")
    return adapter, entry.flag("override")


class _Reader:
    """Reads places; with a `root`, `spec.x` stands for `<root>.x`, and `$.spec.x` for itself."""

    def __init__(self, root: tuple[str, ...]) -> None:
        self._root = root

    def at(self, value: object, where: str) -> At:
        if isinstance(value, str) and value.startswith("$."):
            return _at(value[2:], where)
        place = _at(value, where)
        if not place.of_element and place.keys[:1] == ("spec",):
            return At((*self._root, *place.keys[1:]))
        return place

    def role(self, value: object, where: str) -> Role:
        entry = _Entry(
            value,
            where,
            ("name", "forEach", "key", "when", "skipWhen", "count", "template", "podSpec", "inject", "code"),
        )
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
        return Role(
            name=entry.text("name", ""),
            count=count,
            template=template,
            for_each=entry.maybe("forEach", self.at),
            key=entry.maybe("key", _text),
            when=entry.maybe("when", self.at),
            skip_when=entry.maybe("skipWhen", self.equals),
            pod_spec=entry.flag("podSpec"),
            inject=entry.all("inject", self.inject),
            code=entry.one_of("code", CODED_TEMPLATES) if "code" in entry else None,
        )

    def factor(self, value: object, where: str) -> Factor:
        entry = _Entry(
            value,
            where,
            ("path", "default", "const", "minOf", "clampMin", "clampMax", "minus", "plus", "atLeast"),
        )
        if "const" in entry:
            return Const(entry.whole("const", 0))
        if "minOf" in entry:
            return MinOf(entry.all("minOf", self.factor))
        place = entry.maybe("path", self.at)
        if place is None:
            raise DeclarationError(f"{where}: needs path, const or minOf")
        return Number(
            at=place,
            default=entry.whole("default", 0) if "default" in entry else None,
            minus=entry.maybe("minus", self.factor),
            plus=entry.whole("plus") if "plus" in entry else 0,
            clamp_min=entry.maybe("clampMin", self.factor),
            clamp_max=entry.maybe("clampMax", self.factor),
            at_least=entry.whole("atLeast", 0) if "atLeast" in entry else 0,
        )

    def equals(self, value: object, where: str) -> Equals:
        entry = _Entry(value, where, ("path", "equals"))
        wanted = entry._value.get("equals")
        if not isinstance(wanted, (bool, int, str)):
            raise DeclarationError(f"{entry.path('equals')}: must be true, false, a text or a whole number")
        return Equals(self.at(entry.text("path"), entry.path("path")), wanted)

    def inject(self, value: object, where: str) -> Inject:
        entry = _Entry(value, where, ("when", "as", "from", "default"))
        return Inject(
            init=entry.one_of("as", ("container", "initContainer")) == "initContainer",
            default=entry.map("default"),
            when=entry.maybe("when", self.equals),
            source=entry.maybe("from", self.at),
        )


def _at(value: object, where: str) -> At:
    text = _text(value, where)
    if text == ".":
        return At(())
    keys = tuple(text.split("."))
    place = At(keys[1:], of_element=True) if keys[0] == "@" else At(keys)
    if not all(place.keys) or not place.keys:
        raise DeclarationError(
            f"{where}: {show(text)} is no place: write keys with dots, like spec.replicas or @.replicas"
        )
    return place


def _has_value(factor: Factor) -> bool:
    """Whether a factor always comes to a number."""
    match factor:
        case Const():
            return True
        case Number(default=default):
            return default is not None
        case MinOf(operands=operands):
            return any(_has_value(operand) for operand in operands)


def _finished(value: object, where: str) -> Finished:
    entry = _Entry(value, where, ("conditions", "phase", "unless"))
    conditions = entry.maybe("conditions", lambda v, w: _Entry(v, w, ("path", "types")))
    phase = entry.maybe("phase", lambda v, w: _Entry(v, w, ("path", "values")))
    if conditions is None and phase is None:
        raise DeclarationError(f"{where}: needs conditions or phase")
    return Finished(
        conditions=_at(conditions.text("path"), conditions.path("path")) if conditions else None,
        types=frozenset(conditions.all("types", _text)) if conditions else frozenset(),
        phase=_at(phase.text("path"), phase.path("path")) if phase else None,
        phases=frozenset(phase.all("values", _text)) if phase else frozenset(),
        unless=entry.maybe("unless", _Reader(("spec",)).equals),
    )


def _deadline(value: object, where: str) -> Deadline:
    entry = _Entry(value, where, ("path", "since"))
    return Deadline(_at(entry.text("path"), entry.path("path")), _at(entry.text("since"), entry.path("since")))


def _pods(value: object, where: str) -> Pods:
    # Labels can be set by anybody, so owners tell; whoever gives `selector` or `via` besides is not wrong.
    entry = _Entry(value, where, ("selector", "ownerChain", "via"))
    for key in ("selector", "via"):
        entry.text(key, "")
    return Pods(entry.all("ownerChain", _text))


def _group_kind(value: object, where: str) -> GroupKind:
    group, slash, kind = _text(value, where).partition("/")
    if not slash or not kind:
        raise DeclarationError(f"{where}: {show(value)} must be group/Kind, and /Kind for the core group")
    return group, kind
