"""The CustomResourceDefinitions of bizrq, as they are applied, and the sandbox's stand-ins for others' kinds."""

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml


def load() -> list[dict[str, Any]]:
    """Every CustomResourceDefinition of bizrq, parsed anew."""
    return _all(resources.files(__name__))


def stand_ins() -> list[dict[str, Any]]:
    """Small definitions of kinds that other projects own, for trying bizrq where those are not installed."""
    return _all(resources.files("sandbox") / "crds")


def _all(folder: Traversable) -> list[dict[str, Any]]:
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for file in files for document in yaml.load_all(file.read_text("utf-8"), loader)]
