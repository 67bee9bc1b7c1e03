"""The charges of a group at one moment that are not in the sums of its workloads.

This file alone computes what only a whole group shows: claims that several workloads name, and the amounts held for
workloads that could never be counted. It writes nothing and awaits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.quota.recount import CountedObject, WriteState, held_for_uncountable
from bizrq.quota.reservation import Reservation
from bizrq.units.resources import Resources, growth, larger, subtract_floor
from bizrq.units.resources import total as total_of
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices.dra import CLAIMS, ClaimContext, claim_cost
from bizrq.workloads.labels import labels_of
from bizrq.workloads.ownership.payers import place_in
from bizrq.workloads.validation import Malformed
from controller.usage.claim_payers import ClaimPayers
from controller.usage.excess import ExcessUsage
from controller.usage.findings import Findings
from controller.usage.usage_cache import GroupUsage
from controller.watch.cluster import Cluster


class GroupSnapshots:
    """Computes a group's charges from its cached usage and from the informers."""

    def __init__(
        self, cluster: Cluster, claim_payers: ClaimPayers, excess: ExcessUsage, config: CountingConfig
    ) -> None:
        self._cluster = cluster
        self._claim_payers = claim_payers
        self._excess = excess
        self._config = config
        #: The last countable cost of each claim, by uid.
        self._last: dict[str, Resources] = {}
        #: By group, the uids of workloads that could never be counted, and what the group holds for them together.
        self._unknown: dict[str, tuple[frozenset[str], Resources]] = {}

    def forget(self, name: str) -> None:
        """Forget a group that is gone."""
        self._unknown.pop(name, None)

    def shared(
        self,
        group: GroupObject,
        account: GroupUsage,
        sightings: Sequence[tuple[Reservation, WriteState]],
        findings: Findings,
    ) -> list[CountedObject]:
        """Return what the group is charged in addition to its workloads: claims, and amounts held for uncountable ones.

        Adds the messages of all workloads to `findings`.
        """
        for line in account.with_messages.values():
            findings.add(line.messages)
        findings.drift, account.drift = account.drift, []
        claims = _Claims()
        for line in account.with_claims.values():
            claims.add(line.counted.slot, line.shared, line.shown)
            for found in line.committed.values():
                claims.commit(found)
        counted = self._claims(group.name, claims, findings)
        return counted + self._held_for(group, account, counted, sightings)

    def _claims(self, name: str, claims: _Claims, findings: Findings) -> list[CountedObject]:
        """Return the cost of the claims that the group pays for, each once.

        These are the claims that name it, and those that its workloads name and no other group's older workload does.
        """
        lookup = self._cluster.resolver.cached_lookup
        for claim in self._cluster.informers.claims_of(name):
            metadata = claim["metadata"]
            place, uid = Slot(CLAIMS, metadata["namespace"], metadata["name"]), metadata["uid"]
            around = ClaimContext(labels_of(claim), metadata["namespace"], lookup, self._config)
            try:
                self._last[uid] = claim_cost(claim, around)
            except Malformed as error:
                findings.problems.append(f"{place}: {error}")
            claims.add(place, {place: self._last.get(uid, {})}, {})
        if len(self._last) > 2 * len(self._cluster.informers.claims.store) + 1000:
            self._last = {
                uid: cost for uid, cost in self._last.items() if self._cluster.informers.claims.store.by_uid(uid)
            }
        apart: dict[str, CountedObject] = {}
        for user, uid, found in self._cluster.vanished.claims(name):
            if self._cluster.informers.claims.store.kept(uid) is not None:
                claims.add(user, {}, {found.place: found.cost})
            else:
                # Another claim may have its name by now.
                apart[uid] = CountedObject(Slot(CLAIMS, "", uid), uid, {}, found.cost)
        counted = list(apart.values())
        for place, cost in sorted(claims.declared.items()):
            payer = self._claim_payers.payer_of(place) or name
            if payer == name:
                found = CountedObject(place, str(place), cost, growth(claims.shown[place], cost))
                whole, lien_ = claims.committed.get(place, ({}, {}))
                counted.append(replace(found, max_cost=whole, committed=lien_))
            else:
                findings.claims.append(f"{claims.user[place]} uses {place}, which group {payer} pays for")
        return counted

    def _held_for(
        self,
        group: GroupObject,
        account: GroupUsage,
        claims: Sequence[CountedObject],
        sightings: Sequence[tuple[Reservation, WriteState]],
    ) -> list[CountedObject]:
        """Return what the group holds for workloads that could never be counted: as much as its status held for them.

        Computed when one of them is first met. Decreases as they are counted, and ends with the last of them.
        """
        if not account.unknown:
            self._unknown.pop(group.name, None)
            return []
        known, held = self._unknown.get(group.name, (frozenset(), {}))
        if account.unknown.keys() - known:
            try:
                published = wire.parse_amounts(group, group.status.self_used)
            except GroupUnreadable:
                published = {}
            sums = account.sums
            found = total_of((sums.cost, sums.unrequested, *(each.charged for each in claims)))
            held = held_for_uncountable(published, sightings, found)
        else:
            now_known = [account.usages[uid] for uid in known - account.unknown.keys() if uid in account.usages]
            held = subtract_floor(held, total_of(line.counted.cost for line in now_known))
        self._unknown[group.name] = frozenset(account.unknown), held
        slot, uid = min((line.counted.slot, uid) for uid, line in account.unknown.items())
        return [CountedObject(slot, uid, held)]

    def adoptable(self, usage: GroupUsage, entries: Iterable[Reservation]) -> dict[Slot, Resources]:
        """Return what `used` holds of leftovers that creates will adopt, by the slot of the create.

        As in admission, what it left belongs to the next workload of its kind and name.
        """
        if not usage.leftovers:
            return {}
        by_place: dict[str, list[Resources]] = {}
        for line in usage.leftovers.values():
            if line.left is not None:
                by_place.setdefault(line.left.place, []).append(line.counted.cost)
        found: dict[Slot, Resources] = {}
        for slot in {entry.slot for entry in entries if entry.is_create and entry.base}:
            adapter = self._cluster.registry.of_slot(slot)
            if adapter is not None:
                found[slot] = total_of(by_place.get(place_in(slot, adapter), ()))
        return found

    def may_drop(self, name: str, usage: GroupUsage, entry: Reservation) -> bool:
        """Return True where a status without the entry counts its object, or what that left.

        An object that another group or an owner pays for is counted there. So is what left an owner that is being
        deleted, until that is gone.
        """
        if entry.uid in usage.usages:
            return True
        stored = self._cluster.placements.of(entry.uid)
        if stored.obj is not None:
            if name not in stored.groups:
                return True
            payer = self._cluster.ownership.payer_of(stored.obj)
            has_line = self._cluster.payers.in_group(name, entry.uid) is not None
            return has_line and payer is not None and payer["metadata"]["uid"] in usage.usages
        return self._cluster.payers.get(entry.uid) is not None or not self._cluster.releases.has_left(entry.uid)

    def owner_paid(self, usage: GroupUsage, entries: Iterable[Reservation]) -> list[CountedObject]:
        """Return the stored objects of these reservations that an owner pays for, where the group counts none there."""
        covered: list[CountedObject] = []
        for entry in entries:
            if usage.sums.get(entry.slot) is not None:
                continue
            informer = self._cluster.informers.workloads.get(entry.slot.kind)
            stored = informer.store.get(entry.slot.name, entry.slot.namespace) if informer is not None else None
            pays = self._cluster.ownership.payer_of(stored) if stored is not None else None
            if stored is not None and pays is not None:
                cost = self._excess.child_cost(stored, pays)
                covered.append(CountedObject(entry.slot, stored["metadata"]["uid"], cost))
        return covered


@dataclass(slots=True)
class _Claims:
    """Shared claims of a group's workloads: what these declare of them, and what their pods show of them."""

    declared: dict[Slot, Resources] = field(default_factory=dict)
    shown: dict[Slot, Resources] = field(default_factory=dict)
    user: dict[Slot, Slot] = field(default_factory=dict)
    #: Where hours are prepaid: the most that any workload may cost at its start, and may still cost.
    committed: dict[Slot, tuple[Resources, Resources]] = field(default_factory=dict)

    def commit(self, found: CountedObject) -> None:
        whole, lien_ = self.committed.get(found.slot, ({}, {}))
        self.committed[found.slot] = larger(whole, found.max_cost), larger(lien_, found.committed)

    def add(self, user: Slot, declared: Mapping[Slot, Resources], shown: Mapping[Slot, Resources]) -> None:
        for found, costs in ((self.declared, declared), (self.shown, shown)):
            for place, cost in costs.items():
                found[place] = larger(found.get(place, {}), cost)
        for place in (*declared, *shown):
            self.user.setdefault(place, user)
            self.declared.setdefault(place, {})
            self.shown.setdefault(place, {})
