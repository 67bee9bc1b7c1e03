"""Compare what running pods use with what their workload asked for.

This file alone compares the declaration with what was allocated: claims with their allocation, the devices that HAMi
wrote into the pod, the model of the node's cards (docs/counting.md, "Observed usage"). It does not know watches: it
takes pods, nodes, claims and slices and returns names and amounts. A live object never counts below its demand; the
difference that is found here is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bizrq.units.resources import Resources, growth, larger, scale, total
from bizrq.units.slot import Slot
from bizrq.units.times import LONGEST, parse_timestamp
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.devices import cards, dra, hami, models
from bizrq.workloads.devices.allocation import Slices, allocation_cost
from bizrq.workloads.devices.dra import CLAIM, GROUP, POD_GROUP, ClaimContext
from bizrq.workloads.devices.models import gpu_models, known_model, model_resource_name, takes_model
from bizrq.workloads.labels import MODEL_LABELS
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, PodCost, pod_cost
from bizrq.workloads.pods.roles import PodSet, pod_set_of_template
from bizrq.workloads.validation import Malformed, expect_list, expect_map

#: The annotation of claims that the scheduler makes for extended resources, and that of claims from templates.
BRIDGED: Final = "resource.kubernetes.io/extended-resource-claim"
FROM_TEMPLATE: Final = "resource.kubernetes.io/pod-claim-name"

#: The labels and annotations of a node that show its cards.
NODE_LABELS: Final = frozenset({*models.NODE_LABELS, "nvidia.com/gpu.memory"})
NODE_ANNOTATIONS: Final = frozenset({hami.REGISTERED})

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod uses, by every emitted name, in nano-units. `shared` is the cost of claims that others may use, by
    slot.

    `models` are those of cards that a node or an allocated device shows; empty where nothing does.
    """

    resources: Resources = field(default_factory=dict)
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unrequested:
    """What a workload's pods use beyond what it declares, in nano-units and in words; empty where nothing.

    `shared` is the whole cost of claims that others may use, declared or not. `is_transient` is True where some of it
    is of pods that are being deleted, and ends with them.
    """

    resources: Resources = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    is_transient: bool = False


NOTHING_UNREQUESTED: Final = Unrequested()


@dataclass(frozen=True)
class NodeContext:
    """Where pods run: a function from a name to its node, and one to the ResourceSlices of a driver's pool."""

    node: Callable[[str], Object | None] = lambda _name: None
    slices: Slices = lambda _driver, _pool: ()


class StoredPodLookup:
    """The lookups that a stored pod needs: it already has its defaults and its overhead.

    Its namespace shows whether HAMi may have changed it.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        known = group == GROUP or (group, kind) in (POD_GROUP, ("", "Namespace"))
        return self._lookup.get(group, kind, namespace, name) if known else None

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        return self._lookup.all_of(group, kind, namespace) if group == GROUP else ()


def is_counted_pod(pod: Object, now: int) -> bool:
    """Return True unless a pod has ended or is past its deletion and grace. `now` is in milliseconds."""
    status, metadata = expect_map(pod.get("status"), "status"), expect_map(pod.get("metadata"), "metadata")
    if status.get("phase") in ("Succeeded", "Failed"):
        return False
    deleted, grace = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if not isinstance(deleted, str) or not isinstance(grace, int) or grace > LONGEST:
        return True
    # The grace period is in the timestamp already; Kubernetes adds it again when it counts.
    return now <= parse_timestamp(deleted) + grace * 1000


def declared_usage(pod: Object, context: ClaimContext) -> PodUsage:
    """Return what a pod's own spec asks for, with the labels of its payer. Raises Malformed."""
    pods = pod_set_of_template("pod", 1, pod, "")
    cost = pod_cost(pods.spec, pods.path, context.namespace, context.lookup)
    try:
        resources = counting.charged_cost(cost, pods, context)
        shared = dra.shared_claims_cost(pods, context.of(pods))
    except Malformed:
        # A template or claim is gone, so the workload no longer declares what the pod has of it.
        return PodUsage(counting.charged_cost(cost, dra.without_claims(pods), context))
    return PodUsage(resources, shared)


