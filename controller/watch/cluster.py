"""The watched cluster and its changes: which groups a change makes due for a recount.

This file alone decides which groups are enqueued for a change, and after how many seconds. It counts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol, TypeGuard

import structlog

from bizrq.kube.client import KubeClient, revision_of
from bizrq.kube.informer import Informer
from bizrq.kube.store import Kept, plain, uid_of
from bizrq.workloads.devices import hami
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import models_of
from bizrq.workloads.lookup import ALL_NODES, OverlayLookup, reference_of
from bizrq.workloads.owners import controller_of
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.observation import has_observed
from bizrq.workloads.ownership.payers import PayerReason, anywhere, paid_by, place_of
from controller.watch.awaited import AwaitedChanges
from controller.watch.deletions import Deletions
from controller.watch.descendants import Descendants
from controller.watch.ignored import IgnoredLabels
from controller.watch.indexes import claim_groups, labelled_group
from controller.watch.informers import Informers
from controller.watch.invalidation import CountedGroups, DirtySet, identity_of, node_devices, node_placing
from controller.watch.moved_pods import MadePods, MovedPods
from controller.watch.ownership import Ownership
from controller.watch.placement import Placements
from controller.watch.pods import Pod
from controller.watch.releases import ReleaseTracker
from controller.watch.remembered import RememberedPayers
from controller.watch.unfinished import Unfinished
from controller.watch.unpaid import Unpaid
from controller.watch.vanished import VanishedPods

log = structlog.get_logger(__name__)

Object = dict[str, Any]

#: Seconds to wait for a watch that is behind a revision that has to be seen.
CATCH_UP = 10.0
#: Seconds to wait for a watch that is not worth a list: too short for one.
AHEAD: Final = 0.5
#: The shortest time for which a watch may show nothing, in seconds, and how many objects are listed in one.
_LAG, _LISTED_A_SECOND = 0.2, 2_000
#: From this number on, the objects of a kind are not listed for a demand that fell: a bookmark comes within a minute.
_MANY: Final = 10_000
#: Seconds until the recount of an addition. Its charge is reserved already, and one write then counts a whole burst.
#: A deletion or a decrease is counted at once: others may wait for the room.
UNHURRIED = 0.5
#: The same where a pod of a workload starts to end: its controller makes another beside it. In a full group no more may
#: come until the first has ended (`controller.usage.overlaps`).
REPLACED = 0.1


class WatchListener(Protocol):
    """Receives the changes from which card-hours follow."""

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Receive each change of a pod."""
        ...

    def on_move(self, old: Object, new: Object) -> None:
        """Receive each workload whose group label changed."""
        ...

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Receive each change of a ResourceClaim."""
        ...


class Cluster:
    """The informers and what they say about ownership; enqueues the groups that a change concerns.

    Each part decides one thing: `informers` what is watched, `ownership` who pays, `descendants` what an owner has
    below it, `vanished` which of its pods run on though they are gone, `placements` which groups an object is
    charged to, `payers` and `releases` who paid for what is left, `moved_pods` who pays for pods of what moves,
    `unpaid` what nobody pays for yet, `deletions` what is gone before its pods are seen, `unfinished` what is gone
    or lowered before they are made, `ignored` which labels charge nobody.
    """

    def __init__(
        self,
        client: KubeClient,
        registry: Registry,
        enqueue: Callable[[str, float], None],
        annotations: Iterable[str] = (),
        now: Callable[[], int] = lambda: now_ms(),
    ) -> None:
        """`enqueue(group, after)` schedules a recount in `after` seconds.

        `annotations` of pods are kept: those that count. `now` returns milliseconds since 1970.
        """
        self.client = client
        self.registry = registry
        self._enqueue = enqueue
        #: Changes that are not counted yet.
        self.dirty = DirtySet()
        #: The groups that each object is counted in.
        self.counted_groups = CountedGroups(self.dirty.referrers)
        self.informers = Informers(client, registry, self, self.dirty, annotations, now)
        #: Replaced by each recount at the moment of its snapshot.
        self.awaited = AwaitedChanges()
        self.groups = self.informers.groups
        self.resolver = self.informers.resolver
        self.payers = RememberedPayers(client, self._payers_changed)
        self.informers.count_from(self.payers.informer)
        self.moved_pods = MovedPods()
        self.unpaid = Unpaid()
        self.ownership = Ownership(self.informers, self.payers, registry, self.unpaid)
        self.descendants = Descendants(self.informers, registry, self.payers, self.ownership)
        self.placements = Placements(self.informers, self.ownership, self.descendants, self.payers, registry)
        self.vanished = VanishedPods(now)
        self.deletions = Deletions(self.informers, registry)
        self.unfinished = Unfinished(self.informers, registry, self._payer, now)
        self.releases = ReleaseTracker(
            self.informers, self.ownership, self.descendants, self.payers, self.dirty, registry, now
        )
        self.ignored = IgnoredLabels(self.informers, registry, lambda group: enqueue(group, UNHURRIED))
        self._listeners: list[WatchListener] = []
        #: Counts the changes of objects that concern every workload, such as LimitRanges.
        self.context = 0

    async def see_pods(self) -> None:
        """Wait until pods are seen that are as new as all else: a workload may have gone after its pods were listed."""
        pods = self.informers.pods
        revision = max(informer.store.resource_version for informer in self.informers.kinds.values())
        await pods.catch_up(revision, patience(pods), lag=lag_of(pods))

    def subscribe(self, listener: WatchListener) -> None:
        """Deliver pod, claim and label changes to the listener from now on."""
        self._listeners.append(listener)

    def _payers_changed(self, group: str, uids: Collection[str]) -> None:
        """Place again what the payers left of which another writer has stored something else."""
        if self._is_synced:
            # Before that, who is not seen may exist.
            self.releases.settle(uids)
        self.releases.changed(uids)
        self._enqueue(group, UNHURRIED)

    @property
    def _is_synced(self) -> bool:
        return all(informer.synced.is_set() for informer in self.informers.kinds.values())

    def pods_stayed(self, uids: Collection[str], groups: Iterable[str]) -> None:
        """Place pods again of which the groups have decided anew which of them pays."""
        self.releases.changed(uids)
        for group in groups:
            self._enqueue(group, 0.0)

    def group_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the group and its parent, before and after the change."""
        self._enqueue_awaiting(old, new)
        name = (new or old or {})["metadata"]["name"]
        if (known := self.groups.cached(name)) is not None:
            self.payers.read_status(known)
        else:
            self.payers.forget(name)
        for obj in (old, new):
            if obj is None:
                continue
            name, spec = obj["metadata"]["name"], obj.get("spec") or {}
            edited = old is None or new is None or old.get("spec") != new.get("spec") or _is_uncounted(new)
            edited = edited or _deletion_timestamp(old) != _deletion_timestamp(new)
            # Most status writes are an admission's: its object is about to come, or the reservation will expire.
            self._enqueue(name, 0.0 if edited else UNHURRIED)
            if parent := spec.get("parentBizGroup"):
                self._enqueue(parent, 0.0 if edited else UNHURRIED)

    def workload_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the groups that pay for an object of any kind but pods, and those whose workloads refer to it."""
        self._enqueue_awaiting(old, new)
        for obj in (old, new):
            if obj is not None and (owner := controller_of(obj["metadata"])) is not None:
                self.moved_pods.note_below(obj["metadata"]["uid"], owner.get("uid", ""))
        if old is not None and new is None:
            self.moved_pods.forget(old["metadata"]["uid"])
            self.unpaid.discard(old["metadata"]["uid"])
            self.deletions.note(old)
        if old is not None and (new is None or _starts_to_go(old, new)):
            self.unfinished.note_end(old, new)
        elif old is not None and new is not None:
            self.unfinished.note_change(old, new)
        moved = identity_of(old) != identity_of(new)
        if moved:
            self.ignored.record(old, new)
            self.releases.record(old, new)
            self.ownership.forget_payers()
            if old is not None and new is not None and self._is_first_payer(old, new):
                self._take_in_with_pods(old, new)
        if old is not None and new is not None and labelled_group(old) != labelled_group(new):
            if (left := self.ownership.group_of(old)) is not None:
                self._note_move(old, new, left)
            for listener in self._listeners:
                listener.on_move(old, new)
        changed = new or old
        if changed is None:
            return
        is_other = moved or old is None or new is None or _content(old) != _content(new)
        respecified = is_other or has_observed(old or {}) != has_observed(new or {})
        adapter = self.registry.of(changed)
        if not respecified and (adapter is None or not adapter.reads_status):
            return
        groups = {self.ownership.paying_group(obj) for obj in (old, new) if obj is not None}
        if respecified:
            groups.update(self.counted_groups.using(reference_of(changed)))
        # What is new frees nothing, nor does that its controller has seen it. What that makes is counted with it.
        is_new = old is None or (not is_other and changed["metadata"].get("generation") == 1)
        for group in groups:
            if group is not None:
                self._enqueue(group, UNHURRIED if is_new else 0.0)
        if moved:
            self._enqueue_below(changed)

    def _payer(self, obj: Object) -> str | None:
        """Return the group that pays for an object."""
        paid = self.ownership.paid(obj)
        return paid.group if paid is not None else None

    def _is_first_payer(self, old: Object, new: Object) -> bool:
        """Return True where a group pays for an object by this change, and none did before."""
        return self._payer(new) is not None and self._payer(old) is None

    def _take_in_with_pods(self, old: Object, new: Object) -> None:
        """Note what was nobody's until a group came to pay for a workload: its pods, or all of it."""
        if (owner := self._owner_gone_before(new)) is not None:
            self.unpaid.add(new["metadata"]["uid"], owner)
            return
        was = OverlayLookup(self.resolver.cached_lookup, reference_of(new), old)
        for pod in self.descendants.each_pod_of(new):
            if paid_by(pod.plain(), self.registry, was, self.payers, anywhere) is None:
                self._take_in(pod)

    def _take_in(self, pod: Pod) -> None:
        """Note that a pod was nobody's until now that a group came to pay for, unless a group is remembered for it."""
        if pod.owner is None or self.payers.get(pod.uid) is not None or self.moved_pods.of(pod.uid) is not None:
            return
        plain = pod.plain()
        if self.ownership.keeper_of(plain) is not None or self._owner_gone_before(plain) is not None:
            self.unpaid.add(pod.uid, pod.owner.uid)

    def _owner_gone_before(self, obj: Object) -> str | None:
        """Return the uid of the owner of what was nobody's until it named one that was gone, or did not keep it.

        A controller that has asked whether it may adopt pods adopts them though it is deleted meanwhile, and the review
        of that finds no owner that a group pays for. What it adopted before was admitted: revisions tell.
        """
        paid, owner = self.ownership.paid(obj), self.ownership.owner_of(obj)
        if owner is None or paid is None or paid.reason is not PayerReason.LEFTOVER:
            return None
        return owner if self.deletions.is_before(owner, revision_of(obj)) else None

    def _note_move(self, old: Object, workload: Object, left: str) -> None:
        """Note the group that a workload has left, and the one that its pods were made for, unseen ones included."""
        made_for = self._made_for(workload, left)
        uid, kind = workload["metadata"]["uid"], reference_of(workload)[:2]
        uids = {pod.uid for pod in self.descendants.pods_of(workload) if pod.uid not in self.unpaid}
        made = MadePods(place_of(old), models_of(old), uids)
        self.moved_pods.leave(uid, left, made, made_for)
        below = (uid_of(kept) for kept in self.descendants.all_below(uid, kind) if not isinstance(kept, Pod))
        self.moved_pods.depart(uid, revision_of(workload), made_for, self.informers.pods.store.resource_version, below)

    def _made_for(self, obj: Object, left: str) -> str:
        """Return the group that the pods of what leaves a group were made for, if nobody has noted that.

        After a start that is the group which remembers it, where the one that it leaves never counted it. Once a move
        was seen, it is the one that it leaves.
        """
        if self.moved_pods.has_moved(obj["metadata"]["uid"]):
            return left
        uids = (obj["metadata"]["uid"], *self.descendants.makers_of(obj))
        # Several groups may remember it: those that it came through, until each is counted.
        if any(_pays(self.payers.in_group(left, uid)) for uid in uids):
            return left
        return next((memory.group for uid in uids if _pays(memory := self.payers.get(uid))), left)

    def _enqueue_awaiting(self, old: Kept | None, new: Kept | None) -> None:
        """Enqueue the groups that await a change of this object, whatever changes of it."""
        for uid in {uid_of(kept) for kept in (old, new) if kept is not None}:
            for group in self.awaited.groups_of(uid):
                self._enqueue(group, UNHURRIED)

    def _enqueue_below(self, owner: Object) -> None:
        """Enqueue the groups of what an owner makes: those that they are counted in, and those that pay for them now.

        They pay for it from now on or no longer: an owner that came, went or changed its label pays or does not.
        """
        groups: set[str] = set()
        read: set[int] = set()
        for kept in self.descendants.all_below(owner["metadata"]["uid"], reference_of(owner)[:2]):
            groups.update(self.counted_groups.of(uid_of(kept)))
            if isinstance(kept, Pod):
                # Pods of one template share their labels.
                if id(kept.labels) in read:
                    continue
                read.add(id(kept.labels))
            if (paying := self.ownership.paying_group(plain(kept))) is not None:
                groups.add(paying)
        for group in groups:
            self._enqueue(group, UNHURRIED)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Enqueue the group that pays for a pod, if what it holds changed."""
        self._enqueue_awaiting(old, new)
        self.vanished.record(old, new)
        if old is None and new is not None and self.moved_pods.is_expected(new.revision):
            keeper = self.ownership.keeper_of(new.plain())
            named = new.owner.uid if new.owner is not None else ""
            self.moved_pods.arrive(new.uid, new.revision, keeper["metadata"]["uid"] if keeper is not None else named)
        seen = [pod.plain() if pod is not None else None for pod in (old, new)]
        if old is not None and new is None:
            self._charge_vanished(old)
            self.moved_pods.forget(old.uid)
            self.unpaid.discard(old.uid)
        if _ties(old) != _ties(new):
            if old is not None and new is not None and self._is_first_payer(old.plain(), new.plain()):
                self._take_in(new)
            self.ignored.record(*seen)
            self.releases.record(*seen)
            # Some pods own other pods. The owner may be gone while its payer is still remembered.
            uids = {obj["metadata"]["uid"] for obj in seen if obj is not None}
            if self.ownership.was_asked(uids) or any(any(self.descendants.owned_by(uid)) for uid in uids):
                self.ownership.forget_payers()
                self._enqueue_below(next(obj for obj in reversed(seen) if obj is not None))
        for listener in self._listeners:
            listener.on_pod(old, new)
        for obj in seen:
            pays = self.ownership.payer_of(obj) if obj is not None else None
            if obj is None or (pays is not None and _holds(old) == _holds(new)):
                continue
            if (group := self.ownership.group_of(pays or obj)) is None:
                continue
            if old is None or pays is not None:
                self._enqueue(group, REPLACED if _starts_to_end(old, new) else UNHURRIED)
            else:
                self._enqueue(group, 0.0)

    def _charge_vanished(self, pod: Pod) -> None:
        """Charge a pod that is gone, and that its node may still run, to the group that paid for it; "" for none."""
        if self.vanished.end_of(pod) is None:
            return
        paid, known = self.ownership.paid(pod.plain()), self.payers.get(pod.uid)
        group, place = (paid.group, paid.place) if paid is not None else (None, place_of(pod.plain()))
        if pod.uid in self.unpaid:
            group = ""
        elif known is None or known.gone is None:
            # Its workload may have moved, and nobody has decided yet what stays.
            group = self.moved_pods.of(pod.uid) or group
            place = self.moved_pods.made_at(pod.uid) or place
        if group is not None:
            self.vanished.charge(pod, group, place)
            if group:
                self._enqueue(group, 0.0)

    def claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the groups that a claim names, and those whose workloads refer to it."""
        for listener in self._listeners:
            listener.on_claim(old, new)
        if old is None or new is None or _referenced_content(old) != _referenced_content(new):
            for group in (group for claim in (old, new) if claim is not None for group in claim_groups(claim)):
                self._enqueue(group, 0.0)
        self.reference_changed(old, new)

    def reference_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the groups whose workloads refer to an object of CONTEXT: their cost may be another."""
        self._enqueue_awaiting(old, new)
        changed = new or old
        if changed is None or (
            old is not None and new is not None and _referenced_content(old) == _referenced_content(new)
        ):
            return
        for group in self.counted_groups.using(reference_of(changed)):
            self._enqueue(group, 0.0)

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        """Recount all groups if a known node shows other devices: its pods use other models then.

        Recount the groups of DaemonSets if a node is new or takes other pods.
        """
        if old is not None and (new is None or node_devices(old) != node_devices(new)):
            self.recount_all()
        elif new is not None and (old is None or node_placing(old) != node_placing(new)):
            for group in self.counted_groups.using(ALL_NODES):
                self._enqueue(group, UNHURRIED)

    def context_changed(self, old: Object | None, new: Object | None) -> None:
        """Recount everything if an object changed that concerns every workload of a namespace or of the cluster."""
        changed = new or old
        if changed is not None and changed.get("kind") == "Namespace":
            unknown = {"metadata": {"name": changed["metadata"]["name"]}}
            if self._counted_of_namespace(old or unknown) == self._counted_of_namespace(new or unknown):
                if old is not None and new is not None and _starts_to_go(old, new):
                    for group in self.counted_groups.using(reference_of(new)):
                        self._enqueue(group, 0.0)
                return
            if old is not None and new is not None and self._is_synced and self._leaves(old, new):
                self.releases.record_unmanaged(old, new)
            self.ignored.find_all()
        elif old is not None and new is not None and _content(old) == _content(new):
            return
        self._recount_everything()

    def _counted_of_namespace(self, namespace: Object) -> object:
        """Return what counting reads of a Namespace.

        That is whether it is managed, the default group of its workloads, and whether HAMi ignores it.
        """
        labels = namespace["metadata"].get("labels") or {}
        return self._manages(namespace), labelled_group(namespace), labels.get(hami.IGNORE)

    def _leaves(self, old: Object, new: Object) -> bool:
        """Return True for a namespace that is managed no more."""
        return self._manages(old) and not self._manages(new)

    def _manages(self, namespace: Object) -> bool:
        return self.registry.scope.manages(namespace)

    def restored(self, before: int, now: int) -> None:
        """Recount everything: the API server's store was restored to an older revision."""
        log.error("the API server's store was restored to an older revision", before=before, now=now)
        self.moved_pods.restored()
        self.deletions.restored()
        self._recount_everything()

    def _recount_everything(self) -> None:
        """Drop all that is remembered, and enqueue all groups."""
        self.ownership.forget_payers()
        self.dirty.mark_all()
        self.context += 1
        self.recount_all()

    def recount_all(self) -> None:
        """Enqueue all groups, a second from now."""
        for group in self.groups.values():
            self._enqueue(group.name, 1.0)


