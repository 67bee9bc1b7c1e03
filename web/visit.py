"""One request of a user who is in: what it asks for, and how its answer is made.

This file alone decides what is around the content of every page: its head, navigation and notices, and what follows
changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from aiohttp import web

from web import assets, guard
from web.html import Element, element, fragment, page, shown
from web.reading.hub import ALL, ShownGroups

if TYPE_CHECKING:
    from bizrq.settings import Settings
    from web.credentials.keys import Keyring
    from web.reading.views import ViewCache, Views
    from web.reading.visitors import Seen, Visitor

#: The pages that the header links to, by address.
NAVIGATION: Sequence[tuple[str, str]] = (("/", "Overview"), ("/tree", "Tree"), ("/fit", "Fit"), ("/hours", "Hours"))
_HTMX = {
    "includeIndicatorStyles": False,
    "allowEval": False,
    "allowScriptTags": False,
    "selfRequestsOnly": True,
    "historyEnabled": False,
    "defaultSettleDelay": 0,
    "defaultSwapDelay": 0,
}


@dataclass(frozen=True)
class Browser:
    """What a page needs to know of the browser: the value its forms are bound to, and the keys of their tokens."""

    value: str
    keys: Keyring

    def token(self) -> str:
        return guard.form_token(self.value, self.keys.of_forms[0])


@dataclass(frozen=True)
class Visit:
    """A request of a user. `form` has the fields of a POST, each with its last value."""

    request: web.Request
    visitor: Visitor
    browser: Browser
    settings: Settings
    can_leave: bool
    form: Mapping[str, str]
    cache: ViewCache
    lasts: Callable[[], bool]
    #: True where the answer brings the browser a renewed session; a stream cannot.
    is_renewed: bool = False

    def views(self, seen: Seen) -> Views:
        """Return the views of the groups that the user sees."""
        return self.cache.shared(seen.groups, seen.version) if seen.is_complete else self.cache.own(seen.groups)

    @property
    def wants_fragment(self) -> bool:
        """Return True if the page is there and only asks for its live part again."""
        return self.request.headers.get("HX-Request") == "true"

    @property
    def to(self) -> str:
        return self.request.path_qs


@dataclass(frozen=True)
class Live:
    """What a page follows: the groups of a scope. `seen` is what it shows, and a slow one is made less often."""

    seen: Seen
    scope: ShownGroups = ALL
    is_slow: bool = False

    def address(self, visitor: Visitor) -> str:
        asked = [("since", visitor.state(self.scope)), *(("slow", "1") for _ in range(self.is_slow))]
        asked += [("group", name) for name in sorted(self.scope.names)]
        asked += [("below", name) for name in sorted(self.scope.below)]
        return f"/live?{urlencode(asked)}"


def answer(
    visit: Visit,
    title: str,
    content: Sequence[Element | str],
    *,
    live: Live | None = None,
    above: Sequence[Element] = (),
    status: HTTPStatus = HTTPStatus.OK,
) -> web.Response:
    """Return a page. What is in `content` follows changes where `live` is given; `above` is never replaced."""
    attributes: dict[str, str] = {}
    if live is not None:
        attributes = {
            "hx_get": visit.to,
            "hx_trigger": "sse:changed",
            "hx_swap": "outerHTML",
            "hx_sync": "this:replace",
        }
    part = element("div", *content, id="live", **attributes)
    if visit.wants_fragment:
        return html(fragment(part), HTTPStatus.OK)
    notices = [away_notice(live.seen.away_since)] if live is not None and live.seen.away_since else []
    user = element(
        "div",
        element("span", shown(visit.visitor.name) or "you", class_="who", title="You are signed in as"),
        *([_leave(visit.browser)] if visit.can_leave else []),
        class_="user",
    )
    stream = live.address(visit.visitor) if live is not None else ""
    body = _body(title, [*above, part], path=visit.request.path, user=user, notices=notices, stream=stream)
    return html(page(_document(title, body)), status)


def plain_page(title: str, content: Sequence[Element | str], status: HTTPStatus) -> web.Response:
    """Return a page for somebody who is not in, or an error: without navigation and without what follows changes."""
    return html(page(_document(title, _body(title, content))), status)


def html(body: bytes, status: HTTPStatus) -> web.Response:
    response = web.Response(body=body, status=status, content_type="text/html", charset="utf-8")
    response.headers.update(guard.PRIVATE)
    response.enable_compression()
    return response


def away_notice(since: float) -> Element:
    """Return what is said while the API server is away."""
    at = datetime.fromtimestamp(since, UTC)
    text = f"Not current since {at:%H:%M} UTC: the API server does not answer. This page goes on by itself."
    return element("p", text, class_="notice warn", role="alert")


def form(browser: Browser, action: str, *content: Element | str, **attributes: object) -> Element:
    """Return a form that is sent by POST, with its token."""
    token = element("input", type="hidden", name=guard.FIELD, value=browser.token())
    return element("form", token, *content, method="post", action=action, **attributes)


def group_address(name: str, *more: str) -> str:
    return "/".join(("/groups", quote(name, safe=""), *more))


def _leave(browser: Browser) -> Element:
    return form(browser, "/sign-out", element("button", "Sign out", type="submit", class_="quiet"))


def _current(href: str, path: str) -> dict[str, str]:
    """Return the mark of the page that is open, and of the one above it."""
    if path == href:
        return {"aria_current": "page"}
    return {"aria_current": "true"} if href != "/" and path.startswith(f"{href}/") else {}


def _document(title: str, body: Element) -> Element:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="htmx-config", content=json.dumps(_HTMX)),
        element("title", f"{shown(title)} · bizrq"),
        element("link", rel="icon", type="image/svg+xml", href=assets.address("icon.svg")),
        *(element("link", rel="stylesheet", href=assets.address(name)) for name in ("app.css", "pages.css")),
        *(element("script", src=assets.address(name), defer="") for name in ("htmx.js", "app.js", "sse.js")),
    )
    return element("html", head, body, lang="en")


def _body(
    title: str,
    content: Sequence[Element | str],
    *,
    path: str = "",
    user: Element | None = None,
    notices: Sequence[Element] = (),
    stream: str = "",
) -> Element:
    brand = element("a", element("span", class_="mark", aria_hidden="true"), "bizrq", href="/", class_="brand")
    links = [element("li", element("a", text, href=href, **_current(href, path))) for href, text in NAVIGATION]
    inside = [element("nav", element("ul", *links), aria_label="Pages"), user] if user is not None else []
    return element(
        "body",
        element("a", "Skip to content", href="#main", class_="skip"),
        element("header", brand, *inside, class_="top"),
        element(
            "main",
            element("div", *notices, id="notices", **({"sse_swap": "notice"} if stream else {})),
            element("div", id="offline", role="status"),
            *content,
            id="main",
            tabindex="-1",
        ),
        element("footer", f"bizrq {version('bizrq')}", class_="foot"),
        **({"hx_ext": "sse", "sse_connect": stream, "sse_close": "ended"} if stream else {}),
    )
