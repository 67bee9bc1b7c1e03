"""The pages as a reader uses them: found from docs/README.md, with commands that can be typed as they stand."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import crds
from bizrq.cli.main import app
from tests.docs.test_docs import DOCS, PAGES, ROOT, blocks, page, prose, script
from tests.e2e.test_tutorial import FROM_NOTHING, LATER

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)\s]*\)")
#: Of any language; a fence may be indented in a list.
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d.,]*\d|\d")
#: What is no command line.
_DATA = {"yaml", "json", "python"}
_PROGRAMS = ("bizrq", ".venv/bin/bizrq")
_ENDS = {"|", "&", "&&", ";", "||"}


def linked(path: Path) -> set[Path]:
    """The pages of docs that a page links to."""
    targets = ((path.parent / link).resolve() for link in _LINK.findall(prose(path.read_text("utf-8"))))
    return {target for target in targets if target.suffix == ".md" and target.is_relative_to(DOCS)}


def test_every_page_is_two_clicks_from_the_first() -> None:
    """A reader finds every page of docs from docs/README.md, or from a page that it links to."""
    first = linked(DOCS / "README.md")
    second = {target for path in first for target in linked(path)}
    assert set(DOCS.rglob("*.md")) - {DOCS / "README.md"} - first - second == set()


def test_the_first_page_opens_with_a_row_for_each_reader() -> None:
    """Four readers, each with a page of their own that exists."""
    [table] = re.findall(r"\| you are \|.*?\n\n", page("docs/README.md"), re.DOTALL)
    assert len(re.findall(r"\(for-\w+\.md\)", table)) == 4


def test_the_reference_has_every_field_of_the_crds() -> None:
    """`python deploy/reference.py > docs/reference.md` would write the page as it is."""
    assert page("docs/reference.md") == script(ROOT / "deploy/reference.py").page()


def fields(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    """Return the path and the description of every field below a schema."""
    for name, field in (schema.get("properties") or {}).items():
        yield f"{path}.{name}", " ".join(field.get("description", "").split())
        for inner in (field, field.get("items"), field.get("additionalProperties")):
            if isinstance(inner, dict):
                yield from fields(inner, f"{path}.{name}")


@pytest.mark.parametrize("crd", crds.load(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_kubectl_explain_describes_every_field_in_sentences(crd: Any) -> None:
    """The API server describes apiVersion, kind and metadata itself."""
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        described = [each for each in fields(schema, "") if each[0] not in (".apiVersion", ".kind", ".metadata")]
        assert described
        for path, text in described:
            assert re.fullmatch(r"[A-Z].*\.", text), (path, text)
            assert not re.search(r"\.py\b|tests/|bizrq/", text), (path, text)


def test_the_summary_of_results_has_figures_of_the_tables_below() -> None:
    """Every number of a row stands in the rows of the id that it comes from, and so do place and day."""
    summary, below = page("docs/results.md").split("\n## Benchmarks\n")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| ([BR]\d+) \|$", summary, re.MULTILINE)
    assert len(rows) > 10
    for claim, figure, _, place, day, name in rows:
        source = "\n".join(line for line in below.splitlines() if line.startswith(f"| {name} |"))
        known = set(_NUMBER.findall(source))
        assert set(_NUMBER.findall(figure)) <= known, claim
        assert place in source, claim
        assert day in source, claim


def typed(text: str) -> Iterator[list[str]]:
    """The command lines of bizrq in a page's fences, as the words after the program.

    Where a fence has prompts, every other line of it is output.
    """
    for language, body in _FENCE.findall(text):
        if language in _DATA:
            continue
        lines = [line.strip() for line in body.replace("\\\n", " ").splitlines()]
        for line in [line[2:] for line in lines if line.startswith("$ ")] or lines:
            yield from of_bizrq(line)


def of_bizrq(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # Prose with an apostrophe.
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            command.append(word)
            continue
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command.pop(0)
        if command[:2] == ["kubectl", "bizrq"]:
            command.pop(0)
        if command and command[0] in _PROGRAMS:
            yield [each for each in command[1:] if each != "…"]
        command = []


def without_effect(function: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(function)
    def nothing(*_: object, **__: object) -> None:
        return None

    return nothing


@functools.cache
def parser() -> typer.Typer:
    """The verbs of bizrq with all their parameters, which do nothing."""
    found = typer.Typer(rich_markup_mode=None, context_settings=app.info.context_settings)
    for command in app.registered_commands:
        assert command.callback is not None
        found.command(command.name)(without_effect(command.callback))
    return found


def why_not(words: list[str]) -> str | None:
    """Return what is wrong with a command line after the program, as the parser of the program says it."""
    answer = CliRunner().invoke(parser(), words)
    return None if answer.exit_code == 0 else answer.output.strip().splitlines()[-1]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_line_of_bizrq_can_be_parsed(path: Path) -> None:
    """In every fence: the verb and its options exist, required arguments are there, choices are choices."""
    wrong = {" ".join(words): why for words in typed(path.read_text("utf-8")) if (why := why_not(words))}
    assert wrong == {}


def test_the_pages_of_readers_have_commands() -> None:
    """The check above has something to check."""
    for name in ("engineers", "leads", "admins", "finance"):
        assert len(list(typed(page(f"docs/for-{name}.md")))) >= 3, name


@pytest.mark.parametrize(
    "line",
    [
        "bizrq tree ai -r limits.cpu",
        "KUBECONFIG=F .venv/bin/bizrq tree | head -3",
        "kubectl bizrq get nlp --as ann",
        "true && bizrq explain -f a.yaml  # a comment",
        "bizrq correct nlp requests.nvidia.com/gpu=-12.5 --reason 'a node'",
    ],
)
def test_a_right_command_line_is_parsed(line: str) -> None:
    assert [why_not(words) for words in of_bizrq(line)] == [None]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("bizrq tre", "tre"),
        ("bizrq tree --deep", "--deep"),
        ("bizrq fit", "--file"),
        ("bizrq allow ann", "group"),
        ("bizrq version now", "now"),
        ("bizrq report --by colour", "colour"),
        ("make demo; kubectl bizrq report --over most", "--over"),
    ],
)
def test_a_wrong_command_line_is_seen(line: str, word: str) -> None:
    [why] = [why_not(words) for words in of_bizrq(line)]
    assert word in (why or "")


def test_every_console_is_played() -> None:
    """A fence of another language is for what no test can repeat, such as hours that have passed."""
    played = {f"docs/{name}.md" for name in (*FROM_NOTHING, *LATER)}
    assert {where for path in PAGES if blocks(page(where := str(path.relative_to(ROOT))), "console")} == played


def test_output_is_no_command_line() -> None:
    """A line of output that begins like a command is none, and a fence of YAML has none."""
    page = "```console\n$ bizrq uninstall\nbizrq nothing\n```\n```yaml\nbizrq no\n```\n```\nbizrq tree \\\n  ai\n```\n"
    assert list(typed(page)) == [["uninstall"], ["tree", "ai"]]
