"""Judge the invariants (docs/design.md, "Invariants"): replay watches of groups and charged kinds by resourceVersion.

A recording begins while nothing of the groups is under way: what is listed then is where the replay starts from.

One etcd gives one order, so that after every single revision it can be asked: is what is stored within `hard` (I1), is
all of it used or reserved (I2), and is `used` what the group's own workloads and its children came to (I3)?
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import aiohttp
import orjson

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.builtin import builtin_registry
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.quota.account import Account
from bizrq.quota.allowance import is_line, is_line_text, is_noted, without_lines
from bizrq.quota.reservation import reserved_total
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import resource_of
from bizrq.units.names import is_cash
from bizrq.units.quantity import text
from bizrq.units.resources import larger
from bizrq.units.slot import GROUP_SLOT_KIND as GROUP_KIND
from bizrq.workloads.demand import counting
from bizrq.workloads.labels import group_of
from bizrq.workloads.lookup import EmptyLookup
from bizrq.workloads.validation import Malformed
from tests.support.catalog import CATALOG
from tests.support.cluster import eventually
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS

Object = dict[str, Any]
#: Revision, what happened, the kind, the object.
Event = tuple[int, str, Resource, Object]
REGISTRY = builtin_registry()
CONFIG = settings({}).counting
#: What stood there when the recording began: one moment, whatever the revisions of the objects are.
LISTED = "LISTED"
#: As many webhooks run side by side in any experiment.
PROCESSES = 3
#: The groups and every kind that is charged; a kind that is not installed has no objects.
WATCHED = (GROUPS, *(resource_of(adapter) for adapter in REGISTRY.charged))


@dataclass
class Recorder:
    """Everything that was stored of the watched kinds between `__aenter__` and `stop`."""

    client: KubeClient
    #: Groups of these names, and those whose names begin with one and a dash; none is all.
    only: Collection[str] = ()
    kinds: Iterable[Resource] = WATCHED
    events: list[Event] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _reached: dict[str, int] = field(default_factory=dict)

    async def __aenter__(self) -> Recorder:
        for kind in self.kinds:
            try:
                items, version = await self.client.list(kind)
            except NotFound:
                continue
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
        """Wait until the watches have brought everything that is stored now; raises what ended one of them."""
        for kind in self.kinds:
            if kind.key not in self._reached:
                continue
            items, _ = await self.client.list(kind)
            newest = max((int(item["metadata"]["resourceVersion"]) for item in items), default=0)

            async def here(kind: Resource = kind, newest: int = newest) -> bool:
                for task in self._tasks:
                    if task.done():
                        task.result()
                return self._reached[kind.key] >= newest

            await eventually(here, 60, what=f"the watch of {kind.key} reaches {newest}")

    async def laws(self, *, lowered: Collection[str] = ()) -> int:
        """Check every revision; returns how many there were. `lowered` are groups whose `hard` a person lowered."""
        await self.caught_up()
        return check(concerning(self.only, self.events), lowered, Ending(self.events))

    def revisions(self, name: str) -> list[GroupObject]:
        """The versions of a group that were stored since the recording began, as far as they were seen."""
        return [
            wire.from_dict(obj)
            for _, what, kind, obj in self.events
            if kind is GROUPS and what in ("ADDED", "MODIFIED") and obj["metadata"]["name"] == name
        ]


class EtcdRecorder(Recorder):
    """The same out of etcd itself, which keeps what an API server that was killed can tell nobody any more.

    The cluster must store JSON and compact nothing. Groups and Deployments are recorded.
    """

    def __init__(self, client: KubeClient, only: str, etcd: str) -> None:
        super().__init__(client, (only,), (GROUPS, DEPLOYMENTS))
        self._etcd = etcd
        self._last: dict[str, Object] = {}
        self._seen = 0

    async def __aenter__(self) -> EtcdRecorder:
        for kind in self.kinds:
            items, version = await self.client.list(kind)
            for item in items:
                self.events.append((int(version), LISTED, kind, item))
                self._last[_key(kind, item)] = item
            self._seen = self._seen or int(version)
        self._tasks.append(asyncio.create_task(self._follow()))
        return self

    async def caught_up(self) -> None:
        marker = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"generateName": "mark-", "namespace": "default"},
        }
        wanted = int((await self.client.create(CONFIG_MAPS, marker))["metadata"]["resourceVersion"])

        async def here() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return self._seen >= wanted

        await eventually(here, 60, what=f"etcd's history reaches {wanted}")

    async def _follow(self) -> None:
        """Watch from the revision that was reached, again whenever etcd was killed."""
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                    asked = {
                        "key": base64.b64encode(b"/registry/").decode(),
                        "range_end": base64.b64encode(b"/registry0").decode(),
                        "start_revision": str(self._seen + 1),
                    }
                    async with session.post(f"{self._etcd}/v3/watch", json={"create_request": asked}) as answer:
                        rest = b""
                        async for chunk in answer.content.iter_any():
                            *lines, rest = (rest + chunk).split(b"\n")
                            for line in lines:
                                self._take(orjson.loads(line)["result"])
            await asyncio.sleep(0.1)

    def _take(self, result: Object) -> None:
        assert not int(result.get("compact_revision", 0)), "etcd has compacted what was to be recorded"
        for event in result.get("events", ()):
            key, revision = base64.b64decode(event["kv"]["key"]).decode(), int(event["kv"]["mod_revision"])
            for kind in self.kinds:
                if not key.startswith(_stored_at(kind)):
                    continue
                if event.get("type") == "DELETE":
                    what, obj = "DELETED", self._last.pop(key)
                else:
                    what = "ADDED" if event["kv"]["version"] == "1" else "MODIFIED"
                    obj = self._last[key] = orjson.loads(base64.b64decode(event["kv"]["value"]))
                obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
                self.events.append((revision, what, kind, obj))
            self._seen = max(self._seen, revision)


def _stored_at(kind: Resource) -> str:
    return f"/registry/{kind.group}/{kind.plural}/" if kind is GROUPS else f"/registry/{kind.plural}/"


def _key(kind: Resource, obj: Object) -> str:
    metadata = obj["metadata"]
    return _stored_at(kind) + "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def concerning(only: Collection[str], events: Iterable[Event]) -> list[Event]:
    """What concerns the groups that begin so: what is charged to another, or to none, from now on is gone from them."""
    if not only:
        return list(events)
    found: list[Event] = []
    ours: set[tuple[str, str, str]] = set()
    for version, what, kind, obj in events:
        metadata = obj["metadata"]
        key = (kind.key, metadata.get("namespace", ""), metadata["name"])
        name = metadata["name"] if kind.key == GROUP_KIND else group_of(obj) or ""
        if any(f"{name}-".startswith(f"{each}-") for each in only):
            ours.add(key)
            found.append((version, what, kind, obj))
        elif key in ours:
            ours.discard(key)
            found.append((version, "DELETED", kind, obj))
    return found


#: The kinds that a snapshot has of what workloads make, as `countedAt` names them.
_BELOW = ("pods", "replicasets.apps")


class Ending:
    """The pods that are being deleted, by the group that the label of their topmost owner names."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        #: By uid: the uid of the controller, and the group of its own label.
        self._above: dict[str, tuple[str | None, str | None]] = {}
        #: By uid: what the pod costs from each revision on while it is being deleted; None while it is not.
        self._pods: defaultdict[str, list[tuple[int, dict[str, int] | None]]] = defaultdict(list)
        for version, what, kind, obj in sorted(events, key=lambda event: event[0]):
            metadata = obj["metadata"]
            owners = (each["uid"] for each in metadata.get("ownerReferences", ()) if each.get("controller"))
            self._above[metadata["uid"]] = next(owners, None), group_of(obj)
            if kind.key == "pods":
                ends = what != "DELETED" and "deletionTimestamp" in metadata
                has_ended = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
                cost = _cost(kind, obj) if ends and not has_ended else None
                self._pods[metadata["uid"]].append((0 if what == LISTED else version, cost))

    def of(self, group: str, revision: int) -> dict[str, int]:
        """What those of a group cost at a revision of the watch of pods."""
        total: dict[str, int] = {}
        for uid, versions in self._pods.items():
            last = bisect.bisect_right(versions, revision, key=lambda version: version[0])
            if last and (cost := versions[last - 1][1]) and self._payer(uid) == group:
                _add(total, cost)
        return total

    def _payer(self, uid: str) -> str | None:
        payer = None
        above: str | None = uid
        while above is not None:
            above, label = self._above.get(above, (None, None))
            payer = label or payer
        return payer


