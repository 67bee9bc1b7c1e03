"""One name stands for one thing: no two packages have a public class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bizrq", "webhooks", "controller", "web", "certs", "sandbox")

#: Names that several modules share, with the reason.
SHARED = {
    "ApiError": "the same answer on both sides: the client raises what the sandbox sends",
    "Resource": "a kind by its REST path: the client's has a version, the sandbox's also a schema",
    "Store": "objects by name: an informer's snapshot of one kind, and all that the sandbox serves",
    "Webhooks": "the same requests on both sides: our server answers them, the sandbox sends them",
}


def public_classes() -> dict[str, list[str]]:
    """The modules that define each public class."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_class_name_stands_for_one_thing() -> None:
    """A name that is defined twice needs a reason in SHARED, and SHARED names nothing else."""
    twice = {name: modules for name, modules in public_classes().items() if len(modules) > 1}
    assert twice.keys() == SHARED.keys(), {name: twice.get(name) for name in twice.keys() ^ SHARED.keys()}
