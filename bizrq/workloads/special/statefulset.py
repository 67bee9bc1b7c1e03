"""StatefulSet: pods below the partition are made of an older revision of its template.

A pod there that is deleted comes back as the older one, so it costs as much as the larger of the two. Source:
kubernetes pkg/controller/statefulset/stateful_set_utils.go, newVersionedStatefulSetPod.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet, pod_set_of_template
from bizrq.workloads.pods.roles import pod_sets as pod_sets_of_roles
from bizrq.workloads.validation import Malformed, map_at

DESCRIPTION = (
    "below the partition of its rolling update the larger of that and the template of `status.currentRevision`"
)
#: The roles of its pods, those below the partition apart: they are the first by their ordinals.
MAIN: Final = "main"
BELOW_PARTITION: Final = "below the partition"
_ALL: Final = 2**31 - 1


def pod_sets(obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
    """Return its pods; those below the partition apart where another revision is the current one. Raises Malformed."""
    sets = pod_sets_of_roles(obj, adapter, {})
    below, name = partition(obj), map_at(obj, "status").get("currentRevision")
    if not below or not isinstance(name, str) or not name:
        return sets
    revision = lookup.get("apps", "ControllerRevision", namespace, name)
    template = map_at(revision or {}, "data", "spec").get("template")
    if not isinstance(template, dict) or _plain(template) == _plain(map_at(obj, "spec", "template")):
        return sets
    older: PodSet | None = None
    with suppress(Malformed):
        older = pod_set_of_template(BELOW_PARTITION, 0, template, f"ControllerRevision {name} -> template")
    return [part for pods in sets for part in _parted(pods, min(below, pods.count), older)]


def partition(obj: dict[str, Any]) -> int:
    """Return how many pods, from the first on, the controller may make of the current revision. Raises nothing.

    With the type alone, which the API server stores as it is, those are as many as are of it: all, at first.
    """
    strategy = map_at(obj, "spec", "updateStrategy")
    rolling = map_at(strategy, "rollingUpdate")
    if strategy.get("type") == "RollingUpdate" and not rolling:
        return _ALL
    found = rolling.get("partition")
    return found if type(found) is int and found > 0 else 0


def shift_of_ordinals(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Return by how much a write moves the stored pods up among those that the object declares. Raises nothing.

    A pod that gets below the first of them, or behind the last, is deleted once all others are available, if ever.
    """
    return _start(old) - _start(new)


def _start(obj: dict[str, Any]) -> int:
    start = map_at(obj, "spec", "ordinals").get("start")
    return start if type(start) is int else 0


def _parted(pods: PodSet, below: int, older: PodSet | None) -> list[PodSet]:
    rest = replace(pods, count=pods.count - below)
    return [rest, replace(pods, name=BELOW_PARTITION, count=below, older=older)] if older is not None else [pods]


def _plain(template: dict[str, Any]) -> dict[str, Any]:
    """Return a template without the directive of the patch that a revision is."""
    return {key: value for key, value in template.items() if key != "$patch"}
