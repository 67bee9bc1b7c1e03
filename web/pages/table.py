"""The table of pages: which handler answers which address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from web.pages.group import group, open_group
from web.pages.overview import overview
from web.pages.tree import tree
from web.visit import Visit

Handler = Callable[[Visit], Awaitable[web.StreamResponse]]

PAGES: Sequence[tuple[str, str, Handler]] = (
    ("GET", "/", overview),
    ("GET", "/tree", tree),
    ("GET", "/groups", open_group),
    ("GET", "/groups/{name}", group),
)
