"""Group commit: what waits together is decided together, stored once, and answered only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from aiohttp import web
from msgspec import structs

from bizrq.kube.client import KubeClient
from bizrq.quota.reservation import LIFETIME
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store.groups import GROUPS, GroupStore
from tests.support.catalog import CATALOG
from tests.support.language import NOW, create, entry, update
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api
from webhooks.charging.group_commit import IDLE, PACE, Reserver


@pytest.fixture
def store(through: KubeClient) -> GroupStore:
    """A cache that no watch feeds: it knows what it has read or written, however old."""
    return GroupStore(through)


@pytest.fixture
async def watched(store: GroupStore) -> AsyncIterator[GroupStore]:
    task = asyncio.create_task(store.informer.run())
    await store.informer.synced.wait()
    yield store
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def reserver(store: GroupStore) -> Reserver:
    """Its time of day is the moment in which the entries of the tests were admitted: none is slow."""
    clock = asyncio.get_running_loop().time
    return Reserver(store, patience=0.3, clock=clock, now=lambda: NOW - LIFETIME, catalog=CATALOG)


def soon(seconds: float = 8.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def reasons(verdicts: list[Verdict]) -> list[Reason | None]:
    return [v.reason if isinstance(v, Denied) else None for v in verdicts]


async def test_a_hundred_at_once_share_a_few_writes_and_the_first_sixty_fit(
    api: Api, reserver: Reserver, proxy: Proxy
) -> None:
    """Decided in the order of arrival, on a running copy: never more than fits, and no false refusal."""
    await api.group("nlp", cpu="60")
    charges = [create(f"w{n}", "cpu=1") for n in range(100)]
    verdicts = await asyncio.gather(*(reserver.reserve("nlp", charge, soon()) for charge in charges))
    assert reasons(list(verdicts)) == [None] * 60 + [Reason.EXCEEDED] * 40
    assert {e.slot.name for e in await api.entries("nlp")} == {f"w{n}" for n in range(60)}
    assert proxy.sent("PUT") <= 3


async def test_a_conflict_is_read_again_and_decided_again(api: Api, store: GroupStore, reserver: Reserver) -> None:
    """What another process promised meanwhile stands beside ours, and what it took is no longer ours to give."""
    await api.group("nlp", cpu="10")
    await store.read("nlp", 5)
    await api.count("nlp", entry("theirs", "cpu=7"))
    assert reasons([await reserver.reserve("nlp", create("small", "cpu=3"), soon())]) == [None]
    assert {e.slot.name for e in await api.entries("nlp")} == {"theirs", "small"}
    assert reserver.conflicts == 1


class Noted:
    """What a Reserver tells of its work."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.waits: list[float] = []
        self.writes = 0

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def recalled(self, allowances: int) -> None: ...

    def decided(self, charges: int) -> None:
        self.batches.append(charges)

    def writing(self) -> AbstractContextManager[None]:
        self.writes += 1
        return nullcontext()


async def test_batches_waits_and_writes_are_measured(api: Api, store: GroupStore) -> None:
    """Each charge has one wait, granted or refused or out of time; each is in one batch, and each try is a write."""
    await api.group("nlp", cpu="60")
    noted, clock = Noted(), asyncio.get_running_loop().time
    reserver = Reserver(store, patience=0.3, clock=clock, now=lambda: NOW - LIFETIME, catalog=CATALOG, measures=noted)
    charges = [create(f"w{n}", "cpu=1") for n in range(100)]
    await asyncio.gather(*(reserver.reserve("nlp", charge, soon()) for charge in charges))
    assert (sum(noted.batches), len(noted.waits)) == (100, 100)
    assert max(noted.batches) > 1
    assert noted.writes == reserver.writes + reserver.conflicts
    assert all(0 <= wait < 8 for wait in noted.waits)
    late = await reserver.reserve("nlp", create("late", "cpu=1"), clock())
    assert reasons([late]) == [Reason.TIMEOUT]
    assert len(noted.waits) == 101


