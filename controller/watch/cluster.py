"""What the controller watches, and which groups want a recount when something changes.

This file alone decides what is kept of the cluster in memory, and who is above and below whom there. It counts nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import structlog

from bizrq.kube.client import KubeClient, Resource
from bizrq.kube.informer import Informer, Kept, Store, plain, uid_of
from bizrq.store.groups import GroupStore, without_managed_fields
from bizrq.store.reference_resolver import CONTEXT, NODES, SLICES, ReferenceResolver, resource_of, resources_of
from bizrq.units.slot import GROUP_SLOT_KIND, Slot
from bizrq.workloads.demand import observed
from bizrq.workloads.devices import dra, hami
from bizrq.workloads.kinds.declaration import Adapter, GroupKind
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import Reference, group_and_version, reference_of
from bizrq.workloads.owners import MAX_HOPS, charged_group, controller_of, owner_chain, payer
from bizrq.workloads.validation import Malformed
from controller.watch.invalidation import DirtySet, identity_of, node_devices, pool_of
from controller.watch.pods import Pod, SharedParts, equivalence_key, trimmed_pod

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: Seconds to wait for a watch that is behind what has to be seen.
CATCH_UP = 10.0
#: Owners that are gone whose group is remembered: far more than are deleted while a release is on its way.
_REMEMBERED = 10_000

POD: GroupKind = ("", "Pod")
REPLICASET: GroupKind = ("apps", "ReplicaSet")
CLAIM: GroupKind = ("resource.k8s.io", "ResourceClaim")

#: Seconds until a recount of what only came: it is reserved, so nobody waits, and one write counts a whole burst. What
#: goes or shrinks is counted at once: somebody may wait for the room.
UNHURRIED = 0.5


class Placement(NamedTuple):
    """A stored object and the groups that it is charged to. Where that is none only because its owner was deleted:
    since when, on the informers' clock.
    """

    adapter: Adapter | None = None
    obj: Object | None = None
    groups: Collection[str] = ()
    owner_deleted_at: float | None = None


NOT_STORED = Placement()


class Cluster:
    """Informers of groups, of every kind that is charged or stands between a workload and its pods, and of CONTEXT.

    `enqueue(group, after)` is called for whatever moves.
    """

    def __init__(
        self,
        client: KubeClient,
        registry: Registry,
        enqueue: Callable[[str, float], None],
        annotations: Iterable[str] = (),
    ) -> None:
        """`annotations` of pods are kept."""
        self.client = client
        self.registry = registry
        self._enqueue = enqueue
        #: What was written into the stores since it was counted.
        self.dirty = DirtySet()
        self.groups = GroupStore(client, on_change=self._group_changed)
        self.adapters = {adapter.resource: adapter for adapter in registry.charged}
        shapes = SharedParts(annotations)
        transforms = {POD: lambda pod: trimmed_pod(pod, shapes), REPLICASET: trimmed_replicaset}
        watched = {(a.group, a.kind): a for a in registry.adapters if registry.is_charged(a)}
        watched |= {kind: a for kind in transforms if (a := registry.by_kind(*kind)) is not None}
        self._kept = {
            kind: Informer(
                client,
                resource_of(adapter),
                others=resources_of(adapter)[1:],
                on_change=self._pod_changed if kind == POD else self.workload_changed,
                on_rollback=self._restored,
                indexes={"group": _label, "unlabelled": self._unlabelled, "owner": _controller_uid},
                transform=transforms.get(kind, without_managed_fields),
                sorts={"owner": equivalence_key} if kind == POD else None,
            )
            for kind, adapter in watched.items()
        }
        self.workloads = {key: self._kept[a.group, a.kind] for key, a in self.adapters.items()}
        self.pods = self._kept[POD]
        context = {
            resource: Informer(
                client,
                resource,
                on_change=self._claim_changed if kind == CLAIM else self._reference_changed,
                on_rollback=self._restored,
                indexes={"pod": _owning_pods, "group": _claiming} if kind == CLAIM else None,
                transform=without_managed_fields,
            )
            for resource in CONTEXT
            if (kind := (resource.group, resource.kind)) not in self._kept
        }
        #: What is counted from, by `plural.group`: a status says of each of them how far it had been seen.
        self.counted_from = {
            GROUP_SLOT_KIND: self.groups.informer,
            **{watched[kind].resource: informer for kind, informer in self._kept.items()},
            **{resource.key: informer for resource, informer in context.items()},
        }
        kept = {(resource.group, resource.kind): informer for resource, informer in context.items()}
        self.resolver = ReferenceResolver(
            client, registry, on_change=self._context_changed, kept={**self._kept, **kept}
        )
        self.claims = self.resolver.informer_of(CLAIM)
        self.nodes = Informer(client, NODES, on_change=self._node_changed, transform=trimmed_node)
        self.slices = Informer(
            client, SLICES, on_change=lambda _old, _new: None, indexes={"pool": _pool}, transform=trimmed_slice
        )
        for kind, informer in self._kept.items():
            informer.store.on_write = self.dirty.on_pod if kind == POD else self.dirty.on_object
        for informer in (*context.values(), *self.resolver.informers):
            informer.store.on_write = self.dirty.on_reference
        self.nodes.store.on_write = self.dirty.on_node
        self.slices.store.on_write = self.dirty.on_slice
        #: Counts the changes of what bears on every workload (LimitRanges and the like).
        self.context = 0
        #: Who pays for what an owner made, by the kind that is made, where, and the owner, until any owner changes.
        self._payers: dict[tuple[object, ...], Reference | None] = {}
        #: The uids of those owners, gone or yet to come among them.
        self._owners_asked: set[object] = set()
        self._makes: dict[GroupKind, list[tuple[Adapter, Store]]] = {}
        #: By uid, what a group paid for until its controller let go of it without anybody paying from then on. It is
        #: counted there as long as it lives: the group's status tells the next process whose it was.
        self._detached: dict[str, tuple[str, Informer]] = {}
        #: Which group owners paid that are gone, by uid: their deletion may be seen before their children's release.
        self._paid: dict[str, str] = {}
        #: Called with (pod before, pod after) besides the queue: the meter notes ends.
        self.on_pod: Callable[[Pod | None, Pod | None], None] = lambda _old, _new: None
        #: Called with (workload before, after) where the group that it charges changed.
        self.on_move: Callable[[Object, Object], None] = lambda _old, _new: None
        #: Gives the groups whose workloads were counted by what has changed.
        self.users_of: Callable[[Reference], Iterable[str]] = lambda _reference: ()
        #: Asked for the group that pays for a claim: by its own label, or as the first whose workload names it.
        self.payer_of_claim: Callable[[Object], str | None] = claimed_by
        #: Called with (claim before, claim after) besides the queue: the meter notes ends.
        self.on_claim: Callable[[Object | None, Object | None], None] = lambda _old, _new: None

    def count_from(self, informer: Informer) -> None:
        """Watch one more kind that statuses are counted from, which others keep."""
        self.counted_from[informer.resource.key] = informer

    @property
    def informers(self) -> Sequence[Informer]:
        return [*self.counted_from.values(), *self.resolver.informers, self.nodes, self.slices]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run())

    def snapshot(self, kind: str) -> Store | None:
        """The store of a kind by `plural.group`; None for one that nothing is counted from."""
        informer = self.informer(kind)
        return informer.store if informer else None

    def informer(self, kind: str) -> Informer | None:
        return self.counted_from.get(kind)

    def resource(self, kind: str) -> Resource:
        """Where a kind that is counted from is stored. KeyError for any other."""
        return self.counted_from[kind].resource

    def charged_to(self, group: str) -> Iterator[tuple[Adapter, Object]]:
        """All stored objects of charged kinds that name the group, or stand in its namespaces and name none.

        What something above them pays for is not among them, nor what is about to go with its owner; what was let go
        of is.
        """
        for obj in self._released(group):
            adapter = self.registry.of(obj)
            if adapter is not None:
                yield adapter, obj
        named = [("group", group), *(("unlabelled", namespace) for namespace in self._namespaces_of(group))]
        for key, informer in self.workloads.items():
            for index, value in named:
                for kept in informer.store.kept_index(index, value):
                    if (obj := self._unpaid(kept)) is not None and self._owner_deleted_at(obj) is None:
                        yield self.adapters[key], obj

    def placement(self, uid: str) -> Placement:
        """The same of one object: which groups it is charged to."""
        kept, kind = next(
            ((found, kind) for kind, informer in self._kept.items() if (found := informer.store.kept(uid)) is not None),
            (None, None),
        )
        adapter = self.registry.by_kind(*kind) if kind is not None else None
        if kept is None or adapter is None:
            return NOT_STORED
        let_go = self._detached.get(uid)
        groups = {let_go[0]} if let_go is not None else set[str]()
        obj = self._unpaid(kept) if self.registry.is_charged(adapter) else None
        named = set(self._named_by(obj)) if obj is not None else set[str]()
        going_since = self._owner_deleted_at(obj) if obj is not None and named else None
        return Placement(adapter, plain(kept), groups | named if going_since is None else groups, going_since)

    def candidates(self) -> Iterator[str]:
        """The uids of all objects that some group may be charged for, each once or several times."""
        yield from self._detached
        for informer in self.workloads.values():
            yield from informer.store.indexed("group")
            yield from informer.store.indexed("unlabelled")

    def owned_by(self, uid: str) -> Iterator[str]:
        """The uids of all that name this one as their controller."""
        for informer in self._kept.values():
            yield from map(uid_of, informer.store.kept_index("owner", uid))

    def owner_of(self, obj: Object) -> str | None:
        """The uid of the controller that an object names."""
        return next(iter(_controller_uid(obj)), None)

    def owner_deleted_at(self, uid: str) -> float | None:
        """Return when the owner was deleted of what is not charged only because of that."""
        return self.placement(uid).owner_deleted_at

    def _unpaid(self, kept: Kept) -> Object | None:
        """An object, as far as nothing above it pays for it."""
        if isinstance(kept, Pod) and self._is_paid(kept):
            return None
        obj = plain(kept)
        return obj if self.payer_of(obj) is None else None

    def _named_by(self, obj: Object) -> Iterator[str]:
        """The group that an object names, or its namespace does where it names none."""
        yield from _label(obj)
        for name in self._unlabelled(obj):
            namespace = self.resolver.cached_lookup.get("", "Namespace", "", name)
            yield from _label(namespace) if namespace is not None else ()

    def _is_paid(self, pod: Pod) -> bool:
        """Whether it is known already that something above a pod pays: so it is with most that have the label."""
        owner = pod.owner
        return owner is not None and self._payers.get((POD[1], pod.namespace, owner.uid, owner.name)) is not None

    def group_of(self, obj: Object) -> str | None:
        """The group that an object charges if nothing above it pays; None for a label that is none, too."""
        try:
            group = charged_group(obj, self.resolver.cached_lookup)
        except Malformed:
            return None
        if group is None and (kept := self._detached.get(obj["metadata"]["uid"])) is not None:
            return kept[0]
        return group

    def detached_of(self, group: str) -> list[tuple[Slot, str]]:
        """What the group goes on paying for though nothing there says so: places and uids."""
        found = [(self.registry.of(obj), obj["metadata"]) for obj in self._released(group)]
        return [(Slot(a.resource, m["namespace"], m["name"]), m["uid"]) for a, m in found if a is not None]

    def adopt_detached(self, group: str, detached: Iterable[tuple[Slot, str]]) -> None:
        """Take over what another process has seen let go of, as far as it is there and nobody pays for it."""
        for slot, uid in detached:
            informer = self.counted_from.get(slot.kind) if uid not in self._detached else None
            obj = informer.store.by_uid(uid) if informer is not None else None
            if informer is not None and obj is not None and self.group_of(self.payer_of(obj) or obj) is None:
                self._detached[uid] = group, informer
                self.dirty.mark(uid)

    def unowned_above(self, obj: Object) -> tuple[Slot, str] | None:
        """The place and uid of the top-most object above this one, or of itself, that has no controller above it."""
        top = obj
        for owner, _, _ in owner_chain(obj, self.registry, self.resolver.cached_lookup):
            top = owner
        adapter, metadata = self.registry.of(top), top["metadata"]
        if adapter is None or controller_of(metadata) is not None:
            return None
        return Slot(adapter.resource, metadata["namespace"], metadata["name"]), metadata["uid"]

    def _released(self, group: str) -> list[Object]:
        found = (kept.store.by_uid(uid) for uid, (named, kept) in self._detached.items() if named == group)
        return [obj for obj in found if obj is not None]

    def made_by(self, owner: Object, kind: GroupKind) -> Sequence[Object]:
        """The stored objects of a kind that name this one as their controller."""
        informer = self._kept.get(kind)
        return list(informer.store.index("owner", owner["metadata"]["uid"])) if informer is not None else ()

    def payer_of(self, obj: Object) -> Object | None:
        """The top-most object that pays for this one, None where it pays for itself."""
        reference = controller_of(obj["metadata"])
        if reference is None:
            return None
        key = obj.get("kind"), obj["metadata"].get("namespace", ""), reference.get("uid"), reference.get("name")
        if key not in self._payers:
            self._payers[key] = self._top(obj)
            self._owners_asked.add(key[2])
        found = self._payers[key]
        return self.resolver.cached_lookup.get(*found) if found is not None else None

    def _forget_payers(self) -> None:
        self._payers.clear()
        self._owners_asked.clear()

    def _top(self, obj: Object) -> Reference | None:
        found, lookup = obj, self.resolver.cached_lookup
        for _ in range(MAX_HOPS):
            above = payer(found, self.registry, lookup)
            if above is None:
                break
            found = above
        return reference_of(found) if found is not obj else None

    def pods_of(self, workload: Object) -> list[Pod]:
        """The pods below a workload, itself if it is one, however many owners stand between."""
        top = self.registry.of(workload)
        if top is not None and (top.group, top.kind) == POD:
            return [pod] if (pod := self.pod(workload["metadata"]["uid"])) is not None else []
        return [pod for uid in self._owners_of_pods(workload) for pod in self.pods_made_by(uid)]

    def grouped_pods_of(self, workload: Object) -> list[tuple[Pod, int]]:
        """One of each sort of those pods, and how many there are. A pod that owns claims is like no other."""
        top, owners = self.registry.of(workload), self.claims.store.keys("pod")
        if top is not None and (top.group, top.kind) == POD:
            return [(pod, 1) for pod in self.pods_of(workload)]
        return [found for uid in self._owners_of_pods(workload) for found in self.grouped_pods_made_by(uid, owners)]

    def pods_made_by(self, uid: str) -> Collection[Pod]:
        """The pods that name an object as their controller."""
        return cast("Collection[Pod]", self.pods.store.kept_index("owner", uid))

    def grouped_pods_made_by(self, uid: str, apart: Container[str] = ()) -> list[tuple[Pod, int]]:
        return cast("list[tuple[Pod, int]]", self.pods.store.grouped("owner", uid, apart))

    def _owners_of_pods(self, workload: Object) -> Iterator[str]:
        """The uids of a workload, and of all below it, whose pods are its own."""
        top = self.registry.of(workload)
        if top is None:
            return
        level, through_pods = [(top, workload["metadata"]["uid"])], "Pod" in top.pods.owner_chain
        for _ in range(MAX_HOPS):
            below: list[tuple[Adapter, str]] = []
            for above, uid in level:
                for adapter, store in self._made(above):
                    is_pod = (adapter.group, adapter.kind) == POD
                    if is_pod:
                        yield uid
                    if through_pods or not is_pod:
                        below.extend((adapter, uid_of(child)) for child in store.kept_index("owner", uid))
            if not below:
                return
            level = below

    def _made(self, adapter: Adapter) -> list[tuple[Adapter, Store]]:
        """The kinds that one makes or lets through, as far as they are watched."""
        kind = adapter.group, adapter.kind
        if kind not in self._makes:
            below = sorted({*adapter.creates, *adapter.passes})
            known = [(self.registry.by_kind(*made), self._kept.get(made)) for made in below]
            self._makes[kind] = [(found, informer.store) for found, informer in known if found and informer]
        return self._makes[kind]

    def children_of(self, workload: Object, kinds: Iterable[GroupKind]) -> list[Object]:
        """What a workload made itself of these kinds."""
        return [obj for kind in sorted(kinds) for obj in self.made_by(workload, kind)]

    def claims_of(self, group: str) -> list[Object]:
        """The claims that name the group themselves."""
        return list(self.claims.store.index("group", group))

    def pod(self, uid: str) -> Pod | None:
        return cast("Pod | None", self.pods.store.kept(uid))

    def workload_of(self, pod: Object) -> tuple[Adapter, Object] | None:
        """What pays for a pod, if it names a group: something above it, or itself; None if its owner is gone."""
        found = self.payer_of(pod)
        if found is None and self.group_of(pod) is None and self._is_left_behind(pod):
            return None
        found = found or pod
        adapter = self.registry.of(found)
        return (adapter, found) if adapter is not None else None

    def _is_left_behind(self, obj: Object) -> bool:
        """Whether an object's controller is there no more."""
        reference = controller_of(obj["metadata"])
        store = self._store_of(reference) if reference is not None else None
        return store is not None and reference is not None and store.by_uid(str(reference.get("uid"))) is None

    def _owner_deleted_at(self, obj: Object) -> float | None:
        """Return when an object's controller was deleted: the garbage collector takes the object or the reference.

        Until then it is as little charged as whatever made it. A controller that was only never seen proves nothing.
        """
        reference = controller_of(obj["metadata"])
        store = self._store_of(reference) if reference is not None else None
        return store.deleted_at(str(reference.get("uid"))) if store is not None and reference is not None else None

    def _store_of(self, reference: Object) -> Store | None:
        """The snapshot of the kind that an owner reference names."""
        group, _ = group_and_version(reference.get("apiVersion"))
        informer = self._kept.get((group, str(reference.get("kind"))))
        return informer.store if informer is not None else None

    def _namespaces_of(self, group: str) -> list[str]:
        """The namespaces whose default the group is."""
        return [
            namespace["metadata"]["name"]
            for namespace in self.resolver.cached_lookup.all_of("", "Namespace", "")
            if group in _label(namespace)
        ]

    def _unlabelled(self, obj: Object) -> list[str]:
        """The namespace of an object that names no group, unless it is its owner's kind that makes such objects."""
        if any(_label(obj)):
            return []
        reference = controller_of(obj["metadata"])
        if reference is not None:
            group, _ = group_and_version(reference.get("apiVersion"))
            owner = self.registry.by_kind(group, str(reference.get("kind")))
            made = group_and_version(obj.get("apiVersion"))[0], str(obj.get("kind"))
            if owner is not None and self.registry.is_charged(owner) and made in owner.creates:
                return []
        return [obj["metadata"].get("namespace", "")]

    def _group_changed(self, old: Object | None, new: Object | None) -> None:
        for obj in (old, new):
            if obj is None:
                continue
            name, spec = obj["metadata"]["name"], obj.get("spec") or {}
            edited = old is None or new is None or old.get("spec") != new.get("spec") or _uncounted(new)
            edited = edited or _meta(old, "deletionTimestamp") != _meta(new, "deletionTimestamp")
            # A status write is most often an admission's: its object is about to come, or the entry to expire.
            self._enqueue(name, 0.0 if edited else UNHURRIED)
            if parent := spec.get("parentBizGroup"):
                self._enqueue(parent, 0.0 if edited else UNHURRIED)

    def workload_changed(self, old: Object | None, new: Object | None) -> None:
        """What the watch of any kind but pods brought."""
        moved = identity_of(old) != identity_of(new)
        if moved:
            self._record_release(old, new)
            self._forget_payers()
        if old is not None and new is not None and list(_label(old)) != list(_label(new)):
            self.on_move(old, new)
        changed = new or old
        if changed is None:
            return
        respecified = moved or old is None or new is None or _content(old) != _content(new)
        adapter = self.registry.of(changed)
        if not respecified and (adapter is None or not adapter.reads_status):
            return
        groups = {self.group_of(self.payer_of(obj) or obj) for obj in (old, new) if obj is not None}
        if respecified:
            groups.update(self.users_of(reference_of(changed)))
        for group in groups:
            if group is not None:
                self._enqueue(group, UNHURRIED if old is None else 0.0)

    def _reference_changed(self, old: Object | None, new: Object | None) -> None:
        """What the watch of CONTEXT brought: its users are another price now."""
        changed = new or old
        if changed is None or (
            old is not None and new is not None and _referenced_content(old) == _referenced_content(new)
        ):
            return
        for group in self.users_of(reference_of(changed)):
            self._enqueue(group, 0.0)

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        self.on_claim(old, new)
        if old is None or new is None or _referenced_content(old) != _referenced_content(new):
            for group in (group for claim in (old, new) if claim is not None for group in _claiming(claim)):
                self._enqueue(group, 0.0)
        self._reference_changed(old, new)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        """A node that shows another model, or whose model nobody knew, changes what its pods are known to use."""
        if old is not None and (new is None or node_devices(old) != node_devices(new)):
            self.recount_all()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        seen = [pod.plain() if pod is not None else None for pod in (old, new)]
        if _tied(old) != _tied(new):
            self._record_release(*seen)
            # Some pods own others, which may be gone, with who paid for them remembered.
            uids = {obj["metadata"]["uid"] for obj in seen if obj is not None}
            if uids & self._owners_asked or any(any(self.owned_by(uid)) for uid in uids):
                self._forget_payers()
        self.on_pod(old, new)
        for obj in seen:
            pays = self.payer_of(obj) if obj is not None else None
            if obj is None or (pays is not None and _holds(old) == _holds(new)):
                continue
            if (group := self.group_of(pays or obj)) is not None:
                self._enqueue(group, UNHURRIED if old is None or pays is not None else 0.0)

    def _record_release(self, old: Object | None, new: Object | None) -> None:
        """Remember whose an object was whose controller let go of it, where nobody pays for it any more."""
        if old is None:
            return
        uid, pays = old["metadata"]["uid"], self.payer_of(old)
        group = self.group_of(pays or old)
        if new is None:
            self._detached.pop(uid, None)
            if group is not None:
                self._remember(uid, group)
            return
        before, after = controller_of(old["metadata"]), controller_of(new["metadata"])
        if before is not None and after is None and not any(_label(new)):
            group = group if pays is not None else self._paid.get(str(before.get("uid")))
            informer = self._kept.get((group_and_version(new.get("apiVersion"))[0], str(new.get("kind"))))
            if group is not None and informer is not None and self.group_of(new) is None:
                log.warning("let go of and still there", group=group, kind=new.get("kind"), uid=uid)
                self._detached[uid] = group, informer
        elif self.payer_of(new) is not None or any(_label(new)):
            self._detached.pop(uid, None)

    def _remember(self, uid: str, group: str) -> None:
        self._paid[uid] = group
        while len(self._paid) > _REMEMBERED:
            del self._paid[next(iter(self._paid))]

    def _restored(self, before: int, now: int) -> None:
        log.error("the API server's store went back in time", before=before, now=now)
        self._context_changed(None, None)

    def _context_changed(self, old: Object | None, new: Object | None) -> None:
        """What bears on every workload of a namespace or of the cluster is another."""
        changed = new or old
        if changed is not None and changed.get("kind") == "Namespace":
            if _read_of(old) == _read_of(new):
                return
        elif old is not None and new is not None and _content(old) == _content(new):
            return
        self._forget_payers()
        self.dirty.mark_all()
        self.context += 1
        self.recount_all()

    def recount_all(self) -> None:
        """Have all groups looked at, soon."""
        for group in self.groups.values():
            self._enqueue(group.name, 1.0)


