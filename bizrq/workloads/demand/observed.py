"""What a pod that runs really uses, and what of that its workload never asked for.

This file alone compares what was declared with what was allocated: claims with their allocation, the devices that HAMi
wrote into the pod, the model of the node's cards (docs/counting.md, "Observed usage"). It does not know watches:
pods, nodes, claims and slices come in, names and amounts go out. A live object is never counted below its demand; what
is found here is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bizrq.units.resources import Resources, growth, larger, scale, total
from bizrq.units.slot import Slot
from bizrq.units.times import milliseconds
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import counting
from bizrq.workloads.devices import cards, dra, hami, models
from bizrq.workloads.devices.allocation import Slices, of_allocation
from bizrq.workloads.devices.dra import CLAIM, GROUP, POD_GROUP, Claims
from bizrq.workloads.devices.models import emitted_name, gpu_models, known_model, takes_model
from bizrq.workloads.labels import MODEL_LABELS
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.podspec import IMPLICIT_CLASS, PodCost, pod_cost
from bizrq.workloads.pods.roles import PodSet, of_template
from bizrq.workloads.validation import Malformed, a_list, a_map

#: Marks claims that the scheduler made for a classic request, and those that are made of templates.
BRIDGED: Final = "resource.kubernetes.io/extended-resource-claim"
FROM_TEMPLATE: Final = "resource.kubernetes.io/pod-claim-name"

#: What of a node tells which cards it has.
NODE_LABELS: Final = frozenset({*models.NODE_LABELS, "nvidia.com/gpu.memory"})
NODE_ANNOTATIONS: Final = frozenset({hami.REGISTERED})

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Actual:
    """What one pod uses, by every emitted name, in nano-units; `shared` is what claims cost that others may use too, by
    the place that each is charged in.

    `models` are those of cards that a node or an allocated device shows; empty where nothing does.
    """

    resources: Resources = field(default_factory=dict)
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a workload's pods use beyond what it declares, and that in words for people; empty where nothing.

    `shared` is all that claims cost which others may use too, whether that was declared or not. `passes` where some of
    it is of pods that are being deleted: it is over at a time that they tell.
    """

    resources: Resources = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    shared: Mapping[Slot, Resources] = field(default_factory=dict)
    passes: bool = False


NOTHING: Final = Beyond()


@dataclass(frozen=True)
class Place:
    """What is known of where pods run: a node by its name, and the ResourceSlices of a driver's pool."""

    node: Callable[[str], Object | None] = lambda _name: None
    slices: Slices = lambda _driver, _pool: ()


class Complete:
    """What there is to look up for a pod that is stored: it has its defaults and its overhead. Who may have changed
    it besides is told by its namespace.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        known = group == GROUP or (group, kind) in (POD_GROUP, ("", "Namespace"))
        return self._lookup.get(group, kind, namespace, name) if known else None

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        return self._lookup.all_of(group, kind, namespace) if group == GROUP else ()


def is_counted(pod: Object, now: int) -> bool:
    """Whether a pod holds anything: not over, nor past its deletion and grace. `now` in milliseconds."""
    status, metadata = a_map(pod.get("status"), "status"), a_map(pod.get("metadata"), "metadata")
    if status.get("phase") in ("Succeeded", "Failed"):
        return False
    deleted, grace = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")
    if not isinstance(deleted, str) or not isinstance(grace, int):
        return True
    # The grace period is in the timestamp already; Kubernetes adds it again when it counts.
    return now <= milliseconds(deleted) + grace * 1000


def declared(pod: Object, around: Claims) -> Actual:
    """What a pod's own spec asks for, with the labels of whoever pays. Raises Malformed."""
    pods = of_template("pod", 1, pod, "")
    cost = pod_cost(pods.spec, pods.path, around.namespace, around.lookup)
    try:
        resources = counting.emitted(cost, pods, around)
        shared = dra.of_shared(pods, around.of(pods))
    except Malformed:
        # A template or claim that is gone: what the pod has of it is nothing that anybody asks for now.
        return Actual(counting.emitted(cost, _without_claims(pods), around))
    return Actual(resources, shared)


