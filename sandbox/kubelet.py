"""Stand in for scheduler and kubelet: bind pods to nodes, run them and end them.

It decides a pod's status. A pod annotated `sandbox.bizrq/run-seconds` ends Succeeded that many seconds of the
sandbox's clock after it was scheduled, at exactly that time; any other pod runs until it is deleted. One annotated
`sandbox.bizrq/stop-seconds` takes so long to stop, at most its grace period; any other stops at once. Pods bound to the
node `lost` stay as they are: nobody runs or stops them.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta
from typing import Any

from sandbox.admission import Call, User
from sandbox.api import Api
from sandbox.clock import parse_time, rfc3339
from sandbox.controllers import ended, pinned_node
from sandbox.kinds import PODS
from sandbox.status import ApiError

Json = dict[str, Any]

RUN_SECONDS = "sandbox.bizrq/run-seconds"
STOP_SECONDS = "sandbox.bizrq/stop-seconds"
LOST = "lost"  # the node of pods that nobody runs or stops
FAIL = "sandbox.bizrq/fail"  # annotated "true", the pod ends Failed instead
NODES: tuple[tuple[str, str | None, int], ...] = (
    ("node-1", "NVIDIA-A100-SXM4-80GB", 8),
    ("node-2", "NVIDIA-A100-SXM4-80GB", 8),
    ("node-3", "Tesla-T4", 8),
    ("node-4", None, 0),
)


def node(name: str, gpu: str | None, count: int, now: str) -> Json:
    """Return a Node with its status, its cards labelled as GPU feature discovery does."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    allocatable = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "2Ti", "pods": "500"}
    if gpu:
        labels["nvidia.com/gpu.product"] = gpu
        labels["nvidia.com/gpu.count"] = str(count)
        allocatable["nvidia.com/gpu"] = str(count)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.36.0-bizrq-sandbox",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


