"""The table of pages: which handler answers which address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from web.pages.correct import ask_correction, correct
from web.pages.create import create, new
from web.pages.delete import ask, delete
from web.pages.edit import change, edit
from web.pages.fit import fit_answer, fit_form
from web.pages.group import group, open_group
from web.pages.hours import bill_file, hours
from web.pages.overview import overview
from web.pages.tree import tree
from web.visit import Visit

Handler = Callable[[Visit], Awaitable[web.StreamResponse]]

PAGES: Sequence[tuple[str, str, Handler]] = (
    ("GET", "/", overview),
    ("GET", "/tree", tree),
    ("GET", "/groups", open_group),
    ("GET", "/groups/{name}", group),
    ("GET", "/groups/{name}/edit", edit),
    ("POST", "/groups/{name}/edit", change),
    ("GET", "/groups/{name}/delete", ask),
    ("POST", "/groups/{name}/delete", delete),
    ("GET", "/new", new),
    ("POST", "/new", create),
    ("GET", "/fit", fit_form),
    ("POST", "/fit", fit_answer),
    ("GET", "/hours", hours),
    ("GET", "/hours.csv", bill_file),
    ("GET", "/hours/{name}", hours),
    ("GET", "/hours/{name}/bill.csv", bill_file),
    ("GET", "/hours/{name}/correct", ask_correction),
    ("POST", "/hours/{name}/correct", correct),
)
