"""bizrq audit: statements and records added up again from their own lines, by other code than wrote them.

This file alone decides what has to be equal to what.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeVar

from bizrq.cli.cluster import Context, Kubeconfig, ask, client_for
from bizrq.cli.failure import NO
from bizrq.cli.groups import Group, check_known
from bizrq.cli.tables import Form, Output, print_csv, print_document, print_names, print_table

if TYPE_CHECKING:
    from bizrq.api.group import GroupObject
    from bizrq.api.hours import CardHours, Lines, Running, Statement, StatementSpec
    from bizrq.cli.books import Books
    from bizrq.kube.client import KubeClient
    from bizrq.quota.resources import Resources

T = TypeVar("T")

#: A group's status follows its record in a second write: so often they are read again, after so many seconds.
_LOOKS, _PAUSE = 4, 0.5

_HEADS = ("object", "group", "from", "lines", "result")
_TOLD_HEADS = ("what", "group", "at", "who", "hours", "why")


def audit(
    group: Group = None,
    output: Output = Form.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Add up every statement and record again from its lines, and say whether they are equal to what is told.

    Lists besides what a person who bills wants to see: corrections, ends that were inferred or came in late, and what
    groups that are gone have left to their parents. Exit code 1: something differs.
    """
    client = client_for(kubeconfig, context)

    from bizrq.cli.books import read

    async def work(client: KubeClient) -> tuple[Books, list[Checked]]:
        import asyncio

        for look in count(1):
            books = await read(client, statements=True)
            if group is not None:
                check_known([group], sorted({*books.groups, *(each.spec.group for each in books.statements)}))
            mine = books.below(group)
            found = checked(mine)
            if look == _LOOKS or not any(each.differences for each in found if each.kind == "group"):
                return mine, found
            await asyncio.sleep(_PAUSE)
        raise AssertionError("unreachable: the last look returns")

    books, found = ask(client, work)
    told = list(remarks(books))
    if output in (Form.JSON, Form.YAML):
        equal = not any(each.differences for each in found)
        print_document({"equal": equal, "checked": [_as_json(each) for each in found], "remarks": told}, output)
    elif output is Form.CSV:
        print_csv(_HEADS, [_row(each) for each in found])
    elif output is Form.NAME:
        print_names(sorted({each.group for each in found if each.differences}))
    else:
        _print(found, told)
    if any(each.differences for each in found):
        sys.exit(NO)


@dataclass(frozen=True, slots=True)
class Checked:
    """One object that was added up again: a `statement`, a `record`'s page or a `group`'s status."""

    kind: str
    name: str
    group: str
    start: str | None
    lines: int
    differences: tuple[str, ...]


def checked(books: Books) -> list[Checked]:
    """All of the books, each object with what differs in it."""
    found = [_statement(statement) for statement in books.statements]
    found += [_page(page, books.statements) for page in books.pages]
    of_group: dict[str, list[CardHours]] = {}
    for page in books.pages:
        of_group.setdefault(page.spec.group, []).append(page)
    for name, pages in of_group.items():
        if name in books.groups:
            found.append(_group(books.groups[name], pages))
    return found


def _statement(statement: Statement) -> Checked:
    spec = statement.spec
    problems: list[str] = []
    sums = _added(spec, problems)
    problems += _differ(sums, _amounts(spec.total, problems), "its lines come to", "its total says")
    return _checked("statement", statement.metadata.name, spec.group, spec, problems)


def _page(page: CardHours, statements: Sequence[Statement]) -> Checked:
    """A page is its lines; what it says of closed periods is what their statements say."""
    problems: list[str] = []
    for lines in (page.status.open, *page.status.closing):
        _added(lines, problems)
    uids = Counter(uid for _, _, since in _running(page, problems) for uid in since)
    problems += [f"{uid} runs twice" for uid, times in uids.items() if times > 1]
    problems += [f"{uid} runs and is finished" for uid in page.status.finished if uid in uids]
    mine = {s.spec.start: s for s in statements if (s.spec.uid, s.spec.page) == (page.spec.uid, page.spec.page)}
    for period in page.status.periods:
        if period.start in mine:
            whole = _amounts(mine[period.start].spec.total, problems)
            told = f"the statement of {period.start or 'the first period'} says"
            problems += _differ(_amounts(period.total, problems), whole, "it says", told)
    return _checked("record", page.metadata.name, page.spec.group, page.status.open, problems)


