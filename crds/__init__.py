"""Load the CustomResourceDefinitions of bizrq, and the sandbox's stand-ins for kinds of other projects."""

import json
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml


def load() -> list[dict[str, Any]]:
    """Return every CustomResourceDefinition of bizrq, a copy at each call."""
    return _all(__name__, "")


def stand_ins() -> list[dict[str, Any]]:
    """Return small definitions of kinds of other projects, for a cluster without their own definitions."""
    return _all("sandbox", "crds")


def _all(package: str, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_parsed(package, folder))
    return found


@cache
def _parsed(package: str, folder: str) -> str:
    """Return the definitions of a folder as JSON: YAML is slow to parse, and callers change what they get."""
    return json.dumps(_documents(resources.files(package) / folder))


def _documents(folder: Traversable) -> list[dict[str, Any]]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for file in files for document in yaml.load_all(file.read_text("utf-8"), loader)]
