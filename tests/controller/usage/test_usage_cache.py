"""Property test: cached usage equals a count from scratch, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
from functools import cache, partial
from itertools import count
from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bizrq.hours.budget import HOUR
from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.kube.informer import Informer
from bizrq.quota.recount import UsageSums
from bizrq.settings import Settings
from bizrq.settings import settings as settings_of
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import ExcessUsage
from controller.usage.observed_usage import ObservedUsage
from controller.usage.usage_cache import UsageCache, UsageQuery
from controller.usage.workload_cost import WorkloadCosts
from controller.usage.workload_usage import PrepaidRun, UsageBuilder, WorkloadUsage
from controller.watch.cluster import Cluster
from controller.watch.time_slice import Yielder
from tests.controller.usage.test_excess import reference
from tests.support import objects
from tests.support.objects import Object

NOW = 1_800_000_000_000
KNOBS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100"]}, "T4": {"aliases": ["Tesla-T4"]}}}
GROUPS = ["a", "b"]
PRODUCT = {0: "Tesla-T4", 1: "NVIDIA-A100"}


@cache
def knobs() -> Settings:
    return settings_of(KNOBS)


def pod(size: int, odd: bool) -> Object:
    spec = objects.template(str(size), **({"nvidia.com/gpu": str(size)} if odd else {}))["spec"]
    claims: list[Object] = [
        {"name": "k", "resourceClaimName": "k"},
        {"name": "k", "resourceClaimTemplateName": "m"},
    ]
    if size > 1:
        spec["resourceClaims"] = [claims[size - 2]]
    spec["nodeName"] = "n" if odd else "o"
    metadata: Object = {"labels": {} if odd else {"app": "x"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def replica_set(size: int, odd: bool) -> Object:
    made = objects.deployment("", None, size + odd)
    return {**made, "kind": "ReplicaSet", "metadata": {"labels": {"app": "x"}}}


def tfjob(size: int, odd: bool) -> Object:
    made = objects.tfjob("", "", size, gpu=int(odd))
    made["metadata"]["labels"] = {MODEL_LABELS["gpu"]: "A100"}
    return made


def deployment(size: int, odd: bool) -> Object:
    made = objects.deployment("", None, size)
    if size == 3:
        return objects.claiming(made, "m") if odd else objects.sharing(made, "k")
    # Uncountable.
    return {**made, "spec": {**made["spec"], "replicas": "many"}} if odd and size == 0 else made


def claim(size: int, odd: bool) -> Object:
    made = objects.claim("", size)
    return {**made, "status": {"allocation": objects.allocation("d", pool="n")}} if odd else made


#: Each kind: its names, and a function that builds one of a size.
KINDS: dict[str, tuple[str, Any]] = {
    "Deployment": ("d", deployment),
    "ReplicaSet": ("rs", replica_set),
    "Pod": ("puv", pod),
    "TFJob": ("t", tfjob),
    "Rollout": ("l", lambda size, odd: objects.referring("", None, named("d") if odd else named("x"), size)),
    "RayJob": ("j", lambda size, _odd: objects.rayjob("", None, size)),
    "RayCluster": ("c", lambda size, _odd: {**objects.rayjob("", None, 0), "kind": "RayCluster",
                                            "spec": objects.ray_spec(size)}),
    "PodTemplate": ("x", lambda size, _odd: objects.pod_template("", str(size))),
    "ResourceClaim": ("k", claim),
    "ResourceClaimTemplate": ("m", lambda size, _odd: objects.claim_template("", size)),
    "DeviceClass": ("g", lambda size, odd: objects.device_class("", f"nvidia.com/{'gpu' if odd else 'other'}")),
    "Node": ("n", lambda _size, odd: objects.node("", **{"nvidia.com/gpu.product": PRODUCT[odd]})),
    "ResourceSlice": ("i", lambda size, odd: objects.slice_of("n", 1, d=PRODUCT[odd])),
    "Namespace": ("o", lambda _size, _odd: objects.namespace("")),
    "LimitRange": ("h", lambda size, _odd: {"apiVersion": "v1", "kind": "LimitRange", "metadata": {}, "spec": {
        "limits": [{"type": "Container", "default": {"memory": f"{size}Gi"}}]}}),
}  # fmt: skip
WHOLE = {"o": "default", "g": "gpu", "i": "n-1"}
ALL = [(kind, name) for kind, (names, _) in KINDS.items() for name in names]
#: The owners that objects of some kinds may name: most often the kinds that create them.
OWNERS = {
    "ReplicaSet": "ddl",
    "Pod": "rrstcdp",
    "RayCluster": "jj",
    "ResourceClaim": "pu",
    "Deployment": "r",
    "TFJob": "c",
}


def named(name: str) -> Object:
    kind = next(kind for kind, (names, _) in KINDS.items() if name in names)
    versions = {"Deployment": "apps/v1", "PodTemplate": "v1"}
    return {"apiVersion": versions[kind], "kind": kind, "metadata": {"name": name}}


class World(RuleBasedStateMachine):
    """Stored objects, watches that bring them late or by list, and usage that is refreshed slice by slice."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, str]] = []
        self.loop = asyncio.new_event_loop()
        #: The loop of counts from scratch: no refresh may finish meanwhile, because it would not be compared at once.
        self.apart = asyncio.new_event_loop()
        self.revision = 0
        self.uids = count()
        self.stored: dict[str, Object] = {}
        #: The last state of each object, deleted or not.
        self.known: dict[str, Object] = {}
        self.late: dict[str, list[tuple[str, Object]]] = {}
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, knobs().registry, lambda _group, _after: None)
        self.seconds = 0.0
        for informer in self.cluster.informers.all:
            informer.installed = True
            informer.catch_up = partial(_caught_up, informer)  # type: ignore[method-assign]
            informer.store._clock = lambda: self.seconds
            informer.catch_up = partial(self._caught_up, informer)
        self.surplus = ExcessUsage(self.cluster, knobs().counting)
        self.costs = self._costs()
        self.ledgers = UsageCache(
            self.cluster, self.costs, self._lines(self.costs), lambda: NOW, lambda: Yielder(-1.0, 1)
        )
        self.settling: dict[str, tuple[asyncio.Task[None], PrepaidRun | None]] = {}

    def _costs(self) -> WorkloadCosts:
        claims, config = ClaimPayers(self.cluster.informers, lambda _group, _after: None), knobs().counting
        return WorkloadCosts(self.cluster, self.surplus, claims, config, lambda: NOW, lambda: self.seconds)

    def _lines(self, costs: WorkloadCosts) -> UsageBuilder:
        return UsageBuilder(self.cluster, costs, ObservedUsage(self.cluster, knobs().counting))

    async def _caught_up(self, informer: Informer, revision: int, _timeout: float, *, lag: float | None = None) -> bool:
        self.deliver(informer.resource.kind)
        informer.store.resource_version = max(informer.store.resource_version, revision)
        return True

    def informer(self, kind: str) -> Informer:
        if kind == "Node":
            return self.cluster.informers.nodes
        if kind == "ResourceSlice":
            return self.cluster.informers.slices
        watched = self.cluster.resolver._watched
        return next(informer for (_, of), informer in watched.items() if of == kind)

    # -- The world -------------------------------------------------------------------------------------------------

    @initialize(names=st.lists(st.sampled_from(ALL), min_size=3, max_size=7, unique=True), owners=st.booleans())
    def begin(self, names: list[tuple[str, str]], owners: bool) -> None:
        """Use few objects, so that they interact; often some that own each other."""
        self.names = [*names, *([("Deployment", "d"), ("ReplicaSet", "r"), ("Pod", "p")] if owners else [])]

    @rule(
        which=st.integers(0, 100),
        size=st.integers(0, 3),
        odd=st.booleans(),
        label=st.sampled_from([None, "a", "a", "b"]),
        maker=st.sampled_from([None, 0, 0, 1, 2, 3, 4, 5, 6]),
        anew=st.booleans(),
        leaves=st.sampled_from([False, False, True]),
        late=st.sampled_from([False, False, True]),
    )
    def put(
        self,
        which: int,
        size: int,
        odd: bool,
        label: str | None,
        maker: int | None,
        anew: bool,
        leaves: bool,
        late: bool,
    ) -> None:
        kind, name = self.names[which % len(self.names)]
        owners = OWNERS.get(kind, "")
        owner = owners[maker % len(owners)] if maker is not None and owners else None
        obj = KINDS[kind][1](size, odd)
        old = self.stored.get(name)
        if old is not None and anew:
            self.remove(name, late)
            old = None
        metadata: Object = {**obj["metadata"], "name": WHOLE.get(name, name)}
        metadata["uid"] = old["metadata"]["uid"] if old is not None else f"{name}-{next(self.uids)}"
        if kind not in ("Node", "ResourceSlice", "Namespace", "DeviceClass"):
            metadata["namespace"] = "default"
        if kind not in ("Node", "ResourceSlice"):
            metadata["labels"] = {**metadata.get("labels", {}), **({LABEL: label} if label else {})}
        if owner in self.known and owner != name:
            metadata["ownerReferences"] = [reference(self.known[owner])]
        if kind == "Pod" and leaves:
            metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        metadata["resourceVersion"] = self._next()
        stored = {**obj, "metadata": metadata}
        self.stored[name] = self.known[name] = stored
        self._tell(kind, "ADDED" if old is None else "MODIFIED", stored, late)

    @rule(which=st.integers(0, 100), late=st.booleans())
    def delete(self, which: int, late: bool) -> None:
        self.remove(self.names[which % len(self.names)][1], late)

    def remove(self, name: str, late: bool) -> None:
        gone = self.stored.pop(name, None)
        if gone is not None:
            last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": self._next()}}
            self._tell(gone["kind"], "DELETED", last, late)

    @rule(which=st.integers(0, 100))
    def catch_up(self, which: int) -> None:
        self.deliver(self.names[which % len(self.names)][0])

    def deliver(self, kind: str) -> None:
        for event, obj in self.late.pop(kind, ()):
            self.informer(kind)._apply(event, _copy(obj))

    @rule(which=st.integers(0, 100))
    def relist(self, which: int) -> None:
        """Deliver a list, as after an outage: deleted objects are missing without a time."""
        kind = self.names[which % len(self.names)][0]
        self.late.pop(kind, None)
        informer = self.informer(kind)
        items = [informer._transformed(_copy(obj)) for obj in self.stored.values() if obj["kind"] == kind]
        informer._accept(items, int(self._next()), 0)

    @precondition(lambda self: not self.settling)
    @rule(seconds=st.sampled_from([100, 200, 301]))
    def wait(self, seconds: int) -> None:
        """Pass 300 seconds, after which an owner's deletion is forgotten; a refresh in progress may not see that."""
        self.seconds += seconds

    def _tell(self, kind: str, event: str, obj: Object, late: bool) -> None:
        self.late.setdefault(kind, []).append((event, obj))
        if not late:
            self.deliver(kind)

    def _next(self) -> str:
        self.revision += 1
        return str(self.revision)

    # -- The sums --------------------------------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS), run=st.sampled_from([None, None, 1, 2]), check=st.booleans())
    def settle(self, group: str, run: int | None, check: bool) -> None:
        """Start a refresh of a group unless one is in progress."""
        if group not in self.settling:
            runs = PrepaidRun(HOUR, NOW + run * HOUR) if run is not None else None
            task = self.loop.create_task(self.ledgers.refresh(UsageQuery(group, runs), check=check))
            self.settling[group] = task, runs

    @rule(run=st.sampled_from([None, 1]))
    def look(self, run: int | None) -> None:
        """Refresh all groups without interruption."""
        for _ in range(3):
            for group in GROUPS:
                self.settle(group, run, False)
            while self.settling:
                self.go_on(500)
            if all(map(self.ledgers.is_current, GROUPS)):
                return
        raise AssertionError("no refresh has all changes")

    @precondition(lambda self: self.settling)
    @rule(which=st.integers(0, 1))
    def cancel(self, which: int) -> None:
        """Cancel a refresh, as when the API server is away; the rest is due next time."""
        task, _ = self.settling.pop([*self.settling][which % len(self.settling)])
        task.cancel()
        while not task.done():
            self.go_on(1)

    @rule(group=st.sampled_from(GROUPS))
    def forget(self, group: str) -> None:
        """Delete a group and create it again."""
        self.ledgers.forget(group)

    @rule()
    def overflow(self) -> None:
        """Overflow the dirty marks."""
        self.cluster.dirty.mark_all()

    @rule(turns=st.sampled_from([1, 2, 3, 5, 8, 500]))
    def go_on(self, turns: int) -> None:
        self.loop.run_until_complete(_turns(turns))
        for group, (task, run) in [*self.settling.items()]:
            if task.done():
                task.result()
                del self.settling[group]
                if self.ledgers.is_current(group):
                    # Otherwise the other group's refresh has let a watch catch up since this one ended.
                    self._compare(group, run)

    @invariant()
    def nothing_was_kept_wrong(self) -> None:
        assert [self.ledgers.of(group).drift for group in GROUPS] == [[], []]

    @invariant()
    def a_current_group_has_all_its_workloads(self) -> None:
        """Another group's refresh may have taken the marks."""
        for group in GROUPS:
            if self.ledgers.is_current(group):
                charged = {obj["metadata"]["uid"] for _, obj in self.cluster.placements.charged_to(group)}
                assert self.ledgers.of(group).usages.keys() == charged

    def _compare(self, group: str, run: PrepaidRun | None) -> None:
        """Assert that cached usage equals a count that knows only what workloads were last held at."""
        account = self.ledgers.of(group)
        found = self.apart.run_until_complete(self._counted(group, run))
        assert account.usages.keys() == found.keys()
        for uid, line in found.items():
            assert account.usages[uid].equals(line), uid
            assert (uid in account.with_messages) == (line.messages != WorkloadUsage(line.counted).messages)
            assert (uid in account.with_claims) == bool(line.shared or line.shown)
            assert (uid in account.unknown) == line.is_unknown
        assert account.sums.equals(UsageSums(line.counted for line in found.values()))
        for line in found.values():
            assert account.sums.get(line.counted.slot) == line.counted

    async def _counted(self, group: str, run: PrepaidRun | None) -> dict[str, WorkloadUsage]:
        remembered, self.cluster.ownership._payers = self.cluster.ownership._payers, {}
        try:
            return await self._counted_anew(group, run)
        finally:
            # An error in the remembered payers must show.
            self.cluster.ownership._payers = remembered

    async def _counted_anew(self, group: str, run: PrepaidRun | None) -> dict[str, WorkloadUsage]:
        costs = self._costs()
        for memory in ("_counted", "_last", "_holds", "_surplus_since"):
            setattr(costs, memory, {**getattr(self.costs, memory)})
        users = self.costs._claim_payers._users
        costs._claim_payers._users = {place: {**of} for place, of in users.items()}
        lines = self._lines(costs)
        found: dict[str, WorkloadUsage] = {}
        for adapter, obj in self.cluster.placements.charged_to(group):
            await costs.count(group, adapter, obj)
            found[obj["metadata"]["uid"]] = lines.of(adapter, obj, self.cluster.ownership.let_go(obj), run, NOW)
        return found

    def teardown(self) -> None:
        """Once everything is delivered, cached usage is right, and a full check agrees."""
        try:
            for kind in KINDS:
                self.deliver(kind)
            for check in (False, True):
                for group in GROUPS:
                    while self.settling:
                        self.go_on(500)
                    self.settle(group, None, check)
                while self.settling:
                    self.go_on(500)
            self.nothing_was_kept_wrong()
            assert {*self.costs.remembered()} <= _uids(self.cluster)
        finally:
            for task, _ in self.settling.values():
                task.cancel()
            self.apart.close()
            self.loop.close()


