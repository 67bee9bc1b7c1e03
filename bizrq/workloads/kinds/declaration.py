"""What a declaration of a kind says: where counts and pod templates stand in its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

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
class FieldPath:
    """A place: keys to follow from the object, or (`@.`) from the element that a role is made for."""

    keys: tuple[str, ...]
    of_element: bool = False

    def __str__(self) -> str:
        return ".".join(("@", *self.keys) if self.of_element else self.keys) or "."


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same number."""

    value: int


@dataclass(frozen=True, slots=True)
class FieldNumber:
    """A whole number that stands in the object; `default` where it is absent, None being "no such operand".

    Then, in this order: less `minus`, more `plus`, never below 0, at most `clamp_max`, at least `clamp_min` (the
    larger of two that contradict each other) and `at_least`.
    """

    at: FieldPath
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


Factor: TypeAlias = Constant | FieldNumber | MinOf


@dataclass(frozen=True, slots=True)
class FieldEquals:
    """True where the value at a place is this one."""

    at: FieldPath
    value: bool | int | str


@dataclass(frozen=True, slots=True)
class InjectedContainer:
    """A container that the kind's operator adds to the role's pods, with these `resources`."""

    init: bool
    default: Mapping[str, Any]
    when: FieldEquals | None = None
    source: FieldPath | None = None


@dataclass(frozen=True, slots=True)
class RoleDeclaration:
    """One set of equal pods, or one for every element of `for_each` (with `key`: of that key, in any case)."""

    name: str
    count: tuple[Factor, ...]
    template: tuple[FieldPath, ...]
    for_each: FieldPath | None = None
    key: str | None = None
    when: FieldPath | None = None
    skip_when: FieldEquals | None = None
    pod_spec: bool = False
    inject: tuple[InjectedContainer, ...] = ()
    code: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedRule:
    """What tells that a workload has ended: a true condition of one of these types, or one of these phases.

    Nothing does so where `unless` holds.
    """

    conditions: FieldPath | None = None
    types: frozenset[str] = frozenset()
    phase: FieldPath | None = None
    phases: frozenset[str] = frozenset()
    unless: FieldEquals | None = None


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """Where an object says how many seconds it runs at most, and from when they count."""

    at: FieldPath
    since: FieldPath


@dataclass(frozen=True, slots=True)
class PodRule:
    """How a workload's pods are found: by their owners, of which these kinds may stand between."""

    owner_chain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """One kind of workload. `scale` is the place that its /scale subresource writes."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]
    roles: tuple[RoleDeclaration, ...] = ()
    zero_when: tuple[FieldEquals, ...] = ()
    finished_when: FinishedRule | None = None
    deadline: DeadlineRule | None = None
    scale: tuple[str, ...] | None = None
    creates: frozenset[GroupKind] = frozenset()
    #: Kinds that its objects own on behalf of whoever is above them: the walk goes on, nobody pays here.
    passes: frozenset[GroupKind] = frozenset()
    #: Those of `creates` that may come to ask for more than it says, each as it stands (a cluster that scales itself).
    grows: frozenset[GroupKind] = frozenset()
    #: Roles that such a child does not have: they are added to what the child asks for.
    beside: frozenset[str] = frozenset()
    pods: PodRule = PodRule()
    elastic_max: FieldPath | None = None
    surge: str | None = None
    code: str | None = None
    #: After its end a workload may go on holding pods, and those are charged (policy `terminal`).
    lingers: bool = False
    #: False for kinds that do not pay for what they make (a CronJob's Jobs are charged).
    pays: bool = True
    #: It has no fewer pods of each role than there are nodes that the role's template fits.
    per_node: bool = False
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
    if isinstance(factor, FieldNumber):
        below = (factor.minus, factor.clamp_min, factor.clamp_max)
        return factor.at.keys[:1] == ("status",) or any(map(_reads_status, below))
    return isinstance(factor, MinOf) and any(map(_reads_status, factor.operands))
