"""In which format reservations are written, by what everybody reads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from bizrq.quota import reservation
from bizrq.quota.reservation import is_known_format, is_newer, newest_common, parse_reservation

ENTRY = "deployments.apps/default/web uid=u until=2026-01-01T00:00:00.000Z limits.cpu=1"


@pytest.fixture(autouse=True)
def _two_formats(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reservation, "FORMATS", ("v1", "v2"))
    yield
    parse_reservation.cache_clear()


@pytest.mark.parametrize(
    ("readers", "written"),
    [
        ([], "v2"),
        ([("v1", "v2"), ("v1", "v2", "v3")], "v2"),
        ([("v1", "v2"), ("v1",)], "v1"),
        ([("v3",)], "v1"),
        ([()], "v1"),
    ],
)
def test_the_newest_format_that_everybody_reads_is_written(readers: list[tuple[str, ...]], written: str) -> None:
    assert newest_common(readers) == written


def test_a_format_that_is_not_known_is_newer_than_those_that_are() -> None:
    order = ("v1", "v2", "v3")
    for one, _ in enumerate(order):
        for other, _ in enumerate(order):
            assert is_newer(order[one], order[other]) is (one > other)


def test_an_entry_of_a_known_format_is_read_and_no_other() -> None:
    assert parse_reservation(f"v2 {ENTRY}").uid == "u"
    assert is_known_format(f"v2 {ENTRY}")
    assert not is_known_format(f"v3 {ENTRY}")
    assert not is_known_format(f"v2{ENTRY}")


def test_entries_that_were_read_once_are_not_kept_for_long() -> None:
    """A group that admits all day has new entries all the time: a process would grow by what it remembers of them."""

    def read(count: int) -> None:
        for number in range(count):
            slot = f"v1 deployments.apps/x/{count}-{number} uid=6e0c4d4f-46ac-4d9c-8d1d-5d0b8a4a5b0e"
            parse_reservation(f"{slot} until=2030-01-01T00:00:00.000Z limits.cpu=3")

    read(3_000)
    tracemalloc.start()
    try:
        read(20_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 6_000_000
