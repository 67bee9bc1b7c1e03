"""After any sequence of changes and faults the store equals the server's state, and so does the sum of all reports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.informer import InformerTimings
from tests.kube.test_informer import Follower, following, until
from tests.support.fake_server import FakeServer, Watching
from tests.support.patience import PatientLoop

HURRIED = InformerTimings(
    watch=(1.0, 1.0),
    silence=0.06,
    initial=0.06,
    first_pause=0.002,
    longest_pause=0.01,
    calm=0.05,
    confirm=0.004,
    poll=0.01,
    lag=0.01,
)
NAMES = st.sampled_from(["a", "b", "c"])
FAULTS = st.sampled_from(["gone", "break", "half line", "silence", "error", "end"])


@dataclass(frozen=True)
class Put:
    name: str


@dataclass(frozen=True)
class Remove:
    name: str


@dataclass(frozen=True)
class BreakWatch:
    fault: str
    after: int


@dataclass(frozen=True)
class Refuse:
    verb: str
    status: int
    times: int


@dataclass(frozen=True)
class StaleList:
    behind: int


@dataclass(frozen=True)
class Restore:
    behind: int


STEPS = st.one_of(
    st.builds(Put, NAMES),
    st.builds(Put, NAMES),
    st.builds(Remove, NAMES),
    st.builds(BreakWatch, FAULTS, st.integers(0, 3)),
    st.builds(Refuse, st.sampled_from(["GET", "WATCH"]), st.sampled_from([429, 500, 503]), st.integers(1, 3)),
    st.builds(StaleList, st.integers(1, 8)),
    st.builds(Restore, st.integers(0, 8)),
    st.sampled_from(["compact", "tick", "wait", "relist", "restart", "flush"]),
)


async def play(steps: list[object], streams: bool) -> None:
    async with (
        FakeServer(streams=streams, bookmark_every=0.01) as server,
        KubeClient(Endpoint(server.url, StaticCredentials({}))) as client,
    ):
        server.put("deployments", "a")
        async with following(client, pace=HURRIED) as f:
            for step in steps:
                await take(step, server, f)
            server.refusals.clear()
            server.watch_faults.clear()
            server.stale_lists.clear()
            server.tick()
            await until(lambda: f.equals(server) and f.store.resource_version == server.revision)
            live: set[str] = set()
            for kind, uid in f.told:
                assert (uid in live) == (kind != "added"), f.told
                if kind == "added":
                    live.add(uid)
                elif kind == "deleted":
                    live.remove(uid)
            assert live == {obj["metadata"]["uid"] for obj in server.objects("deployments").values()}
            assert f.informer.handler_errors == 0


async def take(step: object, server: FakeServer, f: Follower) -> None:
    match step:
        case Put(name):
            server.put("deployments", name)
        case Remove(name):
            if ("default", name) in server.objects("deployments"):
                server.remove("deployments", name)
        case BreakWatch(fault, after):
            server.watch_faults.append(Watching(fault, after))
        case Refuse(verb, status, times):
            server.refuse(verb, status, times, Retry_After="0.003")
        case StaleList(behind):
            server.stale_lists.append(max(100, server.revision - behind))
        case Restore(behind):
            await server.stop()
            server.restore(max(100, server.revision - behind))
            # An API server is unreachable for a while when its etcd is restored.
            await until(lambda: "cannot be reached" in (f.informer.problem or ""))
            await server.start()
        case "restart":
            await server.stop()
            await server.start()
        case "compact":
            server.compact()
        case "tick":
            server.tick()
        case "wait":
            await asyncio.sleep(0.02)
        case "relist":
            f.informer.relist()
        case "flush":
            await until(lambda: f.store.resource_version >= server.revision or bool(server.stale_lists))
        case _:
            raise AssertionError(step)


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=14), streams=st.booleans())
def test_the_store_equals_the_server_and_each_deletion_is_reported_once(steps: list[object], streams: bool) -> None:
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        runner.run(play(steps, streams))
