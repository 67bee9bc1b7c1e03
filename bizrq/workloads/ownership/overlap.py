"""Decide which pods are free while a new version replaces an old one.

This file alone decides that. Times are integer milliseconds. `bizrq.workloads.pods.surge` decides how much declared
surge is demand.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Protocol, Self, TypeVar

#: How long a pod is free, from its creation.
FREE_FOR: Final = 10 * 60_000


class Replica(Protocol):
    """One fresh pod, or `many` of one version that were made at the same moment.

    `version` is equal for pods of one template, as the uid of their ReplicaSet is.
    """

    @property
    def uid(self) -> str: ...

    @property
    def version(self) -> Hashable: ...

    @property
    def created(self) -> int | None: ...

    @property
    def many(self) -> int: ...

    def some(self, many: int) -> Self:
        """Return so many of them."""
        ...


R = TypeVar("R", bound=Replica)


def free(fresh: Sequence[R], declared: int, now: int) -> list[R]:
    """Return the pods that cost nothing for now: of those beyond `declared` the youngest, and no more than `declared`.

    Pods of one version are not free, nor is one that was made more than ten minutes ago or does not say when. Call it
    for kinds that surge only, and not under the policy `surge: count`. A rollback is a rollout, too.
    """
    most = min(sum(pod.many for pod in fresh) - declared, declared)
    if most <= 0 or len({pod.version for pod in fresh}) < 2:
        return []
    found: list[R] = []
    for pod in sorted(fresh, key=lambda pod: (_age(pod, now), pod.uid)):
        if most <= 0 or _age(pod, now) >= FREE_FOR:
            break
        found.append(pod if pod.many <= most else pod.some(most))
        most -= pod.many
    return found


def until(pods: Iterable[Replica]) -> int | None:
    """Return the moment at which the first of these free pods is free no longer; None where there is none."""
    return min((pod.created + FREE_FOR for pod in pods if pod.created is not None), default=None)


def _age(pod: Replica, now: int) -> int:
    return now - pod.created if pod.created is not None else FREE_FOR
