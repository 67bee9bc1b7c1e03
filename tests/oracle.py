"""The judge of DESIGN 2's laws: watches of groups and charged kinds, replayed by resourceVersion.

A recording begins while nothing of the groups is under way: what is listed then is where the replay starts from.

One etcd gives one order, so that after every single revision it can be asked: is what is stored within `hard` (I1), is
all of it used or reserved (I2), and is `used` what the group's own workloads and its children came to (I3)?
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import KubeClient, Resource
from bizrq.kube.groups import GROUPS
from bizrq.quota.ledger import GROUPS as GROUP_KIND
from bizrq.quota.names import is_cash
from bizrq.quota.quantity import text
from bizrq.workloads import counting
from bizrq.workloads.adapters import builtin
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import Nothing
from bizrq.workloads.malformed import Malformed
from tests.cluster import eventually
from tests.objects import DEPLOYMENTS, ROLLOUTS, TFJOBS

Object = dict[str, Any]
REGISTRY = builtin()
#: What stood there when the recording began: one moment, whatever the revisions of the objects are.
LISTED = "LISTED"
WATCHED = (GROUPS, DEPLOYMENTS, ROLLOUTS, TFJOBS)


@dataclass
class Recorder:
    """Everything that was stored of the watched kinds between `__aenter__` and `stop`."""

    client: KubeClient
    #: Groups of this name, and those whose names begin with it and a dash; "" is all.
    only: str = ""
    kinds: Iterable[Resource] = WATCHED
    events: list[tuple[int, str, Resource, Object]] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _reached: dict[str, int] = field(default_factory=dict)

    async def __aenter__(self) -> Recorder:
        for kind in self.kinds:
            items, version = await self.client.list(kind)
            self.events.extend((int(version), LISTED, kind, item) for item in items)
            self._reached[kind.key] = int(version)
            self._tasks.append(asyncio.create_task(self._watch(kind, version)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, kind: Resource, version: str) -> None:
        while True:
            async with contextlib.aclosing(self.client.watch(kind, resource_version=version)) as events:
                async for what, obj in events:
                    version = obj["metadata"]["resourceVersion"]
                    self._reached[kind.key] = int(version)
                    if what != "BOOKMARK":
                        self.events.append((int(version), what, kind, obj))

    async def caught_up(self) -> None:
        """Wait until the watches have brought everything that is stored now."""
        for kind in self.kinds:
            items, _ = await self.client.list(kind)
            newest = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)

            async def here(kind: Resource = kind, newest: int = newest) -> bool:
                return self._reached[kind.key] >= newest

            await eventually(here, what=f"the watch of {kind.key} reaches {newest}")

    async def laws(self, *, lowered: frozenset[str] | set[str] = frozenset()) -> int:
        """Check every revision; returns how many there were. `lowered` are groups whose `hard` a person lowered."""
        await self.caught_up()
        return check([event for event in self.events if self._is_ours(event[2], event[3])], lowered)

    def _is_ours(self, kind: Resource, obj: Object) -> bool:
        name = obj["metadata"]["name"] if kind is GROUPS else group_of(obj) or ""
        return not self.only or f"{name}-".startswith(f"{self.only}-")


def check(events: list[tuple[int, str, Resource, Object]], lowered: Iterable[str] = ()) -> int:
    """Replay the events; raises AssertionError with the revision, the law and the amounts."""
    excused = set(lowered)
    stored: dict[tuple[str, str, str], tuple[str, dict[str, int]]] = {}
    groups: dict[str, GroupObject] = {}
    history: dict[str, list[tuple[int, GroupObject | None]]] = {}
    charged_at: list[tuple[int, str, dict[tuple[str, str, str], tuple[str, dict[str, int]]]]] = []
    since = max((version for version, what, _, _ in events if what == LISTED), default=0)
    for version, what, kind, obj in sorted(events, key=lambda event: (event[1] != LISTED, event[0])):
        metadata = obj["metadata"]
        if kind.key == GROUP_KIND:
            name = metadata["name"]
            before = groups.get(name)
            if what == "DELETED":
                groups.pop(name, None)
                history.setdefault(name, []).append((version, None))
            else:
                group = groups[name] = wire.from_dict(obj)
                history.setdefault(name, []).append((version, group))
                counted = group.status.last_reconcile_time
                seen = int(group.status.counted_at.get(GROUP_KIND, 0))
                if counted and seen >= since and (before is None or before.status.last_reconcile_time != counted):
                    _third(version, group, history, charged_at)
        else:
            key = (kind.key, metadata.get("namespace", ""), metadata["name"])
            if what == "DELETED":
                stored.pop(key, None)
            elif (payer := group_of(obj)) is not None:
                stored[key] = (payer, _cost(kind, obj))
            else:
                stored.pop(key, None)
            charged_at.append(
                (version if what != LISTED else 0, kind.key, {k: v for k, v in stored.items() if k[0] == kind.key})
            )
        if what != LISTED:
            _first_and_second(version, groups, stored, excused)
    return len(events)


def _first_and_second(
    version: int,
    groups: dict[str, GroupObject],
    stored: dict[tuple[str, str, str], tuple[str, dict[str, int]]],
    excused: set[str],
) -> None:
    sums: dict[str, dict[str, int]] = {}
    for payer, resources in stored.values():
        _add(sums.setdefault(payer, {}), resources)
    for child in groups.values():
        if child.parent:
            _add(sums.setdefault(child.parent, {}), _held(child))
    for name, total in sums.items():
        group = groups.get(name)
        assert group is not None, f"revision {version}: something is charged to {name}, which does not exist"
        hard = wire.hard_of(group)
        account = wire.account_of(group)
        for resource, ceiling in hard.items():
            if is_cash(resource):
                continue
            amount = total.get(resource, 0)
            if name not in excused:
                assert amount <= ceiling, _told(version, "I1", name, resource, stored=amount, hard=ceiling)
            if resource in account.used:
                taken = account.taken(resource)
                assert amount <= taken, _told(version, "I2", name, resource, stored=amount, taken=taken)
                if name not in excused:
                    assert taken <= ceiling, _told(version, "I1", name, resource, taken=taken, hard=ceiling)


def _third(
    version: int,
    group: GroupObject,
    history: dict[str, list[tuple[int, GroupObject | None]]],
    charged_at: list[tuple[int, str, dict[tuple[str, str, str], tuple[str, dict[str, int]]]]],
) -> None:
    """A published count: used = selfUsed + Σ children, and each of them what its own snapshot says."""
    if group.status.used is None:
        return
    used = wire.amounts(group, group.status.used)
    own = wire.amounts(group, group.status.self_used)
    at = {kind: int(text) for kind, text in group.status.counted_at.items()}
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for name, versions in history.items():
        if name == group.name:
            continue
        # The newest version of a child that the snapshot's own watch had brought, or one that was read since.
        known = [None, *(child for seen, child in versions if seen <= at.get(GROUP_KIND, 0))][-1:]
        known += [child for seen, child in versions if at.get(GROUP_KIND, 0) < seen < version]
        holds = [_held(c) if c is not None and c.parent == group.name else {} for c in known]
        for resource in used:
            amounts = [held.get(resource, 0) for held in holds]
            low[resource] = low.get(resource, 0) + min(amounts)
            high[resource] = high.get(resource, 0) + max(amounts)
    counted: dict[str, int] = {}
    for kind in {kind for _, kind, _ in charged_at}:
        snapshots = [found for seen, of, found in charged_at if of == kind and seen <= at.get(kind, 0)]
        for payer, resources in (snapshots[-1] if snapshots else {}).values():
            if payer == group.name:
                _add(counted, resources)
    for resource, amount in used.items():
        if is_cash(resource):
            continue
        mine = own.get(resource, 0)
        children = amount - mine
        bounds = {"low": low.get(resource, 0), "high": high.get(resource, 0)}
        assert bounds["low"] <= children <= bounds["high"], _told(
            version, "I3", group.name, resource, children=children, **bounds
        )
        snapshot = counted.get(resource, 0)
        assert mine == snapshot, _told(version, "I3", group.name, resource, self_used=mine, snapshot=snapshot)


def _cost(kind: Resource, obj: Object) -> dict[str, int]:
    """What a stored object costs; one that cannot be counted costs nothing. A watch's objects may lack their type."""
    typed = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
    try:
        return dict(counting.demand(typed, REGISTRY, Nothing()).resources)
    except Malformed:
        return {}


