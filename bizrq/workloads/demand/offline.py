"""Compute what manifests would be charged, offline: `bizrq usage`.

This file alone decides which documents are workloads and which are only what those refer to. It counts with the same
function as admission, and knows no cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bizrq.units.resources import Resources, growth, larger, nonzero, text_of, total
from bizrq.units.slot import Slot
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.demand.counting import Demand
from bizrq.workloads.devices import dra
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import labels_of, unknown_keys
from bizrq.workloads.lookup import DocumentLookup, Reference, group_and_version
from bizrq.workloads.owners import charged_group, is_descendant
from bizrq.workloads.ownership.payers import owner_that_pays
from bizrq.workloads.validation import Malformed, describe_value, expect_map, malformed


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One document of a counted kind: its cost in canonical text by resource, or why it cannot be counted.

    `surge` says how many of its pods are surge that is charged.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    group: str | None
    usage: Mapping[str, str] | None = None
    error: str | None = None
    surge: Sequence[str] = ()
    #: The keys of labels like ours that nothing reads.
    unknown_keys: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the item that `bizrq usage -o json` prints."""
        item: dict[str, Any] = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "group": self.group,
        }
        if self.error is not None:
            return {**item, "error": self.error}
        item["usage"] = dict(self.usage or {})
        return {**item, "surge": list(self.surge)} if self.surge else item


def usage(documents: Iterable[object], config: CountingConfig, registry: Registry) -> list[UsageRow]:
    """Return a row for every workload, every Scale, and every ResourceClaim that itself names a group, in their order.

    All kinds of the registry count, charged or not, and labelled or not. Documents may refer to each other. Raises
    nothing: what admission would reject as malformed is a row with an error.
    """
    kinds = registry.with_all_charged()
    found = list(objects_in(documents))
    cluster = DocumentLookup(found)
    shared = _Shared()

    def payer_of(workload: dict[str, Any]) -> str | None:
        return charged_group(workload, registry, cluster)

    def of_workload(workload: dict[str, Any], group: str | None) -> tuple[Resources, Sequence[str]]:
        found = _demand(workload, kinds, cluster, config)
        return shared.charged(workload, group, found), counting.surge_remarks(found)

    def of_claim(claim: dict[str, Any], _group: str | None) -> tuple[Resources, Sequence[str]]:
        around = ClaimContext(labels_of(claim), counting.namespace_of(claim), cluster, config)
        return shared.left(claim, dra.claim_cost(claim, around)), ()

    rows: dict[int, UsageRow] = {}
    for number, document in enumerate(found):
        if is_scale(document):
            rows[number] = _row(document, lambda d: _scaled(d, found, kinds), payer_of, of_workload)
        elif kinds.of(document) is not None:
            rows[number] = _row(document, _itself, payer_of, of_workload)
    # Workloads show their claims first, wherever the documents are.
    for number, document in enumerate(found):
        if _names_a_group(document):
            rows[number] = _row(document, _itself, dra.claim_group, of_claim)
    return [rows[number] for number in sorted(rows)]


class _Shared:
    """Claims that several workloads name: the first of them shows the cost, and its group pays."""

    def __init__(self) -> None:
        self._users: dict[Slot, dict[Reference, tuple[str, Resources]]] = {}

    def charged(self, workload: dict[str, Any], group: str | None, demand: Demand) -> Resources:
        """Return the cost of a workload with those of its claims that no earlier one pays for. Raises Malformed."""
        if group is None or not demand.shared:
            return counting.total_demand(demand)
        more = [demand.resources]
        for place, cost in demand.shared.items():
            users = self._users.setdefault(place, {})
            paid: Resources = {}
            for other, (owner, known) in users.items():
                if owner != group:
                    raise malformed("", dra.claim_conflict(place, owner, group))
                if other == _reference(workload):
                    break
                paid = larger(paid, known)
            more.append(growth(cost, paid))
            users[_reference(workload)] = group, cost
        return total(more)

    def left(self, claim: dict[str, Any], cost: Resources) -> Resources:
        """Return the part of a claim's cost that no workload shows."""
        namespace, name = _place(claim)
        users = self._users.get(Slot(dra.CLAIMS, namespace, _text(name)), {})
        for _, known in users.values():
            cost = growth(cost, known)
        return cost


