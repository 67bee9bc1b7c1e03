"""The list of makers of pods has bounds, because a ConfigMap has some."""

from bizrq.api import overlap


def test_a_list_is_bounded() -> None:
    many = {f"{number:06}": "exceeded quota: nlp" for number in range(overlap.MAX_LISTED + 5)}
    assert len(overlap.config_map("x", many)["data"]) == overlap.MAX_LISTED


def test_a_name_that_is_too_long_for_a_key_has_none() -> None:
    assert overlap.version_key("team-a", "web") == "team-a.web"
    assert overlap.version_key("n", "w" * 251) == f"n.{'w' * 251}"
    assert overlap.version_key("n", "w" * 252) is None


def test_long_texts_leave_room_for_the_rest_of_the_object() -> None:
    """The API server takes at most 1 MiB, and rejects the whole object otherwise."""
    listed = {f"{number:036}": "é" * 300 for number in range(overlap.MAX_LISTED)}
    data = overlap.config_map("bizrq-system", listed)["data"]
    assert 0 < len(data) < overlap.MAX_LISTED
    assert sum(len(uid) + len(text.encode()) for uid, text in data.items()) <= overlap.MAX_BYTES < 1024 * 1024
