"""The pods of a workload that moves stay with the group that paid, where the demand does not pay for them.

The cluster has no controllers of its own: each test stores what they would. Bound pods end when the test says so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import Resource
from bizrq.quota.reservation import Reservation
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import parse
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from controller.manager import Controller
from tests.controller.conftest import Books
from tests.controller.test_ownership_rules import DAY, Team
from tests.controller.usage.test_excess import reference
from tests.support.at_rest import at_rest
from tests.support.cluster import eventually
from tests.support.language import entry
from tests.support.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    REPLICASETS,
    Object,
    deployment,
    template,
)

JOBS = Resource("batch", "v1", "jobs", "Job")
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
CPU = "limits.cpu"


class Movers(Team):
    """Group nlp, whose workloads move to vision and lab; a watch of all groups adds up what these hold."""

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.groups: dict[str, GroupObject] = {}
        #: The least that all groups held together since it was asked for.
        self.least = float("inf")

    def held(self) -> float:
        return sum(taken(group) for group in self.groups.values() if group.status.used is not None)

    async def watch(self) -> None:
        items, version = await self.books.client.list(GROUPS)
        self.groups = {item["metadata"]["name"]: wire.from_dict(item) for item in items}
        async for what, obj in self.books.client.watch(GROUPS, resource_version=version):
            if what in ("ADDED", "MODIFIED"):
                self.groups[obj["metadata"]["name"]] = wire.from_dict(obj)
                self.least = min(self.least, self.held())

    async def ending(self, number: int = 5, **spec: Any) -> tuple[Object, list[str]]:
        """Return a Deployment that was scaled to 0, its ReplicaSet, and its pods that take a day to end."""
        await self.deployment(number)
        below = await self.change(REPLICASETS, "web-1", replicas=number)
        pods = await self.pods("old", below, number, terminationGracePeriodSeconds=DAY)
        await self.uses(str(number))
        await self.scale(0)
        await self.delete(*pods)
        await self.observed()
        await self.uses(str(number))
        return below, pods

    async def pods(self, prefix: str, owner: Object, number: int, cpu: str = "1", **spec: Any) -> list[str]:
        """Store pods that are made one after the other: their controller deletes the youngest first."""
        names: list[str] = []
        for each in range(number):
            self.books.box.clock.advance(1)
            names += await super().pods(f"{prefix}{each}", owner, 1, cpu, **spec)
        return names

    async def scale(self, replicas: int) -> None:
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await self.change(kind, name, replicas=replicas)

    async def observed(self) -> None:
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await self.observe(kind, name)

    async def move(self, group: str | None, name: str = "web", kind: Resource = DEPLOYMENTS, **more: Any) -> None:
        """Move a workload, with no entry for it: as admission does where it asks for nothing.

        With a demand, the groups may hold less than it until both are counted: `move_for` promises it.
        """
        self.least = float("inf")
        change = {"metadata": {"labels": {LABEL: group}}, **more}
        await self.books.client.patch(kind, name, change, namespace="default")

    async def move_for(self, group: str, replicas: int) -> None:
        """Move the Deployment with so many replicas of a core each, which the group has promised, as admission does.

        The demand pays for pods once the Deployment's controller has observed it.
        """
        at = (await self.books.client.get(DEPLOYMENTS, "web", "default"))["metadata"]
        await self.books.promise(group, move_of(at, f"cpu={replicas}"))
        await self.move(group, spec={"replicas": replicas})

    async def holds(self, **amounts: str) -> dict[str, GroupObject]:
        """Wait until each group's used cores are these and no entry is left, and return the groups."""
        last: list[object] = []

        async def are() -> dict[str, GroupObject] | None:
            found = {name: await self.books.read(name) for name in amounts}
            last[:] = [group.status for group in found.values()]
            used = {name: (group.status.used or {}).get(CPU) for name, group in found.items()}
            return found if used == amounts else None

        found = await eventually(are, 60, lambda: last)
        assert found is not None
        return found

    async def holds_still(self, **amounts: str) -> dict[str, GroupObject]:
        await self.holds(**amounts)
        for name, amount in amounts.items():
            await self.books.holds_still(name, lambda g, amount=amount: (g.status.used or {}).get(CPU) == amount, 2)
        return await self.holds(**amounts)


def move_of(at: Object, amount: str) -> Reservation:
    """Return the reservation of a move of Deployment web with this metadata."""
    rv, generation = int(at["resourceVersion"]), at["generation"]
    return entry("deployments.apps/default/web", amount, of=at["uid"], rv=rv, gen=generation)


def taken(group: GroupObject) -> float:
    extra = sum(e.extra.get(CPU, 0) for e in wire.reservations_of(group))
    return (parse((group.status.used or {}).get(CPU, "0")) + extra) / 1_000_000_000


def stays(group: GroupObject) -> int:
    """Return how many pods a group pays for by themselves."""
    return sum(line.startswith("pods/") for line in group.status.leftovers)


def condition(group: GroupObject, kind: str) -> str:
    return next((c.message for c in group.status.conditions if c.type == kind), "")


@asynccontextmanager
async def movers(books: Books, **how: Any) -> AsyncIterator[tuple[Movers, Controller]]:
    async with books.controller(**how) as controller:
        for name in ("nlp", "vision", "lab"):
            if not await exists(books, name):
                await books.group(name, cpu="20")
        team = Movers(books)
        task = asyncio.create_task(team.watch())
        try:
            yield team, controller
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def exists(books: Books, name: str) -> bool:
    return any(item["metadata"]["name"] == name for item in (await books.client.list(GROUPS))[0])


