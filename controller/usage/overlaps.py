"""The makers of pods that get no new pod for now, because their group is over its quota through overlap.

This file alone decides which they are, and words the rejection (docs/ownership.md, law 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from bizrq.api.group import GroupObject
from bizrq.quota.recount import Recount
from bizrq.units.resources import Resources, add
from bizrq.units.slot import Slot
from controller.usage.makers import KeysOf
from controller.usage.pod_charge import Overlap
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage


def rejections(group: GroupObject, counted: Recount, usage: GroupUsage, keys_of: KeysOf) -> dict[str, str]:
    """Return the text of the rejection by the key of each object whose pods nobody may replace, the first keys first.

    A workload is among them while pods run besides those that it declares, for more than it asks for, or that it has
    left, and take some of what the group lacks. With a Deployment all its ReplicaSets are, or each new version would
    bring pods that are not listed yet.
    """
    if not counted.over:
        return {}
    left = _left(usage)
    texts: dict[str, str] = {}
    for uid, line in usage.usages.items():
        for pods, amounts in _beside(line, left.get(line.place, {})):
            if lacking := sorted(name for name in counted.over if amounts.get(name, 0)):
                texts.setdefault(uid, _rejection(group, line.counted.slot, pods, lacking))
    # No workload takes the place of others.
    turns = zip_longest(*([(key, text) for key in keys_of(uid)] for uid, text in texts.items()))
    found: dict[str, str] = {}
    for key, text in (each for turn in turns for each in turn if each is not None):
        found.setdefault(key, text)
    return found


def _beside(line: WorkloadUsage, left: Resources) -> Iterator[tuple[str, Resources]]:
    """Yield which pods of a workload run besides the declared ones, and what these cost. `left` is what it has left."""
    overlap = line.overlap
    if overlap is not None and (overlap.ending or overlap.beyond):
        yield _running_on(overlap), overlap.amounts
    # Where it has no more pods than it asks for, those that it makes take the place of larger ones.
    if line.surplus.get("pods"):
        yield "more than it asks for", line.surplus
    if line.left is None and left:
        yield "those that it has left", left


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


def _rejection(group: GroupObject, slot: Slot, pods: str, lacking: Sequence[str]) -> str:
    """Return the words of native quota, and why there is no room.

    Without figures: whoever reads events of the namespace reads it, and may have no right on the group.
    """
    return f"exceeded quota: {group.name}, of {','.join(lacking)}; {slot} has pods that run on: {pods}"
