"""Card-hours: what a group's pods have occupied, for how long, charged once.

This file alone decides how time becomes money. It does not know pods or clocks: intervals come in as integer
milliseconds, half open, and amounts as nano-units; inside, a spent amount is nano-units x milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bizrq.quota.names import cash
from bizrq.quota.resources import Resources
from bizrq.quota.resources import total as sum_of

HOUR = 3_600_000
_MILLI = 1_000_000


class Occupied(NamedTuple):
    """A pod's stay: from PodScheduled to its last container's `finishedAt`, or to its deletion; None while it runs."""

    uid: str
    start: int
    end: int | None
    cost: Resources


@dataclass(frozen=True, slots=True)
class Running:
    """A stay that is not over: since when, and what it occupies."""

    start: int
    cost: Resources


@dataclass(frozen=True, slots=True)
class Meter:
    """A group's card-hours as they are stored, all of it in one write.

    `settled` holds finished stays in nano-units x milliseconds by resource; `running` the open ones by pod uid,
    charged up to `watermark`; `finished` pods that are settled and still exist, so that none is settled twice.
    `inherited` is what deleted children had spent, in the same unit by child uid, until the child is gone for good.
    """

    watermark: int = 0
    settled: Resources = field(default_factory=dict)
    running: Mapping[str, Running] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()
    inherited: Mapping[str, Resources] = field(default_factory=dict)


def tick(
    meter: Meter,
    stays: Sequence[Occupied],
    now: int,
    *,
    ended: Callable[[str], int | None] = lambda _: None,
) -> Meter:
    """The meter moved on to `now`.

    `stays` are all pods of the snapshot that were ever scheduled, and those that ended and are gone since the meter
    was last stored. A running one that is not among them ended when `ended` says, or else at the watermark, the last
    time it was known to live. Where the cost of one changes, what it occupied before is settled up to `now`.
    """
    settled = dict(meter.settled)
    running: dict[str, Running] = {}
    finished = set()
    for stay in stays:
        if stay.uid in meter.finished:
            finished.add(stay.uid)
            continue
        known = meter.running.get(stay.uid) or Running(stay.start, stay.cost)
        if stay.end is not None:
            _settle(settled, known.start, stay.end, known.cost)
            finished.add(stay.uid)
        elif stay.cost and stay.cost != known.cost and now > known.start:
            _settle(settled, known.start, now, known.cost)
            running[stay.uid] = Running(now, stay.cost)
        else:
            running[stay.uid] = known
    for uid, known in meter.running.items():
        if uid not in running and uid not in finished:
            end = ended(uid)
            _settle(settled, known.start, meter.watermark if end is None else end, known.cost)
    return Meter(max(meter.watermark, now), settled, running, frozenset(finished), meter.inherited)


def inherit(meter: Meter, uid: str, amounts: Resources) -> Meter:
    """The meter of a parent that takes over, once, what the child with this uid has spent (`total` of its meter)."""
    if uid in meter.inherited:
        return meter
    return replace(meter, inherited={**meter.inherited, uid: dict(amounts)})


def forget(meter: Meter, exists: Callable[[str], bool]) -> Meter:
    """The meter with the inheritance of children that are gone folded into what is settled."""
    kept = {uid: amounts for uid, amounts in meter.inherited.items() if exists(uid)}
    gone = [amounts for uid, amounts in meter.inherited.items() if uid not in kept]
    return replace(meter, settled=sum_of([meter.settled, *gone]), inherited=kept) if gone else meter


def total(meter: Meter) -> dict[str, int]:
    """All that the meter has counted up to its watermark, in nano-units x milliseconds by resource."""
    amounts = sum_of([meter.settled, *meter.inherited.values()])
    for known in meter.running.values():
        _settle(amounts, known.start, meter.watermark, known.cost)
    return amounts


def hours(amounts: Resources) -> dict[str, int]:
    """Nano-units x milliseconds as `cash/` names in nano-units x hours, rounded up to milli (DESIGN 6)."""
    return {cash(name): -(-amount // (HOUR * _MILLI)) * _MILLI for name, amount in sorted(amounts.items())}


def spent(meter: Meter) -> dict[str, int]:
    """What `status` shows of the meter."""
    return hours(total(meter))


def _settle(settled: dict[str, int], start: int, end: int, cost: Resources) -> None:
    length = max(0, end - start)
    for name, amount in cost.items():
        if amount:
            settled[name] = settled.get(name, 0) + amount * length
