"""Lines of the record: what is written is read again, and what is no line says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bizrq.api import hours as wire
from bizrq.api.hours import HoursUnreadable, Inferred, Running
from bizrq.quota.resources import text_of
from tests.language import res

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
