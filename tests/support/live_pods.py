"""Judge a group by the pods that there are: an oracle that asks no code of bizrq who pays.

It decides which pods are live and which are free, by the words of docs/ownership.md, from what is stored: phase,
node, times, and owners that exist. That a pod belongs to the group is the test's own knowledge: it names the group's
namespaces. Of the group it reads what is published: `hard`, `used` and the reservations.

- `over` = live - free - hard: what runs beyond the group's ceiling.
- `hidden` = live - free - (used + reservations): what runs and is counted nowhere.

`over` is taken at every revision of a pod. `hidden` compares two kinds, whose watches have no common order, and pods
that are deleted and replaced count from the moment the controller sees them: so what is judged while a scenario runs is
how long it stayed above 0 without a break. Once settled, both are judged strictly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bizrq.api import group as wire
from bizrq.kube.client import KubeClient, Resource, Unreachable
from bizrq.store.groups import GROUPS
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, PODS, REPLICASETS

Object = dict[str, Any]
#: Seconds for which pods may run uncounted in a row while a scenario runs: a recount, on a busy machine.
TOLERANCE = 5.0
#: Seconds after which a controller that is killed has stored what it saw.
UNSTORED = 1.0
#: How long a pod of a rollout is free from its creation.
FREE_SECONDS = 600.0
#: The grace of a pod that names none.
GRACE = 30
NANO = 1_000_000_000


@dataclass(frozen=True)
class Sample:
    """The cores of one moment, in millicores."""

    at: float
    live: int
    free: int
    hard: int
    taken: int
    #: Those of other groups that the same pods may be charged to.
    hard_of_others: int = 0
    taken_of_others: int = 0

    @property
    def over(self) -> int:
        return self.live - self.free - self.hard - self.hard_of_others

    @property
    def hidden(self) -> int:
        return self.live - self.free - self.taken - self.taken_of_others

    def __str__(self) -> str:
        others = f" and {self.hard_of_others}m" if self.hard_of_others else ""
        taken = f" and {self.taken_of_others}m" if self.hard_of_others else ""
        return (
            f"live {self.live}m, free {self.free}m, hard {self.hard}m{others}, used and reserved {self.taken}m{taken}: "
            f"over {self.over}m, hidden {self.hidden}m"
        )


@dataclass
class LivePods:
    """`async with LivePods(client, group, namespaces)`: watches the pods, owners and the group until its end.

    `now` is the cluster's time in seconds since 1970. Workloads of the namespaces may move between the group and the
    `others`: which of them pays is not judged here, but that all of it is charged and fits.
    """

    client: KubeClient
    group: str
    namespaces: Collection[str]
    now: Callable[[], float] = time.time
    others: Collection[str] = ()
    #: The largest `over` of any moment, and the longest time in seconds for which something was hidden.
    worst: Sample | None = None
    hidden_for: float = 0.0
    #: The moment of the longest hiding at which most was hidden.
    hidden_most: Sample | None = None
    last: Sample | None = None
    pods: dict[str, Object] = field(default_factory=dict)
    #: When a pod that was bound and had not ended went from the API.
    gone: dict[str, float] = field(default_factory=dict)
    changed_at: float = field(default_factory=time.monotonic)
    #: Those that were over when they were deleted once more: a deletion by force moves their time to the present.
    _over: set[str] = field(default_factory=set)
    _owners: dict[str, Object] = field(default_factory=dict)
    _published: dict[str, Object] = field(default_factory=dict)
    _hidden_since: float | None = None
    _hidden_worst: Sample | None = None
    _reached: dict[str, int] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> LivePods:
        for kind in (GROUPS, PODS, DEPLOYMENTS, REPLICASETS):
            items, version = await self.client.list(kind)
            for item in items:
                self._take(kind, "ADDED", item)
            self._reached[kind.key] = int(version)
            self._tasks.append(asyncio.create_task(self._watch(kind, version)))
        self._tasks.append(asyncio.create_task(self._sample()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, kind: Resource, version: str) -> None:
        while True:
            try:
                async with contextlib.aclosing(self.client.watch(kind, resource_version=version)) as events:
                    async for what, obj in events:
                        version = obj["metadata"]["resourceVersion"]
                        if what != "BOOKMARK":
                            self._take(kind, what, obj)
                        self._reached[kind.key] = int(version)
            except Unreachable:
                await asyncio.sleep(0.1)

    async def _sample(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(0.1)

    def _take(self, kind: Resource, what: str, obj: Object) -> None:
        metadata = obj["metadata"]
        uid = metadata["uid"]
        if kind is GROUPS:
            if metadata["name"] in (self.group, *self.others) and what != "DELETED":
                self._published[metadata["name"]] = obj
                self.sample()
            return
        if metadata["namespace"] not in self.namespaces:
            return
        if kind is not PODS:
            self._owners[uid] = obj
            if what == "DELETED":
                del self._owners[uid]
            return
        self.changed_at = time.monotonic()
        before = self.pods.get(uid)
        if before is not None and "deletionTimestamp" in metadata and not is_live(before, self.now()):
            self._over.add(uid)
        self.pods[uid] = obj
        if what == "DELETED":
            if has_ended(obj) or not is_bound(obj) or uid in self._over:
                del self.pods[uid]
            else:
                self.gone[uid] = self.now()
        self.sample()

    def live(self) -> list[Object]:
        """The pods that are live now; one whose time is over is forgotten."""
        now = self.now()
        for uid, at in list(self.gone.items()):
            if now >= at + own_grace(self.pods[uid]):
                del self.gone[uid], self.pods[uid]
        return [
            pod for uid, pod in self.pods.items() if uid in self.gone or (uid not in self._over and is_live(pod, now))
        ]

    def free(self, live: Iterable[Object]) -> int:
        """What a Deployment's two versions may run beside each other without being charged."""
        now, by_deployment = self.now(), defaultdict[str, list[tuple[str, Object]]](list)
        for pod in live:
            replica_set = self._owner(pod)
            deployment = self._owner(replica_set) if replica_set is not None else None
            is_fresh = "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["uid"] not in self.gone
            if replica_set is not None and deployment is not None and is_fresh:
                by_deployment[deployment["metadata"]["uid"]].append((replica_set["metadata"]["uid"], pod))
        total = 0
        for uid, pods in by_deployment.items():
            spec = self._owners[uid]["spec"]
            declared, versions = spec.get("replicas", 1), {version for version, _ in pods}
            beyond = min(len(pods) - declared, declared) if len(versions) > 1 else 0
            youngest = sorted(pods, key=lambda each: created(each[1]), reverse=True)[: max(0, beyond)]
            costs = [cost(pod) for _, pod in youngest if now - created(pod) < FREE_SECONDS]
            total += min(sum(costs), declared * cost(spec["template"]))
        return total

    def _owner(self, obj: Object) -> Object | None:
        """The object that controls another, where it is there."""
        owners = obj["metadata"].get("ownerReferences") or ()
        uid = next((owner["uid"] for owner in owners if owner.get("controller")), "")
        return self._owners.get(uid)

    def sample(self) -> Sample | None:
        """Compare once; None before the groups were counted."""
        own, others = self._amounts([self.group]), self._amounts(self.others)
        if own is None or others is None:
            return None
        live = self.live()
        found = self.last = Sample(time.monotonic(), sum(map(cost, live)), self.free(live), *own, *others)
        if self.worst is None or found.over > self.worst.over:
            self.worst = found
        self._time_hidden(found)
        return found

    def _amounts(self, names: Iterable[str]) -> tuple[int, int] | None:
        """What groups may use together, and what is used and reserved; None before all of them were counted."""
        hard = taken = 0
        for name in names:
            stored = self._published.get(name)
            account = wire.account_of(wire.from_dict(stored), CATALOG) if stored is not None else None
            if account is None or "limits.cpu" not in account.used:
                return None
            hard += account.hard.get("limits.cpu", 0)
            taken += account.taken("limits.cpu")
        return hard * 1000 // NANO, taken * 1000 // NANO

    def _time_hidden(self, found: Sample) -> None:
        if found.hidden <= 0:
            self._hidden_since = self._hidden_worst = None
            return
        if self._hidden_since is None:
            self._hidden_since = found.at
        if self._hidden_worst is None or found.hidden > self._hidden_worst.hidden:
            self._hidden_worst = found
        if found.at - self._hidden_since > self.hidden_for:
            self.hidden_for, self.hidden_most = found.at - self._hidden_since, self._hidden_worst

    def forgive(self, since: float) -> None:
        """Judge anew what is hidden: no controller has run since then, by the monotonic clock.

        The next one does not know the pods that were deleted by force meanwhile.
        """
        self.hidden_for, self._hidden_since = 0.0, None
        began = self.now() - (time.monotonic() - since) - UNSTORED
        for uid in [uid for uid, at in self.gone.items() if at >= began]:
            del self.gone[uid], self.pods[uid]

    async def caught_up(self) -> None:
        """Wait until the watches have brought what is stored now; raises what ended one of them."""
        for kind in (PODS, DEPLOYMENTS, REPLICASETS, GROUPS):
            items, _ = await self.client.list(kind)
            newest = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)

            async def here(kind: Resource = kind, newest: int = newest) -> bool:
                for task in self._tasks:
                    if task.done():
                        task.result()
                return self._reached[kind.key] >= newest

            await eventually(here, 30, f"the watch of {kind.key} reaches {newest}")

    async def settled(self, *, over: int = 0, ever: int = 0, quiet: float = 1.0, within: float = 8.0) -> Sample:
        """Wait until no pod changes for `quiet` seconds, and judge; raises AssertionError with the figures.

        `over` are the cores beyond `hard` that may still run then, and `ever` those that may have run at any moment.
        """
        await eventually(self._is_quiet(quiet), 60, "the pods come to rest")
        until = time.monotonic() + within
        while True:
            await self.caught_up()
            found = self.sample()
            assert found is not None, f"{self.group} was never counted"
            if (found.hidden <= 0 and found.over <= over * 1000) or time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        told = self.told()
        assert found.hidden <= 0, f"{-(-found.hidden // 1000)} cores run uncounted, settled: {found}\n{told}"
        assert found.over <= over * 1000, f"{found.over // 1000} cores run beyond hard, settled: {found}\n{told}"
        assert self.worst is not None
        assert self.worst.over <= max(over, ever) * 1000, f"cores ran beyond hard: {self.worst}"
        assert self.hidden_for <= TOLERANCE, f"pods ran uncounted for {self.hidden_for:.1f} s: {self.hidden_most}"
        return found

    def _is_quiet(self, quiet: float) -> Callable[[], Any]:
        async def rests() -> bool:
            return time.monotonic() - self.changed_at >= quiet

        return rests

    def told(self) -> str:
        """The first of the live pods, one on a line."""
        return "\n".join(f"  {_line(pod, self.gone)}" for pod in self.live()[:12])