def pod_usage(pod: Object, owned: Sequence[Object], context: ClaimContext, place: NodeContext) -> PodUsage:
    """Return what a pod uses. `owned` are the ResourceClaims that it owns. Raises Malformed."""
    pods = pod_set_of_template("pod", 1, pod, "")
    context = context.of(pods)
    cost = pod_cost(pods.spec, pods.path, context.namespace, context.lookup)
    node = place.node(str(pods.spec.get("nodeName"))) or {}
    classic = dra.without_claims(pods)
    model = node_model(node, context.config)
    if context.config.hami.enabled:
        model = hami.allocated_model(pods.annotations, _annotations(node), context.config) or model
    if model is not None:
        classic = _known_to_be(classic, model)
    resources = counting.charged_cost(cost, classic, context)
    shown: set[str] = set()
    if model is not None and any("/" in name and takes_model(name, context.config.catalog) for name in resources):
        shown.add(model)
    if context.config.hami.enabled:
        resources |= _of_hami(classic, cost, context, node)

    claims = pod_claims(pod, owned, context)
    shared: dict[Slot, Resources] = {}
    for slot, claim in claims.shared.items():
        found = allocation_cost(claim, pods, context, place.slices)
        shared[slot], shown = found.resources, shown | found.models
    for claim in claims.own:
        found = allocation_cost(claim, pods, context, place.slices)
        resources, shown = total((resources, found.resources)), shown | found.models
    if claims.awaited:
        resources = total((resources, dra.template_claims_cost(replace(pods, spec=claims.awaited), context)))
    if claims.bridged is not None:
        # It serves requests by extended or implicit names, so only the excess counts.
        found = allocation_cost(claims.bridged, pods, context, place.slices)
        resources, shown = larger(resources, found.resources), shown | found.models
    return PodUsage(resources, shared, frozenset(shown))


def unrequested_usage(pods: Iterable[tuple[Object, PodUsage, PodUsage, int]], context: ClaimContext) -> Unrequested:
    """Return what a workload's pods use beyond what they declare.

    Each of `pods` is (a pod, its declared usage, its usage, the number of pods like it). Usage of another model of card
    is charged at its name in addition to the declared one, until the workload has the right label.
    """
    more: dict[str, int] = {}
    shared: dict[Slot, Resources] = {}
    other: dict[str, list[tuple[str, int]]] = {}
    larger_: list[tuple[str, int]] = []
    passes = False
    for pod, asked, uses, many in pods:
        passes = passes or "deletionTimestamp" in expect_map(pod.get("metadata"), "metadata")
        found = growth(uses.resources, asked.resources)
        for slot, cost in uses.shared.items():
            shared[slot] = larger(shared.get(slot, {}), cost)
        grown = {**found, **total(growth(c, asked.shared.get(n, {})) for n, c in uses.shared.items())}
        name = str(expect_map(pod.get("metadata"), "metadata").get("name"))
        unasked = [m for m in sorted(uses.models) if any(key.endswith(f".{m}") for key in grown)]
        for model in unasked:
            other.setdefault(model, []).append((name, many))
        if not unasked and any(_is_device(key) for key in grown):
            larger_.append((name, many))
        more = total((more, scale(found, many)))
    if not more and not shared:
        return NOTHING_UNREQUESTED
    said = context.labels.get(MODEL_LABELS["gpu"]) or "no model"
    findings = [
        f"declares {said}, but {_pods(named)} on {model}: charged for both; label it {MODEL_LABELS['gpu']}: {model}"
        for model, named in sorted(other.items())
    ]
    if larger_:
        findings.append(f"{_pods(larger_)} with more devices than its templates and claims ask for now")
    return Unrequested(more, tuple(findings), shared, passes)


