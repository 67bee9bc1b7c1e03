"""Print bills of hours for `bizrq report`, in every form of `-o`, and write its HTML page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bizrq.cli.cluster import run_on
from bizrq.cli.groups import end_unread, said_first
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, progress, warn
from bizrq.cli.output.tables import OutputFormat, print_as, print_table
from bizrq.figures.groups.source import read_groups
from bizrq.figures.hours.bill_page import page_of
from bizrq.figures.hours.bills import (
    SHARE,
    UNKNOWN_BELOW,
    Bill,
    Tone,
    bill_table,
    caption,
    make_bill,
    notices,
    of_resource,
    plain_heads,
    plain_row,
    read_books,
    remarks,
    why_empty,
)
from bizrq.figures.hours.prices import Prices
from bizrq.figures.hours.records import HoursRecords, select_lines
from bizrq.hours.bill import GroupBy
from bizrq.units.names import Catalog

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient

_STYLES = {Tone.PLAIN: "", Tone.FAINT: "dim", Tone.ALARM: "red", Tone.TOTAL: "bold"}


def print_bill(
    client: KubeClient,
    group: str | None,
    resource: str | None,
    by: Sequence[GroupBy],
    which: str,
    form: OutputFormat,
    catalog: Catalog,
    prices: Prices | None = None,
) -> None:
    """Print the used hours in one of the forms. Raise Failure or NoAnswer."""
    records, _ = _read(client, group, catalog, past=which != "current")
    found = make_bill(records, group, of_resource(records, select_lines(records, which), resource), by, prices)
    for sentence in notices(found):
        warn(sentence)
    print_as(
        form,
        names=sorted({line.group for line in found.lines}),
        heads=plain_heads(found),
        rows=[plain_row(found, row) for row in found.rows],
        table=lambda: _print(found),
    )
    end_unread(records.unread, so=UNKNOWN_BELOW)


def _read(client: KubeClient, group: str | None, catalog: Catalog, *, past: bool) -> tuple[HoursRecords, list[str]]:
    """Return the records of a group and its subgroups, and what is wrong with enforcement and counts."""

    async def work(client: KubeClient) -> tuple[HoursRecords, list[str]]:
        progress("reading groups, records of hours and statements" if past else "reading groups and records of hours")
        source = await read_groups(client, [group] if group else [])
        troubles = [trouble.message for trouble in await said_first(client, source.groups)]
        found = await read_books(client, source.groups, catalog, group, statements=past, is_complete=source.is_complete)
        return found, troubles

    return run_on(client, work)


def _print(found: Bill) -> None:
    from rich.text import Text

    console = terminal.console()
    if not found.rows:
        terminal.print_sentences(console, [why_empty(found)], 0)
        return
    terminal.print_sentences(console, [caption(found)], 0)
    table = bill_table(found)
    cells = [[Text(cell.text, _STYLES[cell.tone]) for cell in line] for line in table.lines]
    print_table(table.heads, cells, right=table.numbers, drop=(SHARE, "budget"))
    terminal.print_sentences(console, remarks(found), 0)


def write_page(
    client: KubeClient,
    file: Path,
    group: str | None,
    resource: str | None,
    which: str,
    catalog: Catalog,
    prices: Prices | None = None,
) -> None:
    """Write the forecast and the bills as one HTML page. Raise Failure or NoAnswer."""
    records, troubles = _read(client, group, catalog, past=True)
    cluster, now = client.endpoint.cluster or client.server, int(time.time() * 1000)
    text, noticed = page_of(records, group, resource, which, cluster=cluster, now=now, prices=prices, troubles=troubles)
    for sentence in noticed:
        warn(sentence)
    if str(file) == "-":
        terminal.write(text)
    else:
        try:
            file.write_text(text, "utf-8")
        except OSError as error:
            raise Failure(f"--html {file}: {error.strerror}", EXIT_BAD_INPUT) from None
        terminal.write(f"wrote {file}: {len(text.encode()):,} bytes, open it in a browser\n")
    end_unread(records.unread, so=UNKNOWN_BELOW)
