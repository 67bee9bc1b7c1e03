"""The view of groups that people see: ceilings, usage, reservations, and what is left.

This file alone decides what these words mean in tables, trees and reports. A resource that the configuration does not
know is shown as it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import Condition, GroupObject, GroupUnreadable
from bizrq.figures.errors import NotThere, Unreadable
from bizrq.figures.words import alternatives
from bizrq.quota.allowance import is_line, without_lines
from bizrq.quota.reservation import Reservation, reserved_total
from bizrq.units import base, hierarchy, names, quantity
from bizrq.units.names import UnknownResource
from bizrq.units.resources import percent_of, subtract_floor


@dataclass(frozen=True, slots=True)
class ResourceView:
    """One resource of one group, in nano-units; an amount is None until the first recount.

    `used` is the sum of `self_used`, by the group's own workloads, and `granted`, to its children. `reserved` is not
    counted yet. `liens` are, in safe mode, the hours that workloads may still cost and that no carried hours pay for.
    `left` is `hard` minus all three, below 0 if the group is over quota. Of that webhook processes hold `ahead`, and
    give it back on demand. `base` is the resource of which this one is a model, "" if it is none.
    """

    resource: str
    hard: int
    used: int | None
    self_used: int | None
    reserved: int
    ahead: int = 0
    base: str = ""
    liens: int = 0

    @property
    def granted(self) -> int | None:
        return None if self.used is None or self.self_used is None else max(0, self.used - self.self_used)

    @property
    def taken(self) -> int | None:
        return None if self.used is None else self.used + self.reserved + self.liens

    @property
    def left(self) -> int | None:
        return None if self.taken is None else self.hard - self.taken

    @property
    def is_over(self) -> bool:
        return self.left is not None and self.left < 0

    @property
    def percent(self) -> int | None:
        """Return the taken share of `hard`, rounded up; 100 if `hard` is 0 and anything is taken."""
        return None if self.taken is None else percent_of(self.taken, self.hard)

    @property
    def amounts(self) -> dict[str, int | None]:
        """Return every amount by the name of its column."""
        return {
            "hard": self.hard,
            "used": self.used,
            "self": self.self_used,
            "granted": self.granted,
            "reserved": self.reserved,
            "liens": self.liens,
            "ahead": self.ahead,
            "left": self.left,
        }

    def text(self, amount: int | None) -> str | None:
        return None if amount is None else quantity.text(self.resource, amount)


@dataclass(frozen=True)
class GroupView:
    """One group with the resources to show.

    `reservations` are of changes that were admitted, `ahead` is what webhook processes may admit by themselves.
    """

    group: GroupObject
    resources: tuple[ResourceView, ...]
    reservations: tuple[Reservation, ...]
    ahead: tuple[Reservation, ...]
    children: tuple[str, ...]
    #: False where the user may not list groups: then there may be more children.
    is_complete: bool = True

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def parent(self) -> str:
        return self.group.parent

    @property
    def has_ahead(self) -> bool:
        """Return True where a process holds some of a resource that is shown."""
        return any(f.ahead for f in self.resources)

    @property
    def has_liens(self) -> bool:
        """Return True where workloads may still cost hours of a budget that is shown."""
        return any(f.liens for f in self.resources)

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.group.status.conditions if c.type == kind), None)

    def status_of(self, kind: str) -> str:
        """Return the status of a condition, Unknown if it is not set yet."""
        condition = self.condition(kind)
        return condition.status if condition is not None else "Unknown"

    @property
    def tightest(self) -> ResourceView | None:
        """Return the resource with the highest percentage taken."""
        known = [f for f in self.resources if f.percent is not None]
        return max(known, key=lambda f: (f.percent or 0, f.hard > 0), default=None)


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A group with the tree lines before its name; `hidden` is the number of groups below it that are left out."""

    view: GroupView
    lead: str
    hidden: int = 0


