"""Where periods begin and end, by examples that a person can check on a calendar."""

from __future__ import annotations

import pytest

from bizrq.hours import periods
from bizrq.hours.periods import NOTICE, Period, Schedule, ScheduleError, as_scheduled, first, following, schedule
from tests.support.language import at

BOUNDARIES = [
    ("days begin at midnight UTC", schedule("daily"), "2026-11-20T13:00Z", "2026-11-21T00:00Z"),
    ("a boundary is followed by the next", schedule("daily"), "2026-11-21T00:00Z", "2026-11-22T00:00Z"),
    ("weeks begin on Mondays", schedule("weekly"), "2026-11-20T13:00Z", "2026-11-23T00:00Z"),
    ("months on the first", schedule("monthly"), "2026-11-20T13:00Z", "2026-12-01T00:00Z"),
    ("or where the anchor says", schedule("weekly", "", "2026-01-07"), "2026-11-20T13:00Z", "2026-11-25T00:00Z"),
    ("at its time", schedule("daily", "", "2026-01-07T09:30"), "2026-11-20T09:30Z", "2026-11-21T09:30Z"),
    ("to the second", schedule("daily", "", "2026-01-07T09:30:07"), "2026-11-20T09:30Z", "2026-11-20T09:30:07Z"),
    ("an anchor may lie ahead", schedule("weekly", "", "2030-01-02"), "2026-11-20T13:00Z", "2026-11-25T00:00Z"),
    ("by the wall clock", schedule("daily", "Europe/Berlin"), "2026-11-20T13:00Z", "2026-11-21T00:00+01:00"),
    (
        "which goes on at the end of summer",
        schedule("weekly", "Europe/Berlin"),
        "2026-10-20T00:00Z",
        "2026-10-26T00:00+01:00",
    ),
    (
        "and at its beginning",
        schedule("weekly", "Europe/Berlin"),
        "2026-03-24T00:00Z",
        "2026-03-30T00:00+02:00",
    ),
    (
        "a time that the clock skips comes later",
        schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-03-28T12:00Z",
        "2026-03-29T03:30+02:00",
    ),
    (
        "one that it has twice is the first",
        schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-10-24T12:00Z",
        "2026-10-25T02:30+02:00",
    ),
    (
        "and is not had again",
        schedule("daily", "Europe/Berlin", "2026-01-01T02:30"),
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ),
    ("the 31st is a month's last", schedule("monthly", "", "2026-01-31"), "2026-02-01T00:00Z", "2026-02-28T00:00Z"),
    ("in a leap year too", schedule("monthly", "", "2026-01-30"), "2028-02-01T00:00Z", "2028-02-29T00:00Z"),
    ("and itself where it is there", schedule("monthly", "", "2026-01-31"), "2026-02-28T00:00Z", "2026-03-31T00:00Z"),
    ("a year turns", schedule("monthly", "", "2026-05-15"), "2026-12-15T00:00Z", "2027-01-15T00:00Z"),
    (
        "a day that a zone skipped is no day",
        schedule("daily", "Pacific/Apia"),
        "2011-12-29T13:00-10:00",
        "2011-12-31T00:00+14:00",
    ),
]


@pytest.mark.parametrize(("why", "plan", "now", "then"), BOUNDARIES, ids=[row[0] for row in BOUNDARIES])
def test_the_next_boundary(why: str, plan: Schedule, now: str, then: str) -> None:
    assert plan.after(at(now)) == at(then)


def test_a_lifetime_has_no_boundary_and_the_calendar_an_end() -> None:
    assert schedule().after(at("2026-11-20T00:00Z")) is None
    assert schedule("monthly").after(at("9999-12-31T00:00Z")) is None


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
def test_what_is_no_schedule_is_refused_in_words(words: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ScheduleError) as error:
        schedule(*words)
    assert str(error.value) == message


HOUR = 3_600_000
WEEKLY, NOW = schedule("weekly"), at("2026-11-18T00:00Z")
OPEN = Period(at("2026-11-16T00:00Z"), at("2026-11-23T00:00Z"))


def test_the_first_period_begins_with_everything_and_ends_at_the_next_boundary() -> None:
    assert first(WEEKLY, NOW) == Period(None, OPEN.end)
    assert first(schedule(), NOW) == Period()


def test_a_boundary_that_comes_too_soon_to_be_told_is_not_the_first() -> None:
    assert first(WEEKLY, at("2026-11-22T23:50Z")).end == at("2026-11-30T00:00Z")
    assert first(WEEKLY, at("2026-11-22T23:50Z") - 1).end == OPEN.end
    assert at("2026-11-22T23:50Z") + NOTICE == OPEN.end


CHANGES = [
    ("nothing changed", WEEKLY, OPEN.end, "2026-11-30T00:00Z"),
    ("an end that is over stays for whoever looks late", WEEKLY, at("2026-11-09T00:00Z"), "2026-11-16T00:00Z"),
    ("days begin where the week ends", schedule("daily"), OPEN.end, "2026-11-24T00:00Z"),
    ("a month begins with the next one", schedule("monthly"), at("2026-12-01T00:00Z"), "2027-01-01T00:00Z"),
    ("a later weekday makes a longer week", schedule("weekly", "", "2026-01-07"), at("2026-11-25T00:00Z"), None),
    ("an earlier one, too", schedule("weekly", "", "2026-01-03"), at("2026-11-28T00:00Z"), None),
    (
        "what a zone's rules move is made up for in the next",
        schedule("weekly", "", "2026-01-05T01:00"),
        OPEN.end,
        "2026-11-30T01:00Z",
    ),
    (
        "in either direction",
        schedule("weekly", "", "2026-01-04T23:00"),
        OPEN.end,
        "2026-11-29T23:00Z",
    ),
    ("no period: a lifetime begins where the week ends", schedule(), OPEN.end, "never"),
]


@pytest.mark.parametrize(("why", "plan", "end", "then"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_changed_schedule_begins_after_the_end_that_was_told(
    why: str, plan: Schedule, end: int, then: str | None
) -> None:
    told = OPEN if end >= (OPEN.end or 0) else Period(OPEN.start, end)
    moved = as_scheduled(plan, told, NOW)
    assert moved == Period(OPEN.start, end)
    if then is not None:
        assert following(plan, moved) == Period(end, None if then == "never" else at(then))


def test_a_lifetime_ends_at_the_next_boundary_of_a_schedule_that_it_is_given() -> None:
    assert as_scheduled(WEEKLY, Period(), NOW) == Period(None, OPEN.end)
    assert as_scheduled(WEEKLY, Period(OPEN.end, None), NOW) == Period(OPEN.end, at("2026-11-30T00:00Z"))
    assert as_scheduled(schedule(), Period(), NOW) == Period()


def test_after_a_lifetime_comes_nothing() -> None:
    with pytest.raises(ValueError, match="lifetime"):
        following(WEEKLY, Period())


def test_an_instant_reads_as_the_wall_clock_has_it() -> None:
    assert periods.text(OPEN.end or 0, "Europe/Berlin") == "2026-11-23T01:00:00+01:00"
    assert periods.text(OPEN.end or 0) == "2026-11-23T00:00:00+00:00"


def test_a_period_holds_its_start_and_not_its_end() -> None:
    start, end = OPEN.start or 0, OPEN.end or 0
    assert [OPEN.holds(each) for each in (start - 1, start, end - 1, end)] == [False, True, True, False]
    assert OPEN.within(start - HOUR, start + HOUR) == HOUR
    assert OPEN.within(start - HOUR, start) == 0
