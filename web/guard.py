"""What every answer carries, and which requests are refused before anything is looked at.

This file alone decides the content policy, which Host and Origin are ours, and whether a form came from one of our
pages. A form's token is bound to a random cookie of the browser, and looks different on every page.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus

from web.problems import Problem

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer, browsers send the Origin of a form as null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
#: A page has figures that only its reader may see.
PRIVATE: Mapping[str, str] = {"Cache-Control": "no-store"}
#: The field of a form with its token.
FIELD = "form-token"
#: Random bytes of the cookie and of each token.
_RANDOM = 16
_BROWSER = re.compile("[A-Za-z0-9_-]{22}")


def check_host(host: str | None, ours: Collection[str]) -> None:
    """Refuse a request for another name: a page of theirs whose name resolves to us. Raise Problem."""
    if host not in ours:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "The request is for another host.",
            f"Open http://{min(ours, default='127.0.0.1')}/ instead.",
        )


def check_origin(origin: str | None, ours: Collection[str]) -> None:
    """Refuse a write that does not come from a page of ours. Raise Problem."""
    if origin not in ours:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "The form comes from another site.",
            f"Open the page at {min(ours, default='its own address')} and send the form from there.",
        )


def new_browser() -> str:
    """Return a random value for a browser's cookie, to which its forms are bound."""
    return secrets.token_urlsafe(_RANDOM)


def is_browser(value: str) -> bool:
    """Return True if a cookie looks as `new_browser` made it: what others put there is not bound to forms."""
    return _BROWSER.fullmatch(value) is not None


def form_token(browser: str, key: bytes) -> str:
    """Return a token for one form."""
    nonce = secrets.token_bytes(_RANDOM)
    return urlsafe_b64encode(nonce + _mac(browser, nonce, key)).decode()


def check_form(token: str, browser: str, keys: Sequence[bytes]) -> None:
    """Refuse a form that no page of ours made for this browser. Raise Problem."""
    try:
        given = urlsafe_b64decode(token.encode("ascii"))
    except ValueError:
        given = b""
    nonce, mac = given[:_RANDOM], given[_RANDOM:]
    if not is_browser(browser) or not any(hmac.compare_digest(mac, _mac(browser, nonce, key)) for key in keys):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "The form is not from a page that this browser has loaded here, or is too old.",
            "Load the page again, and send the form again.",
        )


def _mac(browser: str, nonce: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"form\0" + nonce + browser.encode("utf-8", "replace"), hashlib.sha256)
