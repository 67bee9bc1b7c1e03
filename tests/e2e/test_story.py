"""The story (docs/design.md, "The story"), with the invariants checked at every revision, and after a restart."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console

import crds
from bizrq.kube.client import KubeClient
from examples import story
from sandbox.clock import Clock
from sandbox.server import Sandbox
from tests.e2e.conftest import station_on
from tests.support.cluster import Cluster, Real, eventually, has_kinds, refusal, sweep
from tests.support.objects import DEPLOYMENTS, PODS
from tests.support.oracle import Recorder, settled

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = ("corp", "ai", "nlp", "vision")


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sandbox", pytest.param("kubernetes", marks=pytest.mark.real)]
)
async def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """As everywhere, but the sandbox's clock stands until the story moves it."""
    if request.param == "sandbox":
        clock = Clock(now=datetime.now(UTC).replace(microsecond=0), rate=0)
        async with Sandbox(tls=True, clock=clock) as box:
            path = box.write_kubeconfig(tmp_path_factory.mktemp("story") / "kubeconfig")
            yield Cluster("sandbox", path, box)
        return
    real: Real = request.getfixturevalue("real_cluster")
    async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
        await has_kinds(client, crds.stand_ins())
        await sweep(client)
        yield Cluster(real.version, real.kubeconfig)
        await sweep(client)


def run_for(cluster: Cluster, client: KubeClient) -> story.RunFor:
    """Lets a job's pods have run: by the clock of the sandbox, by their own timestamps on a real cluster."""

    async def by_the_clock(job: dict[str, Any], length: timedelta) -> None:
        async def all_bound() -> bool:
            pods, _ = await client.list(PODS, "default")
            mine = [
                p
                for p in pods
                if job["metadata"]["uid"] in {o["uid"] for o in p["metadata"].get("ownerReferences", ())}
            ]
            return len([p for p in mine if p["spec"].get("nodeName")]) == 8

        await eventually(all_bound, what="eight pods are bound")
        assert cluster.box is not None
        cluster.box.clock.advance(length.total_seconds())

    async def by_timestamps(job: dict[str, Any], length: timedelta) -> None:
        await story.pods_ran(client, job, length)

    return by_timestamps if cluster.is_real else by_the_clock


async def test_the_story_keeps_the_laws_and_outlives_a_restart(cluster: Cluster, client: KubeClient) -> None:
    """Every answer is the one of the story, I1 to I3 hold at every revision, and a second start finds the same."""
    told = io.StringIO()
    async with station_on(cluster, cash_interval=1.0), Recorder(client, NAMES) as recorder:
        await story.Story(client, run_for(cluster, client), Console(file=told, width=500)).play()
        before = await settled(client, NAMES)
        assert await recorder.laws() > 20
    assert told.getvalue().count("refused") > 8

    async with station_on(cluster, cash_interval=1.0), Recorder(client, NAMES) as recorder:
        after = await settled(client, NAMES)
        for name in NAMES:
            used, was = after[name].status.used or {}, before[name].status.used or {}
            assert {k: v for k, v in used.items() if "cash/" not in k} == {
                k: v for k, v in was.items() if "cash/" not in k
            }
        one_more = client.patch(
            DEPLOYMENTS, "chat", {"spec": {"replicas": 5}}, namespace="default", subresource="scale"
        )
        assert "exceeded quota: nlp, requested: limits.cpu=1,limits.cpu.A4=1" in (await refusal(one_more)).message
        await client.patch(DEPLOYMENTS, "chat", {"spec": {"replicas": 3}}, namespace="default", subresource="scale")

        async def freed() -> bool:
            [nlp] = (await settled(client, ["nlp"])).values()
            return (nlp.status.used or {})["limits.cpu.A4"] == "3"

        await eventually(freed, what="the scale-down is counted")
        assert await recorder.laws() > 0
