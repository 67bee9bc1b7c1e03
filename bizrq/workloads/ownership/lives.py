"""Decide when a pod is live, ending or over.

This file alone decides that, from the pod's own phase, node and times. It does not know who pays, nor what a pod costs.
Times are integer milliseconds since 1970, spans integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from bizrq.units.times import LONGEST, TimestampError, parse_timestamp
from bizrq.workloads.validation import MAX_COUNT

#: The phases of pods that have ended.
TERMINAL: Final = frozenset({"Succeeded", "Failed"})
#: `terminationGracePeriodSeconds` of a pod that names none (kubernetes core/v1 types.go).
_GRACE: Final = 30_000
#: A negative grace is one second (kubernetes core/v1 defaults; pkg/registry/core/pod/strategy.go).
_SHORTEST: Final = 1_000
#: The end of a pod that is over already.
OVER: Final = 0


class Stage(Enum):
    """A pod's part in the charge of its slot."""

    #: Live, and its controller makes no other in its place.
    FRESH = "fresh"
    #: Live and being deleted, while its controller may already have made another.
    ENDING = "ending"
    #: Not live: it costs nothing.
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Life:
    """The fields of a pod that decide if it is live.

    `deleted` is `metadata.deletionTimestamp`, to which the API server has already added the grace. `grace` is
    `metadata.deletionGracePeriodSeconds`, None where it is absent or unreadable, or so long that `deleted` is wrong.
    `own_grace` is `spec.terminationGracePeriodSeconds`. `gone` is when the pod was found missing from the API.
    `was_over` says that the pod was over already when its last deletion came.
    """

    phase: str | None = None
    node: str | None = None
    created: int | None = None
    deleted: int | None = None
    grace: int | None = None
    own_grace: int = _GRACE
    gone: int | None = None
    was_over: bool = False

    @property
    def is_being_deleted(self) -> bool:
        return self.deleted is not None or self.gone is not None

    @property
    def is_forced(self) -> bool:
        """True for a pod that is deleted without a grace: its node may still run it."""
        return self.gone is not None or (self.deleted is not None and self.grace is not None and self.grace <= 0)


def life_of(pod: Mapping[str, Any], gone: int | None = None) -> Life:
    """Read a stored pod. Raises nothing: a time that cannot be read makes the pod live for longer, never shorter."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    return life_from(
        status.get("phase"), spec.get("nodeName"), _time(metadata.get("creationTimestamp")), metadata, spec, gone
    )


def life_from(
    phase: str | None,
    node: str | None,
    created: int | None,
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    gone: int | None = None,
    *,
    was_over: bool = False,
) -> Life:
    """Read the times and graces of a pod of which the rest is known. Raises nothing."""
    return Life(
        phase,
        node or None,
        created,
        _deleted(metadata.get("deletionTimestamp")),
        _grace(metadata.get("deletionGracePeriodSeconds")),
        _own_grace(spec.get("terminationGracePeriodSeconds")),
        gone,
        was_over,
    )


def ends_at(life: Life) -> int | None:
    """Return the moment at which a pod stops being live by the clock; `OVER` for one that is not live already.

    None where only a terminal phase or the pod's removal can end it. A pod on a lost node ends at `deletionTimestamp` +
    `deletionGracePeriodSeconds`, as for native quota (kubernetes pkg/quota/v1/evaluator/core/pods.go, QuotaV1Pod). A
    bound pod that is deleted by force, or goes without a terminal phase, ends after its own grace: its node is told
    nothing and stops the containers with that.

    No deletion makes a pod live again that was over. One by force sets `deletionTimestamp` to the present, also where
    the node had to stop the pod long before (kubernetes apiserver pkg/registry/rest/delete.go, BeforeDelete).
    """
    if life.phase in TERMINAL or life.was_over:
        return OVER
    if not life.is_being_deleted:
        return None
    if life.node is None:
        return OVER
    by_grace = life.deleted + life.grace if life.deleted is not None and life.grace is not None else None
    since = life.gone if life.gone is not None else life.deleted
    if since is None or not life.is_forced:
        return by_grace
    forced = since + life.own_grace
    is_graceful = by_grace is not None and life.grace is not None and life.grace > 0
    return min(forced, by_grace) if by_grace is not None and is_graceful else forced


def is_live(life: Life, now: int) -> bool:
    """Return True while a pod occupies what it asks for. The last moment is not part of it."""
    end = ends_at(life)
    return end is None or now < end


def stage(life: Life, now: int, *, awaited: bool) -> Stage:
    """Return a pod's part in the charge. `awaited` is true where its controller waits for it (`waiting.awaits`).

    No controller waits for a pod that is gone from the API.
    """
    if not is_live(life, now):
        return Stage.OVER
    if life.gone is not None or (life.is_being_deleted and not awaited):
        return Stage.ENDING
    return Stage.FRESH


def _time(text: object) -> int | None:
    return _parsed(text) if isinstance(text, str) else None


@lru_cache(maxsize=16_384)
def _parsed(text: str) -> int | None:
    try:
        return parse_timestamp(text)
    except TimestampError:
        return None


def _deleted(text: object) -> int | None:
    """Return the time of the deletion; an unreadable one never ends by the clock."""
    if text is None:
        return None
    found = _time(text)
    return found if found is not None else MAX_COUNT * 1_000_000


def _grace(seconds: object) -> int | None:
    """Return the grace of a deletion; None for one that is so long that the deletion never ends by the clock."""
    span = _span(seconds)
    return span if span is not None and span <= LONGEST * 1000 else None


def _span(seconds: object) -> int | None:
    return seconds * 1000 if isinstance(seconds, int) and not isinstance(seconds, bool) else None


def _own_grace(seconds: object) -> int:
    if seconds is None:
        return _GRACE
    span = _span(seconds)
    if span is None:
        return MAX_COUNT * 1000
    return span if span >= 0 else _SHORTEST
