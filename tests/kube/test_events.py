"""Events are written once, counted, kept within a budget, and never block the caller."""

from __future__ import annotations

import asyncio
from typing import Any

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.events import EventRecorder
from tests.support.fake_server import FakeServer

GROUP = {
    "apiVersion": "quota.biz.group/v1alpha1",
    "kind": "BizGroupResourceQuota",
    "metadata": {"name": "nlp", "uid": "u1", "resourceVersion": "7"},
}
WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "team-a", "uid": "u2"}


def events(server: FakeServer) -> list[dict[str, Any]]:
    return list(server.objects("events").values())


async def test_an_event_about_a_cluster_scoped_object_is_in_the_namespace_default(
    server: FakeServer, client: KubeClient
) -> None:
    async with EventRecorder(client, "bizrq-controller") as recorder:
        recorder.event(GROUP, "Warning", "OverQuota", "limits.cpu is\nover")
    (event,) = events(server)
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "quota.biz.group/v1alpha1",
        "kind": "BizGroupResourceQuota",
        "name": "nlp",
        "uid": "u1",
    }
    assert (event["reason"], event["message"], event["count"]) == ("OverQuota", "limits.cpu is over", 1)
    assert event["source"] == {"component": "bizrq-controller"}


async def test_an_event_about_a_workload_is_in_its_namespace(server: FakeServer, client: KubeClient) -> None:
    async with EventRecorder(client, "c") as recorder:
        recorder.event(WEB, "Normal", "Settled", "ok")
    assert events(server)[0]["metadata"]["namespace"] == "team-a"


async def test_repeats_are_counted_in_one_event(server: FakeServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, "c")
    for _ in range(3):
        recorder.event(WEB, "Normal", "Drift", "same")
    await recorder.close()
    assert [event["count"] for event in events(server)] == [3]

    recorder = EventRecorder(client, "c")
    recorder.event(WEB, "Normal", "Drift", "other")
    async with recorder:
        while len(events(server)) < 2:
            await _turn()
        recorder.event(WEB, "Normal", "Drift", "other")
    assert sorted(event["count"] for event in events(server)) == [2, 3]
    assert sum(request.startswith("PATCH") for request in server.requests) == 1


async def test_one_object_cannot_flood_the_cluster(server: FakeServer, client: KubeClient) -> None:
    now = [0.0]
    async with EventRecorder(client, "c", clock=lambda: now[0]) as recorder:
        for i in range(100):
            recorder.event(WEB, "Warning", f"Reason{i}", "x")
        recorder.event(GROUP, "Warning", "Other", "x")
        now[0] += 300
        recorder.event(WEB, "Warning", "Later", "x")
    assert len(events(server)) == 25 + 1 + 1
    assert recorder.dropped == 75


async def test_different_messages_of_one_reason_become_one_event(server: FakeServer, client: KubeClient) -> None:
    async with EventRecorder(client, "c") as recorder:
        for i in range(20):
            recorder.event(WEB, "Warning", "Denied", f"attempt {i}")
    texts = [event["message"] for event in events(server)]
    assert len(texts) == 10
    assert texts[-1] == "(combined from similar events): attempt 19"


async def test_an_event_is_sent_again_after_throttling_and_dropped_after_a_rejection(
    server: FakeServer, client: KubeClient
) -> None:
    server.refuse("POST", 429)
    server.refuse("POST", 500)
    recorder = EventRecorder(client, "c", first_pause=0.01)
    recorder.event(WEB, "Normal", "A", "x")
    while not events(server):
        await _turn()
    server.refuse("POST", 403)
    recorder.event(WEB, "Normal", "B", "x")
    while not recorder.dropped:
        await _turn()
    recorder.event(WEB, "Normal", "C", "x")
    await recorder.close()
    assert [event["reason"] for event in events(server)] == ["A", "C"]


async def test_an_event_that_expired_in_the_cluster_is_created_again(server: FakeServer, client: KubeClient) -> None:
    async with EventRecorder(client, "c") as recorder:
        recorder.event(WEB, "Normal", "A", "x")
        while not events(server):
            await _turn()
        await _turn()
        server.remove("events", events(server)[0]["metadata"]["name"], "team-a")
        recorder.event(WEB, "Normal", "A", "x")
    assert [event["count"] for event in events(server)] == [1]


async def test_an_unreachable_server_neither_raises_nor_blocks() -> None:
    async with KubeClient(Endpoint("http://127.0.0.1:9", StaticCredentials({}))) as client:
        recorder = EventRecorder(client, "c", first_pause=60)
        recorder.event(WEB, "Normal", "A", "x")
        recorder.event({}, "Normal", "A", "x")
        await recorder.close(0.1)
        recorder.event(WEB, "Normal", "A", "x")
        assert recorder.dropped == 3


async def _turn() -> None:

    await asyncio.sleep(0.005)
