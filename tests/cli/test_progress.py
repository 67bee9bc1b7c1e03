"""What a verb does and waits for is told to people at a terminal, and to nobody else."""

from __future__ import annotations

import io

import pytest

from bizrq.cli.output.failure import progress


@pytest.mark.parametrize(("is_terminal", "told"), [(True, "waiting up to 5 s\n"), (False, "")])
def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, told: str) -> None:
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", err)
    progress("waiting up to 5 s")
    assert err.getvalue() == told
