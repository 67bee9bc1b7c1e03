"""What no declaration says: templates that stand in another object, and kinds with rules of their own.

One file a family; each gets the object and a Lookup, gives sets of pods, and raises Malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.special import cronjob, knative, kserve, rayjob, rollout, spark, trainjob

Object: TypeAlias = dict[str, Any]

TemplateFinder: TypeAlias = Callable[[Object, str, Lookup], tuple[object, str]]
"""Object, its namespace and the cluster to (template, path); template None for "where the declaration says"."""

Coder: TypeAlias = Callable[[Object, Callable[[], list[PodSet]], str, Lookup], list[PodSet]]
"""Object, what its declared roles give, its namespace and the cluster to the sets of pods."""

#: By what `code` of a role says.
TEMPLATES: Final[Mapping[str, TemplateFinder]] = {"rollout-workloadref": rollout.template}

#: By what `code` of a kind says.
KINDS: Final[Mapping[str, Coder]] = {
    "cronjob": cronjob.pod_sets,
    "inferenceservice": kserve.pod_sets,
    "knative-service": knative.pod_sets,
    "rayjob": rayjob.pod_sets,
    "scheduledsparkapplication": spark.none_yet,
    "sparkapplication": spark.pod_sets,
    "trainjob": trainjob.pod_sets,
}
