"""Webhooks admit ahead of the write where a group has plenty of room, and never more than fits."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from bizrq.kube.client import ApiError, TooManyRequests
from bizrq.quota.allowance import KIND
from bizrq.store.groups import GROUPS
from controller.metrics import ALLOWANCES
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, NAMESPACES, deployment, group
from tests.support.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    async with Parts(cluster, tmp_path_factory.mktemp("allowances")) as parts:
        await parts.webhooks(2, allowances=True)

        async def journals() -> bool:
            return all(webhooks.notebook and webhooks.notebook.name for webhooks, _ in parts.running)

        await eventually(journals, what="each webhook has a journal")
        await parts.controller(recount_interval=30.0)
        await parts.register()
        yield parts


async def stored_group(parts: Parts, name: str, cpu: int) -> None:
    await parts.client.create(GROUPS, group(name, **{"limits.cpu": str(cpu)}))

    async def counted() -> bool:
        return "used" in (await parts.client.get(GROUPS, name)).get("status", {})

    await eventually(counted, what=f"{name} is counted")
    await parts.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def create(parts: Parts, name: str, number: int, cpu: int = 1) -> str:
    """Create a workload of a group in the namespace of its name; return why that was refused.

    On a busy machine an answer may be "try again", as to people: other writes of the namespace are under way.
    """
    made = deployment(f"d{number}", name, 1, namespace=name, cpu=str(cpu))
    for _ in range(60):
        try:
            await parts.client.create(DEPLOYMENTS, made)
        except TooManyRequests:
            await asyncio.sleep(0.5)
        except ApiError as error:
            return error.message
        else:
            return ""
    return "refused for long"


async def storm(parts: Parts, name: str) -> None:
    """Create 130 workloads of one cpu, many at a time, where 99 fit: just these are admitted.

    All at once would wait for more than the API server's ten seconds where others use the machine, too.
    """
    at_once = asyncio.Semaphore(40)

    async def one(number: int) -> str:
        async with at_once:
            return await create(parts, name, number)

    refused = [answer for answer in await asyncio.gather(*map(one, range(1, 131))) if answer]
    assert all("exceeded quota" in answer for answer in refused), set(refused)
    assert len(refused) == 31
    await used(parts, name, "100")


async def has_lines(parts: Parts, name: str) -> None:
    async def given() -> bool:
        status = (await parts.client.get(GROUPS, name))["status"]
        return sum(KIND in text for text in status.get("reservations", ())) == len(parts.running)

    await eventually(given, 60, f"{name} has allowances")


async def used(parts: Parts, name: str, amount: str) -> None:
    async def counted() -> bool:
        return (await parts.client.get(GROUPS, name))["status"]["used"]["limits.cpu"] == amount

    await eventually(counted, 60, f"{amount} of {name} are used")


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def notes(parts: Parts) -> int:
    return sum(webhooks.notebook.notes for webhooks, _ in parts.running if webhooks.notebook is not None)


async def test_creates_within_an_allowance_are_admitted_by_notes_and_counted(parts: Parts, unique: str) -> None:
    await stored_group(parts, unique, 10_000)
    assert await create(parts, unique, 0) == ""
    await has_lines(parts, unique)
    before, measured = notes(parts), sample("bizrq_allowance_notes_total")
    answers = await asyncio.gather(*(create(parts, unique, number) for number in range(1, 61)))
    assert set(answers) == {""}
    assert notes(parts) - before >= 50
    assert sample("bizrq_allowance_notes_total") - measured == notes(parts) - before
    await used(parts, unique, "61")

    async def folded() -> bool:
        """A count may see an object before it has read what was noted of it."""
        return sample("bizrq_allowance_notes_folded_total") >= notes(parts) - before

    await eventually(folded, 60, "all notes are folded")
    assert sample("bizrq_journal_writes_total", result="done") > 0
    assert f'bizrq_group_allowances{{group="{unique}"}} 2' in b"".join(ALLOWANCES.snapshot()).decode()


async def test_a_storm_is_admitted_exactly_up_to_the_brim(parts: Parts, unique: str) -> None:
    """The storm may use the lines up, or need their recall: exactly the rest fits in any case."""
    await stored_group(parts, unique, 100)
    assert await create(parts, unique, 0) == ""
    await has_lines(parts, unique)
    before = notes(parts)
    await storm(parts, unique)
    assert notes(parts) > before
    status = (await parts.client.get(GROUPS, unique))["status"]
    assert not any(KIND in text for text in status.get("reservations", ()))


async def test_what_does_not_fit_beside_the_lines_recalls_them(parts: Parts, unique: str) -> None:
    await stored_group(parts, unique, 100)
    assert await create(parts, unique, 0) == ""
    await has_lines(parts, unique)
    before, recalls = notes(parts), sample("bizrq_allowance_recalls_total")
    assert await create(parts, unique, 1, cpu=99) == ""
    assert sample("bizrq_allowance_recalls_total") > recalls
    assert notes(parts) == before
    assert "exceeded quota" in await create(parts, unique, 2)
    await used(parts, unique, "100")


async def test_what_was_noted_is_counted_together(parts: Parts, unique: str) -> None:
    """Nobody waits for the count of what a line has admitted: so one count, and one write, serves many creates."""
    await stored_group(parts, unique, 10_000)
    assert await create(parts, unique, 0) == ""
    await has_lines(parts, unique)
    before, began, versions = notes(parts), time.monotonic(), set[str]()
    for number in range(1, 31):
        assert await create(parts, unique, number) == ""
        versions.add((await parts.client.get(GROUPS, unique))["metadata"]["resourceVersion"])
        await asyncio.sleep(0.1)
    # A count in a second or for some creates, each with a second write at most, and not one for each create.
    assert len(versions) <= 4 + 4 * (time.monotonic() - began)
    assert notes(parts) - before == 30
    await used(parts, unique, "31")


async def test_a_group_is_edited_and_deleted_without_allowances(parts: Parts, unique: str) -> None:
    await stored_group(parts, unique, 1_000)
    assert await create(parts, unique, 0) == ""
    await has_lines(parts, unique)
    await parts.client.patch(GROUPS, unique, {"spec": {"hard": {"limits.cpu": "2"}}})
    answers = await asyncio.gather(*(create(parts, unique, number) for number in range(1, 6)))
    assert sum(not answer for answer in answers) == 1
    await parts.client.request("DELETE", DEPLOYMENTS.path(unique))
    await used(parts, unique, "0")
    await parts.client.delete(GROUPS, unique)


async def admits_by_notes(parts: Parts, name: str, before: int, number: int) -> bool:
    assert await create(parts, name, number) == ""
    return notes(parts) > before


async def test_beside_a_process_without_allowances_exactly_what_fits_is_admitted_and_none_is_held(
    parts: Parts, unique: str
) -> None:
    """Last, as it stays: what the others hold is given back, and nothing is given any more."""
    wide = f"{unique}-wide"
    for name, cpu in ((unique, 100), (wide, 10_000)):
        await stored_group(parts, name, cpu)
        assert await create(parts, name, 0) == ""
        await has_lines(parts, name)
    # Up to now they admit by notes. Of the storm they may admit nothing so: the other one has their lines recalled.
    before, made = notes(parts), itertools.count(101)
    await eventually(lambda: admits_by_notes(parts, wide, before, next(made)), 60, "they admit by notes")
    by_notes = next(made) - 101
    await parts.webhooks(1, leases=True)
    await parts.balancer.hang_up()
    await storm(parts, unique)

    async def given_back() -> bool:
        status = (await parts.client.get(GROUPS, wide))["status"]
        return not any(KIND in text for text in status.get("reservations", ()))

    await eventually(given_back, 60, f"nothing of {wide} is held ahead")
    before = notes(parts)
    assert set(await asyncio.gather(*(create(parts, wide, number) for number in range(1, 21)))) == {""}
    await used(parts, wide, str(21 + by_notes))
    assert notes(parts) == before
    assert await given_back()
