"""The session of a person: who they are to the API server, sealed into cookies of their browser.

This file alone decides what a session holds, how long it lasts, and how it is split. No process keeps it: any replica
with the same keys reads it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from web.credentials.keys import Keyring

#: Seconds that a session lasts after it was last written.
SESSION_SECONDS = 12 * 3600
#: Bytes of one cookie's value, and the most of them: browsers keep 4096 bytes with the name and the attributes.
PART, PARTS = 3800, 6
#: The longest token, in characters: a browser keeps the session in a few cookies.
LONGEST = 16_000
#: Bytes of an opened session: nobody else seals one, but a short text may still expand to a long one.
_LARGEST = 64 * 1024


class Session(msgspec.Struct, omit_defaults=True, frozen=True):
    """The credentials of a person. `token` is the bearer token for the API server.

    With OIDC, `refresh` renews it, and `expires` is its end in Unix seconds; 0 is unknown.
    """

    token: str
    refresh: str = ""
    expires: int = 0


class SessionTooLarge(ValueError):
    """The credentials do not fit into the cookies of a browser."""


@dataclass(frozen=True, slots=True)
class CookieNames:
    """The cookies of this process. Over https browsers keep those with the prefix from any other host."""

    is_secure: bool
    suffix: str = ""

    @property
    def session(self) -> str:
        return self._name("session")

    @property
    def browser(self) -> str:
        """Return the random value to which forms are bound."""
        return self._name("browser")

    @property
    def attempt(self) -> str:
        """Return the state of a sign-in that is under way."""
        return self._name("attempt")

    @property
    def spent(self) -> str:
        """Return the mark of a renewal that was refused once."""
        return self._name("spent")

    def _name(self, what: str) -> str:
        return f"{'__Host-' if self.is_secure else ''}bizrq-{what}{self.suffix}"

    def set(self, response: web.StreamResponse, name: str, value: str) -> None:
        response.set_cookie(name, value, path="/", httponly=True, secure=self.is_secure, samesite="Lax")

    def delete(self, response: web.StreamResponse, name: str) -> None:
        response.del_cookie(name, path="/", httponly=True, secure=self.is_secure, samesite="Lax")


def is_token(text: str) -> bool:
    """Return True if a text can be sent as a bearer token."""
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable() and " " not in text


def sealed(session: Session, keys: Keyring) -> list[str]:
    """Return the values of the cookies. Raise SessionTooLarge."""
    text = keys.seal(zlib.compress(msgspec.json.encode(session), 9)).rstrip("=")
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    if len(parts) > PARTS:
        raise SessionTooLarge(f"the credentials take {len(text)} bytes, and cookies hold {PART * PARTS}")
    return parts


def opened(cookies: Mapping[str, str], name: str, keys: Keyring) -> Session | None:
    """Return the session of these cookies, None where there is none that is valid."""
    parts: list[str] = []
    while len(parts) < PARTS and (part := cookies.get(f"{name}.{len(parts)}")):
        parts.append(part)
    text = "".join(parts)
    body = keys.open(text + "=" * (-len(text) % 4), SESSION_SECONDS) if text else None
    if body is None:
        return None
    try:
        return msgspec.json.decode(zlib.decompressobj().decompress(body, _LARGEST), type=Session)
    except (zlib.error, msgspec.MsgspecError):
        return None


def store(response: web.StreamResponse, session: Session, names: CookieNames, keys: Keyring) -> None:
    """Write the session, and take away what a longer one has left. Raise SessionTooLarge."""
    parts = sealed(session, keys)
    for number in range(PARTS):
        name = f"{names.session}.{number}"
        if number < len(parts):
            names.set(response, name, parts[number])
        else:
            names.delete(response, name)


def forget(response: web.StreamResponse, names: CookieNames) -> None:
    for number in range(PARTS):
        names.delete(response, f"{names.session}.{number}")