async def test_pods_that_are_ending_stay_with_the_group_that_paid(books: Books) -> None:
    async with movers(books) as (team, _):
        _, pods = await team.ending()
        await team.move("vision")
        found = await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5
        assert [line.split()[:2] for line in found["nlp"].status.leftovers] == [
            [f"pods/default/{name}", "Deployment/default/web"] for name in sorted(pods)
        ]
        assert "pods/default/old0-0" in condition(found["nlp"], "Leftovers")
        assert not condition(found["vision"], "Overlap")
        assert found["vision"].status.ending == []
        await team.stop(*pods[:2])
        await team.holds(nlp="3", vision="0")
        await team.stop(*pods[2:])
        found = await team.holds_still(nlp="0", vision="0")
        assert not any(group.status.leftovers for group in found.values())


async def test_a_workload_whose_pods_are_all_asked_for_leaves_nothing(books: Books) -> None:
    async with movers(books) as (team, _):
        web, below = await team.deployment()
        await team.pods("old", below, 5)
        await team.uses("5")
        await books.promise("vision", move_of(web["metadata"], "cpu=5"))
        await team.move("vision")
        found = await team.holds_still(nlp="0", vision="5")
        assert team.least >= 5
        assert not any(group.status.leftovers for group in found.values())


async def test_pods_that_a_smaller_demand_does_not_pay_for_stay_until_they_end(books: Books) -> None:
    """Scaled down by the move itself: the pods that are left run until their controller has observed that."""
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        pods = await team.pods("old", below, 5)
        await team.uses("5")
        await team.move("vision", spec={"replicas": 2})
        await team.holds_still(nlp="3", vision="2")
        await team.change(REPLICASETS, "web-1", replicas=2)
        await team.delete(*pods[2:])
        await team.observed()
        await team.holds_still(nlp="3", vision="2")
        await team.stop(*pods[2:])
        await team.holds_still(nlp="0", vision="2")


async def test_growth_after_the_move_is_the_new_groups(books: Books) -> None:
    async with movers(books) as (team, _):
        below, pods = await team.ending()
        await team.move("vision")
        await team.holds(nlp="5", vision="0")
        await team.scale(4)
        await team.pods("new", below, 4)
        await team.observed()
        await team.holds_still(nlp="5", vision="4")
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="4")


async def test_pods_that_the_new_demand_pays_for_again_stay_no_longer(books: Books) -> None:
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        await team.pods("old", below, 5)
        await team.uses("5")
        await team.move("vision", spec={"replicas": 1})
        await team.holds(nlp="4", vision="1")
        await team.change(DEPLOYMENTS, "web", replicas=3)
        await team.holds(nlp="2", vision="3")
        await team.change(DEPLOYMENTS, "web", replicas=1)
        # What does not stay any more is not taken back.
        await team.holds_still(nlp="2", vision="3")


async def test_what_the_new_group_replaces_is_its_own(books: Books) -> None:
    """Pods of before the move that end after it were asked for by the new group."""
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        old = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await team.move("vision")
        await team.holds(nlp="0", vision="5")
        await team.delete(*old)
        await team.pods("new", below, 5)
        await team.holds_still(nlp="0", vision="10")


async def test_a_workload_that_comes_back_brings_what_it_left(books: Books) -> None:
    async with movers(books) as (team, _):
        _, pods = await team.ending()
        await team.move("vision")
        await team.holds(nlp="5", vision="0")
        await team.move("nlp")
        found = await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5
        assert not any(group.status.leftovers for group in found.values())
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="0")


async def test_each_group_keeps_its_own_when_a_workload_moves_on(books: Books) -> None:
    async with movers(books) as (team, _):
        below, old = await team.ending(3)
        await team.move("vision")
        await team.holds(nlp="3", vision="0")
        await team.scale(2)
        new = await team.pods("new", below, 2, terminationGracePeriodSeconds=DAY)
        await team.observed()
        await team.holds(nlp="3", vision="2")
        await team.scale(0)
        await team.delete(*new)
        await team.observed()
        await team.move("lab")
        found = await team.holds_still(nlp="3", vision="2", lab="0")
        assert team.least >= 5
        assert [stays(found[name]) for name in ("nlp", "vision", "lab")] == [3, 2, 0]
        await team.stop(*new)
        await team.holds_still(nlp="3", vision="0", lab="0")
        await team.stop(*old)
        await team.holds_still(nlp="0", vision="0", lab="0")


async def test_what_a_group_counted_of_another_is_none_of_its_own(books: Books) -> None:
    """While the group that the workload left is not counted, the other one counts all of its pods."""
    held = Held("nlp")
    books.box.faults.append(held)
    async with movers(books) as (team, _):
        _, old = await team.ending(3)
        for number in range(3):
            async with held:
                await books.create(deployment(f"more-{number}", "nlp", 1))
                await held.waits()
                await team.move("vision")
                await team.holds(vision="3")
                await team.move("nlp")
                await team.holds(vision="0")
            await team.holds_still(nlp=str(4 + number), vision="0")
        await team.move("vision")
        await team.holds_still(nlp="6", vision="0")
        await team.stop(*old)
        await team.holds_still(nlp="3", vision="0")


async def test_the_group_that_a_workload_has_come_back_to_pays_for_what_is_deleted_by_force(books: Books) -> None:
    """The group that it passed remembers it still, and counted it after the other one first did."""
    nlp, vision = Held("nlp"), Held("vision")
    books.box.faults += [nlp, vision]
    async with movers(books) as (team, _):
        _, old = await team.ending(3)
        async with vision:
            async with nlp:
                await books.create(deployment("more", "nlp", 1))
                await nlp.waits()
                books.box.clock.advance(2)
                await team.move("vision")
                await vision.waits()
                books.box.clock.advance(2)
                await team.move("nlp")
            moved = int((await books.client.get(DEPLOYMENTS, "web", "default"))["metadata"]["resourceVersion"])
            await books.until("nlp", lambda g: int(g.status.counted_at.get("deployments.apps", 0)) >= moved)
            await team.holds(nlp="4")
            for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
                await books.client.delete(kind, name, "default")
            for name in old:
                await books.remove({"kind": "Pod", "metadata": {"name": name, "namespace": "default"}})
        await team.holds_still(nlp="4", vision="0")


