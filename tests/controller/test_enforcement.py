"""The condition `Enforced`: groups learn whether the webhook registration is there, one after the other."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from bizrq.api.group import GroupObject
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient
from bizrq.store import pause
from controller.enforcement import EnforcementWatch
from tests.controller.conftest import Books
from tests.support.cluster import eventually
from tests.support.objects import Object

pytestmark = pytest.mark.asyncio

CONFIGURATION: Object = {
    "apiVersion": REGISTRATIONS.api_version,
    "kind": REGISTRATIONS.kind,
    "metadata": {"name": "bizrq"},
    "webhooks": [
        {
            "name": "none.quota.biz.group",
            "clientConfig": {"url": "https://127.0.0.1:1/none"},
            "rules": [
                {"apiGroups": ["none"], "apiVersions": ["v1"], "resources": ["nothing"], "operations": ["CREATE"]}
            ],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
    ],
}


async def enforced(books: Books, wanted: str) -> str:
    """Wait for the status of the condition, and return its message."""

    def told(group: GroupObject) -> str:
        found = {c.type: c for c in group.status.conditions}
        is_so = "Ready" in found and "Enforced" in found and found["Enforced"].status == wanted
        return found["Enforced"].message if is_so and found["Ready"].status == "True" else ""

    return told(await books.until("nlp", told))


async def test_every_status_says_whether_the_registration_is_there(books: Books) -> None:
    """`Ready` stays as it is, so that GitOps tools do not wait."""
    async with books.controller():
        await books.group("nlp", cpu="1")
        said = await enforced(books, "False")
        assert said == "the webhook registration bizrq is missing: nothing is refused; bizrq doctor says more"
    await books.client.create(REGISTRATIONS, CONFIGURATION)
    async with books.controller():
        assert await enforced(books, "True") == "the webhook registration bizrq is there"


async def test_every_status_says_who_has_paused_and_why(books: Books) -> None:
    await pause.begin(books.client, "bizrq-system", "etcd is slow", "ann")
    async with books.controller():
        await books.group("nlp", cpu="1")
        said = await enforced(books, "False")
    assert said.startswith("paused since ")
    assert said.endswith(" by ann: etcd is slow; nothing is refused until bizrq resume")


async def test_a_change_has_every_group_recounted_once_and_not_all_at_one_time(books: Books) -> None:
    names, asked = [f"g{number}" for number in range(20)], list[str]()
    watch = EnforcementWatch(books.client, lambda: names, asked.append, namespace="bizrq-system", check=0.01, pace=0.01)
    await watch.look()
    assert watch.is_there is False
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0.1)
    assert asked == [], "nothing has changed"
    await books.client.create(REGISTRATIONS, CONFIGURATION)
    await eventually(lambda: asyncio.sleep(0, bool(asked)), 30, "the first group")
    assert watch.is_there
    assert len(asked) < len(names), "others go between"
    await eventually(lambda: asyncio.sleep(0, len(asked) >= len(names)), 30, "every group")
    await books.client.delete(REGISTRATIONS, "bizrq")
    await eventually(lambda: asyncio.sleep(0, len(asked) >= 2 * len(names)), 30, "every group again")
    assert asked == names * 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_an_answer_what_was_known_stays(books: Books) -> None:
    watch = EnforcementWatch(books.client, list, lambda _: None, namespace="bizrq-system")
    await books.client.create(REGISTRATIONS, CONFIGURATION)
    assert await watch.look()
    nowhere = books.folder / "nowhere"
    nowhere.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [], '
        '"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}'
    )
    async with KubeClient.from_kubeconfig(nowhere) as away:
        lost = EnforcementWatch(away, list, lambda _: None, namespace="bizrq-system")
        assert not await lost.look()
        assert lost.is_there is None
        lost.is_there = watch.is_there
        assert not await lost.look()
        assert lost.is_there


async def test_a_registration_without_webhooks_registers_nothing(books: Books) -> None:
    watch = EnforcementWatch(books.client, list, lambda _: None, namespace="bizrq-system")
    await books.client.create(REGISTRATIONS, {**CONFIGURATION, "webhooks": []})
    await watch.look()
    assert watch.is_there is False


async def test_the_log_says_what_is_missing_longer_than_a_start_takes(books: Books) -> None:
    """Whoever starts registers a moment after the first look."""
    watch = EnforcementWatch(books.client, list, lambda _: None, namespace="bizrq-system")

    async def logged() -> list[str]:
        with capture_logs() as lines:
            await watch.look()
        return [line["event"] for line in lines]

    assert await logged() == []
    await books.client.create(REGISTRATIONS, CONFIGURATION)
    assert await logged() == []
    await books.client.delete(REGISTRATIONS, "bizrq")
    assert await logged() == ["quota is not enforced: the webhook registration is missing"]
    assert await logged() == []
    await books.client.create(REGISTRATIONS, CONFIGURATION)
    assert await logged() == ["quota is enforced again: the webhook registration is there"]
    late = EnforcementWatch(books.client, list, lambda _: None, namespace="bizrq-system")
    await books.client.delete(REGISTRATIONS, "bizrq")
    await late.look()
    watch = late
    assert await logged() == ["quota is not enforced: the webhook registration is missing"]
