"""Charts: lengths that are proportions of whole numbers, and labels that have room."""

from __future__ import annotations

import itertools
from itertools import pairwise
from xml.etree.ElementTree import Element

from bizrq.cli.hours.charts import Bar, bars, columns


def widths(chart: Element, kind: str, what: str = "width") -> list[int]:
    return [int(box.get(what, "")) for box in chart.iter("rect") if box.get("class") == kind]


def test_lengths_are_in_proportion_and_what_is_there_is_seen() -> None:
    chart = bars("x", [Bar("a", 10**30, "1"), Bar("b", 5 * 10**29, "0.5"), Bar("c", 1, "0"), Bar("d", 0, "0")])
    assert widths(chart, "bar") == [480, 240, 1, 0]
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "x"


def test_a_credit_has_a_look_of_its_own_and_a_budget_an_end() -> None:
    chart = bars("x", [Bar("a", -5, "-5"), Bar("b", 12, "12", 20, 10), Bar("c", 3, "3", 8, 10)])
    assert (widths(chart, "credit"), widths(chart, "over"), widths(chart, "bar")) == ([120], [288], [72])
    assert widths(chart, "later") == [0, 480, 192]
    assert widths(chart, "limit", "x") == [240, 240]


def test_columns_have_as_many_labels_as_there_is_room_for_and_the_last_one() -> None:
    for many, time in itertools.product((1, 4, 7, 8, 52), ("", "T01:00")):
        rows = [Bar(f"2026-{n:02}-01{time}", n, f"{n}") for n in range(1, many + 1)]
        told = [text for text in columns("x", rows).iter("text") if (text.text or "").startswith("2026")]
        needs = 8 * len(rows[0].label)
        ends = [int(text.get("x", "")) + needs * (text.get("text-anchor") == "start") for text in told]
        assert told[-1].text == rows[-1].label
        assert ends[0] >= needs
        assert ends[-1] <= 480
        assert all(after - before >= needs for before, after in pairwise(ends)), (many, time)


def test_a_long_name_keeps_both_its_ends() -> None:
    name = f"deployments.apps/{'n' * 63}/{'w' * 63}-end"
    [label] = [text.text or "" for text in bars("x", [Bar(name, 1, "1")]).iter("text") if "…" in (text.text or "")]
    assert label.startswith("deployments.apps/")
    assert label.endswith("-end")
    assert len(label) <= 48
