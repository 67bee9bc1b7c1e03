"""`bizrq fit` against admission: what it foretells is what the webhooks then answer, word for word.

Both see the same API server. `fit` is asked about many documents at once, and then each is sent for review in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

import crds
from bizrq.api import group as wire
from bizrq.figures.simulate.dry_run import DryRun, DryRunOutcome, read_groups
from bizrq.kube.client import KubeClient, Resource
from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Denied
from bizrq.settings import load
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import READ, WATCHED
from bizrq.units.slot import Slot
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from bizrq.workloads.lookup import CLUSTER_WIDE, group_and_version
from sandbox.server import Sandbox
from tests.support import objects
from tests.support.cluster import has_kinds
from tests.support.objects import NAMESPACES, Object, deployment, group, rollout, template, tfjob
from tests.support.workload_language import usage
from tests.vectors.test_vectors import manifest, patched
from tests.webhooks.conftest import Api, Hooks, decided, everybody_reads
from webhooks.app import Webhooks

SETTINGS = load(None)
_numbers = itertools.count()


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One bare API server for all of these tests, with the kinds that vectors refer to."""
    path = tmp_path_factory.mktemp("fit") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        others = [definition(*other) for other in sorted(OTHERS)]
        await has_kinds(client, [*crds.load(), *crds.stand_ins(), *others])
        await everybody_reads(client)
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        yield Api(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hooks(api: Api) -> AsyncIterator[Hooks]:
    """The webhooks as they serve, over plain HTTP."""
    webhooks = Webhooks(api.client, SETTINGS, clock=asyncio.get_running_loop().time)
    port = await webhooks.start("127.0.0.1", 0, None)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        hooks = Hooks(session, webhooks)
        await hooks.ready()
        yield hooks
        await webhooks.stop()


async def dry_run(client: KubeClient, documents: list[Object]) -> list[DryRunOutcome]:
    clock = asyncio.get_running_loop().time
    return await DryRun(client, SETTINGS, await read_groups(client), documents, clock=clock).outcomes()


def resource_of(obj: Object) -> Resource:
    adapter = SETTINGS.registry.of(obj)
    assert adapter is not None
    api_group, version = group_and_version(obj["apiVersion"])
    return Resource(api_group, version, adapter.plural, adapter.kind)


def assert_same(outcome: DryRunOutcome, response: Object) -> None:
    """Assert that both grant, or that both refuse in the same words."""
    told = outcome.verdict.message if isinstance(outcome.verdict, Denied) else ""
    assert told == decided(response), outcome


async def reviewed(api: Api, hooks: Hooks, document: Object) -> Object:
    """The webhooks' answer to what `kubectl apply` would send for a document."""
    new = copy.deepcopy(document)
    if new["kind"] == wire.KIND:
        stored = [g for g in (await api.client.list(GROUPS))[0] if g["metadata"]["name"] == new["metadata"]["name"]]
        if not stored:
            return await hooks.create(new)
        return await hooks.update(stored[0], {**stored[0], "spec": new["spec"]})
    resource = resource_of(new)
    namespace, name = new["metadata"].setdefault("namespace", "default"), new["metadata"]["name"]
    items = (await api.client.list(resource, namespace))[0] if resource in objects.CHARGED else []
    stored = [obj for obj in items if obj["metadata"]["name"] == name]
    if not stored:
        return await hooks.create(new, resource=resource)
    own = {key: stored[0]["metadata"][key] for key in ("uid", "resourceVersion")}
    # No file has ever said the labels that are stored, so they stay.
    own["labels"] = {**stored[0]["metadata"].get("labels", {}), **new["metadata"].get("labels", {})}
    return await hooks.update(stored[0], {**new, "metadata": {**new["metadata"], **own}}, resource=resource)


# The shared vectors.

OTHERS = {
    ("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices", "Namespaced"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", "Namespaced"),
    ("trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes", "Cluster"),
}


def definition(api_group: str, version: str, kind: str, plural: str, scope: str) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{api_group}"},
        "spec": {"group": api_group, "scope": scope, "names": names, "versions": [served]},
    }


@contextlib.asynccontextmanager
async def stored(client: KubeClient, related: list[Object]) -> AsyncIterator[None]:
    """These objects are in the cluster, and go again."""
    plurals = {(r.group, r.kind): r.plural for r in (*READ, *WATCHED)} | {(g, k): p for g, _, k, p, _ in OTHERS}
    made: list[tuple[Resource, Object]] = []
    for obj in related:
        api_group, version = group_and_version(obj["apiVersion"])
        adapter, alone = SETTINGS.registry.of(obj), (api_group, obj["kind"]) in CLUSTER_WIDE
        plural = plurals.get((api_group, obj["kind"])) or (adapter.plural if adapter else "")
        resource = Resource(api_group, version, plural, obj["kind"], not alone)
        new = copy.deepcopy(obj)
        if not alone:
            new["metadata"].setdefault("namespace", "default")
        made.append((resource, await client.create(resource, new)))
    try:
        yield
    finally:
        for resource, obj in made:
            await client.delete(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))


