"""A scheduler and a kubelet in one, for a real API server without nodes: bind pods, run them, end them when told.

It honours the same annotation as the sandbox's kubelet: a pod is as slow to stop as it says. So a grace of a day is a
pod that stays for a day, on both.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson

from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Unreachable
from sandbox.clock import parse_time, rfc3339
from sandbox.controllers import pinned_node
from sandbox.kubelet import LOST, RUN_SECONDS, STOP_SECONDS
from tests.support.objects import NODES, PODS, Object

NODE = "stand-in"
_HEARTBEAT = 10.0
#: Seconds after which it reads all pods again: a watch may have missed one.
_RELIST = 30


class Agent:
    """Takes every pod of the cluster as far as it can go. It has one node, and no bound on what runs there."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        #: The pods that are being worked on, and the version of each that came meanwhile.
        self._busy: dict[str, Object | None] = {}

    async def run(self) -> None:
        """Work until cancelled; raises what ended any part of it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            await self._watch(group)

    async def _beat(self) -> None:
        while True:
            now = rfc3339(datetime.now(UTC))
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": "KubeletReady"}
            room = {"cpu": "10k", "memory": "10Ti", "pods": "100k"}
            status = {"conditions": [ready], "capacity": room, "allocatable": room}
            with contextlib.suppress(ApiError, Unreachable):
                await self._client.patch(NODES, NODE, {"status": status}, subresource="status")
                # The node lifecycle controller taints a node until it has seen it ready.
                await self._client.patch(NODES, NODE, {"spec": {"taints": None}})
            await asyncio.sleep(_HEARTBEAT)

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                items, version = await self._client.list(PODS)
                for item in items:
                    self._take(group, item)
                async with contextlib.aclosing(
                    self._client.watch(PODS, resource_version=version, timeout_seconds=_RELIST)
                ) as events:
                    async for what, obj in events:
                        if what in ("ADDED", "MODIFIED"):
                            self._take(group, obj)
            except (ApiError, Unreachable):
                await asyncio.sleep(0.1)

    def _take(self, group: asyncio.TaskGroup, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._busy:
            self._busy[uid] = pod
            return
        self._busy[uid] = None
        group.create_task(self._work(uid, pod))

    async def _work(self, uid: str, pod: Object) -> None:
        latest: Object | None = pod
        try:
            while latest is not None:
                self._busy[uid] = None
                try:
                    await self._sync(latest)
                    latest = self._busy[uid]
                except (ApiError, Unreachable):
                    # No event need follow: somebody else's write may have been the last one.
                    await asyncio.sleep(0.1)
                    # What the watch shows from here on may be newer than what is read.
                    self._busy[uid] = None
                    stored = await self._stored(latest)
                    latest = self._busy[uid] or stored
        finally:
            del self._busy[uid]

    async def _stored(self, pod: Object) -> Object | None:
        """Return the pod as it is stored now, None where it is gone."""
        metadata = pod["metadata"]
        try:
            found = await self._client.get(PODS, metadata["name"], metadata["namespace"])
        except NotFound:
            return None
        except (ApiError, Unreachable):
            return pod
        return found if found["metadata"]["uid"] == metadata["uid"] else None

    async def _sync(self, pod: Object) -> None:
        metadata, status = pod["metadata"], pod.get("status") or {}
        bound = pod["spec"].get("nodeName")
        if bound == LOST:
            return
        if "deletionTimestamp" in metadata:
            if bound:
                await self._stop(pod)
        elif not bound:
            if not pod["spec"].get("schedulingGates"):
                await self._bind(pod)
        elif status.get("phase") == "Pending":
            # Somebody may have had it fail meanwhile.
            await self._status(pod, "Running", "True", resourceVersion=metadata["resourceVersion"])
        elif status.get("phase") == "Running" and (seconds := _annotated(pod, RUN_SECONDS)) is not None:
            await asyncio.sleep(seconds)
            await self._status(pod, "Succeeded", "False")

    async def _bind(self, pod: Object) -> None:
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"kind": "Node", "apiVersion": "v1", "name": pinned_node(pod) or NODE},
        }
        path = PODS.path(metadata["namespace"], metadata["name"], "binding")
        await self._client.request("POST", path, body=orjson.dumps(body))

    async def _stop(self, pod: Object) -> None:
        metadata = pod["metadata"]
        grace = metadata.get("deletionGracePeriodSeconds") or 0
        takes = min(_annotated(pod, STOP_SECONDS) or 0.0, grace)
        stops = parse_time(metadata["deletionTimestamp"]).timestamp() - grace + takes
        while (left := stops - time.time()) > 0:
            if self._busy[metadata["uid"]] is not None:
                return
            await asyncio.sleep(min(left, 0.2))
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            never_ran = (pod.get("status") or {}).get("phase") == "Pending"
            await self._status(pod, "Failed" if never_ran else "Succeeded", "False")
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        path = PODS.path(metadata["namespace"], metadata["name"])
        await self._client.request("DELETE", path, body=orjson.dumps(options))

    async def _status(self, pod: Object, phase: str, ready: str, **preconditions: str) -> None:
        now = rfc3339(datetime.now(UTC))
        conditions = [
            {"type": name, "status": ready, "lastTransitionTime": now} for name in ("Ready", "ContainersReady")
        ]
        status: dict[str, Any] = {"phase": phase, "conditions": conditions, "startTime": now}
        metadata = pod["metadata"]
        kind = "application/strategic-merge-patch+json"
        body = {"metadata": {"uid": metadata["uid"], **preconditions}, "status": status}
        await self._client.patch(
            PODS, metadata["name"], body, namespace=metadata["namespace"], subresource="status", content_type=kind
        )


def _annotated(pod: Object, name: str) -> float | None:
    text = (pod["metadata"].get("annotations") or {}).get(name)
    return float(text) if text is not None else None


@contextlib.asynccontextmanager
async def agent(client: KubeClient) -> AsyncIterator[Agent]:
    """Run the agent and its node beside the block."""
    with contextlib.suppress(AlreadyExists):
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    running = Agent(client)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(NotFound):
            await client.delete(NODES, NODE)
