"""The overview: what is over quota, where hours run low, and a person's groups with the scarcest first."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from bizrq.figures.groups.view import GroupView
from bizrq.units.text import counted
from web import parts
from web.html import Element, element, shown
from web.parts import Cell
from web.reading.views import Views
from web.reading.visitors import Seen
from web.visit import Live, Visit, answer, group_address

#: The most groups in a list of the overview; the tree has all of them.
MOST = 24
_HOURS = ("CashExhausted", "CashLow")


async def overview(visit: Visit) -> web.StreamResponse:
    seen = await visit.visitor.seen()
    found = visit.views(seen)
    content: list[Cell] = []
    if visit.request.query.get("done") == "deleted":
        content.append(parts.notice("good", "The group is deleted, or will be once its hours are handed over."))
    over = [view for view in found.groups.values() if any(f.is_over for f in view.resources)]
    low = [view for view in found.groups.values() if any(view.status_of(kind) == "True" for kind in _HOURS)]
    content.append(_head(found, seen, over=len(over), low=len(low)))
    content += broken(found)
    if not found.groups:
        content.append(_nothing(seen))
    if over:
        content.append(_section("Over quota", "Nothing that runs is stopped; growth is refused.", over))
    if low:
        content.append(_hours(low))
    above = {view.name for view in over}
    mine = sorted((view for view in my_groups(found, seen) if view.name not in above), key=_scarcity)
    if mine:
        title = "My groups, scarcest first" if _is_named(seen) or not seen.is_complete else "Groups, scarcest first"
        content.append(_section(title, "Each with the resource of which the most is taken.", mine))
        content.append(parts.legend())
    if not seen.is_complete:
        content.append(_by_name(seen))
    return answer(visit, "Overview", content, live=Live(seen))


def my_groups(found: Views, seen: Seen) -> Sequence[GroupView]:
    """Return the groups that rules name for the user; all that they see where none is named."""
    rules = seen.rights.rules
    named = [found.groups[name] for name in rules.readable | rules.editable if name in found.groups]
    return named or list(found.groups.values())


def _is_named(seen: Seen) -> bool:
    return any(name in seen.groups for name in seen.rights.rules.readable | seen.rights.rules.editable)


def broken(found: Views) -> list[Element]:
    """Return a notice for groups that cannot be shown."""
    return [parts.notice("bad", shown(why)) for why in list(found.broken.values())[:10]]


def _head(found: Views, seen: Seen, *, over: int, low: int) -> Element:
    said = counted(len(found.groups), "group") + ("" if seen.is_complete else " that you may read")
    facts = [parts.tag(said)]
    facts.append(parts.tag(f"{over} over quota", "over") if over else parts.tag("none over quota"))
    facts.append(parts.tag(f"{low} low on hours", "low") if low else parts.tag("none low on hours"))
    if seen.is_complete:
        facts.append(element("a", "New group", href="/new", class_="button"))
    return element("div", element("h1", "Overview"), element("div", *facts, class_="row"), class_="head")


def _section(title: str, hint: str, views: Sequence[GroupView]) -> Element:
    cards = [element("li", _group(view), class_="group") for view in views[:MOST]]
    left_out = len(views) - len(cards)
    more = (
        [element("p", element("a", f"{left_out} more in the tree", href="/tree?sort=percent"), class_="soft")]
        if left_out > 0
        else []
    )
    head = [element("h2", title), element("p", hint, class_="hint")]
    return element("section", *head, element("ul", *cards, class_="groups"), *more, class_="block")


def _group(view: GroupView) -> Element:
    link = element("a", shown(view.name), href=group_address(view.name), id=f"to-{view.name}")
    title = element("h3", link, *parts.tags(view))
    scarce = view.tightest
    if scarce is None:
        text = "no ceilings" if not view.resources else "not counted yet"
        return element("div", title, element("span", text, class_="soft"))
    numbers = f"{parts.taken_of(scarce)} taken ({parts.percent(scarce)}), {parts.amount(scarce, scarce.left)} left"
    said = element("span", shown(scarce.resource), ": ", numbers, class_="soft")
    return element("div", title, parts.bar(scarce), said)


def _hours(views: Sequence[GroupView]) -> Element:
    rows: list[list[Cell]] = []
    for view in views[:MOST]:
        for kind in _HOURS:
            condition = view.condition(kind)
            if condition is not None and condition.status == "True":
                link = element("a", shown(view.name), href=group_address(view.name))
                rows.append([link, _words(kind), shown(condition.message)])
                break
    columns = [parts.TableColumn("group"), parts.TableColumn("hours"), parts.TableColumn("what is known")]
    return parts.card("Hours running low", parts.table(columns, rows))


def _words(kind: str) -> Element:
    return parts.tag("spent", "over") if kind == "CashExhausted" else parts.tag("low", "low")


def _scarcity(view: GroupView) -> tuple[int, str]:
    scarce = view.tightest
    return (-(scarce.percent or 0) if scarce is not None else 1, view.name)


def _nothing(seen: Seen) -> Element:
    if seen.is_complete:
        return parts.empty("There are no groups yet. ", element("a", "Create the first one", href="/new"))
    return parts.empty(
        "No rule names a group that you may read. Ask an administrator to run: ",
        element("code", "bizrq allow USER GROUP --read"),
    )


def _by_name(seen: Seen) -> Element:
    """Return a field to open a group of which the rules do not tell."""
    hint = (
        "You may not list groups, so this page has those that rules name for you. "
        if seen.knows_names
        else "The API server cannot tell all groups that you may read. "
    )
    box = element("input", name="name", id="name", required="", maxlength=63, autocomplete="off")
    fields = element("div", element("label", "Group", for_="name"), box, class_="field")
    button = element("button", "Open", type="submit")
    form = element("form", fields, button, method="get", action="/groups", class_="tools")
    return parts.card("Open a group by its name", element("p", hint, class_="hint"), form)
