"""bizrq forecast: predict when each budget of hours will be exhausted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.groups import Group, OnlyResource, check_known, end_unread
from bizrq.cli.options import catalog_of
from bizrq.cli.output.tables import NONE, Output, OutputFormat, print_as, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.cli.hours.outlook import BudgetOutlook
    from bizrq.cli.hours.records import HoursRecords
    from bizrq.kube.client import KubeClient

#: The columns of every form; a narrow table leaves some out.
HEADS = (
    *("group", "resource", "unit", "budget", "used", "left", "burnPerHour", "subtreeBurnPerHour"),
    *("counted", "until", "exhausted", "workloads"),
)
_NARROW = ("group", "resource", "budget", "used", "left", "burn/h", "exhausted")
_WIDE = (*_NARROW[:-1], "own burn/h", "exhausted", "unit", "until", "workloads")


def forecast(
    group: Group = None,
    output: Output = OutputFormat.TABLE,
    resource: OnlyResource = None,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Predict when each budget of hours will be exhausted if the running workloads continue.

    The burn is what the workloads of a group and of its subgroups use in one hour. A child holds its whole budget, so
    its burn lowers what its parent has left only once that is used. Running workloads are not stopped when a budget is
    exhausted.
    """
    client, catalog = client_for(where), catalog_of(None)

    from bizrq.cli.hours.outlook import budget_outlooks, format_top_consumers
    from bizrq.cli.hours.records import read_records

    async def work(client: KubeClient) -> HoursRecords:
        return await read_records(client, catalog, group, statements=False)

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
    end_unread(records.unread, so="what their groups burn is unknown, and not in the forecast")


def _as_json(each: BudgetOutlook) -> dict[str, Any]:
    from bizrq.hours.metering import HOUR
    from bizrq.units.base import seconds, seconds_unit
    from bizrq.units.times import format_timestamp

    name, budget = each.resource, each.budget
    hard, used = seconds(name, budget.hard), seconds(name, each.used)
    return {
        "group": each.group,
        "resource": each.resource,
        "unit": seconds_unit(name),
        "budget": hard,
        "used": used,
        "left": hard - used,
        "burnPerHour": seconds(name, budget.burn * HOUR),
        "subtreeBurnPerHour": seconds(name, budget.total_burn * HOUR) if each.is_complete else None,
        "counted": format_timestamp(each.counted) if each.counted else None,
        "until": None if each.until is None else format_timestamp(each.until),
        "exhausted": None if each.exhausted_at is None else format_timestamp(each.exhausted_at),
        "workloads": [{"workload": name, "percent": percent} for name, percent in each.workloads],
    }


def _print(found: list[BudgetOutlook], form: OutputFormat) -> None:
    from bizrq.cli.hours.outlook import format_top_consumers
    from bizrq.cli.output import terminal

    if not found:
        terminal.console().print(
            "No group has a budget of hours. To set one, add for example cash/requests.nvidia.com/gpu to spec.hard."
        )
        return
    heads = _WIDE if form is OutputFormat.WIDE else _NARROW
    right = ("budget", "used", "left", "burn/h", "own burn/h")
    drop = () if form is OutputFormat.WIDE else ("budget", "used")
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

    from bizrq.cli.hours.outlook import format_exhaustion, format_top_consumers
    from bizrq.cli.hours.records import format_hours, format_left, format_local_time, unit
    from bizrq.hours.metering import HOUR

    name, budget = each.resource, each.budget
    texts = {
        "group": each.group,
        "resource": name,
        "budget": format_hours(name, budget.hard),
        "used": format_hours(name, each.used),
        "left": format_left(name, budget.hard, each.used),
        "burn/h": format_hours(name, budget.total_burn * HOUR) if each.is_complete else "?",
        "own burn/h": format_hours(name, budget.burn * HOUR),
        "exhausted": format_exhaustion(each),
        "unit": unit(name),
        "until": "no end" if each.until is None else format_local_time(each.until, each.zone),
        "workloads": format_top_consumers(each) or NONE,
    }
    soon = "yellow" if each.exhausted_at is not None and each.left > 0 else ""
    style = "red" if texts["exhausted"] == "exhausted" else soon
    return [Text(texts[head], style if head in ("exhausted", "left") else "") for head in heads]
