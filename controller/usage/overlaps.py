"""The makers of pods that get no new pod for now, because their group is over its quota through overlap.

This file alone decides which they are, and words the rejection (docs/ownership.md, law 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from bizrq.api import overlap as wire
from bizrq.api.group import GroupObject
from bizrq.quota.recount import Recount
from bizrq.units.slot import Slot
from controller.usage.pod_charge import Overlap
from controller.usage.usage_cache import GroupUsage


def rejections(group: GroupObject, counted: Recount, usage: GroupUsage) -> dict[str, str]:
    """Return the text of the rejection by the key of each object whose pods nobody may replace.

    A workload is among them while pods run besides those that it declares, and take some of what the group lacks. With
    a Deployment all its ReplicaSets are, or each new version would bring pods that are not listed yet.
    """
    found: dict[str, str] = {}
    if not counted.over:
        return found
    for line in usage.usages.values():
        overlap = line.overlap
        if overlap is None or not (overlap.ending or overlap.beyond):
            continue
        lacking = sorted(name for name in counted.over if overlap.amounts.get(name, 0))
        if lacking:
            slot = line.counted.slot
            keys = [*overlap.makers, *(wire.version_key(slot.namespace, name) for name in overlap.versioned)]
            found.update(dict.fromkeys(keys, _rejection(group, slot, overlap, lacking)))
    return found


def _rejection(group: GroupObject, slot: Slot, overlap: Overlap, lacking: Sequence[str]) -> str:
    """Return the words of native quota, and why there is no room.

    Without figures: whoever reads events of the namespace reads it, and may have no right on the group.
    """
    pods = " and ".join(
        f"{number} {words}"
        for number, words in ((overlap.ending, "ending"), (overlap.beyond, "of a rollout that takes long"))
        if number
    )
    return f"exceeded quota: {group.name}, of {','.join(lacking)}; {slot} has pods that run on: {pods}"
