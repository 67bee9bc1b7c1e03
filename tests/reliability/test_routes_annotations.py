"""Routes by what a pod asks for after it was admitted: annotations that ask for cards (`countsAs`), and nodes that have
cards of a model, while it waits for a scheduling gate.

The tenant's group has one card.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bizrq.store.groups import GROUPS
from bizrq.units.quantity import canonical, parse
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from tests.reliability.conftest import parts_with_pods
from tests.reliability.routes import attempt, gone, pod, web
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS, Object
from tests.support.serving import Parts
from tests.support.tenant import Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

A100 = "NVIDIA-A100-SXM4-80GB"
CARDS, GPU, FRACTION = "cards.nvidia.com/gpu", "requests.nvidia.com/gpu", "gpu-fraction"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """A webhook and a controller that count an annotation and models, registered, on a cluster where pods run."""
    counts_as = [{"annotation": FRACTION, "card": "nvidia.com/gpu"}]
    models = {"A100": {"aliases": [A100]}, "T4": {"aliases": ["Tesla-T4"]}}
    folder = tmp_path_factory.mktemp("pods")
    async with parts_with_pods(cluster, folder, countsAs=counts_as, gpuModels=models) as parts:
        yield parts


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def a_card(tenant: Tenant) -> None:
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": {CARDS: "1", GPU: "1"}}})
    await eventually(lambda: is_used(tenant, "0"), 30)


async def cards(tenant: Tenant) -> str | None:
    used: Object = (await tenant.admin.get(GROUPS, tenant.name))["status"].get("used") or {}
    return used.get(CARDS)


async def is_used(tenant: Tenant, amount: str) -> bool:
    return await cards(tenant) == amount


async def asks_for(tenant: Tenant, name: str, amount: str) -> str:
    """Return what the pod then asks for, once the group uses so much."""
    await attempt(tenant.patch(PODS, name, {"metadata": {"annotations": {FRACTION: amount}}}))
    await asyncio.sleep(2)
    found = str((await tenant.admin.get(PODS, name, tenant.name))["metadata"]["annotations"][FRACTION])
    await eventually(lambda: is_used(tenant, canonical(parse(found))), 30)
    return found


def annotated(made: Object, fraction: str, *, is_held: bool) -> Object:
    made["metadata"].setdefault("annotations", {})[FRACTION] = fraction
    if is_held:
        made["spec"]["schedulingGates"] = [{"name": "example.com/held"}]
    return made


async def of_workload(tenant: Tenant, how: str, fraction: str, *, is_held: bool) -> str:
    """Return the name of a pod that a Deployment has made, or has left."""
    made = web(tenant, 1, pods={LABEL: tenant.name} if how == "made with the label" else None)
    annotated(made["spec"]["template"], fraction, is_held=is_held)
    await tenant.create(DEPLOYMENTS, made)

    async def is_made() -> list[Object] | None:
        pods = await tenant.pods()
        return pods if pods and bool(pods[0]["spec"].get("nodeName")) is not is_held else None

    found = await eventually(is_made, 30, "a pod")
    assert found is not None
    if how == "left":
        await tenant.delete(DEPLOYMENTS, "web", "Orphan")
        await gone(tenant, DEPLOYMENTS, "web")
        for each in (await tenant.admin.list(REPLICASETS, tenant.name))[0]:
            await tenant.delete(REPLICASETS, each["metadata"]["name"], "Orphan")
            await gone(tenant, REPLICASETS, each["metadata"]["name"])
        await asyncio.sleep(2)
    return str(found[0]["metadata"]["name"])


HOW = ["made", "made with the label", "left"]


@pytest.mark.parametrize("label", ["", None], ids=["labelled", "by default"])
async def test_a_pod_that_waits_asks_for_more(tenant: Tenant, label: str | None) -> None:
    if label is None:
        await tenant.has_default()
    await tenant.create(PODS, annotated(pod(tenant, "p", label=label), "0.1", is_held=True))
    assert [await asks_for(tenant, "p", amount) for amount in ("0.5", "40")] == ["0.5", "0.5"]


@pytest.mark.parametrize("how", HOW)
async def test_a_pod_that_a_workload_has_made_asks_for_more(tenant: Tenant, how: str) -> None:
    """What it asks for beyond its owner is charged to the group; so is what a workload has left."""
    name = await of_workload(tenant, how, "0.1", is_held=True)
    assert [await asks_for(tenant, name, amount) for amount in ("0.5", "40")] == ["0.5", "0.5"]


@pytest.mark.parametrize("how", ["alone", *HOW])
async def test_a_pod_that_runs_asks_for_less(tenant: Tenant, how: str) -> None:
    """It keeps the card that it has. Another pod would take as much again."""
    if how == "alone":
        await tenant.create(PODS, annotated(pod(tenant, "p"), "1", is_held=False))
        await tenant.running(1)
    name = "p" if how == "alone" else await of_workload(tenant, how, "1", is_held=False)
    assert [await asks_for(tenant, name, amount) for amount in ("0.1", "0")] == ["1", "1"]


def held_for_card() -> Object:
    """Return the spec of a pod that waits for a gate and asks for a card of any model."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}, "name": "c", "image": "none"}
    return {"schedulingGates": [{"name": "example.com/held"}], "containers": [limits]}


HAS_MODEL = {"key": "nvidia.com/gpu.product", "operator": "In", "values": [A100]}
REQUIRED_NODES = {"nodeSelectorTerms": [{"matchExpressions": [HAS_MODEL]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED_NODES}}
#: How a pod comes to ask for a card of a model.
CHANGES: dict[str, Object] = {
    "selector": {"spec": {"nodeSelector": {"nvidia.com/gpu.product": A100}, "schedulingGates": None}},
    "affinity": {"spec": {"affinity": AFFINITY, "schedulingGates": None}},
    "label": {"metadata": {"labels": {MODEL_LABELS["gpu"]: "A100"}}},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("how", ["made", "by default"])
async def test_a_pod_that_waits_comes_to_ask_for_a_model(tenant: Tenant, how: str, change: str) -> None:
    """Its Deployment was charged for cards of any model. One card of the model fits."""
    of_model = f"{GPU}.A100"
    hard = {CARDS: None, GPU: "4", of_model: "1"}
    await tenant.admin.patch(GROUPS, tenant.name, {"spec": {"hard": hard}})
    if how == "by default":
        await tenant.has_default()
    made = web(tenant, 2, label=None if how == "by default" else "")
    made["spec"]["template"]["spec"] |= held_for_card()
    await tenant.create(DEPLOYMENTS, made)

    async def are_made() -> list[Object] | None:
        return pods if len(pods := await tenant.pods()) == 2 else None

    pods = await eventually(are_made, 30, "both pods are there")
    refused = [await attempt(tenant.patch(PODS, each["metadata"]["name"], CHANGES[change])) for each in pods or ()]
    assert [each is None for each in refused] == [True, False], refused
    assert refused[1] is not None
    assert f"exceeded quota: {tenant.name}, requested: {of_model}=1" in str(refused[1])

    async def is_counted() -> bool:
        used: Object = (await tenant.admin.get(GROUPS, tenant.name))["status"].get("used") or {}
        return used.get(of_model) == "1"

    await eventually(is_counted, 30, "one card of the model is used")
