"""What a client's requests and an informer's watch show in metrics."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext
from urllib.parse import urlsplit

import pytest
from prometheus_client import REGISTRY

from bizrq.kube.client import Conflict, KubeClient, NotFound, Resource, Unreachable
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.informer import Informer
from bizrq.metrics import WatchAges, counted_write, observed
from tests.support.fake_server import FakeServer

PODS = Resource("", "v1", "pods", "Pod")


def host(client: KubeClient) -> str:
    return urlsplit(client.server).netloc


def answered(client: KubeClient, method: str, code: str) -> float:
    labels = {"code": code, "method": method, "host": host(client)}
    return REGISTRY.get_sample_value("rest_client_requests_total", labels) or 0.0


def timed(client: KubeClient, verb: str) -> float:
    labels = {"verb": verb, "host": host(client)}
    return REGISTRY.get_sample_value("rest_client_request_duration_seconds_count", labels) or 0.0


async def test_each_answer_is_counted_by_code_method_and_host(server: FakeServer, client: KubeClient) -> None:
    observed(client)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "a"}}
    await client.create(PODS, pod)
    await client.get(PODS, "web", "a")
    with pytest.raises(NotFound):
        await client.get(PODS, "none", "a")
    assert answered(client, "POST", "201") == 1
    assert (answered(client, "GET", "200"), answered(client, "GET", "404")) == (1, 1)
    assert (timed(client, "POST"), timed(client, "GET")) == (1, 2)


async def test_a_read_that_is_tried_again_is_several_answers_and_one_duration(
    server: FakeServer, client: KubeClient
) -> None:
    observed(client)
    server.refusals += [(lambda _: True, 429, {"Retry-After": "0"})] * 2
    await client.list(PODS)
    assert (answered(client, "GET", "429"), answered(client, "GET", "200")) == (2, 1)
    assert timed(client, "GET") == 1


async def test_a_request_without_an_answer_has_the_code_error() -> None:
    async with KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({}))) as client:
        observed(client)
        with pytest.raises(Unreachable):
            await client.get(PODS, "web", "a")
        assert answered(client, "GET", "<error>") == 1


async def test_a_request_that_runs_out_of_time_has_the_code_error(server: FakeServer, client: KubeClient) -> None:
    observed(client)
    server.delay = 5
    with pytest.raises(Unreachable):
        await client.request("DELETE", PODS.path("a", "web"), timeout=0.1)
    assert (answered(client, "DELETE", "<error>"), timed(client, "DELETE")) == (1, 1)


async def test_a_watch_is_counted_and_not_timed(server: FakeServer, client: KubeClient) -> None:
    """It lasts for minutes, and would hide how long requests take."""
    observed(client)
    async with aclosing(client.watch(PODS, resource_version=str(server.revision))) as events:
        async for _ in events:
            break
    assert (answered(client, "GET", "200"), timed(client, "GET")) == (1, 0)


async def test_a_client_of_a_command_is_not_measured(server: FakeServer, client: KubeClient) -> None:
    await client.list(PODS)
    assert (answered(client, "GET", "200"), timed(client, "GET")) == (0, 0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_the_age_of_a_watch_is_the_time_since_the_server_said_anything(
    server: FakeServer, client: KubeClient
) -> None:
    """A bookmark is enough. A kind that is not installed has no watch, and no age."""
    clock = Clock()
    server.bookmark_every = None
    informer = Informer(client, PODS, on_change=lambda _old, _new: None, clock=clock)
    ages = WatchAges(lambda: [informer])

    def age() -> dict[str, float]:
        [family] = ages.collect()
        return {each.labels["resource"]: each.value for each in family.samples}

    clock.now += 7
    assert age() == {"pods": 7}, "nothing was heard since the start"
    task = asyncio.create_task(informer.run())
    try:
        await informer.synced.wait()
        assert age() == {"pods": 0}
        clock.now += 60
        assert age() == {"pods": 60}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "a"}}
        await client.create(PODS, pod)
        while age() != {"pods": 0}:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)
        clock.now += 60
        other = Informer(client, PODS, on_change=lambda _old, _new: None, clock=clock)
        both = WatchAges(lambda: [other, informer])
        [family] = both.collect()
        assert [each.value for each in family.samples] == [60], "the older of two watches of one kind"
        informer.installed = False
        assert age() == {}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "done"),
        (Conflict(409, "Conflict", "changed"), "conflict"),
        (NotFound(404, "NotFound", "gone"), "failed"),
        (Unreachable("away", sent=True), "failed"),
    ],
)
async def test_a_status_write_is_counted_by_its_result(error: Exception | None, result: str) -> None:
    def counts() -> dict[str, float]:
        return {
            each: REGISTRY.get_sample_value("bizrq_status_writes_total", {"result": each}) or 0.0
            for each in ("done", "conflict", "failed")
        }

    before = counts()
    with pytest.raises(type(error)) if error is not None else nullcontext(), counted_write():
        if error is not None:
            raise error
    assert counts() == {**before, result: before[result] + 1}
