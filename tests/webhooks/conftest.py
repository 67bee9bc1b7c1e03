"""The webhooks against a bare API server: groups say what the test wrote, since no controller counts them."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import crds
from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient
from bizrq.quota.reservation import Reservation
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from sandbox.server import Sandbox
from tests.support import objects
from tests.support.objects import Object
from tests.support.patience import PatientLoop
from tests.support.proxy import Proxy
from webhooks.app import Webhooks

READERS = "readers"
READING = objects.bound(READERS, "system:authenticated", "Group")


def pytest_asyncio_loop_factories() -> dict[str, type[asyncio.AbstractEventLoop]]:
    """All that is tested here runs in this process."""
    return {"patient": PatientLoop}


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A bare API server with the kinds of the story, on which everybody may read groups."""
    async with Sandbox(controllers=False, bookmark_seconds=0.2) as box:
        async with KubeClient.from_kubeconfig(box.write_kubeconfig(tmp_path / "direct")) as client:
            await box.install([*crds.load(), *crds.stand_ins()])
            await everybody_reads(client)
        yield box


async def everybody_reads(client: KubeClient) -> None:
    """Let all users read groups, and so see their figures."""
    await client.create(objects.CLUSTER_ROLES, objects.cluster_role(READERS, "get"))
    await client.create(objects.CLUSTER_ROLE_BINDINGS, READING)


@pytest.fixture
async def api(box: Sandbox, tmp_path: Path) -> AsyncIterator[Api]:
    async with KubeClient.from_kubeconfig(tmp_path / "direct") as client:
        yield Api(client)


@pytest.fixture
async def proxy(box: Sandbox, tmp_path: Path) -> AsyncIterator[Proxy]:
    """What stands between the webhooks and the API server."""
    async with Proxy(tmp_path / "direct") as proxy:
        yield proxy


@pytest.fixture
async def through(proxy: Proxy, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A client on the far side of the proxy."""
    async with KubeClient.from_kubeconfig(proxy.write_kubeconfig(tmp_path / "proxied")) as client:
        yield client


@pytest.fixture
async def hooks(through: KubeClient) -> AsyncIterator[Hooks]:
    """The webhooks as they serve, over plain HTTP."""
    async with serving(through) as hooks:
        yield hooks


@asynccontextmanager
async def serving(client: KubeClient, **configuration: Any) -> AsyncIterator[Hooks]:
    """Webhooks of this configuration, ready."""
    webhooks = Webhooks(client, settings(configuration), clock=asyncio.get_running_loop().time)
    port = await webhooks.start("127.0.0.1", 0, None)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        hooks = Hooks(session, webhooks)
        await hooks.ready()
        try:
            yield hooks
        finally:
            await webhooks.stop()


class Api:
    """The API server as an administrator and the controller write to it."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    async def group(self, name: str, parent: str = "", /, *, used: Object | None = None, **hard: Any) -> GroupObject:
        """A stored group that is counted: what `used` does not name is 0."""
        await self.client.create(GROUPS, objects.group(name, parent, **hard))
        return await self.count(name, **(used or {}))

    async def count(self, name: str, *entries: Reservation, **used: Any) -> GroupObject:
        """Write a status as a recount would: `used`, 0 for the rest, and these reservations only."""
        stored = await self.client.get(GROUPS, name)
        hard = stored["spec"]["hard"]
        amounts = {**dict.fromkeys(hard, "0"), **objects.named(used)}
        stored["status"] = {
            "hard": hard,
            "used": amounts,
            "selfUsed": amounts,
            "reservations": sorted(str(entry) for entry in entries),
        }
        return wire.from_dict(await self.client.replace(GROUPS, stored, subresource="status"))

    async def read(self, name: str) -> GroupObject:
        return wire.from_dict(await self.client.get(GROUPS, name))

    async def entries(self, name: str) -> list[Reservation]:
        return list(wire.reservations_of(await self.read(name)))


_uids = itertools.count(1)


class Hooks:
    """Reviews sent as the API server sends them; answers are the review's response."""

    def __init__(self, session: aiohttp.ClientSession, webhooks: Webhooks) -> None:
        self.session = session
        self.webhooks = webhooks

    async def ready(self) -> None:
        until = time.monotonic() + 60
        while True:
            async with self.session.get("/readyz") as answer:
                if answer.status == 200:
                    return
                assert time.monotonic() < until, await answer.text()

    async def review(
        self,
        path: str,
        operation: str,
        new: Object | None,
        old: Object | None = None,
        *,
        timeout: str = "10s",
        dry_run: bool = False,
        sub_resource: str = "",
        resource: Any = None,
        user: Object | None = None,
        name: str | None = None,
        options: Object | None = None,
    ) -> Object:
        about = new or old or {}
        of = resource or objects.OF_KIND[about["kind"]]
        uid = f"review-{next(_uids)}"
        request = {
            "uid": uid,
            "kind": {"group": of.group, "version": of.version, "kind": about["kind"]},
            "resource": {"group": of.group, "version": of.version, "resource": of.plural},
            "subResource": sub_resource,
            "name": about["metadata"].get("name", "") if name is None else name,
            "namespace": about["metadata"].get("namespace", ""),
            "operation": operation,
            "userInfo": user or {"username": "alice", "groups": ["system:authenticated"]},
            "object": new,
            "oldObject": old,
            "dryRun": dry_run,
            "options": options,
        }
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        async with self.session.post(f"/validate/{path}", json=body, params={"timeout": timeout}) as answer:
            assert answer.status == 200, await answer.text()
            review = await answer.json()
        assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert review["response"]["uid"] == uid
        return review["response"]

    async def create(self, obj: Object, **how: Any) -> Object:
        """The review of a CREATE, with the uid that the API server has given the object by then."""
        new = copy.deepcopy(obj)
        new["metadata"].setdefault("uid", f"uid-{next(_uids)}")
        return await self.review(_path(obj), "CREATE", new, **how)

    async def update(self, old: Object, new: Object, **how: Any) -> Object:
        return await self.review(_path(new), "UPDATE", new, old, **how)

    async def delete(self, old: Object, **how: Any) -> Object:
        return await self.review(_path(old), "DELETE", None, old, **how)


def _path(obj: Object) -> str:
    return {wire.KIND: "groups", CORRECTIONS.kind: "corrections"}.get(obj["kind"], "workloads")


def message(response: Object) -> str:
    """Why a review was refused; fails where it was not."""
    assert not response["allowed"], response
    return response["status"]["message"]


def run(what: str) -> str:
    """The end of a refusal that names the command which explains it."""
    return f"; run: kubectl bizrq explain {what}"


#: The same for a new object of the namespace `default`.
RUN_FILE = run("-f FILE -n default")


def decided(response: Object) -> str:
    """What was decided, without the next step of a refusal; "" where the review was granted."""
    said = "" if response["allowed"] else response["status"]["message"]
    lacks = said.startswith("exceeded quota: ")
    before, found, after = said.partition("; run: kubectl bizrq explain ")
    assert lacks is bool(found), said
    assert "; " not in after, said
    return before


def changed(obj: Object, change: Callable[[Object], object]) -> Object:
    """A copy of the object with a change made to it."""
    new = copy.deepcopy(obj)
    change(new)
    return new


def stored(obj: Object, version: int = 7) -> Object:
    """The object as the API server would have it."""
    return changed(
        obj, lambda o: o["metadata"].update(uid=f"uid-of-{o['metadata']['name']}", resourceVersion=str(version))
    )