def node_model(node: Object, config: CountingConfig) -> str | None:
    """Return the model of a node's cards by its labels; None where the configuration does not know it."""
    labels = expect_map(expect_map(node.get("metadata"), "metadata").get("labels"), "metadata.labels")
    for key in sorted(models.NODE_LABELS & labels.keys(), key=lambda key: (key != "nvidia.com/gpu.product", key)):
        if isinstance(labels[key], str) and (model := known_model(labels[key], config)):
            return model
    return None


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod. `awaited` is a PodSpec of the entries whose claim does not exist yet; None for none."""

    own: Sequence[Object]
    shared: Mapping[Slot, Object]
    bridged: Object | None
    awaited: dict[str, Any] | None


def pod_claims(pod: Object, owned: Sequence[Object], context: ClaimContext) -> PodClaims:
    """Return the claims that a pod has or shares. `owned` are those that it owns. Raises Malformed."""
    pods = pod_set_of_template("pod", 1, pod, "")
    status = expect_map(pod.get("status"), "status")
    statuses = {
        entry.get("name"): entry.get("resourceClaimName")
        for entry in expect_list(status.get("resourceClaimStatuses"), "status.resourceClaimStatuses")
        if isinstance(entry, dict)
    }
    by_name = {str(_metadata(claim).get("name")): claim for claim in owned}
    made_for = {_annotations(claim).get(FROM_TEMPLATE): claim for claim in owned}
    used: dict[str, Object] = {}
    shared: dict[Slot, Object] = {}
    awaited: list[Any] = []
    for entry in dra.claim_references(pods, context):
        if not entry.is_template and entry.place is not None:
            claim = context.lookup.get(*CLAIM, context.namespace, entry.names)
            if claim is not None:
                shared[entry.place] = claim
            continue
        if entry.name in statuses and statuses[entry.name] is None:
            # The controller found that this pod needs no claim.
            continue
        made = statuses.get(entry.name)
        claim = by_name.get(str(made)) or made_for.get(entry.name)
        if claim is None and isinstance(made, str):
            claim = context.lookup.get(*CLAIM, context.namespace, made)
        if claim is not None and entry.place is not None:
            shared[entry.place] = claim
        elif claim is not None:
            used[str(_metadata(claim).get("name"))] = claim
        elif (
            entry.place is None
            and context.lookup.get(GROUP, "ResourceClaimTemplate", context.namespace, entry.names) is not None
        ):
            awaited.append({"name": entry.name, "resourceClaimTemplateName": entry.names})
    bridged = _bridged(status, owned)
    # Every other allocated claim that the pod owns is held for it, whatever its annotations.
    used |= {name: claim for name, claim in by_name.items() if claim is not bridged and claim.get("status")}
    return PodClaims(list(used.values()), shared, bridged, {"resourceClaims": awaited} if awaited else None)


def _bridged(status: Mapping[str, Any], owned: Sequence[Object]) -> Object | None:
    """Return the one claim that the scheduler made for what containers ask for: its annotation alone can be forged."""
    marked = [claim for claim in owned if _annotations(claim).get(BRIDGED) == "true"]
    named = expect_map(status.get("extendedResourceClaimStatus"), "status.extendedResourceClaimStatus")
    if named.get("resourceClaimName"):
        return next((c for c in marked if _metadata(c).get("name") == named["resourceClaimName"]), None)
    return min(
        marked, key=lambda c: (str(_metadata(c).get("creationTimestamp")), str(_metadata(c).get("name"))), default=None
    )


def _of_hami(pods: PodSet, cost: PodCost, context: ClaimContext, node: Object) -> dict[str, int]:
    """Return what HAMi wrote into the pod that it gave it; it replaces what the pod asked for."""
    config = context.config
    possible = gpu_models(context.of(pods).labels, pods, config)
    memory = cards.card_memory(possible, config) or _card_memory(node)
    given = hami.allocated(cost, pods.annotations, memory, config)
    found = dict(given)
    for name, amount in given.items():
        if takes_model(name, config.catalog):
            for model in possible:
                found[model_resource_name(name, model, MODEL_LABELS["gpu"], config.catalog)] = amount
    return found


def _card_memory(node: Object) -> tuple[int, int] | None:
    """Return the MiB of a card of the node, by the label of NVIDIA's feature discovery."""
    text = expect_map(_metadata(node).get("labels"), "metadata.labels").get("nvidia.com/gpu.memory")
    mib = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else 0
    return (mib, mib) if mib else None


def _known_to_be(pods: PodSet, model: str) -> PodSet:
    """Return the pods as pods of one model, whatever their labels and constraints."""
    spec = {key: value for key, value in pods.spec.items() if key not in ("nodeSelector", "affinity")}
    annotations = {key: value for key, value in pods.annotations.items() if not key.endswith("use-gputype")}
    return replace(pods, spec=spec, annotations=annotations, labels={**pods.labels, MODEL_LABELS["gpu"]: model})


def _is_device(name: str) -> bool:
    return name.startswith("requests.") and "/" in name and not name.startswith(f"requests.{IMPLICIT_CLASS}")


def _pods(named: Sequence[tuple[str, int]]) -> str:
    (name, _), count = named[0], sum(many for _, many in named)
    return f"pod {name} runs" if count == 1 else f"{count} pods ({name} and others) run"


def _metadata(obj: Mapping[str, Any]) -> dict[str, Any]:
    return expect_map(obj.get("metadata"), "metadata")


def _annotations(obj: Mapping[str, Any]) -> dict[str, Any]:
    return expect_map(_metadata(obj).get("annotations"), "metadata.annotations")