class Kubelet:
    """Place and run pods. `due` is the earliest known end; `end_due` ends the pods whose time has come."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ends: list[tuple[datetime, str, str, str]] = []  # a heap
        self._expected: set[tuple[datetime, str]] = set()  # the times and uids in it
        self._next = 0
        self._address = 0
        self._scheduler = Call(User("system:kube-scheduler", ("system:authenticated",)))

    async def sync(self, namespace: str, name: str) -> None:
        """Take one pod as far as it can go now."""
        item = self._api.store.get(PODS, namespace, name)
        if item is None:
            return
        pod = item.obj
        bound = (pod.get("spec") or {}).get("nodeName")
        if bound == LOST:
            return
        if "deletionTimestamp" in pod["metadata"]:
            await self._remove(pod)
        elif not bound:
            if not pod["spec"].get("schedulingGates"):
                await self._bind(pod)
        elif (pod.get("status") or {}).get("phase") == "Pending":
            await self._write(pod, self._running(pod))
        elif not ended(pod):
            self._expect_end(pod)

    @property
    def due(self) -> datetime | None:
        return self._ends[0][0] if self._ends else None

    async def end_due(self) -> None:
        while self._ends and self._ends[0][0] <= self._api.clock.now():
            when, namespace, name, uid = heapq.heappop(self._ends)
            self._expected.discard((when, uid))
            item = self._api.store.get(PODS, namespace, name)
            if item is None or item.obj["metadata"]["uid"] != uid:
                continue
            try:
                if "deletionTimestamp" in item.obj["metadata"]:
                    await self._remove(item.obj)
                elif not ended(item.obj):
                    await self._write(item.obj, _ended(item.obj, rfc3339(when)))
            except ApiError:  # refused: the end is still due
                self._due_at(when, item.obj)
                raise

    async def _bind(self, pod: Json) -> None:
        target = self._choose(pod)
        if target is None:
            return
        meta = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"kind": "Node", "name": target},
        }
        await self._api.bind(self._scheduler, meta["namespace"], meta["name"], body)

    def _choose(self, pod: Json) -> str | None:
        """Choose in turn among the nodes that the selector allows; prefer those with the wanted devices."""
        nodes = [item.obj for item in self._api.store.items(("", "nodes"))]
        if pinned := pinned_node(pod):
            return pinned
        wanted = (pod["spec"].get("nodeSelector") or {}).items()
        nodes = [n for n in nodes if wanted <= (n["metadata"].get("labels") or {}).items()]
        nodes = [n for n in nodes if not (n.get("spec") or {}).get("unschedulable")]
        devices = {
            name
            for container in pod["spec"].get("containers") or ()
            for name in (container.get("resources") or {}).get("limits") or ()
            if "/" in name
        }
        equipped = [n for n in nodes if devices <= ((n.get("status") or {}).get("allocatable") or {}).keys()]
        nodes = equipped or nodes
        if not nodes:
            return None
        self._next += 1
        return nodes[self._next % len(nodes)]["metadata"]["name"]

    def _running(self, pod: Json) -> Json:
        now = self._api.clock.stamp()
        status = dict(pod.get("status") or {})
        self._address += 1
        high, low = divmod(self._address, 250)
        address = f"10.{(high // 250) % 250}.{high % 250}.{low + 1}"
        kept = [c for c in status.get("conditions") or () if c.get("type") == "PodScheduled"]
        status |= {
            "phase": "Running",
            "startTime": now,
            "hostIP": "127.0.0.1",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": kept
            + [_condition(kind, "True", now) for kind in ("Initialized", "Ready", "ContainersReady")],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container.get("image", ""),
                    "imageID": "",
                    "containerID": f"sandbox://{pod['metadata']['uid']}/{container['name']}",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
                for container in pod["spec"].get("containers") or ()
            ],
        }
        return status

    def _expect_end(self, pod: Json) -> None:
        seconds = (pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
        scheduled = next((c for c in (pod.get("status") or {}).get("conditions") or ()
                          if c.get("type") == "PodScheduled"), None)  # fmt: skip
        if seconds is None or scheduled is None:
            return
        try:
            end = parse_time(scheduled["lastTransitionTime"]) + timedelta(seconds=float(seconds))
        except (ValueError, OverflowError):
            return
        self._due_at(end, pod)

    def _due_at(self, when: datetime, pod: Json) -> None:
        meta = pod["metadata"]
        if (when, meta["uid"]) not in self._expected:
            self._expected.add((when, meta["uid"]))
            heapq.heappush(self._ends, (when, meta["namespace"], meta["name"], meta["uid"]))

    async def _remove(self, pod: Json) -> None:
        """End the containers of a pod that is being deleted, and remove it unless finalizers hold it."""
        meta = pod["metadata"]
        if not ended(pod) and (stops := _stops(pod)) > self._api.clock.now():
            self._due_at(stops, pod)
            return
        if not ended(pod) and pod["spec"].get("nodeName"):
            await self._write(pod, _ended(pod, self._api.clock.stamp()))
        if meta.get("deletionGracePeriodSeconds") == 0:
            return
        call = _kubelet_call(pod)
        resource = self._api.kinds.find(*PODS)
        if resource is None:
            return
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        try:
            await self._api.delete(call, resource, meta["namespace"], meta["name"], options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def _write(self, pod: Json, status: Json) -> None:
        resource = self._api.kinds.find(*PODS)
        meta = pod["metadata"]
        if resource is None:
            return
        try:
            await self._api.replace(
                _kubelet_call(pod), resource, meta["namespace"], meta["name"], {**pod, "status": status}, "status"
            )
        except ApiError as error:
            if error.code != 404:
                raise


def _stops(pod: Json) -> datetime:
    """Return when the containers of a pod that is being deleted have stopped."""
    meta = pod["metadata"]
    latest, grace = parse_time(meta["deletionTimestamp"]), meta.get("deletionGracePeriodSeconds") or 0
    try:
        takes = float((meta.get("annotations") or {}).get(STOP_SECONDS, 0))
    except ValueError:
        takes = 0.0
    return latest - timedelta(seconds=grace - min(max(takes, 0.0), grace))


def _kubelet_call(pod: Json) -> Call:
    return Call(User(f"system:node:{pod['spec'].get('nodeName', '')}", ("system:nodes", "system:authenticated")))


def _condition(kind: str, state: str, now: str, reason: str = "") -> Json:
    condition: Json = {"type": kind, "status": state, "lastProbeTime": None, "lastTransitionTime": now}
    return {**condition, "reason": reason} if reason else condition


def _ended(pod: Json, when: str) -> Json:
    """Return the status of the pod after its containers ended at that time; one that never started has failed."""
    status = dict(pod["status"])
    started = bool(status.get("containerStatuses"))
    failed = not started or (pod["metadata"].get("annotations") or {}).get(FAIL) == "true"
    reason, code = ("Error", 1) if failed else ("Completed", 0)
    status["phase"] = "Failed" if failed else "Succeeded"
    over = ("Ready", "ContainersReady")
    kept = [c for c in status.get("conditions") or () if c.get("type") not in over]
    status["conditions"] = kept + [_condition(kind, "False", when, "PodCompleted") for kind in over]
    statuses: list[Json] = []
    for container in status.get("containerStatuses") or ():
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt", when)
        terminated = {
            "exitCode": code,
            "reason": reason,
            "startedAt": min(started, when),
            "finishedAt": when,
            "containerID": container.get("containerID", ""),
        }
        statuses.append({**container, "ready": False, "started": False, "state": {"terminated": terminated}})
    status["containerStatuses"] = statuses
    return status
