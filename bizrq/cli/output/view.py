"""What a group's object says about its account, as people look at it: ceilings, what is used by whom, what is left.

This file alone decides what those words mean in tables, trees and reports. It only shows: a name that this program's
configuration does not know is shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import Condition, GroupObject, GroupUnreadable
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, alternatives
from bizrq.quota.reservation import Reservation, reserved_total
from bizrq.units import hierarchy, names, quantity
from bizrq.units.names import UnknownResource


@dataclass(frozen=True, slots=True)
class ResourceView:
    """One resource of one group, in nano-units; None what no recount has published yet.

    `used` is what the group's own workloads use (`self_used`) and what its children were given (`granted`); `reserved`
    is promised and not counted yet; `left` is `hard` without both, below 0 where the group is over. `base` is what the
    resource is a model of, "" for one in itself.
    """

    resource: str
    hard: int
    used: int | None
    self_used: int | None
    reserved: int
    base: str = ""

    @property
    def granted(self) -> int | None:
        return None if self.used is None or self.self_used is None else max(0, self.used - self.self_used)

    @property
    def taken(self) -> int | None:
        return None if self.used is None else self.used + self.reserved

    @property
    def left(self) -> int | None:
        return None if self.taken is None else self.hard - self.taken

    @property
    def is_over(self) -> bool:
        return self.left is not None and self.left < 0

    @property
    def percent(self) -> int | None:
        """How much of `hard` is taken, rounded up; of nothing all is taken as soon as anything is."""
        if self.taken is None:
            return None
        if self.hard == 0:
            return 100 if self.taken else 0
        return -(-self.taken * 100 // self.hard)

    def text(self, amount: int | None) -> str | None:
        return None if amount is None else quantity.text(self.resource, amount)


@dataclass(frozen=True)
class GroupView:
    """One group, with what is to be shown of it."""

    group: GroupObject
    resources: tuple[ResourceView, ...]
    reservations: tuple[Reservation, ...]
    children: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def parent(self) -> str:
        return self.group.parent

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.group.status.conditions if c.type == kind), None)

    def status_of(self, kind: str) -> str:
        """True, False, or Unknown where nobody has said yet."""
        condition = self.condition(kind)
        return condition.status if condition is not None else "Unknown"

    @property
    def tightest(self) -> ResourceView | None:
        """The resource of which least is left."""
        known = [f for f in self.resources if f.percent is not None]
        return max(known, key=lambda f: (f.percent or 0, f.hard > 0), default=None)


@dataclass(frozen=True)
class TreeView:
    """All groups by name."""

    groups: Mapping[str, GroupView] = field(default_factory=dict)

    def ancestry(self, name: str) -> list[str]:
        """The groups above one, the root first; a cycle, which admission does not allow, ends it."""
        return hierarchy.ancestry(name, self._known_parent)[::-1]

    def _known_parent(self, name: str) -> str:
        parent = self.groups[name].parent
        return parent if parent in self.groups else ""

    def pruned(self, top: str | None) -> TreeView:
        """Without the groups that have nothing to show, nor anything below that has; `top` stays."""
        kept = {top} | {n for name, s in self.groups.items() if s.resources for n in (name, *self.ancestry(name))}
        return TreeView({name: view for name, view in self.groups.items() if name in kept})

    def in_order(self, top: str | None = None) -> list[tuple[GroupView, str]]:
        """The groups depth first, by name, each with the lines that lead to it; one whose parent is gone is a root."""
        children = hierarchy.children((name, self._known_parent(name)) for name in self.groups)
        tops = [top] if top else children.get("", [])
        # The lines before a group's own name, and before the names of its children.
        leads: dict[str, tuple[str, str]] = dict.fromkeys(tops, ("", ""))
        rows: list[tuple[GroupView, str]] = []
        for start in tops:
            for name in hierarchy.subtree(start, lambda parent: children.get(parent, ())):
                lead, below = leads[name]
                rows.append((self.groups[name], lead))
                mine = children.get(name, [])
                for child in mine:
                    own, under = ("└─ ", "   ") if child == mine[-1] else ("├─ ", "│  ")
                    leads.setdefault(child, (below + own, below + under))
        return rows


def tree_view(groups: Iterable[GroupObject], catalog: names.Catalog, resource: str | None = None) -> TreeView:
    """The groups as they are shown, only this resource and its models where one is given. Raises Failure."""
    known = {group.name: group for group in groups}
    children = hierarchy.children((group.name, group.parent) for group in known.values())
    wanted = canonical_name(resource, catalog) if resource is not None else None
    views = {name: _sheet(group, tuple(children.get(name, ())), catalog) for name, group in known.items()}
    if wanted is None:
        return TreeView(views)
    if views and not any(wanted in (f.resource, f.base) for view in views.values() for f in view.resources):
        names_there = {f.resource for view in views.values() for f in view.resources}
        there = alternatives(wanted, sorted(names_there, key=lambda name: names.sort_key(name, catalog)))
        raise Failure(f"no group has a ceiling for {wanted}; {there}", EXIT_BAD_INPUT)
    return TreeView(
        {
            name: replace(view, resources=tuple(f for f in view.resources if wanted in (f.resource, f.base)))
            for name, view in views.items()
        }
    )


def canonical_name(name: str, catalog: names.Catalog) -> str:
    """A resource as `hard` names it, `cpu` for requests.cpu too; what is not known is taken as it is."""
    try:
        return names.normalize(name, catalog)
    except UnknownResource:
        return name


def _sheet(group: GroupObject, children: tuple[str, ...], catalog: names.Catalog) -> GroupView:
    try:
        hard = {canonical_name(name, catalog): quantity.parse(value) for name, value in group.spec.hard.items()}
        used, own = wire.parse_amounts(group, group.status.used), wire.parse_amounts(group, group.status.self_used)
        entries = wire.reservations_of(group)
    except GroupUnreadable as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    except quantity.QuantityError as error:
        raise Failure(f"group {group.name}: spec.hard: {error}", EXIT_BAD_INPUT) from None
    reserved = reserved_total(entries)
    figures = tuple(
        ResourceView(name, hard[name], used.get(name), own.get(name), reserved.get(name, 0), _base(name, catalog))
        for name in sorted(hard, key=lambda name: names.sort_key(name, catalog))
    )
    return GroupView(group, figures, entries, children)


def _base(name: str, catalog: names.Catalog) -> str:
    split = names.base_and_model(name, catalog)
    return split[0] if split is not None else ""


def report_row(view: GroupView, figures: ResourceView) -> dict[str, Any]:
    """One resource of one group as `report` prints it; what is not counted yet is null."""
    amounts = {
        "hard": figures.hard,
        "used": figures.used,
        "selfUsed": figures.self_used,
        "granted": figures.granted,
        "reserved": figures.reserved,
        "left": figures.left,
    }
    return {
        "group": view.name,
        "parent": view.parent,
        "resource": figures.resource,
        **{key: figures.text(amount) for key, amount in amounts.items()},
        "percent": figures.percent,
    }
