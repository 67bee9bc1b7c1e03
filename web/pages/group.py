"""The page of one group: everything that `bizrq describe` shows, and where relatives have room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote, urlencode

from aiohttp import web

from bizrq.figures.describe import OF_EVENTS, GroupEvent, amounts_text, leftover_text, read_events
from bizrq.figures.groups.relatives import Relatives, relatives_below
from bizrq.figures.groups.view import GroupView, ResourceView, group_view
from bizrq.figures.simulate.charged import ChargedWorkload, ChargedWorkloads, charged_to
from bizrq.units.text import counted
from bizrq.units.times import format_timestamp
from web import parts
from web.html import Element, element, shown
from web.parts import UNSEEN, Cell, TableColumn
from web.problems import Problem
from web.reading.hub import ShownGroups
from web.reading.recent import RecentAnswer
from web.reading.views import Views
from web.reading.visitors import Seen
from web.visit import Live, Visit, answer, group_address

#: Seconds for which the workloads and events of a group are shown again: to find them takes a request for each kind.
#: Where that takes long, a page that is open shows them for longer.
_RECENT = 10.0
#: The most rows of a list in the page.
_MOST = 200


#: What the last change did, by the word in the address that it leads to.
_DONE = {
    "changed": "The group is changed.",
    "again": "This change was applied already; nothing was done again.",
    "created": "The group is created. Its figures come with the first recount.",
    "there": "This group was created already; nothing was done again.",
}


async def open_group(visit: Visit) -> web.StreamResponse:
    """Lead from the name of a group to its page."""
    name = visit.request.query.get("name", "").strip()
    if not name:
        raise Problem(HTTPStatus.NOT_FOUND, "There is no group without a name.", "Go back, and type its name.")
    return web.Response(status=303, headers={"Location": group_address(name)})


async def group(visit: Visit) -> web.StreamResponse:
    name = visit.request.match_info["name"]
    seen, found, view = await find(visit, name)
    workloads, events = await _found(visit, seen, view)
    content: list[Cell] = []
    if done := _DONE.get(visit.request.query.get("done", "")):
        content.append(parts.notice("good", done))
    content += [
        _head(found, view),
        *_conditions_first(view),
        parts.card("Resources", *_resources(view)),
        element(
            "div",
            relatives_card(found, view.parent, name, [f.resource for f in view.resources]),
            _facts(found, view),
            class_="columns",
        ),
        parts.card("Workloads, the most expensive first", *_workloads(view, workloads)),
        *_children(found, view, seen),
        *_held(view),
        element("div", _conditions(view), _events(events.value), class_="columns"),
    ]
    shown_groups = frozenset({name, view.parent} - {""})
    # With its children and its siblings, also those that are created while somebody looks.
    return answer(visit, name, content, live=Live(seen, ShownGroups(shown_groups, shown_groups)))


async def find(visit: Visit, name: str) -> tuple[Seen, Views, GroupView]:
    """Return one group among all that the user sees. Raise Problem for one that they may not read."""
    seen = await visit.visitor.seen()
    stored = await visit.visitor.group(name, seen)
    found = visit.views(seen)
    if why := found.broken.get(name):
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, shown(why), "Mend the group with kubectl.")
    view = found.groups.get(name) or group_view(stored, (), visit.settings.catalog)
    return seen, found, view


async def _found(
    visit: Visit, seen: Seen, view: GroupView
) -> tuple[RecentAnswer[ChargedWorkloads], RecentAnswer[Sequence[GroupEvent] | None]]:
    client, settings, visitor = visit.visitor.client, visit.settings, visit.visitor
    groups = list(seen.groups.values()) if view.name in seen.groups else [*seen.groups.values(), view.group]
    uid, follows = view.group.metadata.uid, visit.wants_fragment
    recent = visitor.recent
    return await asyncio.gather(
        recent.get(
            f"workloads {view.name}",
            lambda: charged_to(client, settings, groups, view.name),
            _RECENT,
            follows=follows,
        ),
        recent.get(f"events {uid}", lambda: read_events(client, uid), _RECENT, follows=follows),
    )


def path_to(found: Views, view: GroupView) -> Element:
    """Return the groups above as a list of links; what may not be read is said."""
    above = found.tree.ancestry(view.name) if view.name in found.groups else []
    first = found.groups[above[0]].parent if above else view.parent
    items = [element("li", element("span", f"{shown(first)} ({UNSEEN})", class_="unseen"))] if first else []
    items += [element("li", element("a", shown(name), href=group_address(name))) for name in above]
    items.append(element("li", element("span", shown(view.name), aria_current="page")))
    return element("nav", element("ol", *items), class_="path", aria_label="Path from the root")


def _head(found: Views, view: GroupView) -> Element:
    title = element("h1", shown(view.name), " ", *parts.tags(view))
    ways = element(
        "div",
        element("a", "Hours", href=f"/hours/{quote(view.name, safe='')}", class_="button"),
        element("a", "Change", href=group_address(view.name, "edit"), class_="button"),
        element("a", "New child", href=f"/new?{urlencode({'parent': view.name})}", class_="button"),
        element("a", "Delete", href=group_address(view.name, "delete"), class_="button danger"),
        class_="row",
    )
    return element("div", path_to(found, view), element("div", title, ways, class_="head"))


def _conditions_first(view: GroupView) -> list[Element]:
    """Return what is wrong with the group, as its conditions say it."""
    found: list[Element] = []
    for kind, bad in (("OverQuota", "True"), ("CashExhausted", "True"), ("CashLow", "True"), ("Ready", "False")):
        condition = view.condition(kind)
        if condition is not None and condition.status == bad:
            strength = "warn" if kind == "CashLow" else "bad"
            found.append(parts.notice(strength, element("strong", f"{kind}: "), shown(condition.message)))
    return found


def _resources(view: GroupView) -> list[Element]:
    if not view.resources:
        return [element("p", "This group has no ceilings: nothing limits it but the groups above.", class_="soft")]
    columns = (
        TableColumn("resource"),
        TableColumn("taken", class_="meter"),
        TableColumn("%", is_number=True),
        TableColumn("ceiling", is_number=True),
        TableColumn("used", is_number=True),
        TableColumn("own", is_number=True),
        TableColumn("granted", is_number=True),
        TableColumn("reserved", is_number=True),
        *((parts.LIENS,) if view.has_liens else ()),
        TableColumn("left", is_number=True),
        *((parts.AHEAD,) if view.has_ahead else ()),
    )
    rows: list[list[Cell]] = []
    above: ResourceView | None = None
    for figures in view.resources:
        name: Cell = shown(figures.resource)
        if figures.base and above is not None and figures.base in (above.resource, above.base):
            name = element("span", shown(figures.resource), class_="model")
        above = figures
        amounts = (figures.hard, figures.used, figures.self_used, figures.granted)
        rows.append(
            [
                name,
                parts.bar(figures),
                _marked(figures, parts.percent(figures)),
                *(parts.amount(figures, n) for n in amounts),
                parts.amount(figures, figures.reserved),
                *((parts.amount(figures, figures.liens),) if view.has_liens else ()),
                _marked(figures, parts.amount(figures, figures.left)),
                *((parts.amount(figures, figures.ahead),) if view.has_ahead else ()),
            ]
        )
    said = [
        element("p", text, class_="hint")
        for text, is_so in ((parts.WHAT_ARE_LIENS, view.has_liens), (parts.WHAT_IS_AHEAD, view.has_ahead))
        if is_so
    ]
    return [parts.table(columns, rows, label="Resources of the group"), *said, parts.legend()]


def _marked(figures: ResourceView, text: str) -> Cell:
    return element("span", text, class_="is-over") if figures.is_over else text


def relatives_card(found: Views, parent: str, child: str, resources: Sequence[str]) -> Element:
    """Return what the parent and the siblings have left of some resources. The child need not exist yet."""
    title = "Free capacity of relatives"
    if not parent:
        said = element("p", "This group is a root: it has no parent and no siblings.", class_="soft")
        return parts.card(title, said, id="relatives")
    rows: list[list[Cell]] = []
    contact = ""
    for resource in resources:
        of = relatives_below(found.tree, parent, child, resource)
        contact = contact or of.contact
        rows.append([shown(resource), _of_parent(of), _of_siblings(of)])
    columns = (
        TableColumn("resource"),
        TableColumn(f"parent {parent}", is_number=True),
        TableColumn("siblings with room"),
    )
    said = [element("p", "Ask for the parent: ", shown(contact), class_="hint")] if contact else []
    return parts.card(title, parts.table(columns, rows), *said, id="relatives")


def _of_parent(of: Relatives) -> Cell:
    if not of.is_parent_read:
        return element("span", UNSEEN, class_="unseen")
    if of.of_parent is None:
        return "no ceiling"
    return f"{parts.amount(of.of_parent, of.of_parent.left)} left"


def _of_siblings(of: Relatives) -> Cell:
    if of.siblings is None:
        return element("span", UNSEEN, class_="unseen")
    if not of.siblings:
        return "none"
    links: list[Cell] = []
    for name, figures in of.siblings[:3]:
        links += [", "] if links else []
        links += [element("a", shown(name), href=group_address(name)), f" {parts.amount(figures, figures.left)}"]
    more = len(of.siblings) - 3
    return element("span", *links, *([f" and {more} more"] if more > 0 else []))


def _facts(found: Views, view: GroupView) -> Element:
    metadata, status, spec = view.group.metadata, view.group.status, view.group.spec
    parent: Cell = parts.group_link(view.parent, found.groups) if view.parent else "none: it is a root"
    pairs: list[tuple[str, Cell]] = [("parent", parent)]
    if view.group.contact:
        pairs.append(("contact", shown(view.group.contact)))
    if spec.cash is not None:
        # Only a root says when.
        root = next(iter(found.tree.ancestry(view.name)), view.parent)
        period = f"with those of {root}" if root else spec.cash.period or "once"
        zone = f", by the clock of {spec.cash.time_zone}" if spec.cash.time_zone else ""
        mode = ", in safe mode" if spec.cash.mode == "safe" else ""
        pairs.append(("hours are granted", shown(f"{period}{zone}{mode}")))
    if status.cash is not None and status.cash.period_end:
        pairs.append(("next grant", shown(status.cash.period_end)))
    if spec.namespace_selector:
        pairs.append(("namespaces", "only those of a selector"))
    pairs.append(("created", parts.when(metadata.creation_timestamp)))
    if metadata.deletion_timestamp:
        pairs.append(("being deleted since", parts.when(metadata.deletion_timestamp)))
    last: Cell = parts.when(status.last_reconcile_time) if status.last_reconcile_time else "not yet"
    pairs.append(("counted", last))
    pairs.append(("generation", f"{status.observed_generation} counted of {metadata.generation}"))
    listed = [part for name, text in pairs for part in (element("dt", name), element("dd", text))]
    return parts.card("About", element("dl", *listed, class_="facts"))


def _workloads(view: GroupView, recent: RecentAnswer[ChargedWorkloads]) -> list[Element]:
    found = recent.value
    columns = (
        TableColumn("workload"),
        TableColumn("kind"),
        TableColumn("namespace"),
        TableColumn("cost"),
        TableColumn("%", is_number=True),
    )
    ordered = sorted(found.workloads, key=lambda each: (-_share(view, each), each.kind, each.namespace, each.name))
    rows: list[list[Cell]] = []
    for each in ordered[:_MOST]:
        cost: Cell = amounts_text({f.resource: each.cost.get(f.resource, 0) for f in view.resources})
        if each.error:
            cost = element("span", f"cannot be counted: {shown(each.error)}", class_="wrong")
        share = "" if each.error else f"{_share(view, each)}%"
        rows.append([shown(each.name), shown(each.kind), shown(each.namespace), cost, share])
    said: list[Element] = []
    if rows:
        note = f"The first {_MOST} of {len(ordered)}." if len(ordered) > _MOST else ""
        read = f"Read {counted(round(recent.age), 'second')} ago."
        hint = f"% is the largest share of a ceiling that the workload takes. {read}"
        said = [parts.table(columns, rows, caption=note), element("p", hint, class_="hint")]
    elif not found.missing:
        said = [element("p", "No workload is charged to this group.", class_="soft")]
    return [*said, *parts.unread(found.missing)]


def _share(view: GroupView, workload: ChargedWorkload) -> int:
    """Return the largest percentage of a ceiling that a workload takes."""
    shares = [workload.cost.get(f.resource, 0) * 100 // f.hard for f in view.resources if f.hard > 0]
    return max(shares, default=0)


def _children(found: Views, view: GroupView, seen: Seen) -> list[Element]:
    children = [found.groups[name] for name in view.children if name in found.groups]
    if not children and seen.is_complete:
        return []
    rows: list[list[Cell]] = []
    for child in children[:_MOST]:
        named = element("span", parts.group_link(child.name, found.groups), " ", *parts.tags(child))
        scarce = child.tightest
        if scarce is None:
            rows.append([named, "", "", "not counted yet" if child.resources else "no ceilings"])
        else:
            text = f"{parts.taken_of(scarce)} {scarce.resource}"
            rows.append([named, parts.bar(scarce), parts.percent(scarce), shown(text)])
    columns = (
        TableColumn("child"),
        TableColumn("taken", class_="meter"),
        TableColumn("%", is_number=True),
        TableColumn("of its scarcest resource"),
    )
    said: list[Element] = [parts.table(columns, rows)] if rows else []
    if len(children) > _MOST:
        link = element("a", f"All {len(children)} in the tree", href=f"/tree?top={quote(view.name, safe='')}")
        said.append(element("p", link))
    if not seen.is_complete:
        said.append(element("p", f"Other children, if there are any, are {UNSEEN}.", class_="unseen"))
    return [parts.card("Children", *said)]


def _held(view: GroupView) -> list[Element]:
    """Return what is charged and is neither a workload nor a child."""
    found: list[Element] = []
    if view.reservations:
        rows = [[shown(e.slot), amounts_text(e.extra), format_timestamp(e.expires)] for e in view.reservations[:_MOST]]
        columns = (TableColumn("for"), TableColumn("amount"), TableColumn("until"))
        found.append(parts.card("Reserved, and not counted yet", parts.table(columns, rows)))
    if view.group.status.leftovers:
        lines = [element("li", shown(leftover_text(line))) for line in view.group.status.leftovers]
        found.append(parts.card("Left over from workloads that are gone", element("ul", *lines, class_="plain")))
    if view.group.status.ending:
        lines = [element("li", shown(line), class_="mono") for line in view.group.status.ending]
        found.append(parts.card("Pods that are ending", element("ul", *lines, class_="plain")))
    return found


def _conditions(view: GroupView) -> Element:
    conditions = view.group.status.conditions
    if not conditions:
        return parts.card("Conditions", element("p", "None: the controller has not seen the group yet.", class_="soft"))
    rows = [[shown(c.type), shown(c.status), shown(c.message)] for c in conditions]
    return parts.card(
        "Conditions", parts.table((TableColumn("condition"), TableColumn("status"), TableColumn("message")), rows)
    )


def _events(events: Sequence[GroupEvent] | None) -> Element:
    if events is None:
        return parts.card("Events", *parts.unread([OF_EVENTS]))
    if not events:
        return parts.card("Events", element("p", "None in the last hour or so.", class_="soft"))
    rows: list[list[Cell]] = [
        [parts.when(e.time), shown(e.reason or ""), shown(e.message or "")] for e in reversed(events[-_MOST:])
    ]
    return parts.card("Events", parts.table((TableColumn("when"), TableColumn("reason"), TableColumn("message")), rows))
