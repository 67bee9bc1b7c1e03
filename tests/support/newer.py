"""A later version of a process of bizrq, with a path, an entry of the registration and a format of reservations more.

`python -m tests.support.newer bizrq-webhooks ARGUMENT…`. It rejects the Deployment `not-with-the-newer-version`, and
writes reservations as `v2` where the registration says so.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bizrq import registration
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, KubeClient, Unreachable
from bizrq.quota import reservation
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store import registered
from webhooks.charging.deadline import Deadline
from webhooks.handlers.answer import answer
from webhooks.routes import Handler

#: The name of the Deployment that only this version rejects, and that of its entry.
REJECTED: Final = "not-with-the-newer-version"
ENTRY: Final = "newer.quota.biz.group"
#: The format of reservations that only this version knows.
FORMAT: Final = "v2"
_NEWER = registration.ReviewEndpoint("/validate/newer", ("CREATE",), "what {} refers to")
_RULE = {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"]}


async def _admit(request: Request, _: Deadline) -> Verdict:
    return Denied(Reason.NO_GROUP, "as the newer version says") if request.name == REJECTED else Granted()


def _write(written: str) -> None:
    patched: Any = reservation
    patched.WRITTEN = written


async def _follow(client: KubeClient) -> None:
    """Write reservations in the format that the registration names, until cancelled."""
    while True:
        try:
            stored = await registered.stored(client)
        except (ApiError, Unreachable):
            stored = None
        _write(registration.format_of(stored) if stored is not None else reservation.FORMATS[0])
        await asyncio.sleep(1.0)


def _patch_formats() -> None:
    """Add the format to the code of this process. Webhooks follow the registration; the leader decides it."""
    from controller.registration import RegistrationKeeper
    from webhooks.registered_paths import RegisteredPaths

    settle, decided = RegisteredPaths.settle, RegistrationKeeper._format

    async def newer_settle(paths: Any) -> None:
        await settle(paths)
        await _follow(paths._client)

    async def newer_format(keeper: RegistrationKeeper, *given: Any) -> str:
        _write(written := await decided(keeper, *given))
        return written

    patched: Any = reservation
    patched.FORMATS = (*reservation.FORMATS, FORMAT)
    paths: Any = RegisteredPaths
    paths.settle = newer_settle
    keeper: Any = RegistrationKeeper
    keeper._format = newer_format


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
    _patch_formats()
    importlib.import_module(f"{program.removeprefix('bizrq-')}.main").run()
