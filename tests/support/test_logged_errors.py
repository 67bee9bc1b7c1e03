"""That a test hears of what bizrq logs as an error, wherever it runs."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
import structlog

from tests.support.logged_errors import LoggedErrors

early = structlog.get_logger("early")


def test_an_error_of_any_logger_is_collected_and_a_warning_is_not() -> None:
    errors, bound = LoggedErrors(), early.bind(kind="pods")
    with errors.recorded():
        early.warning("will be tried again")
        bound.error("went wrong", group="nlp")
        try:
            raise ValueError("of a bug")
        except ValueError:
            early.exception("not expected")
    early.error("not within the block")
    first, second = errors.taken()
    assert first == "went wrong: kind=pods, group=nlp"
    assert second.startswith("not expected: ")
    assert "ValueError: of a bug" in second
    assert errors.taken() == []


def test_what_is_expected_has_to_come_and_nothing_else() -> None:
    errors = LoggedErrors()
    errors.expect("drift")
    with pytest.raises(AssertionError, match="not logged"):
        errors.check()
    with errors.recorded():
        early.error("drift", group="nlp")
        errors.check()
        early.error("drift", group="nlp")
        early.error("went wrong")
    with pytest.raises(AssertionError, match="went wrong"):
        errors.check()


def test_what_is_allowed_may_come_from_then_on() -> None:
    errors = LoggedErrors()
    with errors.recorded():
        early.error("drift", group="nlp", drift="pods=1")
        with pytest.raises(AssertionError, match="drift"):
            errors.allow("drift: group=nlp,")
        errors.allow("drift: group=nlp,")
        errors.check()
        early.error("drift", group="nlp", drift="pods=1")
        errors.check()
        early.error("drift", group="nlp2", drift="pods=1")
    with pytest.raises(AssertionError, match="nlp2"):
        errors.check()


async def test_a_task_that_failed_unseen_is_collected() -> None:
    async def fails() -> None:
        raise ValueError("of a bug")

    errors = LoggedErrors()
    with errors.recorded():
        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        del task
        gc.collect()
    [found] = errors.taken()
    assert "Task exception was never retrieved" in found
    assert "ValueError: of a bug" in found


def test_the_files_of_processes_are_read_once_and_to_their_end(tmp_path: Path) -> None:
    log, errors = tmp_path / "bizrq-controller.log", LoggedErrors()
    log.write_text("2026-01-01T00:00:00Z [info     ] leading\n2026-01-01T00:00:01Z [warning  ] [error] in a name\n")
    errors.read(tmp_path)
    assert errors.taken() == []
    with log.open("a") as file:
        file.write("2026-01-01T00:00:02Z [error    ] drift                group=nlp\n")
    errors.read(tmp_path)
    errors.read(tmp_path)
    assert errors.taken() == ["bizrq-controller.log: 2026-01-01T00:00:02Z [error    ] drift                group=nlp\n"]
    with log.open("a") as file:
        file.write('Traceback (most recent call last):\n  File "x.py"\nValueError: of a bug\n')
    errors.read(tmp_path)
    assert "ValueError: of a bug" in errors.taken()[0]