@dataclass(frozen=True)
class TreeView:
    """All groups by name."""

    groups: Mapping[str, GroupView] = field(default_factory=dict)
    #: False where the user may not list groups.
    is_complete: bool = True

    def ancestry(self, name: str) -> list[str]:
        """Return the groups above one, the root first; stop at a cycle, which admission does not allow."""
        return hierarchy.ancestry(name, self._known_parent)[::-1]

    def path(self, name: str) -> str:
        """Return the groups from the root to this one; `…` stands for what is above a group that is not read."""
        above = self.ancestry(name)
        first = self.groups[above[0] if above else name].parent
        unread = ["…", first] if first and not self.is_complete else []
        return " > ".join([*unread, *above, name])

    def _known_parent(self, name: str) -> str:
        parent = self.groups[name].parent
        return parent if parent in self.groups else ""

    def pruned(self, top: str | None) -> TreeView:
        """Leave out the subtrees that have nothing to show; keep `top`."""
        kept = {top} | {n for name, s in self.groups.items() if s.resources for n in (name, *self.ancestry(name))}
        return replace(self, groups={name: view for name, view in self.groups.items() if name in kept})

    def shown_parents(self, top: str | None = None) -> dict[str, str]:
        """Return the parent of each group in a tree that is shown, "" for one at the top.

        A group without its parent is a root. Of a cycle, which admission does not allow, `top` or else the first name
        stands at the top.
        """
        parents = {name: self._known_parent(name) for name in self.groups}
        return {**parents, **dict.fromkeys([top] if top else hierarchy.tops(parents), "")}

    def in_order(self, top: str | None = None, depth: int | None = None, *, by_percent: bool = False) -> list[TreeRow]:
        """Return the groups depth first, with their tree lines; at most `depth` levels of them.

        Siblings are ordered by name, or with `by_percent` by their scarcest resource, the scarcest first. See
        `shown_parents` for what stands at the top.
        """
        children = hierarchy.children(self.shown_parents(top).items())
        if by_percent:
            children = {parent: sorted(names, key=self._scarcity) for parent, names in children.items()}
        tops = [top] if top else children.get("", [])
        # The tree lines before the group's own name, and before the names of its children.
        leads: dict[str, tuple[str, str]] = dict.fromkeys(tops, ("", ""))
        levels = dict.fromkeys(tops, 1)
        rows: list[TreeRow] = []

        def shown_below(name: str) -> Sequence[str]:
            mine = () if levels[name] == depth else children.get(name, ())
            levels.update(dict.fromkeys(mine, levels[name] + 1))
            return mine

        for start in tops:
            for name in hierarchy.subtree(start, shown_below):
                lead, below = leads[name]
                mine = shown_below(name)
                hidden = 0 if mine else len(list(hierarchy.subtree(name, lambda at: children.get(at, ())))) - 1
                rows.append(TreeRow(self.groups[name], lead, hidden))
                for child in mine:
                    own, under = ("└─ ", "   ") if child == mine[-1] else ("├─ ", "│  ")
                    leads.setdefault(child, (below + own, below + under))
        return rows

    def _scarcity(self, name: str) -> tuple[int, str]:
        scarce = self.groups[name].tightest
        return (-(scarce.percent or 0) if scarce is not None else 1, name)


def tree_view(
    groups: Iterable[GroupObject], catalog: names.Catalog, resource: str | None = None, *, is_complete: bool = True
) -> TreeView:
    """Return the view of groups, limited to one resource and its models if it is given. Raise NoAnswer.

    Unless `is_complete`, the groups are some of those that there are.
    """
    known = {group.name: group for group in groups}
    children = hierarchy.children((group.name, group.parent) for group in known.values())
    views = {
        name: group_view(group, tuple(children.get(name, ())), catalog, is_complete=is_complete)
        for name, group in known.items()
    }
    if resource is None:
        return TreeView(views, is_complete)
    there = {name for view in views.values() for f in view.resources for name in (f.resource, f.base)}
    wanted = meant_resources(resource, there, catalog)
    if views and not wanted:
        names_there = {f.resource for view in views.values() for f in view.resources}
        others = alternatives(resource, sorted(names_there, key=lambda name: names.sort_key(name, catalog)))
        raise NotThere(f"no group has a ceiling for {canonical_name(resource, catalog)}; {others}")
    limited = {
        name: replace(view, resources=tuple(f for f in view.resources if wanted & {f.resource, f.base}))
        for name, view in views.items()
    }
    return TreeView(limited, is_complete)


def meant_resources(name: str, there: Collection[str], catalog: names.Catalog) -> set[str]:
    """Return the resources that a name is for: the resource itself, or its requests and limits where it is short.

    `cpu` is short for requests.cpu and limits.cpu, `nvidia.com/gpu` for requests.nvidia.com/gpu.
    """
    exact = {canonical_name(name, catalog), name} & set(there)
    short = {f"{scope}.{name}" for scope in ("requests", "limits")} & set(there)
    return exact | short


def canonical_name(name: str, catalog: names.Catalog) -> str:
    """Return the canonical name of a resource, as in `hard`; an unknown name stays as it is."""
    try:
        return names.normalize(name, catalog)
    except UnknownResource:
        return name


