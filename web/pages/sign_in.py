"""The page to sign in, which is also the answer to a request of somebody who is not in."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlencode

from aiohttp import web

from web.credentials.session import LONGEST
from web.html import Element, element, shown
from web.problems import SignedOut
from web.visit import Browser, form, plain_page

#: The longest address to go to after a sign-in: a browser keeps it in one cookie meanwhile.
_LONGEST_PATH = 1000


def sign_in(why: SignedOut | None, browser: Browser, to: str, *, takes_tokens: bool, has_oidc: bool) -> web.Response:
    """Return the page. `to` is where the person wanted to go."""
    content: list[Element | str] = [element("h1", "Sign in")]
    if why is not None:
        said = [element("strong", shown(why.text)), " ", why.to_do]
        content.append(element("p", *said, class_="notice warn", role="alert"))
    if has_oidc:
        way = element("a", "Sign in with your organization", href=f"/sign-in/oidc?{_to(to)}", class_="button primary")
        content.append(element("p", way))
    if takes_tokens:
        content.append(_by_token(browser, to, is_first=not has_oidc))
    status = HTTPStatus.OK if why is None else why.status
    return plain_page("Sign in", [element("div", *content, class_="narrow")], status)


def _by_token(browser: Browser, to: str, *, is_first: bool) -> Element:
    box = element(
        "textarea",
        name="token",
        id="token",
        rows=4,
        required="",
        maxlength=LONGEST,
        autocomplete="off",
        spellcheck="false",
        aria_describedby="token-hint",
    )
    hint = element(
        "p",
        "A bearer token that kubectl would send. For a service account run: ",
        element("code", "kubectl create token NAME -n NAMESPACE"),
        ". This page sees what the token may read, and keeps it in an encrypted cookie of this browser only.",
        id="token-hint",
        class_="hint",
    )
    button = element("button", "Sign in", type="submit", class_="button primary" if is_first else "button")
    return form(
        browser,
        "/sign-in",
        element("input", type="hidden", name="to", value=to),
        element("label", "Token", for_="token"),
        box,
        hint,
        button,
        class_="stack",
    )


def _to(to: str) -> str:
    return urlencode({"to": to})


def local_path(to: str) -> str:
    """Return an address of ours to go to; the overview for anything else."""
    plain = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if plain and len(to) <= _LONGEST_PATH and not to.startswith("/sign-") else "/"
