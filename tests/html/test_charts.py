"""Charts: lengths are proportional to whole numbers, an axis covers them, and labels never touch."""

from __future__ import annotations

import json
import random
import re
import subprocess
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

import pytest

from bizrq.html.charts import WIDTH, Bar, axis_of, bar_chart, column_chart, text_width, tick_text
from tests.support import binaries

#: A text or a box: left, top, right, bottom.
Box = tuple[float, float, float, float]


def widths(chart: Element, kind: str, what: str = "width") -> list[int]:
    return [int(box.get(what, "")) for box in chart.iter("rect") if box.get("class", "").split()[0] == kind]


def texts(chart: Element) -> list[tuple[str, Box]]:
    """Return the texts of a chart with their boxes; a text is as wide as it can be."""
    found: list[tuple[str, Box]] = []
    for text in chart.iter("text"):
        said, x, y = text.text or "", int(text.get("x", "0")), int(text.get("y", "0"))
        wide = text_width(said)
        left = {"end": x - wide, "middle": x - wide / 2}.get(text.get("text-anchor", ""), x)
        found.append((said, (left, y - 9, left + wide, y + 2)))
    return found


def columns(chart: Element) -> list[Box]:
    return [
        (x, y, x + width, y + height)
        for box in chart.iter("rect")
        for x, y, width, height in [[int(box.get(key, "")) for key in ("x", "y", "width", "height")]]
        if width and height
    ]


def touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def hostile_rows(many: int, seed: int) -> list[Bar]:
    """Rows of names and amounts as they come at worst: long, broad, not Latin; tiny, huge and below zero."""
    dice = random.Random(seed)
    names = [
        "a",
        "W" * 63,
        "deployments.apps/" + "m" * 63 + "/" + "n" * 63,
        "2026-11-16T09:00",
        "組" * 40,
        "the beginning",
    ]
    amounts = [0, 1, -(10**20), 10**9, 10**15, 10**18, 3 * 10**30, 10**16 + 1]
    rows: list[Bar] = []
    for number in range(many):
        amount = dice.choice(amounts if seed % 3 else amounts[:5])
        text = f"{amount / 10**15:.3f}"
        mark = "so far" if number == many - 1 else ""
        rows.append(
            Bar(f"{dice.choice(names)}-{number}", amount, text, dice.choice(amounts), abs(dice.choice(amounts)), mark)
        )
    return rows


def test_bars_are_proportional_and_never_invisible() -> None:
    rows = [Bar("a", 10**30, "1"), Bar("b", 5 * 10**29, "0.5"), Bar("c", 1, "0"), Bar("d", 0, "0")]
    chart = bar_chart("x", rows, 10**15)
    assert widths(chart, "bar") == [480, 240, 1, 0]
    assert chart.get("role") == "img"
    assert chart.get("aria-label") == "x"


def test_a_credit_and_a_budget_have_their_own_marks() -> None:
    """The axis is from -10 to 30: a credit is left of zero, and a budget that is overused is not cut."""
    chart = bar_chart("x", [Bar("a", -5, "-5"), Bar("b", 12, "12", 20, 10), Bar("c", 3, "3", 8, 10)], 1000)
    assert (widths(chart, "credit"), widths(chart, "over"), widths(chart, "bar")) == ([80], [192], [48])
    assert widths(chart, "credit", "x") == [80]
    assert widths(chart, "over", "x") == [160]
    assert widths(chart, "later") == [0, 320, 128]
    assert widths(chart, "limit", "x") == [320, 320]


@pytest.mark.parametrize("seed", range(30))
def test_an_axis_covers_every_amount_with_few_round_steps(seed: int) -> None:
    dice = random.Random(seed)
    amounts = [dice.randrange(-(10 ** dice.randrange(1, 40)), 10 ** dice.randrange(1, 60)) for _ in range(seed + 1)]
    axis = axis_of(amounts, 36 * 10**14)
    assert axis.low <= min(0, *amounts)
    assert axis.high >= max(0, *amounts)
    assert 2 <= len(axis.ticks) <= 5
    assert 0 in axis.ticks
    assert re.fullmatch("36|72|18", str(axis.step).rstrip("0")), axis.step
    # No step is so long that half of the axis is empty.
    assert max(abs(amount) for amount in amounts) * 4 >= max(axis.high, -axis.low)


def test_the_ticks_of_an_axis_are_short() -> None:
    amounts = (0, 5 * 10**14, -2 * 10**17, 10**20, 15 * 10**20, 2 * 10**21, 5 * 10**45)
    said = [tick_text(amount, 10**15, " %") for amount in amounts]
    assert said == ["0 %", "0.5 %", "-200 %", "100000 %", "1.5M %", "2M %", "5e30 %"]
    chart = column_chart("x", [Bar("a", 900_000, "900.000"), Bar("b", 1_100_000, "1100.000")], 1000)
    assert [text for text, _ in texts(chart)][:4] == ["0", "500", "1000", "1500"]


