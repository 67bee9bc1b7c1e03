"""The record of payers in pages: what they remember together, and what is lost of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from bizrq.api import payers as wire
from bizrq.api.group import GroupObject, GroupStatus, ObjectMeta
from bizrq.api.payers import PayersObject
from bizrq.kube.client import Conflict, KubeClient, NotFound
from bizrq.store.groups import GROUPS
from bizrq.store.payers import PAYERS
from bizrq.workloads.ownership import pages
from bizrq.workloads.ownership.memory import Memory, parse_payers, payer_line
from controller.watch import remembered
from controller.watch.payer_pages import PayerPages
from controller.watch.remembered import DueLines, RememberedPayers
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import OF_KIND, Object, tfjob

LOST = "page 1 of 2 of its record is missing"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has two lines, and a status has none."""
    monkeypatch.setattr(remembered, "ROOM", 0)
    monkeypatch.setattr(pages, "MAX_LINES", 2)
    monkeypatch.setattr("controller.watch.payer_pages.MAX_LINES", 2)


async def record(books: Books) -> list[PayersObject]:
    """Return the pages of the group's record in order."""
    found = [wire.from_dict(obj) for obj in (await books.client.list(PAYERS))[0]]
    return sorted(found, key=lambda page: page.spec.page)


async def remembers(books: Books) -> dict[str, Memory]:
    """Return what the group remembers in its record and its status, by uid."""
    recorded = parse_payers("nlp", [line for page in await record(books) for line in page.status.payers])
    return {**recorded, **parse_payers("nlp", (await books.read("nlp")).status.payers)}


async def remembers_only(books: Books, payers: Sequence[Object]) -> bool:
    return (await remembers(books)).keys() == {each["metadata"]["uid"] for each in payers}


async def until(books: Books, holds: Callable[[list[PayersObject]], bool], what: str) -> None:
    async def found() -> bool:
        return holds(await record(books))

    await eventually(found, 60, what)


async def jobs(books: Books, *names: str) -> list[Object]:
    made = [await books.create(tfjob(name, "nlp", 1, gpu=0)) for name in names]
    for job in made:
        await eventually(lambda job=job: _knows(books, job), 60, f"{job['metadata']['name']} is remembered")
    return made


async def _knows(books: Books, job: Object) -> bool:
    return job["metadata"]["uid"] in await remembers(books)


def on(page: PayersObject, made: list[Object]) -> Object:
    """Return one of the jobs that a page remembers."""
    return next(job for job in made if job["metadata"]["uid"] in str(page.status.payers))


async def rewrite(books: Books, name: str, change: Callable[[Any], None]) -> None:
    while True:
        stored = await books.client.get(PAYERS, name)
        change(stored["status"])
        try:
            await books.client.replace(PAYERS, stored, subresource="status")
        except Conflict:
            continue
        return


async def test_a_record_grows_by_pages_which_no_group_can_have_the_name_of(books: Books) -> None:
    async with books.controller():
        group = await books.group("nlp", cpu="9")
        made = await jobs(books, *"abcde")
        found = await record(books)
        assert [len(page.status.payers) for page in found] == [2, 2, 1]
        uid = group.metadata.uid
        assert [page.metadata.name for page in found] == [wire.page_name("nlp", uid, number) for number in range(3)]
        assert all(len(page.metadata.name) > 63 for page in found[1:])
        assert {page.group_uid for page in found} == {uid}
        assert (await books.read("nlp")).status.payers_pages == 3
        before = [page.metadata.resource_version for page in found]
        await books.remove(on(found[2], made))
        await books.uses("nlp", cpu="4")
        books.box.clock.advance(61)
        books.clock.advance(61)
        await until(books, lambda now: not now[2].status.payers, "its line is dropped")
        after = [page.metadata.resource_version for page in await record(books)]
        assert (after[:2], after[2] != before[2]) == (before[:2], True), "other pages are not written"


