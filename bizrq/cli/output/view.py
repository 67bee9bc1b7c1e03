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
from bizrq.cli.output.failure import BAD_INPUT, Failure, instead_of
from bizrq.quota.account import Account
from bizrq.quota.reservation import Reservation
from bizrq.units import names, quantity
from bizrq.units.names import UnknownResource


@dataclass(frozen=True, slots=True)
class Figures:
    """One resource of one group, in nano-units; None what no recount has published yet.

    `used` is what the group's own workloads use (`own`) and what its children were given (`granted`); `reserved` is
    promised and not counted yet; `left` is `hard` without both, below 0 where the group is over. `base` is what the
    resource is a model of, "" for one in itself.
    """

    resource: str
    hard: int
    used: int | None
    own: int | None
    reserved: int
    base: str = ""

    @property
    def granted(self) -> int | None:
        return None if self.used is None or self.own is None else max(0, self.used - self.own)

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
class Sheet:
    """One group, with what is to be shown of it."""

    group: GroupObject
    figures: tuple[Figures, ...]
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
    def tightest(self) -> Figures | None:
        """The resource of which least is left."""
        known = [f for f in self.figures if f.percent is not None]
        return max(known, key=lambda f: (f.percent or 0, f.hard > 0), default=None)


@dataclass(frozen=True)
class Forest:
    """All groups by name."""

    sheets: Mapping[str, Sheet] = field(default_factory=dict)

    def ancestry(self, name: str) -> list[str]:
        """The groups above one, the root first; a cycle, which admission does not allow, ends it."""
        above: list[str] = []
        parent = self.sheets[name].parent
        while parent in self.sheets and parent not in above:
            above.insert(0, parent)
            parent = self.sheets[parent].parent
        return above

    def pruned(self, top: str | None) -> Forest:
        """Without the groups that have nothing to show, nor anything below that has; `top` stays."""
        kept = {top} | {n for name, s in self.sheets.items() if s.figures for n in (name, *self.ancestry(name))}
        return Forest({name: sheet for name, sheet in self.sheets.items() if name in kept})

    def in_order(self, top: str | None = None) -> list[tuple[Sheet, str]]:
        """The groups depth first, by name, each with the lines that lead to it; one whose parent is gone is a root."""
        children: dict[str, list[Sheet]] = {}
        for sheet in sorted(self.sheets.values(), key=lambda s: s.name):
            children.setdefault(sheet.parent if sheet.parent in self.sheets else "", []).append(sheet)
        rows: list[tuple[Sheet, str]] = []
        # Each with the lines before its own, and the lines before its children's.
        todo = [(self.sheets[top], "", "")] if top else [(s, "", "") for s in reversed(children.get("", []))]
        while todo:
            sheet, lead, below = todo.pop()
            rows.append((sheet, lead))
            mine = children.get(sheet.name, [])
            for index, child in reversed(list(enumerate(mine))):
                last = index == len(mine) - 1
                todo.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
        return rows


def forest(
    groups: Iterable[GroupObject], resource: str | None = None, catalog: names.Catalog = names.DEFAULT
) -> Forest:
    """The groups as they are shown, only this resource and its models where one is given. Raises Failure."""
    known = {group.name: group for group in groups}
    children: dict[str, list[str]] = {}
    for group in known.values():
        children.setdefault(group.parent, []).append(group.name)
    wanted = canonical(resource, catalog) if resource is not None else None
    sheets = {name: _sheet(group, tuple(sorted(children.get(name, ()))), catalog) for name, group in known.items()}
    if wanted is None:
        return Forest(sheets)
    if sheets and not any(wanted in (f.resource, f.base) for sheet in sheets.values() for f in sheet.figures):
        names_there = {f.resource for sheet in sheets.values() for f in sheet.figures}
        there = instead_of(wanted, sorted(names_there, key=names.order))
        raise Failure(f"no group has a ceiling for {wanted}; {there}", BAD_INPUT)
    return Forest(
        {
            name: replace(sheet, figures=tuple(f for f in sheet.figures if wanted in (f.resource, f.base)))
            for name, sheet in sheets.items()
        }
    )


def canonical(name: str, catalog: names.Catalog = names.DEFAULT) -> str:
    """A resource as `hard` names it, `cpu` for requests.cpu too; what is not known is taken as it is."""
    try:
        return names.normalize(name, catalog)
    except UnknownResource:
        return name


def _sheet(group: GroupObject, children: tuple[str, ...], catalog: names.Catalog) -> Sheet:
    try:
        hard = {canonical(name, catalog): quantity.parse(value) for name, value in group.spec.hard.items()}
        used, own = wire.amounts(group, group.status.used), wire.amounts(group, group.status.self_used)
        entries = wire.reservations_of(group)
    except GroupUnreadable as error:
        raise Failure(str(error), BAD_INPUT) from None
    except quantity.QuantityError as error:
        raise Failure(f"group {group.name}: spec.hard: {error}", BAD_INPUT) from None
    reserved = Account(group.name, hard, used, entries).reserved
    figures = tuple(
        Figures(name, hard[name], used.get(name), own.get(name), reserved.get(name, 0), _base(name, catalog))
        for name in sorted(hard, key=lambda name: names.order(name, catalog))
    )
    return Sheet(group, figures, entries, children)


def _base(name: str, catalog: names.Catalog) -> str:
    split = names.base_and_model(name, catalog)
    return split[0] if split is not None else ""


def row_of(sheet: Sheet, figures: Figures) -> dict[str, Any]:
    """One resource of one group as `report` prints it; what is not counted yet is null."""
    amounts = {
        "hard": figures.hard,
        "used": figures.used,
        "selfUsed": figures.own,
        "granted": figures.granted,
        "reserved": figures.reserved,
        "left": figures.left,
    }
    return {
        "group": sheet.name,
        "parent": sheet.parent,
        "resource": figures.resource,
        **{key: figures.text(amount) for key, amount in amounts.items()},
        "percent": figures.percent,
    }
