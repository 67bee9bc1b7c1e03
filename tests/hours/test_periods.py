"""Where periods begin and end, by examples that a person can check on a calendar."""

from __future__ import annotations

import pytest

from bizrq.hours import periods
from bizrq.hours.periods import (
    NOTICE,
    Period,
    Schedule,
    ScheduleError,
    first_period,
    next_period,
    parse_schedule,
    rescheduled,
)
from tests.support.language import at

BOUNDARIES = [
    ("days begin at midnight UTC", parse_schedule("daily"), "2026-11-20T13:00Z", "2026-11-21T00:00Z"),
    ("a boundary is followed by the next", parse_schedule("daily"), "2026-11-21T00:00Z", "2026-11-22T00:00Z"),
    ("weeks begin on Mondays", parse_schedule("weekly"), "2026-11-20T13:00Z", "2026-11-23T00:00Z"),
    ("months on the first", parse_schedule("monthly"), "2026-11-20T13:00Z", "2026-12-01T00:00Z"),
    ("or at the anchor", parse_schedule("weekly", "", "2026-01-07"), "2026-11-20T13:00Z", "2026-11-25T00:00Z"),
    ("at its time", parse_schedule("daily", "", "2026-01-07T09:30"), "2026-11-20T09:30Z", "2026-11-21T09:30Z"),
    ("to the second", parse_schedule("daily", "", "2026-01-07T09:30:07"), "2026-11-20T09:30Z", "2026-11-20T09:30:07Z"),
    ("an anchor may lie ahead", parse_schedule("weekly", "", "2030-01-02"), "2026-11-20T13:00Z", "2026-11-25T00:00Z"),
    ("by the wall clock", parse_schedule("daily", "Europe/Berlin"), "2026-11-20T13:00Z", "2026-11-21T00:00+01:00"),
    (
        "which goes on at the end of summer",
        parse_schedule("weekly", "Europe/Berlin"),
        "2026-10-20T00:00Z",
        "2026-10-26T00:00+01:00",
    ),
    (
        "and at its beginning",
        parse_schedule("weekly", "Europe/Berlin"),
        "2026-03-24T00:00Z",
        "2026-03-30T00:00+02:00",
    ),
    (
        "a time that the clock skips comes later",
        parse_schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-03-28T12:00Z",
        "2026-03-29T03:30+02:00",
    ),
    (
        "one that it has twice is the first",
        parse_schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-10-24T12:00Z",
        "2026-10-25T02:30+02:00",
    ),
    (
        "and is not had again",
        parse_schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ),
    (
        "the 31st is a month's last",
        parse_schedule("monthly", "", "2026-01-31"),
        "2026-02-01T00:00Z",
        "2026-02-28T00:00Z",
    ),
    ("in a leap year too", parse_schedule("monthly", "", "2026-01-30"), "2028-02-01T00:00Z", "2028-02-29T00:00Z"),
    (
        "and itself where it is there",
        parse_schedule("monthly", "", "2026-01-31"),
        "2026-02-28T00:00Z",
        "2026-03-31T00:00Z",
    ),
    ("a year turns", parse_schedule("monthly", "", "2026-05-15"), "2026-12-15T00:00Z", "2027-01-15T00:00Z"),
    (
        "a day that a zone skipped is no day",
        parse_schedule("daily", "Pacific/Apia"),
        "2011-12-29T13:00-10:00",
        "2011-12-31T00:00+14:00",
    ),
]


@pytest.mark.parametrize(("why", "plan", "now", "then"), BOUNDARIES, ids=[row[0] for row in BOUNDARIES])
def test_the_next_boundary(why: str, plan: Schedule, now: str, then: str) -> None:
    assert plan.next_boundary(at(now)) == at(then)


def test_a_schedule_without_a_period_has_no_boundary_and_the_calendar_an_end() -> None:
    assert parse_schedule().next_boundary(at("2026-11-20T00:00Z")) is None
    assert parse_schedule("monthly").next_boundary(at("9999-12-31T00:00Z")) is None