def check(events: Iterable[Event], lowered: Iterable[str] = (), ending: Ending | None = None) -> int:
    """Replay the events; raises AssertionError with the revision, the law and the amounts."""
    ordered = sorted(events, key=lambda event: (event[1] != LISTED, event[0]))
    since = max((version for version, what, _, _ in ordered if what == LISTED), default=0)
    replay = _Replay(set(lowered), since, ending or Ending())
    for version, what, kind, obj in ordered:
        replay.play(version, what, kind, obj)
    return len(ordered)


@dataclass
class _Known:
    """A group as it is stored at the revision that is played."""

    group: GroupObject
    account: Account
    held: dict[str, int]

    @cached_property
    def without_ahead(self) -> Account:
        """The account without allowances, and without notes that no count has looked at since a recall.

        Of both `used` may hold the objects already (docs/reservations.md, "Allowances"), so their sum may be more than
        fits, until the next count. Where a group has neither, it is the account.
        """
        entries = list(self.account.entries())
        if not any(is_line(each) or is_noted(each) for each in entries):
            return self.account
        rest = [each for each in without_lines(entries) if not is_noted(each)]
        return Account(self.group.name, self.account.hard, self.account.used, rest, catalog=CATALOG)


#: What a group of that name held at which revisions, by the parent that it held it of.
_Held = list[tuple[int, str, dict[str, int]]]


