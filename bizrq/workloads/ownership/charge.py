"""Compute what one slot is charged: the workload's demand or what runs beyond it, and what is still ending.

This file alone has that formula. Amounts are integer nano-units by resource name; an absent name is 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from bizrq.units.resources import Resources, growth, larger, scale, smaller, subtract_floor, total
from bizrq.workloads.ownership.lives import Life, Stage, ends_at, stage
from bizrq.workloads.ownership.overlap import free, until

_NOTHING: Resources = MappingProxyType({})


def slot_charge(
    demand: Resources, fresh: Resources, free: Resources, ending: Resources, missing: Resources = _NOTHING
) -> dict[str, int]:
    """Return max(`demand`, `fresh` - `free` + `missing`) + `ending` per resource, over the names of all.

    Each is the sum over its pods; `free` are among the `fresh`. `missing` are declared pods that do not exist yet:
    while a template shrinks, they come in addition to the larger old ones (`tests/model/pods.py` finds that). The
    charge is never less than the cost of the live pods without the free ones. It is the demand once exactly the
    declared pods run.
    """
    return total((larger(demand, total((subtract_floor(fresh, free), missing))), ending))


class Held(NamedTuple):
    """One pod of a slot with what it costs; `version` as in `overlap.Replica`, `awaited` as in `lives.stage`.

    `many` equal pods may be given as one with the cost of one. Where some may be free (`may_be_free`), they have to be
    made at the same moment, too.
    """

    uid: str
    version: Hashable
    life: Life
    cost: Resources
    awaited: bool = False
    many: int = 1

    @property
    def created(self) -> int | None:
        return self.life.created

    def some(self, many: int) -> Held:
        return self._replace(many=many)


@dataclass(frozen=True, slots=True)
class Weighed:
    """The charge of a slot and its parts. `again` is the first moment at which the clock alone changes it.

    `fresh` are all fresh pods and `free` those of them that cost nothing, `runs` is what the others cost, and `beyond`
    the charge without the demand.
    """

    charge: dict[str, int]
    demand: Resources
    beyond: dict[str, int] = field(default_factory=dict)
    runs: Resources = field(default_factory=dict)
    ending: Sequence[Held] = ()
    free: Sequence[Held] = ()
    fresh: Sequence[Held] = ()
    again: int | None = None


def may_be_free(pods: Sequence[Held], declared: int) -> bool:
    """Return True where more pods than declared, of several versions, may be fresh."""
    return number_of(pods) > declared and len({pod.version for pod in pods}) > 1


def weigh(
    demand: Resources,
    declared: int,
    pods: Iterable[Held],
    now: int,
    *,
    surges: bool,
    per_pod: Resources = _NOTHING,
    awaits: int | None = None,
) -> Weighed:
    """Sort a slot's pods by stage at the time `now` and return the charge.

    `declared` is the number of pods that the workload asks for, and `per_pod` the cost of the next of them; of a
    workload with several kinds of pods pass the least per resource. `surges` is true for kinds whose controllers make
    the new version while the old one runs, unless the policy counts the surge. No more than `awaits` pods are awaited,
    by default those that are declared. Free pods subtract at most the demand: a pod that was resized in place would be
    free at any size.
    """
    stages = [(pod, stage(pod.life, now, awaited=pod.awaited)) for pod in pods]
    fresh = [pod for pod, found in stages if found is Stage.FRESH]
    fresh, replaced = _awaited(declared if awaits is None else awaits, fresh)
    ending = [*(pod for pod, found in stages if found is Stage.ENDING), *replaced]
    spared = free(fresh, declared, now) if surges else []
    there, at_no_cost = cost_of(fresh), smaller(cost_of(spared), demand)
    charge = slot_charge(
        demand,
        there,
        at_no_cost,
        cost_of(ending),
        scale(per_pod, max(0, declared - number_of(fresh))),
    )
    ends = [end for pod in (*fresh, *ending) if (end := ends_at(pod.life)) is not None]
    return Weighed(
        charge,
        demand,
        growth(charge, demand),
        subtract_floor(there, at_no_cost),
        tuple(ending),
        tuple(spared),
        tuple(fresh),
        min((*ends, *(end for end in (until(spared),) if end is not None)), default=None),
    )


def _awaited(most: int, fresh: list[Held]) -> tuple[list[Held], list[Held]]:
    """Return the fresh pods, and those apart that are being deleted and not awaited, since others run in their place.

    No more than `most` are awaited: a tenant may change whether a controller awaits any, to and fro.
    """
    beyond = number_of(fresh) - most
    if beyond <= 0 or not any(pod.life.is_being_deleted for pod in fresh):
        return fresh, []
    kept: list[Held] = []
    replaced: list[Held] = []
    for pod in fresh:
        many = min(pod.many, beyond) if pod.life.is_being_deleted else 0
        if many > 0:
            replaced.append(pod.some(many))
            beyond -= many
        if many < pod.many:
            kept.append(pod.some(pod.many - many))
    return kept, replaced


def number_of(pods: Iterable[Held]) -> int:
    """Return how many pods there are."""
    return sum(pod.many for pod in pods)


def cost_of(pods: Iterable[Held]) -> dict[str, int]:
    """Return what pods cost together."""
    # Most pods of a slot share one cost.
    alike: dict[int, tuple[Resources, int]] = {}
    for pod in pods:
        known = alike.get(id(pod.cost))
        alike[id(pod.cost)] = pod.cost, pod.many + (known[1] if known is not None else 0)
    return total(scale(cost, many) for cost, many in alike.values())