async def test_what_is_left_of_a_workload_that_moved_and_was_deleted_is_shared_as_before(books: Books) -> None:
    async with movers(books) as (team, _):
        below, old = await team.ending(3)
        await team.move("vision")
        await team.holds(nlp="3", vision="0")
        books.box.clock.advance(2)
        await team.scale(2)
        new = await team.pods("new", below, 2)
        await team.observed()
        await team.holds(nlp="3", vision="2")
        for kind, name in ((DEPLOYMENTS, "web"), (REPLICASETS, "web-1")):
            await books.client.delete(kind, name, "default")
        await team.holds_still(nlp="3", vision="2")
        await team.stop(*old)
        await team.holds_still(nlp="0", vision="2")
        for name in new:
            await books.ends(name)
        await team.holds_still(nlp="0", vision="0")


@pytest.mark.parametrize("path", [("vision",), ("vision", "nlp"), ("vision", "nlp", "vision")], ids=" ".join)
@pytest.mark.parametrize("is_counted", [False, True])
async def test_what_is_orphaned_right_after_a_move_is_charged_once_in_the_group_that_it_moved_to(
    books: Books, path: tuple[str, ...], is_counted: bool
) -> None:
    """Nobody may have counted the workload there."""
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        pods = await team.pods("old", below, 5)
        await team.holds_still(nlp="5", vision="0")
        for to in path:
            await team.move_for(to, 5)
        if is_counted:
            await team.observed()
            await team.holds(**{to: "5"})
        await books.client.request(
            "DELETE", DEPLOYMENTS.path("default", "web"), body=orjson.dumps({"propagationPolicy": "Orphan"})
        )
        for kind, name, change in ((REPLICASETS, "web-1", "ownerReferences"), (DEPLOYMENTS, "web", "finalizers")):
            await books.client.patch(kind, name, {"metadata": {change: None}}, namespace="default")
        await team.holds_still(**{"nlp": "0", "vision": "0", to: "5"})
        books.clock.advance(61)
        await team.holds_still(**{"nlp": "0", "vision": "0", to: "5"})
        await books.client.delete(REPLICASETS, "web-1", "default")
        await team.holds_still(**{"nlp": "0", "vision": "0", to: "5"})
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="0")


async def test_every_later_controller_knows_what_stays(books: Books) -> None:
    async with movers(books) as (team, _):
        _, pods = await team.ending()
        await team.move("vision")
        await team.holds(nlp="5", vision="0")
    async with movers(books) as (team, _):
        await team.holds_still(nlp="5", vision="0")
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="0")


async def test_a_move_while_no_controller_runs_leaves_what_it_would(books: Books) -> None:
    async with movers(books) as (team, _):
        await team.ending()
    await team.move("vision")
    async with movers(books) as (team, _):
        await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5


class Held:
    """`async with Held(group)`: the API server does not answer writes of the group's status meanwhile."""

    def __init__(self, group: str) -> None:
        self._path = f"/{group}/status"
        self._over = asyncio.Event()
        self._over.set()
        self._holds = asyncio.Event()

    async def __aenter__(self) -> None:
        self._over.clear()
        self._holds.clear()

    async def __aexit__(self, *_: object) -> None:
        self._over.set()

    async def waits(self) -> None:
        """Wait until a write is held: the group is not counted from then on."""
        await self._holds.wait()

    async def __call__(self, request: web.Request) -> None:
        if request.method == "PUT" and request.path.endswith(self._path) and not self._over.is_set():
            self._holds.set()
            await self._over.wait()


