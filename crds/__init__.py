"""Load the CustomResourceDefinitions of bizrq, and the sandbox's stand-ins for kinds of other projects."""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml


def load() -> list[dict[str, Any]]:
    """Return every CustomResourceDefinition of bizrq, parsed at each call."""
    return _all(resources.files(__name__))


def stand_ins() -> list[dict[str, Any]]:
    """Return small definitions of kinds of other projects, for a cluster without their own definitions."""
    return _all(resources.files("sandbox") / "crds")


def _all(folder: Traversable) -> list[dict[str, Any]]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for file in files for document in yaml.load_all(file.read_text("utf-8"), loader)]