async def test_what_any_page_remembers_is_charged_by_the_next_controller(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = await jobs(books, *"abc")
        for job in made:
            await books.pod(f"{job['metadata']['name']}-0", job, gpu=0)
        await books.uses("nlp", cpu="3")
    for job in made:
        await books.remove(job)
    async with books.controller():
        found = await books.until("nlp", lambda g: len(g.status.leftovers) == 3)
        assert found.status.used == {"limits.cpu": "3"}
        for job in made:
            await books.ends(f"{job['metadata']['name']}-0")
        await books.uses("nlp", cpu="0")


async def test_a_record_of_an_older_version_loses_no_line_and_is_split(books: Books) -> None:
    """That has all lines in one object, without `spec`."""
    async with books.controller():
        group = await books.group("nlp", cpu="9")
        made = await jobs(books, *"abcde")
    lines = sorted(line for page in await record(books) for line in page.status.payers)
    for page in await record(books):
        await books.client.delete(PAYERS, page.metadata.name)
    old = wire.to_json(wire.new_page("nlp", group.metadata.uid, 0))
    del old["spec"], old["metadata"]["labels"]
    stored = await books.client.create(PAYERS, old)
    await books.client.replace(PAYERS, {**stored, "status": {"payers": lines}}, subresource="status")
    await books.rewrite("nlp", {"payersPages": 0})
    # One goes while nobody watches, and leaves its pod.
    await books.pod("w", made[0], gpu=0)
    await books.remove(made[0])
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "5"}
        await until(books, lambda now: [len(page.status.payers) for page in now] == [2, 2, 1], "it is split")
        known = await remembers(books)
        assert known.keys() == {job["metadata"]["uid"] for job in made}
        assert sum(memory.gone is not None for memory in known.values()) == 1
        assert (await books.read("nlp")).status.payers_pages == 3


