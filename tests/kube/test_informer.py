"""The snapshot equals the server's state after every fault of the server, its watches and its history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bizrq.kube.client import AnswerTooLarge, KubeClient, Resource
from bizrq.kube.informer import Informer, InformerTimings, log_absent
from tests.support.fake_server import FakeServer, Watching

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
QUICK = InformerTimings(
    watch=(1.0, 1.0),
    silence=0.3,
    initial=0.3,
    first_pause=0.01,
    longest_pause=0.05,
    calm=0.2,
    confirm=0.02,
    poll=0.05,
    lag=0.05,
)


# No silence within a test: each fault must be detected by other means.
PATIENT = replace(QUICK, silence=10.0, watch=(10.0, 10.0))


class Follower:
    """A running informer, with every change that it reported."""

    def __init__(self, client: KubeClient, **options: Any) -> None:
        self.told: list[tuple[str, str]] = []
        self.travels: list[tuple[int, int]] = []
        self.clock = 1000.0
        self.informer = Informer(
            client,
            DEPLOYMENTS,
            on_change=self._on_change,
            indexes={"group": lambda obj: [obj["metadata"].get("labels", {}).get("group", "")]},
            on_rollback=lambda before, now: self.travels.append((before, now)),
            clock=lambda: self.clock,
            pace=options.pop("pace", QUICK),
            **options,
        )
        self.store = self.informer.store

    def _on_change(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        kind = "added" if old is None else "deleted" if new is None else "changed"
        obj = new or old
        assert obj is not None
        self.told.append((kind, obj["metadata"]["uid"]))

    def names(self) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.store.values())

    def equals(self, server: FakeServer) -> bool:
        truth = {obj["metadata"]["uid"]: obj for obj in server.objects("deployments").values()}
        return {obj["metadata"]["uid"]: obj for obj in self.store.values()} == truth


@asynccontextmanager
async def following(client: KubeClient, **options: Any) -> AsyncIterator[Follower]:
    follower = Follower(client, **options)
    task = asyncio.create_task(follower.informer.run())
    try:
        await asyncio.wait_for(follower.informer.synced.wait(), 3)
        yield follower
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (anything may make it true)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("streams", [True, False])
async def test_follows_additions_changes_and_deletions(server: FakeServer, client: KubeClient, streams: bool) -> None:
    server.streams = streams
    old = server.put("deployments", "old")
    async with following(client) as f:
        assert f.names() == ["old"]
        assert f.store.resource_version >= 101
        new = server.put("deployments", "new", replicas=1)
        server.put("deployments", "new", replicas=2)
        server.remove("deployments", "old")
        await until(lambda: f.store.resource_version >= server.revision)
        assert f.equals(server)
        uid, gone = new["metadata"]["uid"], old["metadata"]["uid"]
        assert f.told == [("added", gone), ("added", uid), ("changed", uid), ("deleted", gone)]
        assert f.store.deleted_at(gone) == 1000.0
        f.clock += 301
        assert f.store.deleted_at(gone) is None


async def test_objects_from_a_list_have_their_kind(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    server.put("deployments", "a")
    async with following(client) as f:
        held = f.store.get("a", "default")
        assert held is not None
        assert (held["apiVersion"], held["kind"]) == ("apps/v1", "Deployment")


async def test_each_event_moves_the_snapshot_forward(server: FakeServer, client: KubeClient) -> None:
    server.bookmark_every = None
    async with following(client) as f:
        server.put("deployments", "a")
        await until(lambda: f.store.resource_version == server.revision, 0.5)
        server.remove("deployments", "a")
        await until(lambda: f.store.resource_version == server.revision, 0.5)
        assert f.informer.lists == 1


async def test_an_object_deleted_during_a_streamed_list_is_not_in_the_store(
    server: FakeServer, client: KubeClient
) -> None:
    server.short_lived = True
    server.put("deployments", "a")
    async with following(client) as f:
        assert f.names() == ["a"]
        assert f.told == [("added", "uid-1")]


async def test_a_server_that_repeats_history_changes_nothing(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    server.repeating = True
    server.put("deployments", "a", replicas=1)
    server.put("deployments", "b")
    server.remove("deployments", "b")
    server.put("deployments", "a", replicas=2)
    async with following(client) as f:
        server.put("deployments", "a", replicas=3)
        server.watch_faults = [Watching("break")]
        await until(lambda: f.informer.watches >= 3)
        await until(lambda: f.equals(server))
        assert f.told == [("added", "uid-1"), ("changed", "uid-1")]


async def test_a_reused_name_without_a_deletion_event_is_still_reported_as_a_deletion(
    server: FakeServer, client: KubeClient
) -> None:
    server.losing = "DELETED"
    first = server.put("deployments", "web")["metadata"]["uid"]
    async with following(client) as f:
        server.remove("deployments", "web")
        second = server.put("deployments", "web")["metadata"]["uid"]
        await until(lambda: f.equals(server))
        assert f.told == [("added", first), ("deleted", first), ("added", second)]
        assert f.store.by_uid(first) is None


async def test_a_hanging_watch_is_cut_and_a_list_catches_up(server: FakeServer, client: KubeClient) -> None:
    server.watch_faults = [Watching("silence", 1), *[Watching("silence")] * 10]
    server.streams = False
    server.put("deployments", "a")
    async with following(client) as f:
        lists = f.informer.lists
        server.put("deployments", "b")
        await until(lambda: f.informer.watches == 2)
        server.put("deployments", "c")
        await until(lambda: f.equals(server))
        assert f.informer.lists == lists + 1
        assert f.informer.failures == 0


async def test_a_bookmark_alone_moves_the_snapshot_forward(server: FakeServer, client: KubeClient) -> None:
    async with following(client, pace=PATIENT) as f:
        server.tick(50)
        await until(lambda: f.store.resource_version == server.revision, 1)
        assert f.told == []
        assert f.informer.lists == 1


@pytest.mark.parametrize("fault", ["gone", "break", "half line", "silence", "error", "end"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_watch_that_goes_wrong_loses_nothing(
    server: FakeServer, client: KubeClient, fault: str, after: int
) -> None:
    server.streams = False
    server.watch_faults = [Watching(fault, after)]
    server.put("deployments", "kept")
    server.put("deployments", "doomed")
    async with following(client) as f:
        for i in range(4):
            server.put("deployments", f"d{i}")
        server.remove("deployments", "doomed")
        if fault == "gone":
            server.compact()
        await until(lambda: f.equals(server) and f.store.resource_version >= server.revision)
        assert Counter(f.told).most_common(1)[0][1] == 1


@pytest.mark.parametrize("fault", ["gone", "break", "half line", "silence", "error", "end"])
async def test_a_failed_streamed_list_is_repeated(server: FakeServer, client: KubeClient, fault: str) -> None:
    server.watch_faults = [Watching(fault, 1), Watching(fault, 1)]
    server.put("deployments", "a")
    server.put("deployments", "b")
    async with following(client) as f:
        assert f.names() == ["a", "b"]
        assert "GET /apis/apps/v1/deployments" in server.requests


async def test_deletions_missed_before_a_compaction_are_reported_once(server: FakeServer, client: KubeClient) -> None:
    doomed = server.put("deployments", "doomed")["metadata"]["uid"]
    async with following(client) as f:
        await server.stop()
        server.remove("deployments", "doomed")
        server.put("deployments", "new")
        server.compact()
        await server.start()
        await until(lambda: f.equals(server))
        assert f.told.count(("deleted", doomed)) == 1
        assert f.store.deleted_at(doomed) is not None


async def test_a_reused_name_is_a_deletion_and_an_addition(server: FakeServer, client: KubeClient) -> None:
    first = server.put("deployments", "web")["metadata"]["uid"]
    async with following(client) as f:
        await server.stop()
        server.remove("deployments", "web")
        second = server.put("deployments", "web")["metadata"]["uid"]
        server.compact()
        await server.start()
        await until(lambda: f.equals(server))
        assert f.told == [("added", first), ("deleted", first), ("added", second)]
        held = f.store.get("web", "default")
        assert held is not None
        assert held["metadata"]["uid"] == second


async def test_one_stale_list_is_ignored(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    early = server.revision
    server.put("deployments", "a")
    async with following(client) as f:
        server.stale_lists = [early]
        f.informer.relist()
        await until(lambda: f.informer.stale_lists == 1)
        assert f.names() == ["a"]
        assert f.store.epoch == 0
        assert f.told == [("added", "uid-1")]


@pytest.mark.parametrize("away", [True, False])
async def test_a_restored_server_rolls_the_store_back_and_is_reported(
    server: FakeServer, client: KubeClient, away: bool
) -> None:
    server.put("deployments", "a", replicas=1)
    dump = server.revision
    server.put("deployments", "a", replicas=2)
    lost = server.put("deployments", "lost")["metadata"]["uid"]
    async with following(client) as f:
        before = f.store.resource_version
        if away:
            await server.stop()
        server.restore(dump)
        if away:
            await server.start()
        await until(lambda: f.equals(server) and f.store.epoch == 1)
        assert f.store.resource_version == dump
        assert f.travels == [(before, dump)]
        assert f.told.count(("deleted", lost)) == 1
        server.put("deployments", "b")
        await until(lambda: f.equals(server))


async def test_a_restored_server_without_bookmarks_is_noticed_when_its_watch_breaks(
    server: FakeServer, client: KubeClient
) -> None:
    server.bookmark_every = None
    server.put("deployments", "a")
    dump = server.revision
    server.put("deployments", "lost")
    async with following(client, pace=PATIENT) as f:
        server.restore(dump)
        server.cut()
        await until(lambda: f.equals(server) and f.store.epoch == 1)


async def test_a_server_restored_during_answers_of_503_is_noticed(server: FakeServer, client: KubeClient) -> None:
    dump = server.revision
    uid = server.put("deployments", "a", replicas=1)["metadata"]["uid"]
    async with following(client, pace=PATIENT) as f:
        server.refuse("GET", 503, times=4)
        server.cut()
        await until(lambda: not server.refusals)
        server.restore(dump)
        server.uids = iter([int(uid.removeprefix("uid-"))])  # type: ignore[assignment]
        server.put("deployments", "a", replicas=9)
        server.tick(100)
        await until(lambda: f.equals(server))


async def test_a_history_restored_and_moved_past_us_while_away_is_noticed(
    server: FakeServer, client: KubeClient
) -> None:
    """The restored history has a higher revision, and one of its numbers has another content."""
    dump = server.revision
    server.put("deployments", "a", replicas=1)
    async with following(client) as f:
        await server.stop()
        uid = next(iter(f.store.values()))["metadata"]["uid"]
        server.restore(dump)
        server.uids = iter([int(uid.removeprefix("uid-"))])  # type: ignore[assignment]
        server.put("deployments", "a", replicas=9)
        server.tick(100)
        await until(lambda: "cannot be reached" in (f.informer.problem or ""))
        await server.start()
        await until(lambda: f.equals(server))


async def test_a_kind_that_is_not_installed_counts_as_synced_and_is_picked_up_later(
    server: FakeServer, client: KubeClient
) -> None:
    server.missing = {"deployments"}
    async with following(client) as f:
        assert f.informer.installed is False
        assert len(f.store) == 0
        assert await f.informer.catch_up(10_000, 1)
        server.missing = set()
        server.put("deployments", "a")
        await until(lambda: f.informer.installed is True)
        assert f.equals(server)
        gone = next(iter(f.store.values()))["metadata"]["uid"]
        server.missing = {"deployments"}
        f.informer.relist()
        await until(lambda: f.informer.installed is False)
        assert f.told[-1] == ("deleted", gone)


async def test_one_404_of_a_server_that_starts_empties_nothing(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    server.put("deployments", "a")
    async with following(client) as f:
        server.refuse("GET", 404)
        lists = f.informer.lists
        f.informer.relist()
        await until(lambda: f.informer.lists >= lists + 2)
        await asyncio.sleep(0.05)
        assert f.told == [("added", "uid-1")]
        assert f.informer.installed


async def test_catch_up_forces_a_list_when_the_watch_says_nothing(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    server.bookmark_every = None
    server.watch_faults = [Watching("silence")]
    async with following(client) as f:
        server.put("deployments", "a")
        server.tick(10)
        assert await f.informer.catch_up(server.revision, 2)
        assert f.equals(server)


async def test_catch_up_does_not_wait_for_a_silent_watch_to_be_cut(server: FakeServer, client: KubeClient) -> None:
    server.bookmark_every = None
    async with following(client, pace=PATIENT) as f:
        server.tick(10)
        assert await f.informer.catch_up(server.revision, 0.5)


async def test_catch_up_fails_where_the_servers_own_revision_is_lower(server: FakeServer, client: KubeClient) -> None:
    async with following(client) as f:
        assert not await f.informer.catch_up(server.revision + 1000, 0.3)
        waiting = asyncio.create_task(f.informer.catch_up(server.revision + 5, 2))
        await asyncio.sleep(0.02)
        server.tick(5)
        assert await waiting


async def test_a_list_asked_for_before_the_next_watch_comes_first(
    server: FakeServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that ended without a word is not continued before the server has told its revision."""
    server.streams = False
    server.bookmark_every = None
    server.watch_faults = [Watching("end")]
    asked, answer, ask = asyncio.Event(), asyncio.Event(), client.revision

    async def revision(resource: Resource) -> int:
        asked.set()
        await answer.wait()
        return await ask(resource)

    monkeypatch.setattr(client, "revision", revision)
    async with following(client, pace=PATIENT) as f:
        await asyncio.wait_for(asked.wait(), 3)
        before = f.informer.lists
        f.informer.relist()
        answer.set()
        await until(lambda: f.informer.lists == before + 1)