def _group(group: GroupObject, pages: Sequence[CardHours]) -> Checked:
    """What the status says its own workloads have used is what the pages say of the open period."""
    from bizrq.api import group as wire
    from bizrq.quota import quantity
    from bizrq.quota.cash import HOUR, hours
    from bizrq.quota.names import is_cash, uncash
    from bizrq.quota.resources import total

    problems: list[str] = []
    # What cannot be read is told of the page that has it.
    spent = total(_open(page) for page in pages)
    for page in pages:
        for name, text in page.status.open.carried.items():
            spent[uncash(name)] = spent.get(uncash(name), 0) - quantity.parse_sum(text) * HOUR
    mine = hours({name: max(0, amount) for name, amount in spent.items()})
    own = {name: n for name, n in wire.amounts(group, group.status.self_used).items() if is_cash(name)}
    for name in sorted(own):
        if own[name] != mine.get(name, 0):
            told = quantity.text(name, own[name]), quantity.text(name, mine.get(name, 0))
            problems.append(f"{name}: its status says {told[0]}, its record {told[1]}")
    both = Counter(chain.from_iterable({uid for each in _running(page, []) for uid in each.since} for page in pages))
    problems += [f"{uid} runs on two pages" for uid, times in both.items() if times > 1]
    return Checked("group", group.name, group.name, pages[0].status.open.start, len(own), tuple(problems))


def _checked(kind: str, name: str, group: str, lines: Lines | StatementSpec, problems: list[str]) -> Checked:
    count = len(lines.settled) + len(lines.late) + len(lines.corrections)
    return Checked(kind, name, group, lines.start, count, tuple(dict.fromkeys(problems)))


# Lines


def _added(lines: Lines | StatementSpec, problems: list[str]) -> dict[str, int]:
    from bizrq.api import hours as wire
    from bizrq.quota.resources import total

    settled = [amounts for _, amounts in _each(wire.settled, lines.settled, problems)]
    late = [amounts for _, _, amounts in _each(wire.late, lines.late, problems)]
    return total([*settled, *late, *(_amounts(each.amounts, problems) for each in lines.corrections)])


def _each(read: Callable[[str], T], texts: Iterable[str], problems: list[str]) -> Iterator[T]:
    """Every line that can be read."""
    for text in texts:
        try:
            yield read(text)
        except ValueError as error:
            problems.append(f"no line: {error}")


