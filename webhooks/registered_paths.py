"""Keeps a process from becoming ready while the stored registration has paths that it does not serve.

That is so after a rollback, and after an upgrade that gives a path up: the API server would get 404 from it, and reject
the write. The controller's leader of the same version takes such entries out (`controller.registration`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Final

import structlog

from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, Forbidden, KubeClient, NotFound, Unreachable

log = structlog.get_logger(__name__)

#: Seconds between two looks, and those after which API servers send reviews by the registration that is stored.
_PAUSE, _SETTLES = 1.0, 3.0
#: Seconds after which a process is ready all the same: the leader may be of another version for good.
_LONGEST: Final = 120.0


class RegisteredPaths:
    """Looks at the registration until it has only paths that are served."""

    def __init__(
        self, client: KubeClient, served: Collection[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds."""
        self._client = client
        self._served = served
        self._clock = clock
        #: Why the process is not ready; "" where it is.
        self.problem = "the registration is not read yet"

    async def settle(self) -> None:
        """Return once the process may get ready, after two minutes at most."""
        until = self._clock() + _LONGEST
        has_waited = False
        while problem := await self._look():
            if self._clock() >= until:
                log.error("ready all the same: some reviews are rejected", problem=problem)
                break
            if problem != self.problem:
                log.warning("not ready yet", problem=problem)
            self.problem, has_waited = problem, True
            await asyncio.sleep(_PAUSE)
        if has_waited:
            await asyncio.sleep(_SETTLES)
        self.problem = ""

    async def _look(self) -> str:
        """Return why the process may not be ready, "" for nothing."""
        try:
            stored = await self._client.get(REGISTRATIONS, registration.NAME)
        except NotFound:
            return ""
        except Forbidden as error:
            log.warning("cannot tell which paths are registered: apply the roles of this version", error=str(error))
            return ""
        except (ApiError, Unreachable) as error:
            return f"the registration cannot be read: {error}"
        if not registration.is_ours(stored):
            return ""
        names = [webhook["name"] for webhook in registration.unserved(stored, self._served)]
        if not names:
            return ""
        return (
            f"the registration sends reviews to paths that this version does not have ({', '.join(names)[:200]}): "
            "the controller of this version takes them out once it leads"
        )
