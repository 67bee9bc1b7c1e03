"""The tree of all groups that a user sees, to open and to search, as a table, or as an icicle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from aiohttp import web

from bizrq.figures.groups.relatives import of_resource
from bizrq.figures.groups.view import GroupView, ResourceView
from bizrq.units import hierarchy, names
from bizrq.units.text import counted
from web import parts
from web.html import Element, element, shown
from web.pages.icicle import Icicle, icicle
from web.pages.overview import broken
from web.parts import Cell
from web.reading.views import Views
from web.visit import Live, Visit, answer, group_address

#: The most groups in one page: below it, groups are a link away. And the most rows of the table.
MOST, ROWS = 2000, 3000
#: Levels that are open at first, and from which lists are not indented any more.
_OPEN, _DEEPEST = 2, 30
VIEWS = {"": "Tree", "table": "Table", "icicle": "Icicle"}


@dataclass(frozen=True)
class Asked:
    """What the address asks for. `resource` is "" for the scarcest of each group."""

    resource: str = ""
    words: str = ""
    scarce: bool = False
    by_percent: bool = False
    view: str = ""
    top: str = ""

    @property
    def is_filtered(self) -> bool:
        return bool(self.words or self.scarce)

    @property
    def is_narrowed(self) -> bool:
        """Return True if another view than the first one of all groups is asked for."""
        resource = self.resource if self.view != "icicle" else ""
        return self.is_filtered or bool(self.top or self.by_percent or resource)

    def address(self, **changes: object) -> str:
        said = {
            "resource": self.resource,
            "q": self.words,
            "scarce": "1" if self.scarce else "",
            "sort": "percent" if self.by_percent else "",
            "view": self.view,
            "top": self.top,
            **changes,
        }
        query = urlencode({key: value for key, value in said.items() if value})
        return f"/tree?{query}" if query else "/tree"


def asked_by(visit: Visit) -> Asked:
    query = visit.request.query
    view = query.get("view", "")
    return Asked(
        query.get("resource", "")[:300],
        query.get("q", "").strip()[:63],
        query.get("scarce") == "1",
        query.get("sort") == "percent",
        view if view in VIEWS else "",
        query.get("top", "")[:63],
    )


async def tree(visit: Visit) -> web.StreamResponse:
    seen = await visit.visitor.seen()
    found, asked = visit.views(seen), asked_by(visit)
    if asked.view == "icicle" and not asked.resource:
        asked = replace(asked, resource=_most_common(found, visit))
    forest = _Forest(found, asked)
    count = len(forest.kept)
    said = (
        f"{count} of {counted(len(found.groups), 'group')}"
        if asked.is_filtered or asked.top
        else counted(count, "group")
    )
    content: list[Cell] = [*broken(found)]
    if not seen.is_complete:
        content.append(
            parts.notice("warn", f"You may not list groups. Groups that no rule names for you are {parts.UNSEEN}.")
        )
    if not forest.kept:
        content.append(_nothing(asked, found))
    else:
        made = _MADE[asked.view](forest, asked)
        content.append(element("section", element("p", said, class_="hint", role="status"), *made, class_="card"))
        if asked.view != "table":
            content.append(parts.legend())
    above = [_head(asked), _tools(asked, found, visit)]
    return answer(visit, "Tree", content, live=Live(seen), above=above)


def _most_common(found: Views, visit: Visit) -> str:
    """Return the resource that most groups have a ceiling for, "" where none has any."""
    count = Counter(figures.resource for view in found.groups.values() for figures in view.resources)
    order = sorted(count, key=lambda name: (-count[name], names.sort_key(name, visit.settings.catalog)))
    return next(iter(order), "")


class _Forest:
    """The groups that are asked for, with all that is above them, as a forest."""

    def __init__(self, found: Views, asked: Asked) -> None:
        self.views: Mapping[str, GroupView] = found.groups
        self.asked = asked
        self.shown: dict[str, ResourceView | None] = {
            name: figures_of(view, asked.resource) for name, view in self.views.items()
        }
        self._parents = found.tree.shown_parents(asked.top if asked.top in found.groups else None)
        self.children = hierarchy.children(self._parents.items())
        if asked.by_percent:
            self.children = {parent: sorted(below, key=self._scarcity) for parent, below in self.children.items()}
        self.matches = [name for name in self._below_top() if self._matches(name)]
        self.kept = set(self.matches)
        for name in self.matches:
            while (name := self._parents[name]) and name not in self.kept:
                self.kept.add(name)

    @property
    def tops(self) -> Sequence[str]:
        if self.asked.top in self.views:
            return [self.asked.top] if self.asked.top in self.kept else []
        return [name for name in self.children.get("", ()) if name in self.kept]

    def below(self, name: str) -> Sequence[str]:
        return [child for child in self.children.get(name, ()) if child in self.kept]

    def depth(self) -> int:
        """Return how many levels fit on one page; at least one."""
        level, count, depth = list(self.tops), 0, 0
        while level and (not depth or count + len(level) <= MOST):
            count, depth = count + len(level), depth + 1
            level = [child for name in level for child in self.below(name)]
        return depth

    def _below_top(self) -> Sequence[str]:
        if not self.asked.top:
            return list(self.views)
        if self.asked.top not in self.views:
            return []
        return list(hierarchy.subtree(self.asked.top, lambda name: self.children.get(name, ())))

    def _matches(self, name: str) -> bool:
        figures = self.shown[name]
        if self.asked.resource and figures is None:
            return False
        if self.asked.scarce and (figures is None or (figures.percent or 0) < parts.SCARCE):
            return False
        return self.asked.words.lower() in name.lower()

    def _scarcity(self, name: str) -> tuple[int, str]:
        figures = self.shown[name]
        return (-(figures.percent or 0) if figures is not None else 1, name)


def figures_of(view: GroupView, resource: str) -> ResourceView | None:
    """Return the figures of a resource, those of the scarcest for ""."""
    if not resource:
        return view.tightest
    return of_resource(view, resource)


def _nested(forest: _Forest, asked: Asked) -> list[Element]:
    depth = forest.depth()

    def items(below: Sequence[str], level: int) -> Element:
        return element("ul", *(item(name, level) for name in below), **({"class_": "tree"} if level == 1 else {}))

    def item(name: str, level: int) -> Element:
        cells, below = _cells(forest, name, asked), forest.below(name)
        if not below:
            return element("li", element("div", *cells, class_="leaf"))
        if level >= min(depth, _DEEPEST):
            more = element("a", f"{len(below)} below", href=asked.address(top=name, q="", scarce=""))
            cells[0].append(more)
            return element("li", element("div", *cells, class_="leaf"))
        is_open = {"open": ""} if level <= _OPEN or asked.is_filtered else {}
        # The link is beside what opens and closes: one inside the other cannot be told apart by every reader.
        summary = element("summary", element("span", f"Below {shown(name)}", class_="aside"), id=f"row-{name}")
        opened = element("details", summary, items(below, level + 1), id=f"below-{name}", **is_open)
        return element("li", element("div", *cells, class_="leaf"), opened)

    return [items(forest.tops, 1)]


def _cells(forest: _Forest, name: str, asked: Asked) -> list[Element]:
    view, figures = forest.views[name], forest.shown[name]
    link = element("a", *_marked(name, asked.words), href=group_address(name), id=f"to-{name}")
    named = element("span", link, *parts.tags(view), class_="name")
    if figures is None:
        return [named, element("span", "no ceilings" if not view.resources else "not counted yet", class_="soft")]
    numbers = [parts.taken_of(figures)]
    if not asked.resource:
        numbers.append(f" {figures.resource}")
    over = " is-over" if figures.is_over else ""
    return [
        named,
        element("span", parts.bar(figures), class_="cell-bar"),
        element("span", shown("".join(numbers)), class_="soft cell-amount"),
        element("span", parts.percent(figures), class_=f"n cell-percent{over}"),
    ]


def _marked(name: str, words: str) -> list[Cell]:
    """Return a name with what was searched for marked."""
    at = name.lower().find(words.lower()) if words else -1
    if at < 0:
        return [shown(name)]
    end = at + len(words)
    return [shown(name[:at]), element("mark", shown(name[at:end])), shown(name[end:])]


_COLUMNS = (
    parts.TableColumn("group"),
    parts.TableColumn("resource"),
    parts.TableColumn("ceiling", is_number=True),
    parts.TableColumn("used", is_number=True),
    parts.TableColumn("own", is_number=True),
    parts.TableColumn("granted", is_number=True),
    parts.TableColumn("reserved", is_number=True),
    parts.TableColumn("left", is_number=True),
    parts.TableColumn("taken", is_number=True),
)


def _table(forest: _Forest, asked: Asked) -> list[Element]:
    rows: list[list[Cell]] = []
    total = 0
    for top in forest.tops:
        for name in hierarchy.subtree(top, forest.below):
            view = forest.views[name]
            for figures in view.resources:
                if asked.resource and figures.resource != asked.resource:
                    continue
                total += 1
                if len(rows) < ROWS:
                    rows.append([element("a", shown(name), href=group_address(name)), *amounts(figures)])
    note = f"The first {ROWS} of {total} rows: search for a group, or choose a resource." if total > ROWS else ""
    return [parts.table(_COLUMNS, rows, caption=note, label="Groups and their resources")]


def _icicle(forest: _Forest, asked: Asked) -> list[Element]:
    """Return the groups that have a ceiling for the resource; one whose parent has none is at the top."""
    order = [name for top in forest.tops for name in hierarchy.subtree(top, forest.below)]
    figures = {name: found for name in order if (found := forest.shown[name]) is not None}
    roots = {*forest.tops}
    tops = [name for name in figures if name in roots or forest.views[name].parent not in figures]
    of = Icicle(asked.resource, figures, tops, lambda name: [each for each in forest.below(name) if each in figures])
    up: list[Element] = []
    if asked.top in forest.views:
        above = forest.views[asked.top].parent
        is_there = above in forest.views
        to = asked.address(top=above if is_there else "")
        up = [element("p", element("a", f"Up to {shown(above)}" if is_there else "Show all groups", href=to))]
    without = len(forest.shown) - sum(each is not None for each in forest.shown.values())
    said = f" Groups without a ceiling for it are not drawn: {without}." if without else ""
    hint = element("p", f"Each group is as wide as what it holds of {shown(asked.resource)}.", said, class_="hint")
    return [*up, hint, *icicle(of, forest.views, lambda name: asked.address(top=name, q="", scarce=""))]


_MADE = {"": _nested, "table": _table, "icicle": _icicle}


def amounts(figures: ResourceView) -> list[Cell]:
    """Return the cells of a resource: its name and every amount."""
    left = parts.amount(figures, figures.left)
    return [
        shown(figures.resource),
        *(parts.amount(figures, n) for n in (figures.hard, figures.used, figures.self_used, figures.granted)),
        parts.amount(figures, figures.reserved),
        element("span", left, class_="is-over") if figures.is_over else left,
        parts.percent(figures),
    ]


def _head(asked: Asked) -> Element:
    links = [
        element(
            "a",
            text,
            href=asked.address(view=view),
            class_="button",
            **({"aria_current": "true"} if view == asked.view else {}),
        )
        for view, text in VIEWS.items()
    ]
    return element(
        "div",
        element("h1", "Tree"),
        element("div", *_all_buttons(asked), *links, class_="row"),
        class_="head",
    )


def _all_buttons(asked: Asked) -> list[Element]:
    """Return buttons that a script shows."""
    if asked.view:
        return []
    ways = (("open", "Open all"), ("closed", "Close all"))
    return [element("button", text, type="button", data_all=way, hidden="") for way, text in ways]


def _tools(asked: Asked, found: Views, visit: Visit) -> Element:
    catalog = visit.settings.catalog
    there = {figures.resource for view in found.groups.values() for figures in view.resources}
    # An icicle is of one resource: amounts of several have no sum.
    options = [element("option", "the scarcest of each group", value="")] if asked.view != "icicle" else []
    for name in sorted(there, key=lambda name: names.sort_key(name, catalog)):
        chosen = {"selected": ""} if name == asked.resource else {}
        options.append(element("option", shown(name), value=name, **chosen))
    search = element("input", type="search", name="q", id="q", value=asked.words, autocomplete="off", maxlength=63)
    scarce = element("input", type="checkbox", name="scarce", value="1", **({"checked": ""} if asked.scarce else {}))
    by_percent = element(
        "input", type="checkbox", name="sort", value="percent", **({"checked": ""} if asked.by_percent else {})
    )
    kept = [element("input", type="hidden", name="view", value=asked.view)] if asked.view else []
    reset = [element("a", "Show all", href=Asked(view=asked.view).address())]
    return element(
        "form",
        *kept,
        element("div", element("label", "Search", for_="q"), search, class_="field"),
        element(
            "div",
            element("label", "Resource", for_="resource"),
            element("select", *options, name="resource", id="resource"),
            class_="field",
        ),
        element("label", scarce, f"{parts.SCARCE} % and more", class_="check"),
        element("label", by_percent, "Scarcest first", class_="check"),
        element("button", "Show", type="submit"),
        *(reset if asked.is_narrowed else []),
        method="get",
        action="/tree",
        class_="tools",
        role="search",
    )


def _nothing(asked: Asked, found: Views) -> Element:
    if not found.groups:
        return parts.empty("There is no group that you may read.")
    return parts.empty("No group is like this. ", element("a", "Show all groups", href=Asked().address()))
