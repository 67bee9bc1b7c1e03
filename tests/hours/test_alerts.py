"""When a budget counts as low, that it is reported once, and the text."""

from __future__ import annotations

import pytest

from bizrq.hours.alerts import BudgetLevel, budget_message, crossed, low_condition, threshold_reached
from tests.support.language import at, name, res

DEFAULT = (80, 100)


def level(hard: str, used: str, own: str | None = None, **more: object) -> BudgetLevel:
    amounts = [res(f"cash/gpu={text}")[name("cash/gpu")] for text in (hard, used, own or used)]
    return BudgetLevel(name("cash/gpu"), *amounts, **more)  # type: ignore[arg-type]


LEVELS = [
    ("below the first", level("100", "79999m"), 0),
    ("at the first", level("100", "80"), 80),
    ("between", level("100", "99"), 80),
    ("at the second", level("100", "100"), 100),
    ("beyond", level("100", "250"), 100),
    ("nothing granted, and something spent", level("0", "1m"), 100),
    ("nothing granted, nothing spent", level("0", "0"), 0),
    ("all granted to children", level("100", "100", "0"), 0),
    ("all granted to children, and some spent", level("100", "100", "1"), 100),
]


@pytest.mark.parametrize(("why", "budget", "reached"), LEVELS, ids=[row[0] for row in LEVELS])
def test_levels(why: str, budget: BudgetLevel, reached: int) -> None:
    assert threshold_reached(budget, DEFAULT) == reached


def test_each_threshold_is_reported_once_until_the_level_is_below_it_again() -> None:
    reported: list[int] = []
    before: dict[str, BudgetLevel] = {}
    for used in ("10", "80", "81", "99", "100", "120", "0", "85", "70", "85", "130"):
        now = level("100", used)
        reported.extend(reached for _, reached in crossed(before, [now], DEFAULT))
        before = {now.name: now}
    assert reported == [80, 100, 80, 80, 100]


def test_a_threshold_is_reported_again_in_a_new_period() -> None:
    assert crossed({}, [level("100", "85")], DEFAULT) == [(level("100", "85"), 80)]
    assert crossed({}, [level("100", "85")], ()) == []


OUT = at("2026-11-22T13:05:31Z")
BURNERS = (("jobs.batch/a/train", 70), ("deployments.apps/a/web", 30))
GPU = "cash/requests.nvidia.com/gpu"
WORDS = [
    (level("100", "83"), f"{GPU}: 83 of 100 used (83%)"),
    (level("100", "120"), f"{GPU}: 120 of 100 used (120%)"),
    (level("0", "1"), f"{GPU}: 1 of 0 used"),
    (
        level("100", "83500m", exhausted_at=OUT, top_consumers=BURNERS),
        f"{GPU}: 83500m of 100 used (83%), out at 2026-11-22T14:05:00+01:00 at the present burn, "
        "by jobs.batch/a/train 70%, deployments.apps/a/web 30%",
    ),
    (level("100", "100", exhausted_at=OUT, top_consumers=BURNERS), f"{GPU}: 100 of 100 used (100%)"),
]


@pytest.mark.parametrize(("budget", "text"), WORDS, ids=[row[1][:45] for row in WORDS])
def test_the_message_of_a_budget(budget: BudgetLevel, text: str) -> None:
    assert budget_message(budget, "Europe/Berlin") == text


def test_the_condition_lists_low_budgets_or_else_those_that_will_be_exhausted() -> None:
    grant = "2026-11-23T00:00:00+01:00"
    low, fine = level("100", "83"), level("100", "1")
    later = level("100", "1", exhausted_at=OUT)
    assert low_condition([fine], DEFAULT, next_grant=grant) == (False, "Left", "no budget of hours is low")
    assert low_condition([low, later], DEFAULT, next_grant=grant) == (
        True,
        "ThresholdReached",
        f"{GPU}: 83 of 100 used (83%); next grant {grant}",
    )
    assert low_condition([later], DEFAULT) == (
        False,
        "Left",
        f"{GPU}: 1 of 100 used (1%), out at 2026-11-22T13:05:00+00:00 at the present burn",
    )
