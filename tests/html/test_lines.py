"""A chart of what is left over time: marks are where their times and amounts are, and no texts touch."""

from __future__ import annotations

import random
from itertools import combinations
from xml.etree.ElementTree import Element

import pytest

from bizrq.html.charts import WIDTH
from bizrq.html.lines import Moment, burn_down
from tests.html.test_charts import texts, touch


def places(chart: Element) -> list[tuple[int, int]]:
    return [(int(each.get("cx", "")), int(each.get("cy", ""))) for each in chart.iter("circle")]


def drawn(*amounts: int, later: tuple[int, ...] = ()) -> Element:
    known = [Moment(at * 100, amount, f"at {at}", str(amount)) for at, amount in enumerate(amounts)]
    ahead = [Moment((len(known) + at) * 100, amount, "end", str(amount)) for at, amount in enumerate(later)]
    return burn_down("what is left", known, ahead, 1)


def test_a_mark_is_further_right_the_later_it_is_and_lower_the_less_is_left():
    first, second, end = places(drawn(100, 50, later=(0,)))
    assert second[0] - first[0] == pytest.approx(end[0] - second[0], abs=1)
    assert second[1] - first[1] == pytest.approx(end[1] - second[1], abs=1)
    assert first[1] < second[1] < end[1]


def test_what_is_not_known_is_dotted_and_what_will_be_begins_where_the_known_ends():
    past, ahead = drawn(100, 80, later=(60, 40)).iter("polyline")
    assert past.get("stroke-dasharray")
    assert not ahead.get("stroke-dasharray")
    assert past.get("points", "").split()[-1] == ahead.get("points", "").split()[0]
    assert len(ahead.get("points", "").split()) == 3
    assert not list(drawn(100).iter("polyline"))


def test_less_than_nothing_is_below_the_axis_of_zero():
    chart = drawn(10, later=(-30,))
    [zero] = [int(line.get("y1", "")) for line in chart.iter("line") if line.get("class") == "axis"]
    above, below = places(chart)
    assert above[1] < zero < below[1]


@pytest.mark.parametrize("seed", range(200))
def test_no_text_touches_another_one_or_leaves_the_chart(seed: int):
    dice = random.Random(seed)
    amounts = [dice.choice([0, 1, -5, 10**6, dice.randrange(-(10**20), 10**20)]) for _ in range(dice.randint(1, 4))]
    chart = drawn(*amounts, later=tuple(dice.randrange(-(10**9), 10**9) for _ in range(dice.randint(0, 3))))
    height = int(chart.get("viewBox", "").split()[-1])
    boxes = texts(chart)
    for (one, left), (other, right) in combinations(boxes, 2):
        assert not touch(left, right), (one, other)
    for text, box in boxes:
        assert box[0] >= 0, text
        assert box[2] <= WIDTH + 1, text
        assert box[1] >= 0, text
        assert box[3] <= height, text