def group_view(
    group: GroupObject, children: tuple[str, ...], catalog: names.Catalog, *, is_complete: bool = True
) -> GroupView:
    """Return the view of one group. Unless `is_complete`, it may have more children. Raise Unreadable."""
    try:
        hard = {canonical_name(name, catalog): quantity.parse(value) for name, value in group.spec.hard.items()}
        used, own = wire.parse_amounts(group, group.status.used), wire.parse_amounts(group, group.status.self_used)
        entries = wire.reservations_of(group)
    except GroupUnreadable as error:
        raise Unreadable(str(error)) from None
    except quantity.QuantityError as error:
        raise Unreadable(f"group {group.name}: spec.hard: {error}") from None
    changes, ahead = tuple(without_lines(entries)), tuple(filter(is_line, entries))
    reserved, held = reserved_total(changes), reserved_total(ahead)
    liens = _liens(group, catalog)
    figures = tuple(
        ResourceView(
            name,
            hard[name],
            used.get(name),
            own.get(name),
            reserved.get(name, 0),
            held.get(name, 0),
            _base(name, catalog),
            liens.get(name, 0),
        )
        for name in sorted(hard, key=lambda name: names.sort_key(name, catalog))
    )
    return GroupView(group, figures, changes, ahead, children, is_complete)


def _liens(group: GroupObject, catalog: names.Catalog) -> Mapping[str, int]:
    """Return the hours that workloads may still cost, beyond carried ones; a condition tells of unreadable terms."""
    try:
        hours = wire.hours_of(group, catalog)
    except GroupUnreadable:
        return {}
    return subtract_floor(hours.committed or {}, hours.carried) if hours.safe else {}


def _base(name: str, catalog: names.Catalog) -> str:
    split = names.base_and_model(name, catalog)
    return split[0] if split is not None else ""


def report_rows(tree: TreeView, top: str | None = None, over: int = 0) -> list[tuple[GroupView, ResourceView]]:
    """Return each resource of each group in the order of the tree, of those that are taken by `over` percent."""
    return [
        (view, figures)
        for view in (row.view for row in tree.in_order(top))
        for figures in view.resources
        if not over or (figures.percent or 0) >= over
    ]


def report_row(view: GroupView, figures: ResourceView) -> dict[str, Any]:
    """Return a row of `report` for programs, as `plain_amounts` does."""
    return {"group": view.name, "parent": view.parent, "resource": figures.resource, **plain_amounts(figures)}


def plain_conditions(view: GroupView) -> list[dict[str, Any]]:
    """Return the conditions of a group for programs."""
    return [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
        for c in view.group.status.conditions
    ]


def plain_amounts(figures: ResourceView) -> dict[str, Any]:
    """Return every figure of a resource as a whole number of its `unit`; an amount is None until the first recount.

    The keys are AMOUNTS of `tables.py`.
    """
    name = figures.resource
    used = {"used": figures.used, "selfUsed": figures.self_used, "granted": figures.granted}
    return {
        "unit": base.unit_of(name),
        "hard": base.rounded_down(name, figures.hard),
        **{key: None if nano is None else base.rounded_up(name, nano) for key, nano in used.items()},
        "reserved": base.rounded_up(name, figures.reserved),
        "left": None if figures.left is None else base.rounded_down(name, figures.left),
        "percentOfHard": figures.percent,
        "ahead": base.rounded_up(name, figures.ahead),
        "liens": base.rounded_up(name, figures.liens),
    }


#: The columns of a list of groups for programs.
LISTED = (
    *("name", "parent", "ready", "over", "scarcest", "unit", "taken", "hard", "percentOfHard"),
    *("reservations", "counted", "created", "contact", "ahead"),
)


def listed_row(view: GroupView) -> dict[str, Any]:
    """Return a group with its scarcest resource for programs, by the columns of LISTED; unknown values are None."""
    group, scarce = view.group, view.tightest
    taken = scarce.taken if scarce else None
    return {
        "name": view.name,
        "parent": view.parent,
        "ready": view.status_of("Ready"),
        "over": view.status_of("OverQuota"),
        "scarcest": scarce.resource if scarce else None,
        "unit": base.unit_of(scarce.resource) if scarce else None,
        "taken": base.rounded_up(scarce.resource, taken) if scarce and taken is not None else None,
        "hard": base.rounded_down(scarce.resource, scarce.hard) if scarce else None,
        "percentOfHard": scarce.percent if scarce else None,
        "reservations": len(view.reservations),
        "counted": group.status.last_reconcile_time,
        "created": group.metadata.creation_timestamp,
        "contact": group.contact,
        "ahead": base.rounded_up(scarce.resource, scarce.ahead) if scarce else None,
    }


def plain_group(view: GroupView) -> dict[str, Any]:
    """Return a group as `tree -o json` prints it; an amount is null until the first recount.

    `children` is null where the user may not list groups.
    """
    return {
        "name": view.name,
        "parent": view.parent,
        "children": list(view.children) if view.is_complete else None,
        "conditions": plain_conditions(view),
        "counted": view.group.status.last_reconcile_time,
        "resources": {figures.resource: plain_amounts(figures) for figures in view.resources},
    }
