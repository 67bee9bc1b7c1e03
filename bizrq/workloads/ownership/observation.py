"""Decide if the controller of an object has acted on the spec that is stored.

This file alone reads that from `status.observedGeneration`. Not every kind has it. A Job's controller writes a status
only on the version of the Job that it has read, once it has made and deleted the pods that this asks for. So a status
that is written after a spec is of that spec. Source: kubernetes pkg/controller/job/job_controller.go, syncJob.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bizrq.workloads.kinds.declaration import JOB, JOB_CONTROLLER
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.validation import map_at

#: A generation as text, as a Rollout's status has it.
_TEXT: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)

#: API groups whose controllers write the field only together with others, so that it may lag for good. Source: KubeRay
#: ray-operator/controllers/ray/utils/consistency.go.
_LEFT_BEHIND: Final = frozenset({"ray.io"})


#: API groups whose workloads have the field from the first time on that their controller acts. Source: kubernetes
#: pkg/controller, the status of each kind.
_FROM_THE_FIRST: Final = frozenset({"apps"})


def is_awaited(obj: Mapping[str, Any]) -> bool:
    """Return True where a controller has not acted yet that will say what it has observed. Raises nothing."""
    if group_and_version(obj.get("apiVersion"))[0] in _FROM_THE_FIRST:
        return has_observed(obj) is None
    return is_job(obj) and not obj.get("status")


def is_job(obj: Mapping[str, Any]) -> bool:
    """Return True for a Job of whose pods Kubernetes' own controller takes care."""
    group, _ = group_and_version(obj.get("apiVersion"))
    return (group, obj.get("kind")) == JOB and map_at(obj, "spec").get("managedBy", JOB_CONTROLLER) == JOB_CONTROLLER


def is_job_to_say_more(job: Mapping[str, Any]) -> bool:
    """Return True where the controller of a Job will write another status once it acts on the spec. Raises nothing."""
    spec, status = map_at(job, "spec"), map_at(job, "status")
    active, parallelism = status.get("active", 0), spec.get("parallelism", 1)
    if spec.get("suspend"):
        return bool(active) or not _is_suspended(status)
    return not status or (type(active) is int and type(parallelism) is int and active > parallelism)


def _is_suspended(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions")
    found = (each for each in conditions if isinstance(each, dict)) if isinstance(conditions, list) else ()
    return any(each.get("type") == "Suspended" and each.get("status") == "True" for each in found)


def has_observed(obj: Mapping[str, Any]) -> bool | None:
    """Return True once the status is of the stored spec; None where it does not readably say so. Raises nothing."""
    observed = _observed(obj)
    return None if observed is None else observed >= _stored(obj)


def may_act_on_earlier(obj: Mapping[str, Any]) -> bool:
    """Return True where the spec was changed and the status is of no later one. Raises nothing.

    Call it for a Job, or for a kind whose controller says what it has observed from the first time on.
    """
    if _stored(obj) <= 1:
        return False
    return is_job_to_say_more(obj) if is_job(obj) else has_observed(obj) is not True


def unobserved(obj: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Return how many specs, up to the one in `obj`, its status `now` does not say to be observed. Raises nothing."""
    return max(0, _stored(obj) - (_observed(now) or 0))


def has_acted(obj: Mapping[str, Any], decided_on: int | None) -> bool | None:
    """Return True once the controller has acted on the write that an update became. Raises nothing.

    It has if it acts on the stored spec, or on any that is later than `decided_on`, the generation that the update was
    decided on. A kind that does not say what it acts on has always acted. None where it says so unreadably.
    """
    if decided_on is None or not _says(obj):
        return True
    observed = _observed(obj)
    return None if observed is None else observed >= _stored(obj) or observed > decided_on


def _says(obj: Mapping[str, Any]) -> bool:
    """Return True where the status says what the controller acts on, readable or not."""
    status = obj.get("status")
    if not isinstance(status, dict) or status.get("observedGeneration") is None:
        return False
    return group_and_version(obj.get("apiVersion"))[0] not in _LEFT_BEHIND


def _observed(obj: Mapping[str, Any]) -> int | None:
    """Return `status.observedGeneration`, which is a number, or its text in a Rollout; None for anything else."""
    value = obj["status"]["observedGeneration"] if _says(obj) else None
    if isinstance(value, str) and _TEXT.fullmatch(value):
        return int(value)
    return value if type(value) is int else None


def _stored(obj: Mapping[str, Any]) -> int:
    generation = (obj.get("metadata") or {}).get("generation")
    return generation if type(generation) is int else 0