async def agree(api: Api, hooks: Hooks, document: Object, related: list[Object]) -> None:
    """A group with room for some of the document's demand and not for all, or with just enough."""
    luck = random.Random(str(document))
    async with stored(api.client, related):
        [row] = [r for r in usage([document, *related]) if r.name == document["metadata"]["name"]][:1] or [None]
        cost = dict(row.usage or {}) if row else {}
        hard = {name: amount if luck.random() < 0.7 else "1m" for name, amount in cost.items()}
        name = f"v{next(_numbers)}"
        await api.group(name, **(hard or {"pods": "1"}))
        asked = copy.deepcopy(document)
        asked["metadata"]["labels"] = {**asked["metadata"].get("labels", {}), LABEL: name}
        outcomes = await dry_run(api.client, [asked])
        adapter = SETTINGS.registry.of(asked)
        if adapter is None or not SETTINGS.registry.is_charged(adapter):
            # What makes others is reviewed for these alone.
            assert [each for each in outcomes if each.is_chargeable or not each.is_granted] == []
            return
        [outcome] = outcomes
        assert_same(outcome, await reviewed(api, hooks, asked))


async def test_fit_agrees_with_admission_on_a_workload_vector(workload_vector, api: Api, hooks: Hooks) -> None:
    related, document = copy.deepcopy(workload_vector.get("related", [])), workload_vector["manifest"]
    if document["kind"] != "Scale":
        await agree(api, hooks, document, related)
        return
    # What is scaled must be charged to a group, and stored.
    name = f"v{next(_numbers)}"
    await api.group(name, **{"pods": "2", "requests.cpu": "1"})
    for obj in related:
        obj["metadata"]["labels"] = {**obj["metadata"].get("labels", {}), LABEL: name}
    async with stored(api.client, related):
        [outcome] = await dry_run(api.client, [document])
        [parent] = [o for o in related if o["metadata"]["name"] == document["metadata"]["name"]]
        old = {**document, "spec": {}}
        response = await hooks.review(
            "scale", "UPDATE", document, old, sub_resource="scale", resource=resource_of(parent)
        )
        assert_same(outcome, response)


async def test_fit_agrees_with_admission_on_a_device_vector(device_vector, api: Api, hooks: Hooks) -> None:
    """Runs with the default configuration; both sides get the same settings."""
    await agree(api, hooks, manifest(device_vector), device_vector["related"])


async def test_fit_agrees_with_admission_on_an_update(transition, api: Api, hooks: Hooks) -> None:
    old = copy.deepcopy(transition["old"])
    new = copy.deepcopy(patched(old, transition.get("patch", {})))
    groups = {name: f"{name}-{next(_numbers)}" for name in ("g1", "g2")}
    for name in groups.values():
        await api.group(name, **{"requests.cpu": "3", "pods": "4", "requests.nvidia.com/gpu": "9"})
    for obj in (old, new):
        if LABEL in obj["metadata"].get("labels", {}):
            obj["metadata"]["labels"][LABEL] = groups[obj["metadata"]["labels"][LABEL]]
    await api.count(groups["g1"], **transition["usage_old"])
    async with stored(api.client, [old]):
        [outcome] = await dry_run(api.client, [new])
        assert_same(outcome, await reviewed(api, hooks, new))


# A thousand at random.

