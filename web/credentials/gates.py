"""Who comes in: by the key of `bizrq web`, by a session cookie, or by a proxy that has signed them in.

This file alone decides which credentials a request has. It does not ask whether they are good: the API server does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Protocol

from aiohttp import web

from bizrq.listener import peer_of
from web.credentials import session
from web.credentials.keys import Keyring
from web.credentials.oidc import RENEW, Oidc
from web.credentials.session import CookieNames, Session
from web.problems import SignedOut
from web.reading.visitors import Visitor, Visitors

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Admitted:
    """A user who is in. `renewed` is a session to store in the browser, None where it has the right one.

    `lasts` returns False when a stream has to end, so that the browser comes again and its session is renewed.
    """

    visitor: Visitor
    renewed: Session | None = None
    lasts: Callable[[], bool] = lambda: True


class Gate(Protocol):
    #: The ways to sign in that a page offers.
    takes_tokens: bool
    oidc: Oidc | None
    #: True where a person can sign out: the browser holds what let them in.
    can_leave: bool

    async def admit(self, request: web.Request) -> Admitted:
        """Return the user of a request. Raise SignedOut or Problem."""
        ...


class LocalGate:
    """The one user of `bizrq web`. The key of the printed address is spent by its first use."""

    takes_tokens = False
    oidc: Oidc | None = None
    can_leave = False

    def __init__(self, visitors: Visitors, names: CookieNames) -> None:
        self._visitors = visitors
        self._names = names
        self.key = secrets.token_urlsafe(24)
        self._spent = False
        self._cookie = ""

    async def admit(self, request: web.Request) -> Admitted:
        given = request.cookies.get(self._names.session, "")
        if not self._cookie or not _same(given, self._cookie):
            raise SignedOut(
                "This browser has not opened the address that bizrq web printed.",
                "Open that address. It works once: for another browser, start bizrq web again.",
            )
        return Admitted(self._visitors.local())

    def spend(self, key: str) -> str:
        """Return the cookie that a key is worth. Raise SignedOut for a wrong one and for one that is spent."""
        if self._spent or not _same(key, self.key):
            raise SignedOut(
                "The key in this address is wrong, or was used already.", "Start bizrq web again for a new one."
            )
        self._spent = True
        self._cookie = secrets.token_urlsafe(32)
        return self._cookie


class ClusterGate:
    """The users of `bizrq-web`: those of sessions, and those that a trusted proxy has signed in."""

    can_leave = True

    def __init__(
        self,
        visitors: Visitors,
        names: CookieNames,
        keys: Keyring,
        *,
        oidc: Oidc | None = None,
        proxies: Sequence[Network] = (),
        takes_tokens: bool = True,
    ) -> None:
        self._visitors = visitors
        self._names = names
        self._keys = keys
        self._proxies = proxies
        self.oidc = oidc
        self.takes_tokens = takes_tokens

    async def admit(self, request: web.Request) -> Admitted:
        if token := self._by_proxy(request):
            return Admitted(self._visitors.bearer(token))
        known = session.opened(request.cookies, self._names.session, self._keys)
        if known is None:
            is_there = f"{self._names.session}.0" in request.cookies
            raise SignedOut("Your session has ended." if is_there else "You are not signed in.")
        if self.oidc is None:
            return Admitted(self._visitors.bearer(known.token))
        now = await self.oidc.renewed(known)
        renewed = None if now == known else now
        # The streams of a person's pages do not end all at once: each would ask another replica for a renewal.
        early = RENEW / 2 + secrets.randbelow(RENEW // 2)
        return Admitted(self._visitors.bearer(now.token), renewed, partial(self.oidc.lasts, now, early))

    def _by_proxy(self, request: web.Request) -> str:
        """Return the token that a trusted proxy sent, "" where there is none. Raise SignedOut for what is no token."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not self._proxies or scheme.lower() != "bearer" or not token:
            return ""
        try:
            peer = ip_address(peer_of(request))
        except ValueError:
            return ""
        token = token.strip()
        if not token or not any(peer in network for network in self._proxies):
            return ""
        if not session.is_token(token):
            raise SignedOut("The proxy sent something that is no token.", "Tell your administrator.")
        return token


def _same(given: str, known: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), known.encode())
