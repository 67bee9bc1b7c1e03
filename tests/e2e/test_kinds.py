"""One of each kind, from its creation to its deletion: `used` moves by the right amount, and back to zero.

A play makes a change once all before it is counted, so no change has to wait for another.
Every kind plays in a group of its own, all at once; each test waits for its own play. Besides the sandbox and a real
API server with the stand-ins of `sandbox/crds`, a real one with the projects' own definitions plays it where those lie
beside the project ($BIZRQ_CRDS).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq.builtin import builtin_registry
from bizrq.cli.standalone import Standalone
from bizrq.kube.client import AlreadyExists, KubeClient, NotFound, Resource, TooManyRequests
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from sandbox.server import Sandbox
from tests.e2e.rows import (
    CRONJOBS,
    JOBS,
    JOBSETS,
    NEVER,
    NODES,
    PODS,
    RAY,
    RAYCLUSTERS,
    ROWS,
    Row,
    labelled,
    template,
    workers,
)
from tests.support.cluster import Cluster, Real, eventually, has_kinds, refusal, sweep
from tests.support.objects import CRDS, NAMESPACES, Object, group

pytestmark = pytest.mark.asyncio(loop_scope="module")
#: Seconds for one step of a play, while all of them go on: more than the life of what a try was promised in vain.
STEP = 90.0


def whole(document: Object, patch: Object) -> Object:
    """What a merge patch makes of a document."""
    made = dict(document)
    for key, value in patch.items():
        old = made.get(key)
        made[key] = whole(old, value) if isinstance(value, dict) and isinstance(old, dict) else copy.deepcopy(value)
    return made


class Play:
    """One kind's life in its own group and namespace."""

    def __init__(self, row: Row, client: KubeClient, name: str) -> None:
        self.row, self.client, self.name = row, client, name
        self.count = f"count/{row.name}"

    async def run(self) -> None:
        row, client = self.row, self.client
        hard = {"limits.cpu": int(row.cost(3)["limits.cpu"]) + row.room, "pods": 100, self.count: 1}
        await client.create(GROUPS, group(self.name, **hard))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        await client.create(NAMESPACES, namespace)
        await self.used("0", "0", 0)
        for resource, obj in row.context:
            with contextlib.suppress(AlreadyExists):
                await client.create(resource, typed(resource, obj))

        if row.refused:
            over = await refusal(self.create(row.resource, {"spec": whole(row.spec, row.sized(6))}, "w"))
            cores = row.cost(6)["limits.cpu"]
            assert f"exceeded quota: {self.name}, requested: limits.cpu={cores}, used: limits.cpu=0" in over.message
        made = await self.create(row.resource, {"spec": whole(row.spec, row.sized(2))}, "w")
        await self.costs(2)
        over = await refusal(self.create(row.resource, {"spec": whole(row.spec, row.sized(2))}, "second"))
        assert f"exceeded quota: {self.name}, requested: {self.count}=1" in over.message
        # The controllers of these are not here to follow their owner: what they made goes before it changes.
        children = await self.children(made)
        await self.costs(2)
        await self.gone(children)
        # What has ended is charged until a count sees that.
        await self.costs(2)
        if row.edited:
            await self.grow()
        if row.suspend is not None and row.resume is not None:
            await self.pause()
        if row.ended is not None and not self.acted:
            children = await self.children(made)
            await client.patch(row.resource, "w", {"status": row.ended}, namespace=self.name, subresource="status")
            await self.costs_its_pods()
            await self.gone(children)
        await client.delete(row.resource, "w", self.name)
        await self.used("0", "0", 0)

    @property
    def acted(self) -> bool:
        """Whether somebody here writes the kind's status, so that ours would not stay."""
        return self.row.name in ("tfjobs.kubeflow.org", "jobs.batch")

    async def grow(self) -> None:
        """Up by an edit, not up too far, and the same by /scale."""
        row = self.row
        await self.patch(row.sized(3))
        await self.costs(3)
        await self.refused(self.patch(row.sized(6)))
        if not row.scale:
            return
        await self.scaled(2)
        await self.costs(2)
        await self.scaled(3)
        await self.costs(3)
        await self.refused(self.scaled(6))
        await self.costs(3)

    async def pause(self) -> None:
        """Nothing while it is suspended, whatever its size; whoever resumes it is asked for all of it."""
        row = self.row
        assert row.suspend is not None
        assert row.resume is not None
        await self.patch(row.suspend)
        await self.used("0", "0", 1)
        if not row.edited:
            await self.patch(row.resume)
            await self.costs(2)
            return
        await self.patch(row.sized(6))
        error = await refusal(self.patch(row.resume))
        cores = row.cost(6)["limits.cpu"]
        # What is used then may have a promise in it: an API server may have tried the patch on an older object first.
        assert f"exceeded quota: {self.name}, requested: limits.cpu={cores}, used: " in error.message
        await self.patch(whole(row.resume, row.sized(3)))
        await self.costs(3)

    async def refused(self, request: Any) -> None:
        row = self.row
        error = await refusal(request)
        was, wanted = (int(row.cost(size)["limits.cpu"]) for size in (3, 6))
        said = f"exceeded quota: {self.name}, requested: limits.cpu={wanted - was}, used: limits.cpu={was}"
        assert said in error.message
        if row.fits is None:
            assert "fits" not in error.message
        else:
            assert f"; fits: {row.fits} more {'replica' if row.fits == 1 else 'replicas'}" in error.message

    async def children(self, owner: Object) -> list[tuple[Resource, Object]]:
        """What the kind's controllers would make, with the group's label on it: it must not be charged again."""
        made: list[tuple[Resource, Object]] = []
        for number, (resource, obj) in enumerate(self.row.makes):
            reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                         "uid": owner["metadata"]["uid"], "controller": True}  # fmt: skip
            if obj:
                owner = await self.create(resource, obj, f"w-{number}", ownerReferences=[reference])
            else:
                owner = await eventually(
                    lambda uid=owner["metadata"]["uid"]: made_by(self.client, PODS, self.name, uid),
                    STEP,
                    "a pod is made",
                )
            made.append((resource, owner))
        return made

    async def gone(self, children: list[tuple[Resource, Object]]) -> None:
        """Delete what the test has made, and wait until it is gone."""
        made = [child for child, (_, obj) in zip(children, self.row.makes, strict=True) if obj]
        for resource, child in reversed(made):
            with contextlib.suppress(NotFound):
                await self.client.delete(resource, child["metadata"]["name"], self.name)
        for resource, child in made:
            name = child["metadata"]["name"]
            uid = child["metadata"]["uid"]
            await eventually(lambda of=resource, n=name, u=uid: self.is_gone(of, n, u), STEP, f"{name} is gone")

    async def is_gone(self, resource: Resource, name: str, uid: str) -> bool:
        """Return True once neither the object nor a pod of it is stored."""
        with contextlib.suppress(NotFound):
            await self.client.get(resource, name, self.name)
            return False
        return not await made_by(self.client, PODS, self.name, uid)

    async def create(self, resource: Resource, obj: Object, name: str, **metadata: Any) -> Object:
        labels = obj.get("metadata", {}).get("labels", {})
        metadata |= {"name": name, "namespace": self.name, "labels": {**labels, LABEL: self.name}}
        made = typed(resource, {**labelled(obj, self.name), "metadata": metadata})
        return await self._decided(partial(self.client.create, resource, made))

    async def patch(self, spec: Object) -> None:
        await self.written({"spec": labelled(spec, self.name)}, None)

    async def scaled(self, replicas: int) -> None:
        await self.written({"spec": {"replicas": replicas}}, "scale")

    async def written(self, change: Object, subresource: str | None) -> None:
        await self._decided(
            partial(self.client.patch, self.row.resource, "w", change, namespace=self.name, subresource=subresource)
        )

    async def _decided(self, request: Callable[[], Awaitable[Object]]) -> Object:
        """Send a write, and again where a busy machine could not decide it in time. Return what it stored.

        No earlier change is under way: everything before was counted.
        """
        stored: list[Object] = []

        async def is_decided() -> bool:
            try:
                stored.append(await request())
            except TooManyRequests as error:
                if "is under way" in error.message:
                    raise
                return False
            return True

        await eventually(is_decided, STEP, "the write is decided")
        return stored[0]

    async def costs(self, size: int) -> None:
        cost = self.row.cost(size)
        await self.used(cost["limits.cpu"], cost["pods"], 1)

    async def costs_its_pods(self) -> None:
        """Wait until what has ended is charged for its pods of one core that run on, at least those of the test."""
        last: Object = {}

        async def settled() -> bool:
            pods, _ = await self.client.list(PODS, self.name)
            live = str(sum((pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed") for pod in pods))
            last.clear()
            last.update((await self.client.get(GROUPS, self.name)).get("status") or {})
            return last.get("used") == {"limits.cpu": live, "pods": live, self.count: "0"}

        await eventually(settled, STEP, lambda: f"{self.row.name}: its pods, not {last}")

    async def used(self, cores: str, pods: str, count: int) -> None:
        """Wait until this is used, and nothing is promised any more."""
        wanted = {"limits.cpu": cores, "pods": pods, self.count: str(count)}
        last: Object = {}

        async def settled() -> bool:
            last.clear()
            last.update((await self.client.get(GROUPS, self.name)).get("status") or {})
            return last.get("used") == wanted and not last.get("reservations")

        await eventually(settled, STEP, lambda: f"{self.row.name}: {wanted}, not {last}")


def typed(resource: Resource, obj: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


REAL_CRDS = "projects' definitions"


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "sandbox",
        pytest.param("kubernetes", marks=pytest.mark.real),
        # It needs an API server of its own, and so may run beside the others.
        pytest.param(REAL_CRDS, marks=[pytest.mark.real, pytest.mark.xdist_group("definitions")]),
    ],
)
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, definitions: Path
) -> AsyncIterator[Cluster]:
    """As everywhere, and one more real API server, with the definitions that the kinds' own projects publish."""

    if request.param == "sandbox":
        async with Sandbox() as box:
            path = box.write_kubeconfig(tmp_path_factory.mktemp("kinds") / "kubeconfig")
            async with KubeClient.from_kubeconfig(path) as client:
                await has_kinds(client, crds.stand_ins())
            yield Cluster("sandbox", path, box)
        return
    if request.param == REAL_CRDS:
        files = [path for path in sorted(definitions.glob("*.yaml")) if path.name != "mpijobs-v2beta1.yaml"]
        if not files:
            pytest.skip(f"no definitions in {definitions} ($BIZRQ_CRDS)")
        real = Real(tmp_path_factory.mktemp("definitions"))
        real.start()
        try:
            async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
                await applied(client, files)
                # Of what is not among them the stand-ins serve.
                await has_kinds(client, crds.stand_ins())
            yield Cluster(real.version, real.kubeconfig)
        finally:
            real.stop()
        return
    shared: Real = request.getfixturevalue("real_cluster")
    async with KubeClient.from_kubeconfig(shared.kubeconfig) as client:
        await has_kinds(client, crds.stand_ins())
        yield Cluster(shared.version, shared.kubeconfig)
        await sweep(client)


async def applied(client: KubeClient, files: list[Path]) -> None:
    """Create definitions as they are written: they are large, and nobody here has to parse them."""
    with warnings.catch_warnings():
        # Of aiohttp, about bodies of more than a megabyte.
        warnings.simplefilter("ignore", ResourceWarning)
        # One after the other: an API server gives each a minute, and together they may need more of a busy machine.
        for path in files:
            await client.request(
                "POST", CRDS.path(), body=path.read_bytes(), content_type="application/yaml", timeout=120
            )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plays(
    station: Standalone, client: KubeClient, request: pytest.FixtureRequest
) -> AsyncIterator[dict[str, asyncio.Task[None]]]:
    """A play for each kind, begun all at once."""
    nodes = [f"kinds-{number}" for number in (1, 2)]
    for name in nodes:
        node = {"metadata": {"name": name, "labels": {"kinds": "two"}}, "status": {}}
        with contextlib.suppress(AlreadyExists):
            await client.create(NODES, typed(NODES, node))
    names = {row.name: "kinds-" + row.name.replace(".", "-") for row in ROWS}
    tasks = {row.name: asyncio.create_task(Play(row, client, names[row.name]).run()) for row in ROWS}
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    for name in names.values():
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, name)
    for name in nodes:
        await client.delete(NODES, name)


