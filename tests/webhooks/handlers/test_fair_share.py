"""One tenant's requests that are never stored do not shut others out of a group."""

from __future__ import annotations

import pytest

from bizrq.quota.fair_share import MAX_SLOT_CREATES
from tests.support.objects import DEPLOYMENTS, Object, deployment
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message


def named(uid: str, name: str = "web", replicas: int = 1, namespace: str = "default") -> Object:
    def change(obj: Object) -> None:
        obj["metadata"].update(uid=uid, namespace=namespace)

    return changed(deployment(name, "nlp", replicas), change)


async def test_a_create_of_a_taken_name_does_not_take_a_group_from_others(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    await api.client.create(DEPLOYMENTS, deployment("web", "", 1))
    refused = await hooks.create(named("u-1", replicas=10))
    assert message(refused) == 'deployments.apps "web" already exists'
    assert (refused["status"]["code"], refused["status"]["reason"]) == (409, "AlreadyExists")
    assert await api.entries("nlp") == []
    assert (await hooks.create(named("u-2", name="theirs", replicas=10, namespace="team-b")))["allowed"]


async def test_creates_of_a_taken_name_do_not_fill_the_account(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10k")
    await api.client.create(DEPLOYMENTS, deployment("web", "", 1))
    codes = [(await hooks.create(named(f"u-{n}"))).get("status", {}).get("code") for n in range(40)]
    assert codes == [None] + [409] * 39, "only the first is small and alone"
    assert len(await api.entries("nlp")) == 1


async def test_creates_that_are_never_stored_take_a_bounded_space(api: Api, hooks: Hooks) -> None:
    """Their name is free, so each may be stored."""
    await api.group("nlp", cpu="10k")
    codes = [(await hooks.create(named(f"u-{n}"))).get("status", {}).get("code") for n in range(20)]
    assert codes == [None] * MAX_SLOT_CREATES + [429] * (20 - MAX_SLOT_CREATES)
    assert (await hooks.create(named("u-x", name="other")))["allowed"]


@pytest.mark.parametrize(("cores", "reads"), [("100", 0), ("10", 1)], ids=["a small one", "one that takes all"])
async def test_a_lone_create_may_take_all_and_costs_one_read_at_most(
    api: Api, hooks: Hooks, proxy: Proxy, cores: str, reads: int
) -> None:
    await api.group("nlp", cpu=cores)
    before = proxy.sent("GET")
    assert (await hooks.create(named("u-1", replicas=10)))["allowed"]
    assert proxy.sent("GET") - before == reads