class Cut:
    """The API server stores so many of a controller's records and statuses, and no more."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    async def __call__(self, request: web.Request) -> web.Response | None:
        if request.method != "PUT" or "/apis/quota.biz.group/" not in request.path:
            return None
        self.left -= 1
        return web.json_response({"kind": "Status", "code": 503}, status=503) if self.left < 0 else None


class Late:
    """The API server tells nobody of one kind until `end`."""

    def __init__(self, books: Books, kind: Resource = PODS) -> None:
        self._box = books.box
        self._of_kind = f"/{kind.plural}"

    def begin(self) -> None:
        self._box.faults.append(self)
        self._box.break_watches()

    def end(self) -> None:
        self._box.faults.remove(self)

    async def __call__(self, request: web.Request) -> web.Response | None:
        is_read = request.method == "GET" and request.path.endswith(self._of_kind)
        return web.json_response({"kind": "Status", "code": 503}, status=503) if is_read else None


@pytest.mark.parametrize(("late", "meanwhile"), [("nlp", {"vision": "4"}), ("vision", {"nlp": "2"})])
async def test_a_move_that_is_promised_is_charged_whichever_group_is_counted_first(
    books: Books, late: str, meanwhile: dict[str, str]
) -> None:
    """The pods that the demand pays for leave the one group only with an entry in the other, or counted there."""
    held = Held(late)
    books.box.faults.append(held)
    async with movers(books) as (team, _):
        web, _ = await team.deployment(4)
        below = await team.change(REPLICASETS, "web-1", replicas=4)
        await team.pods("old", below, 4)
        await team.uses("4")
        await books.promise("vision", move_of(web["metadata"], "cpu=2"))
        async with held:
            await books.create(deployment("more", late, 0))
            await held.waits()
            await team.move("vision", spec={"replicas": 2})
            await team.observe(DEPLOYMENTS, "web")
            await team.holds(**meanwhile)
        await team.holds_still(nlp="2", vision="2")
        assert team.least >= 4


@pytest.mark.parametrize("writes", range(7))
async def test_at_every_write_at_which_a_controller_is_killed_all_that_runs_is_charged(
    books: Books, writes: int
) -> None:
    async with movers(books, recount_interval=300.0) as (team, _):
        await team.ending()
        cut = Cut(writes)
        books.box.faults.append(cut)
        await team.move("vision")

        async def is_over() -> bool:
            """The controller can write no more, or has no more to write."""
            found = await books.read("vision")
            return cut.left < 0 or (not wire.reservations_of(found) and stays(await books.read("nlp")) == 5)

        await eventually(is_over, 60, "the writes are done")
        assert team.least >= 5
    books.box.faults.remove(cut)
    async with movers(books) as (team, _):
        found = await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5
        assert stays(found["nlp"]) == 5


async def test_a_workload_that_moves_before_it_was_counted_leaves_what_was_promised(books: Books) -> None:
    async with movers(books) as (team, _):
        cut = Cut(0)
        books.box.faults.append(cut)
        stored = await books.create(deployment("web", "nlp", 2))
        books.box.faults.remove(cut)
        await books.promise("nlp", entry("deployments.apps/default/web", "cpu=2", of=stored["metadata"]["uid"]))
        books.box.faults.append(cut)
        await team.version("web-1", stored, 2)
        pods = await team.pods("old", await books.client.get(REPLICASETS, "web-1", "default"), 2)
        await team.scale(0)
        await team.delete(*pods)
        await team.observed()
        await team.move("vision")
        books.box.faults.remove(cut)
        await team.holds(nlp="2", vision="0")
        await team.holds_still(nlp="2", vision="0")
        assert team.least >= 2


@pytest.mark.parametrize("first", [DEPLOYMENTS, REPLICASETS], ids=lambda each: each.kind)
async def test_what_moved_and_was_deleted_before_it_was_counted_leaves_what_was_promised(
    books: Books, first: Resource
) -> None:
    """Its pods were made for the group that admitted it, whichever of it is seen to go first."""
    held = Held("nlp")
    books.box.faults.append(held)
    async with movers(books) as (team, _):
        await books.client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu.A4": "20"}}})
        await books.until("nlp", lambda g: "limits.cpu.A4" in (g.status.used or {}))
        async with held:
            await books.create(deployment("more", "nlp", 0))
            await held.waits()
            made = deployment("web", "nlp", 3)
            made["metadata"]["labels"][MODEL_LABELS["cpu"]] = "A4"
            web = await books.create(made)
            promised = entry("deployments.apps/default/web", "cpu=3 cpu.A4=3", of=web["metadata"]["uid"])
            status = {"status": {"reservations": [str(promised)]}}
            await books.client.patch(GROUPS, "nlp", status, subresource="status")
            below = await team.version("web-1", web, 3)
            below["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] = "1"
            pods = await team.pods("old", below, 3, terminationGracePeriodSeconds=DAY)
            await team.observed()
            await team.move("vision", spec={"replicas": 0})
            await team.change(REPLICASETS, "web-1", replicas=0)
            await team.delete(*pods)
            for kind in (first, *({DEPLOYMENTS, REPLICASETS} - {first})):
                await books.client.delete(kind, "web" if kind is DEPLOYMENTS else "web-1", "default")
            await books.create(deployment("seen", "vision", 1))
            await team.holds(vision="4")
        found = await team.holds_still(nlp="3", vision="1")
        assert found["nlp"].status.used["limits.cpu.A4"] == "3"
        assert stays(found["nlp"]) == 3
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="1")


class Behind(Late):
    """The watch of one kind shows nothing until `end`, as if it were late; who lists sees all."""

    def __init__(self, books: Books, kind: Resource = PODS) -> None:
        super().__init__(books, kind)
        self._is_over = asyncio.Event()

    def end(self) -> None:
        super().end()
        self._is_over.set()

    async def __call__(self, request: web.Request) -> web.Response | None:
        is_watch = request.path.endswith(self._of_kind) and "watch" in request.query
        if is_watch and "sendInitialEvents" not in request.query:
            await self._is_over.wait()
        return None


async def test_what_is_deleted_is_charged_until_all_is_seen_that_it_has_made(books: Books) -> None:
    """The watch does not show its pods, so the recount lists them."""
    behind = Behind(books)
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await team.holds(nlp="2", vision="0")
        behind.begin()
        pods = await team.pods("old", made, 2, terminationGracePeriodSeconds=DAY)
        team.least = float("inf")
        await books.client.delete(REPLICASETS, "web", "default")
        await team.holds_still(nlp="2", vision="0")
        assert team.least >= 2
        behind.end()
        # They stay stored: a watch that begins anew may not show how a pod ended that is gone by then.
        for name in pods:
            await books.ends(name)
        await team.holds_still(nlp="0", vision="0")


@pytest.mark.parametrize("beside", [0, 3])
async def test_what_is_deleted_before_its_first_count_is_charged_as_promised_until_its_pods_are_seen(
    books: Books, beside: int
) -> None:
    """So it is where another workload is counted for the first time with it."""
    late, held = Late(books), Held("nlp")
    books.box.faults.append(held)
    async with movers(books) as (team, _):
        async with held:
            await books.create(deployment("more", "nlp", 0))
            await held.waits()
            made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
            other = await books.create({**deployment("other", "nlp", beside), "kind": "ReplicaSet"})
            promised = [("web", "cpu=2", made), ("other", f"cpu={beside}", other)]
            lines = [
                str(entry(f"replicasets.apps/default/{name}", amount, of=obj["metadata"]["uid"]))
                for name, amount, obj in promised
            ]
            await books.client.patch(GROUPS, "nlp", {"status": {"reservations": sorted(lines)}}, subresource="status")
            late.begin()
            pods = await team.pods("old", made, 2, terminationGracePeriodSeconds=DAY)
            await books.client.delete(REPLICASETS, "web", "default")
            await books.create(deployment("seen", "vision", 1))
            # Everything before that is seen by now.
            await team.holds(vision="1")
            team.least = float("inf")
        await team.holds(nlp=str(2 + beside), vision="1")
        late.end()
        await team.holds_still(nlp=str(2 + beside), vision="1")
        assert team.least >= 3 + beside
        await team.stop(*pods)
        await team.holds_still(nlp=str(beside), vision="1")


async def test_what_is_deleted_while_a_controller_starts_is_charged_for_its_pods(books: Books) -> None:
    """Pods are listed before they are made, and workloads after one is deleted."""
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await team.holds(nlp="2", vision="0")
    are_listed, may_list = asyncio.Event(), asyncio.Event()

    async def hold_lists(request: web.Request) -> None:
        if request.method == "GET" and request.path.endswith("/pods"):
            are_listed.set()
        if request.method == "GET" and request.path.endswith("/replicasets"):
            await may_list.wait()

    async def delete_early() -> None:
        await are_listed.wait()
        await asyncio.sleep(0.5)
        behind.begin()
        await Movers(books).pods("old", made, 2, terminationGracePeriodSeconds=DAY)
        await books.client.delete(REPLICASETS, "web", "default")
        may_list.set()

    behind = Behind(books)
    books.box.faults.append(hold_lists)
    early = asyncio.create_task(delete_early())
    async with movers(books) as (team, _):
        await early
        await team.holds_still(nlp="2", vision="0")
        assert team.least >= 2


async def test_what_is_gone_without_pods_holds_nothing_once_that_is_seen(books: Books) -> None:
    """A list shows it: the watch of pods shows nothing."""
    behind = Behind(books)
    async with movers(books) as (team, _):
        await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await team.holds(nlp="2", vision="0")
        behind.begin()
        await books.client.delete(REPLICASETS, "web", "default")
        await team.holds(nlp="0", vision="0")
        behind.end()


async def test_a_group_in_which_workloads_are_deleted_all_the_time_is_counted(books: Books) -> None:
    async with movers(books) as (team, _):
        is_over = asyncio.Event()

        async def churn() -> None:
            for number in itertools.count():
                name = f"short-{number}"
                await books.create({**deployment(name, "nlp", 1), "kind": "ReplicaSet"})
                await books.client.delete(REPLICASETS, name, "default")
                if is_over.is_set():
                    return
                await asyncio.sleep(0.05)

        task = asyncio.create_task(churn())
        try:
            await asyncio.sleep(1)
            await books.create({**deployment("web", "nlp", 15), "kind": "ReplicaSet"})
            await books.until("nlp", lambda g: parse((g.status.used or {}).get(CPU, "0")) >= parse("15"))
        finally:
            is_over.set()
            await task
        await team.holds_still(nlp="15", vision="0")


async def test_a_default_that_changes_moves_what_has_no_label(books: Books) -> None:
    async with movers(books) as (team, _):
        await books.client.patch(NAMESPACES, "default", {"metadata": {"labels": {LABEL: "nlp"}}})
        made = deployment("web", None, 3)
        stored = await books.create(made)
        below = await team.version("web-1", stored, 3)
        await team.observe(DEPLOYMENTS, "web")
        pods = await team.pods("old", below, 3, terminationGracePeriodSeconds=DAY)
        await team.uses("3")
        await team.scale(1)
        await team.delete(*pods[1:])
        await team.observed()
        await team.uses("3")
        await books.client.patch(NAMESPACES, "default", {"metadata": {"labels": {LABEL: "vision"}}})
        await team.holds_still(nlp="2", vision="1")


async def test_a_payer_above_takes_over_what_it_asks_for(books: Books) -> None:
    """A JobSet without a label pays for its Jobs from the moment it has one; what they have beyond stays."""
    async with movers(books) as (team, _):
        pod = {**template("1")["spec"], "restartPolicy": "Never"}
        job_spec = {"parallelism": 1, "completions": 1, "template": {"spec": pod}}
        made = {
            "apiVersion": JOBSETS.api_version,
            "kind": "JobSet",
            "metadata": {"name": "set", "namespace": "default"},
            "spec": {"replicatedJobs": [{"name": "r", "replicas": 1, "template": {"spec": job_spec}}]},
        }
        above = await books.client.create(JOBSETS, made)
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "set-r-0",
                "namespace": "default",
                "labels": {LABEL: "nlp"},
                "ownerReferences": [reference(above)],
            },
            "spec": job_spec,
        }
        job = await books.client.create(JOBS, job)
        old = await team.pods("old", job, 2, terminationGracePeriodSeconds=DAY)
        await team.delete(*old)
        await team.pods("new", job, 1)
        await team.uses("3")
        await team.move("vision", "set", JOBSETS)
        found = await team.holds_still(nlp="2", vision="1")
        assert stays(found["nlp"]) == 2
        await team.stop(*old)
        await team.holds_still(nlp="0", vision="1")


async def test_what_another_groups_workload_adopts_stays_beyond_its_demand(books: Books) -> None:
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        pods = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await books.client.patch(REPLICASETS, "web-1", {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove({"kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}})
        await team.uses("5")
        other = await books.create(deployment("web", "vision", 1))
        await team.observe(DEPLOYMENTS, "web")
        await team.holds(nlp="5", vision="1")
        await books.client.patch(
            REPLICASETS, "web-1", {"metadata": {"ownerReferences": [reference(other)]}}, namespace="default"
        )
        await team.holds_still(nlp="4", vision="1")
        await team.change(REPLICASETS, "web-1", replicas=1)
        await team.delete(*pods[1:])
        await team.observed()
        await team.holds_still(nlp="4", vision="1")
        await team.stop(*pods[1:])
        await team.holds_still(nlp="0", vision="1")


async def test_pods_that_are_adopted_one_by_one_stay_together(books: Books) -> None:
    async with movers(books) as (team, _):
        await books.create({**deployment("own", "nlp", 3), "kind": "ReplicaSet"})
        old = await team.observe(REPLICASETS, "own")
        pods = await team.pods("old", old, 3, terminationGracePeriodSeconds=DAY)
        await team.uses("3")
        for name in pods:
            await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove(old)
        await team.uses("3")
        await books.create({**deployment("own", "vision", 1), "kind": "ReplicaSet"})
        new = await team.observe(REPLICASETS, "own")
        for name in pods:
            change = {"metadata": {"ownerReferences": [reference(new)]}}
            await books.client.patch(PODS, name, change, namespace="default")
        found = await team.holds_still(nlp="2", vision="1")
        assert stays(found["nlp"]) == 2
        await team.delete(*pods[1:])
        await team.stop(*pods[1:])
        await team.holds_still(nlp="0", vision="1")


async def test_pods_that_are_deleted_by_force_are_charged_once_when_their_workload_moves(books: Books) -> None:
    """Their node may run them still: the group that paid when they went pays on."""
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        pods = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await team.scale(0)
        await team.observed()
        for name in pods:
            await books.remove({"kind": "Pod", "metadata": {"name": name, "namespace": "default"}})
        await team.uses("5")
        await team.move("vision")
        await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5


@pytest.mark.parametrize("is_settled", [False, True])
async def test_orphans_of_what_moved_are_charged_at_once_when_they_are_deleted_by_force(
    books: Books, is_settled: bool
) -> None:
    """Whoever pays for what their node runs on is counted again, with no recount in sight."""
    async with movers(books, recount_interval=300.0) as (team, _):
        made = {**deployment("web", "nlp", 3), "kind": "ReplicaSet"}
        below = await books.create(made)
        await team.observe(REPLICASETS, "web")
        pods = await team.pods("old", below, 3, terminationGracePeriodSeconds=DAY)
        await team.holds(nlp="3", vision="0")
        await at_rest(really=True)
        await team.move("vision", kind=REPLICASETS)
        if is_settled:
            await team.holds(nlp="0", vision="3")
            await at_rest(really=True)
        path = REPLICASETS.path("default", "web")
        await books.client.request("DELETE", path, body=orjson.dumps({"propagationPolicy": "Orphan"}))
        for name in pods:
            await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.client.patch(REPLICASETS, "web", {"metadata": {"finalizers": None}}, namespace="default")
        await team.holds(nlp="0", vision="3")
        await at_rest(really=True)
        for name in pods:
            await books.remove({"kind": "Pod", "metadata": {"name": name, "namespace": "default"}})
        await at_rest(really=True)
        found = {name: (await books.read(name)).status.used for name in ("nlp", "vision")}
        assert found == {"nlp": {CPU: "0"}, "vision": {CPU: "3"}}


async def test_what_is_left_is_charged_under_the_models_of_its_payer(books: Books) -> None:
    """Its label names the model, not those of its pods: of a move, a release and a deletion, restarts between."""
    async with movers(books) as (team, _):
        await books.client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu.A4": "20"}}})
        _, below = await team.deployment()
        change = {"metadata": {"labels": {MODEL_LABELS["cpu"]: "A5"}}}
        await books.client.patch(DEPLOYMENTS, "web", change, namespace="default")
        await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        change["metadata"]["labels"][MODEL_LABELS["cpu"]] = "A4"
        await books.client.patch(DEPLOYMENTS, "web", change, namespace="default")
        await books.uses("nlp", cpu="5", **{"limits.cpu.A4": "5"})
        change["metadata"]["labels"] = {MODEL_LABELS["cpu"]: "T4", LABEL: "vision"}
        await books.client.patch(DEPLOYMENTS, "web", {**change, "spec": {"replicas": 3}}, namespace="default")
        await team.holds(nlp="2", vision="3")
        await books.uses("nlp", cpu="2", **{"limits.cpu.A4": "2"})
        change["metadata"]["labels"] = {MODEL_LABELS["cpu"]: "A4", LABEL: "nlp"}
        await books.client.patch(DEPLOYMENTS, "web", {**change, "spec": {"replicas": 5}}, namespace="default")
        await books.uses("nlp", cpu="5", **{"limits.cpu.A4": "5"})
        await books.until("vision", lambda g: not g.status.payers)
        await books.client.patch(REPLICASETS, "web-1", {"metadata": {"ownerReferences": None}}, namespace="default")
        await books.remove({"kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}})
        await books.until("nlp", lambda g: bool(g.status.leftovers))
        await books.uses("nlp", cpu="5", **{"limits.cpu.A4": "5"})
    async with movers(books) as (team, _):
        await books.remove({"kind": "ReplicaSet", "metadata": {"name": "web-1", "namespace": "default"}})
        await books.until("nlp", lambda g: all(line.startswith("pods/") for line in g.status.leftovers))
        found = await team.still_uses("5")
        assert (found.status.used or {})["limits.cpu.A4"] == "5"


async def test_a_move_that_was_never_stored_leaves_nothing_with_the_group_that_admitted_it(books: Books) -> None:
    """Another webhook may reject it, or another write come between."""
    async with movers(books) as (team, _):
        _, pods = await team.ending(3)
        at = (await books.client.get(DEPLOYMENTS, "web", "default"))["metadata"]
        await books.promise("vision", move_of(at, "cpu=3"))
        change = {"metadata": {"annotations": {"note": "more"}}}
        await books.client.patch(DEPLOYMENTS, "web", change, namespace="default")
        await team.observed()
        found = await team.holds_still(nlp="3", vision="0")
        assert stays(found["vision"]) == 0
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="0")


async def test_a_demand_pays_for_pods_once_its_controller_has_observed_it(books: Books) -> None:
    """Until then the controller may end them for an earlier spec, and make those that were promised besides."""
    async with movers(books) as (team, _):
        _, below = await team.deployment()
        await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
        await team.uses("5")
        await team.scale(0)
        await team.observed()
        await team.move_for("vision", 5)
        await team.holds_still(nlp="5", vision="0")
        assert taken(team.groups["vision"]) == 5
        await team.observed()
        await team.holds_still(nlp="0", vision="5")
        assert team.least >= 5


async def test_the_group_that_was_left_is_counted_once_a_pod_ends_beside_the_one_that_stayed(books: Books) -> None:
    """It was moved amid a rolling update. Nothing of that group changes then, and the next recount is far away."""
    async with movers(books, recount_interval=300.0) as (team, _):
        await team.deployment(4)
        below = await team.change(REPLICASETS, "web-1", replicas=4)
        old = await team.pods("old", below, 5)
        await team.uses("5")
        await team.move("vision")
        await team.holds(nlp="1", vision="4")
        await at_rest(really=True)
        await team.delete(old[0])
        await team.stop(old[0])
        await team.holds(nlp="0", vision="4")
        assert team.least >= 4


async def test_pods_of_one_second_that_end_stay_before_those_that_are_new(books: Books) -> None:
    """Their ages do not tell them apart, and the new group's demand will pay for the new ones."""
    held = Held("nlp")
    books.box.faults.append(held)
    async with movers(books) as (team, _):
        await team.deployment(4)
        below = await team.change(REPLICASETS, "web-1", replicas=4)
        old = await Team.pods(team, "old", below, 4, terminationGracePeriodSeconds=DAY)
        await team.uses("4")
        async with held:
            await books.create(deployment("more", "nlp", 0))
            await held.waits()
            await team.scale(0)
            await team.delete(*old)
            await team.observed()
            await team.move_for("vision", 4)
            await team.change(REPLICASETS, "web-1", replicas=4)
            await Team.pods(team, "new", below, 4)
        await team.holds_still(nlp="4")
        await team.observed()
        await team.holds_still(nlp="4", vision="4")
        assert team.least >= 4


