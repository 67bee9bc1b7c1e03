"""The audit of hours: whether records and statements are the sums of their lines, as `bizrq audit` checks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bizrq.figures.groups.source import ReadGroups
from bizrq.figures.hours.audit import Audit, audit
from bizrq.figures.hours.checks import CheckResult, audit_verdict
from bizrq.kube.client import KubeClient
from bizrq.units.names import Catalog
from web import parts
from web.html import Element, element, shown
from web.parts import UNSEEN, Cell, TableColumn

#: The most rows of each table; what differs comes first.
ROWS = 500
_REMARKS = ("what", "group", "at", "who", "hours", "why")


async def audited(
    client: KubeClient, read: Callable[[int], Awaitable[ReadGroups]], catalog: Catalog, top: str | None
) -> list[Cell]:
    """Return the audit of a group and below, of all groups without one. Raise NoAnswer, ApiError or Unreachable."""
    found = await audit(client, read, catalog, top)
    if not found.checked:
        said = "No hours are recorded, so there is nothing to check."
        return [*_unread(found), parts.empty(said)]
    content: list[Cell] = [_verdict(found), *_unread(found)]
    content.append(parts.card("Checked", _checked(found.checked)))
    if found.remarks:
        content.append(parts.card("What matters for billing", _remarked(found.remarks)))
    return content


def _verdict(found: Audit) -> Element:
    count = len(found.checked)
    wrong = sum(bool(each.differences) for each in found.checked)
    said = audit_verdict(wrong, count)
    return parts.notice("bad" if wrong else "good", element("strong", f"{said[:1].upper()}{said[1:]}."))


def _unread(found: Audit) -> list[Element]:
    if not found.unread:
        return []
    named = ", ".join(sorted(shown(each) for each in found.unread))
    return [parts.notice("warn", element("strong", f"{UNSEEN}: "), f"{named}. Whether those match is unknown.")]


def _checked(results: Sequence[CheckResult]) -> Element:
    columns = (
        TableColumn("object"),
        TableColumn("group"),
        TableColumn("from"),
        TableColumn("lines", is_number=True),
        TableColumn("result"),
    )
    rows: list[list[Cell]] = []
    for each in sorted(results, key=lambda each: not each.differences)[:ROWS]:
        result: Cell = parts.tag("equal", "good")
        if each.differences:
            said = element("ul", *(element("li", shown(text)) for text in each.differences), class_="plain tight")
            result = element("div", parts.tag("differs", "over"), said)
        name = element("span", shown(f"{each.kind}/{each.name}"), class_="mono")
        rows.append([name, shown(each.group), shown(each.start or "the beginning"), str(each.lines), result])
    more = f"The first {ROWS} of {len(results)}; all that differ come first." if len(results) > ROWS else ""
    return parts.table(columns, rows, caption=more, label="Checked objects")


def _remarked(remarks: Sequence[Mapping[str, Any]]) -> Element:
    rows = [[shown(each[key]) for key in _REMARKS] for each in remarks[:ROWS]]
    more = f"The first {ROWS} of {len(remarks)}." if len(remarks) > ROWS else ""
    return parts.table([TableColumn(key) for key in _REMARKS], rows, caption=more, label="Remarks")
