"""What a verb does and waits for is told to people at a terminal, and to nobody else."""

from __future__ import annotations

import asyncio
import io

import pytest

from bizrq.cli import cluster
from bizrq.cli.output import waits
from bizrq.cli.output.failure import progress
from tests.cli.conftest import Bizrq
from tests.cli.test_pager import on_a_terminal


@pytest.mark.parametrize(("is_terminal", "told"), [(True, "waiting up to 5 s\n"), (False, "")])
def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, told: str) -> None:
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", err)
    progress("waiting up to 5 s")
    assert err.getvalue() == told


@pytest.mark.asyncio(loop_scope="module")
async def test_an_api_server_that_does_not_answer_is_named_with_the_time_it_has(
    bizrq: Bizrq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said of one that has answered."""
    said: list[str] = []
    monkeypatch.setattr(waits, "progress", said.append)
    monkeypatch.setattr(waits, "_LOOK", 0.0)
    assert (await bizrq("get", "nlp")).code == 0
    assert said == []
    monkeypatch.setattr(cluster, "_SLOW", 0.0)
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    result = await bizrq("get", "nlp", "-s", address, "--request-timeout", "1")
    await gone.wait()
    server.close()
    assert result.code == 3
    assert said == [f"waiting up to 1 s for an answer of {address}"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report --hours", "reading groups and records of hours"),
        ("report --html -", "reading groups, records of hours and statements"),
        ("audit", "reading groups, records of hours and statements"),
    ],
)
async def test_what_reads_much_says_what_it_reads(bizrq: Bizrq, words: str, said: str) -> None:
    code, out = await on_a_terminal(bizrq, f"bizrq {words}", 60)
    assert (code, out.splitlines()[0]) == (0, said)


@pytest.mark.parametrize(("status", "lines"), [(None, 1), (503, 0)])
def test_any_answer_ends_the_wait_for_the_api_server(
    monkeypatch: pytest.MonkeyPatch, status: int | None, lines: int
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waits, "progress", said.append)
    wait = waits.Wait("for it", 30)
    cluster._FirstAnswer(wait).answered("GET", status)
    wait.say()
    assert len(said) == lines
