"""Decide who pays for an object, why, since when, and until when.

This file alone orders the reasons: an owner that pays, else the group that paid for an owner which released the object,
else its own label, else its namespace. In a namespace that is not managed only the second counts. It does not know
costs. Times are integer milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from bizrq.units.slot import Slot
from bizrq.units.times import TimestampError, parse_timestamp
from bizrq.workloads.kinds.declaration import (
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    JOB_CONTROLLER,
    POD,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    ROLLOUT,
    STATEFUL_SET,
    Adapter,
    GroupKind,
)
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import LABEL, Models, labels_of, models_of, with_models
from bizrq.workloads.lookup import Lookup, group_and_version
from bizrq.workloads.owners import charged_group, controller_of, default_group, namespace_name, owner_chain
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.own_labels import OWN_LABELS, without_own_labels
from bizrq.workloads.ownership.waiting import ordinal_of
from bizrq.workloads.selectors import selects
from bizrq.workloads.validation import Malformed

Object = Mapping[str, Any]


class PayerReason(Enum):
    """Why a group pays for an object."""

    LABEL = "label"
    OWNER = "owner"
    NAMESPACE = "namespace"
    LEFTOVER = "leftover"


#: The end of each reason, for messages.
ENDS: Mapping[PayerReason, str] = {
    PayerReason.LABEL: "until its label names another group or it is gone",
    PayerReason.OWNER: "as long as its owner pays and keeps it",
    PayerReason.NAMESPACE: "until it has a label, the namespace names another group, or it is gone",
    PayerReason.LEFTOVER: "until none of its pods is live",
}


@dataclass(frozen=True, slots=True)
class Paid:
    """`group` pays for an object. `payer` is the uid of the object whose slot is charged, `place` its name for people.

    For a leftover `payer` is the topmost object that is left, and `place` names the payer that is gone. `slot_of` is
    the object with the uid `payer`.
    """

    group: str
    reason: PayerReason
    payer: str
    place: str
    since: int | None
    slot_of: Object = field(default_factory=dict, compare=False, repr=False)
    #: The payer that is gone, for a leftover.
    left: Memory | None = field(default=None, compare=False, repr=False)

    @property
    def models(self) -> Models:
        """The models of the payer's labels."""
        return self.left.models if self.left is not None else models_of(self.slot_of)

    @property
    def is_by_another(self) -> bool:
        """True where an owner pays for the object, or who paid for it before, whatever its own label says."""
        return self.reason in (PayerReason.OWNER, PayerReason.LEFTOVER)

    @property
    def ends(self) -> str:
        return ENDS[self.reason]


#: An object that names a group itself, below an owner that went longer ago than this, is not the owner's: milliseconds
#: for watches to catch up.
LATE = 10_000


class PayingOwner(NamedTuple):
    """A stored owner that pays, or is left of one that paid, and the group that it charges."""

    obj: dict[str, Any]
    group: str


#: Kinds whose controllers release what their selector does not match; every other owner keeps what it made. Source:
#: kubernetes pkg/controller/controller_ref_manager.go, and argo-rollouts utils/replicaset.
SELECTING: Final = frozenset(
    {
        DEPLOYMENT,
        REPLICA_SET,
        STATEFUL_SET,
        DAEMON_SET,
        JOB,
        REPLICATION_CONTROLLER,
        ROLLOUT,
    }
)
#: Those of which the selector may change. Their controllers make objects for the one that they saw last, and let these
#: go once they see the next. Source: kubernetes pkg/apis/core/validation and pkg/apis/apps/validation.
RESELECTING: Final = frozenset({REPLICATION_CONTROLLER, ROLLOUT})


