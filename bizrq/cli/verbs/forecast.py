"""bizrq forecast: when each budget of hours is out if what runs now goes on, and by whose workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import HERE, Where, ask, client_for
from bizrq.cli.groups import Group, OnlyResource, check_known
from bizrq.cli.output.tables import Form, Output, print_csv, print_document, print_names, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.cli.hours.outlook import Foreseen
    from bizrq.cli.hours.records import Books
    from bizrq.kube.client import KubeClient

#: The columns of every form, in their order; a narrow table leaves some out.
HEADS = ("group", "resource", "budget", "used", "left", "burn", "unit", "counted", "until", "out", "workloads")
_NARROW = ("group", "resource", "budget", "used", "left", "burn", "out")
_WIDE = (*_NARROW, "unit", "until", "workloads")


def forecast(
    group: Group = None,
    output: Output = Form.TABLE,
    resource: OnlyResource = None,
    where: Where = HERE,
) -> None:
    """Foresee when each budget of hours is out, if what runs now goes on, and which workloads burn it.

    The burn is what a group's own workloads spend in an hour. Children hold their whole budgets, so that a parent's is
    out when it has no hours left to spend or to grant. Nothing that runs is stopped when it is.
    """
    client = client_for(where)

    from bizrq.cli.hours.outlook import burned_by, foreseen
    from bizrq.cli.hours.records import read

    async def work(client: KubeClient) -> Books:
        return await read(client, statements=False)

    books = ask(client, work)
    if group is not None:
        check_known([group], list(books.groups))
    found = [each for each in foreseen(books, resource) if group in (None, each.group, *books.above(each.group))]
    rows = [_as_json(each) for each in found]
    if output in (Form.JSON, Form.YAML):
        print_document(rows, output)
    elif output is Form.CSV:
        print_csv(HEADS, [{**row, "workloads": burned_by(each)} for row, each in zip(rows, found, strict=True)])
    elif output is Form.NAME:
        print_names(dict.fromkeys(each.group for each in found if each.out is not None))
    else:
        _print(found, output)


def _as_json(each: Foreseen) -> dict[str, Any]:
    from bizrq.cli.hours.records import hours, left, unit
    from bizrq.hours.metering import HOUR
    from bizrq.units.times import timestamp

    return {
        "group": each.group,
        "resource": each.resource,
        "budget": hours(each.resource, each.budget.hard),
        "used": hours(each.resource, each.used),
        "left": left(each.resource, each.budget.hard, each.used),
        "burn": hours(each.resource, each.budget.burn * HOUR),
        "unit": unit(each.resource),
        "counted": timestamp(each.counted) if each.counted else None,
        "until": None if each.until is None else timestamp(each.until),
        "out": None if each.out is None else timestamp(each.out),
        "workloads": [{"workload": name, "percent": percent} for name, percent in each.workloads],
    }


def _print(found: list[Foreseen], form: Form) -> None:
    from rich.text import Text

    from bizrq.cli.hours.outlook import burned_by, when
    from bizrq.cli.hours.records import local
    from bizrq.cli.output import terminal

    if not found:
        terminal.console().print("No group has a budget of hours: give one, like cash/requests.nvidia.com/gpu.")
        return
    heads = _WIDE if form is Form.WIDE else _NARROW
    cells: list[list[Text]] = []
    for each in found:
        told = {**_as_json(each), "out": when(each), "workloads": burned_by(each)}
        told["until"] = "for ever" if each.until is None else local(each.until, each.zone)
        style = "red" if told["out"] == "is out" else "yellow" if each.out is not None and each.left > 0 else ""
        cells.append([Text(told[head] or "-", style if head in ("out", "left") else "") for head in heads])
    print_table([head.upper() for head in heads], cells, right=("BUDGET", "USED", "LEFT", "BURN"))
    if form is not Form.WIDE:
        console = terminal.console()
        burning = [each for each in found if each.out is not None and each.workloads]
        for each in burning:
            terminal.tell(console, [f"{each.group} burns {each.resource} by {burned_by(each)}"], 0)
