from __future__ import annotations

import pytest

from bizrq.figures.describe import leftover_text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "pods/team/a payer/team/b since=2026-01-01T00:00:00Z limits.cpu=1",
            "pods/team/a: payer team/b is gone since 2026-01-01T00:00:00Z, charged until its pods end: limits.cpu=1",
        ),
        ("", ""),
        ("pods/team/a", "pods/team/a"),
        ("pods/team/a \x1b[31m", "pods/team/a \x1b[31m"),
    ],
)
def test_a_line_that_is_no_leftover_is_shown_as_it_is(line: str, text: str) -> None:
    """Whoever prints it takes out what a terminal obeys."""
    assert leftover_text(line) == text
