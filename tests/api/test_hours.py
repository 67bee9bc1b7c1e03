"""Lines of a record: they read back, and invalid ones are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.api import hours as wire
from bizrq.api.group import ObjectMeta
from bizrq.api.hours import CardHours, CardHoursSpec, HoursUnreadable, InferredLine, RunningLine
from bizrq.hours import metering
from bizrq.hours.metering import ClosedPeriod, Correction, Inherited, PeriodTotals, RecordPage, Segment, UsageRate
from bizrq.hours.periods import Period
from bizrq.units.resources import text_of
from tests.support.language import res

WEB = "deployments.apps/team-a/web"
T = 1_700_000_000_000


def test_lines_read_back() -> None:
    assert wire.parse_settled(wire.settled_line(WEB, {"b": 2, "a": -1})) == (WEB, {"a": -1, "b": 2})
    assert wire.parse_settled(wire.settled_line(WEB, {})) == (WEB, {})
    for start in (None, "2026-11-16T00:00:00.000Z"):
        assert wire.parse_late(wire.late_line(start, WEB, {"a": -5})) == (start, WEB, {"a": -5})
    runs = RunningLine(WEB, res("gpu=1 cpu=500m"), {"uid-1": T, "claim@17": T + 1})
    assert wire.parse_running(wire.running_line(runs.workload, text_of(runs.cost), runs.since)) == runs
    gone = InferredLine(WEB, "claim@17", "A", "B", "C", res("gpu=2"))
    assert wire.parse_inferred(wire.inferred_line(gone)) == gone


def test_the_format_of_a_running_line() -> None:
    line = wire.running_line(WEB, text_of(res("gpu=1 cpu=500m")), {"uid-2": T, "uid-1": T})
    assert line == f"{WEB} limits.cpu=500m requests.nvidia.com/gpu=1 : uid-1@{T} uid-2@{T}"


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (wire.parse_settled, f"{WEB} gpu=x"),
        (wire.parse_settled, f"{WEB} gpu=１"),
        (wire.parse_settled, f"{WEB} gpu"),
        (wire.parse_settled, f"{WEB} gpu={'9' * 61}"),
        (wire.parse_running, f"{WEB} gpu=1 uid@1"),
        (wire.parse_running, f"{WEB} gpu=1 : uid"),
        (wire.parse_running, f"{WEB} gpu=many : uid@1"),
        (wire.parse_inferred, f"{WEB} uid@1 gpu=1"),
    ],
)
def test_an_invalid_line_is_rejected(read: Callable[[str], object], line: str) -> None:
    with pytest.raises(HoursUnreadable):
        read(line)


# -- Pages -------------------------------------------------------------------------------------------------------------

RATE = UsageRate(WEB, (("limits.cpu", 500_000_000),))
LAST, OPEN = Period(None, T), Period(T, T + 7 * 86_400_000)
PAGE = RecordPage(
    watermark=T + 5,
    periods=(
        PeriodTotals(LAST, {WEB: {"limits.cpu": 7}}),
        PeriodTotals(
            OPEN,
            {"others/team-a/": {"limits.cpu": 10**50}},
            {(None, WEB): {"limits.cpu": -3}},
            (Correction("c", {"limits.cpu": -5}, T + 1, "ann", "wrong model, by far"),),
            res("cash/cpu=1500m"),
        ),
    ),
    running={RATE: {"pod-1": T - 800_000, "claim@17": T}, UsageRate(WEB, ()): {"pod-2": T}},
    split=(Segment("pod-3", T, T + 2, RATE),),
    finished=frozenset({"pod-0"}),
    closed=(ClosedPeriod(Period(None, T - 1), {"limits.cpu": 1}),),
    earlier=ClosedPeriod(Period(None, T - 2), {"limits.cpu": 1}),
    inferred=(metering.InferredInterval("pod-4", T, T + 1, T + 4, RATE),),
    inferred_earlier=3,
    inherited={"child-uid": Inherited("child", (ClosedPeriod(OPEN, {"limits.cpu": 18_000_000_000_000_001}),))},
    applied=frozenset({"c"}),
)


def stored(page: RecordPage, **status: Any) -> dict[str, Any]:
    found = wire.to_json(CardHours(ObjectMeta(name="nlp"), CardHoursSpec("nlp", "8f3c"), wire.status_of(page)))
    return {**found, "status": {**found["status"], **status}}


def test_a_page_reads_back() -> None:
    assert wire.page_of(wire.record_of(stored(PAGE))) == PAGE
    assert wire.page_of(wire.record_of(stored(RecordPage()))) == RecordPage()


def test_a_record_shows_spent_hours_and_what_runs() -> None:
    status = stored(PAGE)["status"]
    assert status["count"] == 3
    assert stored(RecordPage(T, running={RATE: {"pod": T - 9_000_000}}))["status"]["spent"] == "limits.cpu=1.25h"
    assert status["watermark"] == "2023-11-14T22:13:20.005Z"
    assert status["open"]["start"] == "2023-11-14T22:13:20.000Z"
    assert [each.get("start") for each in status["closing"]] == [None]


def test_a_statement_has_the_lines_of_its_period_and_is_named_by_group_and_start() -> None:
    made = wire.statement(CardHoursSpec("nlp", "8f3c1234-5678", 2), PAGE, PAGE.periods[1], T + 9)
    assert made.metadata.name == "nlp.20231114-2213.8f3c1234.2"
    assert made.metadata.labels == {"quota.biz.group/group": "nlp"}
    assert wire.period_totals(made.spec) == PeriodTotals(
        Period(T, T + 9), *(getattr(PAGE.periods[1], name) for name in ("settled", "late", "corrections", "carried"))
    )
    assert wire.parse_amounts(made.spec.total) == PAGE.periods[1].total()
    assert len(made.spec.inferred) == 1
    first = wire.statement(CardHoursSpec("nlp", "8f3c1234-5678"), PAGE, PAGE.periods[0], T)
    assert first.metadata.name == "nlp.0.8f3c1234"
    assert first.spec.inferred == []


BAD_PAGES: list[tuple[str, dict[str, Any]]] = [
    ("a watermark that is no time", {"watermark": "soon"}),
    ("a total that is no integer", {"open": {"settled": [f"{WEB} limits.cpu=1.5"]}}),
    ("a total of other digits", {"open": {"settled": [f"{WEB} limits.cpu=٣"]}}),
    ("a total without end", {"open": {"settled": [f"{WEB} limits.cpu={'9' * 61}"]}}),
    ("a period that begins at no time", {"closing": [{"start": "soon"}]}),
    ("a stay without a start", {"running": [f"{WEB} limits.cpu=1 : pod-1"]}),
    ("a stay that is empty", {"running": [""]}),
    ("a stay with an amount that is none", {"running": [f"{WEB} limits.cpu : pod-1@1"]}),
    ("a stay of more digits than any sum", {"running": [f"{WEB} limits.cpu={'9' * 61} : pod-1@1"]}),
    ("a part without an end", {"split": [f"{WEB} limits.cpu=1 : pod-1@1"]}),
    ("hours that are no amount", {"inherited": [{"uid": "u", "name": "n", "parts": [{"total": {"cpu": "x"}}]}]}),
    ("hours with a suffix", {"inherited": [{"uid": "u", "name": "n", "parts": [{"total": {"cpu": "5k"}}]}]}),
    ("an amount that is a number", {"earlier": {"total": {"cpu": 5}}}),
]


@pytest.mark.parametrize(("why", "status"), BAD_PAGES, ids=[row[0] for row in BAD_PAGES])
def test_an_unreadable_page_is_rejected(why: str, status: dict[str, Any]) -> None:
    with pytest.raises(HoursUnreadable):
        wire.page_of(wire.record_of(stored(PAGE, **status)))
