"""The answers of admission to manifests, as elements: in the words of `bizrq fit` and `bizrq explain`.

This file alone decides how an outcome looks. What it says comes from `bizrq.figures.simulate.wording`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bizrq.figures.simulate.outcome import DryRunOutcome
from bizrq.figures.simulate.wording import (
    RaiseCommand,
    could_help,
    demand_rows,
    later_sentences,
    most_replicas,
    sentences,
    unknown_sentences,
    why_charged,
)
from bizrq.figures.words import CommandLine
from bizrq.units.text import by_number, counted
from web import parts
from web.html import Element, element, shown
from web.parts import Cell, TableColumn
from web.visit import group_address

#: The most objects that are explained one by one.
EXPLAINED = 100
#: Objects up to which each is open at first.
_FEW = 5


def answer_tag(outcome: DryRunOutcome) -> list[Element]:
    """Return the answer in a word, and whether there is a warning."""
    if outcome.is_unknown:
        return [parts.tag("unknown", "low")]
    if not outcome.fits:
        return [parts.tag("does not fit", "over")]
    return [parts.tag("fits", "good"), *([] if outcome.is_sure else [parts.tag("with a warning", "low")])]


def summary(outcomes: Sequence[DryRunOutcome]) -> str:
    """Return how many objects fit, in one sentence."""
    fits, unknown = sum(each.fits for each in outcomes), sum(each.is_unknown for each in outcomes)
    refused = len(outcomes) - fits - unknown
    if not refused and not unknown:
        return "It fits." if fits == 1 else f"All {fits} objects fit."
    counts = [f"{fits} of {len(outcomes)} {by_number(fits, 'fits', 'fit')}" if len(outcomes) > 1 else ""]
    if refused:
        counts.append(f"{refused} {by_number(refused, 'does', 'do')} not" if len(outcomes) > 1 else "It does not fit")
    if unknown:
        counts.append(f"of {unknown} it is unknown" if len(outcomes) > 1 else "It is unknown whether it fits")
    return f"{', '.join(filter(None, counts))}."


def answers(outcomes: Sequence[DryRunOutcome]) -> list[Element]:
    """Return a table of all objects, and an explanation of each."""
    fitting = TableColumn("replicas that fit", is_number=True)
    columns = (TableColumn("object"), TableColumn("answer"), TableColumn("charged to"), fitting, TableColumn("why"))
    rows: list[list[Cell]] = []
    for number, outcome in enumerate(outcomes):
        name = shown(f"{outcome.kind} {outcome.full_name}")
        link = element("a", name, href=f"#object-{number}") if number < EXPLAINED else name
        most = most_replicas(outcome)
        number_of = str(most) if most is not None and not outcome.is_unknown else ""
        words = element("span", *answer_tag(outcome), class_="row")
        rows.append([link, words, _charged(outcome), number_of, shown(next(_reasons(outcome), ""))])
    note = f"Below, the first {EXPLAINED} of {len(outcomes)} are explained." if len(outcomes) > EXPLAINED else ""
    table = parts.table(columns, rows, caption=note, label="Answers by object")
    return [table, *(_explained(number, each, outcomes) for number, each in enumerate(outcomes[:EXPLAINED]))]


def explanation(outcome: DryRunOutcome, yes: str = "It fits", no: str = "It does not fit:") -> list[Element]:
    """Return what is asked for, what is left, and the answer with who has room."""
    found: list[Element] = []
    if rows := demand_rows(outcome):
        columns = (
            TableColumn("resource"),
            *(TableColumn(head, is_number=True) for head in ("asks", "had", "left", "hard")),
        )
        found.append(parts.table(columns, rows, label="What it asks for"))
    if outcome.is_unknown:
        return [*found, *said(unknown_sentences(outcome))]
    found += said(f"warning: {each}" for each in outcome.warnings)
    if outcome.fits:
        most = most_replicas(outcome)
        more = f", up to {counted(most, 'replica')}" if most is not None else ""
        return [*found, element("p", f"{yes}{more}."), *said(later_sentences(outcome))]
    found.append(element("p", element("strong", no)))
    found += said([*sentences(outcome), *later_sentences(outcome)])
    if able := could_help(outcome):
        links: list[Cell] = []
        for account, _ in able[:_FEW]:
            links += [", "] if links else []
            links.append(element("a", shown(account.group), href=group_address(account.group)))
        found.append(element("p", "Groups with room: ", *links))
    return found


def said(lines: Iterable[str]) -> list[Element]:
    """Return sentences as a list, and commands as text to copy, with a link where a page does it; nothing for none."""
    items: list[Element] = []
    for line in lines:
        text = shown(line.strip())
        content: list[Cell] = [element("pre", text) if isinstance(line, CommandLine) else text]
        if isinstance(line, RaiseCommand):
            content += ["or ", element("a", f"change {shown(line.group)} here", href=group_address(line.group, "edit"))]
        items.append(element("li", *content))
    return [element("ul", *items, class_="plain")] if items else []


def _explained(number: int, outcome: DryRunOutcome, outcomes: Sequence[DryRunOutcome]) -> Element:
    title = element("h3", shown(f"{outcome.kind} {outcome.full_name}"), " ", *answer_tag(outcome))
    is_open = {"open": ""} if len(outcomes) <= _FEW or not outcome.is_sure else {}
    because = [element("p", shown(" ".join(why_charged(outcome))), class_="soft")]
    summary_of = element("summary", title)
    body = element("div", *because, *explanation(outcome), class_="answer")
    return element("details", summary_of, body, id=f"object-{number}", class_="outcome", **is_open)


def _charged(outcome: DryRunOutcome) -> Cell:
    if outcome.group:
        return element("a", shown(outcome.group), href=group_address(outcome.group))
    return "no group" if outcome.is_chargeable and not outcome.is_unknown else ""


def _reasons(outcome: DryRunOutcome) -> Iterator[str]:
    if outcome.is_unknown:
        yield from unknown_sentences(outcome)
        return
    yield from sentences(outcome)
    yield from (f"warning: {each}" for each in outcome.warnings)
    yield from later_sentences(outcome)
