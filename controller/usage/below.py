"""The objects below one workload, level by level: what each owner among them made, and which of them make pods.

This file alone walks down from a workload. It does not know costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bizrq.kube.informer import Informer
from bizrq.kube.store import Kept, plain
from bizrq.workloads.kinds.declaration import POD, Adapter, GroupKind
from bizrq.workloads.lookup import reference_of
from bizrq.workloads.owners import MAX_HOPS
from bizrq.workloads.ownership.observation import has_observed, is_awaited
from controller.watch.cluster import Cluster
from controller.watch.pods import Pod

Object = dict[str, Any]
#: Objects from the workload down to one below it, each with its adapter.
Path = tuple[tuple[Adapter, Object], ...]


@dataclass(slots=True)
class Owner:
    """An object that answers for others below it, with those of them that are not pods."""

    path: Path
    children: list[tuple[Adapter, Object]] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return self.path[-1][1]["metadata"]["uid"]

    @property
    def above(self) -> str:
        """The uid of the owner that answers for this one; "" for the workload itself."""
        kind = self.path[-1][0].group, self.path[-1][0].kind
        return next((o["metadata"]["uid"] for maker, o in reversed(self.path[:-1]) if kind in maker.creates), "")


@dataclass(slots=True)
class Below:
    """What is below a workload: the owners by uid, the workload first, and the paths to those that make pods.

    So is what it will adopt.
    """

    owners: dict[str, Owner] = field(default_factory=dict)
    makers: list[Path] = field(default_factory=list)
    #: What the workload will adopt.
    to_adopt: list[Kept] = field(default_factory=list)

    @property
    def pods_to_adopt(self) -> list[Pod]:
        return [kept for kept in self.to_adopt if isinstance(kept, Pod)]

    def children_to_adopt(self, kind: GroupKind) -> list[Object]:
        """Return what the workload will adopt of a kind other than pods."""
        children = (plain(kept) for kept in self.to_adopt if not isinstance(kept, Pod))
        return [obj for obj in children if reference_of(obj)[:2] == kind]

    @property
    def objects(self) -> Iterator[Object]:
        """Yield the workload and all below it that are not pods."""
        for owner in self.owners.values():
            yield owner.path[-1][1]

    @property
    def revision(self) -> int:
        """Return the latest revision of these objects."""
        return max(int(each["metadata"]["resourceVersion"]) for each in self.objects)

    @property
    def is_awaited(self) -> bool:
        """Return True while a controller of any of these objects has not acted yet, and will say so once it has."""
        return any(map(is_awaited, self.objects))

    @property
    def lags(self) -> bool:
        """Return True while a controller of any of these objects says that it has not observed what is stored."""
        return any(has_observed(each) is False for each in self.objects)


def gather(cluster: Cluster, adapter: Adapter, workload: Object) -> Below:
    """Collect what is below a workload, by the owner that answers for it."""
    top: Path = ((adapter, workload),)
    found = Below({workload["metadata"]["uid"]: Owner(top)}, to_adopt=cluster.descendants.to_adopt(workload))
    level = [top]
    for _ in range(MAX_HOPS):
        if not level:
            break
        level = [below for path in level for below in _gather_below(cluster, path, found)]
    return found


def kinds_below(cluster: Cluster, adapter: Adapter) -> set[GroupKind]:
    """Return the watched kinds that may be below an object of this kind."""
    found: set[GroupKind] = set()
    todo = [adapter]
    while todo:
        above = todo.pop()
        for made in {*above.creates, *above.passes} - found:
            maker = cluster.registry.by_kind(*made)
            if maker is not None and made in cluster.informers.kinds:
                found.add(made)
                # Pods of few kinds own objects.
                todo.extend([maker] if made != POD or adapter.has_pods_below_pods else ())
    return found


def informers_below(cluster: Cluster, adapter: Adapter) -> list[Informer]:
    """Return the informers of the kinds that may be below an object of this kind, installed or not."""
    return [cluster.informers.kinds[kind] for kind in sorted(kinds_below(cluster, adapter))]


def unseen_below(cluster: Cluster, adapter: Adapter, workload: Object) -> tuple[bool, list[tuple[Informer, int]]]:
    """Return what of a workload's pods may not be seen yet.

    The first is True while a controller may go by an earlier spec. The second are the watches that have not shown what
    the controllers have done, with the revision to reach.
    """
    below = gather(cluster, adapter, workload)
    revision, watches = below.revision, informers_below(cluster, adapter)
    late = [(each, revision) for each in watches if each.installed and each.store.resource_version < revision]
    return below.lags or below.is_awaited, late


def _gather_below(cluster: Cluster, path: Path, found: Below) -> list[Path]:
    """Collect the direct children of the last object of a path. Returns the paths to look below next."""
    adapter, _ = path[0]
    maker, owner = path[-1]
    below: list[Path] = []
    for made in sorted({*maker.creates, *maker.passes}):
        child = cluster.registry.by_kind(*made)
        answers = next((n for n in range(len(path), 0, -1) if made in path[n - 1][0].creates), 0)
        if child is None or not answers:
            continue
        uid = path[answers - 1][1]["metadata"]["uid"]
        answering = found.owners.setdefault(uid, Owner(path[:answers]))
        if made == POD:
            found.makers.append(path)
            if adapter.has_pods_below_pods:
                pods = cluster.descendants.pods_made_by(owner)
                below.extend((*path, (child, pod.plain())) for pod in pods)
        else:
            adopted = found.children_to_adopt(made) if len(path) == 1 else ()
            for obj in (*cluster.descendants.made_by(owner, made), *adopted):
                answering.children.append((child, obj))
                below.append((*path, (child, obj)))
    return below
