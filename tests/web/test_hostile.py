"""10,000 hostile names and reasons on the pages that show them: none becomes an element, an attribute or an address.

The pages are made without an API server, which would refuse most of these names. Each has the very elements of the
page with plain texts in the same places.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from bizrq.api.group import GroupObject, from_dict
from bizrq.api.hours import Statement, statement_of
from bizrq.figures.describe import GroupEvent
from bizrq.figures.hours.bills import make_bill
from bizrq.figures.hours.records import HoursRecords, select_lines
from bizrq.figures.simulate.charged import ChargedWorkload, ChargedWorkloads
from bizrq.hours.bill import GroupBy
from bizrq.settings import settings
from tests.support.records import W1, W2, spent, statement
from web.credentials.keys import Keyring
from web.html import element, fragment
from web.pages.bill import billed
from web.pages.ceilings import Refusal, ceilings, explained, people, typed_from
from web.pages.edit import refused
from web.pages.group import group
from web.pages.overview import overview
from web.pages.statements import stated
from web.pages.tree import tree
from web.reading.recent import RecentAnswer
from web.reading.rights import Rights
from web.reading.views import ViewCache
from web.reading.visitors import Seen, Visitor
from web.visit import Browser, Visit, group_address

#: Groups, texts of each, and how many of them have a page of their own here.
GROUPS, TEXTS, PAGES = 500, 20, 40
SEED = 1
_PIECES = (
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</title>", "</textarea>", "</svg>"),
    *("<svg onload=a>", "-->", "<!--", "]]>", "<![CDATA[", "<?php", "&lt;b&gt;", "&#60;b&#62;", "&", '"', "'", "`"),
    *("{{7*7}}", '" onmouseover="alert(1)', "' autofocus onfocus='a", "javascript:alert(1)//", "//evil.example/"),
    *("../../", "?a=b#c", "hx-get=/", "%3Cb%3E", "\u202e", "\u2066", "\x1b[31m", "\x00", "\r\n", "\u2028", "\ufeff"),
    *("é", "字", " ", "x"),
)


def hostile(drawn: random.Random) -> str:
    return "".join(drawn.choices(_PIECES, k=drawn.randint(1, 4)))


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes, and all addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "hx-get")]

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_pi = unknown_decl = handle_comment


_AT = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def stored(texts: list[str], number: int, parent: str) -> GroupObject:
    """A group with these texts wherever other people may write."""
    name, owner, contact, *rest = texts
    kinds = ("CashLow", "Ready", "OverQuota", rest[0], rest[1])
    conditions = [
        {"type": kind, "status": "True" if kind != "Ready" else "False", "reason": reason, "message": message, **_AT}
        for kind, reason, message in zip(kinds, rest[2:7], rest[7:12], strict=True)
    ]
    status = {
        "hard": {"limits.cpu": "4"},
        "used": {"limits.cpu": str(number % 6)},
        "selfUsed": {"limits.cpu": str(number % 6)},
        "observedGeneration": 1,
        "conditions": conditions,
        "ending": rest[12:14],
    }
    spec = {"hard": {"limits.cpu": 4}, "parentBizGroup": parent, "owner": owner, "contact": contact}
    metadata = {"name": name, "uid": f"u{number}", "generation": 1, "resourceVersion": "1"}
    return from_dict({"metadata": metadata, "spec": spec, "status": status})


class Reader:
    """A user who sees these groups, with workloads and events that have the same texts."""

    name = "ada"
    client = None

    def __init__(self, groups: dict[str, GroupObject], texts: list[str]) -> None:
        self.groups = groups
        self.recent = self
        a, b, c, d = texts[:4]
        self.workloads = ChargedWorkloads(
            (ChargedWorkload(a, b, c, {"limits.cpu": 10**9}), ChargedWorkload("Job", "ns", b, {}, error=d)), (d,), c
        )
        self.events = [GroupEvent("2026-01-01T00:00:00Z", a, b)]

    async def seen(self) -> Seen:
        return Seen(self.groups, True, None, Rights(lists=True), "1")

    async def group(self, name: str, seen: Seen) -> GroupObject:
        return seen.groups[name]

    async def get(self, question: str, make: object, seconds: float, *, follows: bool) -> RecentAnswer[Any]:
        return RecentAnswer(self.workloads if question.startswith("workloads") else self.events, 0)

    def state(self, scope: object) -> str:
        return ""


def visit(reader: Reader, path: str, name: str = "") -> Visit:
    request = make_mocked_request("GET", path, match_info={"name": name})
    browser, cache = Browser("x" * 22, KEYS), ViewCache(SETTINGS.catalog)
    return Visit(request, cast("Visitor", reader), browser, SETTINGS, True, {}, cache, lambda: True)


KEYS = Keyring(None)
SETTINGS = settings({})


def drawn_groups(plain: bool) -> list[list[str]]:
    """The texts of each group: hostile ones, or plain ones that are different where those are."""
    drawn = random.Random(SEED)
    made = [[f"{number}-{place}-{hostile(drawn)}" for place in range(TEXTS)] for number in range(GROUPS)]
    if not plain:
        return made
    return [[f"{number}-{place}-x" for place in range(TEXTS)] for number in range(GROUPS)]


def reader_of(texts: list[list[str]]) -> Reader:
    found: dict[str, GroupObject] = {}
    for number, each in enumerate(texts):
        made = stored(each, number, texts[(number - 1) // 4][0] if number else "")
        found[made.name] = made
    assert len(found) == GROUPS
    return Reader(found, texts[0])


async def shape(handler: Callable[[Visit], Awaitable[web.StreamResponse]], asked: Visit) -> Shape:
    response = await handler(asked)
    assert isinstance(response, web.Response)
    body = response.body
    assert isinstance(body, bytes)
    return Shape(body.decode())


def local(addresses: list[str]) -> Iterator[str]:
    """The addresses that lead elsewhere."""
    return (each for each in addresses if each[:1] not in ("/", "#") or each[:2] in ("//", "/\\"))


@pytest.mark.parametrize("path", ["/", "/tree", "/tree?view=table", "/tree?view=icicle", "/tree?q=-0-&sort=percent"])
async def test_no_name_or_reason_becomes_an_element_of_a_list(path: str):
    handler = overview if path == "/" else tree
    found, plain = [await shape(handler, visit(reader_of(drawn_groups(plain)), path)) for plain in (False, True)]
    assert list(local(found.addresses)) == []
    assert sorted(found.elements) == sorted(plain.elements)


async def test_no_name_or_reason_becomes_an_element_of_the_page_of_a_group():
    texts, plain_texts = drawn_groups(False), drawn_groups(True)
    readers = reader_of(texts), reader_of(plain_texts)
    drawn = random.Random(SEED).sample(range(GROUPS), PAGES)
    for number in drawn:
        found, plain = [
            await shape(group, visit(reader, "/groups/x", each[number][0]))
            for reader, each in zip(readers, (texts, plain_texts), strict=True)
        ]
        assert sorted(found.elements) == sorted(plain.elements), texts[number]
        assert list(local(found.addresses)) == []


async def test_no_text_becomes_an_element_of_a_form():
    """All 10,000 as the name of a ceiling, an amount, a contact and a refusal."""
    views = SimpleNamespace(groups={})
    expected = None
    for texts in drawn_groups(False):
        refusal = Refusal(texts[0], {text: text for text in texts})
        typed = typed_from({text: text for text in texts}, texts[1], texts[2])
        said, _ = refused(refusal, cast("Any", views), "", texts[3])
        form = element("div", ceilings(typed, None, None, refusal), people(typed), *said, *explained(texts[4]))
        made = Shape(fragment(form).decode())
        expected = expected or made.elements
        assert made.elements == expected, texts
        assert made.addresses == [], texts


def hours_of(texts: list[list[str]]) -> HoursRecords:
    """Statements with the same texts as groups, heirs, workloads and names; a record of each line is a word."""
    groups = reader_of(texts).groups
    statements: list[Statement] = []
    for number, (name, heir, odd, *rest) in enumerate(texts[:PAGES]):
        lines = [spent(f"deployments.apps/{rest[0]}/{each}".replace(" ", "_"), "gpu=1") for each in rest[1:5]]
        made = statement(name, W1, W2, *lines, heir=heir if number % 2 else "")
        made["metadata"]["name"] = odd
        statements.append(statement_of(made))
    return HoursRecords(groups, [], statements, SETTINGS.catalog, frozenset(texts[0][-2:]))


@pytest.mark.parametrize("by", [None, *GroupBy])
def test_no_text_becomes_an_element_of_a_bill_or_of_a_statement(by: GroupBy | None):
    """Nor does a character that a terminal or a browser obeys get through."""
    shapes: list[Shape] = []
    for plain in (False, True):
        books = hours_of(drawn_groups(plain))
        if by is None:
            content = stated(books, lambda name, start: group_address(name, start))
        else:
            bill = make_bill(books, None, select_lines(books, "all"), [by])
            content = billed(bill, group_address, element("a", "CSV", href="/csv"))
        text = fragment(element("div", *content)).decode()
        assert {char for char in text if not char.isprintable()} <= {"\n"}
        shapes.append(Shape(text))
    found, expected = shapes
    assert len(found.elements) > 10
    assert sorted(found.elements) == sorted(expected.elements)
    assert list(local(found.addresses)) == []


def test_the_texts_are_as_many_as_they_are_meant_to_be():
    texts = [text for each in drawn_groups(False) for text in each]
    assert len(set(texts)) == 10_000
