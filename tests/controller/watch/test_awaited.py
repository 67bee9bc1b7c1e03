"""Which groups wait for a change of an object."""

from __future__ import annotations

from controller.watch.awaited import AwaitedChanges


def test_an_object_is_awaited_by_the_groups_whose_last_recount_said_so() -> None:
    awaited = AwaitedChanges()
    awaited.replace("nlp", ["a", "b"])
    awaited.replace("vision", ["b"])
    assert sorted(awaited.groups_of("b")) == ["nlp", "vision"]
    awaited.replace("nlp", ["b", "c"])
    assert [list(awaited.groups_of(uid)) for uid in ("a", "c")] == [[], ["nlp"]]
    awaited.replace("nlp", ())
    assert [list(awaited.groups_of(uid)) for uid in ("b", "c")] == [["vision"], []]


def test_nothing_is_kept_of_what_nobody_awaits() -> None:
    awaited = AwaitedChanges()
    awaited.replace("nlp", ["a"])
    awaited.replace("nlp", ())
    awaited.replace("gone", ())
    assert vars(awaited) == {"_groups": {}, "_uids": {}}
