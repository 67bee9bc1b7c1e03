"""The rules of the tree, as one list (docs/design.md, "The tree").

This file alone decides what a group may look like, given its parent, its children and its workloads. The admission
rule decides whether the parent has enough left; the webhook gathers the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied, Reason
from bizrq.units import quantity
from bizrq.units.resources import Limits, Resources

#: The longest a label's value may be, and so a group's name.
MAX_NAME = 63
_LABEL_SAFE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Group:
    """A group as stored or as requested: `hard` by canonical name, in nano-units; `parent` "" is a root.

    `has_schedule` is true where it sets a period, time zone or anchor of its own.
    """

    name: str
    parent: str
    hard: Limits
    used: Resources = field(default_factory=dict)
    reservations: Sequence[Reservation] = ()
    deleting: bool = False
    has_schedule: bool = False


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """A create (`old` is None) or an update, with what is gathered about it.

    `parent` is the stored parent, None where there is none. `children` are the stored children, gathered only for an
    update that gains a name. `selector_error` and `cash_error` say why spec.namespaceSelector and spec.cash cannot be
    read, where the write changes them; "" where they can.
    """

    new: Group
    old: Group | None = None
    parent: Group | None = None
    children: Sequence[Group] = ()
    selector_error: str = ""
    cash_error: str = ""


@dataclass(frozen=True, slots=True)
class GroupDelete:
    """A deletion: the group with the names of its children, of what is charged to it, and in words what runs on."""

    old: Group
    children: Sequence[str] = ()
    workloads: Sequence[str] = ()
    ending: Sequence[str] = ()


def validate(change: GroupWrite | GroupDelete) -> Denied | None:
    """Return one refusal for all rules that the change breaks, or None.

    The reason is that of the first broken rule; the message joins all, in the order of the rules.
    """
    if isinstance(change, GroupDelete):
        return _joined(denied for rule in DELETE_RULES if (denied := rule(change)))
    return _joined(denied for rule in WRITE_RULES if (denied := rule(change)))


def validate_alone(change: GroupWrite) -> Denied | None:
    """Return the refusal for the rules that the change breaks whatever its parent is, or None."""
    return _joined(denied for rule in SINGLE_GROUP_RULES if (denied := rule(change)))


def _joined(broken: Iterable[Denied]) -> Denied | None:
    found = list(broken)
    return Denied(found[0].reason, "; ".join(denied.message for denied in found)) if found else None


def selector_can_be_read(change: GroupWrite) -> Denied | None:
    return Denied(Reason.BAD_SELECTOR, change.selector_error) if change.selector_error else None


def cash_can_be_read(change: GroupWrite) -> Denied | None:
    return Denied(Reason.BAD_CASH, change.cash_error) if change.cash_error else None


def name_is_label_safe(change: GroupWrite) -> Denied | None:
    name = change.new.name
    if len(name) <= MAX_NAME and _LABEL_SAFE.fullmatch(name):
        return None
    return Denied(
        Reason.BAD_NAME,
        f"group name {name[:80]!r} cannot be a label's value: use at most {MAX_NAME} of a-z, 0-9, '-' and '.', "
        "with a letter or digit at both ends",
    )


def parent_never_changes(change: GroupWrite) -> Denied | None:
    if change.old is None or change.old.parent == change.new.parent:
        return None
    return Denied(
        Reason.IMMUTABLE,
        f"group {change.new.name}: spec.parentBizGroup is immutable: it is {_named(change.old.parent)}, not "
        f"{_named(change.new.parent)}; create a new group under the other parent and move the workloads' labels",
    )


def parent_is_another(change: GroupWrite) -> Denied | None:
    if change.new.parent != change.new.name or not change.new.parent:
        return None
    return Denied(Reason.PARENT, f"group {change.new.name} cannot be its own parent")


def only_a_root_schedules(change: GroupWrite) -> Denied | None:
    if not change.new.parent or not change.new.has_schedule or (change.old is not None and change.old.has_schedule):
        return None
    return Denied(
        Reason.BAD_CASH,
        f"group {change.new.name}: only a root sets spec.cash.period, timeZone and anchor, since a tree's hours are "
        f"granted together: set them on the root above {change.new.parent}",
    )


def parent_exists(change: GroupWrite) -> Denied | None:
    if change.new.parent in ("", change.new.name) or change.parent is not None:
        return None
    return Denied(
        Reason.PARENT,
        f"group {change.new.name}: its parent {change.new.parent} does not exist: create the parent first",
    )


def parent_stays(change: GroupWrite) -> Denied | None:
    if change.old is not None or change.parent is None or not change.parent.deleting:
        return None
    return Denied(Reason.PARENT, f"group {change.new.name}: its parent {change.parent.name} is being deleted")


def names_all_that_its_parent_names(change: GroupWrite) -> Denied | None:
    if change.parent is None:
        return None
    lacking = sorted(set(change.parent.hard) - set(change.new.hard))
    if not lacking or (change.old is not None and not _lost(change)):
        return None
    return Denied(
        Reason.MISSING_NAMES,
        f"group {change.new.name}: spec.hard must name every resource that its parent {change.parent.name} names; "
        f"missing: {', '.join(lacking)}",
    )


def every_child_names_all(change: GroupWrite) -> Denied | None:
    if change.old is None:
        return None
    gained = set(change.new.hard) - set(change.old.hard)
    lacking = {child.name: sorted(gained - set(child.hard)) for child in change.children}
    behind = {name: names for name, names in sorted(lacking.items()) if names}
    if not behind:
        return None
    first, names = next(iter(behind.items()))
    rest = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
    return Denied(
        Reason.MISSING_NAMES,
        f"group {change.new.name}: its child {first}{rest} does not name {', '.join(names)}: "
        "names are added to children first",
    )


def has_no_children(change: GroupDelete) -> Denied | None:
    if not change.children:
        return None
    return Denied(
        Reason.NOT_EMPTY,
        f"group {change.old.name} has children: {_some(change.children)}; delete them first",
    )


def has_no_workloads(change: GroupDelete) -> Denied | None:
    if not change.workloads:
        return None
    return Denied(
        Reason.NOT_EMPTY,
        f"group {change.old.name} has workloads: {_some(change.workloads)}; delete them or move their label first",
    )


def has_no_ending_pods(change: GroupDelete) -> Denied | None:
    """Refuse while pods run on: some are gone from the API, and nobody else would be charged for them."""
    if not change.ending:
        return None
    return Denied(
        Reason.NOT_EMPTY, f"group {change.old.name} is charged for pods: {_some(change.ending)}; try again after that"
    )


#: Rules that need only the group and its children.
SINGLE_GROUP_RULES: Sequence[Callable[[GroupWrite], Denied | None]] = (
    selector_can_be_read,
    cash_can_be_read,
    name_is_label_safe,
    parent_never_changes,
    parent_is_another,
    only_a_root_schedules,
    every_child_names_all,
)
#: A create or an update, in this order.
WRITE_RULES: Sequence[Callable[[GroupWrite], Denied | None]] = (
    *SINGLE_GROUP_RULES,
    parent_exists,
    parent_stays,
    names_all_that_its_parent_names,
)
#: A delete, in this order.
DELETE_RULES: Sequence[Callable[[GroupDelete], Denied | None]] = (
    has_no_children,
    has_no_workloads,
    has_no_ending_pods,
)


def lowered_below(new: Group, taken: Mapping[str, int]) -> str | None:
    """Return the warning for a `hard` below what is used and reserved, which is allowed; None otherwise."""
    over = sorted(name for name, hard in new.hard.items() if taken.get(name, 0) > hard)
    if not over:
        return None
    listed = ", ".join(
        f"{name} {quantity.text(name, new.hard[name])} (used {quantity.text(name, taken[name])})" for name in over
    )
    return is_over(new.name, f": {listed}")


def is_over(group: str, listed: str = "") -> str:
    return f"group {group} is over its quota now{listed}; nothing that runs is stopped, growth is refused"


def _lost(change: GroupWrite) -> set[str]:
    """Return the names that an update removes although the parent has them."""
    if change.old is None or change.parent is None:
        return set()
    return (set(change.old.hard) - set(change.new.hard)) & set(change.parent.hard)


def _named(parent: str) -> str:
    return parent or '"" (a root)'


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:2])
    return shown if len(names) <= 2 else f"{shown} and {len(names) - 2} more"
