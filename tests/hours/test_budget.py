"""The fields of `spec.cash`, and how many hours are carried into the next period."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.hours.budget import DEFAULT_TERMS, BudgetTerms, BudgetTermsError, carried_over, parse_duration, parse_terms
from bizrq.hours.periods import Schedule
from tests.support.language import res

HOUR = 3_600_000


def terms(**fields: Any) -> BudgetTerms:
    plain: dict[str, Any] = {"fraction": None, "cap": {}, "mode": "", "max_run_time": "", "thresholds": None}
    return parse_terms(**{"schedule": Schedule(), **plain, **fields})


def test_the_default_is_one_grant_with_thresholds_at_80_and_100_percent() -> None:
    assert terms() == DEFAULT_TERMS == BudgetTerms(thresholds=(80, 100))


def test_all_fields_are_read() -> None:
    budget_terms = terms(
        schedule=Schedule("weekly"),
        fraction="50%",
        cap=res("cash/gpu=100"),
        mode="safe",
        max_run_time="12h",
        thresholds=[100, 50, 50],
    )
    assert budget_terms == BudgetTerms(Schedule("weekly"), 50, res("cash/gpu=100"), True, 12 * HOUR, (50, 100))
    assert terms(fraction="", thresholds=[]) == BudgetTerms(rollover=100, thresholds=())


SPANS = {"12h": 12 * HOUR, "1d12h": 36 * HOUR, "90m": HOUR * 3 // 2, "45s": 45_000, "1d1h1m1s": 90_061_000}


@pytest.mark.parametrize("text", SPANS)
def test_run_times_are_parsed(text: str) -> None:
    assert parse_duration(text) == SPANS[text]


BAD = [
    ({"fraction": "0%"}, "rollover.fraction: '0%' is none: write 1% to 100%"),
    ({"fraction": "101%"}, "rollover.fraction: '101%' is none: write 1% to 100%"),
    ({"fraction": "50"}, "rollover.fraction: '50' is none: write 1% to 100%"),
    ({"mode": "Safe"}, "mode: 'Safe' is none of open, safe"),
    ({"max_run_time": "12h"}, "maxRunTime: bounds workloads in safe mode: write mode: safe with it"),
    (
        {"mode": "safe", "max_run_time": "0h"},
        "maxRunTime: '0h' is no time to run: write one like 12h, 90m or 1d12h",
    ),
    (
        {"mode": "safe", "max_run_time": "1h2d"},
        "maxRunTime: '1h2d' is no time to run: write one like 12h, 90m or 1d12h",
    ),
    ({"thresholds": [0]}, "thresholds: write percents from 1 to 1000"),
    ({"thresholds": [80, 1001]}, "thresholds: write percents from 1 to 1000"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[row[1][:50] for row in BAD])
def test_invalid_terms_are_rejected_with_a_message(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BudgetTermsError) as error:
        terms(**fields)
    assert str(error.value) == message


CARRIED = [
    ("nothing without a rollover", terms(), "cash/gpu=100", "cash/gpu=40", ""),
    ("all that is left", terms(fraction=""), "cash/gpu=100", "cash/gpu=40", "cash/gpu=60"),
    ("a part of it", terms(fraction="50%"), "cash/gpu=100", "cash/gpu=40", "cash/gpu=30"),
    ("no more than the cap", terms(fraction="", cap=res("cash/gpu=10")), "cash/gpu=100", "", "cash/gpu=10"),
    ("of what the cap does not name all", terms(fraction="", cap=res("cash/cpu=1")), "cash/gpu=9", "", "cash/gpu=9"),
    ("nothing of what is overspent", terms(fraction=""), "cash/gpu=100", "cash/gpu=140", ""),
    ("nothing but hours", terms(fraction=""), "gpu=4 cash/gpu=100", "cash/gpu=99", "cash/gpu=1"),
]


@pytest.mark.parametrize(("why", "budget_terms", "hard", "used", "carried"), CARRIED, ids=[row[0] for row in CARRIED])
def test_carried_hours(why: str, budget_terms: BudgetTerms, hard: str, used: str, carried: str) -> None:
    assert carried_over(budget_terms, res(hard), res(used)) == res(carried)


AMOUNTS = st.integers(0, 2**63 - 1)


@given(AMOUNTS, AMOUNTS, st.integers(0, 100), st.none() | AMOUNTS)
def test_no_more_is_carried_than_was_left(hard: int, used: int, rollover: int, cap: int | None) -> None:
    budget_terms = BudgetTerms(rollover=rollover, cap={} if cap is None else {"cash/x": cap})
    carried = carried_over(budget_terms, {"cash/x": hard}, {"cash/x": used}).get("cash/x", 0)
    assert 0 <= carried <= max(0, hard - used)
    assert cap is None or carried <= cap
    assert carried * 100 <= max(0, hard - used) * rollover
