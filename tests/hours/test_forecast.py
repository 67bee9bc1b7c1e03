"""When a budget is exhausted, to the millisecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.hours.forecast import HORIZON, Budget, time_to_exhaustion, top_consumers

H = 3_600_000


@pytest.mark.parametrize(
    ("why", "budget", "within", "hours"),
    [
        ("a steady burn", Budget(100 * H, 40 * H, 20), HORIZON, 3),
        ("nothing is left", Budget(100 * H, 100 * H, 0), HORIZON, 0),
        ("more is spent than there was", Budget(100 * H, 120 * H, 1), HORIZON, 0),
        ("nothing runs", Budget(100 * H, 40 * H, 0), HORIZON, None),
        ("the period ends before", Budget(100 * H, 40 * H, 20), 3 * H, None),
        ("it ends a millisecond after", Budget(100 * H, 40 * H, 20), 3 * H + 1, 3),
        ("carried hours are spent first", Budget(100 * H, -20 * H, 20), HORIZON, 6),
        ("a child holds its ceiling", Budget(100 * H, 40 * H, 20, [Budget(40 * H, 0, 0)]), HORIZON, 1),
        (
            "a child that spends within its ceiling takes no more",
            Budget(100 * H, 0, 0, [Budget(90 * H, 0, 9)]),
            10 * H,
            None,
        ),
        # After 2 hours the child has spent its 40, and 5 are left for what both of them burn, 25 an hour.
        ("a child beyond its own does", Budget(105 * H, 50 * H, 5, [Budget(40 * H, 0, 20)]), 4 * H, 2.2),
    ],
)
def test_hours_are_exhausted_at(why: str, budget: Budget, within: int, hours: float | None) -> None:
    assert time_to_exhaustion(budget, within) == (None if hours is None else int(hours * H)), why


_AMOUNTS = st.integers(0, 10**9)
_BUDGETS = st.recursive(
    st.builds(Budget, _AMOUNTS, st.integers(-(10**9), 10**9), st.integers(0, 1000)),
    lambda below: st.builds(
        Budget, _AMOUNTS, st.integers(-(10**9), 10**9), st.integers(0, 1000), st.lists(below, max_size=3)
    ),
    max_leaves=8,
)


@given(_BUDGETS, st.integers(1, 10**8))
def test_hours_are_exhausted_at_the_first_moment_without_any_left(budget: Budget, within: int) -> None:
    out = time_to_exhaustion(budget, within)
    if out is None:
        assert budget.used(within - 1) < budget.hard
    else:
        assert 0 <= out < within
        assert budget.used(out) >= budget.hard
        assert out == 0 or budget.used(out - 1) < budget.hard


def test_the_top_consumers_have_their_shares() -> None:
    assert top_consumers({"a": 1, "b": 6, "c": 2, "d": 1, "e": 0}) == [("b", 60), ("c", 20), ("a", 10)]
    assert top_consumers({"a": 0}) == []
