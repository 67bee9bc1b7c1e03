"""bizrq forecast: when each budget of hours is out if what runs now goes on, and by whose workloads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bizrq.cli.cluster import Context, Kubeconfig, ask, client_for
from bizrq.cli.groups import Group, OnlyResource, check_known
from bizrq.cli.tables import Form, Output, print_csv, print_document, print_names, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from bizrq.api.hours import CardHours
    from bizrq.cli.books import Books
    from bizrq.kube.client import KubeClient
    from bizrq.quota.bill import Line
    from bizrq.quota.forecast import Budget

#: The columns of every form, in their order; a narrow table leaves some out.
HEADS = ("group", "resource", "budget", "used", "left", "burn", "unit", "counted", "until", "out", "workloads")
_NARROW = ("group", "resource", "budget", "used", "left", "burn", "out")
_WIDE = (*_NARROW, "unit", "until", "workloads")


def forecast(
    group: Group = None,
    output: Output = Form.TABLE,
    resource: OnlyResource = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Foresee when each budget of hours is out, if what runs now goes on, and which workloads burn it.

    The burn is what a group's own workloads spend in an hour. Children hold their whole budgets, so that a parent's is
    out when it has no hours left to spend or to grant. Nothing that runs is stopped when it is.
    """
    client = client_for(kubeconfig, context)

    from bizrq.cli.books import read

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


@dataclass(frozen=True, slots=True)
class Foreseen:
    """One budget: when it is out, None where that is not before its period ends. Times in milliseconds."""

    group: str
    resource: str
    budget: Budget
    counted: int
    until: int | None
    out: int | None
    workloads: tuple[tuple[str, int], ...]
    zone: str

    @property
    def used(self) -> int:
        return self.budget.used(0)

    @property
    def left(self) -> int:
        return self.budget.hard - self.used

    @property
    def later(self) -> int:
        """What is used when the period ends, if nothing changes; without periods, in thirty days."""
        end = self.counted + 30 * 86_400_000 if self.until is None else self.until
        return self.budget.used(max(0, end - self.counted))


class _Account:
    """What a group's record says of its open period: amounts by resource, burns by resource and workload."""

    def __init__(self) -> None:
        self.counted: int | None = None
        self.until: int | None = None
        self.spent: dict[str, int] = {}
        self.burns: dict[str, dict[str, int]] = {}

    def add(self, page: CardHours) -> None:
        from bizrq.api import hours as wire
        from bizrq.quota import quantity
        from bizrq.quota.cash import HOUR
        from bizrq.quota.ledger import milliseconds
        from bizrq.quota.names import uncash

        status = page.status
        if status.watermark:
            watermark = milliseconds(status.watermark)
            self.counted = watermark if self.counted is None else min(self.counted, watermark)
        self.until = milliseconds(status.open.end) if status.open.end else None
        for name, text in status.open.carried.items():
            self._spend(uncash(name), -quantity.parse_sum(text) * HOUR)
        for text in status.running:
            running = wire.running(text)
            for name, amount in running.cost.items():
                burns = self.burns.setdefault(name, {})
                burns[running.workload] = burns.get(running.workload, 0) + amount * len(running.since)

    def spend(self, line: Line) -> None:
        for name, amount in line.amounts.items():
            self._spend(name, amount)

    def _spend(self, name: str, amount: int) -> None:
        self.spent[name] = self.spent.get(name, 0) + amount


def foreseen(books: Books, resource: str | None = None) -> list[Foreseen]:
    """Every budget, in the order of groups and resources; raises Failure."""
    from bizrq.cli.figures import forest
    from bizrq.quota.cash import HOUR
    from bizrq.quota.forecast import FAR, Budget, burners, out_in
    from bizrq.quota.names import cash, is_cash, uncash

    accounts = {name: _Account() for name in books.groups}
    for page in books.pages:
        if page.spec.group in accounts:
            accounts[page.spec.group].add(page)
    for line in books.open():
        if line.group in accounts:
            accounts[line.group].spend(line)
    tree = forest(books.groups.values(), cash(uncash(resource)) if resource is not None else None)

    @cache
    def budget(group: str, name: str) -> Budget:
        sheet, account = tree.sheets[group], accounts[group]
        hard = next((f.hard for f in sheet.figures if f.resource == cash(name)), 0) * HOUR
        burn = sum(account.burns.get(name, {}).values())
        return Budget(hard, account.spent.get(name, 0), burn, [budget(child, name) for child in sheet.children])

    # A group that nothing is recorded of yet is in the period of its tree.
    of_tree: dict[str, _Account] = {}
    for name, account in accounts.items():
        known = of_tree.setdefault(books.root(name), account)
        if (account.counted or 0) > (known.counted or 0):
            of_tree[books.root(name)] = account
    found: list[Foreseen] = []
    for sheet, _ in tree.in_order():
        account = accounts[sheet.name]
        known = account if account.counted is not None else of_tree[books.root(sheet.name)]
        counted, until = known.counted or 0, known.until
        for name in (uncash(figures.resource) for figures in sheet.figures if is_cash(figures.resource)):
            mine = budget(sheet.name, name)
            out = out_in(mine, FAR if until is None else max(1, until - counted))
            workloads = tuple(burners(account.burns.get(name, {})))
            at = None if out is None or not counted else counted + out
            found.append(Foreseen(sheet.name, name, mine, counted, until, at, workloads, books.zone(sheet.name)))
    return found


def _as_json(each: Foreseen) -> dict[str, Any]:
    from bizrq.cli.books import hours, left, unit
    from bizrq.quota.cash import HOUR
    from bizrq.quota.ledger import timestamp

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


def when(each: Foreseen) -> str:
    """When a budget is out, for people."""
    from bizrq.cli.books import local

    if each.left <= 0:
        own = each.budget.spent > 0 or each.budget.burn > 0
        return "is out" if own else "all is granted"
    if each.out is not None:
        return f"{local(each.out // 60_000 * 60_000, each.zone)}, in {_long(each.out - each.counted)}"
    if each.until is not None:
        return f"not before {local(each.until, each.zone)}"
    return "not for years" if each.budget.burn else "-"


def _long(length: int) -> str:
    hours = length // 3_600_000
    return f"{length // 60_000} min" if hours < 2 else f"{hours} h" if hours < 72 else f"{hours // 24} days"


def burned_by(each: Foreseen) -> str:
    """The workloads that burn most, for people."""
    return ", ".join(f"{name} {percent}%" for name, percent in each.workloads)


def _print(found: list[Foreseen], form: Form) -> None:
    from rich.text import Text

    from bizrq.cli import terminal
    from bizrq.cli.books import local

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
