"""What is refused before anything is looked at, and what every answer carries."""

from __future__ import annotations

import asyncio

import pytest

from tests.web.conftest import Pages, World
from web import guard
from web.problems import Problem

KEYS = [b"a" * 32, b"b" * 32]
ME, YOU = guard.new_browser(), guard.new_browser()


def test_a_forms_token_is_for_one_browser_and_any_valid_key_and_differs_each_time():
    one, two = guard.form_token(ME, KEYS[1]), guard.form_token(ME, KEYS[1])
    assert one != two
    for token in (one, two):
        guard.check_form(token, ME, KEYS)
    for token, browser, keys in ((one, YOU, KEYS), (one, "", KEYS), (one, ME, KEYS[:1]), ("", ME, KEYS)):
        with pytest.raises(Problem, match="The form is not from a page"):
            guard.check_form(token, browser, keys)
    for broken in ("é", "====", one[:-4], "A" * 3):
        with pytest.raises(Problem):
            guard.check_form(broken, ME, KEYS)


@pytest.mark.parametrize("path", ["/", "/sign-in", "/healthz", "/nothing", "/static/none.js", "/live"])
async def test_every_answer_has_the_policy_that_lets_nothing_foreign_in(pages: Pages, path: str):
    answer = await pages.browser().get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "Server" not in answer.headers


async def test_no_page_has_a_script_or_a_style_of_its_own(world: World, pages: Pages):
    await world.group("corp", cpu=10)
    browser = await pages.signed_in(world.box.token)
    for path in ("/", "/tree", "/tree?view=table", "/nothing"):
        text = (await browser.get(path)).text
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        assert all("src=" in script for script in text.split("<script")[1:])


async def test_a_form_of_another_site_is_refused(world: World, pages: Pages):
    browser = pages.browser()
    await browser.get("/sign-in")
    token = {"token": world.box.token}
    for origin in ("https://evil.example", "null", ""):
        answer = await browser.post("/sign-in", token, Origin=origin)
        assert (answer.status, "another site" in answer.text) == (403, True), origin
    answer = await browser.post("/sign-in", {**token, "form-token": "x"})
    assert (answer.status, "not from a page" in answer.text) == (403, True)
    stranger = pages.browser()
    assert browser.page is not None
    answer = await stranger.post("/sign-in", {**token, "form-token": browser.page.field("form-token")})
    assert answer.status == 403


async def test_a_form_that_is_too_large_is_refused_with_413_and_one_that_is_no_form_with_415(pages: Pages):
    browser = pages.browser()
    await browser.get("/sign-in")
    answer = await browser.post("/sign-in", {"token": "x" * 1024 * 1024})
    assert (answer.status, "larger than 1 MiB" in answer.text) == (413, True)
    answer = await browser.post("/sign-in", {f"hard:{number}": "1" for number in range(600)})
    assert (answer.status, "The form is not readable" in answer.text) == (400, True)
    async with browser.session.post(
        f"{pages.address}/sign-in", data=b"{}", headers={"Origin": pages.address, "Content-Type": "application/json"}
    ) as response:
        assert response.status == 415


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad header\x01: s3cret\r\n\r\n", b"400"),
        (b"\x16\x03\x01s3cret\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"s3cret" * 20_000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nExpect: <b>s3cret\r\n\r\n", b"417"),
        (b"CONNECT s3cret:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
    ],
)
async def test_a_broken_request_is_answered_by_a_page_of_ours_that_quotes_nothing(
    pages: Pages, sent: bytes, status: bytes
):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(pages.address.rpartition(":")[2]))
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.1 " + status, b"HTTP/1.0 " + status)), answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Security-Policy: default-src 'none'" in head
    assert b"text/html" in head
    assert b"Go to the overview" in body
    assert b"s3cret" not in answer


async def test_a_body_that_is_announced_is_asked_for(world: World, pages: Pages):
    browser = await pages.signed_in(world.box.token)
    answer = await browser.post("/groups/absent/edit", {"step": "preview"}, Expect="100-continue")
    assert answer.status == 404


async def test_an_unknown_page_and_a_wrong_method_are_pages_too(world: World, pages: Pages):
    browser = pages.browser()
    answer = await browser.get("/no/such")
    assert (answer.status, "There is no such page" in answer.text) == (404, True)
    await browser.get("/sign-in")
    assert (await browser.post("/tree", {})).status == 404
