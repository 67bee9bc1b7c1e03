"""The makers of pods that get no new pod for now, because their group is over its quota through overlap.

This file alone decides which they are, and words the rejection (docs/ownership.md, law 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bizrq.api import overlap as wire
from bizrq.api.group import GroupObject
from bizrq.quota.recount import Recount
from bizrq.units.resources import Resources, add
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import REPLICA_SET
from bizrq.workloads.kinds.registry import Registry
from controller.usage.pod_charge import Overlap
from controller.usage.usage_cache import GroupUsage
from controller.usage.workload_usage import WorkloadUsage


def rejections(group: GroupObject, counted: Recount, usage: GroupUsage, registry: Registry) -> dict[str, str]:
    """Return the text of the rejection by the key of each object whose pods nobody may replace.

    A workload is among them while pods run besides those that it declares, for more than it asks for, or that it has
    left, and take some of what the group lacks. With a Deployment all its ReplicaSets are, or each new version would
    bring pods that are not listed yet.
    """
    found: dict[str, str] = {}
    if not counted.over:
        return found
    left = _left(usage)
    for line in usage.usages.values():
        for keys, pods, amounts in _beside(line, left.get(line.place, {}), registry):
            if lacking := sorted(name for name in counted.over if amounts.get(name, 0)):
                found.update(dict.fromkeys(keys, _rejection(group, line.counted.slot, pods, lacking)))
    return found


def _beside(line: WorkloadUsage, left: Resources, registry: Registry) -> Iterator[tuple[list[str], str, Resources]]:
    """Yield the keys of what makes a workload's pods, the pods that run besides the declared ones, and what these cost.

    `left` is what the workload has left.
    """
    slot, overlap = line.counted.slot, line.overlap
    if overlap is not None and (overlap.ending or overlap.beyond):
        keys = [*overlap.makers, *(wire.version_key(slot.namespace, name) for name in overlap.versioned)]
        keys += [wire.maker_key(slot.namespace, *made) for made in overlap.made_again]
        yield keys, _running_on(overlap), overlap.amounts
    if line.surplus:
        yield list(line.makers), "more than it asks for", line.surplus
    if line.left is None and left:
        kind = registry.of_slot(slot)
        # Another workload of that name may make versions.
        is_versioned = kind is not None and REPLICA_SET in kind.creates
        keys = [*line.makers, *([wire.version_key(slot.namespace, slot.name)] if is_versioned else ())]
        yield keys, "those that it has left", left


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
