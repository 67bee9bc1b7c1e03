"""Everything about one group: its figures, the workloads that it pays for, and its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.api.group import KIND, GroupObject
from bizrq.figures.groups.view import GroupView, TreeView, plain_group
from bizrq.figures.simulate.charged import ChargedWorkloads, charged_to
from bizrq.kube.client import Forbidden, KubeClient, Resource
from bizrq.settings import Settings
from bizrq.units import base
from bizrq.units.resources import nonzero, text_of

EVENTS = Resource("", "v1", "events", "Event")
#: What may not be read where events may not.
OF_EVENTS = "events in namespace default"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An event of a group; `time` is when it was seen last, as a timestamp."""

    time: str
    reason: str | None
    message: str | None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its path from the root; `events` are the oldest first, None where the user may not read them."""

    view: GroupView
    path: str
    workloads: ChargedWorkloads
    events: Sequence[GroupEvent] | None

    @property
    def unread(self) -> list[str]:
        """Return what the user may not read, in words."""
        return [*self.workloads.missing, *([OF_EVENTS] if self.events is None else [])]


async def describe_group(
    client: KubeClient, settings: Settings, tree: TreeView, groups: Iterable[GroupObject], name: str
) -> GroupDescription:
    """Return the description of one of these groups, of which `tree` is the view. Raise ApiError or Unreachable."""
    view = tree.groups[name]
    workloads = await charged_to(client, settings, groups, name)
    events = await read_events(client, view.group.metadata.uid)
    return GroupDescription(view, tree.path(name), workloads, events)


async def read_events(client: KubeClient, uid: str) -> list[GroupEvent] | None:
    """Return the events of a group, the newest last; None if the user may not read them. Raise ApiError, Unreachable.

    They are found by uid: an event of the same name may be of another cluster's life, or anyone's.
    """
    chosen = f"involvedObject.kind={KIND},involvedObject.uid={uid}"
    try:
        items, _ = await client.list(EVENTS, "default", field_selector=chosen)
    except Forbidden:
        return None
    return [event_of(item) for item in sorted(items, key=_seen)]


def event_of(item: dict[str, Any]) -> GroupEvent:
    """Return a stored event."""
    return GroupEvent(_seen(item), item.get("reason"), item.get("message"), item.get("type"))


def _seen(event: dict[str, Any]) -> str:
    """Return the time at which an event was last seen."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp", "")))


def plain_description(found: GroupDescription) -> dict[str, Any]:
    """Return what `bizrq describe -o json` prints."""
    events = found.events
    return {
        **plain_group(found.view),
        "workloads": [
            {
                "kind": workload.kind,
                "namespace": workload.namespace,
                "name": workload.name,
                **(
                    {"error": workload.error}
                    if workload.error
                    else {"usage": {n: base.plain(n, amount) for n, amount in workload.cost.items() if amount}}
                ),
            }
            for workload in found.workloads.workloads
        ],
        "leftovers": list(found.view.group.status.leftovers),
        "reservations": [str(entry) for entry in found.view.reservations],
        "ahead": [str(entry) for entry in found.view.ahead],
        "events": None
        if events is None
        else [{"time": each.time, "reason": each.reason, "message": each.message} for each in events],
        "unread": found.unread,
    }


def leftover_text(line: str) -> str:
    """Return a line of `status.leftovers` in words; one that is none of ours, as it is."""
    parts = line.split(" ")
    if len(parts) < 3:
        return line
    slot, place, since, *costs = parts
    kind, _, where = place.partition("/")
    gone = f"{kind} {where} is gone since {since.removeprefix('since=')}"
    return f"{slot}: {gone}, charged until its pods end: {', '.join(costs) or 'nothing'}"


def amounts_text(amounts: Any) -> str:
    """Return amounts in nano-units as text, without those that are 0."""
    return ", ".join(f"{name}={value}" for name, value in text_of(nonzero(amounts)).items()) or "nothing"
