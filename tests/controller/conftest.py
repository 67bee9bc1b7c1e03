"""The controller against a bare API server without admission: it counts exactly what the test stored."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

import crds
from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.api.hours import CardHours
from bizrq.kube.client import Conflict, KubeClient, Resource
from bizrq.quota.reservation import Reservation
from bizrq.settings import settings as settings_of
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS
from bizrq.store.hours import pages as stored_pages
from controller.manager import Controller
from controller.metrics import CACHE_CORRECTED
from sandbox.clock import Clock, rfc3339
from sandbox.server import Sandbox
from tests.support import objects
from tests.support.cluster import eventually
from tests.support.objects import NAMESPACES, OF_KIND, PODS, Object
from tests.support.patience import PatientLoop
from tests.support.proxy import Proxy

EVENTS = Resource("", "v1", "events", "Event")
#: An amount, a share, or the place of a workload.
_FIGURES = re.compile(r"=|%|\d of \d|/default/")


def pytest_asyncio_loop_factories() -> dict[str, type[asyncio.AbstractEventLoop]]:
    """Use the patient loop: everything under test runs in this process."""
    return {"patient": PatientLoop}


class Monotonic:
    """The controller's own clock, which a test may set forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


class Books:
    """A cluster, its clock, and a controller that a test starts and stops."""

    def __init__(self, box: Sandbox, client: KubeClient, folder: Path) -> None:
        self.box = box
        self.client = client
        self.clock = Monotonic()
        self.folder = folder
        self.proxy = Proxy(folder / "direct")

    @asynccontextmanager
    async def controller(self, knobs: Object | None = None, **how: Any) -> AsyncIterator[Controller]:
        """Run a leading controller behind the proxy. It recounts every group several times a second.

        `knobs` are its configuration, `how` what differs otherwise.
        """
        settings = settings_of(knobs)
        async with KubeClient.from_kubeconfig(self.proxy.write_kubeconfig(self.folder / "proxied")) as client:
            controller = Controller(
                client,
                settings,
                identity=f"controller-{time.monotonic_ns()}",
                clock=self.clock,
                **{
                    "now": lambda: int(self.box.clock.now().timestamp() * 1000),
                    "recount_interval": 0.15,
                    "cash_interval": 0.15,
                    **how,
                },
            )
            task = asyncio.create_task(controller.run())
            leading = asyncio.create_task(controller.leading.wait())
            await asyncio.wait({task, leading}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert controller.leading.is_set(), task
            try:
                yield controller
            finally:
                # What belongs to groups ends with the lead.
                _, *wrong = CACHE_CORRECTED.snapshot()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert not wrong, wrong

    @staticmethod
    def kind(obj: Object) -> Resource:
        return OF_KIND[obj["kind"]]

    async def create(self, obj: Object) -> Object:
        return await self.client.create(OF_KIND[obj["kind"]], obj)

    async def group(self, name: str, parent: str = "", /, **hard: Any) -> GroupObject:
        """Create a group and wait until it is counted."""
        await self.create(objects.group(name, parent, **hard))
        return await self.until(name, lambda g: g.status.used is not None)

    async def read(self, name: str) -> GroupObject:
        return wire.from_dict(await self.client.get(GROUPS, name))

    async def pages(self, name: str) -> list[CardHours]:
        """Return the stored pages of the group's record."""
        return await stored_pages(self.client, name)

    async def until_record(self, name: str, holds: Callable[[CardHours], bool]) -> CardHours:
        """Wait until `holds` is true of the first page of the group's record, and return the page."""

        async def found() -> CardHours | None:
            pages = await self.pages(name)
            return pages[0] if pages and holds(pages[0]) else None

        page = await eventually(found, 60, f"the record of {name}")
        assert page is not None
        return page

    async def rewrite_record(self, name: str, status: Object) -> None:
        """Replace fields in the status of a record's first page."""
        while True:
            stored = await self.client.get(CARD_HOURS, name)
            stored["status"] = {**stored["status"], **status}
            try:
                await self.client.replace(CARD_HOURS, stored, subresource="status")
            except Conflict:
                continue
            return

    async def until(self, name: str, holds: Any, seconds: float = 60.0) -> GroupObject:
        """Wait until `holds` is true of the group, and return it."""
        last: list[GroupObject] = []

        async def remembered() -> GroupObject | None:
            last[:] = [await self.read(name)]
            return last[0] if holds(last[0]) else None

        found = await eventually(remembered, seconds, lambda: last[-1].status)
        assert found is not None
        return found

    async def uses(self, name: str, **amounts: str) -> GroupObject:
        """Wait until the group's `used` has these amounts, and return the group."""
        wanted = objects.named(amounts)
        return await self.until(
            name, lambda g: all((g.status.used or {}).get(key) == amount for key, amount in wanted.items())
        )

    async def holds_still(self, name: str, holds: Any, looks: int = 3) -> GroupObject:
        """Assert that `holds` stays true of the group over some more recounts, and return the group."""
        for _ in range(looks):
            before = (await self.read(name)).status.last_reconcile_time
            self.box.clock.advance(0.001)
            group = await self.until(name, lambda g, before=before: g.status.last_reconcile_time != before)
            assert holds(group), group.status
        return await self.read(name)

    async def promise(self, name: str, *entries: Reservation) -> GroupObject:
        """Add reservations to the status, as admission does."""
        while True:
            stored = await self.client.get(GROUPS, name)
            lines = {*stored["status"].get("reservations", ()), *map(str, entries)}
            stored["status"]["reservations"] = sorted(lines)
            try:
                return wire.from_dict(await self.client.replace(GROUPS, stored, subresource="status"))
            except Conflict:
                continue

    async def rewrite(self, name: str, status: Object) -> None:
        """Replace fields in the group's status; all of it where `status` is empty."""
        while True:
            stored = await self.client.get(GROUPS, name)
            stored["status"] = {**stored.get("status", {}), **status} if status else {}
            try:
                await self.client.replace(GROUPS, stored, subresource="status")
            except Conflict:
                continue
            return

    async def events(self, reason: str) -> list[str]:
        items, _ = await self.client.list(EVENTS)
        return [item["message"] for item in items if item["reason"] == reason]

    async def told(self, reason: str) -> str:
        """Wait for an event with this reason, and return the message of the first."""
        found = await eventually(lambda: self.events(reason), 60, f"an event {reason}")
        return found[0]

    async def says(self, name: str, kind: str) -> str:
        """Wait for a true condition of this type and for its event, and return the message of the condition."""

        async def said() -> str:
            conditions = (await self.read(name)).status.conditions
            return next((c.message for c in conditions if c.type == kind and c.status == "True"), "")

        found = await eventually(said, 60, f"the condition {kind}")
        assert f"the condition {kind} says more" in await self.told(kind)
        return found

    async def check_events(self) -> None:
        """Fail for an event with an amount, a share or a workload: whoever may read `default` reads all of them."""
        for event in (await self.client.list(EVENTS))[0]:
            if event["involvedObject"]["kind"] == wire.KIND:
                assert not _FIGURES.search(event["message"]), event["message"]

    # Pods, by the sandbox's clock.

    async def pod(self, name: str, owner: Object, gpu: int = 1, *, since: float = 0.0, **more: Any) -> Object:
        """Create a pod of this owner, with the labels of its template, bound `since` seconds ago.

        `more` are fields of its spec.
        """
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        devices = {"nvidia.com/gpu": gpu} if gpu else {}
        spec = {**objects.template("1", **devices)["spec"], **more}
        labels = (owner.get("spec", {}).get("template") or {}).get("metadata", {}).get("labels") or {}
        metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [reference]}
        await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        bound = rfc3339(self.box.clock.now() - timedelta(seconds=since))
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
        return await self._status(name, {"phase": "Running", "conditions": [condition]})

    async def ends(self, name: str, ago: float = 0.0) -> Object:
        """End the pod's container, `ago` seconds ago."""
        at = rfc3339(self.box.clock.now() - timedelta(seconds=ago))
        terminated = {"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}}
        return await self._status(name, {"phase": "Succeeded", "containerStatuses": [terminated]})

    async def remove(self, obj: Object) -> None:
        """Delete an object without a grace period."""
        of = OF_KIND[obj["kind"]]
        path = of.path(obj["metadata"].get("namespace"), obj["metadata"]["name"])
        await self.client.request("DELETE", path, body=orjson.dumps({"gracePeriodSeconds": 0}))

    async def _status(self, name: str, status: Object) -> Object:
        return await self.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    """A bare API server whose clock moves only when the test moves it."""
    clock = Clock(now=datetime(2026, 1, 1, tzinfo=UTC), rate=0)
    async with Sandbox(controllers=False, clock=clock, bookmark_seconds=0.1) as box:  # noqa: SIM117 the kubeconfig needs the box
        async with KubeClient.from_kubeconfig(box.write_kubeconfig(tmp_path / "direct")) as client:
            await box.install([*crds.load(), *crds.stand_ins()])
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bizrq-system"}}
            await client.create(NAMESPACES, namespace)
            books = Books(box, client, tmp_path)
            async with books.proxy:
                yield books
                await books.check_events()
