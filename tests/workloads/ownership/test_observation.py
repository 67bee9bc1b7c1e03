"""Whether a controller has acted on the stored spec, as the status says it, whoever wrote that."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.workloads.ownership.observation import has_acted, has_observed


def stored(observed: Any, generation: Any = 3) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": observed}}


READABLE = [(3, True), (4, True), (2, False), (0, False), ("3", True), ("2", False), ("10", True)]
UNREADABLE = ["", "03", "+3", " 3", "3 ", "3.0", "0x3", "٣", "6d9bf77d9c", "9" * 30, 3.0, True, [3], {"n": 3}]


@pytest.mark.parametrize(("observed", "is_stored"), READABLE)
def test_a_number_and_its_text_say_the_same(observed: Any, is_stored: bool) -> None:
    assert has_observed(stored(observed)) is is_stored
    assert has_acted(stored(observed), 2) is is_stored


@pytest.mark.parametrize("observed", UNREADABLE)
def test_what_cannot_be_read_is_neither_yes_nor_no(observed: Any) -> None:
    assert has_observed(stored(observed)) is None
    assert has_acted(stored(observed), 2) is None


def test_a_controller_that_acts_on_anything_later_has_acted_on_an_earlier_write() -> None:
    lagging = stored(4, generation=5)
    assert has_observed(lagging) is False
    assert (has_acted(lagging, 3), has_acted(lagging, 4)) == (True, False)


@pytest.mark.parametrize("status", [None, "lost", [], {}, {"observedGeneration": None}])
def test_a_kind_that_does_not_say_has_always_acted(status: Any) -> None:
    silent = {"metadata": {"generation": 3}, "status": status}
    assert has_observed(silent) is None
    assert has_acted(silent, 2) is True


def test_an_object_without_a_generation_is_acted_on() -> None:
    assert has_observed(stored(1, generation=None)) is True
    assert has_acted(stored("x"), None) is True


def test_the_generation_of_a_ray_cluster_says_nothing() -> None:
    """Its controller does not write it where nothing else of the status changes."""
    cluster = {"apiVersion": "ray.io/v1", **stored(1)}
    assert (has_observed(cluster), has_acted(cluster, 2)) == (None, True)
