"""What a workload is charged for its pods, those that are ending and those that vanished among them.

This file alone gathers the pods below a workload for `bizrq.workloads.ownership.charge.weigh`: what each costs, of
which version it is, and if its controller waits for it. Most pods are alike, so they are weighed by class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bizrq.units.quantity import NANO
from bizrq.units.resources import Resources, add, growth, larger, restrict, total
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.demand.counting import Demand, least_pod
from bizrq.workloads.kinds.declaration import POD, REPLICA_SET, Adapter
from bizrq.workloads.lookup import ALL_NODES, Lookup
from bizrq.workloads.ownership.charge import Held, Weighed, cost_of, may_be_free, number_of, weigh
from bizrq.workloads.ownership.lives import TERMINAL, Life, Stage, ends_at, stage
from bizrq.workloads.ownership.overlap import FREE_FOR
from bizrq.workloads.ownership.payers import created_at
from bizrq.workloads.ownership.waiting import awaits, current_version
from bizrq.workloads.pods.eligibility import eligible_nodes
from bizrq.workloads.pods.surge import is_surging
from bizrq.workloads.validation import Malformed
from controller.usage.below import Below, Path
from controller.usage.excess import ExcessUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod
from controller.watch.vanished import Vanished

Object = dict[str, Any]

#: The life of a pod that nobody deletes, where its age does not matter.
_RUNS = Life()
#: The first moment of the year 10000. A grace may be longer, and RFC 3339 has no such year.
_LAST = 253_402_300_800_000
#: Up to this many pods are compared one by one for the latest.
_FEW = 500
#: True for the pods that a controller waits for before it makes others.
_Awaited: TypeAlias = Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Pods that run besides the declared ones: those that are `ending`, and those `beyond` the ten free minutes.

    Where none is beyond, those of an `older` version may ask for more than the declared ones. `since` is the first
    moment of that; of pods that are only older, when the latest version was made. `until` is the last end by the clock,
    None where only an event ends it. Times are milliseconds since 1970.
    """

    ending: int
    beyond: int
    amounts: Resources
    older: int = 0
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class PodCharge:
    """The charge of a workload with its pods.

    `surplus` is what fresh pods cost beyond the workload that no overlap of versions explains. `between` is what is
    asked for between the workload and its pods beyond both.
    """

    weighed: Weighed
    overlap: Overlap | None = None
    surplus: Resources | None = None
    between: Resources | None = None
    #: The uids of pods that are gone from the API and may run on.
    vanished: Sequence[str] = ()