@pytest.mark.parametrize("name", [row.name for row in ROWS])
async def test_used_moves_by_the_right_amount_and_back_to_zero(plays: dict[str, asyncio.Task[None]], name: str) -> None:
    """Created, grown, refused above the quota, suspended, resumed, ended, deleted; what it makes costs nothing more."""
    await plays[name]


#: What a kind's operator makes of a size, and may make larger: by what grows in it.
GROWING = {
    "rayjobs.ray.io": (RAYCLUSTERS, lambda size: {**RAY, **workers(size)}),
    "rayservices.ray.io": (RAYCLUSTERS, lambda size: {**RAY, **workers(size)}),
    "trainjobs.trainer.kubeflow.org": (
        JOBSETS,
        lambda size: {
            "replicatedJobs": [
                {"name": "node", "template": {"spec": {"parallelism": size, "completions": size, "template": NEVER}}}
            ]
        },
    ),
}


@pytest.mark.parametrize("name", GROWING)
async def test_a_child_that_grows_is_charged_to_whoever_made_it(
    station: Standalone, client: KubeClient, unique: str, name: str
) -> None:
    """What is awaited is the child's write; a second one is only let be where one replaces another."""
    row, (resource, spec) = next(row for row in ROWS if row.name == name), GROWING[name]
    play = Play(row, client, unique)
    base = int(row.cost(2)["limits.cpu"])
    await client.create(GROUPS, group(unique, **{"limits.cpu": base + 2, "pods": 100, play.count: 1}))
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
    await play.used("0", "0", 0)
    for kind, obj in row.context:
        with contextlib.suppress(AlreadyExists):
            await client.create(kind, typed(kind, obj))
    owner = await play.create(row.resource, {"spec": whole(row.spec, row.sized(2))}, "w")
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        **{key: owner["metadata"][key] for key in ("name", "uid")},
        "controller": True,
    }
    await play.create(resource, {"spec": spec(2)}, "w", ownerReferences=[reference])
    await play.costs(2)

    async def grown(size: int) -> None:
        await client.patch(resource, "w", {"spec": labelled(spec(size), unique)}, namespace=unique)

    error = await refusal(grown(5))
    assert f"exceeded quota: {unique}, requested: limits.cpu=3, used: limits.cpu={base}" in error.message
    assert f"charged for {row.resource.kind} {unique}/w, which made {resource.kind} w" in error.message
    await grown(4)
    await play.used(str(base + 2), str(base + 2), 1)
    second = play.create(resource, {"spec": spec(1)}, "second", ownerReferences=[reference])
    if name == "rayservices.ray.io":
        await second
        await play.used(str(base + 2), str(base + 2), 1)
        await client.delete(resource, "second", unique)
    else:
        assert f"exceeded quota: {unique}, " in (await refusal(second)).message
    await client.delete(resource, "w", unique)
    await play.costs(2)
    await client.delete(row.resource, "w", unique)
    await play.used("0", "0", 0)
    await client.delete(NAMESPACES, unique)


