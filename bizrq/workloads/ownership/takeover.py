"""Decide which ReplicaSets of an older template a Deployment's controller scales up though no more pods are declared.

While a Deployment is paused its controller makes no version of its own: it scales what there is to the declared number.
So when the version that runs is deleted or scaled down, or the pause comes before it runs, an older one takes over.
This file alone knows by how many pods. Source: kubernetes pkg/controller/deployment/sync.go, scale, and
util/deployment_util.go, FindActiveOrLatest and GetReplicaSetProportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bizrq.workloads.ownership.waiting import current_version
from bizrq.workloads.pods.surge import surge_of_deployment
from bizrq.workloads.validation import map_at

Object = dict[str, Any]

_PREFIX: Final = "deployment.kubernetes.io/"
#: What the controller notes on a ReplicaSet when it scales it, and reads when it scales it again.
NOTES: Final = (f"{_PREFIX}desired-replicas", f"{_PREFIX}max-replicas")


class Takeover(NamedTuple):
    """The ReplicaSets that may take over, and how many pods they get together."""

    versions: Sequence[Object] = ()
    pods: int = 0


_NONE: Final = Takeover()


def takeover(deployment: Object, made: Sequence[Object]) -> Takeover:
    """Return what takes over among the ReplicaSets of a Deployment that is paused. Raises nothing.

    One that is being deleted makes no pods, and is gone as soon as somebody removes its finalizers.
    """
    made = [each for each in made if not (each.get("metadata") or {}).get("deletionTimestamp")]
    uid = current_version(deployment, made)
    current = next((each for each in made if map_at(each, "metadata").get("uid") == uid), None)
    active, declared = [each for each in made if replicas_of(each)], replicas_of(deployment)
    if len(active) < 2:
        only = active[0] if active else current or max(made, key=_age, default=None)
        missing = declared - replicas_of(only) if only is not None and only is not current else 0
        return Takeover((only,), missing) if only is not None and missing > 0 else _NONE
    most = declared + surge_of_deployment(deployment, declared) if declared else 0
    missing = most - sum(map(replicas_of, active))
    older = [each for each in active if each is not current]
    if missing <= 0 or _is_recreated(deployment) or _takes_all(current, older, declared, most):
        return _NONE
    return Takeover(older, missing)


def _is_recreated(deployment: Object) -> bool:
    strategy = map_at(deployment, "spec", "strategy")
    return strategy.get("type") == "Recreate"


def replicas_of(obj: Object) -> int:
    found = map_at(obj, "spec").get("replicas", 1)
    return found if type(found) is int else 1


def notes_of(replica_set: Object) -> tuple[object, ...]:
    """Return what decides the part of a ReplicaSet in what its Deployment adds. Anybody can write it."""
    annotations = map_at(replica_set, "metadata", "annotations")
    return tuple(annotations.get(key) for key in NOTES)


def _takes_all(current: Object | None, older: Sequence[Object], declared: int, most: int) -> bool:
    """Return True where all that is missing goes to the current version.

    It is the largest, and the notes say that each has its part already.
    """
    if current is None or replicas_of(current) < declared or any(replicas_of(o) >= replicas_of(current) for o in older):
        return False
    return all(notes_of(each) == (str(declared), str(most)) for each in (current, *older))


def _age(obj: Object) -> tuple[str, str]:
    """Return a key of the time of creation. Of two of one second the controller takes the one with the later name."""
    metadata = map_at(obj, "metadata")
    return str(metadata.get("creationTimestamp")), str(metadata.get("name"))