class PodCharges:
    """Weighs workloads with their pods."""

    def __init__(
        self,
        cluster: Cluster,
        excess: ExcessUsage,
        config: CountingConfig,
        now: Callable[[], int],
    ) -> None:
        """`now` returns milliseconds since 1970."""
        self._cluster = cluster
        self._excess = excess
        self._config = config
        self._now = now

    def of(
        self,
        adapter: Adapter,
        workload: Object,
        below: Below,
        demand: Demand,
        earlier: Resources,
        between: Resources,
        lookup: Lookup,
    ) -> PodCharge:
        """Return the charge of a workload that declares `demand`.

        Its controllers may make pods for an `earlier` demand, and for what is asked for `between` it and its pods
        beyond it. Raises nothing: a pod that cannot be counted costs nothing.
        """
        wanted = demand.resources.get("pods", 0) // NANO
        declared = wanted - sum(role.surge for role in demand.roles)
        has_versions = is_surging(workload, adapter)
        surges = has_versions and self._config.surge != "count"
        self._pay_for_unpaid(workload, below, declared)
        held = self._held(workload, below, lookup)
        may_have_free = surges and may_be_free(held, declared)
        if may_have_free:
            held = self._held(workload, below, lookup, by_age=True)
        now = self._now()
        if between:
            # Pods that are there already count by themselves.
            fresh = [pod for pod in held if stage(pod.life, now, awaited=pod.awaited) is Stage.FRESH]
            there = add(cost_of(fresh), self._stayed(workload, below, lookup))
            between = restrict(between, growth(add(demand.resources, between), there))
        asked = larger(earlier, add(demand.resources, between)) if earlier or between else demand.resources
        # An earlier demand covers the pods that are missing of a smaller one.
        missing = {} if earlier else least_pod(demand)
        weighed = weigh(asked, declared, held, now, surges=may_have_free, per_pod=missing, awaits=wanted)
        rolls = has_versions and len({pod.version for pod in held}) > 1
        found = _charge(weighed, declared, asked, least_pod(demand), rolls=rolls)
        gone = [pod.uid for path in below.makers for pod, _ in self._vanished(workload, path)]
        found = replace(found, vanished=gone)
        if found.overlap is None:
            return replace(found, between=between)
        since = found.overlap.since if found.overlap.since is not None else _latest_version(below.makers)
        overlap = replace(found.overlap, since=since)
        return replace(found, overlap=overlap, between=between)

    def latest(self, below: Below) -> str:
        """Return the latest pod as text. Of very many pods, only one of each class is compared."""
        found = ("", "")
        for path in below.makers:
            classes = self._cluster.descendants.grouped_pods_made_by(path[-1][1])
            few = sum(many for _, many in classes) <= _FEW
            for pod in self._pods(path) if few else [pod for pod, _ in classes]:
                if not pod.is_terminated and not pod.is_being_deleted:
                    found = max(found, (str(pod.created or 0).zfill(15), f"Pod {pod.name}"))
        return found[1]

    def revision(self, below: Below) -> int:
        """Return the revision of the latest change of a pod."""
        pods = (self._cluster.descendants.pods_naming(path[-1][1]) for path in below.makers)
        return max((pod.revision for of_maker in pods for pod in of_maker), default=0)

    def _pods(self, path: Path) -> Iterable[Pod]:
        return self._cluster.descendants.pods_made_by(path[-1][1])

    def _pay_for_unpaid(self, workload: Object, below: Below, declared: int) -> None:
        """Give the group the pods that were nobody's when it came to pay for the workload, and that this asks for now.

        The others end as nobody's: the group has admitted none of them.
        """
        unpaid, makers = self._cluster.unpaid, [path[-1][1] for path in below.makers]
        if not any(unpaid.of(maker["metadata"]["uid"]) for maker in makers):
            return
        pods = [pod for maker in makers for pod in self._cluster.descendants.pods_made_by(maker)]
        fresh = [pod for pod in pods if stage(pod.life(), self._now(), awaited=False) is Stage.FRESH]
        group = self._cluster.ownership.group_of(workload)
        for pod in sorted(fresh, key=lambda each: (each.uid in unpaid, each.created or 0))[:declared]:
            if group is not None and pod.uid in unpaid:
                unpaid.discard(pod.uid)
                self._cluster.moved_pods.give(pod.uid, group)

    def _held(self, workload: Object, below: Below, lookup: Lookup, *, by_age: bool = False) -> list[Held]:
        """Return the pods below a workload by class. `by_age` if those of a class have to be made at one moment."""
        costs: dict[object, Resources] = {}
        versions = _CurrentVersions(below)

        def cost(pod: Pod) -> Resources:
            sort = _sort(pod)
            known = costs.get(sort)
            if known is None:
                known = costs[sort] = self._excess.cost(pod.plain(), self._pod_adapter(), workload, lookup)
            return known

        found: list[Held] = []
        for path in below.makers:
            maker = path[-1][1]["metadata"]["uid"]
            # The version of a pod that does not tell is that of its maker.
            of_maker = maker if len(path) > 1 else ""
            more = below.pods_to_adopt if len(path) == 1 else ()
            for pod, many, awaited in self._classes(path, _awaited(path, versions, lookup), more, by_age=by_age):
                life = pod.life() if pod.is_being_deleted else Life(created=pod.created) if by_age else _RUNS
                found.append(Held(pod.uid, pod.version or of_maker, life, cost(pod), awaited, many))
            for pod, life in self._vanished(workload, path):
                used = self._cluster.vanished.used(pod.uid)
                found.append(Held(pod.uid, pod.version or of_maker, life, larger(cost(pod), used)))
        return found

    def _stayed(self, workload: Object, below: Below, lookup: Lookup) -> Resources:
        """Return what the fresh pods cost that another group pays for: their makers make no others."""
        pods = (pod for path in below.makers for pod in self._cluster.descendants.stayed_made_by(path[-1][1]))
        fresh = (pod for pod in pods if stage(pod.life(), self._now(), awaited=False) is Stage.FRESH)
        return total(self._excess.cost(pod.plain(), self._pod_adapter(), workload, lookup) for pod in fresh)

    def _vanished(self, workload: Object, path: Path) -> list[Vanished]:
        """Return the vanished pods of a maker, without those that another group pays for: it did when they went."""
        vanished, group = self._cluster.vanished.of(path[-1][1]["metadata"]["uid"]), None
        if vanished:
            group = self._cluster.ownership.group_of(workload)
        return [each for each in vanished if self._cluster.vanished.group_of(each.pod.uid) in (None, group)]

    def _classes(
        self, path: Path, awaited: _Awaited, more: Iterable[Pod], *, by_age: bool
    ) -> list[tuple[Pod, int, bool]]:
        """Return one of the live pods of each class, how many the class has, and if their controller waits for them.

        `more` are pods besides those that the maker has. Ten thousand pods may be on as many nodes, or be deleted one
        by one. So little is done for each.
        """
        pods, made = self._cluster.descendants, path[-1][1]
        classes: dict[object, list[Any]] = {}
        unpaid = self._cluster.unpaid
        its = [(p, 1) for p in pods.pods_made_by(made)] if by_age else pods.grouped_pods_made_by(made)
        for pod, many in (*its, *((p, 1) for p in more)):
            if pod.phase in TERMINAL:
                continue
            rest, key, waits = pod.rest, (id(pod.spec), id(pod.labels), pod.created if by_age else None), False
            if rest is not None:
                metadata = rest["metadata"]
                deleted = metadata.get("deletionTimestamp")
                if deleted is not None:
                    if pod.uid in unpaid:
                        continue
                    waits = awaited(pod)
                    grace = metadata.get("deletionGracePeriodSeconds")
                    key = (*key, deleted, grace, pod.was_over, pod.node is None, waits)
                if pod.is_resized:
                    key = (*key, pod.uid)
            known = classes.get(key)
            if known is None:
                classes[key] = [pod, many, waits]
            else:
                known[1] += many
        return [(pod, many, waits) for pod, many, waits in classes.values()]

    def _pod_adapter(self) -> Adapter:
        found = self._cluster.registry.by_kind(*POD)
        if found is None:
            raise LookupError("pods are no kind of the registry")
        return found


