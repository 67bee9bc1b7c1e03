"""When hours run low, who is told, once, and in which words."""

from __future__ import annotations

import pytest

from bizrq.hours.alerts import Standing, condition, crossed, level, words
from tests.support.language import at, name, res

DEFAULT = (80, 100)


def standing(hard: str, used: str, own: str | None = None, **more: object) -> Standing:
    amounts = [res(f"cash/gpu={text}")[name("cash/gpu")] for text in (hard, used, own or used)]
    return Standing(name("cash/gpu"), *amounts, **more)  # type: ignore[arg-type]


LEVELS = [
    ("below the first", standing("100", "79999m"), 0),
    ("at the first", standing("100", "80"), 80),
    ("between", standing("100", "99"), 80),
    ("at the second", standing("100", "100"), 100),
    ("beyond", standing("100", "250"), 100),
    ("nothing granted, and something spent", standing("0", "1m"), 100),
    ("nothing granted, nothing spent", standing("0", "0"), 0),
    ("all handed down to children", standing("100", "100", "0"), 0),
    ("handed down, and some spent", standing("100", "100", "1"), 100),
]


@pytest.mark.parametrize(("why", "budget", "reached"), LEVELS, ids=[row[0] for row in LEVELS])
def test_levels(why: str, budget: Standing, reached: int) -> None:
    assert level(budget, DEFAULT) == reached


def test_each_threshold_is_told_once_until_it_is_left_again() -> None:
    told: list[int] = []
    before: dict[str, Standing] = {}
    for used in ("10", "80", "81", "99", "100", "120", "0", "85", "70", "85", "130"):
        now = standing("100", used)
        told.extend(reached for _, reached in crossed(before, [now], DEFAULT))
        before = {now.name: now}
    assert told == [80, 100, 80, 80, 100]


def test_a_period_that_begins_at_once_low_is_told_again() -> None:
    assert crossed({}, [standing("100", "85")], DEFAULT) == [(standing("100", "85"), 80)]
    assert crossed({}, [standing("100", "85")], ()) == []


OUT = at("2026-11-22T13:05:31Z")
BURNERS = (("jobs.batch/a/train", 70), ("deployments.apps/a/web", 30))
GPU = "cash/requests.nvidia.com/gpu"
WORDS = [
    (standing("100", "83"), f"{GPU}: 83 of 100 used (83%)"),
    (standing("100", "120"), f"{GPU}: 120 of 100 used (120%)"),
    (standing("0", "1"), f"{GPU}: 1 of 0 used"),
    (
        standing("100", "83500m", out=OUT, burners=BURNERS),
        f"{GPU}: 83500m of 100 used (83%), out at 2026-11-22T14:05:00+01:00 at the present burn, "
        "by jobs.batch/a/train 70%, deployments.apps/a/web 30%",
    ),
    (standing("100", "100", out=OUT, burners=BURNERS), f"{GPU}: 100 of 100 used (100%)"),
]


@pytest.mark.parametrize(("budget", "text"), WORDS, ids=[row[1][:45] for row in WORDS])
def test_words(budget: Standing, text: str) -> None:
    assert words(budget, "Europe/Berlin") == text


def test_the_condition_tells_what_is_low_else_what_will_be_out() -> None:
    grant = "2026-11-23T00:00:00+01:00"
    low, fine = standing("100", "83"), standing("100", "1")
    later = standing("100", "1", out=OUT)
    assert condition([fine], DEFAULT, next_grant=grant) == (False, "Left", "no budget of hours is low")
    assert condition([low, later], DEFAULT, next_grant=grant) == (
        True,
        "ThresholdReached",
        f"{GPU}: 83 of 100 used (83%); next grant {grant}",
    )
    assert condition([later], DEFAULT) == (
        False,
        "Left",
        f"{GPU}: 1 of 100 used (1%), out at 2026-11-22T13:05:00+00:00 at the present burn",
    )
