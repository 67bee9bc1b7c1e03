"""Who may read /metrics: a token with the right, checked by the API server, which is asked seldom and never awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest
import structlog.testing
from aiohttp import web

from bizrq import process
from bizrq.cli.rbac import METRICS_READER, manifests
from bizrq.kube.client import KubeClient
from bizrq.metrics_access import MetricsAccess
from bizrq.settings import settings
from sandbox.server import Sandbox
from tests.support.cluster import _free_ports
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, bound

PROMETHEUS = "system:serviceaccount:monitoring:prometheus"
#: Tokens of the users of this API server.
USERS = {"of-prometheus": PROMETHEUS, "of-alice": "alice", "of-nobody": ""}


@dataclass
class Reviews:
    """Answers TokenReviews by USERS, and counts what was asked."""

    asked: list[str] = field(default_factory=list)
    #: What is done instead: a status, or "hang".
    instead: Any = None

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith(("/tokenreviews", "/subjectaccessreviews")):
            return None
        self.asked.append(request.path.rpartition("/")[2])
        if self.instead == "hang":
            await asyncio.sleep(600)
        if self.instead is not None:
            return web.json_response({"kind": "Status", "message": "secret detail"}, status=self.instead)
        if request.path.endswith("/subjectaccessreviews"):
            return None
        body = orjson.loads(await request.read())
        user = USERS.get(body["spec"]["token"])
        status = {"user": {}} if user is None else {"authenticated": True, "user": {"username": user, "groups": ["g"]}}
        return web.json_response({**body, "status": status}, status=201)


@pytest.fixture
async def reviews(box: Sandbox, api: Any) -> Reviews:
    """The API server knows who the tokens belong to, and gives Prometheus the role that scrapers get."""
    found = Reviews()
    box.faults.append(found)
    [role] = [m.document for m in manifests(settings({}).registry, "x") if _is_reader(m.document)]
    await api.client.create(CLUSTER_ROLES, role)
    await api.client.create(CLUSTER_ROLE_BINDINGS, bound(METRICS_READER, PROMETHEUS))
    return found


def _is_reader(document: dict[str, Any]) -> bool:
    return (document["kind"], document["metadata"]["name"]) == ("ClusterRole", METRICS_READER)


@asynccontextmanager
async def scraped(access: MetricsAccess | None) -> AsyncIterator[aiohttp.ClientSession]:
    [port] = _free_ports(1)
    listener = await process.serve_metrics("127.0.0.1", port, lambda: "", access)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session
    finally:
        await listener.cleanup()


async def scrape(session: aiohttp.ClientSession, token: str | None, path: str = "/metrics") -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with session.get(path, headers=headers) as answer:
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        return answer.status, await answer.text()


def access_of(client: KubeClient | None) -> MetricsAccess:
    return MetricsAccess(client, asyncio.get_running_loop().time)


async def test_metrics_are_for_those_whom_the_cluster_lets_read_them(through: KubeClient, reviews: Reviews) -> None:
    async with scraped(access_of(through)) as session:
        status, text = await scrape(session, "of-prometheus")
        assert status == 200
        assert "bizrq_connections_cut_total" in text
        await asyncio.sleep(2)
        assert await scrape(session, "of-alice") == (403, "")
        await asyncio.sleep(2)
        assert await scrape(session, "made-up") == (401, "")
        await asyncio.sleep(2)
        assert await scrape(session, "of-nobody") == (401, "")
        assert await scrape(session, None) == (401, "")
        for path in ("/healthz", "/readyz"):
            assert await scrape(session, None, path) == (200, "ok")
        async with session.head("/metrics") as answer:
            assert answer.status == 401


async def test_whoever_runs_a_process_can_open_them_to_all() -> None:
    async with scraped(None) as session:
        assert (await scrape(session, None))[0] == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic b2Y6cHc=", "Bearer a b", "of-prometheus", "Bearer é", "Bearer \udcff"]
)
async def test_what_is_no_token_is_not_asked_about(through: KubeClient, reviews: Reviews, header: str) -> None:
    assert await access_of(through).status(header, "10.0.0.1") == 401
    assert reviews.asked == []


async def test_answers_hold_for_seconds(through: KubeClient, reviews: Reviews) -> None:
    access = access_of(through)
    for token, holds, status in (("of-prometheus", 30, 200), ("of-alice", 10, 403), ("made-up", 10, 401)):
        await asyncio.sleep(2)
        assert await access.status(f"Bearer {token}", "10.0.0.1") == status
        asked = len(reviews.asked)
        for _ in range(5):
            assert await access.status(f"bearer {token}", "10.0.0.1") == status
        await asyncio.sleep(holds - 3)
        assert await access.status(f"Bearer {token}", "10.0.0.1") == status
        assert len(reviews.asked) == asked
        await asyncio.sleep(4)
        assert await access.status(f"Bearer {token}", "10.0.0.1") == status
        assert len(reviews.asked) > asked


@pytest.mark.parametrize("instead", [403, 500, 429, "hang"])
async def test_an_api_server_that_does_not_answer_holds_nobody_up(
    through: KubeClient, reviews: Reviews, instead: Any
) -> None:
    """Who was let in stays in for seconds; others get 503 without a word about why, and the log has the reason."""
    loop = asyncio.get_running_loop()
    async with scraped(access_of(through)) as session:
        assert (await scrape(session, "of-prometheus"))[0] == 200
        reviews.instead = instead
        assert (await scrape(session, "of-prometheus"))[0] == 200
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(31)
            for token in ("of-prometheus", "of-alice"):
                began = loop.time()
                assert await scrape(session, token) == (503, "")
                assert loop.time() - began < 8
                assert await scrape(session, None, "/readyz") == (200, "ok")
        assert [entry["event"] for entry in logs] == ["the token of a scrape could not be checked"]
        reviews.instead = None
        assert (await scrape(session, "of-prometheus"))[0] == 200


async def test_strangers_make_us_ask_once_a_second_and_keep_nobody_out(through: KubeClient, reviews: Reviews) -> None:
    access, loop = access_of(through), asyncio.get_running_loop()
    assert await access.status("Bearer of-prometheus", "10.0.0.1") == 200
    began = loop.time()
    asked = len(reviews.asked)
    seen = set()
    for number in range(5000):
        seen.add(await access.status(f"Bearer guess-{number}", "10.6.6.6"))
    assert seen == {401, 503}
    assert len(reviews.asked) - asked <= 2 + loop.time() - began
    await asyncio.sleep(31)
    assert await access.status("Bearer guess", "10.6.6.6") == 401
    assert await access.status("Bearer of-alice", "10.6.6.6") == 503
    assert await access.status("Bearer of-prometheus", "10.6.6.6") == 200, "a token that was let in is asked about"
    assert await access.status("Bearer of-alice", "10.0.0.1") == 403, "another address is another one's"


async def test_many_addresses_make_us_ask_no_more_than_twenty_times_a_second(
    through: KubeClient, reviews: Reviews
) -> None:
    access = access_of(through)
    seen = [await access.status(f"Bearer guess-{number}", f"10.0.{number}.1") for number in range(25)]
    assert seen.count(401) <= 21
    await asyncio.sleep(11)
    for number in range(200):
        await access.status(f"Bearer more-{number}", f"10.1.{number}.1")
        await asyncio.sleep(0.1)
    kept = len(access._yes) + len(access._no)
    assert kept <= 100
    assert len(access._guesses) <= 20


async def test_without_a_cluster_no_token_can_be_checked() -> None:
    access = access_of(None)
    assert await access.status("Bearer x", "") == 503
    assert await access.status("", "") == 401