def _sort(pod: Pod) -> tuple[int, int]:
    """Return a key that is equal for pods of one workload that cost the same."""
    return (id(pod), 0) if pod.rest is not None and pod.is_resized else (id(pod.spec), id(pod.labels))


class _CurrentVersions:
    """The uid of the ReplicaSet that has a Deployment's template now, looked for once where a pod asks."""

    def __init__(self, below: Below) -> None:
        self._below = below
        self._known: dict[str, str | None] = {}

    def is_old(self, owner: Object, maker: Object) -> bool:
        uid = owner["metadata"]["uid"]
        if uid not in self._known:
            self._known[uid] = current_version(owner, [child for _, child in self._below.owners[uid].children])
        return maker["metadata"]["uid"] != self._known[uid]


def _awaited(path: Path, versions: _CurrentVersions, lookup: Lookup) -> _Awaited:
    """Return for which pods of a maker no controller makes another while they are being deleted."""
    adapter, maker = path[-1]
    going = [each["metadata"].get("deletionTimestamp") is not None for _, each in path]
    if all(going) or _is_in_namespace_that_goes(maker, lookup):
        # Controllers make nothing for an object that is being deleted. One that stands below it goes on.
        return lambda _: True
    if going[-1]:
        return lambda _: False
    if adapter.group_kind == REPLICA_SET and len(path) > 1:
        owner = path[-2][1]
        # Its Deployment waits only for what the ReplicaSet does not make again.
        is_over = (maker.get("spec") or {}).get("replicas") == 0 and versions.is_old(owner, maker)
        by_name = awaits(owner, is_old=is_over)
    else:
        by_name = awaits(maker, is_old=False)
    if not adapter.per_node:
        return lambda pod: by_name(pod.name)
    nodes: set[str] | None = None

    def is_awaited(pod: Pod) -> bool:
        """A DaemonSet waits on the nodes that its template selects; on others it makes no pod."""
        nonlocal nodes
        if nodes is None:
            nodes = _nodes(maker, lookup)
        return pod.node in nodes and by_name(pod.name)

    return is_awaited