class Remembered(Protocol):
    """The remembered payers. Those that still exist may be among them."""

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for the object with this uid."""
        ...


#: True where a group exists and takes workloads of a namespace.
Takes = Callable[[str, str], bool]


def anywhere(group: str, namespace: str) -> bool:
    """Take every group at its word: admission refuses a label that names none where a workload is written."""
    return True


def paid_by(obj: Object, registry: Registry, lookup: Lookup, remembered: Remembered, takes: Takes) -> Paid | None:
    """Return who pays for an object; None if no group does. Raises nothing.

    An object's own label decides nothing while an owner pays for it, nor while a group still pays that paid for an
    owner which released it. A label whose group does not take the namespace counts as no label here; admission rejects
    it. A pod that stayed with a group pays there, whoever pays for its owner, if anybody does.
    """
    found, stayed = paid_as_kept(obj, registry, lookup, remembered, takes), stayed_with(obj, remembered)
    if stayed is None or found is None or found.group == stayed.group:
        return found
    return _left(obj, stayed)


def _left_apart(each: Object, obj: Object, remembered: Remembered) -> Memory | None:
    """Return the payer that still pays for what an owner has that stands and names no group.

    What that owner makes is nobody's, so no group pays for what it asks for by others. Those pods are left that stayed
    with who paid for them; and what names a group itself, for its growth is decided at admission.
    """
    if each is obj and (stayed := stayed_with(obj, remembered)) is not None:
        return stayed
    found = remembered.get(_uid(each)) if _label(each) is not None and _kind_of(each) != POD else None
    return found if found is not None and found.place != place_of(each) else None


def stayed_with(obj: Object, remembered: Remembered) -> Memory | None:
    """Return the payer that a pod is remembered by itself for; None for any other object.

    Its group pays unless that of the pod's owner is the same: a workload moved there, or another adopted the pod.
    """
    found = remembered.get(_uid(obj)) if _kind_of(obj) == POD else None
    return found if found is not None and found.gone is not None and found.place != place_of(obj) else None


def has_stayed(
    pod: Object, registry: Registry, lookup: Lookup, remembered: Remembered, takes: Takes = anywhere
) -> bool:
    """Return True for a pod that an owner keeps and another group pays for than the owner's. Raises nothing."""
    if stayed_with(pod, remembered) is None or controller_of(pod.get("metadata")) is None:
        return False
    paid = paid_by(pod, registry, lookup, remembered, takes)
    return paid is not None and paid.reason is PayerReason.LEFTOVER and paid.payer == _uid(pod)


def paid_as_kept(obj: Object, registry: Registry, lookup: Lookup, remembered: Remembered, takes: Takes) -> Paid | None:
    """Return who pays for an object, or would if it were no pod that stayed with another group. Raises nothing."""
    chain = list(_kept_by(obj, registry, lookup))
    payer = _payer(chain, registry, lookup, takes)
    is_top = True
    for each in (*(owner for owner, _, _ in reversed(chain)), obj):
        # Above every owner that pays, a payer that released the object still pays, regardless of labels below.
        if is_top:
            let_go = left_by(each, registry, remembered) or dropped_by(each, registry, lookup, remembered, takes)
        else:
            let_go = _left_apart(each, obj, remembered)
        # A pod that is left is its own only pod: what it made is left by itself.
        is_top = let_go is not None and each is not obj and _kind_of(each) == POD
        if let_go is not None and not is_top:
            return _left(each, let_go)
        if payer is not None and each is payer.obj:
            return _by(payer.group, PayerReason.OWNER, each)
    namespace = namespace_name(obj)
    if not registry.scope.manages_named(namespace, lookup):
        return None
    own = _label(obj)
    if own is not None and takes(own, namespace):
        return _by(own, PayerReason.LABEL, obj)
    default = default_group(namespace, lookup)
    if default is not None and takes(default, namespace):
        return _by(default, PayerReason.NAMESPACE, obj)
    return None


def _by(group: str, reason: PayerReason, payer: Object) -> Paid:
    """Return what a stored object pays for."""
    return Paid(group, reason, _uid(payer), place_of(payer), created_at(payer), payer)


def _left(top: Object, let_go: Memory) -> Paid:
    """Return that who let the topmost object go pays on."""
    return Paid(let_go.group, PayerReason.LEFTOVER, _uid(top), let_go.place, let_go.since, top, let_go)


def left_by(top: Object, registry: Registry, remembered: Remembered) -> Memory | None:
    """Return the payer that released the topmost object that is left: it let that object go, or it is gone.

    No owner pays for `top`. What a person makes below an owner that is gone already is none of its, nor what names the
    uid of an owner that never paid for it: one of another namespace, or of a kind that makes no such objects.
    """
    found = remembered.get(_uid(top))
    # An object that pays for itself is remembered under its own place: no owner released it. One that is remembered
    # under another's has been let go, even if nobody has recorded that yet.
    if found is not None and found.place != place_of(top):
        return found
    reference = controller_of(top.get("metadata"))
    if reference is None or not makes(reference, top, registry):
        return None
    found = remembered.get(str(reference.get("uid")))
    if found is None or found.gone is None or not matches_reference(found, reference, namespace_name(top)):
        return None
    created, label = created_at(top), _label(top)
    if created is None or created <= found.gone:
        return found
    # No controller makes anything for a pod. What names another group was admitted there. What names none can only be
    # its controller's, however late: nobody else may make that (webhooks.charging.owner_trust).
    is_late = label is None or (label == found.group and created <= found.gone + LATE)
    return found if is_late and reference.get("kind") != POD[1] else None


