"""Who comes in, with which credentials, and when they are out again."""

from __future__ import annotations

import asyncio

from sandbox.server import Sandbox
from tests.web.conftest import Pages, World, serving
from web.visitors import PROOF


async def test_nobody_is_in_without_signing_in_and_is_shown_the_form(pages: Pages):
    browser = pages.browser()
    for path in ("/", "/tree", "/groups/nlp", "/live"):
        answer = await browser.get(path)
        assert answer.status in (401, 404 if path.startswith("/groups") else 401), path
        if answer.status == 401:
            assert 'name="token"' in answer.text
            assert "You are not signed in" in answer.words


async def test_a_pasted_token_signs_in_and_is_neither_in_an_address_nor_in_a_page_nor_in_the_log(
    world: World, pages: Pages, capfd
):
    await world.group("corp", cpu=10)
    token = await world.user("ada", "get", "list", "watch")
    browser = pages.browser()
    await browser.get("/tree?q=co")
    assert browser.page is not None
    assert browser.page.field("to") == "/tree?q=co"
    answer = await browser.post("/sign-in", {"token": f"  Bearer {token}\n", "to": "/tree?q=co"})
    assert (answer.status, str(answer.url)) == (200, f"{pages.address}/tree?q=co")
    assert "ada" in answer.words
    said = "".join(capfd.readouterr())
    for each in (answer.text, str(answer.url), str(answer.headers), said):
        assert token not in each
    for cookie in browser.session.cookie_jar:
        assert token not in cookie.value
        assert cookie["httponly"]
        assert cookie["samesite"] == "Lax"


async def test_a_token_that_the_api_server_does_not_know_is_refused_at_once(pages: Pages):
    browser = pages.browser()
    for token, why in (
        ("unknown", "The API server does not accept this token"),
        ("", "That is not a token"),
        ("two words", "That is not a token"),
        ("é", "That is not a token"),
        ("x" * 20_000, "That is not a token"),
    ):
        answer = await browser.sign_in(token)
        assert (answer.status, why in answer.words) == (401, True), token[:20]
    assert len(pages.web.visitors) == 0


async def test_a_person_is_only_sent_to_addresses_of_ours(world: World, pages: Pages):
    for to in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", ""):
        browser = pages.browser()
        await browser.get("/sign-in")
        answer = await browser.post("/sign-in", {"token": world.box.token, "to": to}, follow=False)
        assert (answer.status, answer.headers["Location"]) == (303, "/")


async def test_another_replica_with_the_same_keys_knows_who_is_signed_in(world: World, pages: Pages):
    browser = await pages.signed_in(world.box.token)
    async with serving(world) as other:
        browser.address = other.address
        assert (await browser.get("/")).status == 200


async def test_a_token_that_ends_ends_the_session_within_a_minute(world: World, pages: Pages):
    token = await world.user("ada", "get", "list", "watch")
    browser = await pages.signed_in(token)
    world.box.remove_token(token)
    await asyncio.sleep(PROOF + 1)
    answer = await browser.get("/")
    assert answer.status == 401
    assert "The API server no longer accepts your credentials" in answer.words


async def test_a_person_signs_out_of_this_browser(world: World, pages: Pages):
    browser = await pages.signed_in(world.box.token)
    await browser.get("/")
    answer = await browser.post("/sign-out", {})
    assert (answer.status, answer.url.path) == (200, "/sign-in")
    assert (await browser.get("/")).status == 401
    assert len(pages.web.visitors) == 0


async def test_only_a_trusted_proxy_signs_people_in_by_a_header(world: World, pages: Pages):
    header = {"Authorization": f"Bearer {world.box.token}"}
    assert (await pages.browser().get("/", **header)).status == 401
    async with serving(world, proxies=("10.0.0.0/8", "127.0.0.0/8")) as behind:
        browser = behind.browser()
        assert (await browser.get("/")).status == 401
        assert (await browser.get("/", **header)).status == 200
        assert (await browser.get("/", Authorization="Bearer wrong")).status == 401
        assert (await browser.get("/", Authorization="Basic YTpi")).status == 401
    async with serving(world, proxies=("10.0.0.0/8",)) as elsewhere:
        assert (await elsewhere.browser().get("/", **header)).status == 401


async def test_every_request_to_the_api_server_has_the_users_own_credentials(world: World, pages: Pages):
    seen: set[tuple[str, str]] = set()

    async def note(request):
        seen.add((request.headers.get("Authorization", ""), request.headers.get("Impersonate-User", "")))

    token = await world.user("ada", "get", "list", "watch")
    world.box.faults.append(note)
    browser = await pages.signed_in(token)
    for path in ("/", "/tree"):
        assert (await browser.get(path)).status == 200
    assert seen == {(f"Bearer {token}", "")}


async def test_an_api_server_that_is_away_is_said_in_a_line(world: World):
    async with Sandbox(controllers=False) as gone:
        server = gone.url
    async with serving(world, server=server) as pages:
        answer = await pages.browser().sign_in("token")
        assert (answer.status, "The API server does not answer" in answer.words) == (503, True)
