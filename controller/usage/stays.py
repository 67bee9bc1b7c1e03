"""The pods that stay with a group when what makes them goes to another: a move, or an adoption.

This file alone decides which these are: pods that the demand in the other group does not pay for. The record of the
group has a line of each (`bizrq.workloads.ownership.payers`), so it stays whatever becomes of its owner. How much is
held of a deleted workload is decided in `departures`. This file writes nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.kube.informer import Informer
from bizrq.quota.recount import CountedObject, WriteState
from bizrq.quota.reservation import Reservation
from bizrq.units.resources import Resources, add, growth, restrict, smaller, subtract_floor, total
from bizrq.units.slot import GROUP_SLOT_KIND
from bizrq.workloads.kinds.declaration import POD, Adapter
from bizrq.workloads.labels import Models, models_of, with_models
from bizrq.workloads.lookup import reference_of
from bizrq.workloads.ownership.lives import Stage, is_live, stage
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import place_of
from controller.usage.departures import Deleted, Departure, held_of_deleted, note_promises
from controller.usage.excess import ExcessUsage
from controller.usage.reservations import ReservationTracker
from controller.usage.runs_on import RunningOn
from controller.usage.usage_cache import GroupUsage, UsageCache
from controller.usage.workload_cost import WorkloadCosts
from controller.usage.workload_usage import WorkloadUsage
from controller.watch.cluster import CATCH_UP, Cluster, Object, is_listed, lag_of
from controller.watch.moved_pods import MadePods
from controller.watch.ownership import as_left
from controller.watch.pods import Pod
from controller.watch.time_slice import Yielder

#: Seconds for which a group goes on paying for all of a workload that left it and asks for less since.
_PATIENCE = 10.0
#: Seconds until the next look at what is gone, at what has left otherwise, and at whose pods may still be made.
_SOON, _LATER, _LISTED = 0.25, 0.5, 5.0
#: Seconds for which a watch may show nothing of a move before its kind is listed.
_LAG = 0.5
#: How often the workloads are counted again that change meanwhile.
_TRIES = 5


class _Write(NamedTuple):
    """The write that a reservation awaits: of which object, upon which version."""

    uid: str
    version: int | None


@dataclass(slots=True)
class _Taken:
    """A workload that another group pays for, and the pods of this group that it has, by uid.

    Those that are `made` for this group may stay, and those that `stayed` have. `group` is "" for a workload that no
    group pays for. `asks` is False for that, for a pod that a workload has left, and where the group does not exist:
    there is no demand then.
    """

    adapter: Adapter
    workload: Object
    group: str
    asks: bool
    made: dict[str, Pod] = field(default_factory=dict)
    stayed: dict[str, Pod] = field(default_factory=dict)
    #: The place and the models of the workload that made them for this group.
    made_as: dict[str, tuple[str, Models]] = field(default_factory=dict)
    #: The place of the payer in this group that has let them go, and is being deleted.
    let_go_by: dict[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return self.workload["metadata"]["uid"]

    @property
    def version(self) -> tuple[str, str, str]:
        return self.uid, self.workload["metadata"]["resourceVersion"], self.group


class Stays:
    """Finds the pods that stay."""

    def __init__(
        self,
        cluster: Cluster,
        costs: WorkloadCosts,
        excess: ExcessUsage,
        runs_on: RunningOn,
        tracker: ReservationTracker,
        may_pass: Callable[[Iterable[str]], bool],
        now: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`may_pass` says if pods of makers that are gone may still come, by uid.

        `now` returns milliseconds since 1970, `clock` seconds.
        """
        self._cluster = cluster
        self._tracker = tracker
        self._may_pass = may_pass
        self._costs = costs
        self._excess = excess
        self._runs_on = runs_on
        self._now = now
        self._clock = clock
        #: By group, what left it by uid. A group is in it once its record was looked through.
        self._departures: dict[str, dict[str, Departure]] = {}
        #: By group, what is held of what left it, beyond its pods.
        self._held: dict[str, list[CountedObject]] = {}
        #: By group, the workloads that have something of it, as they were counted.
        self._counted: dict[str, set[tuple[str, str, str]]] = {}
        #: By group, the reservations whose write was over when `settle` decided.
        self._over: dict[str, set[_Write]] = {}
        #: The makers of pods that left a group, until a status without them is stored.
        self._settled: dict[str, set[str]] = {}
        #: By group, the uids of what may change before the pods that stayed go to another group.
        self._awaited: dict[str, frozenset[str]] = {}
        #: The groups of which it is not decided yet what stays.
        self._undecided: set[str] = set()

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        for known in (self._departures, self._held, self._counted, self._over, self._settled, self._awaited):
            known.pop(group, None)
        self._undecided.discard(group)

    def is_due(self, group: str, usage: GroupUsage, over: Iterable[Reservation]) -> bool:
        """Return True where something has left the group of which `settle` has not decided what stays."""
        if usage.departed or group not in self._departures or group in self._undecided:
            return True
        return any(entry.uid not in usage.usages and _write_of(entry) not in self._over[group] for entry in over)

    def again(self, group: str) -> float | None:
        """Return the seconds until the next look, where it may change what stays or is held; None where none will.

        Of a payer that is being deleted the watch brings the end.
        """
        departures = self._departures.get(group, {})
        if any(self._unseen(uid) for uid in departures):
            return _SOON
        held = {uid for uid, each in departures.items() if self._may_come(uid, each)}
        if any(not self._is_early(group, uid) for uid in departures.keys() - held):
            return _LATER
        return _LISTED if held else None

    def held(
        self, group: GroupObject, usage: GroupUsage, states: Iterable[tuple[Reservation, WriteState]]
    ) -> list[CountedObject]:
        """Return what the group pays for besides: pods that may still come for what was asked for here."""
        return [*self._held.get(group.name, ()), *self._held_for_deleted(group, usage, states)]

    def lines(self, group: str) -> Iterator[str]:
        """Yield lines of `status.leftovers` for what is gone and long held, as pods may still come."""
        for uid, departure in self._departures.get(group, {}).items():
            line, held = departure.line, self._clock() - departure.since
            if line is not None and held > _PATIENCE and self._may_come(uid, departure):
                since = self._now() - round(1000 * held)
                yield wire.leftover_line(line.counted.slot, line.place, since, departure.charged)

    def take_settled(self, group: str) -> Collection[str]:
        """Return the uids of the makers of pods that left the group since the last call."""
        return self._settled.pop(group, ())

    def awaits(self, group: str) -> Collection[str]:
        """Return the uids of what may change before the pods that stayed with the group go to another.

        That is what has them, its other pods, and the other group, of which a reservation may end.
        """
        return self._awaited.get(group, ())

    async def settle(
        self, name: str, cache: UsageCache, states: Callable[[GroupObject], Iterable[tuple[Reservation, WriteState]]]
    ) -> bool:
        """Decide which pods stay with a group. Return True where the usage has to be refreshed for that.

        `states` returns the reservations of a status with what is known of their writes now. Raises ApiError,
        Unreachable.
        """
        self._undecided.add(name)
        usage = cache.of(name)
        if name not in self._departures:
            await self._look(name, usage)
        await self._show_made_by_deleted(name)
        counted = self._counted.setdefault(name, set())
        for _ in range(_TRIES):
            # Each wait may end more promises: what they hold is room for the pods that were made for them.
            group = self._cluster.groups.cached(name)
            if group is None:
                return False
            found = list(states(group))
            entries = [entry for entry, state in found if state.is_over]
            self._over[name] = {_write_of(entry) for entry in entries}
            self._gather(name, usage, entries)
            taken = self._taken(name, usage)
            new = [each for each in taken if each.version not in counted and each.asks]
            for each in new:
                await self._costs.count(each.group, each.adapter, each.workload)
            self._counted[name] = counted = {each.version for each in taken}
            if new:
                continue
            if not (late := self._late(name, taken)):
                break
            # All at once, and listed soon: until then the group is not counted.
            if not all(await asyncio.gather(*(_reaches(informer, revision) for informer, revision in late))):
                return False
        else:
            return True
        if not cache.is_current(name):
            # What has changed meanwhile is not counted: the group may be charged less by now.
            return True
        self._undecided.discard(name)
        return self._decide(group, usage, taken, found)

    def _late(self, name: str, taken: Iterable[_Taken]) -> list[tuple[Informer, int]]:
        """Return the watches that have not shown all that bears on what has left, and the revisions to reach.

        Pods have to be seen at the revision of what has left, and of what pays for pods again: a pod may have been
        deleted before that, and then no demand pays for it. A payer has to be seen at that of what it has let go.
        """
        wanted: list[tuple[Informer, Object]] = []
        pods, ownership = self._cluster.informers.pods, self._cluster.ownership
        # What moved and is gone by now may have pods that are not seen.
        latest = {pods: max(map(self._cluster.moved_pods.expected, self._departures[name]), default=0)}
        for uid in self._departures[name]:
            if (obj := self._cluster.placements.stored(uid)) is not None:
                wanted += [(pods, each) for each in (obj, ownership.keeper_of(obj)) if each is not None]
                if (memory := self._let_go(name, uid)) is not None:
                    wanted += [(informer, obj) for informer in ownership.informers_of_payer(obj, memory)]
        again = [each.workload for each in taken if each.stayed and self._paid_by_demand(each) & each.stayed.keys()]
        wanted += [(pods, each) for each in again]
        for informer, each in wanted:
            latest[informer] = max(latest.get(informer, 0), int(each["metadata"]["resourceVersion"]))
        return [each for each in latest.items() if each[0].store.resource_version < each[1]]

    async def _show_made_by_deleted(self, name: str) -> None:
        """List what was made by what is gone, where the watches have not shown it for some time."""
        now = self._clock()
        for uid, departure in list(self._departures[name].items()):
            for informer, revision in self._unseen(uid):
                is_due = is_listed(informer) and now - departure.since >= lag_of(informer)
                if is_due and not await informer.catch_up(revision, CATCH_UP, lag=0.0):
                    return  # The API server does not answer: what is held stays held.

    def _unseen(self, uid: str) -> list[tuple[Informer, int]]:
        """Return the watches that may still show pods that a workload made which is gone, and the revision to reach."""
        return self._cluster.deletions.late(uid, self._costs.watches_below)

    def _may_come(self, uid: str, departure: Departure) -> bool:
        """Return True where pods may still be made for a workload that is gone."""
        makers = departure.line.makers if departure.line is not None else ()
        return self._may_pass((uid, *makers)) and self._cluster.placements.stored(uid) is None

    def _let_go(self, name: str, uid: str) -> Memory | None:
        """Return the payer in the group that has let an object go."""
        memory = self._cluster.payers.in_group(name, uid)
        return memory if memory is not None and memory.gone is not None else None

    def _is_early(self, name: str, uid: str) -> bool:
        """Return True while it cannot be decided what stays, since the payer that let this go is being deleted."""
        return self._going_payer(name, uid) is not None

    def _going_payer(self, name: str, uid: str) -> str | None:
        """Return the place of the payer that has let an object go and is being deleted; None where there is none."""
        memory = self._let_go(name, uid)
        return memory.place if memory is not None and self._cluster.placements.is_early(uid, memory) else None

    def _demand_at(self, place: str, usage: GroupUsage) -> Resources:
        """Return what the workload at a place asks for, where the group is charged for it."""
        stored = (workload["metadata"]["uid"] for _, workload in self._cluster.ownership.at(place) if workload)
        return total(self._costs.of(uid).resources for uid in stored if uid in usage.usages)

    async def _look(self, name: str, usage: GroupUsage) -> None:
        """Look through the record of a group for what left it while nobody watched."""
        yielder, payers, found = Yielder(steps=8), self._cluster.payers, dict[str, Departure]()
        for uid in payers.of(name):
            memory = payers.in_group(name, uid)
            if memory is not None and uid not in usage.makers and self._may_have_left(uid, memory):
                found[uid] = Departure(self._clock())
            await yielder.step()
        self._departures[name] = found

    def _may_have_left(self, uid: str, memory: Memory) -> bool:
        """Return True for what made pods for a group until nobody watched: also for what an owner has adopted since."""
        obj = self._cluster.placements.stored(uid)
        is_pod = obj is not None and reference_of(obj)[:2] == POD
        return memory.gone is None or (obj is not None and not is_pod and self._cluster.ownership.let_go(obj) is None)

    def _gather(self, name: str, usage: GroupUsage, entries: Iterable[Reservation]) -> None:
        """Note what has left a group, what it was only promised for included."""
        departures = self._departures.setdefault(name, {})
        for uid, line in usage.departed.items():
            if line is not None or uid not in departures:
                departures[uid] = Departure(self._clock(), line)
        usage.departed.clear()
        for entry in entries:
            if entry.uid not in usage.usages:
                may_be_lost = not entry.is_create and not self._cluster.moved_pods.has_left(entry.uid, name)
                departures.setdefault(entry.uid, Departure(self._clock(), may_be_lost=may_be_lost))
        note_promises(departures, entries)

    def _taken(self, name: str, usage: GroupUsage) -> list[_Taken]:
        """Return what pays now for the pods of what has left a group, and for those that stayed."""
        found: dict[str, _Taken] = {}
        for uid, departure in self._departures[name].items():
            # Only the move out of the group shows that the one into it was stored.
            made_for = (name,) if departure.may_be_lost else (None, name)
            payer = self._going_payer(name, uid)
            for pod in self._pods_of(name, uid, departure):
                is_decided = pod.uid in self._cluster.unpaid or self._cluster.ownership.has_stayed(pod.plain())
                if is_decided or self._group_of(pod) not in made_for:
                    continue
                is_direct = pod.owner is not None and pod.owner.uid == uid and not departure.was_left
                if (taken := self._taken_by(name, pod, found, own_label=is_direct)) is not None:
                    taken.made[pod.uid] = pod
                    place, models = self._made_as(name, uid, departure, taken.workload)
                    # A pod that had a slot of its own stays beside what has adopted it.
                    taken.made_as[pod.uid] = self._adopter_of(pod, taken) if pod.uid == uid else place, models
                    if payer is not None:
                        taken.let_go_by[pod.uid] = payer
        for pod in self._stayed(usage):
            if (taken := self._taken_by(name, pod, found, own_label=True)) is not None:
                taken.made.pop(pod.uid, None)
                taken.stayed[pod.uid] = pod
        return list(found.values())

    def _pods_of(self, name: str, uid: str, departure: Departure) -> Collection[Pod]:
        """Return the pods of what has left a group. It may have moved and gone before it was ever counted here.

        A pod by itself that a workload has adopted is one of its own: it was paid for here, and may end there. That
        workload may have gone since.
        """
        naming = self._cluster.descendants.pods_naming
        found = {pod.uid: pod for maker in self._makers(uid, departure) for pod in naming({"metadata": {"uid": maker}})}
        ownership, own = self._cluster.ownership, self._cluster.informers.pod(uid)
        if own is not None and (ownership.keeper_of(own.plain()) or ownership.let_go(own.plain())):
            found[uid] = own
        made = self._cluster.moved_pods.made_for(uid, name)
        for each in made.uids if made is not None else ():
            if each not in found and (pod := self._cluster.informers.pod(each)) is not None:
                found[each] = pod
        return found.values()

    def _adopter_of(self, pod: Pod, taken: _Taken) -> str:
        """Return the place of the workload that has adopted a pod, which may have gone since."""
        left = self._cluster.ownership.let_go(pod.plain()) if taken.uid == pod.uid else None
        return left.place if left is not None else place_of(taken.workload)

    def _made_as(self, name: str, uid: str, departure: Departure, workload: Object) -> tuple[str, Models]:
        """Return place and models of what has left a group, as it was counted or is remembered.

        What was neither is taken for the workload that has its pods now.
        """
        known = self._known_as(name, uid, departure)
        return (known.place, known.models) if known is not None else (place_of(workload), models_of(workload))

    def _known_as(self, name: str, uid: str, departure: Departure) -> WorkloadUsage | Memory | MadePods | None:
        """Return what has left a group as it was counted, is remembered, or was when it moved."""
        return (
            departure.line or self._cluster.payers.in_group(name, uid) or self._cluster.moved_pods.made_for(uid, name)
        )

    def _makers(self, uid: str, departure: Departure) -> Collection[str]:
        """Return the uids of what has left a group and what is below it, as it was counted and as it is now."""
        obj = self._cluster.placements.stored(uid)
        now = self._cluster.descendants.makers_of(obj) if obj is not None else ()
        return {uid, *now, *(departure.line.makers if departure.line is not None else ())}

    def _taken_by(self, name: str, pod: Pod, found: dict[str, _Taken], *, own_label: bool) -> _Taken | None:
        """Return what has a pod now that was made for the group; None where this group pays, or an owner has let it go.

        What stands and names no group any more has its pods, too, and so had what has let them go since. A pod's
        `own_label` decides where the workload itself has made it, and not below a ReplicaSet.
        """
        ownership, plain = self._cluster.ownership, pod.plain()
        workload = ownership.keeper_of(plain) or plain
        group = ownership.group_of(workload)
        by_label = workload is plain and not own_label and pod.owner is not None and ownership.let_go(plain) is None
        if group is None or by_label:
            was_let_go = group is None and self._cluster.moved_pods.of(pod.uid) == name
            group, workload = None, ownership.standing_owner(plain) or (plain if was_let_go else None)
        adapter = self._cluster.registry.of(workload) if workload is not None else None
        if group == name or workload is None or adapter is None:
            return None
        taken = found.get(workload["metadata"]["uid"])
        if taken is None:
            left = ownership.let_go(workload)
            asks = group is not None and self._cluster.groups.cached(group) is not None
            asks = asks and (left is None or workload is not plain)
            taken = found[workload["metadata"]["uid"]] = _Taken(adapter, as_left(workload, left), group or "", asks)
        return taken

    def _group_of(self, pod: Pod) -> str | None:
        """Return the group that a pod stayed with, or that it was made for; None where its owner alone says so."""
        memory = self._cluster.payers.get(pod.uid)
        if memory is not None and memory.gone is not None:
            return memory.group
        return self._cluster.moved_pods.of(pod.uid)

    def _stayed(self, usage: GroupUsage) -> Iterator[Pod]:
        """Yield the stored pods that stayed with the group."""
        for uid in usage.leftovers:
            pod = self._cluster.informers.pod(uid)
            if pod is not None and self._cluster.ownership.has_stayed(pod.plain()):
                yield pod

    def _decide(
        self,
        group: GroupObject,
        usage: GroupUsage,
        taken: list[_Taken],
        states: Collection[tuple[Reservation, WriteState]],
    ) -> bool:
        """Decide. `states` are the reservations with what is known of their writes."""
        name, payers = group.name, self._cluster.payers
        self._awaited[name] = frozenset(itertools.chain.from_iterable(map(self._awaited_for, taken)))
        over = (entry for entry, state in states if state.is_over)
        room = self._room(group, usage, total(entry.extra for entry in over if entry.uid in self._departures[name]))
        changed: set[str] = set()
        going = {place: self._demand_at(place, usage) for each in taken for place in each.let_go_by.values()}
        covered = [self._paid_by_demand(each) for each in taken]
        for each, uids in zip(taken, covered, strict=True):
            room = add(room, restrict(self._give(name, each, uids, changed), room))
        for each, uids in zip(taken, covered, strict=True):
            for pod, cost in self._beyond(each, uids):
                payer = each.let_go_by.get(pod.uid)
                if payer is not None and not growth(cost, going[payer]):
                    # Its demand is charged for the same pods until it is gone, and decided after that.
                    going[payer] = subtract_floor(going[payer], cost)
                    continue
                cost = restrict(cost, room)
                if cost and not growth(cost, room):
                    room = subtract_floor(room, cost)
                    place, models = each.made_as[pod.uid]
                    payers.remember(pod.uid, Memory(name, place, self._now(), self._now(), models))
                    changed.add(pod.uid)
        held = self._held_for_deleted(group, usage, states)
        room = subtract_floor(room, total(each.cost for each in held))
        promised = {entry.uid for entry, state in states if not state.is_over}
        self._settle_left(name, taken, {each.uid for each in held}, room, promised)
        if changed:
            self._cluster.pods_stayed(changed, {name, *(each.group for each in taken if each.group)})
        return bool(changed)

    def _awaited_for(self, taken: _Taken) -> Iterator[str]:
        """Yield the uids of what may change before another group pays for pods that stayed with this one."""
        if not (taken.asks and taken.stayed):
            return
        yield taken.uid
        yield from (pod.uid for pod in self._cluster.descendants.pods_of(taken.workload))
        if (group := self._cluster.groups.cached(taken.group)) is not None:
            yield group.metadata.uid

    def _give(self, name: str, taken: _Taken, covered: Set[str], changed: set[str]) -> Resources:
        """Give the other group the pods that its demand pays for. Return what those cost that stayed until now.

        The other group may have been given another pod before that its controller ends since: that one stays instead.
        Add to `changed` the uids of what no longer stays, or stays now.
        """
        payers, moved, freed = self._cluster.payers, self._cluster.moved_pods, dict[str, int]()
        back = self._given_and_ending(name, taken)
        for uid in sorted(covered & taken.stayed.keys()):
            cost, memory = self._cost(taken.stayed[uid], taken.workload), payers.in_group(name, uid)
            payers.give_up(name, uid)
            changed.add(uid)
            instead = next((each for each, its in back.items() if not growth(its, cost)), None)
            if instead is not None and memory is not None:
                moved.give(instead, name)
                payers.remember(instead, replace(memory, since=self._now(), gone=self._now()))
                changed.add(instead)
                cost = subtract_floor(cost, back.pop(instead))
            freed = add(freed, cost)
        for uid in covered & (taken.made.keys() | taken.stayed.keys()):
            moved.give(uid, taken.group, taken_from=name)
        return freed

    def _given_and_ending(self, name: str, taken: _Taken) -> dict[str, Resources]:
        """Return what the pods cost that this group gave the other one for its demand, and that end there.

        By uid, the oldest first.
        """
        moved, ownership = self._cluster.moved_pods, self._cluster.ownership
        pods = self._cluster.descendants.pods_of(taken.workload) if taken.stayed else ()
        found = [
            pod
            for pod in pods
            if pod.is_being_deleted
            and (moved.taken_from(pod.uid), moved.of(pod.uid)) == (name, taken.group)
            and not ownership.has_stayed(pod.plain())
            and is_live(pod.life(), self._now())
        ]
        return {pod.uid: self._cost(pod, taken.workload) for pod in sorted(found, key=_age)}

    def _settle_left(
        self, name: str, taken: Iterable[_Taken], deleted: Set[str], room: Resources, promised: Set[str]
    ) -> None:
        """Hold what may still get pods for what it asked for here, and pay for the rest no longer.

        Its controllers may not have seen yet that it asks for less. What is promised pods here may have some still:
        `promised` are their uids. `deleted` are those of what is held because its pods may not be seen.
        """
        lags = {each.uid: each for each in taken if each.asks and self._costs.has_fallen(each.uid)}
        held: list[CountedObject] = []
        for uid, departure in list(self._departures[name].items()):
            if uid in deleted or self._is_early(name, uid):
                continue
            obj = self._cluster.placements.stored(uid)
            workload = (self._cluster.ownership.keeper_of(obj) or obj) if obj is not None else None
            is_back = workload is not None and self._cluster.ownership.group_of(workload) == name
            has_time = self._clock() - departure.since < _PATIENCE and not is_back
            top = workload["metadata"]["uid"] if workload is not None else ""
            if departure.line is not None and has_time and self._costs.has_fallen(top):
                counted = departure.line.counted
                pods = [*lags[top].made.values(), *lags[top].stayed.values()] if top in lags else []
                there = total(self._cost(pod, lags[top].workload) for pod in pods)
                more = smaller(subtract_floor(counted.charged, there), room)
                room = subtract_floor(room, more)
                held.append(CountedObject(counted.slot, uid, more))
                continue
            if uid in promised and not is_back:
                continue
            del self._departures[name][uid]
            if not is_back:
                self._settled.setdefault(name, set()).update((uid, *self._makers(uid, departure)))
        self._held[name] = held
        if self._departures[name].keys() <= deleted:
            self._hand_over(name, taken)

    def _held_for_deleted(
        self, group: GroupObject, usage: GroupUsage, states: Iterable[tuple[Reservation, WriteState]]
    ) -> list[CountedObject]:
        """Return what was charged or promised for what is gone, beyond what is seen of it.

        It is held until all is seen that it has made, and until what may still be made is rejected. The recount goes on
        meanwhile: in a busy group workloads are deleted all the time. What is counted for the first time was promised,
        so it takes nothing of that.
        """
        departures = self._departures[group.name].items()
        unseen = {uid: each for uid, each in departures if self._unseen(uid) or self._may_come(uid, each)}
        if not unseen:
            return []
        promised = total(entry.extra for entry, _ in states if entry.slot.kind != GROUP_SLOT_KIND)
        seen: dict[str, Resources] = {}
        for line in usage.leftovers.values():
            if line.left is not None:
                seen[line.left.place] = add(seen.get(line.left.place, {}), line.counted.charged)
        deleted: dict[str, Deleted] = {}
        for uid, departure in unseen.items():
            known = self._known_as(group.name, uid, departure)
            deleted[uid] = Deleted(departure, known.place if known is not None else "")
        return held_of_deleted(deleted, seen, self._room(group, usage, promised))

    def _hand_over(self, name: str, taken: Iterable[_Taken]) -> None:
        """Leave the pods that do not stay to the groups that have them now."""
        for each in taken:
            for uid in each.made.keys() - each.stayed.keys():
                if self._cluster.payers.in_group(name, uid) is not None:
                    continue
                if each.group:
                    self._cluster.moved_pods.give(uid, each.group)
                else:
                    self._cluster.moved_pods.release(uid)

    def _beyond(self, taken: _Taken, covered: Set[str]) -> Iterator[tuple[Pod, Resources]]:
        """Yield the pods that the demand in the other group does not pay for, with their cost.

        Those that are ending come first: no demand will pay for them. Then those that were surely made for the group,
        and then the oldest: pods of one second do not tell which is older.
        """
        of, pods = self._cluster.moved_pods.of, taken.made.values()
        for pod in sorted(pods, key=lambda each: (not each.is_being_deleted, of(each.uid) is None, *_age(each))):
            if pod.uid not in covered and is_live(pod.life(), self._now()):
                yield pod, self._cost(pod, with_models({"metadata": {}}, taken.made_as[pod.uid][1]))

    def _paid_by_demand(self, taken: _Taken) -> Set[str]:
        """Return the uids of the pods that the demand pays for: fresh ones, at first those that this group never had.

        Of the others the oldest: controllers delete the youngest first.
        """
        if not taken.asks:
            return set()
        left, found = self._observed_demand(taken), set[str]()
        mine = taken.made.keys() | taken.stayed.keys()
        pods = {pod.uid: pod for pod in self._cluster.descendants.pods_of(taken.workload)} | taken.stayed
        for pod in sorted(pods.values(), key=lambda each: (each.uid in mine, *_age(each))):
            if stage(pod.life(), self._now(), awaited=False) is Stage.FRESH:
                cost = self._cost(pod, taken.workload)
                if not growth(cost, left):
                    left = subtract_floor(left, cost)
                    found.add(pod.uid)
        return found

    def _observed_demand(self, taken: _Taken) -> Resources:
        """Return the demand in the other group without what its entries still promise.

        The workload's controller may act on an earlier spec, end these pods, and make what was promised besides.
        """
        demand = self._costs.of(taken.uid).resources
        group = self._cluster.groups.cached(taken.group)
        try:
            entries = wire.reservations_of(group) if group is not None else ()
        except GroupUnreadable:
            return {}
        for entry in entries:
            is_update = entry.uid == taken.uid and not entry.is_create
            if is_update and not self._tracker.is_acted_on(entry):
                demand = smaller(demand, entry.base)
        return demand

    def _cost(self, pod: Pod, workload: Object) -> Resources:
        adapter = self._cluster.registry.by_kind(*POD)
        lookup = self._cluster.resolver.cached_lookup
        return self._excess.cost(pod.plain(), adapter, workload, lookup) if adapter is not None else {}

    def _room(self, group: GroupObject, usage: GroupUsage, promised: Resources) -> Resources:
        """Return what the stored status holds beyond what the group is charged now: no more than that may stay.

        `promised` is what reservations add that the group was charged besides.
        """
        try:
            published = wire.parse_amounts(group, group.status.self_used)
        except GroupUnreadable:
            return {}
        apart = (pod.cost for pod in self._runs_on.apart(group.name, usage).values())
        now = total((usage.sums.cost, usage.sums.unrequested, *apart))
        return subtract_floor(add(published, restrict(promised, published)), now)


async def _reaches(informer: Informer, revision: int) -> bool:
    return await informer.catch_up(revision, CATCH_UP, lag=_LAG if is_listed(informer) else None)


def _write_of(entry: Reservation) -> _Write:
    return _Write(entry.uid, entry.resource_version)


def _age(pod: Pod) -> tuple[int, str]:
    return pod.created or 0, pod.uid
