"""Money is an exact sum of fractions that is rounded once."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.builtin import builtin_catalog
from bizrq.figures.hours.prices import costs_of, format_money, micros, parse_prices
from bizrq.hours.bill import BillLine, GroupBy, bill_rows
from bizrq.hours.periods import ALL_TIME

CATALOG = builtin_catalog()
GPU = "requests.nvidia.com/gpu"


@pytest.mark.parametrize(
    ("cost", "text", "millionths"),
    [
        (Fraction(0), "0.00", 0),
        (Fraction(1, 200), "0.01", 5_000),
        (Fraction(-1, 200), "-0.01", -5_000),
        (Fraction(-1, 300), "0.00", -3_333),
        (Fraction(10**20) + Fraction(1, 3), "100000000000000000000.33", 10**26 + 333_333),
        (None, "?", None),
    ],
)
def test_money_is_rounded_to_the_nearest(cost: Fraction | None, text: str, millionths: int | None) -> None:
    assert (format_money(cost), micros(cost)) == (text, millionths)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(min_value=-(10**22), max_value=10**22),
            st.integers(min_value=0, max_value=10**20),
        ),
        max_size=12,
    ),
    st.decimals(min_value=0, max_value=10**6, places=9),
)
def test_the_costs_of_any_columns_add_up_to_the_same_total(lines: list[tuple[str, int, int]], price: object) -> None:
    prices = parse_prices([f"{GPU}={price:f}", f"{GPU}.A100=0.1"], "EUR", CATALOG)
    assert prices is not None
    spent = [
        BillLine(group, ALL_TIME, "", f"w{number}", {GPU: other + model, f"{GPU}.A100": model})
        for number, (group, other, model) in enumerate(lines)
    ]
    sums = {
        costs_of(spent, by, prices).total(bill_rows(spent, by, catalog=CATALOG))
        for by in ([], [GroupBy.GROUP], [GroupBy.WORKLOAD], [GroupBy.MODEL, GroupBy.GROUP], [GroupBy.PERIOD])
    }
    hour = 3_600_000 * 10**9
    expected = sum((Fraction(str(price)) * other + Fraction("0.1") * model) / hour for _, other, model in lines)
    assert sums == {Fraction(expected)}
