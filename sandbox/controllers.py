"""Stand in for the workload controllers: make and remove an object's pods (and ReplicaSets), and write its status.

It decides which children exist. It reconciles from stored objects, as the real controllers do, and writes through the
same API, so that admission sees its writes. kubelet.py decides where pods run and when they end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sandbox import rollouts
from sandbox.admission import Call, User
from sandbox.api import Api
from sandbox.kinds import PODS, Resource
from sandbox.selectors import Matcher, compile_selector
from sandbox.status import ApiError
from sandbox.storage import Item, Kind

Json = dict[str, Any]

REPLICASETS: Kind = ("apps", "replicasets")
REPLICATION_CONTROLLERS: Kind = ("", "replicationcontrollers")
DAEMONSETS: Kind = ("apps", "daemonsets")
STATEFULSETS: Kind = ("apps", "statefulsets")
JOBS: Kind = ("batch", "jobs")
#: The kind that each controller claims by its selector.
_CLAIMED: dict[Kind, Kind] = {
    ("apps", "deployments"): REPLICASETS,
    ("argoproj.io", "rollouts"): REPLICASETS,
    **dict.fromkeys((REPLICASETS, REPLICATION_CONTROLLERS, STATEFULSETS, DAEMONSETS, JOBS), PODS),
}
_REVISION = "controller-revision-hash"
_HASH_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Children:
    """The objects that a uid controls, by kind, and those of a namespace that nothing controls; kept by the manager."""

    of: Callable[[str, Kind], list[Item]]
    orphans: Callable[[Kind, str], list[Item]]


def service_account(name: str) -> Call:
    groups = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
    return Call(User(f"system:serviceaccount:kube-system:{name}", groups))


def _spec(obj: Json) -> Json:
    return obj.get("spec") or {}


def _status(obj: Json) -> Json:
    return obj.get("status") or {}


def phase(pod: Json) -> str:
    return _status(pod).get("phase", "Pending")


def ended(pod: Json) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def active(pod: Json) -> bool:
    return not ended(pod) and "deletionTimestamp" not in pod["metadata"]


def ready(pod: Json) -> bool:
    conditions = _status(pod).get("conditions") or ()
    return active(pod) and any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def matcher(kind: Kind, obj: Json) -> Matcher | None:
    """Return the selector by which a controller claims its children; None claims nothing."""
    selector = _spec(obj).get("selector")
    if kind == REPLICATION_CONTROLLERS:
        selector = {"matchLabels": selector or (_spec(obj).get("template") or {}).get("metadata", {}).get("labels")}
    try:
        return compile_selector(selector if isinstance(selector, dict) else None)
    except ApiError:
        return None


def owner_reference(owner: Json) -> Json:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def conditions_after(old: Iterable[Json], wanted: Iterable[tuple[str, bool, str]], now: str) -> list[Json]:
    """Return the conditions with these (type, status, reason) set; keep the transition time of an unchanged status."""
    result = list(old)
    for kind, true, reason in wanted:
        state = "True" if true else "False"
        at = next((i for i, c in enumerate(result) if c.get("type") == kind), None)
        fresh = {
            "type": kind,
            "status": state,
            "reason": reason,
            "message": reason,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }
        if at is None:
            result.append(fresh)
        elif result[at].get("status") != state or result[at].get("reason") != reason:
            if result[at].get("status") == state:
                fresh["lastTransitionTime"] = result[at].get("lastTransitionTime", now)
            result[at] = fresh
    return result


class Controllers:
    """One reconcile function for each kind; `reconcile` runs the right one for a stored object."""

    def __init__(self, api: Api, children: Children) -> None:
        self._api = api
        self._children = children
        self._by_kind = {
            ("apps", "deployments"): self._deployment,
            ("argoproj.io", "rollouts"): self._deployment,
            REPLICASETS: self._replica_set,
            REPLICATION_CONTROLLERS: self._replica_set,
            ("apps", "statefulsets"): self._stateful_set,
            DAEMONSETS: self._daemon_set,
            ("batch", "jobs"): self._job,
            ("kubeflow.org", "tfjobs"): self._tfjob,
        }

    def handles(self, kind: Kind) -> bool:
        return kind in self._by_kind

    async def reconcile(self, kind: Kind, namespace: str, name: str) -> None:
        """Bring the children and the status of one object in line with its spec; after an ApiError, retry later."""
        item = self._api.store.get(kind, namespace, name)
        resource = self._api.kinds.find(*kind)
        if item is None or resource is None or "deletionTimestamp" in item.obj["metadata"]:
            return
        # Source: kubernetes plugin/pkg/auth/authorizer/rbac/bootstrappolicy/controller_policy.go.
        name_of_account = "replication" if kind == REPLICATION_CONTROLLERS else resource.singular
        call = service_account(f"{name_of_account}-controller")
        await self._claim(call, kind, item.obj)
        await self._by_kind[kind](call, resource, item.obj)

    def claims(self, kind: Kind, child: Kind, obj: Json, orphan: Json) -> bool:
        """Return True where an object would adopt an orphan (kubernetes pkg/controller/controller_ref_manager.go)."""
        if _CLAIMED.get(kind) != child or "deletionTimestamp" in obj["metadata"]:
            return False
        if "deletionTimestamp" in orphan["metadata"] or (child == PODS and ended(orphan)):
            return False
        matches = matcher(kind, obj)
        if matches is None or not matches(orphan["metadata"].get("labels") or {}):
            return False
        return kind != STATEFULSETS or _is_member(obj, orphan)

    async def _claim(self, call: Call, kind: Kind, obj: Json) -> None:
        """Release the children that the selector no longer matches, and adopt orphans that it does."""
        child, matches = _CLAIMED.get(kind), matcher(kind, obj)
        if child is None or matches is None:
            return
        meta = obj["metadata"]
        for item in self._children.of(meta["uid"], child):
            if "deletionTimestamp" in item.obj["metadata"] or (child == PODS and ended(item.obj)):
                continue
            if not matches(item.obj["metadata"].get("labels") or {}):
                owners = item.obj["metadata"].get("ownerReferences") or ()
                await self._own(call, child, item.obj, [each for each in owners if each.get("uid") != meta["uid"]])
        for item in self._children.orphans(child, meta["namespace"]):
            if self.claims(kind, child, obj, item.obj):
                owners = item.obj["metadata"].get("ownerReferences") or ()
                await self._own(call, child, item.obj, [*owners, owner_reference(obj)])

    async def _own(self, call: Call, kind: Kind, obj: Json, owners: list[Json]) -> None:
        meta = obj["metadata"]
        body = {"metadata": {"uid": meta["uid"], "ownerReferences": owners or None}}
        resource = self._builtin(*kind)
        try:
            await self._api.patch(call, resource, meta["namespace"], meta["name"], "application/merge-patch+json", body)
        except ApiError as error:
            if error.code != 404:
                raise

    # Writing

    async def _create_pod(
        self, call: Call, owner: Json, template: Json, *, name: str = "", labels: Json | None = None
    ) -> None:
        resource = self._builtin("", "pods")
        meta = dict(template.get("metadata") or {})
        for field in ("name", "namespace", "creationTimestamp"):
            meta.pop(field, None)
        meta |= {"name": name} if name else {"generateName": owner["metadata"]["name"] + "-"}
        meta["labels"] = {**(meta.get("labels") or {}), **(labels or {})}
        meta["ownerReferences"] = [owner_reference(owner)]
        namespace = owner["metadata"]["namespace"]
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.get("spec") or {}}
        await self._api.create(call, resource, namespace, body)

    async def _delete_pod(self, call: Call, pod: Json) -> None:
        meta = pod["metadata"]
        try:
            await self._api.delete(
                call,
                self._builtin("", "pods"),
                meta["namespace"],
                meta["name"],
                {"preconditions": {"uid": meta["uid"]}},
            )
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def _write_status(self, call: Call, resource: Resource, obj: Json, status: Json) -> None:
        if status == _status(obj):
            return
        meta = obj["metadata"]
        body = {**obj, "apiVersion": resource.api_version, "status": status}
        await self._api.replace(call, resource, meta["namespace"], meta["name"], body, "status")

    def _builtin(self, group: str, plural: str) -> Resource:
        resource = self._api.kinds.find(group, plural)
        if resource is None:
            raise RuntimeError(f"{plural} are not served")
        return resource

    def _pods(self, owner: Json) -> list[Json]:
        return [item.obj for item in self._children.of(owner["metadata"]["uid"], PODS)]

    async def _resize(self, call: Call, obj: Json, wanted: int) -> None:
        """Keep this number of active pods of the template; those that do not run go first, then the youngest."""
        pods = list(filter(active, self._pods(obj)))
        for _ in range(wanted - len(pods)):
            await self._create_pod(call, obj, _spec(obj).get("template") or {})
        pods.sort(key=lambda pod: (ready(pod), -int(pod["metadata"]["resourceVersion"])))
        for pod in pods[: max(0, len(pods) - wanted)]:
            await self._delete_pod(call, pod)

    async def _align(self, call: Call, obj: Json, wanted: Mapping[str, _Pod]) -> None:
        """Make the pods of these names that are missing, and delete the active ones of other names."""
        pods = {pod["metadata"]["name"]: pod for pod in self._pods(obj)}
        for name, (template, labels) in wanted.items():
            if name not in pods:
                await self._create_pod(call, obj, template, name=name, labels=labels)
        for name, pod in pods.items():
            if name not in wanted and active(pod):
                await self._delete_pod(call, pod)

    # Deployments and Rollouts

    async def _deployment(self, call: Call, resource: Resource, obj: Json) -> None:
        """Bring the ReplicaSets one step on: recreate, roll or scale, as the strategy says."""
        spec, template = _spec(obj), _spec(obj).get("template")
        owned = sorted(
            (item.obj for item in self._children.of(obj["metadata"]["uid"], REPLICASETS)),
            key=lambda rs: (rs["metadata"]["creationTimestamp"], int(_revision(rs)), rs["metadata"]["name"]),
        )
        current = next((rs for rs in owned if _is_current(resource, obj, rs)), None)
        limits = _limits(resource, spec)
        status = self._deployment_status(resource, obj, owned, current)
        if isinstance(template, dict) and "deletionTimestamp" not in obj["metadata"]:
            if current is None and not spec.get("paused"):
                if not await self._make_way(call, obj, owned, limits):
                    replicas = rollouts.first_size(limits, [rollouts.size(rs) for rs in owned])
                    if not await self._create_replica_set(call, resource, obj, replicas, limits, owned):
                        status["collisionCount"] = status.get("collisionCount", 0) + 1
            elif owned:
                await self._next_sizes(call, obj, owned, current, limits)
        await self._write_status(call, resource, obj, status)

    async def _next_sizes(
        self, call: Call, obj: Json, owned: list[Json], current: Json | None, limits: rollouts.Bounds
    ) -> None:
        sizes = [rollouts.size(rs) for rs in owned]
        newest = owned.index(current) if current is not None else None
        if newest is None or _spec(obj).get("paused") or rollouts.is_scaled(limits, sizes):
            wanted = rollouts.scaled(limits, sizes, newest, _status(obj).get("replicas", 0))
        elif await self._make_way(call, obj, [rs for rs in owned if rs is not current], limits):
            return
        else:
            old = [number for number in range(len(owned)) if number != newest]
            grown, others = rollouts.rolled(limits, sizes[newest], [sizes[number] for number in old])
            wanted = [0] * len(owned)
            wanted[newest] = grown
            for number, replicas in zip(old, others, strict=True):
                wanted[number] = replicas
        for replica_set, replicas in zip(owned, wanted, strict=True):
            await self._scale_replica_set(call, replica_set, replicas, limits)

    async def _make_way(self, call: Call, obj: Json, old: list[Json], limits: rollouts.Bounds) -> bool:
        """Under Recreate, scale the old ReplicaSets to 0 and return True until their pods are gone."""
        if (_spec(obj).get("strategy") or {}).get("type") != "Recreate":
            return False
        for replica_set in old:
            await self._scale_replica_set(call, replica_set, 0, limits)
        return any(not ended(pod) for replica_set in old for pod in self._pods(replica_set))

    async def _create_replica_set(
        self, call: Call, resource: Resource, obj: Json, replicas: int, limits: rollouts.Bounds, owned: list[Json]
    ) -> bool:
        """Create the ReplicaSet of the present template; False where another has its name."""
        spec, meta = _spec(obj), obj["metadata"]
        digest = _template_hash(spec["template"], _status(obj).get("collisionCount"))
        key = _HASH_LABELS[resource.group == "apps"]
        template = dict(spec["template"])
        inner = dict(template.get("metadata") or {})
        inner["labels"] = {**(inner.get("labels") or {}), key: digest}
        template["metadata"] = inner
        selector = spec.get("selector") or {}
        labels = {**(selector.get("matchLabels") or {}), key: digest}
        prefix = "deployment.kubernetes.io" if resource.group == "apps" else "rollout.argoproj.io"
        revision = 1 + max((int(_revision(rs)) for rs in owned), default=0)
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "labels": inner["labels"],
                "annotations": {f"{prefix}/revision": str(revision), **_noted(limits)},
                "ownerReferences": [owner_reference(obj)],
            },
            "spec": {
                "replicas": replicas,
                "selector": {**selector, "matchLabels": labels},
                "template": template,
            },
        }
        try:
            await self._api.create(call, self._builtin(*REPLICASETS), meta["namespace"], body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return False
        return True

    async def _scale_replica_set(self, call: Call, replica_set: Json, replicas: int, limits: rollouts.Bounds) -> None:
        meta = replica_set["metadata"]
        noted = _noted(limits) if replicas else {}
        annotations = meta.get("annotations") or {}
        if _spec(replica_set).get("replicas") == replicas and noted.items() <= annotations.items():
            return
        change = {"spec": {"replicas": replicas}, "metadata": {"annotations": noted}}
        await self._api.patch(
            call,
            self._builtin(*REPLICASETS),
            meta["namespace"],
            meta["name"],
            "application/merge-patch+json",
            change,
        )

    def _deployment_status(self, resource: Resource, obj: Json, owned: list[Json], current: Json | None) -> Json:
        def total(field: str) -> int:
            return sum(_status(rs).get(field, 0) for rs in owned)

        wanted = _spec(obj).get("replicas", 1)
        available = total("availableReplicas")
        updated = _status(current).get("replicas", 0) if current else 0
        generation: Any = obj["metadata"].get("generation", 0)
        counts = {
            "replicas": total("replicas"),
            "updatedReplicas": updated,
            "readyReplicas": total("readyReplicas"),
            "availableReplicas": available,
        }
        status: Json = {"observedGeneration": generation, **_above_zero(counts)}
        if "collisionCount" in _status(obj):
            status["collisionCount"] = _status(obj)["collisionCount"]
        if resource.group != "apps":  # a Rollout's generation is a string, and its scale reads the other two
            labels = (_spec(obj).get("selector") or {}).get("matchLabels") or {}
            selector = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
            status |= {"observedGeneration": str(generation), "selector": selector, "HPAReplicas": updated}
        done = updated == wanted == available
        reasons = (
            ("Available", available >= wanted, "MinimumReplicasAvailable" if available >= wanted
             else "MinimumReplicasUnavailable"),
            ("Progressing", True, "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"),
        )  # fmt: skip
        status["conditions"] = conditions_after(_status(obj).get("conditions") or (), reasons, self._api.clock.stamp())
        return status

    # ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets

    async def _replica_set(self, call: Call, resource: Resource, obj: Json) -> None:
        spec, meta = _spec(obj), obj["metadata"]
        problem: ApiError | None = None
        try:
            await self._resize(call, obj, spec.get("replicas", 1))
        except ApiError as error:
            problem = error
        status: Json = {"observedGeneration": meta.get("generation", 0)}
        status |= _count(self._pods(obj), _REPLICA_SET_COUNTS)
        if problem is not None:
            # The first failure stays (replica_set_utils.go, calculateStatus): each message names another pod.
            failed = [c for c in _status(obj).get("conditions") or () if c.get("type") == "ReplicaFailure"]
            if not failed:
                now = self._api.clock.stamp()
                failed = conditions_after((), [("ReplicaFailure", True, "FailedCreate")], now)
                failed[0]["message"] = problem.message
            status["conditions"] = failed
        latest = self._api.store.get(resource.store, meta["namespace"], meta["name"])
        if latest is not None:
            await self._write_status(call, resource, latest.obj, status)
        if problem is not None:
            raise problem

    async def _stateful_set(self, call: Call, resource: Resource, obj: Json) -> None:
        """Keep one pod for each ordinal: of the current revision below the partition, of the latest elsewhere."""
        spec, name = _spec(obj), obj["metadata"]["name"]
        start, replicas = (spec.get("ordinals") or {}).get("start", 0), spec.get("replicas", 1)
        strategy, latest = spec.get("updateStrategy") or {}, await self._revision(call, obj)
        rolls = strategy.get("type", "RollingUpdate") == "RollingUpdate"
        first = start + ((strategy.get("rollingUpdate") or {}).get("partition", 0) if rolls else 0)
        current = self._stored_revision(obj, _status(obj).get("currentRevision")) or latest
        wanted: dict[str, _Pod] = {}
        for ordinal in range(start, start + replicas):
            revision = current if ordinal < first else latest
            labels = {
                "apps.kubernetes.io/pod-index": str(ordinal),
                "statefulset.kubernetes.io/pod-name": f"{name}-{ordinal}",
                _REVISION: revision["metadata"]["name"],
            }
            wanted[f"{name}-{ordinal}"] = (revision["data"]["spec"]["template"], labels)
        await self._align(call, obj, wanted)
        for ordinal in range(first, start + replicas) if rolls else ():
            pod = next((pod for pod in self._pods(obj) if pod["metadata"]["name"] == f"{name}-{ordinal}"), None)
            if pod is not None and active(pod) and not _is_of(latest)(pod):
                await self._delete_pod(call, pod)
        status = {
            "observedGeneration": obj["metadata"].get("generation", 0),
            **_count(self._pods(obj), _STATEFUL_SET_COUNTS),
            "currentReplicas": sum(map(_is_of(current), self._pods(obj))),
            "updatedReplicas": sum(map(_is_of(latest), self._pods(obj))),
            "currentRevision": current["metadata"]["name"],
            "updateRevision": latest["metadata"]["name"],
        }
        if rolls and status["updatedReplicas"] == status["readyReplicas"] == status["replicas"] == replicas:
            status |= {"currentReplicas": replicas, "currentRevision": status["updateRevision"]}
        await self._write_status(call, resource, obj, status)

    def _stored_revision(self, obj: Json, name: str | None) -> Json | None:
        resource, namespace = self._builtin("apps", "controllerrevisions"), obj["metadata"]["namespace"]
        item = self._api.store.get(resource.store, namespace, name) if name else None
        return item.obj if item is not None else None

    async def _revision(self, call: Call, obj: Json) -> Json:
        """Return the stored revision of a template; create it where there is none."""
        name = f"{obj['metadata']['name']}-{_template_hash(_spec(obj).get('template') or {})}"
        if (stored := self._stored_revision(obj, name)) is not None:
            return stored
        body = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": name, "ownerReferences": [owner_reference(obj)]},
            "data": {"spec": {"template": {**(_spec(obj).get("template") or {}), "$patch": "replace"}}},
            "revision": 1,
        }
        resource = self._builtin("apps", "controllerrevisions")
        return (await self._api.create(call, resource, obj["metadata"]["namespace"], body)).obj

    async def _daemon_set(self, call: Call, resource: Resource, obj: Json) -> None:
        """Keep one pod, pinned by node affinity, for each node that the template selects and tolerates."""
        template = _spec(obj).get("template") or {}
        wanted_labels = (template.get("spec") or {}).get("nodeSelector") or {}
        tolerations = (template.get("spec") or {}).get("tolerations") or []
        nodes = [
            item.obj["metadata"]["name"]
            for item in self._api.store.items(("", "nodes"))
            if wanted_labels.items() <= (item.obj["metadata"].get("labels") or {}).items()
            and all(_tolerated(taint, tolerations) for taint in _spec(item.obj).get("taints") or ())
        ]
        # One that is being deleted keeps its node until it is gone (podsShouldBeOnNode).
        pods = {pinned_node(pod): pod for pod in self._pods(obj) if not ended(pod)}
        for node in nodes:
            if node not in pods:
                affinity = _node_affinity(node)
                pinned = {**template, "spec": {**(template.get("spec") or {}), "affinity": affinity}}
                await self._create_pod(call, obj, pinned)
        for node, pod in pods.items():
            if node not in nodes and active(pod):
                await self._delete_pod(call, pod)
        status = {
            "observedGeneration": obj["metadata"].get("generation", 0),
            "desiredNumberScheduled": len(nodes),
            **_count(self._pods(obj), _DAEMON_SET_COUNTS),
        }
        await self._write_status(call, resource, obj, status)

    # Jobs and TFJobs

    async def _job(self, call: Call, resource: Resource, obj: Json) -> None:
        spec, status, now = _spec(obj), dict(_status(obj)), self._api.clock.stamp()
        if not _has_condition(status, "Complete", "Failed"):
            pods = self._pods(obj)
            state = _job_state(spec, pods)
            await self._resize(call, obj, _job_size(spec, pods) if state == "Running" else 0)
            earlier = status.get("conditions") or []
            if earlier or state != "Running":
                status["conditions"] = conditions_after(earlier, _JOB_CONDITIONS[state], now)
            if state == "Running":
                status.setdefault("startTime", now)
            elif state == "Suspended":
                status.pop("startTime", None)
            elif state == "Complete":
                status["completionTime"] = now
        counts = _count(self._pods(obj), _JOB_COUNTS)
        status = {name: value for name, value in status.items() if name not in counts} | _above_zero(counts)
        await self._write_status(call, resource, obj, status)

    async def _tfjob(self, call: Call, resource: Resource, obj: Json) -> None:
        """Keep a pod for each role and index, until the workers have succeeded, or the chief where there is one."""
        spec, status, meta = _spec(obj), dict(_status(obj)), obj["metadata"]
        if _has_condition(status, "Succeeded", "Failed"):
            return
        roles: Json = spec.get("tfReplicaSpecs") or {}
        suspended = (spec.get("runPolicy") or {}).get("suspend") is True
        wanted = {
            f"{meta['name']}-{role.lower()}-{index}": (_tf_template(replica or {}), _tf_labels(meta, role, index))
            for role, replica in roles.items()
            for index in range(0 if suspended else (replica or {}).get("replicas", 1))
        }
        await self._align(call, obj, wanted)
        pods = self._pods(obj)
        status["replicaStatuses"] = {
            role: _above_zero(_count((pod for pod in pods if _role(pod) == role.lower()), _TFJOB_COUNTS))
            for role in roles
        }
        state = "Suspended" if suspended else _tfjob_state(roles, status["replicaStatuses"], pods)
        now = self._api.clock.stamp()
        changes = list(_TFJOB_CONDITIONS[state])
        earlier = status.get("conditions") or []
        if state == "Running":
            status.setdefault("startTime", now)
            if any(condition.get("type") == "Suspended" for condition in earlier):
                changes.insert(1, ("Suspended", False, "TFJobResumed"))
        elif state == "Succeeded":
            status["completionTime"] = now
        status["conditions"] = conditions_after(earlier, changes, now)
        await self._write_status(call, resource, obj, status)


# Which pods a field of a status counts.

_Pod = tuple[Json, Json]  # a template and the labels to add
_Counts = Mapping[str, Callable[[Json], bool]]


def _has_succeeded(pod: Json) -> bool:
    return phase(pod) == "Succeeded"


def _has_failed(pod: Json) -> bool:
    return phase(pod) == "Failed"


_REPLICA_SET_COUNTS: _Counts = {"replicas": active, "readyReplicas": ready, "availableReplicas": ready}
_STATEFUL_SET_COUNTS: _Counts = _REPLICA_SET_COUNTS
_DAEMON_SET_COUNTS: _Counts = {
    "currentNumberScheduled": active,
    "updatedNumberScheduled": active,
    "numberReady": ready,
    "numberAvailable": ready,
}
_JOB_COUNTS: _Counts = {"active": active, "ready": ready, "succeeded": _has_succeeded, "failed": _has_failed}
_TFJOB_COUNTS: _Counts = {"active": active, "succeeded": _has_succeeded, "failed": _has_failed}


def _count(pods: Iterable[Json], counts: _Counts) -> dict[str, int]:
    found = list(pods)
    return {name: sum(map(test, found)) for name, test in counts.items()}


def _is_of(revision: Json) -> Callable[[Json], bool]:
    """Return for which pods of a StatefulSet it is their revision."""
    name = revision["metadata"]["name"]
    return lambda pod: active(pod) and (pod["metadata"].get("labels") or {}).get(_REVISION) == name


def _above_zero(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


# The conditions (type, status, reason) of each state of a job.

_JOB_CONDITIONS: dict[str, tuple[tuple[str, bool, str], ...]] = {
    "Failed": (("Failed", True, "BackoffLimitExceeded"),),
    "Complete": (("Complete", True, "CompletionsReached"),),
    "Suspended": (("Suspended", True, "JobSuspended"),),
    "Running": (("Suspended", False, "JobResumed"),),
}
_CREATED = ("Created", True, "TFJobCreated")
_TFJOB_CONDITIONS: dict[str, tuple[tuple[str, bool, str], ...]] = {
    "Created": (_CREATED,),
    "Running": (_CREATED, ("Running", True, "TFJobRunning")),
    "Suspended": (_CREATED, ("Running", False, "TFJobSuspended"), ("Suspended", True, "TFJobSuspended")),
    "Succeeded": (_CREATED, ("Running", False, "TFJobRunning"), ("Succeeded", True, "TFJobSucceeded")),
}


def _has_condition(status: Json, *types: str) -> bool:
    return any(c.get("type") in types and c.get("status") == "True" for c in status.get("conditions") or ())


def _job_state(spec: Json, pods: list[Json]) -> str:
    counts, completions = _count(pods, _JOB_COUNTS), spec.get("completions")
    if counts["failed"] > spec.get("backoffLimit", 6):
        return "Failed"
    if completions is None and counts["succeeded"] and not counts["active"]:
        return "Complete"
    if completions is not None and counts["succeeded"] >= completions:
        return "Complete"
    return "Suspended" if spec.get("suspend") else "Running"


def _job_size(spec: Json, pods: list[Json]) -> int:
    """Return how many pods a job that is running has at once."""
    counts, parallelism, completions = _count(pods, _JOB_COUNTS), spec.get("parallelism", 1), spec.get("completions")
    if spec.get("podReplacementPolicy") == "Failed":
        parallelism -= sum(not ended(pod) and not active(pod) for pod in pods)
    if completions is not None:
        return max(0, min(parallelism, completions - counts["succeeded"]))
    return counts["active"] if counts["succeeded"] else max(0, parallelism)


def _tfjob_state(roles: Json, statuses: Json, pods: list[Json]) -> str:
    leading = next((role for role in roles if role.lower() in ("chief", "master")), "Worker")
    count = (roles.get(leading) or {}).get("replicas", 1) if leading in roles else 0
    if count and statuses[leading].get("succeeded", 0) >= count:
        return "Succeeded"
    return "Running" if any(map(ready, pods)) else "Created"


_HASH_LABELS = ("rollouts-pod-template-hash", "pod-template-hash")


def _limits(resource: Resource, spec: Json) -> rollouts.Bounds:
    """Return a Deployment's bounds; a Rollout makes all new pods before the old ones go."""
    if resource.group == "apps":
        return rollouts.bounds(spec)
    replicas = spec.get("replicas", 1)
    return rollouts.Bounds(replicas, replicas, 0)


