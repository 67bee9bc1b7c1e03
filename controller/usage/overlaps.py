"""The makers of pods that get no new pod for now, because their group is over its quota through overlap.

This file alone decides which they are, and words the rejection (docs/ownership.md, law 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, zip_longest
from typing import Final, NamedTuple, Protocol

from bizrq.api.group import GroupObject
from bizrq.quota.recount import Recount
from bizrq.units.resources import Resources, add
from controller.usage.pod_charge import Overlap
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage

#: The most workloads that are listed only because pods of others are ending, and the most places.
MAX_OTHERS = 100
_HAS_LEFT: Final = "those that it has left"


class FindsMakers(Protocol):
    """Finds what makes the pods of the workload with a uid, by the keys of the list."""

    def keys(self, uid: str) -> Sequence[str]:
        """Return the keys of all of it, the first first."""
        ...

    def keys_of_larger(self, uid: str) -> Sequence[str]:
        """Return the keys of what makes larger pods than the workload asks for."""
        ...

    def keys_at(self, place: str) -> Sequence[str]:
        """Return the keys of what may come to be at a place and adopt what was left there; none where something is."""
        ...


class Rejection(NamedTuple):
    """The text of a rejection, and the time at which it ends by itself, in milliseconds since 1970."""

    text: str
    ends: int | None = None


def rejections(group: GroupObject, counted: Recount, usage: GroupUsage, makers: FindsMakers) -> dict[str, Rejection]:
    """Return the rejection by the key of each object whose pods nobody may replace, the first keys first.

    A workload is among them while pods run besides those that it declares, for more than it asks for, or that it has
    left, and take some of what the group lacks. With a Deployment all its ReplicaSets are, or each new version would
    bring pods that are not listed yet. While such pods are ending, the other workloads of the group follow, as with
    native quota: otherwise each of them could bring replacements until the recount that finds it over, too. One whose
    pods have gone is not among them while less runs than `hard`: it only gets back what it is charged for. So is what
    may come in the place of a workload that left pods: it is admitted for those that it adopts, and gets no others.
    """
    if not counted.over:
        return {}
    left = _left(usage)
    rejected: list[tuple[Sequence[str], Rejection]] = []
    listed: set[str] = set()
    ending: list[_Cause] = []
    for uid, line in usage.usages.items():
        if line.overlap is None and not line.surplus and line.place not in left:
            # Nearly all are like that, of thousands.
            continue
        causes = list(_beside(line, left.get(line.place, {})))
        if found := _rejection(group, str(line.counted.slot), causes, counted.over):
            rejected.append((makers.keys(uid), found))
            listed.add(uid)
            ending += [each for each in causes if each.is_ending and each.takes(counted.over)]
        elif line.surplus and (found := _rejection(group, str(line.counted.slot), [_larger(line)], counted.over)):
            # It has no more pods than it asks for: smaller ones may come in place of larger ones.
            rejected.append((makers.keys_of_larger(uid), found))
    found = chain(_in_turn(rejected), _in_turn(_of_places(group, left, makers, counted.over)))
    if ending:
        why = _others_ending(group, ending, counted.over)
        others = [line for uid, line in usage.usages.items() if line.makers and uid not in listed]
        if _has_room(usage.usages.values(), counted.over):
            others = [line for line in others if not any(_missing(line, name) for name in counted.over)]
        largest = nlargest(MAX_OTHERS, others, lambda line: _share(line.counted.charged, counted.over))
        found = chain(found, _in_turn([(makers.keys(line.counted.uid), why) for line in largest]))
    by_key: dict[str, Rejection] = {}
    for key, rejection in found:
        by_key.setdefault(key, rejection)
    return by_key


def _of_places(
    group: GroupObject, left: Mapping[str, Resources], makers: FindsMakers, over: Mapping[str, int]
) -> Iterator[tuple[Sequence[str], Rejection]]:
    """Yield the keys of what may come in the place of workloads that left most, each with its rejection."""
    largest = nlargest(MAX_OTHERS, left, lambda place: _share(left[place], over))
    for place in largest:
        if found := _rejection(group, place, [_Cause(_HAS_LEFT, left[place])], over):
            yield makers.keys_at(place), found


def _in_turn(rejected: Iterable[tuple[Sequence[str], Rejection]]) -> Iterator[tuple[str, Rejection]]:
    """Yield the keys of each workload in turn: none takes the place of others."""
    turns = zip_longest(*([(key, found) for key in keys] for keys, found in rejected))
    return (each for turn in turns for each in turn if each is not None)


class _Cause(NamedTuple):
    """Which pods of a workload run besides the declared ones, what these cost, and when the clock ends them."""

    pods: str
    amounts: Resources
    ends: int | None = None
    is_ending: bool = False

    def takes(self, over: Mapping[str, int]) -> bool:
        """Return True where the pods take some of what is lacking."""
        return any(self.amounts.get(name, 0) for name in over)


def _beside(line: WorkloadUsage, left: Resources) -> Iterator[_Cause]:
    """Yield why pods of a workload may not be replaced. `left` is what it has left."""
    overlap = line.overlap
    if overlap is not None and (overlap.ending or overlap.beyond):
        yield _Cause(_running_on(overlap), overlap.amounts, overlap.until, is_ending=bool(overlap.ending))
    if line.surplus.get("pods"):
        yield _larger(line)
    if line.left is None and left:
        yield _Cause(_HAS_LEFT, left)


def _larger(line: WorkloadUsage) -> _Cause:
    return _Cause("more than it asks for", line.surplus)


def _left(usage: GroupUsage) -> dict[str, Resources]:
    """Return what is left of each place: a workload that stands has made other pods in place of these."""
    found: dict[str, Resources] = {}
    for line in usage.leftovers.values():
        if line.left is not None:
            found[line.left.place] = add(found.get(line.left.place, {}), line.counted.charged)
    return found


def _running_on(overlap: Overlap) -> str:
    return " and ".join(
        f"{number} {words}"
        for number, words in ((overlap.ending, "ending"), (overlap.beyond, "of a rollout that takes long"))
        if number
    )


def _rejection(group: GroupObject, subject: str, causes: Sequence[_Cause], over: Mapping[str, int]) -> Rejection | None:
    """Return the words of native quota, and why there is no room; None where the pods take none of what is lacking.

    Without figures: whoever reads events of the namespace reads it, and may have no right on the group.
    """
    taking = [each for each in causes if each.takes(over)]
    if not taking:
        return None
    lacking = sorted(name for name in over if taking[0].amounts.get(name, 0))
    text = f"exceeded quota: {group.name}, of {','.join(lacking)}; {subject} has pods that run on: {taking[0].pods}"
    return Rejection(text, _last_end(taking))


def _others_ending(group: GroupObject, ending: Sequence[_Cause], over: Mapping[str, int]) -> Rejection:
    """Return the rejection for pods of workloads that have none of the pods that are ending. It does not name whose."""
    lacking = sorted(name for name in over if any(each.amounts.get(name, 0) for each in ending))
    text = f"exceeded quota: {group.name}, of {','.join(lacking)}; pods of other workloads are ending"
    return Rejection(text, _last_end(ending))


def _last_end(causes: Sequence[_Cause]) -> int | None:
    """Return when the clock ends all of them, None where it does not."""
    ends = [each.ends for each in causes if each.ends is not None]
    return max(ends) if len(ends) == len(causes) else None


def _missing(line: WorkloadUsage, name: str) -> int:
    """Return what a workload is charged for pods that are not there."""
    demand, there = line.counted.demand, line.counted.floor
    return 0 if demand is None or there is None else max(0, demand.get(name, 0) - there.get(name, 0))


def _has_room(lines: Collection[WorkloadUsage], over: Mapping[str, int]) -> bool:
    """Return True where less runs than `hard`, though more is charged: pods are missing."""
    return all(sum(_missing(line, name) for line in lines) > lacking for name, lacking in over.items())


def _share(charged: Resources, over: Mapping[str, int]) -> float:
    """Return how many times what is lacking a workload is charged, by the resource of which that is most."""
    return max(charged.get(name, 0) / lacking for name, lacking in over.items())
