"""Find the stored workloads that are still charged: those that have not ended, and those that have pods left.

This file alone looks for such pods. It does not know which group pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.owners import is_descendant
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.stored import PODS

Object = dict[str, Any]


async def active_workloads(
    items: Sequence[Object], adapter: Adapter, context: Context, deadline: Deadline
) -> list[Object]:
    """Return those of a kind's stored objects that still cost anything. Raises ApiError, Unreachable."""
    ended = [item for item in items if counting.is_charged_for_pods(item, adapter, context.config)]
    running: list[tuple[Object, Object]] = []
    for namespace in sorted({item["metadata"]["namespace"] for item in ended}):
        found, _ = await context.lists.of(PODS, deadline, namespace)
        pods = [pod for pod in found if not counting.is_terminated(pod)]
        running += [(item, pod) for item in ended if item["metadata"]["namespace"] == namespace for pod in pods]

    def have_pods(lookup: Lookup) -> set[str]:
        return {
            _uid(item) for item, pod in running if is_descendant(pod, _uid(item), pod["metadata"]["namespace"], lookup)
        }

    left = have_pods(await context.resolver.resolve(have_pods, deadline.seconds_left())) if running else set()
    return [item for item in items if counting.is_live(item, adapter) or _uid(item) in left]


def _uid(item: Object) -> str:
    return item["metadata"]["uid"]