def _holds(pod: Pod | None) -> object:
    """What a pod asks for and for whom, as far as it is active; equal while nothing of that changed."""
    if pod is None or not pod.is_active:
        return None
    status = (pod.rest or {}).get("status") if pod.is_resized else None
    return pod.owner, id(pod.spec), pod.labels, status


def _tied(pod: Pod | None) -> object:
    return (pod.owner, pod.labels) if pod is not None else None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _meta(obj: Object | None, key: str) -> object:
    return obj["metadata"].get(key) if obj else None


def _uncounted(obj: Object) -> bool:
    return "used" not in (obj.get("status") or {})


def _label(obj: Object) -> list[str]:
    try:
        group = group_of(obj)
    except Malformed:
        return []
    return [group] if group is not None else []


def _read_of(namespace: Object | None) -> object:
    """What counting reads of a Namespace: the default group of its workloads, and whether HAMi leaves them alone."""
    if namespace is None:
        return [], None
    return _label(namespace), (namespace["metadata"].get("labels") or {}).get(hami.IGNORE)


def _content(obj: Object) -> object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _referenced_content(obj: Object) -> object:
    """What those who refer to an object may read of it."""
    return {key: value for key, value in obj.items() if key != "metadata"}, obj["metadata"].get("labels")


def _controller_uid(obj: Object) -> list[str]:
    reference = controller_of(obj["metadata"])
    uid = reference.get("uid") if reference is not None else None
    return [uid] if isinstance(uid, str) else []


