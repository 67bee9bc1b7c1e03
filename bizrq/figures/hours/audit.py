"""Check records and statements against their lines, and look again where something may just be written.

`checks.py` alone decides what must match; this file reads, and decides how often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.figures.groups.source import ReadGroups, check_known
from bizrq.figures.hours.checks import CheckResult, check_records, remarks
from bizrq.figures.hours.records import corrections, read_records
from bizrq.kube.client import Forbidden, KubeClient
from bizrq.units.names import Catalog

#: How often mismatches are read again, and the seconds between: related objects are written one after another.
LOOKS, PAUSE = 4, 0.5
#: The columns of an audit for programs.
AUDIT = ("object", "group", "from", "lines", "result")


@dataclass(frozen=True, slots=True)
class Audit:
    """What was checked, remarks for billing, and what the user may not read, in words."""

    checked: Sequence[CheckResult]
    remarks: Sequence[dict[str, Any]]
    unread: frozenset[str]

    @property
    def is_equal(self) -> bool:
        """Return True if everything that was checked matches its lines."""
        return not any(each.differences for each in self.checked)


async def audit(
    client: KubeClient,
    read: Callable[[int], Awaitable[ReadGroups]],
    catalog: Catalog,
    top: str | None,
    *,
    looks: int = LOOKS,
) -> Audit:
    """Return the audit of a group and its subgroups, of all groups without one.

    `read` returns the groups for each look, which is numbered from 1. Raise NoAnswer, ApiError or Unreachable.
    """
    unread: set[str] = set()
    for look in range(1, looks + 1):
        found, notes = await _look(client, await read(look), catalog, top, unread)
        if look == looks or not any(each.differences for each in found):
            return Audit(found, notes, frozenset(unread))
        await asyncio.sleep(PAUSE)
    raise AssertionError("unreachable: the last look returns")


async def _look(
    client: KubeClient, source: ReadGroups, catalog: Catalog, top: str | None, unread: set[str]
) -> tuple[list[CheckResult], list[dict[str, Any]]]:
    records = await read_records(client, source.groups, catalog, top, statements=True, is_complete=source.is_complete)
    unread.update(records.unread)
    if top is not None:
        check_known([top], sorted({*records.groups, *(each.spec.group for each in records.statements)}))
    mine = records.subtree(top)
    try:
        made = await corrections(client, records, top)
    except Forbidden:
        unread.add("corrections")
        made = []
    return check_records(mine, made), list(remarks(mine, made))


def plain_audit(found: Audit) -> dict[str, Any]:
    """Return what `bizrq audit -o json` prints; `equal` is None where some of it may not be read."""
    return {
        "equal": None if found.is_equal and found.unread else found.is_equal,
        "checked": [_plain_check(each) for each in found.checked],
        "remarks": [{key: value for key, value in note.items() if key != "hours"} for note in found.remarks],
    }


def audit_row(each: CheckResult) -> dict[str, Any]:
    """Return a checked object for CSV, by the columns of AUDIT."""
    result = "; ".join(each.differences) or "equal"
    return {**_plain_check(each), "object": f"{each.kind}/{each.name}", "result": result}


def _plain_check(each: CheckResult) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "name": each.name,
        "group": each.group,
        "from": each.start,
        "lines": each.lines,
        "differences": list(each.differences),
    }
