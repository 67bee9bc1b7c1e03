from __future__ import annotations

import pytest

from bizrq.units.text import counted


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (0, "group", "", "0 groups"),
        (1, "group", "", "1 group"),
        (2, "group", "", "2 groups"),
        (1, "record of hours", "records of hours", "1 record of hours"),
        (2, "record of hours", "records of hours", "2 records of hours"),
    ],
)
def test_only_one_thing_is_in_the_singular(number: int, noun: str, plural: str, text: str) -> None:
    assert counted(number, noun, plural) == text