def _owning_pods(claim: Object) -> list[str]:
    """The uids of the pods that a claim names as its owners, controller or not."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return [owner["uid"] for owner in owners if owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1"]


def claimed_by(claim: Object) -> str | None:
    """The group that a claim itself names; a label that is none charges nobody."""
    try:
        return dra.claim_group(claim)
    except Malformed:
        return None


def _claiming(claim: Object) -> list[str]:
    group = claimed_by(claim)
    return [group] if group is not None else []


def _pool(held: Object) -> list[str]:
    return [pool_of(held)]


def trimmed_node(node: Object) -> Object:
    """A node as far as it tells which cards it has."""
    metadata = node["metadata"]
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    for key, counted in (("labels", observed.NODE_LABELS), ("annotations", observed.NODE_ANNOTATIONS)):
        kept[key] = {name: value for name, value in (metadata.get(key) or {}).items() if name in counted}
    return {"apiVersion": "v1", "kind": "Node", "metadata": kept}


def trimmed_slice(held: Object) -> Object:
    """A ResourceSlice as far as it tells what its devices are, and of how much."""
    metadata, spec = held["metadata"], held.get("spec") or {}
    told = {key: spec[key] for key in ("driver", "pool", "sharedCounters") if key in spec}
    keys = ("name", "attributes", "capacity", "consumesCounters")
    told["devices"] = [{key: device[key] for key in keys if key in device} for device in spec.get("devices") or ()]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion")},
        "spec": told,
    }


def trimmed_replicaset(replicaset: Object) -> Object:
    """A ReplicaSet as a step between a pod and its owner, as a workload, and as the template that a Rollout may name.

    A Deployment keeps ten old ones, so only what counts is kept.
    """
    keys = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "ownerReferences")
    spec, status = replicaset.get("spec") or {}, replicaset.get("status") or {}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {key: replicaset["metadata"][key] for key in keys if key in replicaset["metadata"]},
        "spec": {key: spec[key] for key in ("replicas", "template") if key in spec},
        "status": {key: status[key] for key in ("observedGeneration", "replicas") if key in status},
    }