def has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_live(pod: Object, now: float) -> bool:
    """Return True for a stored pod that is live at `now`, in seconds since 1970."""
    metadata = pod["metadata"]
    if has_ended(pod):
        return False
    if "deletionTimestamp" not in metadata:
        return True
    if not is_bound(pod):
        return False
    grace, at = metadata.get("deletionGracePeriodSeconds") or 0, _seconds(metadata["deletionTimestamp"])
    if grace * 10**9 >= 2**63:
        # The API server's time has wrapped around, and no kubelet ends such a pod.
        return True
    # A finalizer keeps a pod that is deleted by force: its node stops it with its own grace.
    return now < at + (grace if grace > 0 else own_grace(pod))


def own_grace(pod: Object) -> int:
    grace = pod["spec"].get("terminationGracePeriodSeconds")
    return GRACE if grace is None else grace if grace >= 0 else 1


def created(pod: Object) -> float:
    return _seconds(pod["metadata"]["creationTimestamp"])


def cost(pod: Object) -> int:
    """The limits.cpu of a pod or a template in millicores: what its containers add up to, or its largest first one.

    And what its RuntimeClass adds.
    """
    spec, status = pod["spec"], pod.get("status") or {}
    has = {each["name"]: each.get("resources") or {} for each in status.get("containerStatuses") or ()}
    containers = [
        max(_cpu(each.get("resources") or {}), _cpu(has.get(each["name"], {}))) for each in spec.get("containers") or ()
    ]
    first = [_cpu(each.get("resources") or {}) for each in spec.get("initContainers") or ()]
    return max(sum(containers), *first, 0) + _cpu({"limits": spec.get("overhead")})


def _cpu(resources: Object) -> int:
    text = str((resources.get("limits") or {}).get("cpu", "0"))
    return int(text.removesuffix("m")) if text.endswith("m") else int(float(text) * 1000)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _line(pod: Object, gone: Collection[str]) -> str:
    metadata = pod["metadata"]
    owners = [f"{owner['kind']}/{owner['name']}" for owner in metadata.get("ownerReferences") or ()]
    state = "gone" if metadata["uid"] in gone else "ending" if "deletionTimestamp" in metadata else "fresh"
    return (
        f"{metadata['namespace']}/{metadata['name']} {cost(pod)}m {state} labels {metadata.get('labels')} of {owners}"
    )
