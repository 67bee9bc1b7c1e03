"""A later version of a process of bizrq, with a path and an entry of the registration that this one does not have.

`python -m tests.support.newer bizrq-webhooks ARGUMENT…`. It rejects the Deployment `not-with-the-newer-version`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bizrq import registration
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from webhooks.charging.deadline import Deadline
from webhooks.handlers.answer import answer
from webhooks.routes import Handler

#: The name of the Deployment that only this version rejects, and that of its entry.
REJECTED: Final = "not-with-the-newer-version"
ENTRY: Final = "newer.quota.biz.group"
_NEWER = registration.ReviewEndpoint("/validate/newer", ("CREATE",), "what {} refers to")
_RULE = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"]}


async def _admit(request: Request, _: Deadline) -> Verdict:
    return Denied(Reason.NO_GROUP, "as the newer version says") if request.name == REJECTED else Granted()


def _patch() -> None:
    """Add the path to the code of this process."""
    import webhooks.app

    configuration, handlers = registration.configuration, webhooks.app.handlers

    def newer_configuration(
        settings: Any, client_config: registration.ClientConfig, *, namespace: str
    ) -> dict[str, Any]:
        made = configuration(settings, client_config, namespace=namespace)
        entry = registration.Webhook("newer", _NEWER, [{**_RULE, "scope": "Namespaced"}])
        return {**made, "webhooks": [*made["webhooks"], entry.registered(client_config)]}

    def newer_handlers(*given: Any) -> Mapping[str, Handler]:
        return {**handlers(*given), _NEWER.path: partial(answer, _NEWER, _admit)}

    patched: Any = registration
    patched.configuration, patched.PATHS = newer_configuration, (*registration.PATHS, _NEWER.path)
    app: Any = webhooks.app
    app.handlers = newer_handlers


if __name__ == "__main__":
    program = sys.argv.pop(1)
    _patch()
    importlib.import_module(f"{program.removeprefix('bizrq-')}.main").run()
