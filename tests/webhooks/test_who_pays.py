"""Who pays for a child is one answer: admission, `bizrq fit`, `bizrq explain` and the review of autoscalers agree.

Each ReplicaSet names the group `own` itself, and a Deployment of the group `web` as its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bizrq.figures.simulate.charged import charged_to
from bizrq.figures.simulate.dry_run import DryRun, read_groups
from bizrq.figures.simulate.stored_workload import find_workload
from bizrq.kube.client import KubeClient
from bizrq.settings import load
from bizrq.store.payers import PAYERS
from bizrq.workloads.demand.offline import usage
from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership.memory import Memory, payer_line
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, OF_KIND, REPLICASETS, Object, deployment
from tests.webhooks.charging.test_owner_trust import replica_set
from tests.webhooks.conftest import Api, Hooks, changed, decided
from tests.webhooks.handlers.test_autoscalers import autoscaler, warned

SETTINGS = load(None)
GONE = Memory("web", "Deployment/default/web", 1_700_000_000_000, 1_700_000_001_000)


async def owner(api: Api) -> Object:
    return await api.client.create(DEPLOYMENTS, deployment("web", "web", 2))


async def child(api: Api, of: Object, **labels: str) -> Object:
    made = replica_set(of, "rs", 2)
    made["metadata"]["labels"] |= {LABEL: "own", **labels}
    return await api.client.create(REPLICASETS, made)


async def remembered(api: Api, hooks: Hooks, uid: str, memory: Memory = GONE) -> None:
    """Store who paid for an object, as the controller does."""
    record = {"apiVersion": PAYERS.api_version, "kind": PAYERS.kind, "metadata": {"name": memory.group}}
    made = await api.client.create(PAYERS, record)
    await api.client.replace(PAYERS, {**made, "status": {"payers": [payer_line(uid, memory)]}}, subresource="status")

    async def known() -> bool:
        return hooks.webhooks.payers.get(uid) is not None

    await eventually(known, 60, "the payer is known")


async def kept(api: Api, hooks: Hooks) -> None:
    await child(api, await owner(api))


async def not_selected(api: Api, hooks: Hooks) -> None:
    await child(api, await owner(api), app="other")


async def invented(api: Api, hooks: Hooks) -> None:
    await child(api, changed(await owner(api), lambda o: o["metadata"].update(uid="invented")))


async def never_there(api: Api, hooks: Hooks) -> None:
    await child(api, changed(deployment("web", "web", 2), lambda o: o["metadata"].update(uid="invented")))


async def adopted(api: Api, hooks: Hooks) -> None:
    """Of the payer that let it go something is still remembered."""
    made = await child(api, await owner(api))
    memory = Memory("before", "Deployment/default/before", GONE.since, GONE.gone)
    await remembered(api, hooks, made["metadata"]["uid"], memory)


async def owner_gone(api: Api, hooks: Hooks) -> None:
    made = await child(api, changed(deployment("web", "web", 2), lambda o: o["metadata"].update(uid="was")))
    await remembered(api, hooks, made["metadata"]["uid"])


async def without_a_group(api: Api, hooks: Hooks) -> None:
    """Its owner stands and named a group until a moment ago."""
    of = await api.client.create(DEPLOYMENTS, deployment("web", None, 2))
    made = await child(api, of)
    await remembered(api, hooks, made["metadata"]["uid"])


#: How the child came to be, who pays for it, and whether its owner does.
CASES: dict[str, tuple[Callable[[Api, Hooks], Awaitable[None]], str, bool]] = {
    "its owner keeps it": (kept, "web", True),
    "its owner's selector does not match it": (not_selected, "own", False),
    "the uid of its owner is invented": (invented, "own", False),
    "its owner never was": (never_there, "own", False),
    "it was adopted": (adopted, "web", True),
    "its owner is gone": (owner_gone, "web", False),
    "its owner names no group any more": (without_a_group, "web", False),
}


def scale_of(obj: Object, replicas: int) -> Object:
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": replicas}}


async def refused(hooks: Hooks, obj: Object, replicas: int) -> str:
    scale = scale_of(obj, replicas)
    return decided(await hooks.review("scale", "UPDATE", scale, scale, resource=REPLICASETS, sub_resource="scale"))


@pytest.mark.parametrize("case", CASES)
async def test_admission_and_the_command_line_agree_who_pays(api: Api, hooks: Hooks, case: str) -> None:
    comes, pays, is_owners = CASES[case]
    for name in ("own", "web", "before"):
        await api.group(name, cpu="4", used={"cpu": "2"})
    await comes(api, hooks)
    stored = await api.client.get(REPLICASETS, "rs", "default")
    told = await refused(hooks, stored, 9)
    assert f"exceeded quota: {pays}, " in told

    client, groups = api.client, await read_groups(api.client)
    clock = asyncio.get_running_loop().time
    grown = changed(stored, lambda o: o["spec"].update(replicas=9))
    for manifest in (scale_of(stored, 9), grown):
        [outcome] = await DryRun(client, SETTINGS, groups, [manifest], clock=clock).outcomes()
        assert not outcome.fits
        assert (outcome.group, getattr(outcome.verdict, "message", "")) == (pays, told)
    [same] = await DryRun(client, SETTINGS, groups, [stored], clock=clock).outcomes()
    assert (same.fits, same.group) == (True, pays)

    found, _ = await find_workload(client, SETTINGS, groups, "rs", "default", "rs")
    assert found.group == pays
    assert found.above == ("Deployment default/web" if is_owners else "")
    assert found.left == ("Deployment default/web" if pays == "web" and not is_owners else "")
    assert (found.cost is None) is is_owners
    assert await listed(client, "own") == (pays == "own")

    # What an owner pays for, its controller scales.
    warning = f"maxReplicas 9 of ReplicaSet default/rs does not fit quota {pays}: 4 would fit now"
    assert await warned(hooks, autoscaler(9, kind="ReplicaSet", name="rs")) == ([] if is_owners else [warning])


async def listed(client: KubeClient, group: str) -> bool:
    """Whether `bizrq explain GROUP` has the ReplicaSet among the workloads of the group."""
    found = await charged_to(client, SETTINGS, await read_groups(client), group)
    return "rs" in [each.name for each in found.workloads]


@pytest.mark.parametrize("case", ["its owner keeps it", "its owner's selector does not match it"])
async def test_what_is_counted_without_a_cluster_goes_by_the_same_rule(api: Api, hooks: Hooks, case: str) -> None:
    comes, _, is_owners = CASES[case]
    await comes(api, hooks)
    documents = [(await api.client.list(OF_KIND[kind], "default"))[0] for kind in ("Deployment", "ReplicaSet")]
    rows: list[Any] = usage([obj for objects in documents for obj in objects], SETTINGS.counting, SETTINGS.registry)
    assert [row.name for row in rows] == ["web", "rs"]
    assert (rows[1].usage == {}) is is_owners
