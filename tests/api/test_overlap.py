"""The list of makers of pods has a bound, because a ConfigMap has one."""

from bizrq.api import overlap


def test_a_list_is_bounded() -> None:
    many = {f"{number:06}": "exceeded quota: nlp" for number in range(overlap.MAX_LISTED + 5)}
    assert len(overlap.config_map("x", many)["data"]) == overlap.MAX_LISTED