async def test_a_pod_that_went_along_and_is_ended_takes_the_place_of_one_that_is_asked_for(books: Books) -> None:
    """A person may say which pods a controller deletes first, so it is not known at the move which stay."""
    async with movers(books) as (team, _):
        await team.deployment(4)
        below = await team.change(REPLICASETS, "web-1", replicas=4)
        pods = await team.pods("old", below, 4, terminationGracePeriodSeconds=DAY)
        await team.uses("4")
        await team.move_for("vision", 2)
        await team.observe(DEPLOYMENTS, "web")
        await team.holds(nlp="2", vision="2")
        await team.change(REPLICASETS, "web-1", replicas=2)
        await team.delete(*pods[:2])
        await team.observed()
        found = await team.holds_still(nlp="2", vision="2")
        assert team.least >= 4
        ended = {line.split()[0] for line in found["nlp"].status.leftovers}
        assert ended == {f"pods/default/{pod}" for pod in pods[:2]}
        await team.stop(*pods[:2])
        await team.holds_still(nlp="0", vision="2")


async def test_what_has_left_is_decided_from_pods_that_are_as_new(books: Books) -> None:
    """One that was seen to run may have been deleted before the move: no demand pays for it."""
    late = Late(books)
    async with movers(books) as (team, _):
        await team.deployment(2)
        below = await team.change(REPLICASETS, "web-1", replicas=2)
        old = await team.pods("old", below, 2, terminationGracePeriodSeconds=DAY)
        await team.uses("2")
        late.begin()
        await team.scale(0)
        await team.delete(*old)
        await team.observed()
        await team.move_for("vision", 2)
        await team.change(REPLICASETS, "web-1", replicas=2)
        await team.observed()
        await team.holds_still(vision="2")
        await team.holds(nlp="2")
        late.end()
        await team.pods("new", below, 2)
        found = await team.holds_still(nlp="2", vision="2")
        assert team.least >= 4
        assert stays(found["nlp"]) == 2


