"""Pods that were nobody's when a group came to pay for their owner."""

from __future__ import annotations

from controller.watch.unpaid_pods import UnpaidPods


def test_pods_are_known_by_their_owner_until_they_are_paid_for() -> None:
    unpaid = UnpaidPods()
    unpaid.add("a", "web-1")
    unpaid.add("b", "web-1")
    assert ("a" in unpaid, unpaid.of("web-1"), unpaid.of("web-2")) == (True, {"a", "b"}, frozenset())
    unpaid.discard("a")
    assert ("a" in unpaid, unpaid.of("web-1")) == (False, {"b"})
    unpaid.discard("b")
    unpaid.discard("b")
    assert ("b" in unpaid, unpaid.of("web-1")) == (False, frozenset())
