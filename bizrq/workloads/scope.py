"""The namespaces that bizrq manages: all but those that the configuration leaves out.

This file alone decides that. In any other namespace a label that names a group says nothing: no webhook reviews what is
written there, and nothing there is charged from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bizrq.workloads.labels import LABEL, labels_of
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.selectors import selects
from bizrq.workloads.validation import Malformed

#: The label that every Namespace has with its own name. The API server sets it.
NAME_LABEL: Final = "kubernetes.io/metadata.name"
#: Namespaces that are exempt in every installation, besides that of bizrq itself.
ALWAYS_EXEMPT: Final = frozenset({"kube-system"})


@dataclass(frozen=True, slots=True)
class Scope:
    """Names of namespaces that are `exempt`, and what the labels of all others have to match to be managed.

    `managed` are the `matchExpressions` of a label selector, all of which hold; none select every namespace.
    """

    exempt: frozenset[str] = ALWAYS_EXEMPT
    managed: Sequence[Mapping[str, Any]] = ()

    def around(self, namespace: str) -> Scope:
        """Return the same scope with the namespace of bizrq itself exempt, too."""
        return replace(self, exempt=self.exempt | {namespace})

    @property
    def reads_labels(self) -> bool:
        """True if the labels of a namespace decide whether it is managed."""
        return bool(self.managed)

    def manages(self, namespace: Mapping[str, Any]) -> bool:
        """Return True for a Namespace object that bizrq manages. One with malformed labels has none."""
        name = str((namespace.get("metadata") or {}).get("name"))
        try:
            labels = labels_of(namespace)
        except Malformed:
            labels = {}
        return name not in self.exempt and self._selects(name, labels)

    def manages_named(self, namespace: str, lookup: Lookup) -> bool:
        """Return True for the name of a namespace that bizrq manages. One that is not known has no labels."""
        if namespace in self.exempt:
            return False
        if not self.managed:
            return True
        found = lookup.get("", "Namespace", "", namespace)
        return self.manages(found if found is not None else {"metadata": {"name": namespace}})

    def expressions(self) -> list[dict[str, Any]]:
        """Return the `matchExpressions` of a selector of namespaces that selects those that bizrq manages."""
        elsewhere = {"key": NAME_LABEL, "operator": "NotIn", "values": sorted(self.exempt)}
        return [elsewhere, *map(dict, self.managed)]

    def _selects(self, name: str, labels: Mapping[str, Any]) -> bool:
        return selects({"matchExpressions": [*self.managed]}, {**labels, NAME_LABEL: name})


#: All namespaces but those that are always exempt.
EVERYWHERE: Final = Scope()


def ignored_label(label: str, namespace: str) -> str:
    """Return the warning of a label that names a group in a namespace that is not managed."""
    return f"the label {LABEL}={label} is ignored: bizrq does not manage namespace {namespace}"


def as_expressions(selector: Mapping[str, Any] | None) -> tuple[dict[str, Any], ...]:
    """Return a valid label selector as `matchExpressions`; None selects all."""
    given = selector or {}
    labels = ({"key": k, "operator": "In", "values": [v]} for k, v in sorted((given.get("matchLabels") or {}).items()))
    return (*labels, *map(dict, given.get("matchExpressions") or ()))
