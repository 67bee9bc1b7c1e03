"""The file of `bizrq doctor --bundle`: the state and the findings, without secrets.

This file alone decides what is left out. Secrets are never read. Of what is read, values that people put into
environment variables, tokens and private keys are replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from bizrq.cli.doctor.checks import Finding
from bizrq.cli.doctor.state import State

#: What kubectl keeps of a file that somebody applied, which may be another's.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HIDDEN = "hidden"
#: Keys whose values are secrets, wherever they are.
_SECRET = re.compile(r"(?i)(^|[-_.])(password|passwd|token|secret|credentials?|api[-_]?key|private[-_]?key)$")
_FLAG = re.compile(r"(?i)(--?[\w-]*(?:password|token|secret|key)[\w-]*=).+", re.DOTALL)
_PEM_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_URL = re.compile(r"(\w+://)[^/\s@]+@")


def document(state: State, found: Sequence[Finding]) -> dict[str, Any]:
    """Return what the file has."""
    return {
        "bizrq": version("bizrq"),
        "kubernetes": state.version_text,
        "at": state.now.isoformat(),
        "namespace": state.namespace,
        "findings": [asdict(finding) for finding in found],
        "lease": asdict(state.lease),
        "clockAhead": state.ahead,
        "configuration": _text(state.config or ""),
        "objects": [clean(each) for each in state.stored.values()],
        "groups": [clean(each) for each in state.groups],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a new file that its owner alone can read. Raise OSError, FileExistsError where there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def clean(value: Any) -> Any:
    """Return a copy of an object of the cluster without secrets. A caBundle is its digest."""
    if isinstance(value, list):
        return [clean(each) for each in value]
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict):
        return value
    cleaned: dict[str, Any] = {}
    for key, each in value.items():
        if key in ("managedFields", _LAST_APPLIED):
            continue
        if key == "caBundle":
            cleaned[key] = f"sha256:{hashlib.sha256(str(each).encode()).hexdigest()}"
        elif key == "env" and isinstance(each, list):
            cleaned[key] = [{**clean(one), "value": _HIDDEN} if _is_set(one) else clean(one) for one in each]
        elif _SECRET.search(key) and isinstance(each, str):
            cleaned[key] = _HIDDEN
        else:
            cleaned[key] = clean(each)
    return cleaned


def _is_set(variable: Any) -> bool:
    return isinstance(variable, dict) and "value" in variable


def _text(text: str) -> str:
    """Return a text without private keys, passwords of URLs and values of flags that are secret."""
    return _FLAG.sub(rf"\1{_HIDDEN}", _URL.sub(rf"\1{_HIDDEN}@", _PEM_KEY.sub(_HIDDEN, text)))
