"""Every usage error of every program is one line that names the argument and what to do, and exit code 2."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bizrq.cli.main import app
from tests.cli.conftest import Bizrq

pytestmark = pytest.mark.asyncio(loop_scope="module")

_GROUP: Any = typer.main.get_command(app)
_COMMANDS: dict[str, Any] = _GROUP.commands
#: Words of typer and of the library below it, and drawn boxes.
_FOREIGN = re.compile(
    r"Value error|Invalid value|Input should|valid integer|unexpected extra|No such|Missing|[\u2500-\u257f]"
)


def _options(verb: str) -> Iterator[tuple[str, Any]]:
    for param in _COMMANDS[verb].params:
        if param.param_type_name == "option":
            yield max(param.opts, key=len), param


def _required(verb: str, *, but: Any = None) -> list[str]:
    """Return words for what the verb requires, without that one, and without the arguments after it."""
    words: list[str] = []
    for param in _COMMANDS[verb].params:
        if param is but and param.param_type_name == "argument":
            break
        if param.required and param is not but:
            value = "bash" if param.type_descriptor.choices else "x"
            words += [value] if param.param_type_name == "argument" else [max(param.opts, key=len), value]
    return words


def _bad_lines() -> Iterator[tuple[list[str], str]]:
    """Yield the words of wrong command lines, with what their one line has to name."""
    for verb, command in _COMMANDS.items():
        yield [verb, "--no-such-flag"], "unknown option --no-such-flag"
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        if not any(param.nargs == -1 for param in arguments):
            filled = [*_required(verb), *("x" for param in arguments if not param.required)]
            yield [verb, *filled, "extra"], ": extra; see "
        for param in command.params:
            if param.required:
                name = (
                    max(param.opts, key=len)
                    if param.param_type_name == "option"
                    else param.metavar or param.name.upper()
                )
                yield [verb, *_required(verb, but=param)], f"missing {name}"
        for flag, param in _options(verb):
            if param.is_flag:
                yield [verb, *_required(verb), f"{flag}=x"], f"{flag} takes no value"
                continue
            yield [verb, *_required(verb), flag], f"{flag} needs a value"
            if param.type_descriptor.choices or "int" in str(param.type_descriptor.annotation):
                yield [verb, *_required(verb), flag, "no-such"], f"{flag}: write "
    yield ["completion", "tcsh"], "SHELL: write bash, zsh or fish, not tcsh"


@pytest.mark.parametrize(("words", "named"), [pytest.param(*each, id=" ".join(each[0])) for each in _bad_lines()])
async def test_a_wrong_command_line_is_one_line_that_names_the_argument(
    bizrq: Bizrq, words: list[str], named: str
) -> None:
    result = await bizrq(*words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("bizrq: ")
    assert named in result.err
    assert _FOREIGN.search(result.err) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tree --sort foo", "--sort: write name or percent, not foo"),
        ("tree --depth x", "--depth: write a whole number from 1, not x"),
        ("tree --depth 0", "--depth: write a whole number from 1, not 0"),
        ("up --port 99999", "--port: write a whole number from 0 to 65535, not 99999"),
        ("report --by group --by foo", "--by: write period, group, namespace, workload or model, not foo"),
        ("tree nlp corp", "unexpected argument after GROUP: corp; see bizrq tree --help"),
        ("tree --srot name", "unknown option --srot; did you mean --sort?"),
        ("fti", "unknown verb fti; did you mean fit?"),
        ("nonsense", "unknown verb nonsense; "),
        ("--", "missing verb; bizrq --help lists the verbs"),
        ("help nonsense", "unknown verb nonsense; "),
        ("help fit tree", "unexpected argument after VERB: tree; see bizrq help --help"),
        ("up --recount-interval 5x", "--recount-interval: '5x' is not a duration: write 5m, 90s or 1h30m"),
        ("tree --request-timeout 5x", "--request-timeout: '5x' is not a duration: write 5m, 90s or 1h30m"),
    ],
)
async def test_the_line_says_what_to_do(bizrq: Bizrq, line: str, words: str) -> None:
    result = await bizrq(*line.split())
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith(f"bizrq: {words}")


async def test_a_word_that_a_terminal_obeys_is_shown_without_that(bizrq: Bizrq) -> None:
    result = await bizrq("tree", "nlp", "\x1b[31m\nforged" + "x" * 500)
    assert (result.code, result.err.count("\n"), "\x1b" in result.err) == (2, 1, False)
    assert len(result.err) < 200


@pytest.mark.parametrize(
    "line",
    [
        "bizrq-webhooks --metrics-port x: --metrics-port: write a whole number from 0 to 65535, not x",
        "bizrq-controller --recount-interval 5x: --recount-interval: '5x' is not a duration",
        "bizrq-controller --webhook-url x: --webhook-url: 'x' is no address of webhooks",
        "bizrq-certs --cert-dir x word: unexpected argument: word; see bizrq-certs --help",
        "bizrq-web --no-such: unknown option --no-such",
        "kubectl-bizrq tree a b: unexpected argument after GROUP: b; see kubectl bizrq tree --help",
    ],
)
async def test_the_other_programs_say_it_so_too(line: str) -> None:
    command, _, said = line.partition(": ")
    program, *words = command.split()
    done = subprocess.run(
        [Path(sys.executable).parent / program, *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert done.stderr.startswith(f"{program.removeprefix('kubectl-')}: {said}")


async def test_the_lines_above_have_every_verb() -> None:
    assert {words[0] for words, _ in _bad_lines()} == set(_COMMANDS)
