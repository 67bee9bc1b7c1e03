"""The declaration of a kind as a value: where its objects have counts and pod templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

GroupKind: TypeAlias = tuple[str, str]
"""An API group ("" for core) and a kind in it."""

POD: Final[GroupKind] = ("", "Pod")
REPLICATION_CONTROLLER: Final[GroupKind] = ("", "ReplicationController")
DEPLOYMENT: Final[GroupKind] = ("apps", "Deployment")
REPLICA_SET: Final[GroupKind] = ("apps", "ReplicaSet")
STATEFUL_SET: Final[GroupKind] = ("apps", "StatefulSet")
DAEMON_SET: Final[GroupKind] = ("apps", "DaemonSet")
JOB: Final[GroupKind] = ("batch", "Job")
#: What `spec.managedBy` of a Job names as Kubernetes' own controller (kubernetes pkg/apis/batch types.go).
JOB_CONTROLLER: Final = "kubernetes.io/job-controller"
ROLLOUT: Final[GroupKind] = ("argoproj.io", "Rollout")
TRAIN_JOB: Final[GroupKind] = ("trainer.kubeflow.org", "TrainJob")


class Codes(NamedTuple):
    """The names of code that declarations may use as `code` of a kind, `code` of a role, and `surge`."""

    kinds: frozenset[str]
    templates: frozenset[str]
    surges: frozenset[str]


class DeclarationError(ValueError):
    """A declaration that cannot be used. The message is one line: where, what is wrong, what to write."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A path of keys from the object, or (`@.`) from the element of `forEach`."""

    keys: tuple[str, ...]
    of_element: bool = False

    def __str__(self) -> str:
        return ".".join(("@", *self.keys) if self.of_element else self.keys) or "."


@dataclass(frozen=True, slots=True)
class Constant:
    """A fixed number."""

    value: int


@dataclass(frozen=True, slots=True)
class FieldNumber:
    """A whole number in the object, or `default` where it is absent; a default of None makes it no operand.

    Then, in this order: subtract `minus` and the number of `minus_indexes`, add `plus`, keep it from 0 up, apply
    `clamp_max`, `clamp_min` and `at_least`. Where `clamp_min` exceeds `clamp_max`, `clamp_min` wins. `minus` may be the
    number of some indexes: where the field `indexes` lists them, no more count than it lists below the number that they
    are subtracted from. Of those that the field `minus_indexes` lists, all below that number count.
    """

    at: FieldPath
    default: int | None = None
    indexes: FieldPath | None = None
    minus: Factor | None = None
    minus_indexes: FieldPath | None = None
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
    """True where the value at a path is this one."""

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
    """One set of equal pods, or one for each element of `for_each`; with `key` only for that key, in any case."""

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
    """When a workload has ended: a true condition of one of `types`, or one of `phases`, unless `unless` holds.

    `reruns` says that its operator runs an ended one again once its spec changes.
    """

    conditions: FieldPath | None = None
    types: frozenset[str] = frozenset()
    phase: FieldPath | None = None
    phases: frozenset[str] = frozenset()
    unless: FieldEquals | None = None
    reruns: bool = False


@dataclass(frozen=True, slots=True)
class RetryRule:
    """The paths of the number of runs that may follow a failed one, and of the number that have failed.

    No run is under way while `phase` has one of `phases`.
    """

    limit: FieldPath
    failed: FieldPath
    phase: FieldPath
    phases: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeadlineRule:
    """The path of the seconds that a run lasts at most, and of the time from which they count.

    With `retries` an object has several runs, and each may last as long.
    """

    at: FieldPath
    since: FieldPath
    retries: RetryRule | None = None


@dataclass(frozen=True, slots=True)
class PodRule:
    """The kinds that may be between a workload and its pods on the owner chain."""

    owner_chain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """One kind of workload. `scale` is the path that its /scale subresource writes."""

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
    #: Kinds that its objects own on behalf of an object above them: that one pays.
    passes: frozenset[GroupKind] = frozenset()
    #: Those of `creates` that may ask for more than the object does, as a cluster that scales itself.
    grows: frozenset[GroupKind] = frozenset()
    #: Roles that such a child does not have; they are added to its demand.
    beside: frozenset[str] = frozenset()
    pods: PodRule = PodRule()
    elastic_max: FieldPath | None = None
    surge: str | None = None
    code: str | None = None
    #: Roles of the object that the operator makes of this one; its `code` reads them.
    child_roles: tuple[RoleDeclaration, ...] = ()
    #: False for kinds that do not pay for what they create: a CronJob's Jobs are charged themselves.
    pays: bool = True
    #: It has at least as many pods of each role as there are nodes that the role's template fits.
    per_node: bool = False
    #: The demand is only an estimate, so the kind is not charged by default.
    estimate: bool = False

    @cached_property
    def group_kind(self) -> GroupKind:
        """The API group and the kind: what owner references and `creates` name."""
        return self.group, self.kind

    @cached_property
    def resource(self) -> str:
        """`deployments.apps`, or `pods` for the core group: the name in slots, in `charged_names` and in count/."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def has_pods_below_pods(self) -> bool:
        """True if its pods make objects that it pays for, as a driver makes its executors."""
        return "Pod" in self.pods.owner_chain

    @cached_property
    def reads_status(self) -> bool:
        """True if the demand of an object may change with its status alone."""
        counts = any(_reads_status(factor) for role in self.roles for factor in role.count)
        return counts or self.finished_when is not None or self.code is not None

    @cached_property
    def refers(self) -> bool:
        """True if the pod template of an object may be in another object."""
        return any(role.code is not None for role in self.roles)

    @property
    def reruns(self) -> bool:
        """True if the operator runs an ended object again once its spec changes."""
        return self.finished_when is not None and self.finished_when.reruns

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]


def _reads_status(factor: Factor | None) -> bool:
    if isinstance(factor, FieldNumber):
        below = (factor.minus, factor.clamp_min, factor.clamp_max)
        read = (factor.at, factor.minus_indexes)
        return any(at and at.keys[:1] == ("status",) for at in read) or any(map(_reads_status, below))
    return isinstance(factor, MinOf) and any(map(_reads_status, factor.operands))
