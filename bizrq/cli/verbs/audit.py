"""bizrq audit: check that statements and records are the sums of their lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, end_unread, read_groups
from bizrq.cli.options import catalog_of
from bizrq.cli.output.failure import EXIT_NO, progress
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_as, print_table
from bizrq.units.text import sanitize

if TYPE_CHECKING:
    from bizrq.figures.groups.source import GroupSource
    from bizrq.figures.hours.checks import CheckResult
    from bizrq.kube.client import KubeClient

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

    from bizrq.figures.groups import source
    from bizrq.figures.hours.audit import AUDIT, LOOKS, Audit, audit_row, plain_audit
    from bizrq.figures.hours.audit import audit as checked

    names = [group] if group else []

    async def work(client: KubeClient) -> Audit:
        async def read(look: int) -> GroupSource:
            if look == 1:
                progress("reading groups, records of hours and statements")
                return await read_groups(client, names)
            progress(f"something does not match: reading again in case it was being written ({look} of {LOOKS})")
            return await source.read_groups(client, names)

        return await checked(client, read, catalog, group)

    found = run_on(client, work)
    print_as(
        output,
        names=sorted({each.group for each in found.checked if each.differences}),
        heads=AUDIT,
        rows=[audit_row(each) for each in found.checked],
        document=plain_audit(found),
        table=lambda: _print(found.checked, found.remarks, AUDIT),
    )
    if not found.is_equal:
        sys.exit(EXIT_NO)
    end_unread(found.unread, so="whether those match is unknown")


def _print(found: Sequence[CheckResult], notes: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> None:
    from rich.text import Text

    from bizrq.cli.output import terminal
    from bizrq.figures.hours.checks import audit_verdict

    console = terminal.console()
    if not found:
        said = (
            "No hours are recorded, so there is nothing to check.",
            "bizrq forecast shows the budgets, without which none are.",
        )
        terminal.print_sentences(console, said, 0)
        return
    cells: list[list[Any]] = []
    for each in found:
        result = Text("differs", "bold red") if each.differences else Text("equal", "green")
        cells.append([f"{each.kind}/{each.name}", each.group, each.start or "the beginning", str(each.lines), result])
    print_table(heads, cells, right=("lines",))
    for each in found:
        terminal.print_sentences(
            console, [f"{each.kind}/{each.name}: {sanitize(text)}" for text in each.differences], 0
        )
    if notes:
        sys.stdout.write("\n")
        print_table(_REMARK_HEADS, [[row[h] or NONE for h in _REMARK_HEADS] for row in notes])
    wrong = sum(bool(each.differences) for each in found)
    verdict = audit_verdict(wrong, len(found))
    console.print(Text(f"\n{verdict}", "bold red" if wrong else "bold green"))
