"""Show the figures of a group only to people who may read or use it (docs/rights.md, "Who sees figures").

This file alone decides who they are. It asks the API server only for an answer that has figures, so that what is
admitted without a warning costs nothing. Where it cannot find out in time, the figures are left out. Controllers are
shown none: what they are told stands in events and conditions, which others read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from bizrq.api.review import Request, UserInfo
from bizrq.kube.client import ApiError, Unreachable
from bizrq.quota.verdict import Denied
from bizrq.store.ports import AccessReviewer
from webhooks.charging.deadline import Deadline
from webhooks.charging.owner_trust import is_controller
from webhooks.handlers.answer import Answer

log = structlog.get_logger(__name__)

#: One of these rights on a group is enough.
_VERBS = ("get", "use")
#: Seconds that an answer waits for a review, and seconds that a review holds.
WAIT, HOLDS = 1.0, 10.0
#: Reviews that are known or under way at most, and those that are under way at most.
MOST_KNOWN, MOST_UNDER_WAY = 1_024, 32


@dataclass(eq=False, slots=True)
class _Asked:
    """A review of a user's rights on a group: None where it failed. It holds until `until`, in seconds of the clock."""

    review: asyncio.Task[bool | None]
    until: float


class Disclosure:
    """Leaves figures out of answers; one for each process."""

    def __init__(self, reviewer: AccessReviewer, clock: Callable[[], float], controllers: Sequence[str] = ()) -> None:
        """`controllers` are accounts that act for others, in addition to Kubernetes' own, with `*` for any text."""
        self._reviewer = reviewer
        self._controllers = controllers
        self._clock = clock
        #: By user and group, the review that is oldest first.
        self._asked: OrderedDict[tuple[bytes, str], _Asked] = OrderedDict()

    async def shown(self, request: Request, answer: Answer, deadline: Deadline) -> Answer:
        """Return the answer as the user of the request may see it."""
        verdict, warned = answer.verdict, answer.figures
        told = verdict.figures if isinstance(verdict, Denied) else None
        if isinstance(verdict, Denied) and told and not await self._may_see(request.user_info, told.group, deadline):
            answer = replace(answer, verdict=verdict.without_figures())
        if warned is not None and not await self._may_see(request.user_info, warned.group, deadline):
            answer = replace(answer, warnings=[warned.hidden], figures=None)
        return answer

    async def close(self) -> None:
        """End the reviews that are under way."""
        for asked in self._asked.values():
            asked.review.cancel()
        await asyncio.gather(*(asked.review for asked in self._asked.values()), return_exceptions=True)

    async def _may_see(self, user: UserInfo | None, group: str, deadline: Deadline) -> bool:
        """Return True if the user may read or use the group; requests at the same moment share a review."""
        if user is None or is_controller(user, self._controllers):
            return False
        key = hashlib.sha256(msgspec.json.encode(user)).digest(), group
        asked = self._asked.get(key)
        if asked is None or asked.until <= self._clock():
            if sum(not known.review.done() for known in self._asked.values()) >= MOST_UNDER_WAY:
                return False
            review = asyncio.create_task(self._review(user, group), name=f"who sees {group}")
            asked = self._asked[key] = _Asked(review, self._clock() + HOLDS)
            self._asked.move_to_end(key)
            self._trim()
        try:
            async with asyncio.timeout(min(WAIT, deadline.seconds_left())):
                may = await asyncio.shield(asked.review)
        except TimeoutError:
            return False
        if may is None and self._asked.get(key) is asked:
            # Ask again for the next answer.
            del self._asked[key]
        return may is True

    async def _review(self, user: UserInfo, group: str) -> bool | None:
        try:
            for verb in _VERBS:
                if await self._reviewer.may(user, verb, group, WAIT):
                    return True
        except (ApiError, Unreachable) as error:
            log.warning("figures left out: rights could not be checked", group=group, error=str(error))
            return None
        return False

    def _trim(self) -> None:
        """Forget the oldest reviews beyond the bound, except those under way."""
        for key in list(self._asked):
            if len(self._asked) <= MOST_KNOWN:
                break
            if self._asked[key].review.done():
                del self._asked[key]
