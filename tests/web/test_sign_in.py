"""Who comes in, with which credentials, and when they are out again."""

from __future__ import annotations

import asyncio

import pytest
from yarl import URL

from bizrq.kube.client import KubeClient
from sandbox.server import Sandbox
from tests.web.conftest import Pages, World, serving
from web.credentials.keys import Keyring
from web.reading.rights import Rights, read_rights
from web.reading.visitors import PROOF


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
    long = "/" + "x" * 2000
    for to in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "", long):
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


async def test_nothing_is_kept_of_a_token_that_the_api_server_has_not_accepted(world: World):
    async with Sandbox(controllers=False) as gone:
        server = gone.url
    async with serving(world, server=server) as pages:
        for number in range(3):
            assert (await pages.browser().sign_in(f"token-{number}")).status == 503
        assert len(pages.web.visitors) == 0


@pytest.mark.parametrize("sent", [b"\xff", "é".encode(), b"two words", b"x" * 20_000])
async def test_what_a_proxy_sends_and_is_no_token_signs_nobody_in(world: World, sent: bytes):
    async with serving(world, proxies=("127.0.0.0/8",)) as behind:
        answer = await asked(behind, b"Authorization: Bearer " + sent)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"The proxy sent something that is no token" in answer
        assert len(behind.web.visitors) == 0


async def asked(pages: Pages, header: bytes, path: bytes = b"/") -> bytes:
    """Return the answer to a request with a header that no client library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(pages.address).port)
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: here\r\nConnection: close\r\n" + header + b"\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_cookie_that_is_not_ours_is_not_sent_back(world: World, pages: Pages):
    for value in (b"x" * 40_000, b'"a\\015\\012X: y"', b"\xff", b"fixed"):
        head, _, page = (await asked(pages, b"Cookie: bizrq-browser=" + value, b"/sign-in")).partition(b"\r\n\r\n")
        made = [line for line in head.split(b"\r\n") if line.startswith(b"Set-Cookie: bizrq-browser=")]
        assert len(made) == 1
        assert len(made[0]) < 100
        assert b"form-token" in page


async def test_a_session_is_no_sign_in_under_way_and_the_other_way_round(world: World, pages: Pages):
    browser = await pages.signed_in(world.box.token)
    mine = {cookie.key: cookie.value.encode() for cookie in browser.session.cookie_jar}
    answer = await asked(pages, b"Cookie: bizrq-attempt=" + mine["bizrq-session.0"], b"/sign-in/done?code=1&state=2")
    assert answer.startswith(b"HTTP/1.1 401 ")
    attempt = Keyring(world.keys).seal(b'{"state":"a","nonce":"b","verifier":"c","to":"/"}').rstrip("=")
    answer = await asked(pages, b"Cookie: bizrq-session.0=" + attempt.encode())
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Your session has ended" in answer


async def test_a_user_who_signs_out_while_their_rights_are_read_fills_no_store(
    world: World, pages: Pages, monkeypatch: pytest.MonkeyPatch
):
    reading, going_on = asyncio.Event(), asyncio.Event()

    async def slowly(client: KubeClient) -> Rights:
        found = await read_rights(client)
        reading.set()
        await going_on.wait()
        return found

    browser = await pages.signed_in(await world.user("ada", "get", "list", "watch"))
    await browser.get("/")
    monkeypatch.setattr("web.reading.rights.read_rights", slowly)
    await asyncio.sleep(PROOF + 1)
    page = asyncio.create_task(browser.get("/"))
    await reading.wait()
    assert (await browser.post("/sign-out", {}, follow=False)).status == 303
    going_on.set()
    assert (await page).status == 401
    assert pages.web.visitors.shared.store is None


@pytest.mark.parametrize("broken", [b"Authorization: Bearer %s\x01", b"Cookie: x=%s" + b"x" * 60_000])
async def test_a_token_in_a_broken_request_is_not_in_the_log(
    pages: Pages, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], broken: bytes
):
    answer = await asked(pages, broken % b"very-secret")
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert "very-secret" not in caplog.text + "".join(capfd.readouterr())