async def test_what_the_new_group_has_made_is_no_charge_of_the_old_one(books: Books) -> None:
    """However late the controller is: no more stays than was charged."""
    async with movers(books) as (team, _):
        below, _ = await team.ending(2)
    await team.move("vision")
    await team.scale(4)
    new = await team.pods("new", below, 4, terminationGracePeriodSeconds=DAY)
    await team.scale(0)
    await team.delete(*new)
    await team.observed()
    async with movers(books) as (team, _):
        await team.holds_still(nlp="2", vision="4")


async def released(team: Movers, late: Late | None, *, is_counted: bool) -> list[str]:
    """Delete the Deployment of group nlp without its ReplicaSet: that is let go, and only then the Deployment goes.

    Another Deployment, of group vision and of no replicas, adopts the ReplicaSet and ends its pods. Return their names.
    If it `is_counted` in between, the group is charged for the ReplicaSet beside the demand of the Deployment.
    """
    books = team.books
    _, below = await team.deployment()
    pods = await team.pods("old", below, 5, terminationGracePeriodSeconds=DAY)
    thief = await books.create(deployment("thief", "vision", 0))
    await team.observe(DEPLOYMENTS, "thief")
    await team.holds_still(nlp="5", vision="0")
    team.least = float("inf")
    if late is not None:
        late.begin()
    path = DEPLOYMENTS.path("default", "web")
    await books.client.request("DELETE", path, body=orjson.dumps({"propagationPolicy": "Orphan"}))
    for owners in (None, [reference(thief)]):
        change = {"metadata": {"ownerReferences": owners}}
        await books.client.patch(REPLICASETS, "web-1", change, namespace="default")
        if is_counted and owners is None:
            await team.holds(nlp="10", vision="0")
    await team.change(REPLICASETS, "web-1", replicas=0)
    await team.delete(*pods)
    await team.observe(REPLICASETS, "web-1")
    return pods