def objects_in(documents: Iterable[object]) -> Iterator[dict[str, Any]]:
    """Yield the objects among the documents, and those in a List as `kubectl get -o yaml` prints it."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        items = document.get("items")
        if document.get("kind") == "List" and isinstance(items, list):
            yield from (item for item in items if isinstance(item, dict))
        else:
            yield document


def _names_a_group(document: Mapping[str, Any]) -> bool:
    """Return True for a ResourceClaim that is charged by itself, and for one with labels that admission rejects."""
    group, _ = group_and_version(document.get("apiVersion"))
    if (group, document.get("kind")) != dra.CLAIM:
        return False
    try:
        return dra.claim_group(document) is not None
    except Malformed:
        return True


def _itself(document: dict[str, Any]) -> dict[str, Any]:
    return document


def _row(
    document: dict[str, Any],
    find: Callable[[dict[str, Any]], dict[str, Any]],
    payer_of: Callable[[dict[str, Any]], str | None],
    cost_of: Callable[[dict[str, Any], str | None], tuple[Resources, Sequence[str]]],
) -> UsageRow:
    """Return the row of a document; `find` returns the object that the document means."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    group: str | None = None
    cost: Resources | None = None
    error: str | None = None
    surge: Sequence[str] = ()
    try:
        obj = find(document)
        group = payer_of(obj)
        cost, surge = cost_of(obj, group)
    except Malformed as wrong:
        error = str(wrong)
    return UsageRow(
        api_version=_text(document.get("apiVersion")),
        kind=_text(document.get("kind")),
        namespace=_text(metadata.get("namespace")) or "default",
        name=_text(metadata.get("name")) or _text(metadata.get("generateName")),
        group=group,
        usage=None if cost is None else text_of(nonzero(cost)),
        error=error,
        surge=surge,
        unknown_keys=unknown_keys(document),
    )


def _demand(workload: dict[str, Any], kinds: Registry, cluster: DocumentLookup, config: CountingConfig) -> Demand:
    adapter = counting.adapter_of(workload, kinds)
    if counting.is_charged_for_pods(workload, adapter, config):
        if owner_that_pays(workload, kinds, cluster) is not None:
            return counting.NO_DEMAND
        namespace = counting.namespace_of(workload)
        uid = expect_map(workload.get("metadata"), "metadata").get("uid")
        pods = [
            pod
            for pod in cluster.all_of("", "Pod", namespace)
            if isinstance(uid, str) and uid and is_descendant(pod, uid, namespace, cluster)
        ]
        return counting.demand_of_live_pods(workload, pods, cluster, config)
    found = counting.demand(workload, kinds, cluster, config)
    counting.check_readable(found, None)
    return found


def is_scale(document: Mapping[str, Any]) -> bool:
    group, _ = group_and_version(document.get("apiVersion"))
    return group == "autoscaling" and document.get("kind") == "Scale"


def _scaled(scale: dict[str, Any], documents: Iterable[dict[str, Any]], kinds: Registry) -> dict[str, Any]:
    """Return the one document that a Scale means, with its replicas. Raises Malformed unless there is exactly one."""
    wanted = counting.scale_replicas(scale)
    place = _place(scale)
    parents: list[tuple[dict[str, Any], Adapter]] = []
    for document in documents:
        adapter = kinds.of(document)
        if adapter is not None and adapter.scale is not None and _place(document) == place:
            parents.append((document, adapter))
    if len(parents) != 1:
        what = "nothing that can be scaled is" if not parents else f"{len(parents)} workloads that can be scaled are"
        raise malformed("", f"{what} named {describe_value(place[1])} in namespace {describe_value(place[0])}")
    parent, adapter = parents[0]
    return counting.with_scale(parent, adapter, wanted)


def _reference(workload: Mapping[str, Any]) -> Reference:
    group, _ = group_and_version(workload.get("apiVersion"))
    namespace, name = _place(workload)
    return group, _text(workload.get("kind")), namespace, _text(name)


def _place(document: Mapping[str, Any]) -> tuple[str, object]:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return _text(namespace) or "default", name if isinstance(name, str) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
