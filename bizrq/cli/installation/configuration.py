"""The configuration that `bizrq install` gives to the processes.

This file alone decides it: what --config states, what is installed, and what a new installation starts with. A new one
requires the right `use`, because otherwise every namespace may charge every group (docs/rights.md).
"""

from __future__ import annotations

from typing import Any

from bizrq.api.config import RightsConfig
from bizrq.documents import load_all

_ADDED = '# rights.use is of bizrq install: docs/rights.md, "New installations".\n'


def configuration(given: str | None, installed: str | None) -> str:
    """Return the text of the configuration to install, "" for none.

    `given` is the text of --config, None without it; `installed` is the installed text, "" for an installation without
    one, None where nothing is installed. Both can be read. Where the text does not state `rights.use`, an upgrade keeps
    what is installed, and a new installation requires the right.
    """
    text = given if given is not None else installed or ""
    document = _document(text)
    if "use" in (document.get("rights") or {}):
        return text
    required = installed is None or requires_use(installed)
    return _with_use(document) if required else text


def requires_use(text: str) -> bool:
    """Return True if the processes ask for the right `use` with this configuration."""
    return bool((_document(text).get("rights") or {}).get("use", RightsConfig().use))


def _document(text: str) -> dict[str, Any]:
    documents = load_all(text)
    return (documents[0] if documents else None) or {}


def _with_use(document: dict[str, Any]) -> str:
    import yaml

    rights = {**(document.get("rights") or {}), "use": True}
    return _ADDED + yaml.safe_dump({**document, "rights": rights}, sort_keys=False, width=110)
