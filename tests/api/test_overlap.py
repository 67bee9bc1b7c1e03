"""The list of makers of pods has bounds, those of its schema and of the store."""

from __future__ import annotations

import crds
from bizrq.api import overlap
from bizrq.workloads.ownership import own_labels

[SCHEMA] = [
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["listed"]
    for crd in crds.load()
    if crd["spec"]["names"]["plural"] == overlap.PLURAL
]


def test_a_list_is_bounded_as_its_schema_is() -> None:
    many = {f"{number:06}": "exceeded quota: nlp" for number in range(overlap.MAX_LISTED + 5)}
    listed = overlap.overlap_list(many)["listed"]
    assert len(listed) == overlap.MAX_LISTED == SCHEMA["maxProperties"]


def test_a_long_text_is_cut_as_its_schema_is() -> None:
    whole, long = "é" * overlap.MAX_TEXT, "é" * (overlap.MAX_TEXT + 1)
    listed = overlap.overlap_list({"a": whole, "b": long})["listed"]
    assert listed == {"a": whole, "b": "é" * (overlap.MAX_TEXT - 1) + "…"}
    assert len(listed["b"]) == SCHEMA["additionalProperties"]["maxLength"]


def test_a_key_is_the_namespace_and_the_name() -> None:
    label = max(overlap.VERSION_LABELS, key=len)
    assert overlap.version_key("team-a", "web", label) == f"team-a.web/{label}"
    assert overlap.version_key("n" * 63, "w" * 253, label) == f"{'n' * 63}.{'w' * 253}/{label}"


def test_long_texts_leave_room_for_the_rest_of_the_object() -> None:
    """The store takes at most 1.5 MiB, and rejects the whole object otherwise."""
    listed = {f"{number:036}": "é" * 300 for number in range(overlap.MAX_LISTED)}
    kept = overlap.overlap_list(listed)["listed"]
    assert 0 < len(kept) < overlap.MAX_LISTED
    assert sum(len(uid) + len(text.encode()) for uid, text in kept.items()) <= overlap.MAX_BYTES < 1024 * 1024


def test_versions_are_told_apart_by_the_labels_that_their_controllers_set() -> None:
    """Objects on the wire and workloads know nothing of each other."""
    assert overlap.VERSION_LABELS == own_labels.VERSION_LABELS