async def test_concurrent_calls_of_catch_up_share_a_list(server: FakeServer, client: KubeClient) -> None:
    server.bookmark_every = None
    async with following(client) as f:
        lists = f.informer.lists
        server.tick(3)
        assert all(await asyncio.gather(*(f.informer.catch_up(server.revision, 2) for _ in range(50))))
        assert f.informer.lists - lists <= 2


async def test_a_failing_handler_is_counted_and_the_next_change_still_arrives(
    server: FakeServer, client: KubeClient
) -> None:
    async with following(client) as f:
        f._on_change = None  # type: ignore[assignment,method-assign]

        def fail(old: object, new: object) -> None:
            raise RuntimeError("handler")

        f.informer._on_change = fail
        server.put("deployments", "a")
        server.put("deployments", "b")
        await until(lambda: f.equals(server))
        assert f.informer.handler_errors == 2


async def test_throttling_and_failures_are_retried(server: FakeServer, client: KubeClient) -> None:
    server.streams = False
    server.refuse("GET", 429, times=2, Retry_After="0.05")
    server.refuse("GET", 500, times=3)
    server.refuse("WATCH", 500, times=2)
    server.refuse("WATCH", 429, times=2)
    server.put("deployments", "a")
    async with following(client) as f:
        server.put("deployments", "b")
        await until(lambda: f.equals(server))


