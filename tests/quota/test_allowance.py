"""What an allowance admits, what a count and a recall make of notes, and the text of a journal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from bizrq.quota.allowance import (
    Journal,
    JournalUnreadable,
    Line,
    fold,
    is_line,
    is_line_text,
    is_noted,
    is_plain,
    line_of,
    looked_at,
    may_admit,
    needs_count,
    needs_recall,
    sized,
    spent,
    without_lines,
)
from bizrq.quota.reservation import parse_reservation, reserved_total
from bizrq.units.slot import ReservationError
from tests.support.language import NOW, account, create, entry, res, update

LINE = Line("j", 7, 2, res("cpu=6"), seen=3, since=NOW)


def journal(*creates: str, last: int = 3, group: str = "nlp", epoch: int = 7) -> Journal:
    """A journal with a note of each create, such as `web cpu=2`, numbered from `last` on."""
    found = Journal(last)
    for text in creates:
        place, _, amount = text.partition(" ")
        found = found.with_note(group, epoch, entry(place, amount))
    return found


def test_a_line_is_an_entry_that_any_version_reads_and_counts() -> None:
    text = LINE.entry.line
    assert text == ("v1 processes.quota.biz.group//j uid=7 gen=2 until=2023-11-14T22:13:20.000Z seen=3 limits.cpu=6")
    stored = parse_reservation(text)
    assert is_line(stored)
    assert Line.of(stored) == LINE
    assert reserved_total([stored]) == res("cpu=6")


def test_a_workload_that_is_called_like_a_line_is_none() -> None:
    """Anybody may give such a name: an edit of the group must not wait for it."""
    assert is_line_text(LINE.entry.line)
    assert not is_line_text(entry("processes.quota.biz.group", "cpu=1").line)


@pytest.mark.parametrize("change", [{"others": ()}, {"others": ("seen=x",)}, {"uid": "a-uid"}])
def test_an_entry_of_that_kind_that_says_too_little_is_not_believed(change: dict[str, object]) -> None:
    with pytest.raises(ReservationError):
        Line.of(replace(LINE.entry, **change))


def test_a_line_admits_what_fits_beside_the_notes_after_the_last_that_was_moved() -> None:
    noted = journal("a cpu=2", "b cpu=3")
    taken = spent(noted.after("nlp", LINE))
    assert may_admit(LINE, taken, entry("c", "cpu=1"))
    assert not may_admit(LINE, taken, entry("c", "cpu=2"))
    moved = replace(LINE, seen=4)
    assert may_admit(moved, spent(noted.after("nlp", moved)), entry("c", "cpu=3"))


def test_a_line_admits_nothing_of_a_name_that_it_does_not_have() -> None:
    assert not may_admit(LINE, {}, entry("c", "cpu=1 gpu=1"))
    assert may_admit(LINE, {}, entry("c", "cpu=1 gpu=0"))


def test_notes_of_another_epoch_or_group_are_not_the_lines() -> None:
    assert journal("a cpu=2", epoch=6).after("nlp", LINE) == ()
    assert journal("a cpu=2", group="vision").after("nlp", LINE) == ()


def test_a_fold_moves_amounts_and_leaves_the_sum() -> None:
    before = [entry("web", "cpu=1"), LINE.entry]
    entries, left = fold(before, LINE, journal("a cpu=2", "b cpu=3").notes)
    assert {each.slot.name for each in entries} == {"web", "a", "b"}
    assert (left.seen, left.amount) == (5, res("cpu=1"))
    assert reserved_total([*entries, left.entry]) == reserved_total(before)
    assert fold([*entries, left.entry], left, journal("a cpu=2", "b cpu=3").notes) == (entries, left)


def test_a_fold_of_a_write_that_has_an_entry_keeps_one() -> None:
    entries, left = fold([entry("a", "cpu=2"), LINE.entry], LINE, journal("a cpu=3").notes)
    assert [each.amount for each in entries] == [res("cpu=3")]
    assert left.amount == res("cpu=3")


def test_what_a_recall_keeps_is_marked_until_a_count() -> None:
    entries, _ = fold([LINE.entry], LINE, journal("a cpu=2").notes, noted=True)
    assert all(map(is_noted, entries))
    assert parse_reservation(entries[0].line).others == ("noted=1",)
    assert looked_at(entries) == [entry("a", "cpu=2")]


def test_a_refusal_asks_for_a_recall_only_where_that_would_help() -> None:
    full = account("nlp cpu=10", "cpu=3", [LINE.entry])
    assert needs_recall(full, create("web", "cpu=7"), NOW)
    assert not needs_recall(full, create("web", "cpu=8"), NOW)
    assert not needs_recall(account("nlp cpu=10", "cpu=9"), create("web", "cpu=7"), NOW)


def test_a_refusal_waits_for_a_count_only_where_a_recalled_note_matters() -> None:
    noted, _ = fold([LINE.entry], LINE, journal("a cpu=2").notes, noted=True)
    assert needs_count(account("nlp cpu=10", "cpu=8", noted), create("web", "cpu=2"), NOW)
    assert not needs_count(account("nlp cpu=10", "cpu=9", noted), create("web", "cpu=2"), NOW)
    assert not needs_count(account("nlp cpu=10", "cpu=8", looked_at(noted)), create("web", "cpu=2"), NOW)


def test_only_plain_creates_are_noted() -> None:
    assert is_plain(create("web", "cpu=1"))
    assert not is_plain(update("web", "cpu=1", "cpu=2"))
    assert not is_plain(structs.replace(create("web", "cpu=1"), is_shared=True))
    assert not is_plain(structs.replace(create("web", "cpu=1"), adopts=res("cpu=1")))
    assert not is_plain(create("group c", "cpu=1"))


def test_a_recall_is_for_its_epoch_and_the_earlier_ones() -> None:
    marked = Journal().recall("nlp", 7)
    assert marked.is_recalled("nlp", 7)
    assert marked.is_recalled("nlp", 6)
    assert not marked.is_recalled("nlp", 8)
    assert not marked.is_recalled("vision", 7)
    assert marked.recall("nlp", 6) == marked


def test_a_journal_keeps_what_a_known_version_does_not_hold() -> None:
    known = journal("a cpu=1", "b cpu=1").recall("nlp", 7)
    moved = replace(LINE, seen=4).entry
    assert [note.number for note in known.pruned("j", "nlp", 9, [moved]).notes] == [5]
    assert known.pruned("j", "nlp", 9, [moved]).recalled == known.recalled
    # Of a version before the line nothing is known; after it the line is gone for ever.
    assert known.pruned("j", "nlp", 7, []) == known
    assert known.pruned("j", "nlp", 8, []) == Journal(5)
    assert known.pruned("j", "vision", 8, []) == known


def test_a_journal_is_read_as_it_is_written() -> None:
    known = journal("a cpu=1", "b cpu=1 gpu=1")
    assert Journal.parse(str(known)) == known
    assert Journal.parse(str(known), [("nlp", 7), ("nlp", 6)]) == known.recall("nlp", 7)


@pytest.mark.parametrize(
    "text",
    ["", "last x", "note 1 2 nlp v1 nothing", "last 1\nnote 2 7 nlp " + entry("a", "cpu=1").line, "last 1\nmore"],
)
def test_a_journal_that_cannot_be_read_is_not_believed(text: str) -> None:
    with pytest.raises(JournalUnreadable):
        Journal.parse(text)


def test_lines_are_a_quarter_of_what_is_free_and_worth_their_while() -> None:
    assert sized(res("cpu=800"), 2, res("cpu=1")) == res("cpu=100")
    assert sized(res("cpu=100000"), 2, res("cpu=1")) == res("cpu=256")
    assert sized(res("cpu=63"), 2, res("cpu=1")) == {}
    assert sized(res("cpu=64 gpu=1000"), 2, res("cpu=1 gpu=1")) == res("cpu=8 gpu=125")
    assert sized(res("cpu=64"), 2, res("cpu=1 gpu=1")) == {}


def test_the_line_of_a_process_is_found_by_its_journal() -> None:
    entries = [entry("web", "cpu=1"), LINE.entry, replace(LINE, holder="k").entry]
    assert line_of(entries, "j") == LINE
    assert line_of(entries, "l") is None
    assert without_lines(entries) == [entries[0]]
