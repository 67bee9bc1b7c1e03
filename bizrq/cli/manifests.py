"""Read the manifests of `-f`, as kubectl does.

This file alone decides which files are read and which documents are not objects. It knows no kind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure, failed
from bizrq.figures.errors import BadValue

Files = Annotated[
    list[Path], typer.Option("--file", "-f", "--filename", help="File or folder of manifests; - reads standard input.")
]
Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="Read the subfolders of a folder too.")]

_ENDINGS = (".json", ".yaml", ".yml")


def read_all(paths: list[Path], recursive: bool = False) -> list[Any]:
    """Return the documents of all files, in order. Raise Failure."""
    return [document for _, document in _documents(paths, recursive)]


def read_objects(paths: list[Path], recursive: bool = False) -> list[dict[str, Any]]:
    """Return the documents of all files, each of which must be an object with a kind. Raise Failure, also for none."""
    from bizrq.figures.manifests import checked_objects

    try:
        found = checked_objects(_documents(paths, recursive))
    except BadValue as error:
        raise failed(error) from None
    if not found:
        raise Failure(f"{', '.join(map(str, paths))}: no objects found", EXIT_BAD_INPUT)
    return found


def _documents(paths: list[Path], recursive: bool) -> Iterator[tuple[str, Any]]:
    """Yield each document with the file and number to name it by. Raise Failure."""
    for file in (file for path in paths for part in _parted(path) for file in _files(part, recursive)):
        documents = _read(file)
        for number, document in enumerate(documents, 1):
            if document is not None:
                yield str(file) if len(documents) == 1 else f"{file}, document {number}", document


def _parted(path: Path) -> list[Path]:
    """Split a word that lists several files with commas."""
    return [path] if path.exists() else [Path(part) for part in str(path).split(",")]


def _files(path: Path, recursive: bool) -> list[Path]:
    """Return the file itself, or the manifests of a folder. Raise Failure."""
    if str(path).startswith(("http:/", "https:/")):
        raise Failure(f"{path}: URLs are not fetched; use curl -sL URL | bizrq … -f -", EXIT_BAD_INPUT)
    if not path.is_dir():
        return [path]
    inside = path.rglob("*") if recursive else path.iterdir()
    found = sorted(file for file in inside if file.suffix in _ENDINGS and not file.is_dir())
    if not found:
        below = "" if recursive else "; -R reads its subfolders too"
        raise Failure(f"{path}: no {', '.join(_ENDINGS)} files in this folder{below}", EXIT_BAD_INPUT)
    return found


def _read(path: Path) -> list[Any]:
    from bizrq.documents import NotYAML, load_all, read, read_stream

    try:
        return load_all(read_stream(sys.stdin) if str(path) == "-" else read(path))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", EXIT_BAD_INPUT) from None
    except NotYAML as error:
        raise Failure(f"{path}: {error}", EXIT_BAD_INPUT) from None
