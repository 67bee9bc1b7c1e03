"""R28: a tenant who does anything that the role `edit` allows, at random, beside honest users of the same group.

A play follows from its seed. Its steps name what they act on by numbers, so that a play with steps left out is a play,
too: one that fails is cut until no part of it can go, and printed. With `kills` the controller is killed now and then,
and some steps are played without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import orjson

from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource
from bizrq.kube.lease import LEASES
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, REQUIRED
from controller.manager import LEASE
from sandbox.kubelet import STOP_SECONDS
from tests.reliability.routes import (
    STRATEGIC,
    attempt,
    changed,
    image_of,
    of_kind,
    owned,
    pod,
    replica_set,
    web,
)
from tests.reliability.stage import Ended, Ground, Outcome, Tasks, under_way
from tests.support.accounts import SYSTEM
from tests.support.cluster import eventually
from tests.support.live_pods import LivePods, Sample
from tests.support.logged_errors import LoggedErrors
from tests.support.objects import DEPLOYMENTS, NAMESPACES, PODS, REPLICASETS, Object
from tests.support.serving import Parts
from tests.support.tenant import DAEMONSETS, JOBS, REPLICATION_CONTROLLERS, STATEFULSETS, Tenant, tenant_of

HARD = 12
#: The cores of the group to which workloads may move.
SECOND = 6
SETTLED_EVERY = 100
#: The same where the controller is killed: soon after it, for a short play is easily cut.
SETTLED_WITH_KILLS = 40
#: The step at which the controller is killed, and the fewest and most steps that are played without one.
KILLS = "kills"
WITHOUT = (3, 20)
#: Seconds that an honest user waits at most while there is room.
PATIENCE = 5.0
#: How often a play that failed is played again to cut it.
CUTS = 60
KINDS = (DEPLOYMENTS, REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS, JOBS)
SCALED = (DEPLOYMENTS, REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS)


class Step(NamedTuple):
    """What is done, and three numbers that say to what and how."""

    verb: str
    a: int
    b: int
    c: int

    def __str__(self) -> str:
        return f"{self.verb}({self.a}, {self.b}, {self.c})"


class Broken(AssertionError):
    """A law that a play broke, after so many of its steps; None is all."""

    done: int | None = None


def drawn(seed: int, steps: int, *, kills: bool = False) -> list[Step]:
    rng = random.Random(f"R28 {seed}")
    verbs = [*VERBS, *([KILLS] if kills else [])]
    weights = [WEIGHTS.get(verb, 2) for verb in verbs]
    return [
        Step(verb, rng.randrange(1000), rng.randrange(1000), rng.randrange(1000))
        for verb in rng.choices(verbs, weights, k=steps)
    ]


@dataclass
class Play:
    """One tenant, its two namespaces, and what its steps act on."""

    tenants: Sequence[Tenant]
    group: str
    #: Another group, which accepts nobody from here, and one to which workloads may move.
    other: str
    second: str
    #: What ends within the oracle's tolerance is not judged while it does.
    slowness: int = 1
    uids: list[tuple[str, str, str, str]] = field(default_factory=list)

    def tenant(self, number: int) -> Tenant:
        return self.tenants[number % len(self.tenants)]

    def label(self, number: int) -> str | None:
        groups = (self.group, self.group, self.group, self.second, self.second, None, "nosuch", self.other)
        return groups[number % len(groups)]

    async def found(self, resource: Resource, number: int, tenant: Tenant) -> Object | None:
        items = (await tenant.admin.list(resource, tenant.name))[0]
        names = sorted(items, key=lambda obj: obj["metadata"]["name"])
        return names[number % len(names)] if names else None

    async def workload(self, step: Step, kinds: Sequence[Resource] = KINDS) -> tuple[Tenant, Resource, Object] | None:
        """An object of one of these kinds; of the next kind where there is none."""
        tenant = self.tenant(step.a)
        for shift in range(len(kinds)):
            resource = kinds[(step.b + shift) % len(kinds)]
            if (obj := await self.found(resource, step.c, tenant)) is not None:
                return tenant, resource, obj
        return None

    def made(self, resource: Resource, step: Step, tenant: Tenant) -> Object:
        """A workload of up to five cores under one of four names; some are slow to stop."""
        name, replicas = f"{resource.plural[:3]}{step.c % 4}", step.b % 6
        label = self.label(step.c // 4)
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": (1, 3, 50)[step.a // 2 % 3]}}
        how: Object = {"strategy": strategy} if resource is DEPLOYMENTS else {}
        inner = {} if step.a % 5 else {LABEL: label or self.group}
        obj = web(tenant, replicas, name=name, app=name, label=label, pods=inner, **how)
        template = obj["spec"]["template"]
        self._end_slowly(template, step)
        return obj if resource is DEPLOYMENTS else of_kind(resource, obj)

    async def play(self, step: Step) -> None:
        """Do one step; what is refused is done, too."""
        await VERBS[step.verb](self, step)

    # Workloads

    async def creates(self, step: Step) -> None:
        tenant, resource = self.tenant(step.a), KINDS[step.a // 2 % len(KINDS)]
        await attempt(tenant.create(resource, self.made(resource, step, tenant)))

    async def creates_daemonset(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        await attempt(tenant.create(DAEMONSETS, self.made(DAEMONSETS, step, tenant)))

    async def deletes(self, step: Step) -> None:
        if (found := await self.workload(step, (*KINDS, DAEMONSETS))) is not None:
            tenant, resource, obj = found
            self._remember(obj)
            policy = ("Background", "Foreground", "Orphan")[step.c // 7 % 3]
            await attempt(tenant.delete(resource, obj["metadata"]["name"], policy))

    async def scales(self, step: Step) -> None:
        if (found := await self.workload(step, SCALED)) is not None:
            tenant, resource, obj = found
            await attempt(tenant.scale(resource, obj["metadata"]["name"], step.c // 5 % 7))

    async def suspends(self, step: Step) -> None:
        if (found := await self.workload(step, (JOBS,))) is not None:
            tenant, resource, obj = found
            change = {"spec": {"suspend": not obj["spec"].get("suspend", False)}}
            await attempt(tenant.patch(resource, obj["metadata"]["name"], change))

    async def pauses(self, step: Step) -> None:
        if (found := await self.workload(step, (DEPLOYMENTS,))) is not None:
            tenant, resource, obj = found
            change = {"spec": {"paused": not obj["spec"].get("paused", False)}}
            await attempt(tenant.patch(resource, obj["metadata"]["name"], change))

    async def surges(self, step: Step) -> None:
        if (found := await self.workload(step, (DEPLOYMENTS,))) is not None:
            tenant, resource, obj = found
            rolling = {"maxSurge": (0, 1, "100%", 20, 200)[step.c // 3 % 5], "maxUnavailable": 1}
            change = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}}
            await attempt(tenant.patch(resource, obj["metadata"]["name"], change))

    async def updates(self, step: Step) -> None:
        """Another image, another amount."""
        if (found := await self.workload(step, SCALED)) is not None:
            tenant, resource, obj = found
            cpu = (None, None, "1", "2", "1m")[step.c // 11 % 5]
            body = image_of(f"i{step.a}", cpu)
            name = obj["metadata"]["name"]
            await changed(tenant, resource, name, body)

    async def relabels(self, step: Step) -> None:
        if (found := await self.workload(step, (*KINDS, REPLICASETS, REPLICASETS))) is not None:
            tenant, resource, obj = found
            labels: Object = {LABEL: self.label(step.c // 3)}
            if step.c % 3 == 0:
                labels["app"] = "taken"
            await attempt(tenant.patch(resource, obj["metadata"]["name"], {"metadata": {"labels": labels}}))

    # Pods

    async def creates_pod(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        made = pod(tenant, f"p{step.b % 12}", label=self.label(step.c))
        await attempt(tenant.create(PODS, self._brief(made, step)))

    async def creates_child(self, step: Step) -> None:
        """Of an owner that is there, was there, or never was; in a version that is served, or not."""
        tenant, version = self.tenant(step.a), ("", "apps/v9")[step.c // 2 % 2]
        made = self._brief(pod(tenant, f"c{step.b % 12}", label=self.label(step.a // 3)), step)
        match step.c % 4:
            case 0:
                reference = ("apps/v1", "ReplicaSet", "never", str(uuid.uuid4()))
            case 1 if self.uids:
                reference = self.uids[step.b % len(self.uids)]
            case _:
                if (found := await self.workload(step)) is None:
                    return
                _, resource, obj = found
                reference = _reference(resource, obj)
                selected = (obj["spec"].get("template") or {}).get("metadata", {}).get("labels") or {}
                made["metadata"]["labels"] = {**selected, **made["metadata"]["labels"]}
        api, kind, name, uid = reference
        await attempt(tenant.create(PODS, owned(made, kind, name, uid, version or api)))

    async def creates_replica_set_of(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        if (found := await self.workload(step, (DEPLOYMENTS,))) is None:
            return
        name = f"own{step.b % 4}"
        made = replica_set(tenant, name, step.b % 5, label=self.label(step.c), app=name)
        _, resource, obj = found
        api, kind, owner, uid = _reference(resource, obj)
        await attempt(tenant.create(REPLICASETS, owned(made, kind, owner, uid, api)))

    async def relabels_pod(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        if (obj := await self.found(PODS, step.b, tenant)) is not None:
            labels = dict.fromkeys(obj["metadata"].get("labels") or {}) if step.c % 5 == 0 else {}
            if step.c % 5 in (1, 2):
                labels["app"] = f"taken{step.c % 3}"
            labels[LABEL] = self.label(step.c // 5)
            await attempt(tenant.patch(PODS, obj["metadata"]["name"], {"metadata": {"labels": labels}}))

    async def disowns(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        resource = (PODS, REPLICASETS)[step.c % 2]
        if (obj := await self.found(resource, step.b, tenant)) is not None:
            change = {"metadata": {"ownerReferences": None, "labels": {"app": f"free{step.c % 3}"}}}
            await attempt(tenant.patch(resource, obj["metadata"]["name"], change))

    async def deletes_pod(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        if (obj := await self.found(PODS, step.b, tenant)) is not None:
            grace = (None, 0, 1, 4)[step.c % 4]
            await attempt(tenant.delete(PODS, obj["metadata"]["name"], grace=grace))

    async def evicts(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        if (obj := await self.found(PODS, step.b, tenant)) is not None:
            name = obj["metadata"]["name"]
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": tenant.name}}
            path = PODS.path(tenant.name, name, "eviction")
            # Whoever drains nodes does this; the role `edit` may, too.
            await attempt(tenant.client.request("POST", path, body=orjson.dumps(body)))

    async def resizes(self, step: Step) -> None:
        tenant = self.tenant(step.a)
        if (obj := await self.found(PODS, step.b, tenant)) is not None:
            cpu = ("500m", "1", "3")[step.c % 3]
            resources = {part: {"cpu": cpu} for part in ("limits", "requests")}
            body = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
            await attempt(
                tenant.client.patch(
                    PODS, obj["metadata"]["name"], body,
                    namespace=tenant.name, subresource="resize", content_type=STRATEGIC,
                )
            )  # fmt: skip

    async def waits(self, step: Step) -> None:
        await asyncio.sleep(0.1 + step.a % 4 / 5)

    def _remember(self, obj: Object) -> None:
        self.uids.append((obj["apiVersion"], obj["kind"], obj["metadata"]["name"], obj["metadata"]["uid"]))
        del self.uids[:-8]

    def _brief(self, made: Object, step: Step) -> Object:
        self._end_slowly(made, step)
        return made

    def _end_slowly(self, made: Object, step: Step) -> None:
        made["spec"]["terminationGracePeriodSeconds"] = self.slowness * (1 + step.a % 4)
        made["metadata"]["annotations"] = {STOP_SECONDS: str(self.slowness * (step.a % 5))}


def _reference(resource: Resource, obj: Object) -> tuple[str, str, str, str]:
    return resource.api_version, resource.kind, obj["metadata"]["name"], obj["metadata"]["uid"]


VERBS: dict[str, Callable[[Play, Step], Awaitable[None]]] = {
    "creates": Play.creates,
    "creates_daemonset": Play.creates_daemonset,
    "deletes": Play.deletes,
    "scales": Play.scales,
    "suspends": Play.suspends,
    "pauses": Play.pauses,
    "surges": Play.surges,
    "updates": Play.updates,
    "relabels": Play.relabels,
    "creates_pod": Play.creates_pod,
    "creates_child": Play.creates_child,
    "creates_replica_set_of": Play.creates_replica_set_of,
    "relabels_pod": Play.relabels_pod,
    "disowns": Play.disowns,
    "deletes_pod": Play.deletes_pod,
    "evicts": Play.evicts,
    "resizes": Play.resizes,
    "waits": Play.waits,
}
WEIGHTS = {
    "creates": 8,
    "creates_daemonset": 1,
    "deletes": 5,
    "scales": 5,
    "updates": 4,
    "waits": 4,
    "relabels_pod": 4,
    KILLS: 3,
}


@dataclass
class Honest:
    """A user of the same group in a namespace of its own, who asks for one core and gives it back."""

    tenant: Tenant
    group: str
    live: LivePods
    patience: float
    admitted: int = 0
    slowest: float = 0.0

    async def works(self) -> None:
        """Raise Broken where a request is refused for longer than is patient though there is room all the time."""
        number = 0
        while True:
            number += 1
            made = web(self.tenant, 1, name=f"h{number % 3}", app=f"h{number % 3}", label=self.group)
            waited = await self._asks(made)
            if waited is not None:
                self.admitted += 1
                self.slowest = max(self.slowest, waited)
                await asyncio.sleep(0.5)
                await attempt(self.tenant.delete(DEPLOYMENTS, made["metadata"]["name"]))
                await eventually(lambda made=made: self._gone(made["metadata"]["name"]), 60, "the Deployment is gone")
            await asyncio.sleep(0.3)

    async def _asks(self, made: Object) -> float | None:
        began = room_since = time.monotonic()
        while True:
            refused = await to_the_end(attempt(self.tenant.create(DEPLOYMENTS, made)))
            now = time.monotonic()
            # What is there was made by the last request of a user before: nobody else uses these names.
            if refused is None or isinstance(refused, AlreadyExists):
                return now - room_since
            if not _has_room(self.live.last):
                room_since = now
            if now - room_since > self.patience:
                raise Broken(f"an honest user was refused for {self.patience:g} s: {refused.message}; {self.live.last}")
            if now - began > 3 * PATIENCE:
                return None
            await asyncio.sleep(0.1)

    async def _gone(self, name: str) -> bool:
        with contextlib.suppress(NotFound):
            await self.tenant.admin.get(DEPLOYMENTS, name, self.tenant.name)
            return False
        return True


async def to_the_end(request: Awaitable[ApiError | None]) -> ApiError | None:
    """Return the answer to a request. Whoever is cancelled meanwhile waits for it, too.

    A create that is cut off after its admission holds its namespace to half of what is left, for a minute (law 7).
    """
    running = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


def _has_room(sample: Sample | None) -> bool:
    if sample is None:
        return False
    # At most what the other group has taken is charged there.
    runs = sample.live - sample.free - sample.taken_of_others
    return max(sample.taken, runs) + 1000 <= sample.hard


@dataclass(frozen=True)
class Played:
    steps: int
    settled: int
    admitted: int
    slowest: float


class Arena:
    """bizrq on a cluster where pods run, and one play after another on it."""

    def __init__(self, ground: Ground, parts: Parts, logged: LoggedErrors) -> None:
        self._ground = ground
        self._parts = parts
        self._logged = logged
        #: Kills the controller, if there is one.
        self._kill: Ended | None = None
        self._without_since = 0.0

    async def leads(self, live: LivePods | None = None) -> None:
        """Have a controller lead; what the oracle saw without one is forgiven."""
        if self._kill is not None:
            return
        self._kill = await self._ground.controller(self._parts, 1.0)

        async def is_led() -> bool:
            with contextlib.suppress(NotFound):
                return bool((await self._ground.client.get(LEASES, LEASE, SYSTEM))["spec"].get("holderIdentity"))
            return False

        await eventually(is_led, 60, "the controller leads")
        if live is not None:
            live.forgive(self._without_since)

    async def killed(self) -> None:
        """Have none lead. The next one need not wait for the end of the Lease."""
        if self._kill is not None:
            self._without_since = time.monotonic()
            await self._kill()
            self._kill = None
            with contextlib.suppress(NotFound):
                await self._ground.client.delete(LEASES, LEASE, SYSTEM)

    async def played(self, steps: Sequence[Step]) -> Played:
        """Play the steps in fresh namespaces and a fresh group; raises Broken."""
        ground = self._ground
        # A play that failed may have killed the last one.
        await self.leads()
        async with contextlib.AsyncExitStack() as stack:
            name = await ground.group(ground.name(), cpu=str(HARD))
            other, second = ground.name(), await ground.group(ground.name(), cpu=str(SECOND))
            obj = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "metadata": {"name": other}}
            selector = {"matchLabels": {"nobody": "here"}}
            await ground.client.create(
                GROUPS, {**obj, "spec": {"hard": {"limits.cpu": "4"}, "namespaceSelector": selector}}
            )
            people: list[Tenant] = []
            for number in range(3):
                space = await ground.namespace(f"{name}-{number}")
                stack.push_async_callback(self._cleared, space)
                folder = Path(ground.folder, space)
                folder.mkdir()
                people.append(await stack.enter_async_context(tenant_of(ground.cluster, ground.client, space, folder)))
            # In one what names no group is charged to the default, in the other it is rejected: nothing is free.
            await people[0].has_default(**{LABEL: name})
            await people[1].has_default(**{REQUIRED: "true"})
            box = ground.cluster.box
            now = (lambda: box.clock.now().timestamp()) if box else time.time
            spaces = {person.name for person in people}
            client = await stack.enter_async_context(KubeClient.from_kubeconfig(ground.cluster.kubeconfig))
            live = await stack.enter_async_context(LivePods(client, name, spaces, now, [second]))
            kills = any(step.verb == KILLS for step in steps)
            # What came and went while no controller ran is held for a minute.
            honest = Honest(people[2], name, live, math.inf if kills else PATIENCE)
            play = Play(people[:2], name, other, second, 3 if kills else 1)
            settled, every = 0, SETTLED_WITH_KILLS if kills else SETTLED_EVERY
            for begin in range(0, max(1, len(steps)), every):
                try:
                    # The honest user stops before the pods come to rest.
                    async with under_way(honest.works()) as user:
                        await self._plays(play, steps[begin : begin + every], live, user)
                    await attempt(honest.tenant.admin.request("DELETE", DEPLOYMENTS.path(honest.tenant.name)))
                    await self._judged(live)
                    if kills:
                        # Nor is anything covered by what was promised in vain.
                        await ground.expire(name, second)
                        await self._judged(live)
                except Broken as error:
                    error.done = begin + every
                    raise
                settled += 1
            return Played(len(steps), settled, honest.admitted, honest.slowest)

    async def _plays(self, play: Play, steps: Sequence[Step], live: LivePods, user: Tasks) -> None:
        """Do some steps; after the last one a controller leads."""
        without, late = 0, 0.0
        for step in steps:
            if step.verb == KILLS:
                await self.killed()
                without, late = WITHOUT[0] + step.a % (WITHOUT[1] - WITHOUT[0] + 1), step.b % 4
                continue
            await play.play(step)
            user.check()
            without -= 1
            if without == 0:
                # Kubernetes' own controllers act meanwhile.
                await asyncio.sleep(late)
                await self.leads(live)
        await self.leads(live)

    async def _judged(self, live: LivePods) -> None:
        async def none_ends() -> bool:
            return not any("deletionTimestamp" in each["metadata"] or live.gone for each in live.live())

        await eventually(none_ends, 60, "no pod is ending")
        try:
            # What was replaced ran beside its replacement, until the controller had seen it.
            await live.settled(ever=3 * (HARD + SECOND), within=15)
        except AssertionError as error:
            raise Broken(str(error)) from None
        self._logged.read(self._parts.folder)
        if found := self._logged.taken():
            raise Broken("\n".join(["bizrq logged an error:", *found]))

    async def _cleared(self, space: str) -> None:
        client = self._ground.client
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, space)
        options = orjson.dumps({"gracePeriodSeconds": 0})
        await attempt(client.request("DELETE", PODS.path(space), body=options))

    async def shortest(self, steps: Sequence[Step], why: Broken) -> tuple[list[Step], Broken]:
        """Cut a play that fails: halves, quarters and so on, as long as it still fails."""
        left, plays, size = list(steps[: why.done]), 0, -(-len(steps[: why.done]) // 2)
        while size and len(left) > 1:
            begin, before = 0, len(left)
            while begin < len(left) and plays < CUTS:
                shorter = left[:begin] + left[begin + size :]
                plays += 1
                try:
                    await self.played(shorter)
                except Broken as error:
                    left, why = shorter[: error.done], error
                else:
                    begin += size
            if plays >= CUTS:
                break
            # Steps that go may let others go, until single ones have been tried in vain.
            size = size // 2 if size > 1 else int(len(left) < before)
        return left, why


@contextlib.asynccontextmanager
async def arena_on(ground: Ground) -> AsyncIterator[Arena]:
    async with ground.parts() as parts:
        await parts.run_pods()
        await ground.webhooks(parts)
        logged = LoggedErrors()
        arena = Arena(ground, parts, logged)
        await arena.leads()
        await parts.register()
        with logged.recorded():
            yield arena


async def r28(ground: Ground, *, seeds: int, steps: int, cuts: bool, kills: bool = False) -> Outcome:
    """`cuts` says that a play that fails is cut before it is told."""
    played: list[Played] = []
    async with arena_on(ground) as arena:
        for seed in range(ground.seed, ground.seed + seeds):
            ground.say(f"seed {seed}")
            taken = drawn(seed, steps, kills=kills)
            try:
                played.append(await arena.played(taken))
            except Broken as error:
                left, why = await arena.shortest(taken, error) if cuts else (taken[: error.done], error)
                told = "\n".join(f"  {step}" for step in left)
                found = str(error) if why is error else f"{error}\ncut to fewer steps: {why}"
                raise Broken(f"seed {seed}: {found}\n{len(left)} steps:\n{told}") from None
    total, settled = sum(each.steps for each in played), sum(each.settled for each in played)
    admitted, slowest = sum(each.admitted for each in played), max(each.slowest for each in played)
    figures = f"{seeds} seeds, {total} steps, settled {settled} times: nothing over, nothing hidden"
    missed = [] if admitted else ["no honest request was admitted"]
    return Outcome(f"{figures}; {admitted} honest requests, the slowest {slowest:.1f} s", missed)
