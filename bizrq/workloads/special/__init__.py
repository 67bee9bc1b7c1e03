"""Code for what declarations cannot say: templates in another object, and kinds with rules of their own.

`KINDS` and `TEMPLATES` alone name the module for each. A kind that needs code is one module here and one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from bizrq.workloads.kinds.declaration import Adapter, Codes
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods import surge
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.special import (
    cronjob,
    knative,
    kserve,
    rayjob,
    rollout,
    scheduled_spark,
    spark,
    statefulset,
    trainjob,
)


class CodedKind(Protocol):
    """A module that counts a kind."""

    @property
    def DESCRIPTION(self) -> str:  # noqa: N802 (a module's constant)
        """How its pods are counted, for the table of docs/kinds.md."""
        ...

    def pod_sets(self, obj: dict[str, Any], adapter: Adapter, namespace: str, lookup: Lookup) -> list[PodSet]:
        """Return the sets of pods of an object in a namespace. Raises Malformed."""
        ...


class CodedTemplate(Protocol):
    """A module that finds the pod template of a role."""

    @property
    def DESCRIPTION(self) -> str: ...  # noqa: N802 (a module's constant)

    def template(self, obj: dict[str, Any], namespace: str, lookup: Lookup) -> tuple[object, str]:
        """Return the template and its path; None where the declared path holds. Raises Malformed."""
        ...


#: By the `code` of a kind.
KINDS: Final[Mapping[str, CodedKind]] = {
    "cronjob": cronjob,
    "inferenceservice": kserve,
    "knative-service": knative,
    "rayjob": rayjob,
    "scheduledsparkapplication": scheduled_spark,
    "sparkapplication": spark,
    "statefulset": statefulset,
    "trainjob": trainjob,
}

#: By the `code` of a role.
TEMPLATES: Final[Mapping[str, CodedTemplate]] = {"rollout-workloadref": rollout}

CODES: Final = Codes(frozenset(KINDS), frozenset(TEMPLATES), frozenset(surge.SURGES))