@pytest.mark.parametrize("seen", ["soon", "one by one", "late"])
async def test_what_is_adopted_before_its_payer_is_gone_stays_with_the_group_that_paid(books: Books, seen: str) -> None:
    """Until it is gone, the payer is charged for the pods by its demand."""
    late = Late(books, DEPLOYMENTS) if seen == "late" else None
    async with movers(books) as (team, _):
        pods = await released(team, late, is_counted=seen == "one by one")
        await team.holds(nlp="5", vision="5")
        await books.client.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}, namespace="default")
        if late is not None:
            late.end()
        found = await team.holds_still(nlp="5", vision="0")
        assert team.least >= 5
        assert stays(found["nlp"]) == 5
        await team.stop(*pods)
        await team.holds_still(nlp="0", vision="0")


# Pods of no group.


async def strangers(books: Books, *names: str) -> None:
    """Store pods that nobody pays for and that take a day to stop."""
    for name in names:
        made = {**deployment("x", None), "kind": "ReplicaSet"}
        made["metadata"]["uid"] = "none"
        await books.pod(name, made, gpu=0, nodeName="n", terminationGracePeriodSeconds=DAY)
        await books.client.patch(PODS, name, {"metadata": {"ownerReferences": None}}, namespace="default")


async def taken_in(books: Books, owner: Object, *names: str) -> None:
    for name in names:
        change = {"metadata": {"ownerReferences": [reference(owner)]}}
        await books.client.patch(PODS, name, change, namespace="default")


