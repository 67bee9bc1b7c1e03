"""Which texts are manifests: documents of YAML or JSON that are Kubernetes objects. It knows no kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bizrq.documents import NotYAML, load_all
from bizrq.figures.errors import BadValue


def objects_of(text: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML or JSON text. Raise BadValue, also for none."""
    try:
        documents = load_all(text)
    except NotYAML as error:
        raise BadValue(str(error)) from None
    named = ((f"document {number}", document) for number, document in enumerate(documents, 1) if document is not None)
    found = checked_objects(named)
    if not found:
        raise BadValue("no objects found")
    return found


def checked_objects(documents: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return the documents, each of which must be an object with a kind. Each comes with its name. Raise BadValue."""
    found: list[dict[str, Any]] = []
    for where, document in documents:
        if not isinstance(document, dict):
            raise BadValue(f"{where}: not a Kubernetes object: apiVersion and kind are missing")
        for key in ("apiVersion", "kind"):
            if not isinstance(document.get(key), str):
                raise BadValue(f"{where}: not a Kubernetes object: {key} is missing")
        found.append(document)
    return found
