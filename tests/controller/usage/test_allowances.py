"""What a group's status says of allowances is believed only where it can be read: the rest goes, behind a fence."""

from __future__ import annotations

import itertools

import pytest

from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError
from bizrq.kube.lease import LEASES
from bizrq.quota.allowance import KIND, Journal, Line
from bizrq.store.groups import GROUPS
from bizrq.store.journals import JournalStore, StoredJournal
from controller.usage.payer_lines import PayerLines
from controller.usage.usage_cache import GroupUsage
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.language import entry, res
from tests.support.objects import Object

SYSTEM = "bizrq-system"
OF_NOBODY = "bizrq-webhooks-journal-0123456789abcdef"


async def journal(books: Books, *names: str) -> StoredJournal:
    """A journal of a process that is gone, with notes of creates that are not stored."""
    noted = Journal()
    for name in names:
        noted = noted.with_note("nlp", 1, entry(name, "cpu=2"))
    store = JournalStore(books.client, SYSTEM)
    return await store.write(await store.create("gone"), noted)


def line(holder: str, epoch: int = 1) -> str:
    return Line(holder, epoch, 1, res("cpu=6")).entry.line


def has_none(group: GroupObject) -> bool:
    return not any(KIND in text for text in group.status.reservations)


def names(group: GroupObject) -> list[str]:
    return [text.split(" ")[1].rpartition("/")[2] for text in group.status.reservations]


async def annotations(books: Books, name: str) -> list[str]:
    lease: Object = await books.client.get(LEASES, name, SYSTEM)
    return sorted(lease["metadata"].get("annotations") or {})


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda text: text.replace(" seen=0", ""),
        lambda text: text.replace("uid=1", "uid=x"),
        lambda text: text.replace("v1 ", "v2 "),
        lambda text: text.replace("limits.cpu=6", "limits.cpu=many"),
    ],
    ids=["no number", "no epoch", "a later format", "no amount"],
)
async def test_a_line_that_cannot_be_read_is_replaced_by_the_notes_once_its_journal_is_marked(
    books: Books, spoiled: object
) -> None:
    assert callable(spoiled)
    await journal(books, "elsewhere")
    held = await journal(books, "a", "b")
    async with books.controller():
        await books.group("nlp", cpu="20")
        await books.rewrite("nlp", {"reservations": [spoiled(line(held.name))]})
        group = await books.until("nlp", lambda group: has_none(group) and group.status.reservations)
        assert names(group) == ["a", "b"]
        after = await JournalStore(books.client, SYSTEM).read(held.name)
        assert after is not None
        assert after.journal.is_recalled("nlp", 1)
        assert after.metadata["resourceVersion"] != held.metadata["resourceVersion"], "its next write is a conflict"
        await books.holds_still("nlp", has_none)


async def test_two_lines_of_one_process_both_go_and_its_notes_are_kept_once(books: Books) -> None:
    held = await journal(books, "a")
    async with books.controller():
        await books.group("nlp", cpu="20")
        await books.rewrite("nlp", {"reservations": [line(held.name), line(held.name, 2)]})
        group = await books.until("nlp", has_none)
        assert names(group) == ["a"]


async def test_a_group_that_others_write_all_the_time_is_counted(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count reads the notes after the version of the group that it counts, whatever took its time before."""
    held = await journal(books, "a")
    prepare, turns = PayerLines.prepare, itertools.count()

    async def while_others_write(lines: PayerLines, name: str, usage: GroupUsage) -> bool:
        found = await prepare(lines, name, usage)
        written = await books.client.patch(GROUPS, name, {"metadata": {"annotations": {"turn": str(next(turns))}}})
        version = int(written["metadata"]["resourceVersion"])

        async def is_seen() -> bool:
            group = lines._cluster.groups.cached(name)
            return group is not None and group.resource_version >= version

        await eventually(is_seen, 10, "the watch shows it")
        return found

    async with books.controller():
        await books.group("nlp", cpu="20")
        monkeypatch.setattr(PayerLines, "prepare", while_others_write)
        await books.rewrite("nlp", {"reservations": [line(held.name), line(held.name, 2)]})
        group = await books.until("nlp", has_none, 20)
        assert names(group) == ["a"]


@pytest.mark.parametrize("text", [line("somebody"), line(OF_NOBODY), f"v7 {KIND}/"], ids=["stranger", "gone", "none"])
async def test_a_line_of_nobody_known_goes_when_no_write_can_come_by_it(books: Books, text: str) -> None:
    known = await journal(books)
    async with books.controller():
        await books.group("nlp", cpu="20")
        await books.rewrite("nlp", {"reservations": [text]})
        group = await books.holds_still("nlp", lambda group: group.status.reservations == [text])
        assert group.status.used is not None
        books.clock.advance(61)
        await books.until("nlp", has_none)
    if text == f"v7 {KIND}/":
        marks = [key for key in await annotations(books, known.name) if "recalled" in key]
        assert marks, "whose it is nobody knows: all are fenced"
    else:
        with pytest.raises(ApiError):
            await books.client.get(LEASES, text.split(" ")[1].rpartition("/")[2], SYSTEM)


async def test_a_line_whose_journal_cannot_be_read_goes_a_minute_after_the_journal_is_marked(books: Books) -> None:
    held = await journal(books, "a")
    lease = await books.client.get(LEASES, held.name, SYSTEM)
    lease["metadata"]["annotations"] = dict.fromkeys(lease["metadata"]["annotations"], "journal of a version to come")
    await books.client.replace(LEASES, lease)
    stays = line(held.name)
    async with books.controller():
        await books.group("nlp", cpu="20")
        await books.rewrite("nlp", {"reservations": [stays]})
        await books.holds_still("nlp", lambda group: group.status.reservations == [stays])
        assert "e1.recalled.quota.biz.group/nlp" in await annotations(books, held.name)
        books.clock.advance(61)
        await books.until("nlp", has_none)


async def test_a_text_that_comes_again_is_fenced_again(books: Books) -> None:
    text = line("somebody")
    async with books.controller():
        await books.group("nlp", cpu="20")
        for _ in range(2):
            await books.rewrite("nlp", {"reservations": [text]})
            await books.holds_still("nlp", lambda group: group.status.reservations == [text])
            books.clock.advance(61)
            await books.until("nlp", has_none)
            await books.holds_still("nlp", has_none)
