"""The page that each line of a record goes to: a change costs the pages that it changes, and no line is missing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.workloads.ownership import pages
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.pages import Layout, Page, lay_out
from bizrq.workloads.ownership.runs_on import RunsOn

T = 1_700_000_000_000
POD = RunsOn("a/p", "Job/a/j", T)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_LINES", 2)
    monkeypatch.setattr(pages, "MAX_PAGES", 4)


def payers(uids: str, gone: int | None = None) -> dict[str, Memory]:
    return {uid: Memory("nlp", f"Job/a/{uid}", T, gone) for uid in uids}


def record(*uids: str) -> dict[int, Page]:
    """The pages of a record, the uids of each as one word."""
    return {number: Page(payers(each)) for number, each in enumerate(uids)}


def places(record: Mapping[int, Page]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, page in record.items():
        for uid in page.payers:
            found[uid] = (*found.get(uid, ()), number)
    return found


def laid_out(before: Mapping[int, Page], put: str = "", drop: str = "", runs_on: str = "") -> Layout:
    return lay_out(before, places(before), payers(put, T + 1), drop, dict.fromkeys(runs_on, POD))


def shown(layout: Layout) -> dict[int, str]:
    """What is stored, in that order."""
    return {number: "".join(sorted(page.payers)) for number, page in layout.pages.items()}


def test_a_new_line_goes_to_the_first_page_with_room() -> None:
    assert shown(laid_out({}, "ab")) == {0: "ab"}
    assert shown(laid_out({}, "abc")) == {0: "ab", 1: "c"}
    assert shown(laid_out(record("ab", "c", "d"), "ef")) == {1: "ce", 2: "df"}


def test_a_line_that_changes_stays_on_its_page() -> None:
    found = laid_out(record("ab", "cd"), "c")
    assert shown(found) == {1: "cd"}
    assert found.pages[1].payers["c"] == Memory("nlp", "Job/a/c", T, T + 1)


def test_a_line_that_is_dropped_makes_room() -> None:
    assert shown(laid_out(record("ab", "cd"), "e", "a")) == {0: "be"}


def test_what_changes_nothing_stores_nothing() -> None:
    assert laid_out(record("ab", "c")).pages == {}
    assert laid_out(record("ab", "c"), drop="x").pages == {}


def test_what_finds_no_page_is_named_and_all_else_stored() -> None:
    found = laid_out(record("ab", "cd", "ef", "g"), "xya")
    assert shown(found) == {0: "ab", 3: "gx"}
    assert found.left_out == {"y"}


def test_a_page_of_an_older_version_is_split_and_every_line_is_stored_elsewhere_first() -> None:
    found = laid_out(record("abcde"), "f")
    assert shown(found) == {1: "cf", 2: "de", 0: "ab"}
    assert [*found.pages][-1] == 0
    assert shown(laid_out(record("abcdefgh", "x", "yz"))) == {1: "cx", 3: "de", 0: "abfgh"}, "as far as there is room"


def test_a_split_that_was_interrupted_goes_on() -> None:
    assert shown(laid_out(record("abcd", "c"))) == {1: "cd", 0: "ab"}


def test_a_line_never_moves_to_a_page_that_is_stored_after_its_own() -> None:
    assert shown(laid_out(record("abcd", "a", "a"), "a")) == {2: "ad", 0: "bc", 1: ""}
    assert shown(laid_out(record("abc", "def", "gh"), drop="e")) == {3: "c", 0: "ab", 1: "df"}


def test_a_page_that_is_emptied_has_room() -> None:
    assert shown(laid_out(record("ab", "cd"), "ef", "ab")) == {0: "ef"}


def test_of_lines_of_several_pages_the_last_changes_and_the_others_go_after_it() -> None:
    assert shown(laid_out(record("ab", "a"), "a")) == {1: "a", 0: "b"}
    assert shown(laid_out(record("ab", "a"), drop="a")) == {0: "b", 1: ""}


def test_pods_that_vanished_take_room_and_leave_when_they_are_over() -> None:
    before = {0: Page(payers("a"), {"p": POD}), 1: Page(payers("b"))}
    assert laid_out(before, runs_on="p").pages == {}
    found = laid_out(before, "c", runs_on="pq")
    assert {number: (*page.payers, *page.runs_on) for number, page in found.pages.items()} == {
        1: ("b", "c"),
        2: ("q",),
    }
    assert laid_out(before).pages == {0: Page(payers("a"))}
    twice = {0: Page({}, {"p": POD}), 1: Page({}, {"p": POD})}
    assert laid_out(twice, runs_on="p").pages == {1: Page()}


@given(st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=4), st.sets(st.sampled_from("abcdxyz")), st.data())
def test_no_line_is_missing_at_any_moment(uids: list[set[str]], put: set[str], data: st.DataObject) -> None:
    before = record(*("".join(sorted(each)) for each in uids))
    drop = data.draw(st.sets(st.sampled_from("abcdefgh").filter(lambda uid: uid not in put)))
    found = lay_out(before, places(before), payers("".join(sorted(put)), T + 1), drop, {})
    kept = {uid for page in before.values() for uid in page.payers} - drop
    stored = dict(before)
    for number, page in found.pages.items():
        stored[number] = page
        assert kept <= {uid for each in stored.values() for uid in each.payers}
    assert len(stored) <= 4
    left = {uid for each in stored.values() for uid in each.payers}
    assert left == (kept | put) - (found.left_out - kept)
    for number, page in found.pages.items():
        assert len(page) <= max(2, len(before.get(number, Page())))
    for uid in put - found.left_out:
        assert [page.payers[uid].gone for page in stored.values() if uid in page.payers] == [T + 1]
