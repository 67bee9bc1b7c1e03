"""bizrq forecast: predict when each budget of hours will be exhausted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, OnlyResource, check_known
from bizrq.cli.options import catalog_of
from bizrq.cli.output.tables import Output, OutputFormat, print_as, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.cli.hours.outlook import BudgetOutlook
    from bizrq.cli.hours.records import HoursRecords
    from bizrq.kube.client import KubeClient

#: The columns of every form; a narrow table leaves some out.
HEADS = ("group", "resource", "budget", "used", "left", "burn", "unit", "counted", "until", "out", "workloads")
_NARROW = ("group", "resource", "budget", "used", "left", "burn", "out")
_WIDE = (*_NARROW, "unit", "until", "workloads")


def forecast(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Predict when each budget of hours will be exhausted if the running workloads continue.

    The burn is what a group's own workloads use in one hour. Children hold their whole budgets, so a parent's budget
    is exhausted when it has no hours left to use or to grant. Running workloads are not stopped then.
    """
    client, catalog = client_for(where), catalog_of(None)

    from bizrq.cli.hours.outlook import budget_outlooks, format_top_consumers
    from bizrq.cli.hours.records import read_records

    async def work(client: KubeClient) -> HoursRecords:
        return await read_records(client, catalog, statements=False)

    records = run_on(client, work)
    if group is not None:
        check_known([group], list(records.groups))
    found = [
        each
        for each in budget_outlooks(records, resource)
        if group in (None, each.group, *records.ancestors(each.group))
    ]
    rows = [_as_json(each) for each in found]
    print_as(
        output,
        names=dict.fromkeys(each.group for each in found if each.exhausted_at is not None),
        heads=HEADS,
        rows=[{**row, "workloads": format_top_consumers(each)} for row, each in zip(rows, found, strict=True)],
        document=rows,
        table=lambda: _print(found, output),
    )


def _as_json(each: BudgetOutlook) -> dict[str, Any]:
    from bizrq.cli.hours.records import format_hours, format_left, unit
    from bizrq.hours.metering import HOUR
    from bizrq.units.times import format_timestamp

    return {
        "group": each.group,
        "resource": each.resource,
        "budget": format_hours(each.resource, each.budget.hard),
        "used": format_hours(each.resource, each.used),
        "left": format_left(each.resource, each.budget.hard, each.used),
        "burn": format_hours(each.resource, each.budget.burn * HOUR),
        "unit": unit(each.resource),
        "counted": format_timestamp(each.counted) if each.counted else None,
        "until": None if each.until is None else format_timestamp(each.until),
        "out": None if each.exhausted_at is None else format_timestamp(each.exhausted_at),
        "workloads": [{"workload": name, "percent": percent} for name, percent in each.workloads],
    }


def _print(found: list[BudgetOutlook], form: OutputFormat) -> None:
    from rich.text import Text

    from bizrq.cli.hours.outlook import format_exhaustion, format_top_consumers
    from bizrq.cli.hours.records import format_local_time
    from bizrq.cli.output import terminal

    if not found:
        terminal.console().print(
            "No group has a budget of hours. To set one, add for example cash/requests.nvidia.com/gpu to spec.hard."
        )
        return
    heads = _WIDE if form is OutputFormat.WIDE else _NARROW
    cells: list[list[Text]] = []
    for each in found:
        texts = {**_as_json(each), "out": format_exhaustion(each), "workloads": format_top_consumers(each)}
        texts["until"] = "no end" if each.until is None else format_local_time(each.until, each.zone)
        style = (
            "red"
            if texts["out"] == "exhausted"
            else "yellow"
            if each.exhausted_at is not None and each.left > 0
            else ""
        )
        cells.append([Text(texts[head] or "-", style if head in ("out", "left") else "") for head in heads])
    print_table(heads, cells, right=("budget", "used", "left", "burn"))
    if form is not OutputFormat.WIDE:
        console = terminal.console()
        burning = [each for each in found if each.exhausted_at is not None and each.workloads]
        for each in burning:
            terminal.print_sentences(
                console, [f"{each.group}: {each.resource} is used by {format_top_consumers(each)}"], 0
            )