NAMES = (
    "limits.cpu",
    "requests.cpu",
    "pods",
    "count/deployments.apps",
    "limits.cpu.A4",
    "cash/limits.cpu",
    "requests.nvidia.com/gpu",
    "requests.nvidia.com/gpu.A100",
)
TREE = {"corp": "", "ai": "corp", "db": "corp", "nlp": "ai", "vision": "ai", "ocr": "vision"}
ROUNDS, WORKLOADS = 28, 50


async def random_state(api: Api, luck: random.Random) -> None:
    """Every group with a random account: room, no room, over, hours spent, promises to what is stored or is not."""
    for name in TREE:
        hard = {n: str(luck.choice((0, 1, 5, 20, 1000))) for n in NAMES if luck.random() < 0.7}
        await api.client.patch(GROUPS, name, {"spec": {"hard": None}})
        await api.client.patch(GROUPS, name, {"spec": {"hard": hard}})
        entries = [
            Reservation(
                Slot("deployments.apps", "default", f"stored-{luck.randrange(6)}"),
                f"u{number}",
                luck.choice((None, 5)),
                1_900_000_000_000,
                {n: luck.randrange(4) * 10**9 for n in NAMES},
            )
            for number in range(luck.randrange(3))
        ]
        await api.count(name, *entries, **{n: str(luck.choice((0, 0, 1, 4, 30))) for n in hard})


def random_workload(luck: random.Random, number: int) -> Object:
    label: Any = luck.choice((*TREE, *TREE, "nobody", None))
    replicas, cpu = luck.choice((0, 1, 2, 3, 8, 12)), luck.choice(("1", "250m", 3, "abc", ""))
    name = f"stored-{luck.randrange(6)}" if luck.random() < 0.4 else f"new-{number}"
    made = luck.choice((deployment, deployment, rollout))(name, label or "x", replicas, cpu=cpu or "1")
    if not cpu:
        # Says nothing of cpu, which some groups want to know.
        made["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    if luck.random() < 0.2:
        made = tfjob(f"job-{number}", label or "x", luck.choice((1, 4, -1, "two")), gpu=luck.choice((1, 8)))
    elif luck.random() < 0.1:
        spec = template(cpu or "1")["spec"]
        metadata = {"name": f"pod-{number}", "namespace": "default", "labels": {LABEL: label or "x"}}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    if label is None:
        made["metadata"]["labels"] = {}
    if luck.random() < 0.3:
        made["metadata"]["labels"][MODEL_LABELS["cpu"]] = luck.choice(("A4", "H9"))
    if luck.random() < 0.3:
        made["metadata"]["labels"][MODEL_LABELS["gpu"]] = "A100"
    return made


def random_groups(luck: random.Random, number: int) -> list[Object]:
    """New children and raised ones, each at most once, the deepest first: nothing here builds on what is not stored."""
    hard = {name: str(luck.choice((0, 1, 9))) for name in NAMES}
    made = [group(f"child-{number}", luck.choice(("ai", "ocr", "none")), **hard)]
    name = luck.choice(list(TREE))
    return [*made, group(name, TREE[name] if luck.random() < 0.8 else "db", **hard)]


async def test_fit_agrees_with_admission_on_a_thousand_random_workloads_and_states(api: Api, hooks: Hooks) -> None:
    luck = random.Random(20)
    for name, parent in TREE.items():
        await api.client.create(GROUPS, group(name, parent, cpu="1"))
    for number in range(6):
        await api.client.create(objects.DEPLOYMENTS, deployment(f"stored-{number}", luck.choice(list(TREE)), 2))
    seen = {True: 0, False: 0}
    for turn in range(ROUNDS):
        await random_state(api, luck)
        workloads = [random_workload(luck, turn * WORKLOADS + n) for n in range(WORKLOADS)]
        # Each name once: what is granted is not stored here, so it cannot be updated either.
        unique = {(w["kind"], w["metadata"]["name"]): w for w in workloads}
        documents = [*unique.values(), *random_groups(luck, turn)]
        for outcome, document in zip(await dry_run(api.client, documents), documents, strict=True):
            response = await reviewed(api, hooks, document)
            assert_same(outcome, response)
            seen[response["allowed"]] += 1
    assert min(seen.values()) > 150, seen
    assert sum(seen.values()) >= 1000