def dropped_by(
    obj: Object, registry: Registry, lookup: Lookup, remembered: Remembered, takes: Takes = anywhere
) -> Memory | None:
    """Return the payer that made an object for another selector than it has now. Raises nothing.

    Nobody has let the object go yet: the payer's controller does once it sees that selector. `gone` is None. What names
    another group itself was admitted there, and no controller made it: its template names the payer's own.
    """
    reference = controller_of(obj.get("metadata"))
    if reference is None:
        return None
    group, _ = group_and_version(reference.get("apiVersion"))
    found = next(owner_chain(obj, registry, lookup), None) if (group, reference.get("kind")) in RESELECTING else None
    if found is None or keeps(found[0], obj):
        return None
    owner, adapter, made = found
    if made not in adapter.creates or not (adapter.pays and registry.is_charged(adapter)):
        return None
    paid = paid_by(owner, registry, lookup, remembered, takes)
    if paid is None or _label(obj) not in (None, paid.group):
        return None
    return Memory(paid.group, paid.place, paid.since or 0, None, paid.models)


def owner_that_pays(obj: Object, registry: Registry, lookup: Lookup, takes: Takes = anywhere) -> PayingOwner | None:
    """Return the topmost owner that pays for an object and keeps it; None where none does. Raises nothing."""
    return _payer(list(_kept_by(obj, registry, lookup)), registry, lookup, takes)


def owner_of_write(
    new: Object, old: Object | None, registry: Registry, lookup: Lookup, remembered: Remembered
) -> PayingOwner | None:
    """Return the owner that pays for what a write stores. None where none does, as for a pod that has stayed.

    What a workload has left pays for what is made below it, or comes there: with the models of that workload.
    """
    if controller_of(new.get("metadata")) is None:
        return None
    owner = owner_that_pays(new, registry, lookup)
    if owner is None:
        return _left_owner(new, old, registry, lookup, remembered)
    return None if old is not None and has_stayed(new, registry, lookup, remembered) else owner


def _left_owner(
    new: Object, old: Object | None, registry: Registry, lookup: Lookup, remembered: Remembered
) -> PayingOwner | None:
    """Return what a workload has left and keeps an object, unless another pays for the object already.

    Raises Malformed for labels that cannot be read.
    """
    was = paid_by(old, registry, lookup, remembered, anywhere) if old is not None else None
    if was is not None and was.is_by_another:
        return None
    paid = paid_as_kept(new, registry, lookup, remembered, anywhere)
    if paid is None or paid.reason is not PayerReason.LEFTOVER or paid.slot_of is new:
        return None
    return PayingOwner(with_models(paid.slot_of, paid.models), paid.group)


def group_of_write(
    new: Object, old: Object | None, registry: Registry, lookup: Lookup, remembered: Remembered
) -> str | None:
    """Return the group that a write is charged to, None where no group is; `old` is None for a create.

    A new object is left by nobody: what its reference names never had it. Raises Malformed for an invalid label that
    decides.
    """
    owner = owner_of_write(new, old, registry, lookup, remembered)
    if owner is not None:
        return owner.group
    paid = paid_by(old, registry, lookup, remembered, anywhere) if old is not None else None
    if paid is not None and paid.is_by_another:
        return paid.group
    return charged_group(new, registry, lookup)


def adopts(owner: Object) -> bool:
    """Return True for a workload whose controller adopts what its selector matches.

    Source: kubernetes pkg/controller/job/job_controller.go. A Job that another controller manages is left alone.
    """
    spec = owner.get("spec")
    is_job = _kind_of(owner) == JOB
    manager = spec.get("managedBy") if is_job and isinstance(spec, dict) else None
    return bool(selector_of(owner)) and manager in (None, JOB_CONTROLLER)