async def test_a_conflict_can_turn_a_yes_into_a_no(api: Api, store: GroupStore, reserver: Reserver) -> None:
    """The cache would have allowed it; the stored group does not bear it."""
    await api.group("nlp", cpu="10")
    await store.read("nlp", 5)
    await api.count("nlp", entry("theirs", "cpu=7"))
    assert reasons([await reserver.reserve("nlp", create("big", "cpu=4"), soon())]) == [Reason.EXCEEDED]


async def test_whoever_comes_while_a_write_meets_a_conflict_takes_part_in_the_next(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """In the order of arrival: who came first is decided first, and the last of them finds no room."""
    await api.group("nlp", cpu="10")
    await store.read("nlp", 5)
    late: list[asyncio.Task[Verdict]] = []

    async def theirs_first(line: str) -> None:
        if line.startswith("PUT") and not late:
            late.extend(asyncio.create_task(reserver.reserve("nlp", create(name, "cpu=3"), soon())) for name in "bc")
            await api.count("nlp", entry("theirs", "cpu=3"))

    proxy.before.append(theirs_first)
    first = await reserver.reserve("nlp", create("a", "cpu=3"), soon())
    assert reasons([first, *(await asyncio.gather(*late))]) == [None, None, Reason.EXCEEDED]
    assert proxy.sent("PUT") == 2


async def test_who_loses_again_and_again_tries_again_at_once_and_writes_less_often_from_then_on(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """Whoever won rests now: to wait longer each time would mean to lose until the deadline."""
    await api.group("nlp", cpu="100")
    await store.read("nlp", 5)
    losses = 12

    async def theirs_first(line: str) -> None:
        nonlocal losses
        if line.startswith("PUT") and losses:
            losses -= 1
            await api.count("nlp", entry(f"theirs{losses}", "cpu=1"))

    proxy.before.append(theirs_first)
    began = asyncio.get_running_loop().time()
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=1"), soon())]) == [None]
    assert asyncio.get_running_loop().time() - began < 1.5
    assert (reserver.conflicts, reserver.writes) == (12, 1)
    began = asyncio.get_running_loop().time()
    both = [reserver.reserve("nlp", create(name, "cpu=1"), soon()) for name in "ab"]
    assert reasons(list(await asyncio.gather(*both))) == [None, None]
    assert asyncio.get_running_loop().time() - began > 0.5


async def test_nothing_is_refused_from_the_cache(api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy) -> None:
    """The cache still shows a full group; a fresh read shows that it is empty."""
    await api.group("nlp", cpu="10", used={"cpu": "10"})
    await store.read("nlp", 5)
    await api.count("nlp", cpu="0")
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=10"), soon())]) == [None]
    await api.client.delete(GROUPS, "nlp")
    assert reasons([await reserver.reserve("nlp", create("more", "cpu=1"), soon())]) == [Reason.NO_GROUP]


async def test_what_fits_is_allowed_from_the_cache_with_one_write_and_no_read(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="10")
    await store.read("nlp", 5)
    proxy.requests.clear()
    await reserver.reserve("nlp", create("web", "cpu=1"), soon())
    assert [line.split()[0] for line in proxy.requests] == ["PUT"]


async def test_the_same_request_again_charges_once_but_writes_again(api: Api, reserver: Reserver, proxy: Proxy) -> None:
    """One user's request may be reviewed hundreds of times; every yes stands on a write of its own."""
    await api.group("nlp", cpu="4")
    for _ in range(3):
        assert reasons([await reserver.reserve("nlp", create("web", "cpu=4"), soon())]) == [None]
    assert len(await api.entries("nlp")) == 1
    assert proxy.sent("PUT") == 3


async def test_what_a_refused_create_has_reserved_is_taken_back_and_nothing_else(
    api: Api, reserver: Reserver, proxy: Proxy
) -> None:
    """Another create of that name has an entry of its own."""
    await api.group("nlp", cpu="4")
    mine, others = create("web", "cpu=1"), structs.replace(create("web", "cpu=2"), uid="another")
    for charge in (mine, others):
        await reserver.reserve("nlp", charge, soon())
    for _ in range(2):
        await reserver.take_back("nlp", mine, soon())
        assert [entry.uid for entry in await api.entries("nlp")] == ["another"]
    assert proxy.sent("PUT") == 3
    await reserver.take_back("nowhere", mine, soon())
    assert reasons([await reserver.reserve("nlp", create("api", "cpu=2"), soon())]) == [None]


async def test_no_growth_needs_no_write(api: Api, reserver: Reserver, proxy: Proxy) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "9"})
    assert reasons([await reserver.reserve("nlp", update("web", "cpu=9", "cpu=8"), soon())]) == [None]
    assert proxy.sent("PUT") == 0


