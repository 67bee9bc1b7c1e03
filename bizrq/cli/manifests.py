"""The files that `-f` names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bizrq.cli.failure import BAD_INPUT, Failure

Files = Annotated[
    list[Path], typer.Option("--file", "-f", "--filename", help="A file or folder of manifests, - for standard input.")
]

_ENDINGS = (".json", ".yaml", ".yml")
#: Far deeper than any object; the parser, written in C, recurses and would take the whole process along.
_DEEPEST = 1000


def read_all(paths: list[Path]) -> list[Any]:
    """The documents of all files, in their order; raises Failure."""
    return [document for path in paths for file in _files(path) for document in _read(file)]


def _files(path: Path) -> list[Path]:
    """A folder means the manifests that lie in it, as for kubectl."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
    if not found:
        raise Failure(f"{path}: a folder without {', '.join(_ENDINGS)}", BAD_INPUT)
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
        return [document for document in yaml.load_all(text, loader) if document is not None]
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", BAD_INPUT) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Failure(f"{path}: not YAML: {' '.join(str(error).split())[:300]}", BAD_INPUT) from None