def _noted(limits: rollouts.Bounds) -> dict[str, str]:
    return {rollouts.DESIRED: str(limits.replicas), rollouts.MAX: str(limits.replicas + limits.surge)}


def _revision(replica_set: Json) -> str:
    annotations = replica_set["metadata"].get("annotations") or {}
    found = next((value for key, value in annotations.items() if key.endswith("/revision")), "")
    return found if found.isascii() and found.isdigit() else "0"


def _is_current(resource: Resource, obj: Json, replica_set: Json) -> bool:
    """Return True where a ReplicaSet has the template but for the hash (EqualIgnoreHash).

    A Rollout's template has no defaults in it, so that its ReplicaSets are known by their names.
    """
    template = _spec(obj).get("template")
    if resource.group == "apps":
        return _without_hash(_spec(replica_set).get("template")) == _without_hash(template)
    digest = _template_hash(template, _status(obj).get("collisionCount")) if isinstance(template, dict) else ""
    return replica_set["metadata"]["name"] == f"{obj['metadata']['name']}-{digest}"


def _without_hash(template: Any) -> Any:
    if not isinstance(template, dict):
        return template
    meta = template.get("metadata") or {}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key not in _HASH_LABELS}
    return {**template, "metadata": {**meta, "labels": labels}}


def _is_member(stateful_set: Json, pod: Json) -> bool:
    """Return True where the pod has the name of one of the StatefulSet's (isMemberOf)."""
    name, dash, ordinal = pod["metadata"]["name"].rpartition("-")
    return bool(dash) and name == stateful_set["metadata"]["name"] and ordinal.isascii() and ordinal.isdigit()