def _is_in_namespace_that_goes(maker: Object, lookup: Lookup) -> bool:
    """Return True where the API server lets nobody make anything, and deletes pods before what they are made for."""
    namespace = lookup.get("", "Namespace", "", maker["metadata"].get("namespace", ""))
    return namespace is not None and namespace["metadata"].get("deletionTimestamp") is not None


def _nodes(maker: Object, lookup: Lookup) -> set[str]:
    """Return the nodes that an object with a pod on each runs on now; none where its template cannot be read."""
    spec = ((maker.get("spec") or {}).get("template") or {}).get("spec") or {}
    try:
        return set(eligible_nodes(spec, "spec.template.spec", lookup.all_of(*ALL_NODES[:3])))
    except Malformed:
        return set()


def _latest_version(makers: Sequence[Path]) -> int | None:
    """Return when the latest of several ReplicaSets was made; None where there is one, or none says when."""
    made = [created_at(path[-1][1]) for path in makers] if len(makers) > 1 else []
    return _on_the_calendar(max((at for at in made if at is not None), default=None))


def _charge(weighed: Weighed, declared: int, asked: Resources, per_pod: Resources, *, rolls: bool) -> PodCharge:
    """Sort what is charged beyond the workload into overlap and surplus. `rolls` says that it has several versions."""
    if not weighed.beyond:
        return PodCharge(weighed)
    ending = weighed.ending
    amounts = cost_of(ending)
    fresh = growth(growth(weighed.charge, amounts), asked)
    surge = number_of(weighed.fresh) - declared
    number = max(0, surge - number_of(weighed.free)) if rolls and fresh else 0
    if not ending and not (rolls and fresh):
        return PodCharge(weighed, surplus=fresh)
    older = max(1, _larger(weighed.fresh, per_pod)) if rolls and fresh and not number else 0
    since = [_deleted_at(pod.life) for pod in ending]
    if number and (made := _made_at(weighed.fresh, surge)):
        since.append(made + FREE_FOR)
    ends = [ends_at(pod.life) for pod in ending]
    known = [end for end in ends if end is not None]
    overlap = Overlap(
        number_of(ending),
        number,
        add(amounts, fresh) if rolls else amounts,
        older,
        _on_the_calendar(min((at for at in since if at is not None), default=None)),
        _on_the_calendar(max(known)) if known and len(known) == len(ends) and not (rolls and fresh) else None,
    )
    return PodCharge(weighed, overlap, None if rolls else fresh)


def _larger(pods: Iterable[Held], per_pod: Resources) -> int:
    """Return how many pods ask for more than the next one will."""
    # Most pods of a slot share one cost.
    sizes = {id(pod.cost): pod.cost for pod in pods}
    large = {key for key, cost in sizes.items() if growth(cost, per_pod)}
    return sum(pod.many for pod in pods if id(pod.cost) in large)


def _made_at(pods: Iterable[Held], number: int) -> int | None:
    """Return when the oldest of so many of the youngest pods was made that say so."""
    found = None
    for pod in sorted(pods, key=lambda each: each.created or 0, reverse=True):
        if number <= 0 or not pod.created:
            break
        found = pod.created
        number -= pod.many
    return found


def _deleted_at(life: Life) -> int | None:
    """Return when a pod was deleted: `deletionTimestamp` has the grace in it. None where that cannot be known."""
    if life.gone is not None or life.deleted is None:
        return life.gone
    return life.deleted - life.grace if life.grace is not None else None


def _on_the_calendar(at: int | None) -> int | None:
    """Return a time that can be written; None for another."""
    return at if at is not None and 0 <= at < _LAST else None
