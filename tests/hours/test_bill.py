"""Rows of a bill: every hour is in exactly one row, however the bill is grouped."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.hours.bill import BillLine, GroupBy, bill_rows, covering_period, rolled_up, split_by_model, totals
from bizrq.hours.periods import Period
from tests.support.catalog import CATALOG
from tests.support.language import res

LAST, NOW, EVER = Period(0, 7), Period(7, 14), Period(None, None)


def line(group: str, workload: str, amounts: str, period: Period = NOW) -> BillLine:
    return BillLine(group, period, workload.partition("/")[0], workload, res(amounts))


LINES = [
    line("nlp", "a/train", "gpu=3 gpu.A100=2 cpu=8"),
    line("nlp", "a/serve", "gpu=4 gpu.A100=4"),
    line("vision", "b/train", "gpu=1"),
    line("vision", "b/train", "gpu=5", LAST),
]
GPU = "requests.nvidia.com/gpu"


def test_rows_are_grouped_as_requested_with_the_largest_first() -> None:
    nano = 10**9
    found = [
        (r.workload, r.amount // nano)
        for r in bill_rows(LINES, [GroupBy.WORKLOAD], catalog=CATALOG)
        if r.resource == GPU
    ]
    assert found == [("b/train", 6), ("a/serve", 4), ("a/train", 3)]
    found = [
        (r.period, r.group, r.amount // nano)
        for r in bill_rows(LINES, [GroupBy.GROUP, GroupBy.PERIOD], catalog=CATALOG)
        if r.resource == GPU
    ]
    assert found == [(LAST, "vision", 5), (NOW, "nlp", 7), (NOW, "vision", 1)]
    [row] = [r for r in bill_rows(LINES, [], catalog=CATALOG) if r.resource == GPU]
    assert (row.amount // nano, row.span, row.group) == (13, Period(0, 14), None)


def test_hours_of_a_model_are_in_its_base_or_in_a_row_of_their_own() -> None:
    """Never in both: the sum of a column is what was spent."""
    assert [r.resource for r in bill_rows(LINES, [], catalog=CATALOG)] == ["limits.cpu", GPU]
    by_model = [(r.model, r.amount) for r in bill_rows(LINES, [GroupBy.MODEL], catalog=CATALOG) if r.resource == GPU]
    assert by_model == [("", 7 * 10**9), ("A100", 6 * 10**9)]


def test_a_base_without_hours_gets_those_of_its_models() -> None:
    assert split_by_model(res("cpu.A4=2"), CATALOG) == {("limits.cpu", "A4"): 2 * 10**9}
    assert split_by_model({"requests.nvidia.com/gpu.shared": 1}, CATALOG) == {("requests.nvidia.com/gpu.shared", ""): 1}


def test_groups_include_their_subtree() -> None:
    above = {"nlp": ["corp", "ai"], "vision": ["corp"]}
    found = bill_rows(rolled_up(LINES, above.__getitem__), [GroupBy.GROUP], catalog=CATALOG)
    assert {r.group: r.amount // 10**9 for r in found if r.resource == GPU} == {
        "corp": 13, "ai": 7, "nlp": 7, "vision": 6,
    }  # fmt: skip


@pytest.mark.parametrize(("periods", "whole"), [([LAST, NOW], Period(0, 14)), ([LAST, EVER], EVER), ([NOW], NOW)])
def test_a_span_is_from_the_first_start_to_the_last_end(periods: list[Period], whole: Period) -> None:
    assert covering_period(periods) == whole


_NAMES = st.sampled_from([GPU, f"{GPU}.A100", f"{GPU}.T4", "limits.cpu", "limits.cpu.A4", "cards.nvidia.com/gpu"])
_LINES = st.lists(
    st.builds(
        BillLine,
        st.sampled_from(["corp", "ai", "nlp"]),
        st.sampled_from([LAST, NOW, EVER]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["", "a/x", "b/x"]),
        st.dictionaries(_NAMES, st.integers(-(10**30), 10**30)),
    ),
    max_size=8,
)


@given(_LINES, st.sampled_from(list(chain.from_iterable(combinations(GroupBy, n) for n in range(6)))))
def test_rows_add_up_to_the_same_total_however_they_are_grouped(lines: list[BillLine], by: tuple[GroupBy, ...]) -> None:
    """No grouping loses an hour or bills it twice."""
    whole = {name: n for name, n in totals(bill_rows(lines, [], catalog=CATALOG)).items() if n}
    assert {name: n for name, n in totals(bill_rows(lines, by, catalog=CATALOG)).items() if n} == whole
    for name in (GPU, "limits.cpu"):
        if all(name in each.amounts for each in lines):
            assert whole.get(name, 0) == sum(each.amounts[name] for each in lines)