def _template_hash(template: Json, collisions: int | None = None) -> str:
    digest = hashlib.sha256(orjson.dumps([template, collisions or 0], option=orjson.OPT_SORT_KEYS)).digest()
    return "".join(_HASH_LETTERS[byte % len(_HASH_LETTERS)] for byte in digest[:10])


def _node_affinity(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _tolerated(taint: Json, tolerations: list[Json]) -> bool:
    """Return True where a DaemonSet's pod may run beside a taint; it tolerates the state of a node anyway."""
    return (
        taint.get("effect") == "PreferNoSchedule"
        or taint["key"].startswith("node.kubernetes.io/")
        or any(
            wanted.get("key", taint["key"]) == taint["key"]
            and (wanted.get("effect") or taint["effect"]) == taint["effect"]
            and (wanted.get("operator") == "Exists" or wanted.get("value", "") == taint.get("value", ""))
            for wanted in tolerations
        )
    )


def pinned_node(pod: Json) -> str:
    """Return the node that a DaemonSet's pod is made for, bound or not."""
    try:
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
    except (KeyError, IndexError, TypeError):
        return _spec(pod).get("nodeName", "")


def _tf_template(replica: Json) -> Json:
    """Return the template with the role's restart policy, as the training operator sets it."""
    template = replica.get("template") or {}
    policy = replica.get("restartPolicy") or "Never"
    return {
        **template,
        "spec": {**(template.get("spec") or {}), "restartPolicy": "Never" if policy == "ExitCode" else policy},
    }


def _tf_labels(meta: Json, role: str, index: int) -> Json:
    return {
        "training.kubeflow.org/job-name": meta["name"],
        "training.kubeflow.org/operator-name": "tfjob-controller",
        "training.kubeflow.org/replica-type": role.lower(),
        "training.kubeflow.org/replica-index": str(index),
    }


def _role(pod: Json) -> str:
    return (pod["metadata"].get("labels") or {}).get("training.kubeflow.org/replica-type", "")
