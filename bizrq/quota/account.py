"""A group's account: what is used and reserved, and the ceilings.

This file alone keeps the sums. It does not know workloads, webhooks or clocks: amounts come in as `Resources`, times as
integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from bizrq.quota.reservation import Reservation, Write, in_order, merge_extra, slot_extra
from bizrq.units.names import Catalog, base_and_model, is_cash, metered_resource
from bizrq.units.resources import Limits, Resources
from bizrq.units.slot import Slot

MAX_ENTRIES = 2_000
MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AccountHours:
    """An account's hours, without `used`; amounts by `cash/` name, in nano-units x hours.

    `next_grant` is the time of the next grant as text, "" for never. Where hours are `safe`, `committed` is what the
    counted workloads may still cost, None before the first recount. A workload without a bound of its own runs for
    `max_run_time` milliseconds at most. `carried` is the rest of what was carried over from the period before.
    """

    next_grant: str = ""
    safe: bool = False
    max_run_time: int | None = None
    committed: Resources | None = None
    carried: Resources = field(default_factory=dict)

    def run_bound(self, own: int | None) -> int | None:
        """Return the longest run in milliseconds of a workload with this bound of its own."""
        return self.max_run_time if own is None else own


_NO_HOURS = AccountHours()


class Account:
    """A running copy of one group's account. `decide` reads it, `reserve` and `take_back` change it.

    `used` is as published: a name of `hard` that it lacks is unknown, not zero.
    """

    __slots__ = (
        "_by_namespace",
        "_by_slot",
        "_bytes",
        "_count",
        "_extra",
        "_oldest",
        "_sizes",
        "catalog",
        "group",
        "hard",
        "hours",
        "problem",
        "reserved",
        "stored_names",
        "used",
    )

    def __init__(
        self,
        group: str,
        hard: Limits,
        used: Resources,
        reservations: Iterable[Reservation] = (),
        hours: AccountHours = _NO_HOURS,
        *,
        catalog: Catalog,
        problem: str = "",
    ) -> None:
        """`problem` says why the payers of what runs cannot be remembered; "" if they can."""
        self.group = group
        self.catalog = catalog
        self.problem = problem
        self.hard = hard
        self.hours = hours
        self.used = used
        #: The names that entries are stored with: those of `hard`, and those whose hours it has.
        self.stored_names = frozenset((*hard, *(metered_resource(name) for name in hard if is_cash(name))))
        self.reserved: dict[str, int] = {}
        self._by_slot: dict[Slot, tuple[Reservation, ...]] = {}
        self._extra: dict[Slot, Resources] = {}
        #: What the entries of each namespace add to `used`.
        self._by_namespace: dict[str, dict[str, int]] = {}
        #: The number of entries of each namespace, and their bytes.
        self._sizes: dict[str, tuple[int, int]] = {}
        #: When the first entry of each namespace expires, or one that it had.
        self._oldest: dict[str, int] = {}
        self._count = 0
        self._bytes = 0
        by_slot: dict[Slot, list[Reservation]] = {}
        for entry in reservations:
            by_slot.setdefault(entry.slot, []).append(entry)
        for slot, entries in by_slot.items():
            self._set(slot, tuple(entries), slot_extra(entries))

    @property
    def reservations(self) -> list[Reservation]:
        return in_order(self.entries())

    def entries(self) -> Iterator[Reservation]:
        """Iterate over the reservations unsorted: to sort thousands of slots costs more than to decide."""
        return chain.from_iterable(self._by_slot.values())

    def reservations_of(self, slot: Slot) -> tuple[Reservation, ...]:
        return self._by_slot.get(slot, ())

    def unknown_names(self) -> list[str]:
        """Return the names of `hard` whose use, or whose liens, no recount has published yet; sorted."""
        lacks_liens = self.hours.safe and self.hours.committed is None
        return sorted(n for n in self.hard if n not in self.used or (lacks_liens and is_cash(n)))

    def models_of(self, base: str) -> list[str]:
        """Return the names in `hard` of single models of this base."""
        found = ((name, base_and_model(name, self.catalog)) for name in self.hard)
        return [name for name, split in found if split is not None and split[0] == base]

    def taken(self, name: str) -> int:
        """Return what is used, reserved and committed, in nano-units; carried hours pay for liens first."""
        taken = self.used.get(name, 0) + self.reserved.get(name, 0)
        return taken + max(0, self._commitment(name)) if self.hours.safe else taken

    def ceiling(self, name: str, *, grant: bool = False) -> int:
        """Return how much may be taken, in nano-units: where hours are safe, a workload may also use carried hours."""
        hard = self.hard[name]
        return hard if grant or not self.hours.safe else hard + max(0, -self._commitment(name))

    def _commitment(self, name: str) -> int:
        """Return the liens that carried hours do not pay for; below 0, the carried hours that are left."""
        if not self.hours.safe or self.hours.committed is None:
            return 0
        return self.hours.committed.get(name, 0) - self.hours.carried.get(name, 0)

    def is_full(self) -> bool:
        return self._count >= MAX_ENTRIES or self._bytes >= MAX_BYTES

    def with_entry(self, entry: Reservation) -> tuple[Reservation, ...]:
        """Return the slot's entries with this one added, in place of one of the same write."""
        return (*(old for old in self.reservations_of(entry.slot) if not old.same_write(entry)), entry)

    def extra_of(self, slot: Slot) -> Resources:
        """Return what the entries of a slot add to `used`, in nano-units."""
        return self._extra.get(slot, {})

    def reserved_by(self, namespace: str) -> Resources:
        """Return what the entries of a namespace add to `used`, in nano-units; "" is that of child groups."""
        return self._by_namespace.get(namespace, {})

    def all_expire_from(self, namespace: str, moment: int) -> bool:
        """Return True if no entry of a namespace expires before a moment. An entry that is gone may count."""
        return self._oldest.get(namespace, moment) >= moment

    def would_crowd(self, namespace: str) -> bool:
        """Return True where one more entry gives a namespace more than half of the space that others leave."""
        count, size = self._sizes.get(namespace, (0, 0))
        return 2 * (count + 1) > MAX_ENTRIES - self._count + count or 2 * size > MAX_BYTES - self._bytes + size

    def reserve(self, entry: Reservation) -> None:
        """Enter a reservation that `decide` granted."""
        entries = self.with_entry(entry)
        joins = len(entries) > len(self.reservations_of(entry.slot))
        # A thousand creates of one name share a slot: to add one must not read them all.
        self._set(entry.slot, entries, merge_extra(self.extra_of(entry.slot), entry) if joins else slot_extra(entries))

    def take_back(self, write: Write) -> bool:
        """Drop the reservation of a write that is refused; False where there is none."""
        slot = write[0]
        before = self.reservations_of(slot)
        entries = tuple(entry for entry in before if entry.write != write)
        if len(entries) == len(before):
            return False
        self._set(slot, entries, slot_extra(entries))
        return True

    def _set(self, slot: Slot, entries: tuple[Reservation, ...], extra: Resources) -> None:
        old = self._by_slot.get(slot, ())
        mine = self._by_namespace.setdefault(slot.namespace, {})
        for name, amount in self.extra_of(slot).items():
            self.reserved[name] -= amount
            mine[name] -= amount
        for name, amount in extra.items():
            self.reserved[name] = self.reserved.get(name, 0) + amount
            mine[name] = mine.get(name, 0) + amount
        before, after = {id(entry) for entry in old}, {id(entry) for entry in entries}
        self._by_slot[slot], self._extra[slot] = entries, extra
        more = len(entries) - len(old)
        added = [entry for entry in entries if id(entry) not in before]
        for entry in added:
            self._oldest[slot.namespace] = min(entry.expires, self._oldest.get(slot.namespace, entry.expires))
        # Three bytes a line for the quotes and the comma.
        size = sum(len(entry.line) + 3 for entry in added)
        size -= sum(len(entry.line) + 3 for entry in old if id(entry) not in after)
        self._count += more
        self._bytes += size
        count, known = self._sizes.get(slot.namespace, (0, 0))
        self._sizes[slot.namespace] = count + more, known + size