def _held(child: GroupObject) -> dict[str, int]:
    return {name: amount for name, amount in wire.held_of(child).items() if not is_cash(name)}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _told(version: int, law: str, group: str, resource: str, **amounts: int) -> str:
    listed = ", ".join(f"{name} {text(resource, amount)}" for name, amount in amounts.items())
    return f"revision {version}: {law} broken for {group}, {resource}: {listed}"


async def settled(client: KubeClient, names: Iterable[str], seconds: float = 20.0) -> dict[str, GroupObject]:
    """The groups once none has a reservation and each one's `used` is its own and its children's `hard`, exactly."""
    wanted = set(names)
    until = asyncio.get_running_loop().time() + seconds
    while True:
        items, _ = await client.list(GROUPS)
        found = {group.name: group for group in map(wire.from_dict, items)}
        open_ = [why for name in sorted(wanted) for why in _unsettled(name, found)]
        if not open_:
            return {name: found[name] for name in wanted}
        assert asyncio.get_running_loop().time() < until, f"not settled after {seconds:g} s: {'; '.join(open_)}"
        await asyncio.sleep(0.05)


def _unsettled(name: str, groups: dict[str, GroupObject]) -> list[str]:
    group = groups.get(name)
    if group is None or group.status.used is None:
        return [f"{name} is not counted"]
    if group.status.reservations:
        return [f"{name} has {group.status.reservations[0]}"]
    used = wire.amounts(group, group.status.used)
    total = wire.amounts(group, group.status.self_used)
    for child in groups.values():
        if child.parent == name:
            _add(total, wire.held_of(child))
    return [
        f"{name}: {resource} used {text(resource, amount)}, should be {text(resource, total.get(resource, 0))}"
        for resource, amount in used.items()
        if not is_cash(resource) and amount != total.get(resource, 0)
    ]
