"""Pods that are gone from the API while their nodes may still run them, as one group is charged for them.

This file alone decides which of them no workload's charge has: pods without a workload that stands, and those that an
earlier controller has recorded. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from bizrq.api import group as wire
from bizrq.quota.recount import CountedObject
from bizrq.units.resources import larger, restrict
from bizrq.units.slot import Slot
from bizrq.units.times import format_timestamp
from bizrq.workloads.ownership.runs_on import LAST, RunsOn
from controller.usage.excess import ExcessUsage
from controller.usage.usage_cache import GroupUsage
from controller.watch.cluster import Cluster


class RunningOn:
    """Finds the vanished pods of groups."""

    def __init__(self, cluster: Cluster, excess: ExcessUsage, now: Callable[[], int]) -> None:
        """`now` returns milliseconds since 1970."""
        self._cluster = cluster
        self._excess = excess
        self._now = now

    def of(self, group: str) -> dict[str, RunsOn]:
        """Return all vanished pods that the group pays for, by uid: what the record needs."""
        stored, known = self._cluster.groups.cached(group), dict(self._cluster.payers.recorded(group).runs_on)
        hard = stored.spec.hard if stored is not None else {}
        for uid, (pod, end, place) in self._cluster.vanished.charged_to(group).items():
            if uid not in known:
                ownership, plain = self._cluster.ownership, pod.plain()
                payer = ownership.counted(ownership.payer_of(plain) or plain)
                cost = larger(self._excess.child_cost(plain, payer), self._cluster.vanished.used(uid))
                # Its line is stored: a pod may ask for very many names.
                known[uid] = RunsOn(f"{pod.namespace}/{pod.name}", place, min(end, LAST), restrict(cost, hard))
        now, is_stored = self._now(), self._cluster.placements.is_stored
        return {uid: pod for uid, pod in known.items() if pod.until > now and not is_stored(uid)}

    def apart(self, group: str, usage: GroupUsage) -> dict[str, RunsOn]:
        """Return those that no workload of the group is charged for."""
        counted = {uid for line in usage.vanishing.values() for uid in line.vanished}
        return {uid: pod for uid, pod in self.of(group).items() if uid not in counted}


def counted_objects(pods: dict[str, RunsOn]) -> list[CountedObject]:
    """Return what the pods cost: nobody asks for it any more.

    Their slots are those of no object: another pod may have the name by now.
    """
    return [CountedObject(Slot("pods", "", uid), uid, {}, pod.cost) for uid, pod in sorted(pods.items())]


def messages(pods: dict[str, RunsOn]) -> list[str]:
    """Return what people read of them."""
    return [
        f"pods/{pod.pod} of {pod.place}: deleted by force, may run on until {format_timestamp(pod.until)}"
        for pod in pods.values()
    ]


def ending_lines(pods: dict[str, RunsOn]) -> list[str]:
    """Return their lines of `status.ending`."""
    return [
        wire.ending_line(Slot("pods", *_place(pod.pod)), pod.cost, pod.until, pods={"ending": 1})
        for pod in pods.values()
    ]


def _place(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    return namespace, name
