"""What a group's workloads and their claims cost it in one snapshot.

This file alone gathers that; it writes nothing, and awaits nothing. What it means is `bizrq.quota.recount`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.quota.recount import Counted, Sighting, held_for_others
from bizrq.quota.reservation import Reservation, Slot
from bizrq.quota.resources import Resources, add, growth, larger, subtract_floor
from bizrq.quota.resources import total as total_of
from bizrq.quota.terms import Terms, began, lien, possible
from bizrq.quota.times import TimestampError, milliseconds
from bizrq.workloads.adapters import Adapter
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.dra import CLAIMS, Claims, of_claim
from bizrq.workloads.labels import labels_of
from bizrq.workloads.malformed import Malformed
from bizrq.workloads.roles import longest_run, runs_since
from controller.cluster import Cluster, Object
from controller.costs import Costs, slot_of
from controller.evidence import Evidence
from controller.pods import Pod
from controller.surplus import Surplus
from controller.telling import Told


class Charges:
    """Answers what a group's own workloads cost, as they stand in the informers and were counted."""

    def __init__(
        self,
        cluster: Cluster,
        costs: Costs,
        surplus: Surplus,
        evidence: Evidence,
        config: CountingConfig,
        now: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._costs = costs
        self._surplus = surplus
        self._evidence = evidence
        self._config = config
        self._now = now
        #: What each claim cost when it could last be counted, by uid.
        self._last: dict[str, Resources] = {}
        #: By group, the workloads that we could never count, by uid, and what the group held for them together.
        self._unknown: dict[str, tuple[frozenset[str], Resources]] = {}

    def forget(self, name: str) -> None:
        self._unknown.pop(name, None)

    def of(
        self, group: GroupObject, terms: Terms, at: int, sightings: Sequence[tuple[Reservation, Sighting]], told: Told
    ) -> list[Counted]:
        """What the group's own workloads cost, with what they may still cost from `at`; `told` what people have to
        know of them.
        """
        name = group.name
        counted: list[Counted] = []
        #: By uid, the places of those that we could never count.
        unknown: dict[str, Slot] = {}
        claims = _Claims()
        now = self._now()
        for adapter, obj in self._cluster.charged_to(name):
            metadata = obj["metadata"]
            slot = slot_of(adapter, obj)
            cost = self._costs.of(metadata["uid"])
            if cost.problem:
                told.problems.append(f"{slot}: {cost.problem}")
                if not self._costs.was_counted(metadata["uid"]):
                    unknown[metadata["uid"]] = slot
            if cost.finding:
                told.surplus.append(cost.finding)
            shown = self._evidence.beyond(obj, now, countable=not cost.problem)
            # Of what cannot be counted the pods show all that they have, and some of it is what it is held at.
            more = growth(shown.resources, cost.resources) if cost.problem else shown.resources
            told.mismatches.extend(f"{slot} {finding}" for finding in shown.findings)
            found = Counted(slot, metadata["uid"], cost.resources, add(cost.beyond, more))
            counted.append(self._pledged(found, adapter, obj, terms, at, told) if terms.safe else found)
            claims.add(slot, cost.shared, shown.shared)
            for place, claim in cost.shared.items() if terms.safe else ():
                claims.pledge(self._pledged(Counted(place, "", claim), adapter, obj, terms, at, told))
        counted += self._claims(name, claims, told)
        return counted + self._held_for(group, unknown, counted, sightings)

    def _claims(self, name: str, claims: _Claims, told: Told) -> list[Counted]:
        """What claims cost the group that it pays for, each once: those that name it, and those that its workloads do
        and no other group's did before them.
        """
        lookup = self._cluster.related.watched
        for claim in self._cluster.claims_of(name):
            metadata = claim["metadata"]
            place, uid = Slot(CLAIMS, metadata["namespace"], metadata["name"]), metadata["uid"]
            around = Claims(labels_of(claim), metadata["namespace"], lookup, self._config)
            try:
                self._last[uid] = of_claim(claim, around)
            except Malformed as error:
                told.problems.append(f"{place}: {error}")
            claims.add(place, {place: self._last.get(uid, {})}, {})
        if len(self._last) > 2 * len(self._cluster.claims.store) + 1000:
            self._last = {uid: cost for uid, cost in self._last.items() if self._cluster.claims.store.by_uid(uid)}
        counted: list[Counted] = []
        for place, cost in sorted(claims.declared.items()):
            payer = self._costs.payer_of_claim(place) or name
            if payer == name:
                found = Counted(place, str(place), cost, growth(claims.shown[place], cost))
                whole, lien_ = claims.pledged.get(place, ({}, {}))
                counted.append(replace(found, whole=whole, lien=lien_))
            else:
                told.claims.append(f"{claims.user[place]} uses {place}, which group {payer} pays for")
        return counted

    def _pledged(self, found: Counted, adapter: Adapter, obj: Object, terms: Terms, at: int, told: Told) -> Counted:
        """A workload with what it may cost where hours are safe: it was admitted only because that was left."""
        own = longest_run(obj, adapter)
        run = terms.max_run_time if own is None else own
        if run is None:
            if any(not name.startswith("count/") for name in found.cost):
                told.unbounded.append(str(found.slot))
            return found
        whole = possible(found.cost, run)
        if (since := _instant(runs_since(obj, adapter))) is not None:
            starts = (pod.started for pod in self._cluster.pods_of(obj))
            scheduled = min((start for start in starts if start is not None), default=None)
            return replace(found, whole=whole, lien=lien(found.cost, run, at - began(since, scheduled)))
        # Nobody says since when: each of its pods may run as long.
        ran: Resources = {}
        for pod in self._cluster.pods_of(obj):
            if pod.started is not None and pod.ended is None:
                ran = add(ran, possible(self._pod_cost(pod, obj), min(run, max(0, at - pod.started))))
        return replace(found, whole=whole, lien=subtract_floor(whole, ran))

    def _pod_cost(self, pod: Pod, obj: Object) -> Resources:
        """What a pod occupies; nothing where it cannot be counted, so that its workload may still cost as much."""
        try:
            return self._evidence.cost(pod, obj)
        except Malformed:
            return {}

    def _held_for(
        self,
        group: GroupObject,
        unknown: dict[str, Slot],
        counted: list[Counted],
        sightings: Sequence[tuple[Reservation, Sighting]],
    ) -> list[Counted]:
        """What workloads are held at that we could never count: as much as their group held for them before us.

        Found once, when one of them is first met; then it is no more than those of them that have been counted since
        leave of it, and nothing once none is left.
        """
        if not unknown:
            self._unknown.pop(group.name, None)
            return []
        known, held = self._unknown.get(group.name, (frozenset(), {}))
        if unknown.keys() - known:
            try:
                published = wire.amounts(group, group.status.self_used)
            except GroupUnreadable:
                published = {}
            held = held_for_others(published, sightings, counted)
        else:
            found = total_of(each.cost for each in counted if each.uid in known - unknown.keys())
            held = subtract_floor(held, found)
        self._unknown[group.name] = frozenset(unknown), held
        uid = min(unknown, key=lambda each: unknown[each])
        return [Counted(unknown[uid], uid, held)]

    def covered(self, entries: Iterable[Reservation]) -> list[Counted]:
        """Stored objects that entries speak of and that something above them pays for."""
        covered: list[Counted] = []
        for entry in entries:
            informer = self._cluster.workloads.get(entry.slot.kind)
            stored = informer.store.get(entry.slot.name, entry.slot.namespace) if informer is not None else None
            pays = self._cluster.payer_of(stored) if stored is not None else None
            if stored is not None and pays is not None:
                cost = self._surplus.child_cost(stored, pays)
                covered.append(Counted(entry.slot, stored["metadata"]["uid"], cost))
        return covered


@dataclass(slots=True)
class _Claims:
    """What a group's workloads make of claims that others may name as well, and what their pods show of them."""

    declared: dict[Slot, Resources] = field(default_factory=dict)
    shown: dict[Slot, Resources] = field(default_factory=dict)
    user: dict[Slot, Slot] = field(default_factory=dict)
    #: The most that any of them may still cost, and might have at its begin, where hours are safe.
    pledged: dict[Slot, tuple[Resources, Resources]] = field(default_factory=dict)

    def pledge(self, found: Counted) -> None:
        whole, lien_ = self.pledged.get(found.slot, ({}, {}))
        self.pledged[found.slot] = larger(whole, found.whole), larger(lien_, found.lien)

    def add(self, user: Slot, declared: Mapping[Slot, Resources], shown: Mapping[Slot, Resources]) -> None:
        for found, costs in ((self.declared, declared), (self.shown, shown)):
            for place, cost in costs.items():
                found[place] = larger(found.get(place, {}), cost)
        for place in (*declared, *shown):
            self.user.setdefault(place, user)
            self.declared.setdefault(place, {})
            self.shown.setdefault(place, {})


def _instant(text: str | None) -> int | None:
    """A time as milliseconds; None where there is none that can be read."""
    try:
        return milliseconds(text) if text else None
    except TimestampError:
        return None
