"""Read YAML that anyone may have written: manifests, configurations and kubeconfigs.

This file alone decides how large, how deep and how repetitive a document may be. It does not know what it says.

An alias costs a few bytes and stands for a node of any size, and a merge key copies what it stands for. So a document
is measured first, event by event, with each alias as large as its node.
"""

from __future__ import annotations

from typing import Any

import yaml

#: Characters of all documents of one file. The largest object that etcd stores has 1.5 MiB.
LARGEST = 16 * 1024 * 1024
#: The deepest nesting, beyond any real object. Parsers recurse and would crash the process.
DEEPEST = 100
#: Nodes that aliases may stand for.
REPEATED = 10_000

#: How PyYAML fails at a text, or at a value that is not of its tag.
_FAILURES = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class NotYAML(ValueError):
    """The text is not YAML, or beyond a bound. The message is one line."""


def load_all(text: str) -> list[Any]:
    """Return the documents of a text. Raise NotYAML."""
    if len(text) > LARGEST:
        raise NotYAML(f"larger than {LARGEST // 1024 // 1024} MiB")
    try:
        _measure(text)
        return list(yaml.load_all(text, _LOADER))
    except NotYAML:
        raise
    except _FAILURES as error:
        # A parser that reads text calls it so; there is no other one.
        why = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise NotYAML(f"not YAML: {why[:300]}") from None


def _measure(text: str) -> None:
    """Raise NotYAML if aliases stand for too much, or nodes are too deep."""
    repeated, count = 0, 0
    open_nodes: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, _LOADER):
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