BAD = [
    (("hourly", "", ""), "period: 'hourly' is none of daily, weekly, monthly"),
    (("daily", "Europe/Berln", ""), "timeZone: 'Europe/Berln' is no time zone: did you mean Europe/Berlin?"),
    (
        ("daily", "?", ""),
        "timeZone: '?' is no time zone: write a name of the IANA database, like Europe/Berlin",
    ),
    (
        ("daily", "../../etc/localtime", ""),
        "timeZone: '../../etc/localtime' is no time zone: write a name of the IANA database, like Europe/Berlin",
    ),
    (
        ("daily", "", "2026-02-30"),
        "anchor: '2026-02-30' is no local time: write a date like 2026-01-05, or 2026-01-05T09:00",
    ),
    (
        ("daily", "", "2026-02-20T00:00Z"),
        "anchor: '2026-02-20T00:00Z' is no local time: write a date like 2026-01-05, or 2026-01-05T09:00",
    ),
    (("", "UTC", ""), "timeZone: there is no period: write period, or leave it out"),
    (("", "", "2026-01-05"), "anchor: there is no period: write period, or leave it out"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[row[1][:40] for row in BAD])
def test_an_invalid_schedule_is_rejected_with_a_message(words: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        parse_schedule(*words)
    assert str(error.value) == message


HOUR = 3_600_000
WEEKLY, NOW = parse_schedule("weekly"), at("2026-11-18T00:00Z")
OPEN = Period(at("2026-11-16T00:00Z"), at("2026-11-23T00:00Z"))


def test_the_first_period_has_no_start_and_ends_at_the_next_boundary() -> None:
    assert first_period(WEEKLY, NOW) == Period(None, OPEN.end)
    assert first_period(parse_schedule(), NOW) == Period()


def test_a_boundary_without_notice_is_not_the_first() -> None:
    assert first_period(WEEKLY, at("2026-11-22T23:50Z")).end == at("2026-11-30T00:00Z")
    assert first_period(WEEKLY, at("2026-11-22T23:50Z") - 1).end == OPEN.end
    assert at("2026-11-22T23:50Z") + NOTICE == OPEN.end


CHANGES = [
    ("nothing changed", WEEKLY, OPEN.end, "2026-11-30T00:00Z"),
    ("an end in the past stays for a late look", WEEKLY, at("2026-11-09T00:00Z"), "2026-11-16T00:00Z"),
    ("days begin where the week ends", parse_schedule("daily"), OPEN.end, "2026-11-24T00:00Z"),
    ("a month begins with the next one", parse_schedule("monthly"), at("2026-12-01T00:00Z"), "2027-01-01T00:00Z"),
    ("a later weekday makes a longer week", parse_schedule("weekly", "", "2026-01-07"), at("2026-11-25T00:00Z"), None),
    ("an earlier one, too", parse_schedule("weekly", "", "2026-01-03"), at("2026-11-28T00:00Z"), None),
    (
        "what a zone's rules move is made up for in the next",
        parse_schedule("weekly", "", "2026-01-05T01:00"),
        OPEN.end,
        "2026-11-30T01:00Z",
    ),
    (
        "in either direction",
        parse_schedule("weekly", "", "2026-01-04T23:00"),
        OPEN.end,
        "2026-11-29T23:00Z",
    ),
    ("no period: a lifetime begins where the week ends", parse_schedule(), OPEN.end, "never"),
]


@pytest.mark.parametrize(("why", "plan", "end", "then"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_changed_schedule_begins_after_the_published_end(
    why: str, plan: Schedule, end: int, then: str | None
) -> None:
    published = OPEN if end >= (OPEN.end or 0) else Period(OPEN.start, end)
    moved = rescheduled(plan, published, NOW)
    assert moved == Period(OPEN.start, end)
    if then is not None:
        assert next_period(plan, moved) == Period(end, None if then == "never" else at(then))


def test_a_budget_that_gets_periods_ends_at_the_next_boundary() -> None:
    assert rescheduled(WEEKLY, Period(), NOW) == Period(None, OPEN.end)
    assert rescheduled(WEEKLY, Period(OPEN.end, None), NOW) == Period(OPEN.end, at("2026-11-30T00:00Z"))
    assert rescheduled(parse_schedule(), Period(), NOW) == Period()


def test_no_period_follows_one_without_end() -> None:
    with pytest.raises(ValueError, match="lifetime"):
        next_period(WEEKLY, Period())


def test_a_time_is_formatted_by_the_wall_clock() -> None:
    assert periods.format_time(OPEN.end or 0, "Europe/Berlin") == "2026-11-23T01:00:00+01:00"
    assert periods.format_time(OPEN.end or 0) == "2026-11-23T00:00:00+00:00"


def test_a_period_contains_its_start_and_not_its_end() -> None:
    start, end = OPEN.start or 0, OPEN.end or 0
    assert [OPEN.contains(each) for each in (start - 1, start, end - 1, end)] == [False, True, True, False]
    assert OPEN.overlap(start - HOUR, start + HOUR) == HOUR
    assert OPEN.overlap(start - HOUR, start) == 0
