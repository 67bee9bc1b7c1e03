"""The usage that a workload's pods, their claims and their nodes show, as the informers have them.

This file alone gathers that; `bizrq.workloads.demand.observed` interprets it. It writes nothing. Most pods are alike,
so the usage of one spec on one device model is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from bizrq.units.resources import Resources, growth, larger, subtract_floor
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand import observed
from bizrq.workloads.demand.observed import NOTHING_UNREQUESTED, NodeContext, PodUsage, StoredPodLookup, Unrequested
from bizrq.workloads.devices import dra, hami
from bizrq.workloads.devices.allocation import allocation_cost
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.labels import MODEL_LABELS, labels_of
from bizrq.workloads.lookup import Lookup, Reference
from bizrq.workloads.pods import resize
from bizrq.workloads.pods.roles import pod_set_of_template
from bizrq.workloads.validation import Malformed
from controller.watch.cluster import Cluster
from controller.watch.invalidation import node_reference, pool_key, pool_reference
from controller.watch.pods import Pod, SharedParts
from controller.watch.vanished import LastUsage, SharedClaim

log = structlog.get_logger(__name__)

Object = dict[str, Any]
_Pair = tuple[PodUsage, PodUsage]


class ObservedUsage:
    """Answers what the pods of a workload use, for recounts and for card-hours."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config
        # Never for hours (docs/counting.md, "Admin access").
        self._of_cash = replace(config, count_admin_access=False)
        #: The references asked for, while a caller tracks them.
        self._notes: dict[Reference, None] | None = None
        self._lookup = _Noted(StoredPodLookup(cluster.resolver.cached_lookup), self._track)
        self._classes = cluster.resolver.informer_of((dra.GROUP, "DeviceClass"))
        self._place = NodeContext(self._node, self._slices)
        self._pairs: dict[tuple[object, ...], tuple[Object, _Pair, Collection[Reference]]] = {}
        self._asks: dict[int, tuple[Object, bool]] = {}
        self._models: dict[str, tuple[Object | None, str | None]] = {}

    @contextmanager
    def tracking(self) -> Iterator[Collection[Reference]]:
        """Collect all references asked for meanwhile, including nodes and pools: the result depends on them."""
        before, self._notes = self._notes, {}
        notes = self._notes
        try:
            yield notes
        finally:
            self._notes = before

    def _track(self, reference: Reference) -> None:
        if self._notes is not None:
            self._notes[reference] = None

    def unrequested(self, workload: Object, now: int, *, countable: bool) -> Unrequested:
        """Return what a workload's pods use beyond what it declares.

        Where the workload is not `countable`, return all that they use.
        """
        sorts = self._cluster.descendants.grouped_pods_of(workload)
        if not sorts:
            return NOTHING_UNREQUESTED
        try:
            around = self._around(workload)
        except Malformed:
            return NOTHING_UNREQUESTED
        found: list[tuple[Object, PodUsage, PodUsage, int]] = []
        # Pods run on thousands of nodes, and nearly all of them show nothing.
        silent: set[object] = set()
        for pod, many in sorts:
            if countable and not self._may_show(pod):
                continue
            key = self._alike_to_see(pod)
            if key in silent and not self.may_have_claims(pod):
                continue
            plain = pod.plain()
            try:
                if not observed.is_counted_pod(plain, now):
                    continue
                asked, uses = self._pair(pod, plain, around)
            except Malformed as error:
                log.warning("pod usage cannot be read", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                continue
            if not countable:
                asked = PodUsage()
            elif not uses.shared and not growth(uses.resources, asked.resources):
                silent.add(key)
                continue
            found.append((plain, asked, uses, many))
        more = observed.unrequested_usage(found, around) if found else NOTHING_UNREQUESTED
        # Condition `Uncountable` already says why such a workload is charged so.
        return more if countable else Unrequested(more.resources, shared=more.shared, is_transient=more.is_transient)

    def cost(self, pod: Pod, payer: Object | None) -> Resources:
        """Return what a running pod occupies without its claims: as declared or resized, and as its node shows.

        Where its own labels cannot be counted, those of its payer are, or none. Raises Malformed.
        """
        with suppress(Malformed):
            return self._cost(pod, payer)
        unlabelled = msgspec.structs.replace(pod, labels={}, selected={})
        with suppress(Malformed):
            return self._cost(unlabelled, payer)
        return self._cost(unlabelled, None)

    def _cost(self, pod: Pod, payer: Object | None) -> Resources:
        bare = pod.plain()
        bare["spec"] = {key: value for key, value in bare["spec"].items() if key != "resourceClaims"}
        bare["status"] = {key: part for key, part in bare["status"].items() if key in resize.TOLD}
        asked, uses = self._pair(pod, bare, self._around(payer or bare), claims=False)
        return larger(asked.resources, uses.resources)

    def at_once(self, pod: Pod, payer: Object | None) -> LastUsage:
        """Return what a pod uses now. Raises nothing.

        Nothing is used of what cannot be read.
        """
        plain, owned = pod.plain(), self._owned(pod)
        around = self._around(payer or plain)
        try:
            asked, uses = self._pair(pod, plain, around)
            claims = observed.pod_claims(plain, owned, around).shared
        except Malformed:
            return LastUsage({}, {})
        shared = {
            claim["metadata"]["uid"]: SharedClaim(place, uses.shared.get(place, {})) for place, claim in claims.items()
        }
        return LastUsage(larger(asked.resources, uses.resources), shared)

    def equivalence_key(self, pod: Pod) -> object:
        """Return a key that is equal for pods of one workload that cost the same without their claims."""
        return (id(pod.spec), pod.node, *self._own(pod, (), claims=False)) if pod.rest else (id(pod.spec), pod.node)

    def _alike_to_see(self, pod: Pod) -> object:
        """Return a key that is equal for pods on nodes that show the same model."""
        if _has_findings(pod) or pod.node is None or self._config.hami.enabled:
            return self.equivalence_key(pod)
        node = self._node(pod.node)
        known = self._models.get(pod.node)
        if known is None or known[0] is not node:
            if len(self._models) >= SharedParts.MOST:
                self._models.clear()
            known = self._models[pod.node] = node, observed.node_model(node or {}, self._config)
        return id(pod.spec), "on", known[1]

    def may_have_claims(self, pod: Pod) -> bool:
        """Return True if the pod names or owns claims."""
        claims = self._cluster.informers.claims.store
        return bool(pod.spec.get("resourceClaims") or (len(claims) and claims.kept_index("pod", pod.uid)))

    def claims_of(self, pod: Pod) -> Mapping[str, Object]:
        """Return the allocated claims that a pod has or shares, by uid."""
        owned = self._owned(pod)
        if not owned and not pod.spec.get("resourceClaims"):
            return {}
        plain = pod.plain()
        try:
            claims = observed.pod_claims(plain, owned, self._around(plain))
        except Malformed:
            return {}
        found = [*claims.own, *claims.shared.values(), *([claims.bridged] if claims.bridged else [])]
        return {claim["metadata"]["uid"]: claim for claim in found if is_allocated(claim)}

    def cost_of_claim(self, claim: Object, pod: Pod, payer: Object | None) -> Resources:
        """Return what an allocated claim occupies beyond what its pod occupies by itself. Raises Malformed."""
        plain = pod.plain()
        around = self._around(payer or plain, self._of_cash)
        found = allocation_cost(claim, pod_set_of_template("pod", 1, plain, ""), around, self._slices).resources
        marked = (claim["metadata"].get("annotations") or {}).get(observed.BRIDGED) == "true"
        return subtract_floor(found, self.cost(pod, payer)) if marked else found

    def pods_using(self, claim: Object) -> list[Pod]:
        """Return the pods that own a claim or that it is reserved for."""
        uids = [o["uid"] for o in claim["metadata"].get("ownerReferences") or () if o.get("kind") == "Pod"]
        uids += [user.get("uid") for user in (claim.get("status") or {}).get("reservedFor") or ()]
        return [pod for uid in dict.fromkeys(uids) if (pod := self._cluster.informers.pod(uid)) is not None]

    def _around(self, payer: Object, config: CountingConfig | None = None) -> ClaimContext:
        namespace = payer["metadata"].get("namespace", "")
        return ClaimContext(labels_of(payer), namespace, self._lookup, config or self._config)

    def _pair(self, pod: Pod, plain: Object, context: ClaimContext, *, claims: bool = True) -> _Pair:
        """Return what a pod declares and what it uses."""
        owned = self._owned(pod) if claims else ()
        node = self._place.node(pod.node) if pod.node else None
        labels = [found.get(key) for found in (context.labels, pod.labels) for key in MODEL_LABELS.values()]
        model = observed.node_model(node or {}, self._config)
        if self._config.hami.enabled:
            labels.append(hami.ignores_namespace(pod.namespace, self._lookup))
        key = id(pod.spec), claims, model, self._classes.store.resource_version, *labels, *self._own(pod, owned, claims)
        known = self._pairs.get(key)
        if known is None or known[0] is not pod.spec:
            if len(self._pairs) >= SharedParts.MOST:
                self._pairs.clear()
            # Pods with equal specs share one object. The cache keeps it alive, so its id stays unique.
            with self.tracking() as asked:
                known = self._pairs[key] = pod.spec, self._compared(plain, owned, context), asked
        for reference in known[2]:
            self._track(reference)
        return known[1]

    def _own(self, pod: Pod, owned: Sequence[Object], claims: bool) -> tuple[object, ...]:
        """Return what distinguishes a pod from others with its spec, including the versions of its claims."""
        has_claims = claims and (owned or pod.spec.get("resourceClaims"))
        if not has_claims:
            return (pod.uid, pod.revision) if _has_findings(pod) else ()
        kinds = (("resourceClaimName", "ResourceClaim"), ("resourceClaimTemplateName", "ResourceClaimTemplate"))
        named = [
            self._lookup.get(dra.GROUP, kind, pod.namespace, entry[field])
            for entry in pod.spec.get("resourceClaims") or ()
            for field, kind in kinds
            if entry.get(field)
        ]
        versions = [found["metadata"]["resourceVersion"] for found in (*owned, *named) if found is not None]
        return pod.uid, pod.revision, self._cluster.informers.slices.store.resource_version, *versions

    def _compared(self, plain: Object, owned: Sequence[Object], context: ClaimContext) -> _Pair:
        return observed.declared_usage(plain, context), observed.pod_usage(plain, owned, context, self._place)

    def _may_show(self, pod: Pod) -> bool:
        """Return True if the pod may use other than it declares: devices, on a node or by claim."""
        known = self._asks.get(id(pod.spec))
        if known is None or known[0] is not pod.spec:
            if len(self._asks) >= SharedParts.MOST:
                self._asks.clear()
            known = self._asks[id(pod.spec)] = pod.spec, _asks_for_devices(pod.spec, self._config)
        return known[1] or _has_findings(pod)

    def _owned(self, pod: Pod) -> Sequence[Object]:
        return list(self._cluster.informers.claims.store.index("pod", pod.uid))

    def _node(self, name: str) -> Object | None:
        self._track(node_reference(name))
        return self._cluster.informers.nodes.store.get(name)

    def _slices(self, driver: str, pool: str) -> Sequence[Object]:
        self._track(pool_reference(pool_key(driver, pool)))
        return list(self._cluster.informers.slices.store.index("pool", pool_key(driver, pool)))


class _Noted:
    """A lookup that notes every reference before it answers."""

    def __init__(self, lookup: Lookup, note: Callable[[Reference], None]) -> None:
        self._lookup = lookup
        self._note = note

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        self._note((group, kind, namespace, name))
        return self._lookup.get(group, kind, namespace, name)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        self._note((group, kind, namespace, ""))
        return self._lookup.all_of(group, kind, namespace)


def _has_findings(pod: Pod) -> bool:
    """Return True for a pod with rare fields that may change what it uses. When it is deleted does not."""
    return pod.rest is not None and bool(pod.rest["status"] or "annotations" in pod.rest["metadata"])


def is_allocated(claim: Object) -> bool:
    """Return True if devices are allocated to the claim."""
    return bool((claim.get("status") or {}).get("allocation"))


def _asks_for_devices(spec: Object, config: CountingConfig) -> bool:
    if spec.get("resourceClaims") or config.counts_as:
        return True
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return any(
        "/" in name
        for container in containers
        for amounts in (container.get("resources") or {}).values()
        if isinstance(amounts, dict)
        for name in amounts
    )