class _Replay:
    """The state after each revision. What a revision did not touch need not be checked again."""

    def __init__(self, excused: set[str], since: int, ending: Ending) -> None:
        self._excused = excused
        self._ending = ending
        self._since = since
        self._groups: dict[str, _Known] = {}
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._history: defaultdict[str, _Held] = defaultdict(list)
        #: Groups that ever were a child of this one.
        self._ever: defaultdict[str, set[str]] = defaultdict(set)
        self._stored: dict[tuple[str, str, str], tuple[str, dict[str, int]]] = {}
        self._own: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._payments: Counter[str] = Counter()
        #: What the objects of one kind cost a group, after each revision that changed it.
        self._counts: defaultdict[tuple[str, str], list[tuple[int, dict[str, int]]]] = defaultdict(list)
        #: The objects of a group that were deleted, by revision, with their kind and cost.
        self._deleted: defaultdict[str, list[tuple[int, str, dict[str, int]]]] = defaultdict(list)

    def play(self, version: int, what: str, kind: Resource, obj: Object) -> None:
        if kind.key == GROUP_KIND:
            touched = self._group(version, what, obj)
        else:
            touched = self._workload(version if what != LISTED else 0, what, kind, obj)
        if what == LISTED:
            return
        for name in touched:
            self._first_and_second(version, name)

    def _group(self, version: int, what: str, obj: Object) -> set[str]:
        name = obj["metadata"]["name"]
        before = self._groups.pop(name, None)
        touched = {name}
        if before is not None:
            self._children[before.group.parent].discard(name)
            touched.add(before.group.parent)
        if what == "DELETED":
            self._history[name].append((version, "", {}))
            return touched
        group = wire.from_dict(obj)
        known = self._groups[name] = _Known(group, wire.account_of(group, CATALOG), _held(group))
        self._history[name].append((version, group.parent, known.held))
        self._children[group.parent].add(name)
        self._ever[group.parent].add(name)
        touched.add(group.parent)
        counted = group.status.last_reconcile_time
        seen = int(group.status.counted_at.get(GROUP_KIND, 0))
        if counted and seen >= self._since and (before is None or before.group.status.last_reconcile_time != counted):
            self._third(version, group)
        return touched

    def _workload(self, version: int, what: str, kind: Resource, obj: Object) -> set[str]:
        metadata = obj["metadata"]
        key = (kind.key, metadata.get("namespace", ""), metadata["name"])
        touched: set[str] = set()
        if key in self._stored:
            payer, cost = self._stored.pop(key)
            touched.add(payer)
            self._count(version, kind, payer, cost, -1)
            if what == "DELETED":
                self._deleted[payer].append((version, kind.key, cost))
        payer = group_of(obj)
        if what != "DELETED" and payer is not None:
            cost = _cost(kind, obj)
            self._stored[key] = (payer, cost)
            touched.add(payer)
            self._count(version, kind, payer, cost, +1)
        return touched

    def _count(self, version: int, kind: Resource, payer: str, cost: dict[str, int], sign: int) -> None:
        self._payments[payer] += sign
        signed = {name: sign * amount for name, amount in cost.items()}
        _add(self._own[payer], signed)
        counts = self._counts[kind.key, payer]
        total = dict(counts[-1][1]) if counts else {}
        _add(total, signed)
        counts.append((version, total))

    def _first_and_second(self, version: int, name: str) -> None:
        total = dict(self._own.get(name, {}))
        for child in self._children.get(name, ()):
            _add(total, self._groups[child].held)
        known = self._groups.get(name)
        if known is None:
            charged = self._payments[name] or self._children.get(name)
            assert not name or not charged, f"revision {version}: something is charged to {name}, which does not exist"
            return
        account = known.account
        for resource, ceiling in account.hard.items():
            if is_cash(resource):
                continue
            amount = total.get(resource, 0)
            if name not in self._excused:
                assert amount <= ceiling, _told(version, "I1", name, resource, stored=amount, hard=ceiling)
            if resource in account.used:
                taken = account.taken(resource)
                assert amount <= taken, _told(version, "I2", name, resource, stored=amount, taken=taken)
                if name not in self._excused:
                    taken = known.without_ahead.taken(resource)
                    assert taken <= ceiling, _told(version, "I1", name, resource, taken=taken, hard=ceiling)

    def _third(self, version: int, group: GroupObject) -> None:
        """A published count: used = selfUsed + Σ children, and each of them what its own snapshot says."""
        if group.status.used is None:
            return
        used = wire.parse_amounts(group, group.status.used)
        own = wire.parse_amounts(group, group.status.self_used)
        at = {kind: int(text) for kind, text in group.status.counted_at.items()}
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        for name in self._ever.get(group.name, ()):
            if name == group.name:
                continue
            # The newest version of a child that the snapshot's own watch had brought, or one that was read since.
            versions = self._history[name]
            first = bisect.bisect_right(versions, at.get(GROUP_KIND, 0), key=lambda held: held[0])
            known = [("", {})] if first == 0 else [versions[first - 1][1:]]
            known += [(parent, held) for seen, parent, held in versions[first:] if seen < version]
            holds = [held if parent == group.name else {} for parent, held in known]
            for resource in used:
                amounts = [held.get(resource, 0) for held in holds]
                low[resource] = low.get(resource, 0) + min(amounts)
                high[resource] = high.get(resource, 0) + max(amounts)
        counted: dict[str, int] = {}
        most: dict[str, int] = {}
        for (kind, payer), counts in self._counts.items():
            if payer != group.name:
                continue
            last = bisect.bisect_right(counts, at.get(kind, 0), key=lambda count: count[0])
            if last:
                _add(counted, counts[last - 1][1])
            # The watches of what is below may be ahead: pods show what was asked for since.
            ahead = max(at.get(each, 0) for each in (kind, *_BELOW))
            if last := bisect.bisect_right(counts, ahead, key=lambda count: count[0]):
                _add(most, reduce(larger, (amounts for _, amounts in counts[:last])))
        updates = reserved_total(each for each in wire.reservations_of(group) if each.resource_version is not None)
        for resource, amount in used.items():
            if is_cash(resource):
                continue
            mine = own.get(resource, 0)
            children = amount - mine
            bounds = {"low": low.get(resource, 0), "high": high.get(resource, 0)}
            assert bounds["low"] <= children <= bounds["high"], _told(
                version, "I3", group.name, resource, children=children, **bounds
            )
            # A demand that fell counts until its controller has acted on it. One that grew counts at the base of its
            # reservation until then. Pods that are ending count besides, and what was deleted before its pods are seen.
            snapshot, highest = counted.get(resource, 0), most.get(resource, 0)
            if mine > highest:
                highest += self._ending.of(group.name, at.get("pods", 0)).get(resource, 0)
                highest += self._unseen(group.name, at).get(resource, 0)
            assert snapshot - updates.get(resource, 0) <= mine <= highest, _told(
                version, "I3", group.name, resource, self_used=mine, snapshot=snapshot
            )

    def _unseen(self, name: str, at: Mapping[str, int]) -> dict[str, int]:
        """What the objects cost that a snapshot has as deleted, and of which its watches may still show pods."""
        below = min(at.get(kind, 0) for kind in _BELOW)
        total: dict[str, int] = {}
        for version, kind, cost in self._deleted[name]:
            if below < version <= at.get(kind, 0):
                _add(total, cost)
        return total


