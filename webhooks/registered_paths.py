"""Keeps a process from becoming ready while the stored registration is of a version that it cannot work beside.

That is so after a rollback, and after an upgrade that gives a path up. The API server would get 404 from it for a path
that it does not serve, and it would refuse growth where a reservation is of a format that it does not read. The
controller's leader of the same version ends both (`controller.registration`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from bizrq import registration
from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError, Forbidden, KubeClient, Unreachable
from bizrq.quota import reservation
from bizrq.store import registered

log = structlog.get_logger(__name__)

#: Seconds between two looks, and those after which API servers send reviews by the registration that is stored.
_PAUSE, _SETTLES = 1.0, 3.0
#: Seconds within which processes of a newer version write an older format again.
_STOPS: Final = 10.0
#: Seconds after which a process is ready all the same: the leader may be of another version for good.
_LONGEST: Final = 120.0


class RegisteredPaths:
    """Looks at the registration until it has only paths that are served, and a format that is read."""

    def __init__(
        self,
        client: KubeClient,
        served: Collection[str],
        groups: Callable[[], Iterable[GroupObject]] = tuple,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`groups` returns those that are cached. `clock` returns seconds."""
        self._client = client
        self._served = served
        self._groups = groups
        self._clock = clock
        #: From when on reservations of a format that is not read become no more; None where there were none.
        self._only_known_from: float | None = None
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
            stored = await registered.stored(self._client)
        except Forbidden as error:
            log.warning("cannot tell which paths are registered: apply the roles of this version", error=str(error))
            return ""
        except (ApiError, Unreachable) as error:
            return f"the registration cannot be read: {error}"
        if stored is None or not registration.is_ours(stored):
            return ""
        about_format = self._format_problem(registration.format_of(stored))
        names = [webhook["name"] for webhook in registration.unserved(stored, self._served)]
        if not names:
            return about_format
        return (
            f"the registration sends reviews to paths that this version does not have ({', '.join(names)[:200]}): "
            "the controller of this version takes them out once it leads"
        )

    def _format_problem(self, written: str) -> str:
        """Return why reservations keep the process from being ready, "" for nothing."""
        if written not in reservation.FORMATS:
            self._only_known_from = self._clock() + _STOPS
            return (
                f"reservations are written in format {written}, which this version does not read: the controller of "
                "this version ends that once it leads"
            )
        if self._only_known_from is None:
            return ""
        if self._clock() < self._only_known_from:
            return "processes of a newer version stop to write reservations in their format"
        for group in self._groups():
            if not all(map(reservation.is_known_format, group.status.reservations)):
                return f"group {group.name} has reservations of a newer version; they go within a minute"
        return ""