def keeps(owner: Object, child: Object) -> bool:
    """Return True where an owner's controller would keep this child: its selector, and a StatefulSet's names.

    An owner without a selector keeps what it made, and so does one of a kind that releases nothing (`SELECTING`). A
    label that the controller itself sets is taken to match (`own_labels`). Source of the names: kubernetes
    pkg/controller/statefulset/stateful_set_utils.go, isMemberOf.
    """
    metadata, kind = child.get("metadata") or {}, _kind_of(owner)
    if (*kind, child.get("kind")) == ("apps", "StatefulSet", "Pod"):
        name = str((owner.get("metadata") or {}).get("name"))
        if ordinal_of(str(metadata.get("name")), name) is None:
            return False
    selector = selector_of(owner)
    if selector and kind in OWN_LABELS:
        selector = without_own_labels(selector, kind)
    labels = metadata.get("labels") or {}
    return not selector or selects(selector, labels if isinstance(labels, dict) else {})


def selector_of(owner: Object) -> dict[str, Any]:
    """Return the selector of an owner that releases what it does not match; empty where it has none."""
    spec = owner.get("spec")
    selector = spec.get("selector") if isinstance(spec, dict) else None
    return selector if isinstance(selector, dict) and _kind_of(owner) in SELECTING else {}


def place_of(obj: Object) -> str:
    metadata = obj.get("metadata") or {}
    return f"{obj.get('kind')}/{namespace_name(obj)}/{metadata.get('name', '')}"


def place_in(slot: Slot, adapter: Adapter) -> str:
    """Return the place of a payer of this kind, by its slot."""
    return f"{adapter.kind}/{slot.namespace}/{slot.name}"


def _kept_by(obj: Object, registry: Registry, lookup: Lookup) -> Iterator[tuple[dict[str, Any], Adapter, GroupKind]]:
    """Yield the owners above an object, the nearest first, as long as each keeps the one below it."""
    below = obj
    for owner, adapter, made in owner_chain(obj, registry, lookup):
        if not keeps(owner, below):
            return
        yield owner, adapter, made
        below = owner


def _payer(
    chain: list[tuple[dict[str, Any], Adapter, GroupKind]], registry: Registry, lookup: Lookup, takes: Takes
) -> PayingOwner | None:
    """Return the topmost owner that pays, with its group; labels below it decide nothing.

    A kind that does not pay for what it makes ends the walk from one that does. Below a pod only those kinds pay whose
    pods make others. Nothing pays in a namespace that is not managed.
    """
    if chain and not registry.scope.manages_named(namespace_name(chain[0][0]), lookup):
        return None
    found: PayingOwner | None = None
    passed: set[GroupKind] = set()
    for owner, adapter, made in chain:
        if made not in adapter.creates:
            passed.add(made)
        elif not (adapter.pays and registry.is_charged(adapter)):
            if found is not None:
                break
        elif passed <= adapter.creates and (adapter.has_pods_below_pods or not passed):
            namespace = namespace_name(owner)
            groups = (_label(owner), default_group(namespace, lookup))
            group = next((each for each in groups if each is not None and takes(each, namespace)), None)
            found = PayingOwner(owner, group) if group is not None else found
    return found


def matches_reference(memory: Memory, reference: Mapping[str, Any], namespace: str) -> bool:
    """Return True unless the object whose uid a reference names is remembered with another kind, place or name.

    A line has the uid of a payer, or of an object below it, but the place of the payer alone.
    """
    kind, remembered_in, name = memory.place.split("/", 2)
    return remembered_in == namespace and (kind != reference.get("kind") or name == reference.get("name"))


def makes(reference: Mapping[str, Any], child: Object, registry: Registry) -> bool:
    """Return True where an owner of the kind that a reference names makes such objects."""
    group, _ = group_and_version(reference.get("apiVersion"))
    adapter, made = registry.by_kind(group, str(reference.get("kind"))), _kind_of(child)
    return adapter is not None and (made in adapter.creates or made in adapter.passes)


def _kind_of(obj: Object) -> GroupKind:
    group, _ = group_and_version(obj.get("apiVersion"))
    return group, str(obj.get("kind"))


def _label(obj: Object) -> str | None:
    try:
        value = labels_of(obj).get(LABEL)
    except Malformed:
        return None
    return value if isinstance(value, str) and value else None


def _uid(obj: Object) -> str:
    return str((obj.get("metadata") or {}).get("uid", ""))


def created_at(obj: Object) -> int | None:
    """Return when an object was created, in milliseconds since 1970; None where that cannot be read."""
    text = (obj.get("metadata") or {}).get("creationTimestamp")
    try:
        return parse_timestamp(text) if isinstance(text, str) else None
    except TimestampError:
        return None
