"""Admission by allowance: a note is stored before the answer, and nothing is admitted by what was taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.lease import LEASES
from bizrq.quota.allowance import Line, is_line, is_noted
from bizrq.quota.reservation import LIFETIME
from bizrq.quota.verdict import RETRYABLE, Denied, Granted, Reason
from bizrq.store.groups import GROUPS, GroupStore
from bizrq.store.journals import JournalStore
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.language import NOW, create, res, update
from tests.support.objects import NAMESPACES
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api
from webhooks.charging.deadline import Deadline
from webhooks.charging.group_commit import Reserver
from webhooks.charging.notes import Notebook
from webhooks.charging.recall import Recaller

SYSTEM = "bizrq-system"


@pytest.fixture
def store(through: KubeClient) -> GroupStore:
    """A cache that no watch feeds: it knows what it has read or written, however old."""
    return GroupStore(through)


@pytest.fixture
async def notebook(api: Api, through: KubeClient, store: GroupStore) -> AsyncIterator[Notebook]:
    await api.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    clock = asyncio.get_running_loop().time
    made = Notebook(
        JournalStore(through, SYSTEM), store, identity="me", catalog=CATALOG, now=lambda: NOW - LIFETIME, clock=clock
    )
    task = asyncio.create_task(made.run())

    async def is_there() -> bool:
        return bool(made.name)

    await eventually(is_there, what="the journal is stored")
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def other(api: Api) -> Reserver:
    """Another process, which admits by the group itself."""
    clock = asyncio.get_running_loop().time
    return Reserver(
        GroupStore(api.client),
        patience=0.3,
        clock=clock,
        now=lambda: NOW - LIFETIME,
        catalog=CATALOG,
        recaller=recaller(api.client),
    )


def recaller(client: KubeClient) -> Recaller:
    return Recaller(GroupStore(client), JournalStore(client, SYSTEM), catalog=CATALOG)


def within(seconds: float = 8.0) -> Deadline:
    clock = asyncio.get_running_loop().time
    return Deadline(clock() + seconds, clock)


def soon(seconds: float = 8.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def give(api: Api, store: GroupStore, notebook: Notebook, amount: str) -> None:
    """Write a line of this process into the group, and have it know of that."""
    group = await api.read("nlp")
    line = Line(notebook.name, group.resource_version, group.metadata.generation or 0, res(amount))
    await api.count("nlp", line.entry)
    await store.read("nlp", 5)


async def test_creates_within_the_line_are_noted_and_the_status_is_not_written(
    api: Api, store: GroupStore, notebook: Notebook, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="100")
    await give(api, store, notebook, "cpu=6")
    charges = [create(f"w{n}", "cpu=2") for n in range(4)]
    answers = await asyncio.gather(*(notebook.admit("nlp", charge, soon(), None) for charge in charges))
    assert [isinstance(answer, Granted) for answer in answers] == [True, True, True, False]
    stored = await JournalStore(api.client, SYSTEM).read(notebook.name)
    assert stored is not None
    assert [note.entry.slot.name for note in stored.journal.notes] == ["w0", "w1", "w2"]
    assert proxy.sent("PUT", "/status") == 0
    assert notebook.writes == 1


async def test_what_is_no_plain_create_or_has_no_line_is_left_to_the_group(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="100")
    assert await notebook.admit("nlp", create("web", "cpu=1"), soon(), None) is None
    await give(api, store, notebook, "cpu=6")
    assert await notebook.admit("nlp", update("web", "cpu=1", "cpu=2"), soon(), None) is None
    refused = Denied(Reason.NAMESPACE, "not from here")
    assert await notebook.admit("nlp", create("web", "cpu=1"), soon(), lambda _: refused) is None
    assert notebook.writes == 0


async def test_a_recall_keeps_the_notes_and_ends_the_line_for_a_process_that_does_not_know(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="10")
    await give(api, store, notebook, "cpu=6")
    assert await notebook.admit("nlp", create("noted", "cpu=2"), soon(), None) is not None
    assert isinstance(await other(api).reserve("nlp", create("large", "cpu=8"), soon()), Granted)
    entries = await api.entries("nlp")
    assert {entry.slot.name for entry in entries} == {"noted", "large"}
    assert [entry.slot.name for entry in entries if is_noted(entry)] == ["noted"]
    # Its cache still has the line.
    cached = store.cached("nlp")
    assert cached is not None
    assert notebook.name in str(cached.status.reservations)
    assert await notebook.admit("nlp", create("late", "cpu=2"), soon(), None) is None
    assert {entry.slot.name for entry in await api.entries("nlp")} == {"noted", "large"}


async def test_a_refusal_does_not_recall_where_that_would_not_help(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="10")
    await give(api, store, notebook, "cpu=6")
    verdict = await other(api).reserve("nlp", create("huge", "cpu=11"), soon())
    assert isinstance(verdict, Denied)
    assert verdict.reason is Reason.EXCEEDED
    assert any(map(is_line, await api.entries("nlp")))


async def test_growth_beside_a_line_that_cannot_be_read_is_decided_with_what_it_says_it_holds_or_tried_again(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="10")
    await give(api, store, notebook, "cpu=6")
    [held] = (await api.read("nlp")).status.reservations
    for text, small in (held.replace(" seen=0", ""), Granted), (held.replace("v1 ", "v2 "), Denied):
        group = await api.client.get(GROUPS, "nlp")
        group["status"]["reservations"] = [text]
        await api.client.replace(GROUPS, group, subresource="status")
        await store.read("nlp", 5)
        assert await notebook.admit("nlp", create("own", "cpu=1"), soon(), None) is None
        assert isinstance(await other(api).reserve("nlp", create("small", "cpu=3"), soon()), small)
        verdict = await other(api).reserve("nlp", create("large", "cpu=5"), soon())
        assert isinstance(verdict, Denied)
        assert verdict.reason in RETRYABLE
        assert text in (await api.read("nlp")).status.reservations


async def test_a_note_whose_answer_is_lost_stands_and_is_granted(
    api: Api, store: GroupStore, notebook: Notebook, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="100")
    await give(api, store, notebook, "cpu=6")
    lost: list[str] = []

    async def loses_one(line: str, _status: int) -> bool:
        if line.startswith("PUT") and "leases" in line and not lost:
            lost.append(line)
            return True
        return False

    proxy.after.append(loses_one)
    assert isinstance(await notebook.admit("nlp", create("web", "cpu=2"), soon(), None), Granted)
    assert len(lost) == 1
    stored = await JournalStore(api.client, SYSTEM).read(notebook.name)
    assert stored is not None
    assert {note.entry.uid for note in stored.journal.notes} == {create("web", "cpu=2").uid}


async def test_a_process_whose_journal_is_deleted_admits_nothing_by_its_old_lines(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="100")
    await give(api, store, notebook, "cpu=6")
    before = notebook.name
    await api.client.delete(LEASES, before, SYSTEM)
    assert await notebook.admit("nlp", create("web", "cpu=2"), soon(), None) is None

    async def anew() -> bool:
        return notebook.name not in ("", before)

    await eventually(anew, what="another journal is stored")
    assert await notebook.admit("nlp", create("web", "cpu=2"), soon(), None) is None
    assert await JournalStore(api.client, SYSTEM).read(before) is None


async def test_who_comes_along_with_one_that_fails_is_left_to_the_group_at_once(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="100")
    await give(api, store, notebook, "cpu=6")

    def fails(_: object) -> Denied | None:
        raise RuntimeError("a check that fails")

    clock = asyncio.get_running_loop().time
    began = clock()
    failing = notebook.admit("nlp", create("bad", "cpu=1"), soon(), fails)
    beside = notebook.admit("nlp", create("good", "cpu=1"), soon(), None)
    assert await asyncio.gather(failing, beside) == [None, None]
    assert clock() - began < 4
    assert isinstance(await notebook.admit("nlp", create("next", "cpu=1"), soon(), None), Granted)


async def test_a_process_that_ends_hands_its_lines_back_and_no_others(
    api: Api, store: GroupStore, notebook: Notebook, through: KubeClient
) -> None:
    clock = asyncio.get_running_loop().time
    back = Recaller(store, JournalStore(through, SYSTEM), catalog=CATALOG)
    ends = Reserver(
        store,
        clock=clock,
        now=lambda: NOW - LIFETIME,
        catalog=CATALOG,
        recaller=back,
        notebook=notebook,
    )
    beside = await JournalStore(api.client, SYSTEM).create("beside")
    for name in ("nlp", "cv"):
        await api.group(name, cpu="100")
        group = await api.read(name)
        lines = [Line(holder, group.resource_version, 1, res("cpu=6")).entry for holder in (notebook.name, beside.name)]
        await api.count(name, *lines)
        await store.read(name, 5)
    assert isinstance(await ends.reserve("nlp", create("noted", "cpu=2"), soon()), Granted)
    assert notebook.notes == 1
    under_way = asyncio.create_task(ends.reserve("nlp", create("late", "cpu=2"), soon()))
    await asyncio.sleep(0)
    await back.hand_back(notebook, within())
    assert isinstance(await under_way, Granted)
    left = {name: await api.entries(name) for name in ("nlp", "cv")}
    assert [[entry.slot.name for entry in each if is_line(entry)] for each in left.values()] == [[beside.name]] * 2
    assert {entry.slot.name for entry in left["nlp"] if not is_line(entry)} == {"noted", "late"}
    noted = notebook.notes
    assert isinstance(await ends.reserve("nlp", create("after", "cpu=2"), soon()), Granted)
    assert notebook.notes == noted


async def test_an_edit_waits_for_the_line_of_a_journal_that_is_gone(
    api: Api, store: GroupStore, notebook: Notebook
) -> None:
    await api.group("nlp", cpu="100")
    group = await api.read("nlp")
    gone = await JournalStore(api.client, SYSTEM).create("gone")
    await api.client.delete(LEASES, gone.name, SYSTEM)
    lines = [Line(holder, group.resource_version, 1, res("cpu=6")).entry for holder in (notebook.name, gone.name)]
    stored = await api.count("nlp", *lines)
    busy = await recaller(api.client).recall_all(stored, within())
    assert busy is not None
    assert busy.reason is Reason.BUSY
    assert [entry.slot.name for entry in await api.entries("nlp")] == [gone.name]


async def test_a_recall_that_was_too_late_for_its_version_marks_no_journal_again(
    api: Api, store: GroupStore, notebook: Notebook, through: KubeClient, proxy: Proxy
) -> None:
    """A marked journal is final: in a busy group a recall has only the group itself to write again."""
    await api.group("nlp", cpu="100")
    await give(api, store, notebook, "cpu=6")
    assert await notebook.admit("nlp", create("noted", "cpu=2"), soon(), None) is not None
    races = 2

    async def write_meanwhile(line: str) -> None:
        nonlocal races
        if races and line.startswith("PUT") and line.endswith("/nlp/status"):
            races -= 1
            await api.client.patch(GROUPS, "nlp", {"metadata": {"labels": {"race": str(races)}}})

    proxy.before.append(write_meanwhile)
    assert await recaller(through).recall_all(await api.read("nlp"), within()) is None
    assert races == 0
    assert proxy.sent("PATCH", notebook.name) == 1
    assert [(entry.slot.name, is_noted(entry)) for entry in await api.entries("nlp")] == [("noted", True)]
