"""What a pod used as it vanished: its node may run it on with that, whatever becomes of its claims and of its node.

This file alone looks. `controller.watch.vanished` remembers it for as long as the pod.
"""

from __future__ import annotations

from typing import Any

from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]


class VanishedUsage:
    """Notes what pods use that vanish. Subscribe it to the cluster."""

    def __init__(self, cluster: Cluster, observed: ObservedUsage) -> None:
        self._cluster = cluster
        self._observed = observed

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Note what a pod uses that vanishes."""
        if old is not None and new is None and self._cluster.vanished.end_of(old) is not None:
            payer = self._cluster.ownership.payer_of(old.plain())
            self._cluster.vanished.note_usage(old.uid, self._observed.at_once(old, payer))

    def on_move(self, old: Object, new: Object) -> None:
        """Ignore moves: who paid for a pod as it vanished goes on to pay."""

    def on_claim(self, old: Object | None, new: Object | None) -> None:
        """Ignore changes of claims."""