def actual(pod: Object, owned: Sequence[Object], around: Claims, place: Place) -> Actual:
    """What a pod uses. `owned` are the ResourceClaims whose owner it is. Raises Malformed."""
    pods = of_template("pod", 1, pod, "")
    around = around.of(pods)
    cost = pod_cost(pods.spec, pods.path, around.namespace, around.lookup)
    node = place.node(str(pods.spec.get("nodeName"))) or {}
    classic = _without_claims(pods)
    model = node_model(node, around.config)
    if around.config.hami.enabled:
        model = hami.model_on(pods.annotations, _annotations(node), around.config) or model
    if model is not None:
        classic = _known_to_be(classic, model)
    resources = counting.emitted(cost, classic, around)
    shown: set[str] = set()
    if model is not None and any("/" in name and takes_model(name, around.config.catalog) for name in resources):
        shown.add(model)
    if around.config.hami.enabled:
        resources |= _of_hami(classic, cost, around, node)

    claims = claims_of(pod, owned, around)
    shared: dict[Slot, Resources] = {}
    for slot, claim in claims.shared.items():
        found = of_allocation(claim, pods, around, place.slices)
        shared[slot], shown = found.resources, shown | found.models
    for claim in claims.own:
        found = of_allocation(claim, pods, around, place.slices)
        resources, shown = total((resources, found.resources)), shown | found.models
    if claims.awaited:
        resources = total((resources, dra.of_templates(replace(pods, spec=claims.awaited), around)))
    if claims.bridged is not None:
        # It serves what containers ask for by classic or implicit names, so only what exceeds that is more.
        found = of_allocation(claims.bridged, pods, around, place.slices)
        resources, shown = larger(resources, found.resources), shown | found.models
    return Actual(resources, shared, frozenset(shown))


def beyond(pods: Iterable[tuple[Object, Actual, Actual, int]], around: Claims) -> Beyond:
    """What a workload's pods use beyond what they declare: (a pod, as declared, as it is, how many are like it).

    What another model of card is, is charged at its name besides the one that was declared, until the workload is
    relabelled.
    """
    more: dict[str, int] = {}
    shared: dict[Slot, Resources] = {}
    other: dict[str, list[tuple[str, int]]] = {}
    larger_: list[tuple[str, int]] = []
    passes = False
    for pod, asked, uses, many in pods:
        passes = passes or "deletionTimestamp" in a_map(pod.get("metadata"), "metadata")
        found = growth(uses.resources, asked.resources)
        for slot, cost in uses.shared.items():
            shared[slot] = larger(shared.get(slot, {}), cost)
        grown = {**found, **total(growth(c, asked.shared.get(n, {})) for n, c in uses.shared.items())}
        name = str(a_map(pod.get("metadata"), "metadata").get("name"))
        unasked = [m for m in sorted(uses.models) if any(key.endswith(f".{m}") for key in grown)]
        for model in unasked:
            other.setdefault(model, []).append((name, many))
        if not unasked and any(_is_device(key) for key in grown):
            larger_.append((name, many))
        more = total((more, scale(found, many)))
    if not more and not shared:
        return NOTHING
    said = around.labels.get(MODEL_LABELS["gpu"]) or "no model"
    findings = [
        f"declares {said}, but {_pods(named)} on {model}: charged for both; label it {MODEL_LABELS['gpu']}: {model}"
        for model, named in sorted(other.items())
    ]
    if larger_:
        findings.append(f"{_pods(larger_)} with more devices than its templates and claims ask for now")
    return Beyond(more, tuple(findings), shared, passes)


def node_model(node: Object, config: CountingConfig) -> str | None:
    """The model of a node's cards by its labels, as far as the configuration knows it."""
    labels = a_map(a_map(node.get("metadata"), "metadata").get("labels"), "metadata.labels")
    for key in sorted(models.NODE_LABELS & labels.keys(), key=lambda key: (key != "nvidia.com/gpu.product", key)):
        if isinstance(labels[key], str) and (model := known_model(labels[key], config)):
            return model
    return None


@dataclass(frozen=True, slots=True)
class ClaimsOf:
    """The claims of one pod. `awaited` is a PodSpec of the entries whose claim is not made yet, None for none."""

    own: Sequence[Object]
    shared: Mapping[Slot, Object]
    bridged: Object | None
    awaited: dict[str, Any] | None


