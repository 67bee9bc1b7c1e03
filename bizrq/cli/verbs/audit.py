"""bizrq audit: check that statements and records are the sums of their lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, check_known, end_unread
from bizrq.cli.options import catalog_of
from bizrq.cli.output.failure import EXIT_NO, progress
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_as, print_table

if TYPE_CHECKING:
    from bizrq.cli.hours.checks import CheckResult
    from bizrq.kube.client import KubeClient

#: How often mismatches are read again, and the seconds between: related objects are written one after another.
_LOOKS, _PAUSE = 4, 0.5

_HEADS = ("object", "group", "from", "lines", "result")
_REMARK_HEADS = ("what", "group", "at", "who", "hours", "why")


def audit(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Recompute each statement and record from its lines; report mismatches.

    Also list what matters for billing: corrections, inferred or late ends of pods, and hours that deleted groups left
    to their parents. Exit code 1: there is a mismatch.
    """
    client, catalog = client_for(where), catalog_of(None)

    from bizrq.cli.hours.checks import check_records, remarks
    from bizrq.cli.hours.records import corrections, read_records
    from bizrq.kube.client import Forbidden

    unread: set[str] = set()

    async def work(client: KubeClient) -> tuple[list[CheckResult], list[dict[str, Any]]]:
        import asyncio

        for look in count(1):
            progress(
                "reading groups, records of hours and statements"
                if look == 1
                else f"something does not match: reading again in case it was being written ({look} of {_LOOKS})"
            )
            records = await read_records(client, catalog, group, statements=True, quiet=look > 1)
            unread.update(records.unread)
            if group is not None:
                check_known([group], sorted({*records.groups, *(each.spec.group for each in records.statements)}))
            mine = records.subtree(group)
            try:
                made = await corrections(client, records, group)
            except Forbidden:
                unread.add("corrections")
                made = []
            found = check_records(mine, made)
            if look == _LOOKS or not any(each.differences for each in found):
                return found, list(remarks(mine, made))
            await asyncio.sleep(_PAUSE)
        raise AssertionError("unreachable: the last look returns")

    found, notes = run_on(client, work)
    equal = not any(each.differences for each in found)
    print_as(
        output,
        names=sorted({each.group for each in found if each.differences}),
        heads=_HEADS,
        rows=[_row(each) for each in found],
        document={
            "equal": None if equal and unread else equal,
            "checked": [_as_json(each) for each in found],
            "remarks": [_plain(note) for note in notes],
        },
        table=lambda: _print(found, notes),
    )
    if not equal:
        sys.exit(EXIT_NO)
    end_unread(unread, so="whether those match is unknown")


def _as_json(each: CheckResult) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "name": each.name,
        "group": each.group,
        "from": each.start,
        "lines": each.lines,
        "differences": list(each.differences),
    }


def _plain(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return a remark without the text of its hours, which `seconds` has as numbers."""
    return {key: value for key, value in note.items() if key != "hours"}


def _row(each: CheckResult) -> dict[str, Any]:
    result = "; ".join(each.differences) or "equal"
    return {**_as_json(each), "object": f"{each.kind}/{each.name}", "result": result}


def _print(found: Sequence[CheckResult], notes: Sequence[Mapping[str, Any]]) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal

    console = terminal.console()
    if not found:
        console.print("No hours are recorded, so there is nothing to check.")
        return
    cells: list[list[Any]] = []
    for each in found:
        result = Text("differs", "bold red") if each.differences else Text("equal", "green")
        cells.append([f"{each.kind}/{each.name}", each.group, each.start or "the beginning", str(each.lines), result])
    print_table(_HEADS, cells, right=("lines",))
    for each in found:
        terminal.print_sentences(
            console, [f"{each.kind}/{each.name}: {terminal.sanitize(text)}" for text in each.differences], 0
        )
    if notes:
        sys.stdout.write("\n")
        print_table(_REMARK_HEADS, [[row[h] or NONE for h in _REMARK_HEADS] for row in notes])
    wrong = sum(bool(each.differences) for each in found)
    verdict = f"{wrong} of {len(found)} do not match their lines" if wrong else f"all {len(found)} match their lines"
    console.print(Text(f"\n{verdict}", "bold red" if wrong else "bold green"))