async def test_a_deadline_is_kept_when_the_server_is_slow(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """Try again, said in time, is worth more than a right answer to nobody."""
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)

    async def slow(line: str) -> None:
        if line.startswith("PUT"):
            await asyncio.sleep(3)

    proxy.before.append(slow)
    began = asyncio.get_running_loop().time()
    [reason] = reasons([await reserver.reserve("nlp", create("web", "cpu=1"), soon(0.4))])
    assert reason is Reason.TIMEOUT
    assert asyncio.get_running_loop().time() - began < 1.0


async def test_an_unreachable_server_is_try_again(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """And once it is back, the next request is decided."""
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)
    await proxy.hang_up()
    verdict = await reserver.reserve("nlp", create("web", "cpu=1"), soon(0.5))
    assert isinstance(verdict, Denied)
    assert (verdict.reason, verdict.code) == (Reason.TIMEOUT, 429)
    await proxy.listen()
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=1"), soon())]) == [None]


async def test_a_lost_reply_to_a_write_is_no_second_promise(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """Nobody knows whether it was written: it is read again, decided again, and stands there once."""
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)
    lost = []

    async def lose_the_first(line: str, _: int) -> bool:
        if line.startswith("PUT") and not lost:
            lost.append(line)
            return True
        return False

    proxy.after.append(lose_the_first)
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=4"), soon())]) == [None]
    assert [str(e.slot) for e in await api.entries("nlp")] == ["deployments.apps/team-a/web"]
    assert lost


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_write_that_the_server_puts_off_is_tried_again(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy, status: int
) -> None:
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)
    refusals = [status, status]

    async def refuse(line: str) -> web.Response | None:
        return web.Response(status=refusals.pop()) if line.startswith("PUT") and refusals else None

    proxy.before.append(refuse)
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=4"), soon())]) == [None]
    assert not refusals


async def test_one_that_gave_up_does_not_hold_up_the_others(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """The first two share a batch; the first has no time left when the server answers, the second has."""
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)

    async def slow(line: str) -> None:
        if line.startswith("PUT"):
            await asyncio.sleep(0.6)

    proxy.before.append(slow)
    verdicts = await asyncio.gather(
        reserver.reserve("nlp", create("hasty", "cpu=1"), soon(0.2)),
        reserver.reserve("nlp", create("patient", "cpu=1"), soon()),
    )
    assert reasons(list(verdicts)) == [Reason.TIMEOUT, None]


