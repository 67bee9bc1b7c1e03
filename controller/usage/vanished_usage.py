"""What a pod used as it vanished: its node may run it on with that, whatever becomes of its claims and of its node.

This file alone remembers that. Who pays for the pod, and until when, `controller.watch.vanished` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bizrq.units.resources import Resources, larger
from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import POD
from bizrq.workloads.lookup import Lookup
from controller.usage.excess import ExcessUsage
from controller.usage.observed_usage import ObservedUsage, SharedClaim
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Noted:
    """The usage of a pod up to `until`: of its own, and of claims that others may name, by their uids."""

    until: int
    resources: Resources
    shared: Mapping[str, SharedClaim]


class VanishedUsage:
    """Remembers what vanished pods used, and says what they cost. Subscribe it to the cluster."""

    def __init__(self, cluster: Cluster, observed: ObservedUsage, excess: ExcessUsage, now: Callable[[], int]) -> None:
        """`now` returns milliseconds since 1970."""
        self._cluster = cluster
        self._observed = observed
        self._excess = excess
        self._now = now
        self._noted: dict[str, _Noted] = {}

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Note what a pod uses that vanishes."""
        if old is None or new is not None or (until := self._cluster.vanished.end_of(old)) is None:
            return
        now = self._now()
        if any(noted.until <= now for noted in self._noted.values()):
            self._noted = {uid: noted for uid, noted in self._noted.items() if noted.until > now}
        plain = old.plain()
        usage, shared = self._observed.at_once(old, self._cluster.ownership.payer_of(plain))
        self._noted[old.uid] = _Noted(until, usage, shared)

    def on_move(self, old: Object, new: Object) -> None:
        """Ignore moves: who paid for a pod as it vanished goes on to pay."""

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Ignore changes of claims."""

    def cost(self, pod: Pod, pays: Object, lookup: Lookup) -> Resources:
        """Return what a vanished pod costs the payer: what it asked for, and what it was seen to use."""
        adapter = self._cluster.registry.by_kind(*POD)
        asked = self._excess.cost(pod.plain(), adapter, pays, lookup) if adapter is not None else {}
        noted = self._noted.get(pod.uid)
        return larger(asked, noted.resources) if noted is not None else asked

    def claims(self, group: str) -> Iterator[tuple[Slot, str, SharedClaim]]:
        """Yield each claim that a vanished pod of the group shared: the pod's slot, the claim's uid, and the claim."""
        for uid, (pod, _, _) in self._cluster.vanished.charged_to(group).items():
            if (noted := self._noted.get(uid)) is not None:
                for claim, found in noted.shared.items():
                    yield Slot("pods", pod.namespace, pod.name), claim, found
