"""References in code, tests and pages lead somewhere: pages with headings, and ids of experiments.

A reference to a document that is not in the repository fails here. `test_docs` follows the links of pages.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, page, prose

#: One worker reads all files once.
pytestmark = pytest.mark.xdist_group("references")

SOURCES = ("bizrq", "webhooks", "controller", "web", "certs", "sandbox", "crds", "deploy", "examples", "docs", "tests")
ENDINGS = {".py", ".md", ".yaml", ".toml"}
TOP = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Makefile",
    "Dockerfile",
    "docker-compose.yml",
    "pyproject.toml",
)
FILES = [
    *(ROOT / name for name in TOP),
    *sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS),
]

#: docs/counting.md, "Init containers"
_HEADING = re.compile(r'(docs/[\w./-]+\.md)`?,\s+"([^"\n]+)"')
_PAGE = re.compile(r"(?<![\w/])docs/[\w./-]+\.md")
#: Words that cite a document from outside of the repository.
_OUTSIDE = re.compile(r"\bDESIGN\b|\b[Ss]pec: (?:devices|workloads)\b|\bdevices' specification\b|\bRELIABILITY\.md\b")
#: An id like those of experiments, or of a rule in some specification.
_ID = re.compile(r"(?<![\w./#$-])[A-DHIMRT][0-9]{1,2}(?![\w-])")
#: Models of cards and cores in examples.
MODELS = {"A4", "A30", "A40", "M7", "T4"}
#: Rules of ruff are named like ids.
LINTERS = {"pyproject.toml"}


@cache
def words_of(path: Path) -> str:
    """Everything that a person reads in a file: of Python only comments and docstrings, with lines kept."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return text
    return "\n".join(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""'))
    )


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def defined_ids() -> set[str]:
    """The ids that docs/results.md says the meaning of."""
    section = page("docs/results.md").partition("\n## Ids\n")[2]
    return set(re.findall(r"^\| ([A-Z][0-9]{1,2}) \|", section, re.MULTILINE))


@cache
def headings(path: Path) -> set[str]:
    """The headings of a page as they are written."""
    return set(re.findall(r"^#+ (.+)$", prose(path.read_text("utf-8")), re.MULTILINE))


def cited(path: Path) -> Iterator[tuple[str, str]]:
    """Each page with the heading that a file cites, also where a line ends between the two."""
    yield from _HEADING.findall(re.sub(r"\n\s*(?:#:?)?\s*", " ", words_of(path)))


def test_pages_and_headings_that_are_cited_exist() -> None:
    missing = [
        f"{where(p)}: {target}" for p in FILES for target in _PAGE.findall(words_of(p)) if not (ROOT / target).is_file()
    ]
    assert missing == []
    unknown = [f"{where(p)}: {t}, {h!r}" for p in FILES for t, h in cited(p) if h not in headings(ROOT / t)]
    assert unknown == []


def test_nothing_cites_a_document_from_outside() -> None:
    """Whoever has the repository has the reason for each rule."""
    files = (path for path in FILES if path != Path(__file__))
    assert [f"{where(path)}: {found}" for path in files for found in _OUTSIDE.findall(words_of(path))] == []


def test_every_id_is_defined_in_the_results() -> None:
    known = defined_ids() | MODELS
    files = (path for path in FILES if where(path) not in LINTERS | {where(Path(__file__))})
    assert [
        f"{where(path)}: {found}" for path in files for found in _ID.findall(words_of(path)) if found not in known
    ] == []


def test_the_checks_see_what_they_look_for(tmp_path: Path) -> None:
    """A reference that is broken over two lines is read, and an id in a comment."""
    file = tmp_path / "a.py"
    file.write_text('"""As it stands (docs/counting.md,\n"Init containers")."""\nx = 1  # see D7\n', "utf-8")
    assert list(cited(file)) == [("docs/counting.md", "Init containers")]
    assert _ID.findall(words_of(file)) == ["D7"]
    assert _OUTSIDE.search("As in DESIGN 5.3.")
    assert {"R1", "R26", "B14", "I3"} <= defined_ids()


#: `webhooks/routes.py` in backquotes, and `bizrq.quota.recount`; what follows a module has to stand in it.
_CODE_PATH = re.compile(r"`((?:bizrq|webhooks|controller|certs|sandbox|crds|deploy|examples|tests)/[\w./-]*[\w/])`")
_MODULE = re.compile(r"`((?:bizrq|webhooks|controller|certs|sandbox|crds|tests)(?:\.\w+)+)`")


def test_paths_and_modules_in_backquotes_exist() -> None:
    """The changelog and decisions tell of the past."""
    files = [p for p in FILES if p.name != "CHANGELOG.md" and p.parent.name != "decisions" and p != Path(__file__)]
    paths = [
        f"{where(p)}: {found}"
        for p in files
        for found in _CODE_PATH.findall(words_of(p))
        if not (ROOT / found).exists()
    ]
    assert paths == []
    assert [
        f"{where(p)}: {found}" for p in files for found in _MODULE.findall(words_of(p)) if not is_module(found)
    ] == []


def is_module(dotted: str) -> bool:
    """A module or package, or a name that stands in one."""
    place, names = ROOT, dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    file = place / f"{names.pop(0)}.py" if names and (place / f"{names[0]}.py").is_file() else place / "__init__.py"
    if not file.is_file():
        return not names
    text = file.read_text("utf-8")
    return all(re.search(rf"\b{name}\b", text) for name in names)
