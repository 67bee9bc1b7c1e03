"""The pages of hours: bills, what is left of budgets, statements, and the audit, of all groups or of one and below.

This file alone decides what an address asks for, and what is said where the user may not read it. Hours are read for
each page, with the user's own rights, as `bizrq report --hours` reads them. Spent hours are in the status of groups, so
that a page follows those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import quote, urlencode

from aiohttp import web

from bizrq.figures.errors import NoAnswer, NotAllowed, UnknownGroup
from bizrq.figures.groups.source import GroupSource, read_groups
from bizrq.figures.hours.bills import Bill, bill_csv, make_bill, of_resource, read_books
from bizrq.figures.hours.records import HoursRecords, select_lines
from bizrq.hours.bill import GroupBy
from bizrq.kube.client import Forbidden
from bizrq.units import hierarchy
from bizrq.units.names import is_cash, metered_resource, sort_key
from web import guard, parts
from web.html import Element, element, shown
from web.pages.audited import audited
from web.pages.bill import billed
from web.pages.burn_down import burnt_down
from web.pages.statements import stated
from web.parts import UNSEEN, Cell
from web.problems import Problem, no_such_group
from web.reading.hub import ALL, ShownGroups
from web.reading.visitors import Seen
from web.visit import Live, Visit, answer, group_address

#: The periods that have a name, and what is shown of one.
PERIODS = {"current": "Current", "last": "Last", "all": "All"}
VIEWS = {"": "Bill", "burn-down": "Burn-down", "statements": "Statements", "audit": "Audit"}
#: What the last form did, by the word in the address that it leads to.
_DONE = {
    "corrected": "The correction is made. It becomes a line of the open period within some seconds.",
    "again": "This correction was made already; nothing was done again.",
}
#: The most groups to choose from where the hours of all may not be read.
_MOST = 500
#: The most groups that a page follows by their names.
_FOLLOWED = 200
_LONGEST = 300


@dataclass(frozen=True)
class AskedHours:
    """What the address asks for: a group and those below it, all groups for ""; a view, and for a bill its form."""

    top: str = ""
    view: str = ""
    period: str = "current"
    by: tuple[GroupBy, ...] = (GroupBy.GROUP,)
    resource: str = ""

    @property
    def path(self) -> str:
        return f"/hours/{quote(self.top, safe='')}" if self.top else "/hours"

    @property
    def query(self) -> str:
        said = [("view", self.view), ("period", self.period if self.period != "current" else "")]
        said += [("by", each.value) for each in (self.by if self.by != (GroupBy.GROUP,) else ())]
        found = urlencode([(key, value) for key, value in (*said, ("resource", self.resource)) if value])
        return f"?{found}" if found else ""

    @property
    def address(self) -> str:
        return f"{self.path}{self.query}"

    def of(self, group: str) -> str:
        """Return the address of the same view of another group."""
        return replace(self, top=group).address

    @property
    def csv_address(self) -> str:
        path = f"{self.path}/bill.csv" if self.top else "/hours.csv"
        return f"{path}{replace(self, view='').query}"


def asked_by(visit: Visit) -> AskedHours:
    """Return what is asked for. Raise Problem."""
    query = visit.request.query
    names = [each for each in query.getall("by", []) if each]
    view, top = query.get("view", ""), visit.request.match_info.get("name", "")
    if view not in VIEWS or not {*names} <= {*GroupBy}:
        raise Problem(HTTPStatus.NOT_FOUND, "There is no such view of hours.", "Go back, and choose another one.")
    by = tuple(each for each in GroupBy if each in names) or (GroupBy.GROUP,)
    at = query.get("at", "").strip()
    period = at or query.get("period", "").strip() or "current"
    return AskedHours(top, view, period[:_LONGEST], by, query.get("resource", "").strip()[:_LONGEST])


async def hours(visit: Visit) -> web.StreamResponse:
    asked = asked_by(visit)
    status = HTTPStatus.OK
    try:
        groups = await _groups(visit, asked.top)
        content = await _CONTENTS[asked.view](visit, asked, groups)
    except UnknownGroup:
        raise no_such_group(asked.top) from None
    except (NotAllowed, Forbidden):
        content = _unseen(asked, await visit.visitor.seen())
    except NoAnswer as error:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        content = [*_tools(asked, ()), parts.notice("bad", shown(error))]
    title = f"Hours of {shown(asked.top)}" if asked.top else "Hours"
    done = _DONE.get(visit.request.query.get("done", ""))
    said = [parts.notice("good", done)] if done else []
    # An audit reads everything several times: it is made when it is asked for.
    live = await _live(visit, asked) if asked.view != "audit" and status is HTTPStatus.OK else None
    return answer(visit, title, content, above=[_head(asked), *said], live=live, status=status)


async def _live(visit: Visit, asked: AskedHours) -> Live:
    """Return what a page of hours follows: the group and those below it, all where they are many."""
    seen = await visit.visitor.seen()
    if not asked.top:
        return Live(seen, is_slow=True)
    groups = visit.views(seen).groups
    names = hierarchy.subtree(asked.top, lambda name: groups[name].children if name in groups else ())
    scope = ShownGroups(frozenset(names), frozenset(names)) if len(names) <= _FOLLOWED else ALL
    return Live(seen, scope, is_slow=True)


async def bill_file(visit: Visit) -> web.StreamResponse:
    """Answer with the file that `bizrq report -o csv` prints."""
    asked = asked_by(visit)
    try:
        found = await _bill(visit, asked, await _groups(visit, asked.top))
    except UnknownGroup:
        raise no_such_group(asked.top) from None
    except NotAllowed:
        raise Problem(HTTPStatus.FORBIDDEN, f"The hours of all groups are {UNSEEN}.", "Choose one group.") from None
    words = [asked.top or "all-groups", asked.period, *(["incomplete"] if found.books.unread else [])]
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-.") else "_" for char in "-".join(words))
    headers = {**guard.PRIVATE, "Content-Disposition": f'attachment; filename="hours-{safe}.csv"'}
    return web.Response(body=bill_csv(found).encode(), content_type="text/csv", charset="utf-8", headers=headers)


async def _groups(visit: Visit, top: str) -> GroupSource:
    """Return the groups as the command reads them. Raise NoAnswer, ApiError or Unreachable."""
    try:
        return await read_groups(visit.visitor.client, [top] if top else [])
    except NotAllowed:
        if not top:
            raise
        raise no_such_group(top) from None


async def _books(visit: Visit, asked: AskedHours, groups: GroupSource, *, statements: bool) -> HoursRecords:
    return await read_books(
        visit.visitor.client,
        groups.groups,
        visit.settings.catalog,
        asked.top or None,
        statements=statements,
        is_complete=groups.is_complete,
    )


async def _bill(visit: Visit, asked: AskedHours, groups: GroupSource) -> Bill:
    books = await _books(visit, asked, groups, statements=asked.period != "current")
    lines = of_resource(books, select_lines(books, asked.period), asked.resource or None)
    return make_bill(books, asked.top or None, lines, asked.by)


# Views


async def _bill_view(visit: Visit, asked: AskedHours, groups: GroupSource) -> list[Cell]:
    try:
        found = await _bill(visit, asked, groups)
    except Forbidden:
        if asked.period == "current":
            raise
        now = element("a", "Show the current period", href=replace(asked, period="current").address)
        text = f"Statements are {UNSEEN}, and bills of past periods need them. "
        return [*_tools(asked, _resources(visit, groups)), parts.empty(text, now, ".")]
    tools = _tools(asked, _resources(visit, groups))
    file = element("a", "Download as CSV", href=asked.csv_address, class_="button", download="")
    return [*tools, *billed(found, asked.of, file)]


async def _burn_down_view(visit: Visit, asked: AskedHours, groups: GroupSource) -> list[Cell]:
    try:
        books, has_past = await _books(visit, asked, groups, statements=True), True
    except Forbidden:
        books, has_past = await _books(visit, asked, groups, statements=False), False
    return burnt_down(books, asked.top or None, asked.of, has_past=has_past)


async def _statements_view(visit: Visit, asked: AskedHours, groups: GroupSource) -> list[Cell]:
    try:
        books = await _books(visit, asked, groups, statements=True)
    except Forbidden:
        return [parts.empty(f"Statements are {UNSEEN}. Ask for the role bizrq-viewer.")]
    return stated(books, lambda group, period: AskedHours(group, "", period).address)


async def _audit_view(visit: Visit, asked: AskedHours, groups: GroupSource) -> list[Cell]:
    async def read(look: int) -> GroupSource:
        return groups if look == 1 else await _groups(visit, asked.top)

    return await audited(visit.visitor.client, read, visit.settings.catalog, asked.top or None)


_CONTENTS: Mapping[str, Callable[[Visit, AskedHours, GroupSource], Awaitable[list[Cell]]]] = {
    "": _bill_view,
    "burn-down": _burn_down_view,
    "statements": _statements_view,
    "audit": _audit_view,
}


# What is around them


def _head(asked: AskedHours) -> Element:
    title = element("h1", f"Hours of {shown(asked.top)}" if asked.top else "Hours of all groups")
    ways = [
        element("li", element("a", text, href=replace(asked, view=view).address, **_current(view == asked.view)))
        for view, text in VIEWS.items()
    ]
    ways_on = (("Correct", f"{asked.path}/correct"), ("Open the group", group_address(asked.top)))
    of_group = [element("a", text, href=to, class_="button") for text, to in (ways_on if asked.top else ())]
    every = [element("a", "All groups", href=replace(asked, top="").address, class_="button")] if asked.top else []
    links = element("div", *of_group, *every, class_="row")
    views = element("nav", element("ul", *ways), class_="views", aria_label="Views of hours")
    return element("div", element("div", title, links, class_="head"), views)


def _current(is_now: bool) -> dict[str, str]:
    return {"aria_current": "page"} if is_now else {}


def _resources(visit: Visit, groups: GroupSource) -> Sequence[str]:
    """Return the resources that groups have budgets of."""
    catalog = visit.settings.catalog
    found = {metered_resource(name) for group in groups.groups for name in group.spec.hard if is_cash(name)}
    return sorted(found, key=lambda name: sort_key(name, catalog))


def _tools(asked: AskedHours, resources: Sequence[str]) -> list[Element]:
    """Return the choice of the period, and a form of what the rows are by."""
    periods = [
        element("a", text, href=replace(asked, period=name).address, class_="button", **_true(name == asked.period))
        for name, text in PERIODS.items()
    ]
    is_named = asked.period in PERIODS
    boxes = [
        element(
            "label",
            element("input", type="checkbox", name="by", value=each.value, **_checked(each in asked.by)),
            each.value,
            class_="check",
        )
        for each in GroupBy
    ]
    kept = [element("input", type="hidden", name="period", value=asked.period)] if is_named else []
    # A field for dates takes no time of day.
    plain = is_named or len(asked.period) == len("2026-01-05")
    at = element(
        "input",
        type="date" if plain else "text",
        name="at",
        id="at",
        value="" if is_named else asked.period,
        autocomplete="off",
    )
    options = [element("option", "all", value="")]
    there = [*resources, *([asked.resource] if asked.resource and asked.resource not in resources else [])]
    options += [
        element("option", shown(name), value=name, **({"selected": ""} if name == asked.resource else {}))
        for name in there
    ]
    form = element(
        "form",
        *kept,
        element("fieldset", element("legend", "Rows by"), *boxes, class_="checks"),
        element("div", element("label", "Resource", for_="resource"), _select(options), class_="field"),
        element("div", element("label", "Period at a date", for_="at"), at, class_="field"),
        element("button", "Show", type="submit"),
        method="get",
        action=asked.path,
        class_="tools",
    )
    chosen = element("div", element("span", "Period", id="periods"), *periods, class_="row", role="group")
    chosen.set("aria-labelledby", "periods")
    return [element("div", chosen, form, class_="choices")]


def _select(options: Sequence[Element]) -> Element:
    return element("select", *options, name="resource", id="resource")


def _true(is_now: bool) -> dict[str, str]:
    return {"aria_current": "true"} if is_now else {}


def _checked(is_chosen: bool) -> dict[str, str]:
    return {"checked": ""} if is_chosen else {}


def _unseen(asked: AskedHours, seen: Seen) -> list[Cell]:
    """Return what is said where the record of a group, or those of all, may not be read."""
    if asked.top:
        return [parts.empty(f"The record of hours of {shown(asked.top)} is {UNSEEN}. ", _ASK)]
    content: list[Cell] = [parts.empty(f"The hours of all groups are {UNSEEN}. ", _ASK)]
    if seen.groups:
        items = [
            element("li", element("a", shown(name), href=AskedHours(name).path)) for name in sorted(seen.groups)[:_MOST]
        ]
        content.append(parts.card("Groups that you may read", element("ul", *items, class_="plain")))
    return content


_ASK = "Ask an administrator for the role bizrq-viewer, which reads records and statements of hours."