async def test_who_runs_out_of_time_in_the_line_has_reserved_nothing(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """The write that was under way carries only those who were decided in it."""
    await api.group("nlp", cpu="4")
    await store.read("nlp", 5)
    under_way = asyncio.Event()

    async def slow(line: str) -> None:
        if line.startswith("PUT"):
            under_way.set()
            await asyncio.sleep(0.6)

    proxy.before.append(slow)
    first = asyncio.create_task(reserver.reserve("nlp", create("first", "cpu=1"), soon()))
    await under_way.wait()
    assert reasons([await reserver.reserve("nlp", create("late", "cpu=1"), soon(0.2))]) == [Reason.TIMEOUT]
    last = await reserver.reserve("nlp", create("last", "cpu=1"), soon())
    assert reasons([await first, last]) == [None, None]
    assert {e.slot.name for e in await api.entries("nlp")} == {"first", "last"}


async def test_a_hot_group_keeps_no_other_waiting(
    api: Api, store: GroupStore, reserver: Reserver, proxy: Proxy
) -> None:
    """Every group has a line of its own: while the hot one's write hangs, a cold one is decided at once."""
    await api.group("hot", cpu="100")
    await api.group("cold", cpu="4")
    for name in ("hot", "cold"):
        await store.read(name, 5)
    under_way = asyncio.Event()

    async def slow(line: str) -> None:
        if line.startswith("PUT") and "/hot/" in line:
            under_way.set()
            await asyncio.sleep(2)

    proxy.before.append(slow)
    hot = [asyncio.create_task(reserver.reserve("hot", create(f"h{n}", "cpu=1"), soon())) for n in range(100)]
    await under_way.wait()
    began = asyncio.get_running_loop().time()
    assert reasons([await reserver.reserve("cold", create("c", "cpu=1"), soon())]) == [None]
    assert asyncio.get_running_loop().time() - began < 1.0
    assert not any(task.done() for task in hot)
    assert set(reasons(list(await asyncio.gather(*hot)))) == {None}


async def test_a_group_that_is_about_to_be_counted_is_waited_for(
    api: Api, watched: GroupStore, reserver: Reserver
) -> None:
    """Trees are applied from one file: the child comes before the parent's first recount."""
    await api.client.create(GROUPS, {**_group("nlp")})
    patient = Reserver(watched, patience=5, clock=asyncio.get_running_loop().time, catalog=CATALOG)
    waiting = asyncio.create_task(patient.reserve("nlp", create("web", "cpu=1"), soon()))
    await asyncio.sleep(0)
    await api.count("nlp")
    assert reasons([await waiting]) == [None]


async def test_a_group_that_nobody_counts_is_refused_after_the_patience(
    api: Api, watched: GroupStore, reserver: Reserver
) -> None:
    """Unknown is not zero, and the answer says what to do."""
    await api.client.create(GROUPS, {**_group("nlp")})
    began = asyncio.get_running_loop().time()
    verdict = await reserver.reserve("nlp", create("web", "cpu=1"), soon())
    assert isinstance(verdict, Denied)
    assert (verdict.reason, verdict.message) == (
        Reason.NOT_RECONCILED,
        "quota nlp is not reconciled yet",
    )
    assert 0.25 < asyncio.get_running_loop().time() - began < 2


async def test_a_name_that_was_added_to_hard_and_is_not_counted_yet_is_unknown(
    api: Api, watched: GroupStore, reserver: Reserver
) -> None:
    """`hard` counts at once, what is used of it only when it was counted."""
    await api.group("nlp", cpu="4")
    await api.client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.memory": "1Gi"}}})
    verdict = await reserver.reserve("nlp", create("web", "cpu=1"), soon())
    assert isinstance(verdict, Denied)
    assert verdict.reason is Reason.NOT_RECONCILED
    assert "limits.memory" in verdict.message


async def test_a_group_being_deleted_takes_nothing_new(api: Api, reserver: Reserver) -> None:
    group = _group("nlp")
    group["metadata"]["finalizers"] = ["quota.biz.group/spent-hours"]
    await api.client.create(GROUPS, group)
    await api.count("nlp")
    await api.client.delete(GROUPS, "nlp")
    assert reasons([await reserver.reserve("nlp", create("web", "cpu=1"), soon())]) == [Reason.DELETING]


async def test_a_dry_run_is_told_what_a_request_would_be_and_writes_nothing(
    api: Api, reserver: Reserver, proxy: Proxy
) -> None:
    before = await api.group("nlp", cpu="4")
    verdicts = [await reserver.dry_run("nlp", create("web", demand), soon()) for demand in ("cpu=4", "cpu=5")]
    assert reasons(verdicts) == [None, Reason.EXCEEDED]
    assert isinstance(verdicts[0], Granted)
    assert proxy.sent("PUT") == 0
    assert (await api.read("nlp")).metadata.resource_version == before.metadata.resource_version


async def test_a_persons_edit_gets_between_the_writes_of_a_busy_group(api: Api, reserver: Reserver) -> None:
    """One process writes a group no more often than its pace, however many wait."""
    await api.group("nlp", cpu="1000")
    stop = asyncio.Event()

    async def client(number: int) -> int:
        done = 0
        while not stop.is_set():
            done += 1
            await reserver.reserve("nlp", create(f"w{number}-{done}", "cpu=1"), soon())
        return done

    clients = [asyncio.create_task(client(n)) for n in range(5)]
    began = asyncio.get_running_loop().time()
    await api.client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": "2000"}}})
    assert asyncio.get_running_loop().time() - began < 2
    await asyncio.sleep(0.5)
    stop.set()
    admitted = sum(await asyncio.gather(*clients))
    assert reserver.writes <= (asyncio.get_running_loop().time() - began) / PACE + 2
    assert admitted > reserver.writes


async def test_a_hold_is_left_however_old_the_version_is_that_the_edit_was_made_from(
    api: Api, reserver: Reserver, proxy: Proxy
) -> None:
    """Others write the group all the time; the hold changes nothing but itself."""
    await api.group("nlp", cpu="4")
    stale = await api.count("nlp", entry("theirs", "cpu=1"))
    await api.count("nlp", entry("theirs", "cpu=2"))
    await reserver.request_hold(stale, soon())
    held = await api.read("nlp")
    assert held.status.hold is not None
    assert held.status.hold.generation == stale.metadata.generation
    assert [str(e.slot.name) for e in await api.entries("nlp")] == ["theirs"]
    assert (await api.entries("nlp"))[0].amount["limits.cpu"] == 2 * 10**9
    await reserver.request_hold(held, soon())
    assert proxy.sent("PATCH") == 1, "a hold has to rest before the next one"


async def test_an_edit_that_gets_no_hold_is_not_refused_for_that(api: Api, reserver: Reserver, proxy: Proxy) -> None:
    await api.group("nlp", cpu="4")
    stored = await api.count("nlp", entry("theirs", "cpu=1"))

    async def forbidden(line: str) -> web.Response | None:
        return web.Response(status=403) if line.startswith("PATCH") else None

    proxy.before.append(forbidden)
    await reserver.request_hold(stored, soon())
    assert (await api.read("nlp")).status.hold is None


def _group(name: str) -> dict:
    from tests.support.objects import group

    return group(name, cpu="4")


async def test_nothing_is_kept_of_names_that_exist_nowhere(reserver: Reserver) -> None:
    charges = [reserver.reserve(f"nowhere-{n}", create("web", "cpu=1"), soon()) for n in range(1000)]
    assert set(reasons(list(await asyncio.gather(*charges)))) == {Reason.NO_GROUP}
    await asyncio.sleep(0)
    assert (reserver._queues, reserver._idle, reserver._with_account) == ({}, {}, {})


async def test_a_group_that_was_written_is_dropped_once_it_is_idle(api: Api, store: GroupStore) -> None:
    """Until then its pace and its account are kept."""
    loop, later = asyncio.get_running_loop(), 0.0
    reserver = Reserver(store, patience=0.3, clock=lambda: loop.time() + later, catalog=CATALOG)
    for name in ("nlp", "vision"):
        await api.group(name, cpu="10")
    for name, after, idle in (
        ("nlp", 0, {"nlp"}),
        ("vision", IDLE / 2, {"nlp", "vision"}),
        ("vision", IDLE, {"vision"}),
    ):
        later += after
        assert reasons([await reserver.reserve(name, create(f"w{after}", "cpu=1"), soon() + later)]) == [None]
        await asyncio.sleep(0)
        assert (set(reserver._idle), len(reserver._with_account)) == (idle, len(idle))
    assert not reserver._queues
