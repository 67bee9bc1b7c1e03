"""Run the stand-ins: watch every change, queue the objects that it concerns, and work off the queue.

It decides order and retries only. It queues keys, not events, and never gives one key to two workers, so that a
stand-in always acts on stored objects.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import structlog

from sandbox.admission import Call
from sandbox.api import SYSTEM, Api
from sandbox.controllers import DAEMONSETS, REPLICASETS, Children, Controllers
from sandbox.garbage import Collector, empty_namespace
from sandbox.kinds import NAMESPACES, PODS
from sandbox.kubelet import NODES, Kubelet, node
from sandbox.status import ApiError
from sandbox.storage import ADDED, DELETED, Event, Item, Kind

Json = dict[str, Any]
Task = tuple[str, Kind, str, str]  # action, kind, namespace, name

_CLAIMED = (PODS, REPLICASETS)
_WORKERS = 4
_FIRST_RETRY, _LAST_RETRY = 0.05, 5.0

log = structlog.get_logger(__name__)


class Manager:
    """`async with Manager(api)`: the stand-ins work until the end of the block."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue: dict[Task, None] = {}
        self._busy: set[Task] = set()
        self._filled = asyncio.Event()
        self._retries: dict[Task, int] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._owned: defaultdict[str, dict[tuple[Kind, str, str], None]] = defaultdict(dict)
        #: Pods and ReplicaSets without a controller, by kind and namespace.
        self._orphaned: defaultdict[tuple[Kind, str], dict[str, None]] = defaultdict(dict)
        self._kubelet = Kubelet(api)
        self._ends_moved = asyncio.Event()
        self._controllers = Controllers(api, Children(self._children, self._orphans))
        self._collector = Collector(api, self._dependents)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        nodes = self._api.kinds.find("", "nodes")
        if nodes is not None:
            for name, gpu, count in NODES:
                await self._api.create(Call(SYSTEM), nodes, "", node(name, gpu, count, self._api.clock.stamp()))
        self._api.store.listeners.append(self._changed)
        loop = asyncio.get_running_loop()
        workers = [loop.create_task(self._work()) for _ in range(_WORKERS)]
        self._tasks = [*workers, loop.create_task(self._end_pods())]

    async def stop(self) -> None:
        self._api.store.listeners.remove(self._changed)
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # From a change to keys

    def _changed(self, kind: Kind, event: Event) -> None:
        namespace, name = event.key
        meta = event.item.obj["metadata"]
        self._index(kind, event)
        if kind == ("", "nodes"):
            for item in self._api.store.items(DAEMONSETS):
                daemonset = item.obj["metadata"]
                self._add(("control", DAEMONSETS, daemonset["namespace"], daemonset["name"]))
        if event.type == DELETED:
            for dependent in list(self._owned.get(meta["uid"], ())):
                self._add(("collect", *dependent))
        else:
            if self._controllers.handles(kind):
                self._add(("control", kind, namespace, name))
            if kind == PODS:
                self._add(("pod", kind, namespace, name))
            if kind == NAMESPACES and "deletionTimestamp" in meta:
                self._add(("namespace", kind, "", name))
            if "deletionTimestamp" in meta or (event.type == ADDED and meta.get("ownerReferences")):
                self._add(("collect", kind, namespace, name))
        if kind in _CLAIMED and event.type != DELETED and not _controller(meta):
            self._offer(kind, event)
        before = event.before.obj["metadata"] if event.before is not None else {}
        for owner in (*(meta.get("ownerReferences") or ()), *(before.get("ownerReferences") or ())):
            resource = self._api.kinds.by_kind(owner.get("apiVersion", ""), owner.get("kind", ""))
            if resource is None:
                continue
            where = namespace if resource.namespaced else ""
            if self._controllers.handles(resource.store) and owner.get("controller"):
                self._add(("control", resource.store, where, owner["name"]))
            if event.type == DELETED:
                self._add(("collect", resource.store, where, owner["name"]))
                if resource.store == REPLICASETS:
                    self._wake_makers(namespace, owner["name"])

    def _wake_makers(self, namespace: str, name: str) -> None:
        """Queue what owns a ReplicaSet: under Recreate it waits until the pods are gone."""
        item = self._api.store.get(REPLICASETS, namespace, name)
        for owner in (item.obj["metadata"].get("ownerReferences") or ()) if item is not None else ():
            resource = self._api.kinds.by_kind(owner.get("apiVersion", ""), owner.get("kind", ""))
            if resource is not None and self._controllers.handles(resource.store):
                self._add(("control", resource.store, namespace, owner["name"]))

    def _offer(self, kind: Kind, event: Event) -> None:
        """Queue the controllers that would adopt an object that nothing controls."""
        namespace, _ = event.key
        meta = event.item.obj["metadata"]
        before = event.before.obj["metadata"] if event.before is not None else None
        if before is not None and all(before.get(f) == meta.get(f) for f in ("labels", "ownerReferences")):
            return
        for resource in self._api.kinds:
            if not self._controllers.handles(resource.store):
                continue
            for item in self._api.store.items(resource.store, namespace):
                if self._controllers.claims(resource.store, kind, item.obj, event.item.obj):
                    self._add(("control", resource.store, namespace, item.obj["metadata"]["name"]))

    def _index(self, kind: Kind, event: Event) -> None:
        entry = (kind, *event.key)
        for item in (event.before, event.item):
            for owner in (item.obj["metadata"].get("ownerReferences") or ()) if item is not None else ():
                self._owned[owner.get("uid", "")].pop(entry, None)
        if event.type != DELETED:
            for owner in event.item.obj["metadata"].get("ownerReferences") or ():
                self._owned[owner.get("uid", "")][entry] = None
        if kind in _CLAIMED:
            namespace, name = event.key
            self._orphaned[kind, namespace].pop(name, None)
            if event.type != DELETED and not _controller(event.item.obj["metadata"]):
                self._orphaned[kind, namespace][name] = None

    def _orphans(self, kind: Kind, namespace: str) -> list[Item]:
        found = (self._api.store.get(kind, namespace, name) for name in self._orphaned.get((kind, namespace), ()))
        return [item for item in found if item is not None]

    def _dependents(self, uid: str) -> list[tuple[Kind, Item]]:
        found: list[tuple[Kind, Item]] = []
        for kind, namespace, name in self._owned.get(uid, ()):
            item = self._api.store.get(kind, namespace, name)
            if item is not None:
                found.append((kind, item))
        return found

    def _children(self, uid: str, kind: Kind) -> list[Item]:
        return [
            item
            for found, item in self._dependents(uid)
            if found == kind
            and any(
                owner.get("uid") == uid and owner.get("controller")
                for owner in item.obj["metadata"].get("ownerReferences") or ()
            )
        ]

    # Work

    def _add(self, task: Task) -> None:
        self._queue[task] = None
        self._filled.set()

    async def _work(self) -> None:
        while True:
            while (task := next((task for task in self._queue if task not in self._busy), None)) is None:
                self._filled.clear()
                await self._filled.wait()
            del self._queue[task]
            self._busy.add(task)
            try:
                done = await self._do(task)
            except ApiError as error:
                if error.code != 409:
                    log.debug("a stand-in was refused", task=task, message=error.message)
                done = False
            except Exception:
                log.exception("a stand-in failed", task=task)
                done = False
            finally:
                self._busy.discard(task)
                if self._queue:
                    self._filled.set()
            if done:
                self._retries.pop(task, None)
            else:
                self._later(task)
            await asyncio.sleep(0)

    async def _do(self, task: Task) -> bool:
        what, kind, namespace, name = task
        match what:
            case "control":
                await self._controllers.reconcile(kind, namespace, name)
            case "pod":
                await self._kubelet.sync(namespace, name)
                self._ends_moved.set()
            case "collect":
                await self._collector.check(kind, namespace, name)
            case "namespace":
                return await empty_namespace(self._api, name)
        return True

    def _later(self, task: Task) -> None:
        """Retry after a delay that doubles."""
        count = self._retries[task] = self._retries.get(task, 0) + 1
        # The exponent is bounded, too: a float does not hold the power of a task that fails a thousand times.
        delay = min(_LAST_RETRY, _FIRST_RETRY * 2 ** min(count - 1, 16))

        def again() -> None:
            self._timers.discard(timer)
            self._add(task)

        timer = asyncio.get_running_loop().call_later(delay, again)
        self._timers.add(timer)

    async def _end_pods(self) -> None:
        while True:
            self._ends_moved.clear()
            due = self._kubelet.due
            waiting = asyncio.ensure_future(self._ends_moved.wait())
            waits: set[asyncio.Future[Any]] = {waiting}
            if due is not None:
                waits.add(asyncio.ensure_future(self._api.clock.until(due)))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            try:
                await self._kubelet.end_due()
            except ApiError as error:
                log.debug("a pod could not be ended", message=error.message)
                await asyncio.sleep(_FIRST_RETRY)


def _controller(meta: Json) -> Json | None:
    return next((owner for owner in meta.get("ownerReferences") or () if owner.get("controller")), None)