def patience(informer: Informer) -> float:
    """Return for how many seconds a recount waits for a watch that has to show what a smaller demand has led to."""
    return CATCH_UP if is_listed(informer) else AHEAD


def is_listed(informer: Informer) -> bool:
    """Return True for a kind of which a recount may list all objects, where the watch does not show them."""
    return len(informer.store) < _MANY


def lag_of(informer: Informer) -> float:
    """Return for how many seconds a watch may show nothing before a recount lists all objects of its kind.

    Who deletes workloads all the time makes the API server list no more than so many objects a second.
    """
    return _LAG + len(informer.store) / _LISTED_A_SECOND


def _pays(memory: Memory | None) -> TypeGuard[Memory]:
    """Return True for a payer that is remembered and not gone."""
    return memory is not None and memory.gone is None


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _holds(pod: Pod | None) -> object:
    """Return a value that is equal as long as a pod asks for the same on behalf of the same owner, and for as long."""
    if pod is None or pod.is_terminated:
        return None
    status = (pod.rest or {}).get("status") if pod.is_resized else None
    return pod.owner, id(pod.spec), pod.labels, status, pod.life() if pod.is_being_deleted else None


def _starts_to_end(old: Pod | None, new: Pod | None) -> bool:
    return old is not None and new is not None and new.is_being_deleted and not old.is_being_deleted


def _ties(pod: Pod | None) -> object:
    """Return what ties a pod to a group: its owner and labels."""
    return (pod.owner, pod.selected) if pod is not None else None


def _deletion_timestamp(obj: Object | None) -> object:
    return obj["metadata"].get("deletionTimestamp") if obj else None


def _starts_to_go(old: Object, new: Object) -> bool:
    return _deletion_timestamp(old) is None and _deletion_timestamp(new) is not None


def _is_uncounted(obj: Object) -> bool:
    return "used" not in (obj.get("status") or {})


def _content(obj: Object) -> object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _referenced_content(obj: Object) -> object:
    """Return what objects that refer to this one may read of it."""
    return {key: value for key, value in obj.items() if key != "metadata"}, obj["metadata"].get("labels")
