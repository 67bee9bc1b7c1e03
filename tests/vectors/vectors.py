"""The shared vectors: objects as people write them, and what they must cost.

They are outside of the project; tests/conftest.py knows where. Without them these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

#: The one in C where it is there: each worker of the tests reads all vectors.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: What is not built yet, by the vector's name, and why. Nothing else is left out, and the summary line names them.
NOT_YET: dict[str, str] = {}


def workloads(directory: Path) -> list[Any]:
    return [_case(vector) for vector in _read(directory / "workloads.yaml") or []] or _none(directory)


def devices(directory: Path) -> list[Any]:
    content = _read(directory / "devices.yaml")
    if content is None:
        return _none(directory)
    cases = []
    for vector in content["vectors"]:
        fixtures = [obj for name in vector.get("fixtures", []) for obj in content["fixtures"][name]]
        config = {**content["defaultConfig"], **vector.get("config", {})}
        cases.append(_case({**vector, "config": config, "related": [*vector.get("objects", []), *fixtures]}))
    return cases


def transitions(directory: Path) -> list[Any]:
    content = _read(directory / "transitions.yaml")
    if content is None:
        return _none(directory)
    [bases] = [entry["base_objects"] for entry in content if "base_objects" in entry]
    return [_case({**entry, "old": bases[entry["base"]]}) for entry in content if "base" in entry]


def recounts(directory: Path) -> list[Any]:
    content = _read(directory / "devices.yaml")
    if content is None:
        return _none(directory)
    cases = []
    for vector in content["reconcileVectors"]:
        fixtures = [obj for name in vector.get("fixtures", []) for obj in content["fixtures"][name]]
        config = {**content["defaultConfig"], **vector.get("config", {})}
        cases.append(_case({**vector, "config": config, "related": [*vector.get("objects", []), *fixtures]}))
    return cases


def hours(directory: Path) -> list[Any]:
    content = _read(directory / "devices.yaml")
    if content is None:
        return _none(directory)
    config = content["defaultConfig"]
    return [_case({**vector, "config": {**config, **vector.get("config", {})}}) for vector in content["cashVectors"]]


def _read(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), _LOADER) if path.is_file() else None


def _case(vector: dict[str, Any]) -> Any:
    reason = NOT_YET.get(vector["name"])
    marks = [pytest.mark.skip(reason=f"not built yet: {reason}")] if reason else []
    return pytest.param(vector, id=vector["name"], marks=marks)


def _none(directory: Path) -> list[Any]:
    reason = f"the vectors are not here: set BIZRQ_VECTORS to their directory (looked in {directory})"
    return [pytest.param(None, id="no-vectors", marks=pytest.mark.skip(reason=reason))]