async def test_a_cronjobs_jobs_are_charged_and_their_pods_are_not(
    station: Standalone, cluster: Cluster, client: KubeClient, unique: str
) -> None:
    """A CronJob that fires: its Job pays, once, though Job and pods carry the label; without it none would pay."""
    hard = {"limits.cpu": 4, "pods": 100, "count/jobs.batch": 10}
    await client.create(GROUPS, group(unique, **hard))
    labels = {LABEL: unique}
    pods = labelled(template(restartPolicy="Never"), unique)
    cron = {"metadata": {"name": unique, "namespace": "default", "labels": labels},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"metadata": {"labels": labels},
                                                             "spec": {"template": pods}}}}  # fmt: skip
    stray = copy.deepcopy(cron)
    stray["spec"]["jobTemplate"] = {"metadata": {"labels": {"a": "b"}}, "spec": {"template": pods}}
    assert (
        f"must be {unique} as on the CronJob"
        in (await refusal(client.create(CRONJOBS, typed(CRONJOBS, stray)))).message
    )
    made = await client.create(CRONJOBS, typed(CRONJOBS, cron))
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": unique, "uid": made["metadata"]["uid"],
             "controller": True}  # fmt: skip
    if cluster.is_real:
        # It finds that it has missed a time, and makes up for it at once.
        before = (datetime.now(UTC) - timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"status": {"lastScheduleTime": before}}
        await client.patch(CRONJOBS, unique, status, namespace="default", subresource="status")
    else:
        job = {"metadata": {"name": unique, "namespace": "default", "labels": labels, "ownerReferences": [owner]},
               "spec": {"template": pods}}  # fmt: skip
        await client.create(JOBS, typed(JOBS, job))

    async def fired() -> Object | None:
        return await made_by(client, JOBS, "default", owner["uid"])

    job = await eventually(fired, STEP, "the CronJob fires")
    await client.patch(CRONJOBS, unique, {"spec": {"suspend": True}}, namespace="default")
    await eventually(lambda: made_by(client, PODS, "default", job["metadata"]["uid"]), STEP, "the Job makes its pod")

    async def charged(cores: str) -> bool:
        status = (await client.get(GROUPS, unique))["status"]
        wanted = {"limits.cpu": cores, "pods": cores, "count/jobs.batch": cores}
        return status.get("used") == wanted and not status.get("reservations")

    await eventually(lambda: charged("1"), STEP, "the Job is charged, and nothing else")
    await client.delete(CRONJOBS, unique, "default")
    with contextlib.suppress(NotFound):
        await client.delete(JOBS, job["metadata"]["name"], "default")
    await eventually(lambda: charged("0"), STEP, "nothing is left")


async def made_by(client: KubeClient, resource: Resource, namespace: str, uid: str) -> Object | None:
    """An object of a kind that whoever has this uid made."""
    for obj in (await client.list(resource, namespace))[0]:
        if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ())):
            return obj
    return None


async def test_every_charged_kind_has_its_row() -> None:
    """A kind that is added to kinds.yaml is played here too."""
    assert {row.name for row in ROWS} == {adapter.resource for adapter in builtin_registry().charged}
    assert {row.name for row in ROWS if row.scale} == {a.resource for a in builtin_registry().charged if a.scale}
