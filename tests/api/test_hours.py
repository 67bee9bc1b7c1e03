"""Lines of the record: what is written is read again, and what is no line says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.api import hours as wire
from bizrq.api.group import Metadata
from bizrq.api.hours import CardHours, CardHoursSpec, HoursUnreadable, Inferred, Running
from bizrq.hours import metering
from bizrq.hours.metering import Correction, Heir, Lines, Page, Part, Rate, Total
from bizrq.hours.periods import Period
from bizrq.units.resources import text_of
from tests.support.language import res

WEB = "deployments.apps/team-a/web"
T = 1_700_000_000_000


def test_lines_read_as_they_were_written() -> None:
    assert wire.settled(wire.settled_line(WEB, {"b": 2, "a": -1})) == (WEB, {"a": -1, "b": 2})
    assert wire.settled(wire.settled_line(WEB, {})) == (WEB, {})
    for start in (None, "2026-11-16T00:00:00.000Z"):
        assert wire.late(wire.late_line(start, WEB, {"a": -5})) == (start, WEB, {"a": -5})
    runs = Running(WEB, res("gpu=1 cpu=500m"), {"uid-1": T, "claim@17": T + 1})
    assert wire.running(wire.running_line(runs.workload, text_of(runs.cost), runs.since)) == runs
    gone = Inferred(WEB, "claim@17", "A", "B", "C", res("gpu=2"))
    assert wire.inferred(wire.inferred_line(gone)) == gone


def test_a_running_line_reads_as_people_expect() -> None:
    line = wire.running_line(WEB, text_of(res("gpu=1 cpu=500m")), {"uid-2": T, "uid-1": T})
    assert line == f"{WEB} limits.cpu=500m requests.nvidia.com/gpu=1 : uid-1@{T} uid-2@{T}"


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (wire.settled, f"{WEB} gpu=x"),
        (wire.settled, f"{WEB} gpu=１"),
        (wire.settled, f"{WEB} gpu"),
        (wire.settled, f"{WEB} gpu={'9' * 61}"),
        (wire.running, f"{WEB} gpu=1 uid@1"),
        (wire.running, f"{WEB} gpu=1 : uid"),
        (wire.running, f"{WEB} gpu=many : uid@1"),
        (wire.inferred, f"{WEB} uid@1 gpu=1"),
    ],
)
def test_what_is_no_line_says_so(read: Callable[[str], object], line: str) -> None:
    with pytest.raises(HoursUnreadable):
        read(line)


# -- Pages -------------------------------------------------------------------------------------------------------------

RATE = Rate(WEB, (("limits.cpu", 500_000_000),))
LAST, OPEN = Period(None, T), Period(T, T + 7 * 86_400_000)
PAGE = Page(
    watermark=T + 5,
    periods=(
        Lines(LAST, {WEB: {"limits.cpu": 7}}),
        Lines(
            OPEN,
            {"others/team-a/": {"limits.cpu": 10**50}},
            {(None, WEB): {"limits.cpu": -3}},
            (Correction("c", {"limits.cpu": -5}, T + 1, "ann", "wrong model, by far"),),
            res("cash/cpu=1500m"),
        ),
    ),
    running={RATE: {"pod-1": T - 800_000, "claim@17": T}, Rate(WEB, ()): {"pod-2": T}},
    split=(Part("pod-3", T, T + 2, RATE),),
    finished=frozenset({"pod-0"}),
    closed=(Total(Period(None, T - 1), {"limits.cpu": 1}),),
    earlier=Total(Period(None, T - 2), {"limits.cpu": 1}),
    inferred=(metering.Inferred("pod-4", T, T + 1, T + 4, RATE),),
    inferred_earlier=3,
    inherited={"child-uid": Heir("child", (Total(OPEN, {"limits.cpu": 18_000_000_000_000_001}),))},
    applied=frozenset({"c"}),
)


def stored(page: Page, **status: Any) -> dict[str, Any]:
    found = wire.plain(CardHours(Metadata(name="nlp"), CardHoursSpec("nlp", "8f3c"), wire.status_of(page)))
    return {**found, "status": {**found["status"], **status}}


def test_a_page_is_read_as_it_was_written() -> None:
    assert wire.page_of(wire.record_of(stored(PAGE))) == PAGE
    assert wire.page_of(wire.record_of(stored(Page()))) == Page()


def test_a_record_tells_people_what_is_spent_and_runs() -> None:
    status = stored(PAGE)["status"]
    assert status["count"] == 3
    assert stored(Page(T, running={RATE: {"pod": T - 9_000_000}}))["status"]["spent"] == "limits.cpu=1.25h"
    assert status["watermark"] == "2023-11-14T22:13:20.005Z"
    assert status["open"]["start"] == "2023-11-14T22:13:20.000Z"
    assert [each.get("start") for each in status["closing"]] == [None]


def test_a_statement_has_the_lines_of_its_period_and_a_name_that_says_whose_and_when() -> None:
    made = wire.statement(CardHoursSpec("nlp", "8f3c1234-5678", 2), PAGE, PAGE.periods[1], T + 9)
    assert made.metadata.name == "nlp.20231114-2213.8f3c1234.2"
    assert made.metadata.labels == {"quota.biz.group/group": "nlp"}
    assert wire.lines_of(made.spec) == Lines(
        Period(T, T + 9), *(getattr(PAGE.periods[1], name) for name in ("settled", "late", "corrections", "carried"))
    )
    assert wire.amounts_of(made.spec.total) == PAGE.periods[1].total()
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
def test_a_page_that_cannot_be_read_says_so(why: str, status: dict[str, Any]) -> None:
    with pytest.raises(HoursUnreadable):
        wire.page_of(wire.record_of(stored(PAGE, **status)))
