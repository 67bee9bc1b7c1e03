"""The audit log of a real API server: who asked for what, and with which annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cluster import Real

_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
"""


def audited(folder: Path, rules: str, controllers: str = "namespace-controller") -> tuple[Real, Path]:
    """Return an API server to start, and the file of its audit log. `rules` are lines of an audit policy."""
    policy, log = folder / "policy.yaml", folder / "audit.log"
    policy.write_text(_POLICY + rules)
    # A line is there before its request is answered.
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-mode=blocking"]
    return Real(folder, controllers=controllers, flags={"kube-apiserver": flags}), log


def events(log: Path, start: int = 0) -> list[dict[str, Any]]:
    """Return what was logged, without the first `start` events."""
    return [json.loads(line) for line in log.read_text().splitlines()[start:]]
