"""The list of makers of pods has bounds, because a ConfigMap has some."""

from bizrq.api import overlap


def test_a_list_is_bounded() -> None:
    many = {f"{number:06}": "exceeded quota: nlp" for number in range(overlap.MAX_LISTED + 5)}
    assert len(overlap.config_map("x", many)["data"]) == overlap.MAX_LISTED


def test_a_name_that_is_too_long_for_a_key_has_none() -> None:
    assert overlap.version_key("team-a", "web") == "team-a.web"
    assert overlap.version_key("n", "w" * 251) == f"n.{'w' * 251}"
    assert overlap.version_key("n", "w" * 252) is None
