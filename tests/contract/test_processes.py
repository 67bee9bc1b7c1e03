"""The Lease of a process: it begins when the process is ready, is renewed, and ends with it."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.lease import LEASES
from bizrq.store import processes
from bizrq.store.processes import DURATION, POD_UID, OldestWatch, ProcessInfo, ProcessLease, StoredProcess, Watched
from tests.support.cluster import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

INFO = ProcessInfo("bizrq-webhooks", "bizrq-webhooks-5d9-x2_7_ab", "0.1.0", ("v1", "v2"), "c1", "r1")


async def test_a_process_has_a_lease_from_its_readiness_to_its_end(client: KubeClient, namespace: str) -> None:
    why = "not synced"
    async with ProcessLease(client, INFO, namespace=namespace, unready=lambda: why).held():
        await asyncio.sleep(0)
        assert await processes.read(client, namespace) == []
        why = ""

        async def told() -> list[StoredProcess]:
            return await processes.read(client, namespace)

        [found] = await eventually(told, 60, "the Lease is there")
        assert found.info == INFO
        assert found.renewed
        why = "draining"
        assert await told(), "a process that drains still runs"
    assert await processes.read(client, namespace) == []


@pytest.mark.parametrize("watch", [OldestWatch("deployments.apps", 4.5), None])
async def test_a_lease_has_the_age_of_the_oldest_watch_at_its_renewal(
    client: KubeClient, namespace: str, watch: OldestWatch | None
) -> None:
    async with ProcessLease(client, INFO, namespace=namespace, unready=lambda: "", oldest_watch=lambda: watch).held():

        async def told() -> list[StoredProcess]:
            return await processes.read(client, namespace)

        [found] = await eventually(told, 60, "the Lease is there")
    assert found.watch == watch


async def test_a_process_that_never_was_ready_has_none(client: KubeClient, namespace: str) -> None:
    async with ProcessLease(client, INFO, namespace=namespace, unready=lambda: "not synced").held():
        await asyncio.sleep(0)
    assert await processes.read(client, namespace) == []


async def test_the_lease_of_a_pod_has_its_name_and_goes_with_it(
    client: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is started again in the pod takes the Lease over."""
    monkeypatch.setenv(POD_UID, "4711")
    old = processes.lease_of(ProcessInfo("bizrq-webhooks", "bizrq-webhooks-5d9-x2_1_zz", "0.0.9", ("v1",)), namespace)
    old["metadata"]["name"] = "bizrq-webhooks-5d9-x2"
    await client.create(LEASES, old)
    async with ProcessLease(client, INFO, namespace=namespace, unready=lambda: "").held():

        async def is_ours() -> bool:
            [found] = await processes.read(client, namespace)
            return (found.name, found.info) == ("bizrq-webhooks-5d9-x2", INFO)

        await eventually(is_ours, 60, "the Lease is taken over")
    [owner] = processes.lease_of(INFO, namespace, "4711")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "bizrq-webhooks-5d9-x2", "4711")


async def test_a_lease_counts_for_its_time_after_it_was_seen_to_change() -> None:
    """By the clock of whoever looks: that of the process may be wrong by hours."""
    now = 0.0
    watched = Watched(lambda: now)
    first, later = (StoredProcess("a", INFO, renewed) for renewed in ("1999", "2000"))
    assert watched.running([first]) == [INFO]
    now = DURATION - 1.0
    assert watched.running([first]) == [INFO]
    now = DURATION
    assert watched.running([first]) == []
    assert watched.running([later]) == [INFO]
    assert watched.running([]) == []