def claims_of(pod: Object, owned: Sequence[Object], around: Claims) -> ClaimsOf:
    """The claims that a pod has or shares. `owned` are those whose owner it is. Raises Malformed."""
    pods = of_template("pod", 1, pod, "")
    status = a_map(pod.get("status"), "status")
    told = {
        entry.get("name"): entry.get("resourceClaimName")
        for entry in a_list(status.get("resourceClaimStatuses"), "status.resourceClaimStatuses")
        if isinstance(entry, dict)
    }
    by_name = {str(_metadata(claim).get("name")): claim for claim in owned}
    made_for = {_annotations(claim).get(FROM_TEMPLATE): claim for claim in owned}
    used: dict[str, Object] = {}
    shared: dict[Slot, Object] = {}
    awaited: list[Any] = []
    for entry in dra.entries(pods, around):
        if not entry.is_template and entry.place is not None:
            claim = around.lookup.get(*CLAIM, around.namespace, entry.names)
            if claim is not None:
                shared[entry.place] = claim
            continue
        if entry.name in told and told[entry.name] is None:
            # The controller says that this pod needs none.
            continue
        made = told.get(entry.name)
        claim = by_name.get(str(made)) or made_for.get(entry.name)
        if claim is None and isinstance(made, str):
            claim = around.lookup.get(*CLAIM, around.namespace, made)
        if claim is not None and entry.place is not None:
            shared[entry.place] = claim
        elif claim is not None:
            used[str(_metadata(claim).get("name"))] = claim
        elif (
            entry.place is None
            and around.lookup.get(GROUP, "ResourceClaimTemplate", around.namespace, entry.names) is not None
        ):
            awaited.append({"name": entry.name, "resourceClaimTemplateName": entry.names})
    bridged = _bridged(status, owned)
    # Whatever else names the pod as its owner is held for it too, whatever it calls itself.
    used |= {name: claim for name, claim in by_name.items() if claim is not bridged and claim.get("status")}
    return ClaimsOf(list(used.values()), shared, bridged, {"resourceClaims": awaited} if awaited else None)


def _bridged(status: Mapping[str, Any], owned: Sequence[Object]) -> Object | None:
    """The one claim that the scheduler made for what containers ask for: its annotation alone can be forged."""
    marked = [claim for claim in owned if _annotations(claim).get(BRIDGED) == "true"]
    named = a_map(status.get("extendedResourceClaimStatus"), "status.extendedResourceClaimStatus")
    if named.get("resourceClaimName"):
        return next((c for c in marked if _metadata(c).get("name") == named["resourceClaimName"]), None)
    return min(
        marked, key=lambda c: (str(_metadata(c).get("creationTimestamp")), str(_metadata(c).get("name"))), default=None
    )


def _of_hami(pods: PodSet, cost: PodCost, around: Claims, node: Object) -> dict[str, int]:
    """What HAMi wrote into the pod that it gave it, in place of what was asked for."""
    config = around.config
    possible = gpu_models(around.of(pods).labels, pods, config)
    memory = cards.card_memory(possible, config) or _card_memory(node)
    given = hami.allocated(cost, pods.annotations, memory, config)
    found = dict(given)
    for name, amount in given.items():
        if takes_model(name, config.catalog):
            for model in possible:
                found[emitted_name(name, model, MODEL_LABELS["gpu"], config.catalog)] = amount
    return found


def _card_memory(node: Object) -> tuple[int, int] | None:
    """What a card of the node has, in MiB, by the label of NVIDIA's feature discovery."""
    text = a_map(_metadata(node).get("labels"), "metadata.labels").get("nvidia.com/gpu.memory")
    mib = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else 0
    return (mib, mib) if mib else None


def _known_to_be(pods: PodSet, model: str) -> PodSet:
    """The pods as of one model, whatever they say and ask for."""
    spec = {key: value for key, value in pods.spec.items() if key not in ("nodeSelector", "affinity")}
    annotations = {key: value for key, value in pods.annotations.items() if not key.endswith("use-gputype")}
    return replace(pods, spec=spec, annotations=annotations, labels={**pods.labels, MODEL_LABELS["gpu"]: model})


def _without_claims(pods: PodSet) -> PodSet:
    return replace(pods, spec={key: value for key, value in pods.spec.items() if key != "resourceClaims"})


def _is_device(name: str) -> bool:
    return name.startswith("requests.") and "/" in name and not name.startswith(f"requests.{IMPLICIT_CLASS}")


def _pods(named: Sequence[tuple[str, int]]) -> str:
    (name, _), count = named[0], sum(many for _, many in named)
    return f"pod {name} runs" if count == 1 else f"{count} pods ({name} and others) run"


def _metadata(obj: Mapping[str, Any]) -> dict[str, Any]:
    return a_map(obj.get("metadata"), "metadata")


def _annotations(obj: Mapping[str, Any]) -> dict[str, Any]:
    return a_map(_metadata(obj).get("annotations"), "metadata.annotations")