def _copy(obj: Object) -> Object:
    """Copy an object as a watch delivers it: its metadata is not shared."""
    return {**obj, "metadata": {**obj["metadata"]}}


async def _caught_up(informer: Informer, revision: int, _timeout: float, *, lag: float | None = None) -> bool:
    """A watch that shows no more while somebody waits for it."""
    await asyncio.sleep(0)
    return informer.store.resource_version >= revision


def _uids(cluster: Cluster) -> set[str]:
    return {obj["metadata"]["uid"] for informer in cluster.informers.all for obj in informer.store.values()}


async def _turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


TestWorld = World.TestCase
TestWorld.settings = hypothesis(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def put(world: World, kind: str, name: str, size: int = 1, **more: Any) -> None:
    """Store an object as the rule of that name does. `maker` is an index into OWNERS."""
    world.names = [(kind, name)]
    chosen: dict[str, Any] = {"odd": False, "label": None, "maker": None, "anew": False, "leaves": False, "late": False}
    world.put(which=0, size=size, **{**chosen, **more})


def delete(world: World, kind: str, name: str) -> None:
    world.names = [(kind, name)]
    world.delete(which=0, late=False)


def test_another_device_in_a_slice_is_another_cost_of_those_who_have_it() -> None:
    world = World()
    for kind, name, size, odd in (
        ("DeviceClass", "g", 0, True),
        ("ResourceSlice", "i", 0, True),
        ("ResourceClaim", "k", 1, True),
        ("Pod", "p", 2, False),
        ("ResourceSlice", "i", 0, False),
    ):
        put(world, kind, name, size, odd=odd, label="a" if kind == "Pod" else None)
        before = [*world.ledgers.of("a").with_claims.values()]
        world.look(None)
    assert [line.shown for line in world.ledgers.of("a").with_claims.values()] != [line.shown for line in before] != []
    world.teardown()


def test_a_look_that_ends_is_compared_before_anything_else_changes() -> None:
    """Counts from scratch have their own loop: a second refresh that ended meanwhile was compared too late."""
    world = World()
    put(world, "Deployment", "d", label="a")
    put(world, "Pod", "p", label="a")
    world.settle("a", None, check=True)
    world.settle("b", None, check=False)
    while "b" in world.settling:
        world.go_on(1)
    assert not any(task.done() for task, _ in world.settling.values())
    delete(world, "Deployment", "d")
    world.go_on(500)
    world.teardown()


def test_what_a_workload_refers_to_may_change_while_its_first_count_awaits_the_watches() -> None:
    for turns in range(4):
        world = World()
        put(world, "PodTemplate", "x")
        put(world, "Rollout", "l", label="a")
        put(world, "ReplicaSet", "r", maker=2)
        for name in ("p", "u"):
            # Two pods of one replica are believed only once the watches have caught up.
            put(world, "Pod", name, maker=0)
        world.settle("a", None, check=False)
        world.go_on(turns)
        put(world, "PodTemplate", "x", 3)
        world.look(None)
        world.teardown()


def test_a_released_pod_is_charged_to_the_group_that_paid_and_to_no_other() -> None:
    """Its namespace has a default, and its claim changes."""
    world = World()
    put(world, "DeviceClass", "g", odd=True)
    put(world, "ResourceClaim", "k")
    put(world, "ReplicaSet", "r", label="a")
    put(world, "Pod", "p", 2, maker=0)
    world.look(None)
    put(world, "Pod", "p", 2)
    put(world, "Namespace", "o", label="b")
    world.look(None)
    uid = world.stored["p"]["metadata"]["uid"]
    assert [uid in world.ledgers.of(group).usages for group in GROUPS] == [True, False]
    put(world, "ResourceClaim", "k", 3)
    world.look(None)
    delete(world, "Pod", "p")
    world.look(None)
    world.teardown()


def test_the_group_that_pays_for_a_released_pod_pays_for_those_it_makes_later() -> None:
    world = World()
    by_pod = OWNERS["Pod"].index("p")
    put(world, "ReplicaSet", "r", 3, label="a")
    put(world, "Pod", "p", maker=0)
    put(world, "Pod", "v", maker=by_pod, label="b")
    world.look(None)
    delete(world, "Pod", "v")
    put(world, "Pod", "p")
    put(world, "Pod", "v", maker=by_pod, label="b")
    world.look(None)
    assert not world.ledgers.of("b").usages
    assert world.stored["p"]["metadata"]["uid"] in world.ledgers.of("a").usages
    world.teardown()


def test_what_an_owner_that_paid_nothing_left_is_charged_to_the_group_of_its_label_at_once() -> None:
    world = World()
    put(world, "ReplicaSet", "r")
    put(world, "Pod", "p", maker=0, label="a")
    delete(world, "ReplicaSet", "r")
    world.look(None)
    assert [*world.ledgers.of("a").usages] == [world.stored["p"]["metadata"]["uid"]]
    world.teardown()


def test_a_pod_that_is_seen_before_its_owner_is_charged_to_no_other_group_meanwhile() -> None:
    world = World()
    put(world, "Namespace", "o", label="b")
    put(world, "ReplicaSet", "r", label="a", late=True)
    put(world, "Pod", "p", maker=0)
    world.look(None)
    assert not world.ledgers.of("b").usages
    assert [*world.ledgers.of("a").usages] == [world.stored["r"]["metadata"]["uid"]]
    world.teardown()


def test_what_is_charged_to_nobody_is_forgotten_once_it_goes_with_the_journal_full() -> None:
    world = World()
    put(world, "Deployment", "d", label="a")
    world.look(None)
    put(world, "Deployment", "d")
    world.look(None)
    world.overflow()
    delete(world, "Deployment", "d")
    world.look(None)
    assert not world.costs.remembered()
    world.teardown()
