"""The files that `-f` names, as kubectl reads them.

This file alone decides which files are read and what in them is no object. It knows no kind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bizrq.cli.output.failure import BAD_INPUT, Failure

Files = Annotated[
    list[Path], typer.Option("--file", "-f", "--filename", help="A file or folder of manifests, - for standard input.")
]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-R", help="Of folders also what lies in the folders below them.")
]

_ENDINGS = (".json", ".yaml", ".yml")
#: Far deeper than any object; the parser, written in C, recurses and would take the whole process along.
_DEEPEST = 500


def read_all(paths: list[Path], recursive: bool = False) -> list[Any]:
    """The documents of all files, in their order; raises Failure."""
    return [document for _, document in _documents(paths, recursive)]


def read_objects(paths: list[Path], recursive: bool = False) -> list[dict[str, Any]]:
    """The same, where everything in the files is to be sent to a cluster: an object of some kind, and at least one.

    Raises Failure.
    """
    found: list[dict[str, Any]] = []
    for where, document in _documents(paths, recursive):
        if not isinstance(document, dict):
            raise Failure(f"{where}: no object of Kubernetes: write apiVersion, kind and so on", BAD_INPUT)
        for key in ("apiVersion", "kind"):
            if not isinstance(document.get(key), str):
                raise Failure(f"{where}: {key} is missing, so it is no object of Kubernetes", BAD_INPUT)
        found.append(document)
    if not found:
        raise Failure(f"{', '.join(map(str, paths))}: no objects in there", BAD_INPUT)
    return found


def _documents(paths: list[Path], recursive: bool) -> Iterator[tuple[str, Any]]:
    """Each document with the place that it has; raises Failure."""
    for file in (file for path in paths for part in _parted(path) for file in _files(part, recursive)):
        documents = _read(file)
        for number, document in enumerate(documents, 1):
            if document is not None:
                yield str(file) if len(documents) == 1 else f"{file}, document {number}", document


def _parted(path: Path) -> list[Path]:
    """Several files may stand in one word, with commas between them."""
    return [path] if path.exists() else [Path(part) for part in str(path).split(",")]


def _files(path: Path, recursive: bool) -> list[Path]:
    """A folder means the manifests that lie in it."""
    if str(path).startswith(("http:/", "https:/")):
        raise Failure(f"{path}: is not fetched: curl -sL URL | bizrq … -f -", BAD_INPUT)
    if not path.is_dir():
        return [path]
    inside = path.rglob("*") if recursive else path.iterdir()
    found = sorted(file for file in inside if file.suffix in _ENDINGS and not file.is_dir())
    if not found:
        below = "" if recursive else "; -R reads the folders below it, too"
        raise Failure(f"{path}: a folder without {', '.join(_ENDINGS)}{below}", BAD_INPUT)
    return found


def _read(path: Path) -> list[Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
        depth = 0
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise ValueError(f"nested more than {_DEEPEST} levels deep")
        return list(yaml.load_all(text, loader))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", BAD_INPUT) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Failure(f"{path}: not YAML: {' '.join(str(error).split())[:300]}", BAD_INPUT) from None
