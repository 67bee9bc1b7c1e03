"""What pods, their claims and their nodes show of a workload, as they stand in the informers.

This file alone gathers that; what it means is `bizrq.workloads.demand.observed`'s. It writes nothing. Most pods are
like many others, so what one spec uses on one model of card is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

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

log = structlog.get_logger(__name__)

Object = dict[str, Any]
_Pair = tuple[PodUsage, PodUsage]


class ObservedUsage:
    """Answers what the pods of a workload use, for the recount and for the meter."""

    def __init__(self, cluster: Cluster, config: CountingConfig) -> None:
        self._cluster = cluster
        self._config = config
        # Never for hours (docs/counting.md, "Admin access").
        self._of_cash = replace(config, count_admin_access=False)
        #: What is being asked for, where somebody wants to know.
        self._notes: dict[Reference, None] | None = None
        self._lookup = _Noted(StoredPodLookup(cluster.resolver.cached_lookup), self._track)
        self._classes = cluster.resolver.informer_of((dra.GROUP, "DeviceClass"))
        self._place = NodeContext(self._node, self._slices)
        self._pairs: dict[tuple[object, ...], tuple[Object, _Pair, Collection[Reference]]] = {}
        self._asks: dict[int, tuple[Object, bool]] = {}
        self._models: dict[str, tuple[Object | None, str | None]] = {}

    @contextmanager
    def tracking(self) -> Iterator[Collection[Reference]]:
        """All that is asked for meanwhile, nodes and pools of slices among it: what is found depends on that."""
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
        """What a workload's pods use beyond what it declares.

        All that they use, where the workload itself cannot be counted: it holds that all the same.
        """
        sorts = self._cluster.descendants.grouped_pods_of(workload)
        if not sorts:
            return NOTHING_UNREQUESTED
        try:
            around = self._around(workload)
        except Malformed:
            return NOTHING_UNREQUESTED
        found: list[tuple[Object, PodUsage, PodUsage, int]] = []
        # Pods run on thousands of nodes, and nearly all of them show nothing, like each other.
        silent: set[object] = set()
        for pod, many in sorts:
            key = self._alike_to_see(pod)
            if key in silent and not self.may_have_claims(pod):
                continue
            plain = pod.plain()
            try:
                if not observed.is_counted_pod(plain, now):
                    continue
                if countable and not self._may_show(pod):
                    silent.add(key)
                    continue
                asked, uses = self._pair(pod, plain, around)
            except Malformed as error:
                log.warning("pod tells nothing of what it uses", pod=f"{pod.namespace}/{pod.name}", error=str(error))
                continue
            if not countable:
                asked = PodUsage()
            elif not uses.shared and not growth(uses.resources, asked.resources):
                silent.add(key)
                continue
            found.append((plain, asked, uses, many))
        more = observed.unrequested_usage(found, around) if found else NOTHING_UNREQUESTED
        # Why such a workload is charged so is told with it: `Uncountable`.
        return more if countable else Unrequested(more.resources, shared=more.shared, is_transient=more.is_transient)

    def cost(self, pod: Pod, payer: Object | None) -> Resources:
        """What a pod occupies while it runs, its claims aside: as declared or resized in place, and as its node shows.

        Raises Malformed.
        """
        bare = pod.plain()
        bare["spec"] = {key: value for key, value in bare["spec"].items() if key != "resourceClaims"}
        bare["status"] = {key: part for key, part in bare["status"].items() if key in resize.TOLD}
        asked, uses = self._pair(pod, bare, self._around(payer or bare), claims=False)
        return larger(asked.resources, uses.resources)

    def equivalence_key(self, pod: Pod) -> object:
        """What pods of one workload have in common that cost the same, their claims aside."""
        return (id(pod.spec), pod.node, *self._own(pod, (), claims=False)) if pod.rest else (id(pod.spec), pod.node)

    def _alike_to_see(self, pod: Pod) -> object:
        """The same, of all nodes that show the same."""
        if pod.rest or pod.node is None or self._config.hami.enabled:
            return self.equivalence_key(pod)
        node = self._node(pod.node)
        known = self._models.get(pod.node)
        if known is None or known[0] is not node:
            if len(self._models) >= SharedParts.MOST:
                self._models.clear()
            known = self._models[pod.node] = node, observed.node_model(node or {}, self._config)
        return id(pod.spec), "on", known[1]

    def may_have_claims(self, pod: Pod) -> bool:
        claims = self._cluster.informers.claims.store
        return bool(pod.spec.get("resourceClaims") or (len(claims) and claims.kept_index("pod", pod.uid)))

    def claims_of(self, pod: Pod) -> Mapping[str, Object]:
        """The allocated claims that a pod has or shares, by uid."""
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
        """What an allocated claim occupies, without what its pod occupies by itself already. Raises Malformed."""
        plain = pod.plain()
        around = self._around(payer or plain, self._of_cash)
        found = allocation_cost(claim, pod_set_of_template("pod", 1, plain, ""), around, self._slices).resources
        marked = (claim["metadata"].get("annotations") or {}).get(observed.BRIDGED) == "true"
        return subtract_floor(found, self.cost(pod, payer)) if marked else found

    def pods_using(self, claim: Object) -> list[Pod]:
        """The pods that own a claim or that it is reserved for."""
        uids = [o["uid"] for o in claim["metadata"].get("ownerReferences") or () if o.get("kind") == "Pod"]
        uids += [user.get("uid") for user in (claim.get("status") or {}).get("reservedFor") or ()]
        return [pod for uid in dict.fromkeys(uids) if (pod := self._cluster.informers.pod(uid)) is not None]

    def _around(self, payer: Object, config: CountingConfig | None = None) -> ClaimContext:
        namespace = payer["metadata"].get("namespace", "")
        return ClaimContext(labels_of(payer), namespace, self._lookup, config or self._config)

    def _pair(self, pod: Pod, plain: Object, context: ClaimContext, *, claims: bool = True) -> _Pair:
        """What a pod declares and what it uses."""
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
            # The specs of equal pods are one object, which the memory keeps alive, and so its id.
            with self.tracking() as asked:
                known = self._pairs[key] = pod.spec, self._compared(plain, owned, context), asked
        for reference in known[2]:
            self._track(reference)
        return known[1]

    def _own(self, pod: Pod, owned: Sequence[Object], claims: bool) -> tuple[object, ...]:
        """What tells a pod from others of its spec, and its claims as they are now from what they were."""
        has_claims = claims and (owned or pod.spec.get("resourceClaims"))
        if not has_claims:
            # Of the rarer parts, those that say when it goes change nothing of what it uses.
            findings = pod.rest is not None and (pod.rest["status"] or "annotations" in pod.rest["metadata"])
            return (pod.uid, pod.revision) if findings else ()
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
        """Whether a pod has anything that could be other than declared: devices, on a node or by claim."""
        known = self._asks.get(id(pod.spec))
        if known is None or known[0] is not pod.spec:
            if len(self._asks) >= SharedParts.MOST:
                self._asks.clear()
            known = self._asks[id(pod.spec)] = pod.spec, _asks_for_devices(pod.spec, self._config)
        return known[1] or pod.rest is not None

    def _owned(self, pod: Pod) -> Sequence[Object]:
        return list(self._cluster.informers.claims.store.index("pod", pod.uid))

    def _node(self, name: str) -> Object | None:
        self._track(node_reference(name))
        return self._cluster.informers.nodes.store.get(name)

    def _slices(self, driver: str, pool: str) -> Sequence[Object]:
        self._track(pool_reference(pool_key(driver, pool)))
        return list(self._cluster.informers.slices.store.index("pool", pool_key(driver, pool)))


class _Noted:
    """Passes every question on, once it is noted."""

    def __init__(self, lookup: Lookup, note: Callable[[Reference], None]) -> None:
        self._lookup = lookup
        self._note = note

    def get(self, group: str, kind: str, namespace: str, name: str) -> Object | None:
        self._note((group, kind, namespace, name))
        return self._lookup.get(group, kind, namespace, name)

    def all_of(self, group: str, kind: str, namespace: str) -> Sequence[Object]:
        self._note((group, kind, namespace, ""))
        return self._lookup.all_of(group, kind, namespace)


def is_allocated(claim: Object) -> bool:
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
