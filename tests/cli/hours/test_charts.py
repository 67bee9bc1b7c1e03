"""Charts: lengths are proportional to whole numbers, and labels have room."""

from __future__ import annotations

import itertools
from itertools import pairwise
from xml.etree.ElementTree import Element

from bizrq.cli.hours.charts import Bar, bar_chart, column_chart


def widths(chart: Element, kind: str, what: str = "width") -> list[int]:
    return [int(box.get(what, "")) for box in chart.iter("rect") if box.get("class") == kind]


def test_bars_are_proportional_and_never_invisible() -> None:
    chart = bar_chart("x", [Bar("a", 10**30, "1"), Bar("b", 5 * 10**29, "0.5"), Bar("c", 1, "0"), Bar("d", 0, "0")])
    assert widths(chart, "bar") == [480, 240, 1, 0]
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "x"


def test_a_credit_and_a_budget_have_their_own_marks() -> None:
    chart = bar_chart("x", [Bar("a", -5, "-5"), Bar("b", 12, "12", 20, 10), Bar("c", 3, "3", 8, 10)])
    assert (widths(chart, "credit"), widths(chart, "over"), widths(chart, "bar")) == ([120], [288], [72])
    assert widths(chart, "later") == [0, 480, 192]
    assert widths(chart, "limit", "x") == [240, 240]


def test_columns_have_as_many_labels_as_fit_and_always_the_last() -> None:
    for many, time in itertools.product((1, 4, 7, 8, 52), ("", "T01:00")):
        rows = [Bar(f"2026-{n:02}-01{time}", n, f"{n}") for n in range(1, many + 1)]
        labels = [text for text in column_chart("x", rows).iter("text") if (text.text or "").startswith("2026")]
        needs = 8 * len(rows[0].label)
        ends = [int(text.get("x", "")) + needs * (text.get("text-anchor") == "start") for text in labels]
        assert labels[-1].text == rows[-1].label
        assert ends[0] >= needs
        assert ends[-1] <= 480
        assert all(after - before >= needs for before, after in pairwise(ends)), (many, time)


def test_a_long_name_is_shortened_in_the_middle() -> None:
    name = f"deployments.apps/{'n' * 63}/{'w' * 63}-end"
    [label] = [text.text or "" for text in bar_chart("x", [Bar(name, 1, "1")]).iter("text") if "…" in (text.text or "")]
    assert label.startswith("deployments.apps/")
    assert label.endswith("-end")
    assert len(label) <= 48