def _amounts(stored: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    from bizrq.api import hours as wire

    try:
        return wire.amounts_of(stored)
    except ValueError as error:
        problems.append(str(error))
        return {}


def _running(page: CardHours, problems: list[str]) -> Iterator[Running]:
    from bizrq.api import hours as wire

    return _each(wire.running, page.status.running, problems)


def _open(page: CardHours) -> dict[str, int]:
    """What a page has of the open period: what has ended and, up to the watermark, what runs."""
    from bizrq.api.hours import HoursUnreadable
    from bizrq.cli.books import lines_of_page
    from bizrq.quota.resources import total

    try:
        return total(line.amounts for line in lines_of_page(page, page.status.open))
    except HoursUnreadable:
        return {}


def _differ(found: Resources, told: Resources, says: str, other: str) -> list[str]:
    """A sentence for each resource of which two sums are not equal, to the last unit."""
    from bizrq.cli.books import hours

    return [
        f"{name}: {says} {hours(name, a)} ({a}), {other} {hours(name, b)} ({b})"
        for name in sorted({*found, *told})
        if (a := found.get(name, 0)) != (b := told.get(name, 0))
    ]


# What is told besides


def remarks(books: Books) -> Iterator[dict[str, str]]:
    """Lines that are no workload's own ends: corrections, what was late, inferred, or left by groups that are gone."""
    for statement in books.statements:
        yield from _of_lines(statement.spec.group, statement.spec, statement.spec.inferred)
    for page in books.pages:
        # What is inferred stands in a record until it is in a statement too.
        for lines in page.status.closing:
            yield from _of_lines(page.spec.group, lines, ())
        yield from _of_lines(page.spec.group, page.status.open, page.status.inferred)
        if page.status.inferred_earlier:
            yield _remark("inferred", page.spec.group, why=f"{page.status.inferred_earlier} more, not listed any more")


def _of_lines(group: str, lines: Lines | StatementSpec, inferred: Iterable[str]) -> Iterator[dict[str, str]]:
    from bizrq.api import hours as wire
    from bizrq.quota.ledger import GROUPS, milliseconds

    bad: list[str] = []  # told already, of the object that has them
    for each in lines.corrections:
        yield _remark("correction", group, each.at, each.by, _amounts(each.amounts, bad), each.reason)
    for start, workload, amounts in _each(wire.late, lines.late, bad):
        yield _remark("late", group, lines.start or "", workload, amounts, f"of the period from {start or 'the first'}")
    for workload, amounts in _each(wire.settled, lines.settled, bad):
        if workload.startswith(f"{GROUPS}/"):
            yield _remark("inherited", group, lines.start or "", workload.rpartition("/")[2], amounts, "was deleted")
    for gone in _each(wire.inferred, inferred, bad):
        length = milliseconds(gone.seen_gone) - milliseconds(gone.charged_to)
        more = {name: n * length for name, n in gone.cost.items()}
        why = f"ran until {gone.charged_to} at least; hours are the most that it can have run longer"
        yield _remark("inferred", group, gone.seen_gone, f"{gone.workload} {gone.uid}", more, why)


def _remark(
    what: str, group: str, at: str = "", who: str = "", amounts: Resources | None = None, why: str = ""
) -> dict[str, str]:
    from bizrq.cli.books import hours
    from bizrq.cli.terminal import plain

    told = ", ".join(f"{name} {hours(name, amount)}" for name, amount in sorted((amounts or {}).items()))
    values = {"what": what, "group": group, "at": at, "who": who, "hours": told, "why": why}
    return {key: plain(value) for key, value in values.items()}


# Forms


def _as_json(each: Checked) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "name": each.name,
        "group": each.group,
        "from": each.start,
        "lines": each.lines,
        "differences": list(each.differences),
    }


def _row(each: Checked) -> dict[str, Any]:
    result = "; ".join(each.differences) or "equal"
    return {**_as_json(each), "object": f"{each.kind}/{each.name}", "result": result}


def _print(found: Sequence[Checked], told: Sequence[Mapping[str, str]]) -> None:
    from rich.text import Text

    from bizrq.cli import terminal

    console = terminal.console()
    if not found:
        console.print("No hours are recorded: there is nothing to check.")
        return
    cells: list[list[Any]] = []
    for each in found:
        result = Text("differs", "bold red") if each.differences else Text("equal", "green")
        cells.append([f"{each.kind}/{each.name}", each.group, each.start or "-", str(each.lines), result])
    print_table([head.upper() for head in _HEADS], cells, right=("LINES",))
    for each in found:
        terminal.tell(console, [f"{each.kind}/{each.name}: {terminal.plain(text)}" for text in each.differences], 0)
    if told:
        sys.stdout.write("\n")
        print_table([head.upper() for head in _TOLD_HEADS], [[row[h] or "-" for h in _TOLD_HEADS] for row in told])
    wrong = sum(bool(each.differences) for each in found)
    verdict = f"{wrong} of {len(found)} differ" if wrong else f"all {len(found)} are equal to their lines"
    console.print(Text(f"\n{verdict}", "bold red" if wrong else "bold green"))
