"""Sums that are kept as objects change are what is counted from nothing, whatever happens in whatever order."""

from __future__ import annotations

import asyncio
from functools import cache
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
from bizrq.quota.recount import Sums
from bizrq.settings import Settings
from bizrq.settings import settings as settings_of
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from controller.usage.excess import Surplus
from controller.usage.observed_usage import Evidence
from controller.usage.usage_cache import Ask, Ledgers
from controller.usage.workload_cost import Costs
from controller.usage.workload_usage import Line, Lines, Run
from controller.watch.cluster import Cluster
from controller.watch.time_slice import Slices
from tests.controller.usage.test_excess import reference
from tests.support import objects
from tests.support.objects import Object

NOW = 1_800_000_000_000
KNOBS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100"]}, "T4": {"aliases": ["Tesla-T4"]}}}
GROUPS = ["a", "b"]
PRODUCT = {0: "Tesla-T4", 1: "NVIDIA-A100"}


class Quiet(KubeClient):
    """An API server whose watches are as new as it is."""

    async def revision(self, *_: object, **__: object) -> int:
        await asyncio.sleep(0)
        return 0


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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec, "status": {"phase": "Running"}}


def replica_set(size: int, odd: bool) -> Object:
    made = objects.deployment("", None, size + odd)
    return {**made, "kind": "ReplicaSet"}


def tfjob(size: int, odd: bool) -> Object:
    made = objects.tfjob("", "", size, gpu=int(odd))
    made["metadata"]["labels"] = {MODEL_LABELS["gpu"]: "A100"}
    return made


def deployment(size: int, odd: bool) -> Object:
    made = objects.deployment("", None, size)
    if size == 3:
        return objects.claiming(made, "m") if odd else objects.sharing(made, "k")
    # What nobody can count.
    return {**made, "spec": {**made["spec"], "replicas": "many"}} if odd and size == 0 else made


def claim(size: int, odd: bool) -> Object:
    made = objects.claim("", size)
    return {**made, "status": {"allocation": objects.allocation("d", pool="n")}} if odd else made