async def test_a_page_that_goes_with_its_group_before_it_is_written_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch brings its deletion before the answer of its creation: the next try finds no group."""
    payers = RememberedPayers(KubeClient.__new__(KubeClient), lambda _group, _uids: None)
    payers.remember("u", Memory("nlp", "Job/default/a", 1))

    async def create(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(PayerPages, "create", create)
    with pytest.raises(NotFound, match="page 0 of the payers of nlp is gone"):
        await payers.store(GroupObject(ObjectMeta(name="nlp", uid="g")), DueLines(["u"], []), {}, {})


def test_what_is_stored_as_it_was_to_be_changes_nothing() -> None:
    """The watch may bring this process its own write before the answer: nothing is counted again for that."""
    told: list[list[str]] = []
    payers = RememberedPayers(KubeClient.__new__(KubeClient), lambda _, uids: told.append(sorted(uids)))
    mine, other = Memory("nlp", "Job/default/a", 1), Memory("nlp", "Job/default/b", 2)
    payers.remember("mine", mine)
    for version, stored in enumerate([{"mine": mine}, {"mine": mine, "other": other}], 1):
        lines = [payer_line(uid, memory) for uid, memory in stored.items()]
        meta = ObjectMeta(name="nlp", uid="g", resource_version=str(version))
        payers.read_status(GroupObject(meta, status=GroupStatus(payers=lines)))
    assert told == [["other"]]


async def test_a_page_that_somebody_deletes_refuses_growth_until_it_is_restored(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        await jobs(books, *"abc")
        lost = (await books.client.list(PAYERS))[0]
        [lost] = [page for page in lost if page["spec"].get("page")]
        await books.client.delete(PAYERS, lost["metadata"]["name"])
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert LOST in found.status.payers_problem
        assert [len(page.status.payers) for page in await record(books)] == [2], "nothing is stored meanwhile"
    async with books.controller():
        await books.holds_still("nlp", lambda g: LOST in g.status.payers_problem)
        status = lost.pop("status")
        for key in ("uid", "resourceVersion"):
            lost["metadata"].pop(key)
        made = await books.client.create(PAYERS, lost)
        await books.client.replace(PAYERS, {**made, "status": status}, subresource="status")
        await books.until("nlp", lambda g: not g.status.payers_problem)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_page_that_is_lost_for_good_is_given_up_by_a_person(books: Books, number: int) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = await jobs(books, *"abcd")
        await books.client.delete(PAYERS, (await record(books))[number].metadata.name)
        await books.until("nlp", lambda g: bool(g.status.payers_problem))
        await books.client.patch(GROUPS, "nlp", {"status": {"payersPages": None}}, subresource="status")
        await books.until("nlp", lambda g: not g.status.payers_problem and g.status.payers_pages == 2)
        assert (await remembers(books)).keys() == {job["metadata"]["uid"] for job in made}, "who stands is known again"


async def test_a_page_that_was_edited_by_hand_refuses_growth_and_is_kept(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9")
        await jobs(books, *"abc")
        name = (await record(books))[1].metadata.name
        await rewrite(books, name, lambda status: status["payers"].append("nonsense"))
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert f"{name}: 'nonsense' is no line" in found.status.payers_problem
        await rewrite(books, name, lambda status: status["payers"].remove("nonsense"))
        await books.until("nlp", lambda g: not g.status.payers_problem)


async def test_a_page_without_its_group_refuses_growth(books: Books) -> None:
    """As one of an older version whose owner reference somebody has removed."""
    async with books.controller():
        await books.group("nlp", cpu="9")
    await books.client.create(PAYERS, {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "metadata": {"name": "nlp"}})
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert "it names no nlp as its owner" in found.status.payers_problem


async def test_a_group_that_has_the_name_of_another_begins_a_record_of_its_own(books: Books) -> None:
    old = wire.new_page("nlp", "a-former-group", 0)
    made = await books.client.create(PAYERS, wire.to_json(old))
    lines = [payer_line("x", Memory("nlp", "Job/default/x", 1_700_000_000_000))]
    await books.client.replace(PAYERS, {**made, "status": {"payers": lines}}, subresource="status")
    async with books.controller():
        group = await books.group("nlp", cpu="9")
        assert group.status.payers_pages == 0
        [job] = await jobs(books, "a")
        [page] = await record(books)
        assert page.group_uid == group.metadata.uid
        assert (await remembers(books)).keys() == {job["metadata"]["uid"]}


async def test_of_two_pages_that_remember_one_payer_the_later_line_counts_and_goes_alone(books: Books) -> None:
    """As where two controllers have stored it."""
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = await jobs(books, *"abc")
        first, second = await record(books)
        twice = on(first, made)
        await books.pod("w", twice, gpu=0)
        await books.uses("nlp", cpu="3")
    uid, at = twice["metadata"]["uid"], 1_767_225_600_000
    gone = payer_line(uid, Memory("nlp", f"TFJob/default/{twice['metadata']['name']}", at, at))
    await rewrite(books, second.metadata.name, lambda status: status["payers"].append(gone))
    await books.remove(twice)
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "3"}
        await books.client.delete(OF_KIND["Pod"], "w", "default")
        await books.uses("nlp", cpu="2")
        books.box.clock.advance(61)
        books.clock.advance(61)
        await until(books, lambda now: uid not in str([page.status.payers for page in now]), "both lines are gone")


async def test_the_record_takes_over_the_lines_of_a_status_that_is_full(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "ROOM", 2)
    monkeypatch.setattr(pages, "MAX_LINES", 10)
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = await jobs(books, "a", "b")
        found = await books.read("nlp")
        assert (len(found.status.payers), found.status.payers_pages, await record(books)) == (2, 0, [])
        made += await jobs(books, "c")
        found = await books.until("nlp", lambda g: not g.status.payers)
        [page] = await record(books)
        assert (len(page.status.payers), found.status.payers_pages) == (3, 1)
        version = page.metadata.resource_version
        made += await jobs(books, "d", "e")
        assert len((await books.read("nlp")).status.payers) == 2
        assert [page.metadata.resource_version for page in await record(books)] == [version]
    assert (await remembers(books)).keys() == {job["metadata"]["uid"] for job in made}


async def test_a_controller_that_dies_between_record_and_status_has_every_line_in_one_of_them(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "ROOM", 1)
    async with books.controller():
        await books.group("nlp", cpu="9")
        [first] = await jobs(books, "a")
        await books.pod("w", first, gpu=0)
        await books.uses("nlp", cpu="1")

        async def fail(request: Any) -> Any:
            if request.method == "PUT" and request.path.endswith("/bizgroupresourcequotas/nlp/status"):
                return web.json_response({"kind": "Status", "code": 500, "reason": "InternalError"}, status=500)
            return None

        books.box.faults.append(fail)
        await books.create(tfjob("b", "nlp", 1, gpu=0))
        await until(books, lambda now: len(now) == 1 and len(now[0].status.payers) == 2, "the record has both")
        assert (await books.read("nlp")).status.used == {"limits.cpu": "1"}, "nothing else is counted yet"
        assert len((await books.read("nlp")).status.payers) == 1
    books.box.faults.remove(fail)
    await books.remove(first)
    async with books.controller():
        found = await books.until("nlp", lambda g: bool(g.status.leftovers))
        assert found.status.used == {"limits.cpu": "2"}
        assert (await remembers(books))[first["metadata"]["uid"]].gone is not None


async def test_new_payers_are_stored_before_the_snapshot_that_counts_them(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a busy group others write the status while its record is written, and more workloads come."""
    monkeypatch.setattr(remembered, "ROOM", 1)
    monkeypatch.setattr(pages, "MAX_LINES", 500)
    coming, lost = [["c", "d"], ["e", "f"], ["g"]], 0

    async def write_between(request: Any) -> Any:
        if request.method == "PUT" and "/bizgrouppayers/" in request.path and coming:
            for name in coming.pop(0):
                await books.create(tfjob(name, "nlp", 1, gpu=0))
            await books.rewrite("nlp", {"observedGeneration": len(coming)})
        return None

    async def count_lost(line: str, code: int) -> bool:
        nonlocal lost
        lost += code == 409 and line.startswith("PUT") and line.endswith("/bizgroupresourcequotas/nlp/status")
        return False

    async with books.controller():
        await books.group("nlp", cpu="9")
        books.box.faults.append(write_between)
        books.proxy.after.append(count_lost)
        await books.create(tfjob("a", "nlp", 1, gpu=0))
        await books.create(tfjob("b", "nlp", 1, gpu=0))
        await books.uses("nlp", cpu="7")
    assert not coming, "the record was written each time"
    assert lost <= 1, "the watch may be late once"