@pytest.mark.parametrize("draw", [bar_chart, column_chart])
@pytest.mark.parametrize("many", range(1, 61))
def test_labels_never_touch_each_other_nor_a_bar_and_stay_inside(draw: object, many: int) -> None:
    chart = (bar_chart if draw is bar_chart else column_chart)("x", hostile_rows(many, many), 10**15)
    found, tall = texts(chart), int(chart.get("viewBox", "").split()[3])
    for (said, one), (other, two) in combinations(found, 2):
        assert not touch(one, two), (said, other)
    for said, box in found:
        assert box[0] >= -1, said
        assert box[2] <= WIDTH + 1, said
        assert 0 <= box[1] < box[3] <= tall, said
        assert not any(touch(box, bar) for bar in columns(chart) if bar[2] - bar[0] > 2), said


def test_columns_have_as_many_labels_as_fit_and_always_the_last() -> None:
    for many in (1, 4, 7, 8, 52):
        rows = [Bar(f"2026-{n:02}-01", n * 1000, f"{n}") for n in range(1, many + 1)]
        labels = [said for said, _ in texts(column_chart("x", rows, 1000)) if said.startswith("2026")]
        assert rows[-1].label in labels
        assert len(labels) == {1: 1, 52: 5}.get(many, 4), labels
        places = [box[0] for said, box in texts(column_chart("x", rows, 1000)) if said.startswith("2026")]
        assert all(before > after for before, after in pairwise(places))


def test_a_period_that_is_not_over_is_marked() -> None:
    chart = column_chart("x", [Bar("w1", 4000, "4.000"), Bar("w2", 1000, "1.000", mark="so far")], 1000)
    boxes = [box for box in chart.iter("rect") if (box.get("class") or "").startswith("bar")]
    assert [box.get("class") for box in boxes] == ["bar", "bar open"]
    assert boxes[1].get("stroke-dasharray")
    assert "so far" in [said for said, _ in texts(chart)]
    assert "w2: 1.000, so far" in [title.text for title in chart.iter("title")]


def test_a_long_name_is_shortened_in_the_middle() -> None:
    name = f"deployments.apps/{'n' * 63}/{'w' * 63}-end"
    chart = bar_chart("x", [Bar(name, 1, "1")], 1000)
    [label] = [said for said, _ in texts(chart) if "…" in said]
    assert label.startswith("deployments.apps/")
    assert label.endswith("-end")
    assert text_width(label) <= WIDTH


_MEASURE = """<script>
const found = [...document.querySelectorAll("svg")].map(svg => [...svg.querySelectorAll("text")].map(text => {
  const box = text.getBBox(); return [text.textContent, [box.x, box.y, box.x + box.width, box.y + box.height]]; }));
document.body.innerHTML = ""; document.body.append(JSON.stringify(found));
</script>"""


@pytest.mark.browser
@pytest.mark.parametrize("font", ["system-ui, sans-serif", "serif"])
def test_in_a_browser_no_text_is_wider_than_it_was_taken_for(font: str, tmp_path: Path) -> None:
    """The browser measures the texts; so what the other tests show of boxes holds on a screen."""
    charts = [
        draw("x", hostile_rows(many, many), 10**15) for draw in (bar_chart, column_chart) for many in (1, 5, 15, 60)
    ]
    file = tmp_path / "charts.html"
    style = f"<meta charset=utf-8><style>svg text {{ font: 12px {font} }}</style>"
    file.write_text(style + "".join(tostring(chart, "unicode") for chart in charts) + _MEASURE, "utf-8")
    command = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    program = binaries.browser()
    assert program is not None
    shown = subprocess.run([program, *command, file.as_uri()], capture_output=True, check=True, text=True, timeout=120)
    measured = json.loads(re.search(r"\[\[.*\]\]", shown.stdout)[0].replace("&amp;", "&"))  # type: ignore[index]
    assert len(measured) == len(charts)
    for chart, boxes in zip(charts, measured, strict=True):
        assert len(boxes) == len(texts(chart)) > 0
        for (said, estimated), (shown_text, box) in zip(texts(chart), boxes, strict=True):
            assert said == shown_text
            assert box[2] - box[0] <= estimated[2] - estimated[0] + 1, said
            assert box[0] >= estimated[0] - 1, said
            assert box[2] <= estimated[2] + 1, said
