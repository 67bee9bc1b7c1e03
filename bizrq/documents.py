"""Read YAML that anyone may have written: manifests, configurations and kubeconfigs.

This file alone decides how large, how deep and how repetitive a document may be. It does not know what it says.

An alias costs a few bytes and stands for a node of any size, and a merge key copies what it stands for. So a document
is measured first, event by event, with each alias as large as its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import yaml


@dataclass(frozen=True)
class FileSize:
    """How large the documents of one file may be: in bytes (of a text: characters), and in nodes."""

    bytes: int
    nodes: int


#: The largest object that etcd stores has 1.5 MiB. A node costs some 20 microseconds of a processor.
LARGEST = FileSize(16 * 1024 * 1024, 250_000)
#: The deepest nesting, beyond any real object. Parsers recurse and would crash the process.
DEEPEST = 100
#: Nodes that aliases may stand for.
REPEATED = 10_000
#: The longest number, in characters. The largest float has 309 digits; time to read an integer grows with its square.
LONGEST_NUMBER = 400
#: Keys of one map that are numbers. Anyone can write numbers of one hash, and then a map takes quadratic time.
NUMBER_KEYS = 100

#: How PyYAML fails at a text, or at a value that is not of its tag.
_FAILURES = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_PARSER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotYAML(ValueError):
    """The text is not YAML, or beyond a bound. The message is one line."""


class _Loader(_PARSER):
    """Bounds what costs more than the number of its nodes."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            if sum(key.tag in _NUMBERS for key, _ in node.value) > NUMBER_KEYS:
                raise NotYAML(f"a map has more than {NUMBER_KEYS} numbers as keys")
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            raise NotYAML(f"a number has more than {LONGEST_NUMBER} characters")
        return super().construct_scalar(node)


def read(path: Path, largest: FileSize = LARGEST) -> str:
    """Return the text of a file, of which no more is read than may be there. Raise OSError, NotYAML."""
    with path.open("rb") as file:
        content = file.read(largest.bytes + 1)
    _check_length(content, largest)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotYAML(f"not YAML: {error}") from None


def read_stream(stream: TextIO) -> str:
    """Return the text of a stream, of which no more is read than may be there. Raise OSError, NotYAML."""
    try:
        text = stream.read(LARGEST.bytes + 1)
    except UnicodeDecodeError as error:
        raise NotYAML(f"not YAML: {error}") from None
    _check_length(text, LARGEST)
    return text


def load_all(text: str, largest: FileSize = LARGEST) -> list[Any]:
    """Return the documents of a text. Raise NotYAML."""
    _check_length(text, largest)
    try:
        _measure(text, largest.nodes)
        return list(yaml.load_all(text, _Loader))
    except NotYAML:
        raise
    except _FAILURES as error:
        # A parser that reads text calls it so; there is no other one.
        why = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise NotYAML(f"not YAML: {why[:300]}") from None


def _check_length(content: bytes | str, largest: FileSize) -> None:
    if len(content) > largest.bytes:
        raise NotYAML(f"larger than {largest.bytes // 1024 // 1024} MiB")


def _measure(text: str, nodes: int) -> None:
    """Raise NotYAML if nodes are too many or too deep, or aliases stand for too much."""
    repeated, count = 0, 0
    open_nodes: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, _PARSER):
        if isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise NotYAML(f"not YAML: the alias *{event.anchor} stands for no node before it")
            repeated += sizes[event.anchor]
            count += sizes[event.anchor]
            if repeated > REPEATED:
                raise NotYAML(f"its aliases stand for more than {REPEATED} nodes")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count))
                if len(open_nodes) > DEEPEST:
                    raise NotYAML(f"nested more than {DEEPEST} levels deep")
            elif event.anchor is not None:
                sizes[event.anchor] = 1
            count += 1
            if count > nodes:
                raise NotYAML(f"more than {nodes:,} values and keys")