#: Each kind, its names, and one that asks for so much.
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
#: What some kinds are made by, or say that they are: most often by what makes such objects.
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
    """An API server's objects, watches that bring them late or by list, and sums that are settled slice by slice."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, str]] = []
        self.loop = asyncio.new_event_loop()
        self.revision = 0
        self.uids = count()
        self.stored: dict[str, Object] = {}
        #: Each as it was stored last, gone or not.
        self.known: dict[str, Object] = {}
        self.late: dict[str, list[tuple[str, Object]]] = {}
        client = Quiet(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, knobs().registry, lambda _group, _after: None)
        for informer in self.cluster.informers:
            informer.installed = True
        self.surplus = Surplus(self.cluster, knobs().counting)
        self.costs = self._costs()
        self.ledgers = Ledgers(self.cluster, self.costs, self._lines(self.costs), lambda: NOW, lambda: Slices(-1.0, 1))
        self.settling: dict[str, tuple[asyncio.Task[None], Run | None]] = {}

    def _costs(self) -> Costs:
        return Costs(self.cluster, self.surplus, knobs().counting, lambda: 0.0)

    def _lines(self, costs: Costs) -> Lines:
        return Lines(self.cluster, costs, Evidence(self.cluster, knobs().counting))

    def informer(self, kind: str) -> Informer:
        if kind == "Node":
            return self.cluster.nodes
        if kind == "ResourceSlice":
            return self.cluster.slices
        watched = self.cluster.related._watched
        return next(informer for (_, of), informer in watched.items() if of == kind)

    # -- The world -------------------------------------------------------------------------------------------------

    @initialize(names=st.lists(st.sampled_from(ALL), min_size=3, max_size=7, unique=True), owners=st.booleans())
    def begin(self, names: list[tuple[str, str]], owners: bool) -> None:
        """A few objects at a time, so that they have to do with each other; often some that make each other."""
        self.names = [*names, *([("Deployment", "d"), ("ReplicaSet", "r"), ("Pod", "p")] if owners else [])]

    @rule(
        which=st.integers(0, 100),
        size=st.integers(0, 3),
        odd=st.booleans(),
        label=st.sampled_from([None, "a", "a", "b"]),
        maker=st.sampled_from([None, 0, 0, 1, 2, 3]),
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
        """A list, as after an outage: what went in between is missing, and nobody says when."""
        kind = self.names[which % len(self.names)][0]
        self.late.pop(kind, None)
        informer = self.informer(kind)
        items = [informer._transformed(_copy(obj)) for obj in self.stored.values() if obj["kind"] == kind]
        informer._accept(items, int(self._next()), 0)

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
        """A look at a group begins, as far as none is on its way."""
        if group not in self.settling:
            runs = Run(HOUR, NOW + run * HOUR) if run is not None else None
            task = self.loop.create_task(self.ledgers.settle(Ask(group, runs), check=check))
            self.settling[group] = task, runs

    @rule(run=st.sampled_from([None, 1]))
    def look(self, run: int | None) -> None:
        """All groups, with nothing in between."""
        for group in GROUPS:
            self.settle(group, run, False)
        while self.settling:
            self.go_on(500)

    @precondition(lambda self: self.settling)
    @rule(turns=st.sampled_from([1, 2, 3, 5, 8, 500]))
    def go_on(self, turns: int) -> None:
        self.loop.run_until_complete(_turns(turns))
        for group, (task, run) in [*self.settling.items()]:
            if task.done():
                task.result()
                del self.settling[group]
                self._compare(group, run)

    @invariant()
    def nothing_was_kept_wrong(self) -> None:
        assert [self.ledgers.of(group).drift for group in GROUPS] == [[], []]

    def _compare(self, group: str, run: Run | None) -> None:
        """What is kept is what is counted now, by who knows no more than what workloads were last held at."""
        account = self.ledgers.of(group)
        found = self.loop.run_until_complete(self._counted(group, run))
        assert account.lines.keys() == found.keys()
        for uid, line in found.items():
            assert account.lines[uid].agrees(line), uid
            assert (uid in account.telling) == (line.words != Line(line.counted).words)
            assert (uid in account.claiming) == bool(line.shared or line.shown)
            assert (uid in account.unknown) == line.is_unknown
        assert account.sums.agrees(Sums(line.counted for line in found.values()))
        for line in found.values():
            assert account.sums.at(line.counted.slot) == line.counted

    async def _counted(self, group: str, run: Run | None) -> dict[str, Line]:
        self.cluster._payers.clear()
        costs = self._costs()
        costs._counted, costs._last = {**self.costs._counted}, {**self.costs._last}
        costs._users = {place: {**users} for place, users in self.costs._users.items()}
        lines = self._lines(costs)
        found: dict[str, Line] = {}
        for adapter, obj in self.cluster.charged_to(group):
            await costs.count(group, adapter, obj, {})
            found[obj["metadata"]["uid"]] = lines.of(adapter, obj, run, NOW)
        return found

    def teardown(self) -> None:
        """Once everything is told, what is kept is right, and a check of everything finds that, too."""
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
            assert self.costs._counted.keys() <= _uids(self.cluster)
        finally:
            for task, _ in self.settling.values():
                task.cancel()
            self.loop.close()


def _copy(obj: Object) -> Object:
    """As a watch brings it: nobody else has any part of it that they may change."""
    return {**obj, "metadata": {**obj["metadata"]}}


def _uids(cluster: Cluster) -> set[str]:
    return {obj["metadata"]["uid"] for informer in cluster.informers for obj in informer.store.values()}


async def _turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


TestWorld = World.TestCase
TestWorld.settings = hypothesis(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_another_device_in_a_slice_is_another_cost_of_those_who_have_it() -> None:
    world = World()
    for kind, name, size, odd in (
        ("DeviceClass", "g", 0, True),
        ("ResourceSlice", "i", 0, True),
        ("ResourceClaim", "k", 1, True),
        ("Pod", "p", 2, False),
        ("ResourceSlice", "i", 0, False),
    ):
        world.names = [(kind, name)]
        label = "a" if kind == "Pod" else None
        world.put(which=0, size=size, odd=odd, label=label, maker=None, anew=False, leaves=False, late=False)
        before = [*world.ledgers.of("a").claiming.values()]
        world.look(None)
    assert [line.shown for line in world.ledgers.of("a").claiming.values()] != [line.shown for line in before] != []
    world.teardown()
