"""The behaviour of the fake server, checked on the sandbox and on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from bizrq.kube.client import AlreadyExists, ApiError, Conflict, Invalid, KubeClient, NotFound, Resource
from bizrq.kube.events import EVENTS, EventRecorder
from bizrq.kube.informer import Informer, InformerTimings
from bizrq.kube.lease import LEASES, run_as_leader
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
WIDGETS = Resource("test.biz.group", "v1", "widgets", "Widget")
BRISK = InformerTimings(watch=(60.0, 60.0), first_pause=0.02, longest_pause=0.2, confirm=0.05, poll=0.1, lag=0.2)

Told = list[tuple[str, str]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as kube:
        yield kube


@asynccontextmanager
async def following(kube: KubeClient, resource: Resource) -> AsyncIterator[tuple[Informer, Told]]:
    told: Told = []

    def tell(old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        kind = "added" if old is None else "deleted" if new is None else "changed"
        told.append((kind, ((new or old) or {})["metadata"]["name"]))

    informer = Informer(kube, resource, on_change=tell, pace=BRISK)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        yield informer, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually(holds)


def config_map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_an_informer_follows_what_happens(kube: KubeClient, unique: str) -> None:
    async with following(kube, CONFIGMAPS) as (informer, told):
        first, second = f"{unique}-a", f"{unique}-b"
        made = await kube.create(CONFIGMAPS, config_map(first, x="1"))
        await kube.create(CONFIGMAPS, config_map(second))
        await kube.replace(CONFIGMAPS, {**made, "data": {"x": "2"}})
        uid = made["metadata"]["uid"]
        await kube.delete(CONFIGMAPS, first, "default", uid=uid)
        await until(lambda: ("deleted", first) in told)
        ours = [each for each in told if each[1].startswith(f"{unique}-")]
        assert ours == [("added", first), ("added", second), ("changed", first), ("deleted", first)]
        assert informer.store.deleted_at(uid) is not None
        assert informer.store.epoch == 0
        assert informer.problem is None
        await kube.delete(CONFIGMAPS, second, "default")


async def test_a_quiet_kind_catches_up_with_what_another_kind_did(kube: KubeClient, unique: str) -> None:
    async with following(kube, CONFIGMAPS) as (informer, _):
        metadata = {"name": unique, "namespace": "default"}
        made = await kube.create(LEASES, {"metadata": metadata, "spec": {}, "kind": "Lease"} | _versioned(LEASES))
        revision = int(made["metadata"]["resourceVersion"])
        assert await informer.catch_up(revision, 60)
        assert informer.store.resource_version >= revision
        assert not await informer.catch_up(revision + 1_000_000, 0.5)


async def test_rejections_have_their_types(kube: KubeClient, unique: str) -> None:
    made = await kube.create(CONFIGMAPS, config_map(unique, x="1"))
    await kube.replace(CONFIGMAPS, {**made, "data": {"x": "2"}})
    test = [{"op": "test", "path": "/data/x", "value": "9"}]
    refused: list[tuple[type[ApiError], Callable[[], Any]]] = [
        (AlreadyExists, lambda: kube.create(CONFIGMAPS, config_map(unique))),
        (Conflict, lambda: kube.replace(CONFIGMAPS, made)),
        (Conflict, lambda: kube.delete(CONFIGMAPS, unique, "default", uid="another")),
        (NotFound, lambda: kube.get(CONFIGMAPS, f"{unique}-none", "default")),
        (NotFound, lambda: kube.list(WIDGETS)),
        (
            Invalid,
            lambda: kube.patch(
                CONFIGMAPS, unique, test, namespace="default", content_type="application/json-patch+json"
            ),
        ),
    ]
    for kind, call in refused:
        with pytest.raises(kind) as caught:
            await call()
        assert type(caught.value) is kind
        assert caught.value.message
    dry = await kube.patch(CONFIGMAPS, unique, {"data": {"x": "3"}}, namespace="default", dry_run=True)
    assert dry["data"]["x"] == "3"
    assert (await kube.get(CONFIGMAPS, unique, "default"))["data"]["x"] == "2"
    await kube.delete(CONFIGMAPS, unique, "default")


async def test_pages_are_one_consistent_list(kube: KubeClient, unique: str) -> None:
    names = [f"{unique}-{i}" for i in range(7)]
    for name in names:
        await kube.create(CONFIGMAPS, config_map(name))
    items, revision = await kube.list(CONFIGMAPS, "default", limit=3)
    assert [each["metadata"]["name"] for each in items if each["metadata"]["name"] in names] == names
    assert items[0]["kind"] == "ConfigMap"
    assert int(revision) >= max(int(each["metadata"]["resourceVersion"]) for each in items)
    for name in names:
        await kube.delete(CONFIGMAPS, name, "default")


async def test_a_kind_is_watched_while_it_is_installed(kube: KubeClient) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS.key},
        "spec": {
            "group": WIDGETS.group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }
    async with following(kube, WIDGETS) as (informer, told):
        assert informer.installed is False
        await kube.create(CRDS, definition)
        await until(lambda: informer.installed is True)
        widget = {
            "apiVersion": "test.biz.group/v1",
            "kind": "Widget",
            "metadata": {"name": "w", "namespace": "default"},
        }
        await kube.create(WIDGETS, widget)
        await until(lambda: ("added", "w") in told)
        await kube.delete(CRDS, WIDGETS.key)
        await until(lambda: told[-1] == ("deleted", "w"))
        await until(lambda: informer.installed is False)
        assert told.count(("deleted", "w")) == 1


async def test_a_lease_is_held_renewed_and_released(kube: KubeClient, unique: str) -> None:
    leading = asyncio.Event()

    async def work() -> None:
        leading.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(
        run_as_leader(
            kube,
            namespace="default",
            name=unique,
            identity="me",
            on_lead=work,
            lease_duration=60,
            renew_deadline=40,
            retry_period=0.1,
        )
    )
    await asyncio.wait_for(leading.wait(), 60)
    taken = (await kube.get(LEASES, unique, "default"))["spec"]

    async def renewed() -> dict[str, Any] | None:
        found = (await kube.get(LEASES, unique, "default"))["spec"]
        return found if found["renewTime"] > taken["renewTime"] else None

    held = await eventually(renewed)
    assert held is not None
    assert held["holderIdentity"] == "me"
    assert held["acquireTime"] == taken["acquireTime"] <= taken["renewTime"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    released = (await kube.get(LEASES, unique, "default"))["spec"]
    assert not released.get("holderIdentity")
    await kube.delete(LEASES, unique, "default")


async def test_an_event_is_written_and_counted(kube: KubeClient, unique: str) -> None:
    about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "uid": unique}}

    async def ours() -> list[dict[str, Any]]:
        return [each for each in (await kube.list(EVENTS, "default"))[0] if each["message"] == unique]

    async with EventRecorder(kube, "bizrq-test") as recorder:
        recorder.event(about, "Normal", "Tested", unique)
        await eventually(ours)
        recorder.event(about, "Normal", "Tested", unique)
    assert [each["count"] for each in await ours()] == [2]
    assert recorder.dropped == 0


def _versioned(resource: Resource) -> dict[str, str]:
    return {"apiVersion": resource.api_version}
