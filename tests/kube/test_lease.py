"""At most one process leads, in spite of faults of the API server, the clocks and the leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.lease import Candidate, run_as_leader
from tests.kube.test_informer import until
from tests.support.fake_server import FakeServer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def spec(server: FakeServer) -> dict[str, object]:
    return server.objects("leases")["bizrq-system", "controller"]["spec"]


def candidate(client: KubeClient, identity: str, clock: Clock) -> Candidate:
    return Candidate(client, "bizrq-system", "controller", identity, 15, clock)


async def test_the_first_gets_the_lease_and_the_second_waits_its_whole_duration(
    server: FakeServer, client: KubeClient
) -> None:
    clock = Clock()
    a, b = candidate(client, "a", clock), candidate(client, "b", clock)
    assert await a.attempt(1)
    assert not await b.attempt(1)
    assert b.lost
    clock.now += 14.9
    assert not await b.attempt(1)
    clock.now += 0.2
    assert await b.attempt(1)
    assert spec(server)["holderIdentity"] == "b"
    assert spec(server)["leaseTransitions"] == 1
    assert not await a.attempt(1)
    assert a.lost


async def test_a_renewal_restarts_the_wait_of_the_others(server: FakeServer, client: KubeClient) -> None:
    clock = Clock()
    a, b = candidate(client, "a", clock), candidate(client, "b", clock)
    await a.attempt(1)
    await b.attempt(1)
    for _ in range(5):
        clock.now += 10
        assert await a.attempt(1)
        assert not await b.attempt(1)


async def test_another_machines_clock_is_not_read(server: FakeServer, client: KubeClient) -> None:
    server.put(
        "leases",
        "controller",
        "bizrq-system",
        spec={"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"},
    )
    assert not await candidate(client, "a", Clock()).attempt(1)


async def test_two_processes_of_one_name_do_not_both_lead(server: FakeServer, client: KubeClient) -> None:
    clock = Clock()
    first, second = candidate(client, "pod-0", clock), candidate(client, "pod-0", clock)
    assert await first.attempt(1)
    assert not await second.attempt(1)
    assert await first.attempt(1)


async def test_one_of_two_candidates_gets_an_expired_lease(server: FakeServer, client: KubeClient) -> None:
    clock = Clock()
    a, b, c = (candidate(client, name, clock) for name in "abc")
    await a.attempt(1)
    await asyncio.gather(b.attempt(1), c.attempt(1))
    clock.now += 16
    assert sorted(await asyncio.gather(b.attempt(1), c.attempt(1))) == [False, True]


async def test_a_write_whose_response_was_lost_is_recognised_as_ours(server: FakeServer, client: KubeClient) -> None:
    server.slow_answers = 0.3
    a = candidate(client, "a", Clock())
    assert not await a.attempt(0.1)
    server.slow_answers = 0.0
    assert spec(server)["holderIdentity"] == "a"
    assert await a.attempt(1)


@pytest.mark.parametrize("fault", [500, 429, 409, 403])
async def test_nobody_leads_if_the_server_rejects_writes(server: FakeServer, client: KubeClient, fault: int) -> None:
    server.refuse("leases", fault, times=20)
    assert not await candidate(client, "a", Clock()).attempt(0.3)


async def test_after_a_release_the_next_one_leads_at_once(server: FakeServer, client: KubeClient) -> None:
    clock = Clock()
    a, b = candidate(client, "a", clock), candidate(client, "b", clock)
    await a.attempt(1)
    await b.attempt(1)
    await a.release(1)
    assert spec(server)["holderIdentity"] == ""
    assert await b.attempt(1)
    await a.release(1)
    assert spec(server)["holderIdentity"] == "b"


async def test_a_renewal_that_was_cut_off_does_not_keep_the_lease_from_its_release(
    server: FakeServer, client: KubeClient
) -> None:
    a = candidate(client, "a", Clock())
    await a.attempt(1)
    server.slow_answers = 0.3
    assert not await a.attempt(0.1)
    server.slow_answers = 0.0
    await a.release(1)
    assert spec(server)["holderIdentity"] == ""


def leading(client: KubeClient, identity: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    return asyncio.create_task(
        run_as_leader(
            client,
            namespace="bizrq-system",
            name="controller",
            identity=identity,
            on_lead=work,
            lease_duration=1,
            renew_deadline=0.6,
            retry_period=0.05,
            clock=asyncio.get_running_loop().time,
        )
    )


async def test_never_two_lead_while_the_server_comes_and_goes(server: FakeServer) -> None:
    at_work: set[str] = set()
    seen: set[str] = set()

    def work(identity: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            assert not at_work, (identity, at_work)
            at_work.add(identity)
            seen.add(identity)
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.02)
                at_work.remove(identity)

        return run

    clients = [KubeClient(Endpoint(server.url, StaticCredentials({}))) for _ in range(3)]
    tasks = [leading(client, f"c{i}", work(f"c{i}")) for i, client in enumerate(clients)]
    try:
        await asyncio.sleep(0.3)
        assert len(at_work) == 1
        server.refuse("PUT", 500, times=30)  # about as long as the renew deadline
        await asyncio.sleep(0.8)
        server.refusals.clear()
        await server.stop()
        await asyncio.sleep(0.8)
        assert not at_work
        await server.start()
        await until(lambda: bool(at_work))
        leader = int(next(iter(at_work))[1:])
        tasks[leader].cancel()
        await asyncio.gather(tasks[leader], return_exceptions=True)
        await until(lambda: bool(at_work), 0.5)
        assert len(seen) >= 2
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


async def test_work_that_ends_or_fails_releases_the_lease(server: FakeServer, client: KubeClient) -> None:
    async def ends() -> None:
        return

    async def fails() -> None:
        raise RuntimeError("at work")

    await leading(client, "a", ends)
    assert spec(server)["holderIdentity"] == ""
    with pytest.raises(RuntimeError, match="at work"):
        await leading(client, "a", fails)
    assert spec(server)["holderIdentity"] == ""


async def test_times_that_would_allow_two_leaders_are_refused(client: KubeClient) -> None:
    async def nothing() -> None: ...

    for times in ({"renew_deadline": 15}, {"retry_period": 9}, {"identity": ""}):
        options = {"identity": "a", "namespace": "n", "name": "l", "on_lead": nothing, **times}
        with pytest.raises(ValueError, match=r"needs|must not"):
            await run_as_leader(client, **options)  # type: ignore[arg-type]