async def test_what_comes_while_a_page_is_written_stays_in_the_status_until_the_next_count(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is written in whole, and costs more than some lines of a status."""
    monkeypatch.setattr(remembered, "ROOM", 1)
    monkeypatch.setattr(pages, "MAX_LINES", 500)
    coming, written = ["c", "d"], 0

    async def come(request: Any) -> Any:
        nonlocal written
        if request.method == "PUT" and "/bizgrouppayers/" in request.path:
            written += 1
            while coming:
                await books.create(tfjob(coming.pop(), "nlp", 1, gpu=0))
        return None

    async with books.controller():
        await books.group("nlp", cpu="9")
        books.box.faults.append(come)
        await books.create(tfjob("a", "nlp", 1, gpu=0))
        await books.create(tfjob("b", "nlp", 1, gpu=0))
        found = await books.uses("nlp", cpu="4")
        assert (len(found.status.payers), [len(page.status.payers) for page in await record(books)]) == (2, [2])
        assert written == 1
        await books.create(tfjob("e", "nlp", 1, gpu=0))
        found = await books.uses("nlp", cpu="5")
        assert (len(found.status.payers), [len(page.status.payers) for page in await record(books)]) == (0, [5])


async def test_lines_that_an_older_webhook_leaves_out_of_a_status_are_stored_again(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "ROOM", 16)
    async with books.controller():
        await books.group("nlp", cpu="9")
        [job] = await jobs(books, "a")
        await books.pod("w", job, gpu=0)
        await books.remove(job)
        found = await books.until("nlp", lambda g: " gone=" in str(g.status.payers))
        before = found.status.payers
        await books.rewrite("nlp", {"payers": []})
        found = await books.until("nlp", lambda g: bool(g.status.payers))
        assert found.status.payers == before
        assert found.status.used == {"limits.cpu": "1"}


async def test_a_definition_that_drops_the_lines_of_a_status_refuses_growth(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an older version of bizrq."""
    monkeypatch.setattr(remembered, "ROOM", 16)
    crd = OF_KIND.get("CustomResourceDefinition") or type(GROUPS)(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    )
    name = "bizgroupresourcequotas.quota.biz.group"
    definition = await books.client.get(crd, name)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del schema["payers"]
    await books.client.replace(crd, definition)
    async with books.controller():
        await books.group("nlp", cpu="9")
        await books.create(tfjob("a", "nlp", 1, gpu=0))
        found = await books.until("nlp", lambda g: bool(g.status.payers_problem))
        assert "apply the CRDs" in found.status.payers_problem


class Killer:
    """Kills a controller at one of its writes of statuses and pages: what it asks afterwards is lost.

    Only its Lease is released, because the clock of the next one does not move while it waits for that.
    """

    def __init__(self, number: int, moment: str) -> None:
        self._left = number
        self._moment = moment
        self.has_killed = asyncio.Event()

    def _is_its_turn(self, line: str) -> bool:
        if line.startswith(("PUT", "POST")) and ("/bizgrouppayers" in line or line.endswith("/nlp/status")):
            self._left -= 1
            return self._left < 0
        return False

    async def before(self, line: str) -> web.Response | None:
        if self._moment == "before" and self._is_its_turn(line):
            self.has_killed.set()
        return web.Response(status=503) if self._is_lost(line) else None

    async def after(self, line: str, _: int) -> bool:
        if self._moment == "after" and self._is_its_turn(line):
            self.has_killed.set()
        return self._is_lost(line)

    def _is_lost(self, line: str) -> bool:
        return self.has_killed.is_set() and "/leases" not in line


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_what_was_counted_stays_charged_wherever_its_controller_is_killed(
    books: Books, monkeypatch: pytest.MonkeyPatch, number: int, moment: str
) -> None:
    monkeypatch.setattr(remembered, "ROOM", 1)
    async with books.controller(recount_interval=30.0):
        await books.group("nlp", cpu="9")
        killer = Killer(number, moment)
        books.proxy.before.append(killer.before)
        books.proxy.after.append(killer.after)
        made: list[Object] = []
        # One write may count several.
        for name in "abcdefghij":
            if len(made) >= 4 and killer.has_killed.is_set():
                break
            made.append(await books.create(tfjob(name, "nlp", 1, gpu=0)))
            await books.pod(f"{name}-0", made[-1], gpu=0)
            await asyncio.sleep(1)
        await eventually(lambda: _is_set(killer.has_killed), 60, "the controller is killed")
    books.proxy.before.clear()
    books.proxy.after.clear()
    counted = int((await books.read("nlp")).status.used["limits.cpu"])
    for job in made:
        await books.remove(job)
    async with books.controller():
        found = await books.holds_still("nlp", lambda g: int(g.status.used["limits.cpu"]) >= counted)
        assert len(found.status.leftovers) >= counted
        assert not found.status.payers_problem
        for job in made:
            await books.ends(f"{job['metadata']['name']}-0")
        await books.uses("nlp", cpu="0")


async def _is_set(event: asyncio.Event) -> bool:
    return event.is_set()


def backed_up(books: Books) -> tuple[int, dict[Any, tuple[dict[Any, Any], list[Any]]]]:
    """Return all that is stored, as a snapshot of etcd."""
    store = books.box.api.store
    return store.revision, {kind: (dict(shelf.items), list(shelf.keys)) for kind, shelf in store._shelves.items()}


async def restore(books: Books, backup: tuple[int, dict[Any, tuple[dict[Any, Any], list[Any]]]]) -> None:
    """Put a snapshot back: connections break meanwhile, and there is no history."""
    await books.proxy.hang_up()
    store = books.box.api.store
    store.revision, stored = backup
    for kind, shelf in store._shelves.items():
        items, keys = stored.get(kind, ({}, []))
        shelf.items, shelf.keys = dict(items), list(keys)
    store.compact()
    await books.proxy.listen()


async def test_a_record_that_is_restored_with_everything_else_is_taken_as_it_is(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was remembered since the backup is of workloads that never were."""
    monkeypatch.setattr(remembered, "ROOM", 1)
    async with books.controller():
        await books.group("nlp", cpu="9")
        made = await jobs(books, "a", "b")
        await books.pod("w", made[0], gpu=0)
        await books.uses("nlp", cpu="2")
        backup = backed_up(books)
        made += await jobs(books, "c", "d")
        await books.remove(made[0])
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        await restore(books, backup)
        await books.until("nlp", lambda g: not g.status.leftovers and g.status.used == {"limits.cpu": "2"})
        await books.remove(made[0])
        # Watches that have not noticed the restore still have what was made after the backup.
        # A status written meanwhile is newer than watches in which nothing happens: bookmarks come each minute.
        is_counted = {"limits.cpu": "2"}
        await books.until("nlp", lambda g: bool(g.status.leftovers) and g.status.used == is_counted, seconds=150)

        async def is_swept() -> bool:
            # What a watch held when it noticed the restore is only found by the look that comes once a minute.
            books.clock.advance(61)
            books.box.clock.advance(61)
            return await remembers_only(books, made[:2])

        await eventually(is_swept, 300, "only what stood at the backup is remembered")
