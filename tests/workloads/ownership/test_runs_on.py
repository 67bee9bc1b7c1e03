"""The line of a pod that has vanished can be read again, and what is no line is named."""

from __future__ import annotations

import pytest

from bizrq.workloads.ownership import runs_on
from bizrq.workloads.ownership.runs_on import (
    RunsOn,
    RunsOnUnreadable,
    latest,
    parse_runs_on,
    problem_of,
    readable,
    runs_on_line,
    runs_on_lines,
)
from tests.support.language import res

T = 1_800_000_000_000
POD = RunsOn("team-a/web-1-x", "Deployment/team-a/web", T, res("cpu=1500m mem=1Gi"))
LINE = "v1 p until=2027-01-15T08:00:00.000Z team-a/web-1-x Deployment/team-a/web "


def test_a_line_can_be_read_again() -> None:
    assert runs_on_line("p", POD).startswith(LINE[:-1])
    assert parse_runs_on(runs_on_line("p", POD)) == ("p", POD)
    assert parse_runs_on(LINE.strip()) == ("p", RunsOn(POD.pod, POD.place, T))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "v2" + LINE[2:].strip(),
        LINE.replace("v1 p", "v1 ").strip(),
        LINE.replace("2027", "soon").strip(),
        LINE + "limits.cpu",
        LINE + "limits.cpu=much",
        LINE + "limits.cpu=1 limits.cpu=2",
        "v1 p until=2027-01-15T08:00:00.000Z team-a/web-1-x",
    ],
)
def test_what_is_no_line_is_named_and_harms_no_other(line: str) -> None:
    with pytest.raises(RunsOnUnreadable):
        parse_runs_on(line)
    good = runs_on_line("p", POD)
    assert problem_of([good, line])
    assert (problem_of([good]), readable([line, good])) == ("", {"p": POD})


def test_of_too_many_those_that_end_last_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_on, "MAX_LINES", 2)
    pods = {uid: RunsOn("a/b", "Job/a/c", T + end * 1000) for uid, end in (("x", 1), ("y", 3), ("z", 2))}
    assert [line.split()[1] for line in runs_on_lines(latest(pods))] == ["y", "z"]