def _cost(kind: Resource, obj: Object) -> dict[str, int]:
    """What a stored object costs; one that cannot be counted costs nothing. A watch's objects may lack their type."""
    typed = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
    try:
        return dict(counting.demand(typed, REGISTRY, EmptyLookup(), CONFIG).resources)
    except Malformed:
        return {}


def _held(child: GroupObject) -> dict[str, int]:
    return {name: amount for name, amount in wire.held_of_parent(child, CATALOG).items() if not is_cash(name)}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _told(version: int, law: str, group: str, resource: str, **amounts: int) -> str:
    listed = ", ".join(f"{name} {text(resource, amount)}" for name, amount in amounts.items())
    return f"revision {version}: {law} broken for {group}, {resource}: {listed}"


async def settled(client: KubeClient, names: Iterable[str], seconds: float = 60.0) -> dict[str, GroupObject]:
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
    if promised := list(itertools.filterfalse(is_line_text, group.status.reservations)):
        return [f"{name} has {promised[0]}"]
    # A process keeps its allowance while it runs.
    if len(group.status.reservations) > PROCESSES:
        return [f"{name} has {len(group.status.reservations)} allowances"]
    used = wire.parse_amounts(group, group.status.used)
    total = wire.parse_amounts(group, group.status.self_used)
    for child in groups.values():
        if child.parent == name:
            _add(total, wire.held_of_parent(child, CATALOG))
    return [
        f"{name}: {resource} used {text(resource, amount)}, should be {text(resource, total.get(resource, 0))}"
        for resource, amount in used.items()
        if not is_cash(resource) and amount != total.get(resource, 0)
    ]
