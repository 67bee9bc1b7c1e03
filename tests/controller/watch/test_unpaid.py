"""What was nobody's when a group came to pay for its owner."""

from __future__ import annotations

from controller.watch.unpaid import Unpaid


def test_pods_are_known_by_their_owner_until_they_are_paid_for() -> None:
    unpaid = Unpaid()
    unpaid.add("a", "web-1")
    unpaid.add("b", "web-1")
    assert ("a" in unpaid, unpaid.of("web-1"), unpaid.of("web-2")) == (True, {"a", "b"}, frozenset())
    unpaid.discard("a")
    assert ("a" in unpaid, unpaid.of("web-1")) == (False, {"b"})
    unpaid.discard("b")
    unpaid.discard("b")
    assert ("b" in unpaid, unpaid.of("web-1")) == (False, frozenset())


def test_what_comes_to_another_owner_is_no_longer_the_first_ones() -> None:
    unpaid = Unpaid()
    unpaid.add("a", "web-1")
    unpaid.add("a", "web-2")
    assert (unpaid.of("web-1"), unpaid.of("web-2")) == (frozenset(), {"a"})
