"""What an open page hears: that its groups changed, that figures are not current, that its user is signed out.

This file alone decides when a stream says something and when it ends. A stream carries no figures: the page asks for
them again, with the rights that its user then has.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web

from web import guard, metrics
from web.html import Element, element, fragment, shown
from web.problems import Problem, SignedOut
from web.reading.hub import ShownGroups
from web.visit import Visit, away_notice

#: The least time in seconds between two messages that groups changed, and of a page that takes long to make.
PACE, SLOW = 1.0, 10.0
#: Pages that are asked to load again at once, and how many a second while groups change without end. To make a page
#: takes a millisecond of CPU or more, and who looks must not slow down who creates.
AT_ONCE, A_SECOND = 100, 10.0
#: Seconds after which a stream looks at the rights of its user and says that it is there.
LOOK = 10.0
#: The most streams of the process: its port has connections left for pages.
MOST = 700
#: The most streams of one user, whatever tokens they have: nobody takes the streams of all others.
OF_ONE = 100
#: Groups that one stream may name, and groups whose children it may follow.
_NAMES = 500


class Turns:
    """When each stream may say that something changed: many at once after a calm, then at a steady rate."""

    def __init__(self, at_once: int = AT_ONCE, a_second: float = A_SECOND) -> None:
        self._ahead, self._gap = at_once / a_second, 1 / a_second
        self._last = 0.0

    def take(self, now: float) -> float:
        """Return the time of the next free turn, which is nobody else's then."""
        self._last = max(self._last + self._gap, now - self._ahead)
        return max(now, self._last)


class Streams:
    """All open streams of the process."""

    def __init__(self) -> None:
        self._turns = Turns()
        #: The name of the user of each.
        self._open: dict[asyncio.Task[None], str] = {}
        self._ended = False

    def end(self) -> None:
        """End all streams; browsers look for another replica then."""
        self._ended = True
        for task in self._open:
            task.cancel()

    async def serve(self, visit: Visit) -> web.StreamResponse:
        """Answer with a stream until the page is closed or its user is signed out. Raise Problem."""
        if len(self._open) >= MOST or self._ended:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages follow changes.", "Load the page again later."
            )
        user = visit.visitor.name
        if list(self._open.values()).count(user) >= OF_ONE:
            text = f"You have {OF_ONE} pages open that follow changes."
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, text, "Close some of them.")
        query = visit.request.query
        names: list[str] = query.getall("group", [])
        below: list[str] = query.getall("below", [])
        scope = ShownGroups(frozenset(names[:_NAMES]), frozenset(below[:_NAMES]))
        pace = SLOW if query.get("slow") else PACE
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", **guard.PRIVATE, **guard.HEADERS}
        )
        await response.prepare(visit.request)
        task = asyncio.ensure_future(_follow(visit, response, scope, query.get("since", ""), pace, self._turns))
        self._open[task] = user
        metrics.STREAMS.inc()
        try:
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, ConnectionError):
                raise error
        finally:
            task.cancel()
            del self._open[task]
            metrics.STREAMS.dec()
        return response


async def _follow(
    visit: Visit, response: web.StreamResponse, scope: ShownGroups, state: str, pace: float, turns: Turns
) -> None:
    visitor, clock = visit.visitor, asyncio.get_running_loop().time
    away: float | None = None
    due, has_turn = clock(), False
    await response.write(b"retry: 2000\n\n")
    with visitor.hub.listening(scope) as topic:
        # A browser whose session is due for renewal comes again by itself.
        while visit.lasts():
            visitor.touch()
            try:
                await visitor.prove()
            except SignedOut as error:
                await _say(response, "notice", _signed_out(error))
                await response.write(b"event: ended\ndata:\n\n")
                return
            if (visitor.away_since is None) != (away is None):
                away = visitor.away_since
                await _say(response, "notice", None if away is None else away_notice(away))
            if (now := visitor.state(scope)) != state:
                if not has_turn and due <= clock():
                    due, has_turn = turns.take(clock()), True
                if (early := due - clock()) > 0:
                    await asyncio.sleep(min(early, LOOK))
                    continue
                state, due, has_turn = now, clock() + pace, False
                await response.write(b"event: changed\ndata:\n\n")
            if not await topic.wait(LOOK):
                await response.write(b": here\n\n")


async def _say(response: web.StreamResponse, event: str, notice: Element | None) -> None:
    text = fragment(notice).decode().replace("\n", " ") if notice is not None else ""
    await response.write(f"event: {event}\ndata: {text}\n\n".encode())


def _signed_out(why: SignedOut) -> Element:
    link = element("a", "Sign in again", href="/sign-in")
    return element(
        "p", f"{shown(why.text)} This page is not updated any more. ", link, ".", class_="notice warn", role="alert"
    )
