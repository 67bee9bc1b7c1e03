"""Read kubeconfig files, which anyone may have written.

This file alone decides which shape a kubeconfig has and how several files become one. It opens no connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bizrq import documents
from bizrq.documents import NotYAML

#: The fields that are read of each section, and their types; null is as good as absent (client-go
#: tools/clientcmd/api/v1/types.go). Others may have any shape.
_SECTIONS: Mapping[str, Mapping[str, type]] = {
    "cluster": {
        "server": str,
        "certificate-authority": str,
        "certificate-authority-data": str,
        "insecure-skip-tls-verify": bool,
        "tls-server-name": str,
        "proxy-url": str,
    },
    "context": {"cluster": str, "user": str, "namespace": str},
    "user": {
        "token": str,
        "tokenFile": str,
        "username": str,
        "password": str,
        "client-certificate": str,
        "client-certificate-data": str,
        "client-key": str,
        "client-key-data": str,
        "exec": dict,
        "auth-provider": dict,
    },
}
#: Characters of a name, an address or a path, which messages repeat. Linux has no longer path.
_LONGEST_TEXT = 4096
#: No message repeats them.
_SECRETS = ("token", "password")
_FILE_KEYS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_WRITE = {str: "a text", bool: "true or false", dict: "a map of keys to values", list: "a list"}


class ConfigError(Exception):
    """A kubeconfig or a pod's environment names no usable cluster. The message is one line with what to correct."""


def merged(paths: list[Path]) -> dict[str, Any]:
    """Return the current-context, and sections by name: the first file that defines one wins. Raise ConfigError."""
    found: dict[str, Any] = {"current-context": "", "clusters": {}, "contexts": {}, "users": {}}
    read = False
    for path in paths:
        document = _document(path, alone=len(paths) == 1)
        if document is None:
            continue
        read = True
        found["current-context"] = found["current-context"] or _field(document, "current-context", str, str(path)) or ""
        for section in _SECTIONS:
            plural = f"{section}s"
            for index, entry in enumerate(_field(document, plural, list, str(path)) or []):
                name, value = _entry(entry, section, f"{path}: {plural}.{index}")
                found[plural].setdefault(name, _rooted(value, path.parent))
    if not read:
        raise ConfigError(f"{os.pathsep.join(map(str, paths)) or 'kubeconfig'}: there is no such file")
    return found


def _document(path: Path, alone: bool) -> dict[str, Any] | None:
    """Return the document of a file; None for one of several that is not there, as in kubectl. Raise ConfigError."""
    try:
        found = documents.load_all(documents.read(path))
    except FileNotFoundError:
        if not alone:
            return None
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except NotYAML as error:
        raise ConfigError(f"{path}: {error}") from None
    document = found[0] if len(found) == 1 else None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a kubeconfig")
    return document


def _entry(entry: object, section: str, where: str) -> tuple[str, dict[str, Any]]:
    """Return the name of an entry, and the fields of its section that are not null. Raise ConfigError."""
    name = _field(entry, "name", str, where) if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not name:
        raise ConfigError(f"{where} has no name")
    value = _field(entry, section, dict, where) or {}
    for key, kind in _SECTIONS[section].items():
        _field(value, key, kind, f"{where}.{section}")
    return name, {key: each for key, each in value.items() if each is not None}


def _field(section: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """Return a field, None if it is absent.

    Raise ConfigError for one of another type, and for a text that has many lines or is too long.
    """
    value = section.get(key)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{where}: {key} is of the wrong type: write {_WRITE[kind]}")
    # Base64 may have line breaks, and is decoded.
    if not isinstance(value, str) or key.endswith("-data"):
        return value
    if key not in _SECRETS and len(value) > _LONGEST_TEXT:
        raise ConfigError(f"{where}: {key} is longer than {_LONGEST_TEXT} characters")
    return checked(value, f"{where}: {key}")


def checked(text: str, what: str) -> str:
    """Return the text. Raise ConfigError if it has characters that no header, host or file name has."""
    if not text.isprintable():
        raise ConfigError(f"{what} has a control character: write one line of text")
    return text


def address(text: str, whose: str, example: str) -> str:
    """Return an address of HTTP without a trailing slash. Raise ConfigError for one that is not usable."""
    text = text.rstrip("/")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("https", "http") and parts.port != 0 and is_host(parts.hostname or "")
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{whose} like {example}, not {text[:256]!r}")
    return text


def is_host(name: str) -> bool:
    """Return whether a name can be resolved, or be that of a certificate."""
    try:
        return bool(name.encode("idna")) and not name.startswith(".")
    except UnicodeError:
        return False


def at_home(path: str) -> Path:
    """Return a path with its ~ resolved; unchanged for a user without a home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _rooted(section: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the section with absolute file names: those in a kubeconfig are relative to its directory."""
    rooted = dict(section)
    for key in _FILE_KEYS:
        if rooted.get(key):
            rooted[key] = str(directory.absolute() / at_home(rooted[key]))
    plugin = rooted.get("exec")
    if isinstance(plugin, dict) and "/" in (command := str(plugin.get("command", ""))):
        rooted["exec"] = {**plugin, "command": str(directory.absolute() / command)}
    return rooted