async def test_a_list_is_repeated_if_the_revision_of_its_pages_was_compacted(
    server: FakeServer, client: KubeClient
) -> None:
    for i in range(7):
        server.put("deployments", f"d{i}")
    items, revision = await client.list(DEPLOYMENTS, limit=2)
    assert [len(items), revision] == [7, str(server.revision)]
    assert len(server.requests) == 4

    first_page = server._list

    def compacting(*arguments: Any) -> Any:
        page = first_page(*arguments)
        server.tick()
        server.compact()
        return page

    server._list = compacting  # type: ignore[method-assign]
    items, revision = await client.list(DEPLOYMENTS, limit=2)
    assert len(items) == 7


async def test_pages_of_small_objects_grow(server: FakeServer, client: KubeClient) -> None:
    for i in range(200):
        server.put("deployments", f"d{i:03}")
    items, _ = await client.list(DEPLOYMENTS)
    assert len(items) == 200
    assert server.limits == ["50", "100", "200"]


async def test_pages_of_large_objects_are_small(
    server: FakeServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is larger than a page by itself is read all the same."""
    monkeypatch.setattr("bizrq.kube.client._PAGE_BYTES", 10_000)
    for i, size in enumerate((8_000, 20_000, *[9_000] * 5)):
        server.put("deployments", f"d{i:03}", metadata={"annotations": {"a": "x" * size}})
    items, revision = await client.list(DEPLOYMENTS)
    assert [len(items), revision] == [7, str(server.revision)]
    assert server.limits == ["50", "12", "3", *["1"] * 7]


async def test_a_list_of_too_large_objects_is_given_up(
    server: FakeServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bizrq.kube.client._PAGE_BYTES", 10_000)
    monkeypatch.setattr("bizrq.kube.client._LIST_BYTES", 30_000)
    for i in range(9):
        server.put("deployments", f"d{i}", metadata={"annotations": {"a": "x" * 6_000}})
    with pytest.raises(AnswerTooLarge, match="deployments: its objects have over 5000 bytes on average"):
        await client.list(DEPLOYMENTS, mean=5_000)
    assert len((await client.list(DEPLOYMENTS, mean=7_000))[0]) == 9


async def test_indexes_follow_labels(server: FakeServer, client: KubeClient) -> None:
    server.put("deployments", "a", metadata={"labels": {"group": "nlp"}})
    async with following(client) as f:
        assert [o["metadata"]["name"] for o in f.store.index("group", "nlp")] == ["a"]
        server.put("deployments", "a", metadata={"labels": {"group": "vision"}})
        await until(lambda: f.equals(server))
        assert list(f.store.index("group", "nlp")) == []
        assert len(list(f.store.index("group", "vision"))) == 1


async def test_an_event_of_a_megabyte_is_read(server: FakeServer, client: KubeClient) -> None:
    async with following(client) as f:
        server.put("deployments", "big", text="x" * 1_500_000)
        await until(lambda: f.equals(server))


async def test_kinds_that_are_not_installed_are_named_in_one_line(server: FakeServer, client: KubeClient) -> None:
    """On a cluster without them there were two dozen lines at each start; one that goes later is worth its own."""
    server.missing = {"deployments"}
    with capture_logs() as lines:
        async with following(client) as f:
            log_absent([f.informer, f.informer])
            server.missing = set()
            server.put("deployments", "a")
            await until(lambda: f.informer.installed is True)
            log_absent([f.informer])
            server.missing = {"deployments"}
            f.informer.relist()
            await until(lambda: f.informer.installed is False)
    told = [line for line in lines if "not installed" in line["event"] and line["log_level"] == "info"]
    assert [line.get("kinds", line.get("resource")) for line in told] == ["deployments.apps", "deployments.apps"]
    assert [line["event"].partition(";")[0] for line in told] == [
        "kinds are not installed",
        "the kind is not installed",
    ]