@pytest.mark.parametrize("ends", ["deleted", "by force", "and its owner is deleted"])
async def test_pods_of_no_group_that_a_workload_ends_are_charged_to_none(books: Books, ends: str) -> None:
    """It has adopted them and wants none. They take a day to stop."""
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 0), "kind": "ReplicaSet"})
        await strangers(books, "a", "b")
        await team.holds(nlp="0", vision="0")
        await taken_in(books, made, "a", "b")
        await team.holds(nlp="2", vision="0")
        for name in ("a", "b"):
            if ends == "by force":
                await books.client.request("DELETE", PODS.path("default", name), body=b'{"gracePeriodSeconds": 0}')
            else:
                await books.client.delete(PODS, name, "default")
        if ends == "and its owner is deleted":
            await books.remove(made)
        await team.holds_still(nlp="0", vision="0")


async def test_pods_of_no_group_are_those_of_the_group_that_has_asked_for_them(books: Books) -> None:
    """It goes on paying for them until they have ended; one more than it asks for is nobody's."""
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await strangers(books, "a", "b")
        books.box.clock.advance(1)
        await strangers(books, "c")
        await taken_in(books, made, "a", "b", "c")
        await team.holds(nlp="3", vision="0")
        await books.client.delete(PODS, "c", "default")
        await team.holds(nlp="2", vision="0")
        await books.client.patch(REPLICASETS, "web", {"spec": {"replicas": 0}}, namespace="default")
        for name in ("a", "b"):
            await books.client.delete(PODS, name, "default")
        await team.holds_still(nlp="2", vision="0")
        await team.stop("a", "b")
        await team.holds_still(nlp="0", vision="0")


async def test_a_pod_that_gets_its_first_label_is_the_groups_until_it_is_over(books: Books) -> None:
    """Its owner is of a kind that no group pays for. It is deleted by force then, and its node may run it for a day."""
    async with movers(books) as (team, _):
        made = {**deployment("x", None), "kind": "Other", "apiVersion": "example.com/v1"}
        made["metadata"]["uid"] = "none"
        await books.pod("a", made, gpu=0, nodeName="n", terminationGracePeriodSeconds=DAY)
        await books.client.patch(PODS, "a", {"metadata": {"labels": {LABEL: "nlp"}}}, namespace="default")
        await team.holds(nlp="1", vision="0")
        await books.client.request("DELETE", PODS.path("default", "a"), body=b'{"gracePeriodSeconds": 0}')
        await team.holds_still(nlp="1", vision="0")


async def test_a_workload_brings_no_pods_that_end_when_it_gets_its_first_label(books: Books) -> None:
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", None, 1), "kind": "ReplicaSet"})
        _, *old = await team.pods("old", made, 3, terminationGracePeriodSeconds=DAY)
        await team.delete(*old)
        await books.client.patch(REPLICASETS, "web", {"metadata": {"labels": {LABEL: "nlp"}}}, namespace="default")
        await team.holds_still(nlp="1", vision="0")
        await books.client.patch(REPLICASETS, "web", {"metadata": {"labels": {LABEL: None}}}, namespace="default")
        await team.holds_still(nlp="1", vision="0")


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_controller_adopts_once_it_is_gone_is_charged_to_none(books: Books, late: bool) -> None:
    """It has asked if it may adopt pods before it was deleted. Nobody admits that: no group pays for such an owner.

    A watch that is late may show both at once.
    """
    behind = Late(books)
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await team.pods("old", made, 2, terminationGracePeriodSeconds=DAY)
        await strangers(books, "a", "b")
        await team.holds(nlp="2", vision="0")
        if late:
            behind.begin()
        await books.remove(made)
        await taken_in(books, made, "a", "b")
        await team.holds_still(nlp="2", vision="0")
        if late:
            behind.end()
            await team.holds_still(nlp="2", vision="0")


async def test_what_is_adopted_just_before_its_owner_goes_is_left_by_that(books: Books) -> None:
    """It was admitted, and the watch of pods shows it after the deletion."""
    behind = Late(books)
    async with movers(books) as (team, _):
        made = await books.create({**deployment("web", "nlp", 2), "kind": "ReplicaSet"})
        await strangers(books, "a", "b")
        await team.holds(nlp="2", vision="0")
        behind.begin()
        await taken_in(books, made, "a", "b")
        await books.client.delete(REPLICASETS, "web", "default")
        await team.holds_still(nlp="2", vision="0")
        behind.end()
        await team.holds_still(nlp="2", vision="0")
        await team.stop("a", "b")
        await team.holds_still(nlp="0", vision="0")


async def test_a_replica_set_of_no_group_that_is_adopted_by_what_is_gone_is_charged_to_none(books: Books) -> None:
    async with movers(books) as (team, _):
        above = await books.create(deployment("web", "nlp", 2))
        made = await books.create({**deployment("other", None, 3), "kind": "ReplicaSet"})
        await team.pods("old", made, 3)
        await team.holds(nlp="2", vision="0")
        await books.remove(above)
        await team.holds(nlp="0", vision="0")
        await books.client.patch(
            REPLICASETS, "other", {"metadata": {"ownerReferences": [reference(above)]}}, namespace="default"
        )
        await team.holds_still(nlp="0", vision="0")
