"""Sign-in at a provider, which the tests start."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from certs.pki import make_ca, make_serving
from tests.web.conftest import Browser, Pages, World, serving
from tests.web.test_live import listening
from web.credentials.oidc import RENEW, Oidc, Provider

CLIENT = "kubernetes"


class FakeProvider:
    """An OpenID provider over TLS. What it signs is a token that the sandbox knows, unless `strange` is set."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.key = ECKey.generate_key("P-256", {"kid": "one"})
        #: The key that it publishes, where that is not the one that it signs with.
        self.published: ECKey | None = None
        self.now = time.time()
        self.issuer = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.refresh_tokens: set[str] = set()
        self.renewals = 0
        #: Claims to put into tokens in place of the right ones.
        self.strange: dict[str, Any] = {}
        self.last = ""

    async def describe(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/auth",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
        )

    async def keys(self, request: web.Request) -> web.Response:
        return web.json_response(KeySet([self.published or self.key]).as_dict(private=False))

    def authorize(self, address: str) -> str:
        """What the provider's page does once a person has typed their password: return the query of the way back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked
        return f"?code={code}&state={asked['state']}"

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["client_id"] == CLIENT
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return web.json_response({"error": "invalid_grant"}, status=400)
            self.refresh_tokens.discard(str(form["refresh_token"]))
            self.renewals += 1
            return self._tokens({})
        asked = self.codes.pop(str(form["code"]), None)
        if asked is None or form["redirect_uri"] != asked["redirect_uri"]:
            return web.json_response({"error": "invalid_grant"}, status=400)
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
        return self._tokens({"nonce": asked["nonce"]})

    def _tokens(self, claims: dict[str, Any]) -> web.Response:
        said = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "ada",
            "exp": int(self.now) + 600,
            "jti": secrets.token_hex(4),
            **claims,
            **self.strange,
        }
        self.last = jwt.encode({"alg": "ES256", "kid": self.key.kid}, said, self.key)
        self.world.box.add_user("ada", token=self.last)
        refresh = secrets.token_urlsafe(8)
        self.refresh_tokens.add(refresh)
        return web.json_response(
            {"access_token": "x", "token_type": "Bearer", "id_token": self.last, "refresh_token": refresh}
        )


@pytest.fixture
async def provider(world: World, tmp_path: Path) -> AsyncIterator[tuple[FakeProvider, str]]:
    """The provider, and the certificate of its authority."""
    ca = make_ca(datetime.now(UTC))
    pair = make_serving(ca, ["127.0.0.1"], datetime.now(UTC))
    combined = tmp_path / "provider.pem"
    combined.write_bytes(pair.key_pem + pair.certificate_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(combined)
    fake = FakeProvider(world)
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", fake.describe)
    app.router.add_get("/keys", fake.keys)
    app.router.add_post("/token", fake.token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    fake.issuer = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield fake, ca.certificate_pem.decode()
    await runner.cleanup()


@pytest.fixture
async def pages(world: World, provider: tuple[FakeProvider, str]) -> AsyncIterator[Pages]:
    fake, ca = provider
    await world.group("corp", cpu=10)
    await world.user("ada", "get", "list", "watch")
    known = Provider(fake.issuer, CLIENT, "hidden", ca=ca)
    async with serving(world, oidc=Oidc(known, "http://here/sign-in/done", clock=lambda: fake.now)) as pages:
        yield pages


async def signed_in(pages: Pages, fake: FakeProvider, to: str = "/tree") -> Any:
    browser = pages.browser()
    away = await browser.get(f"/sign-in/oidc?to={to}", follow=False)
    assert away.status == 303
    assert away.headers["Location"].startswith(f"{fake.issuer}/auth?")
    answer = await browser.get("/sign-in/done" + fake.authorize(away.headers["Location"]))
    return browser, answer


async def test_a_person_signs_in_at_the_provider_and_comes_back_to_their_page(pages: Pages, provider):
    fake, _ = provider
    browser, answer = await signed_in(pages, fake)
    assert (answer.status, answer.url.path) == (200, "/tree")
    assert "ada" in answer.words
    assert fake.last not in answer.text
    for cookie in browser.session.cookie_jar:
        assert fake.last not in cookie.value
    assert "Sign in with your organization" in (await pages.browser().get("/")).text


async def test_a_token_is_renewed_before_it_ends_once_for_all_requests(pages: Pages, provider):
    fake, _ = provider
    browser, _ = await signed_in(pages, fake)
    first = fake.last
    fake.now += 600 - RENEW + 1
    answers = await asyncio.gather(*(browser.get("/") for _ in range(5)))
    assert [answer.status for answer in answers] == [200] * 5
    assert fake.renewals == 1
    assert fake.last != first
    fake.world.box.remove_token(first)
    assert (await browser.get("/")).status == 200
    fake.now += 600 - RENEW + 1
    assert (await browser.get("/")).status == 200
    assert fake.renewals == 2


async def test_a_stream_ends_before_its_token_so_that_the_browser_comes_again_with_a_new_one(pages: Pages, provider):
    fake, _ = provider
    browser, _ = await signed_in(pages, fake)
    async with listening(browser, "/") as stream:
        fake.now += 600 - RENEW / 2 + 1
        assert await stream.event() == ("", "")
    asked = await browser.get("/live?since=x&ask=1")
    assert (asked.status, fake.renewals) == (204, 1)
    async with listening(browser, "/"):
        assert fake.renewals == 1


async def test_a_stream_that_finds_a_token_due_leaves_the_renewed_one_in_the_browser(pages: Pages, provider):
    fake, _ = provider
    browser, _ = await signed_in(pages, fake)
    before = {cookie.value for cookie in browser.session.cookie_jar}
    fake.now += 600 - RENEW + 1
    # As of a page that was hidden for long.
    assert ((await browser.get("/live?since=x")).status, fake.renewals) == (204, 1)
    assert {cookie.value for cookie in browser.session.cookie_jar} != before
    async with listening(browser, "/"):
        assert fake.renewals == 1


async def test_a_renewal_that_the_provider_refuses_ends_the_session(pages: Pages, provider):
    fake, _ = provider
    browser, _ = await signed_in(pages, fake)
    fake.refresh_tokens.clear()
    fake.now += 601
    # Another replica may have renewed it: the browser comes again once, by itself.
    answer = await browser.get("/tree")
    assert (answer.status, answer.headers["Refresh"]) == (503, "1")
    assert "Your sign-in is being renewed" in answer.words
    for _ in range(2):
        answer = await browser.get("/tree")
        assert (answer.status, "the provider refused it" in answer.words) == (401, True)
        await browser.get("/live?since=x&ask=1")


@pytest.fixture
async def replicas(world: World, provider) -> AsyncIterator[tuple[Pages, Pages]]:
    """Two processes with the same keys. They share nothing else."""
    fake, ca = provider
    known = Provider(fake.issuer, CLIENT, "hidden", ca=ca)
    await world.group("corp", cpu=10)
    await world.user("ada", "get", "list", "watch")
    one, two = (Oidc(known, "http://here/sign-in/done", clock=lambda: fake.now) for _ in range(2))
    async with serving(world, oidc=one) as first, serving(world, oidc=two) as second:
        yield first, second


def tab(first: Browser, pages: Pages) -> Browser:
    """The same browser, which a balancer leads to another process."""
    other = pages.browser()
    other.session.cookie_jar.update_cookies({each.key: each.value for each in first.session.cookie_jar})
    return other


def kept(browser: Browser) -> dict[str, str]:
    return {each.key: each.value for each in browser.session.cookie_jar if "session" in each.key}


@pytest.mark.parametrize("left", [RENEW // 3, -1], ids=["while the token is valid", "after its end"])
async def test_two_replicas_that_spend_a_renewal_at_the_same_time_sign_nobody_out(replicas, provider, left: int):
    fake, _ = provider
    first, _ = await signed_in(replicas[0], fake)
    second, before = tab(first, replicas[1]), kept(first)
    fake.now += 600 - left
    answers = await asyncio.gather(first.get("/"), second.get("/"))
    assert fake.renewals == 1
    [winner] = [each for each in (first, second) if kept(each) != before]
    [loser] = [each for each in (first, second) if each is not winner]
    assert sorted(answer.status for answer in answers) == ([200, 200] if left > 0 else [200, 503])
    # The stream of a page that came second finds a token due, and asks again until the browser has the new one.
    assert (await loser.get("/live?since=x&ask=1")).status == (204 if left > 0 else 401)
    # A browser has one jar for all tabs: what the first answer stored is there for the next request of the second.
    loser.session.cookie_jar.update_cookies(kept(winner))
    for browser in (loser, winner):
        assert (await browser.get("/")).status == 200
    assert fake.renewals == 1


async def test_a_form_that_meets_a_spent_renewal_changes_nothing_and_says_so(replicas, provider):
    fake, _ = provider
    first, _ = await signed_in(replicas[0], fake)
    second = tab(first, replicas[1])
    await second.get("/groups/corp/edit")
    fake.now += 601
    assert (await first.get("/")).status == 200
    answer = await second.post("/groups/corp/edit", {"hard:limits.cpu": "1", "step": "preview"})
    assert (answer.status, "Nothing was changed." in answer.words) == (503, True)
    assert "Refresh" not in answer.headers


@pytest.mark.parametrize(
    "strange",
    [{"aud": "other"}, {"iss": "https://evil.example"}, {"exp": 1000}, {"nonce": "other"}],
    ids=["audience", "issuer", "expired", "nonce"],
)
async def test_a_token_that_is_not_for_us_is_refused(pages: Pages, provider, strange):
    fake, _ = provider
    fake.strange = strange
    browser, answer = await signed_in(pages, fake)
    assert answer.status == 401
    assert (await browser.get("/")).status == 401


async def test_keys_that_the_provider_changed_are_read_again_and_others_are_refused(pages: Pages, provider):
    fake, _ = provider
    await signed_in(pages, fake)
    fake.key = ECKey.generate_key("P-256", {"kid": "two"})
    assert (await signed_in(pages, fake))[1].status == 200
    fake.published, fake.key = fake.key, ECKey.generate_key("P-256", {"kid": "two"})
    assert (await signed_in(pages, fake))[1].status == 401


async def test_an_answer_for_another_attempt_or_browser_is_refused(pages: Pages, provider):
    fake, _ = provider
    browser = pages.browser()
    away = await browser.get("/sign-in/oidc", follow=False)
    back = fake.authorize(away.headers["Location"])
    stranger = pages.browser()
    assert (await stranger.get("/sign-in/done" + back)).status == 401
    assert (await browser.get("/sign-in/done" + back.split("&state=")[0] + "&state=other")).status == 401
    assert (await browser.get("/sign-in/done?error=access_denied&state=x")).status == 401
    answer = await browser.get("/sign-in/done" + back)
    assert (answer.status, answer.url.path) == (200, "/")
    assert (await browser.get("/sign-in/done" + back)).status == 401


async def test_a_provider_that_is_away_is_said_in_a_line(world: World, provider):
    _, ca = provider
    known = Provider("https://127.0.0.1:9", CLIENT, ca=ca)
    async with serving(world, oidc=Oidc(known, "http://here/sign-in/done")) as pages:
        answer = await pages.browser().get("/sign-in/oidc")
        assert (answer.status, "The sign-in provider cannot be used" in answer.words) == (502, True)
