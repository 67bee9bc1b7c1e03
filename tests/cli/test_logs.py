"""The lines that the processes log: machines read JSON, and a level leaves lines out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bizrq.units.text import printable

_LOGS = """
import logging, structlog
from bizrq import flags, process
process.configure_logging(flags.LogFormat("{form}"), flags.LogLevel("{level}"))
log = structlog.get_logger()
log.info("an event", group="nlp", text="a\\x1b[31m\\n b")
logging.getLogger("library").warning("of a %s", "library")
try:
    raise ValueError("a defect")
except ValueError:
    log.exception("review failed", uid="u1")
"""


def logged(form: str, level: str) -> str:
    script = _LOGS.format(form=form, level=level)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr


def test_each_line_of_json_is_an_object_tracebacks_and_those_of_libraries_included() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in logged("json", "info").splitlines()]
    assert all(line.pop("timestamp").endswith("Z") for line in lines)
    trace = lines[2].pop("exception")
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: a defect")
    assert lines == [
        {"event": "an event", "level": "info", "group": "nlp", "text": "a\x1b[31m\n b"},
        {"event": "of a library", "level": "warning", "logger": "library"},
        {"event": "review failed", "level": "error", "uid": "u1"},
    ]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_terminal_obeys_no_line(form: str) -> None:
    said = logged(form, "info")
    assert "\x1b" not in said
    said = hostile_lines(form)
    assert printable(said) == said, ascii(said)
    assert [line for line in said.splitlines() if "forged" in line and "event" not in line] == []


def hostile_lines(form: str) -> str:
    """What is logged of texts that a terminal would obey, or that begin another line."""
    script = """
import logging, structlog
from bizrq import flags, process
process.configure_logging(flags.LogFormat("{form}"))
class Odd:
    def __repr__(self):
        return "odd \\x1b[31m"
log = structlog.get_logger()
log.info("event\\nforged", **{{"k\\x1b[31m": 1, "odd": Odd(), "text": "event\\nforged \\x9b2J"}})
logging.getLogger("a\\x1b[31m").warning("event of a %s", "\\x1b[31m\\nforged")
try:
    raise ValueError("\\x1b]0;title\\x07")
except ValueError:
    log.exception("review failed")
    logging.getLogger("b").exception("event \\u202e")
"""
    run = [sys.executable, "-c", script.format(form=form)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize(("level", "said"), [("debug", 3), ("info", 3), ("warning", 2), ("error", 1)])
def test_a_level_leaves_out_what_is_less_severe(level: str, said: int) -> None:
    assert len(logged("json", level).splitlines()) == said


@pytest.mark.parametrize("name", ["bizrq-webhooks", "bizrq-controller", "bizrq-certs"])
def test_the_processes_take_both_flags_and_name_what_they_know(name: str) -> None:
    program = Path(sys.executable).with_name(name)
    for flag, known in (("--log-format", ("text", "json")), ("--log-level", ("debug", "info", "warning", "error"))):
        done = subprocess.run([program, flag, "verbose"], capture_output=True, text=True, env={"COLUMNS": "200"})
        assert done.returncode == 2
        assert done.stderr.startswith(f"{name}: {flag}: write "), done.stderr
        assert all(word in done.stderr for word in known), done.stderr


def test_a_process_logs_as_it_is_told(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("bizrq-certs")
    for level, said in (("info", 1), ("warning", 0)):
        folder = tmp_path / level
        arguments = (
            "--cert-dir",
            folder,
            "--names",
            "localhost",
            "--once",
            "--log-format",
            "json",
            "--log-level",
            level,
        )
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, env={})
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert [line["event"] for line in lines] == ["certificates changed"] * said
