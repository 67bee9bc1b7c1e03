"""Run a program of bizrq by its command line.

This file alone words usage errors: one line that names the argument and says what to do, and exit code 2.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from bizrq.units.text import sanitize

_BAD_USAGE = 2
#: The code of a program whose reader has gone, as shells tell it: 128 and the number of SIGPIPE.
NOBODY_READS = 128 + 13
#: The most characters of a word that are repeated.
_SHOWN = 64
#: The classes of typer's usage errors. It exports one of them.
_errors: Any = importlib.import_module(typer.BadParameter.__module__)


def run_alone(command: Callable[..., None], program: str) -> None:
    """Run a program that has no verbs with the arguments of the process, and exit."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    sys.exit(run(app, sys.argv[1:], program))


def run(app: typer.Typer, words: Sequence[str], program: str) -> int:
    """Run the program, which people call by this name, with these words. Return its exit code."""
    try:
        return app(list(words), prog_name=program, standalone_mode=False) or 0
    except typer.Abort:
        line, code = "not done", 1
    except _errors.NoArgsIsHelpError:
        # It has printed the help.
        return _BAD_USAGE
    except SystemExit as error:
        # typer ends with 1 where a pipe is closed, which would be the answer "no".
        if isinstance(error.__context__, BrokenPipeError):
            return NOBODY_READS
        raise
    except _errors.ClickException as error:
        line, code = _line(error, words, program), _BAD_USAGE
    sys.stderr.write(f"{program.split()[-1]}: {sanitize(line)}\n")
    return code


def _line(error: Any, words: Sequence[str], program: str) -> str:
    """Say which argument is wrong and what to write instead."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else " ".join([program, *(w for w in words[:1] if w[:1] != "-")])
    see = f"see {command} --help"
    match error:
        case _errors.MissingParameter():
            return f"missing {_name(error.param)}{_wanted(error.param)}; {see}"
        case _errors.BadParameter(param=param) if param is None or error.__cause__ is None:
            return f"{error.param_hint or _name(param)}: {error.message}"
        case _errors.BadParameter(param=param):
            return f"{_name(param)}: {_remedy(param) or see}, not {_shown(_refused(error))}"
        case _errors.NoSuchOption():
            option = error.option_name
            return f"unknown option {_shown(option)}; {_nearest(option, error.possibilities) or see}"
        case _errors.BadOptionUsage(option_name=option):
            is_last = words[-1] == option or not option.startswith("--")
            return f"{option} needs a value; {see}" if is_last else f"{option} takes no value: write {option} alone"
        case _ if context is None:
            return f"{error.format_message()}; {see}"
    return _unexpected(context, words, see)


def _unexpected(context: Any, words: Sequence[str], see: str) -> str:
    """Say that a word is no verb, or is more than the verb takes."""
    rest = _rest(context, words)
    verbs = getattr(context.command, "commands", None)
    if verbs is None:
        names = [_name(param) for param in context.command.params if param.param_type_name == "argument"]
        after = f" after {' '.join(names)}" if names else ""
        return f"unexpected argument{after}: {_shown(' '.join(rest))}; {see}"
    every = f"{context.command_path} --help lists the verbs"
    if not rest:
        return f"missing verb; {every}"
    return f"unknown verb {_shown(rest[0])}; {_nearest(rest[0], verbs) or every}"


def _nearest(word: str, known: Iterable[str] | None) -> str:
    close = difflib.get_close_matches(word[:_SHOWN], list(known or ()), n=1)
    return f"did you mean {close[0]}?" if close else ""


def _rest(context: Any, words: Sequence[str]) -> list[str]:
    """Return the words that are left over after the options and arguments of a command."""
    own = _rest(context.parent, words)[1:] if context.parent else list(words)
    return context.command.make_parser(context).parse_args(own)[1]


def _name(param: Any) -> str:
    """Return the name of an option, or of an argument in capitals."""
    if param.param_type_name == "argument":
        return param.metavar or param.name.upper()
    return max(param.opts, key=len)


def _remedy(param: Any) -> str:
    """Say which values there are, "" where anything may be."""
    if choices := _choices(param):
        return f"write {' or '.join([', '.join(choices[:-1]), choices[-1]] if choices[1:] else choices)}"
    limits = param.type_descriptor.parameter_info
    if param.type_descriptor.annotation is not int:
        return ""
    if limits.max is not None:
        return f"write a whole number from {limits.min or 0} to {limits.max}"
    return f"write a whole number{f' from {limits.min}' if limits.min is not None else ''}"


def _wanted(param: Any) -> str:
    return f": {remedy}" if (remedy := _remedy(param)) else ""


def _choices(param: Any) -> list[str]:
    return [choice.value for choice in param.type_descriptor.choices or ()]


def _refused(error: Any) -> str:
    """Return the value that is wrong; of a repeated option the first such one."""
    value = error.__cause__.errors()[0]["input"]
    given = value if isinstance(value, list | tuple) else [value]
    return next((str(each) for each in given if str(each) not in _choices(error.param)), "")


def _shown(word: str) -> str:
    return word if len(word) <= _SHOWN else f"{word[:_SHOWN]}..."
