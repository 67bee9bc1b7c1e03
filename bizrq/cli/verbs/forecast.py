"""bizrq forecast: predict when each budget of hours will be exhausted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, OnlyResource, end_unread, read_groups
from bizrq.cli.options import catalog_of
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_as, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.figures.hours.outlook import BudgetOutlook
    from bizrq.figures.hours.records import HoursRecords
    from bizrq.kube.client import KubeClient

#: The columns of a table, all of them and fewer.
_NARROW = ("group", "resource", "budget", "spent", "granted", "left", "burn/h", "exhausted")
_WIDE = (*_NARROW[:-1], "own burn/h", "exhausted", "unit", "until", "workloads")


def forecast(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Predict when each budget of hours will be exhausted if the running workloads continue.

    SPENT is what a group's own workloads have used, GRANTED what its children hold, and LEFT the rest of the budget.
    The burn is what the workloads of a group and of its subgroups use in one hour. A child holds its whole budget, so
    its burn lowers what its parent has left only once that is used. Running workloads are not stopped when a budget is
    exhausted.
    """
    client, catalog = client_for(where), catalog_of(None)

    from bizrq.figures.groups.source import check_known
    from bizrq.figures.hours.outlook import FORECAST, format_top_consumers, outlooks_below, plain_outlook, why_empty
    from bizrq.figures.hours.records import read_records

    async def work(client: KubeClient) -> HoursRecords:
        source = await read_groups(client, [group] if group else [])
        return await read_records(
            client, source.groups, catalog, group, statements=False, is_complete=source.is_complete
        )

    records = run_on(client, work)
    if group is not None:
        check_known([group], list(records.groups))
    found = outlooks_below(records, group, resource)
    rows = [plain_outlook(each) for each in found]
    print_as(
        output,
        names=dict.fromkeys(each.group for each in found if each.exhausted_at is not None),
        heads=FORECAST,
        rows=[{**row, "workloads": format_top_consumers(each)} for row, each in zip(rows, found, strict=True)],
        document=rows,
        table=lambda: _print(found, output, why_empty(records, group, resource)),
    )
    end_unread(records.unread, so="what their groups burn is unknown, and not in the forecast")


def _print(found: list[BudgetOutlook], form: OutputFormat, why_empty: str) -> None:
    from bizrq.cli.output import terminal
    from bizrq.figures.hours.outlook import format_top_consumers

    if not found:
        terminal.print_sentences(terminal.console(), [why_empty], 0)
        return
    heads = _WIDE if form is OutputFormat.WIDE else _NARROW
    right = ("budget", "spent", "granted", "left", "burn/h", "own burn/h")
    drop = () if form is OutputFormat.WIDE else ("budget", "spent", "granted")
    print_table(heads, [_cells(each, heads) for each in found], right=right, drop=drop)
    if form is not OutputFormat.WIDE:
        console = terminal.console()
        burning = [each for each in found if each.exhausted_at is not None and each.workloads]
        for each in burning:
            terminal.print_sentences(
                console, [f"{each.group}: {each.resource} is used by {format_top_consumers(each)}"], 0
            )


def _cells(each: BudgetOutlook, heads: Sequence[str]) -> list[Text]:
    from rich.text import Text

    from bizrq.figures.hours.outlook import outlook_texts

    texts = outlook_texts(each)
    texts["workloads"] = texts["workloads"] or NONE
    soon = "yellow" if each.exhausted_at is not None and each.left > 0 else ""
    style = "red" if texts["exhausted"] == "exhausted" else soon
    return [Text(texts[head], style if head in ("exhausted", "left") else "") for head in heads]
