"""What `bizrq status` reads and says: the state of an installation at a glance, with an ordinary reader's rights.

`look` reads, each thing once, and what cannot be read is unknown. `report` alone judges it, as a pure function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import orjson

from bizrq.api import enforcement
from bizrq.api.group import API_VERSION, GroupObject, from_dict
from bizrq.figures.state.enforcement import Admission, look_at_webhooks, troubles
from bizrq.figures.state.reader import Reader
from bizrq.figures.words import duration, few
from bizrq.kube.client import ApiError, Forbidden, KubeClient, Resource
from bizrq.kube.lease import LEASES
from bizrq.store import pause as markers
from bizrq.store import processes
from bizrq.store.groups import GROUPS, without_managed_fields
from bizrq.units.text import counted
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp

_PROCESSES = (processes.WEBHOOKS, processes.CONTROLLER)
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
#: Seconds after which a leader has gone: its Lease is renewed every 2 seconds, and lasts for 15.
_LEADS = 60
#: The short name of ResourceQuota. CRDs of older versions had it as a category.
_TAKEN = "quota"

LACKS_LEADER, NOT_READY = "NoLeader", "GroupsNotReady"
OVER, EXHAUSTED, OLD_CRDS = "OverQuota", "HoursExhausted", "OldDefinitions"


@dataclass(frozen=True, slots=True)
class Leader:
    """The holder of the Lease, "" for nobody, and when it was renewed, in milliseconds since 1970."""

    holder: str
    renewed: int | None


@dataclass(frozen=True, slots=True)
class Heard:
    """When the API server sent something about a kind to a process last, in milliseconds since 1970."""

    process: str
    resource: str
    at: int


@dataclass(frozen=True, slots=True)
class Glance:
    """What was read. `images` has no process that is not a Deployment here; None is what could not be read."""

    bizrq: str
    kubernetes: str | None
    images: Mapping[str, str]
    admission: Admission
    leader: Leader | None
    groups: tuple[GroupObject, ...] | None
    clashing: tuple[str, ...]
    #: In milliseconds since 1970.
    now: int
    unread: tuple[str, ...] = ()
    #: The oldest watch of any process; None also where no process says it.
    watch: Heard | None = None
    #: The versions of the processes that run, by name, wherever they do; empty where they may not be read.
    running: Mapping[str, str] = field(default_factory=dict)
    #: What the marker of a pause says; "" without one, and where it may not be read.
    pause: str = ""

    @property
    def up(self) -> str:
        """The version of a `bizrq up` that runs, "" for none and where that is not known."""
        return self.running.get(processes.UP, "")

    def version_of(self, process: str) -> str | None:
        """Return the image of a process that is a Deployment here, the version of one that runs elsewhere."""
        return self.images.get(process) or self.running.get(process)


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to know; `reason` is stable."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong, what is worth knowing, and what could not be found out although the answer depends on it."""

    problems: tuple[Remark, ...]
    notices: tuple[Remark, ...]
    unknown: tuple[str, ...]


async def look(client: KubeClient, namespace: str) -> Glance:
    """Read the state of the bizrq of a namespace. Raise ApiError, Unreachable, GroupUnreadable."""
    reader = Reader(client)
    # First and alone: without an answer there is nothing else to ask.
    groups = await _groups(client)
    now = int(datetime.now(UTC).timestamp() * 1000)
    kubernetes, images, admission, leader, clashing, (watch, running) = await asyncio.gather(
        _kubernetes(reader),
        _images(reader, namespace),
        look_at_webhooks(client),
        _leader(reader, namespace),
        _clashing(client),
        _running(client, namespace, now),
    )
    return Glance(
        version("bizrq"),
        kubernetes,
        images,
        admission,
        leader,
        groups,
        clashing,
        now,
        tuple(dict.fromkeys(f"{kind}s in {where}" for kind, where, _ in sorted(reader.unread))),
        watch,
        running,
        await _pause(client, namespace),
    )


async def _kubernetes(reader: Reader) -> str | None:
    try:
        return (await reader.version())[1]
    except ApiError:
        return None


async def _leader(reader: Reader, namespace: str) -> Leader | None:
    lease = await reader.get(LEASES, processes.CONTROLLER, namespace)
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    try:
        renewed = parse_timestamp(str(spec.get("renewTime") or ""))
    except TimestampError:
        renewed = None
    return Leader(str(spec.get("holderIdentity") or ""), renewed)


async def _running(client: KubeClient, namespace: str, now: int) -> tuple[Heard | None, dict[str, str]]:
    """Return the oldest watch of the processes whose Leases are renewed, and their versions by name."""
    try:
        stored = await processes.read(client, namespace)
    except ApiError:
        return None, {}
    found: list[Heard] = []
    versions: dict[str, set[str]] = {}
    for each in stored:
        try:
            renewed = parse_timestamp(each.renewed)
        except TimestampError:
            continue
        if now - renewed >= _LEADS * 1000:
            continue
        versions.setdefault(each.info.process, set()).add(each.info.version)
        if each.watch is not None:
            found.append(Heard(each.info.process, each.watch.resource, renewed - int(each.watch.age * 1000)))
    oldest = min(found, key=lambda heard: heard.at, default=None)
    return oldest, {process: " and ".join(sorted(several)) for process, several in versions.items()}


async def _pause(client: KubeClient, namespace: str) -> str:
    try:
        return str(await markers.read(client, namespace) or "")
    except ApiError:
        return ""


async def _groups(client: KubeClient) -> tuple[GroupObject, ...] | None:
    try:
        items, _ = await client.list(GROUPS, transform=without_managed_fields)
    except Forbidden:
        return None
    return tuple(map(from_dict, items))


async def _clashing(client: KubeClient) -> tuple[str, ...]:
    """Return the kinds of ours that kubectl finds by the short name of ResourceQuota. Everybody may read that."""
    try:
        found = orjson.loads(await client.request("GET", f"/apis/{API_VERSION}"))
    except ApiError:
        return ()
    return tuple(
        sorted(
            each["name"]
            for each in found.get("resources") or ()
            if _TAKEN in (*(each.get("categories") or ()), *(each.get("shortNames") or ()), each.get("singularName"))
        )
    )


async def _images(reader: Reader, namespace: str) -> dict[str, str]:
    """Return the images of the processes that are Deployments here, by name."""
    found: dict[str, str] = {}
    for name in _PROCESSES:
        deployment = await reader.get(_DEPLOYMENTS, name, namespace)
        if deployment is not None:
            containers = deployment["spec"]["template"]["spec"].get("containers") or [{}]
            found[name] = str(containers[0].get("image") or "")
    return found


def report(seen: Glance) -> Report:
    """Judge what was read."""
    groups = seen.groups or ()
    problems = [Remark(each.reason, each.message) for each in troubles(seen.admission, groups, seen.now, seen.pause)]
    problems += _of_leader(seen)
    if names := _named(groups, "Ready", "False"):
        problems.append(Remark(NOT_READY, f"cannot be counted, so nothing in them may grow: {few(names)}"))
    if names := [group.name for group in groups if _status(group, "Ready") is None]:
        problems.append(Remark(NOT_READY, f"not counted yet: {few(names)}"))
    notices: list[Remark] = []
    for kind, reason, what in (("OverQuota", OVER, "over quota"), ("CashExhausted", EXHAUSTED, "hours exhausted")):
        if names := _named(groups, kind, "True"):
            notices.append(Remark(reason, f"{what}: {few(names)}"))
    if seen.clashing:
        what = f"kubectl get quota also means {few(seen.clashing)}: apply the CRDs of this version"
        notices.append(Remark(OLD_CRDS, what))
    return Report(tuple(problems), tuple(notices), tuple(_unknown(seen)))


def _of_leader(seen: Glance) -> list[Remark]:
    leader = seen.leader
    if leader is None:
        return []
    if not leader.holder:
        return [Remark(LACKS_LEADER, "no controller leads, so nothing is counted")]
    if leader.renewed is not None and (age := (seen.now - leader.renewed) // 1000) > _LEADS:
        since = duration(age)
        return [Remark(LACKS_LEADER, f"no controller leads: {leader.holder} renewed its Lease {since} ago")]
    return []


def _unknown(seen: Glance) -> Iterable[str]:
    if seen.groups is None:
        yield "groups, their counts and conditions: you may not list groups"
    admission, stated = seen.admission, enforcement.is_stated(seen.groups or ())
    if admission.registered is None and admission.answers is None and stated is None:
        yield "whether quota is enforced: you may not read the registration, and no group says it"
    elif admission.answers is None and False not in (admission.registered, stated):
        yield f"whether the webhooks answer: {admission.said}"


def _named(groups: Iterable[GroupObject], kind: str, status: str) -> list[str]:
    return [group.name for group in groups if _status(group, kind) == status]


def _status(group: GroupObject, kind: str) -> str | None:
    return next((each.status for each in group.status.conditions if each.type == kind), None)


def as_json(seen: Glance, found: Report, state: str) -> dict[str, Any]:
    """Return what `bizrq status -o json` prints; what is not known is null."""
    counted = _counted(seen)
    return {
        "state": state,
        "problems": [{"reason": each.reason, "message": each.message} for each in found.problems],
        "notices": [{"reason": each.reason, "message": each.message} for each in found.notices],
        "unknown": list(found.unknown),
        "unread": list(seen.unread),
        "versions": {
            "bizrq": seen.bizrq,
            "kubernetes": seen.kubernetes,
            **{name.removeprefix("bizrq-"): seen.version_of(name) for name in _PROCESSES},
            "up": seen.up or None,
        },
        "webhooks": {
            "registered": seen.admission.registered,
            "answer": seen.admission.answers,
            "enforcedByGroups": enforcement.is_stated(seen.groups or ()),
        },
        "leader": None if seen.leader is None else _leader_json(seen.leader),
        "oldestWatch": None if seen.watch is None else _watch_json(seen, seen.watch),
        "counts": {
            "groups": None if seen.groups is None else len(seen.groups),
            "newest": counted[-1][2] if counted else None,
            "oldest": counted[0][2] if counted else None,
        },
        "groups": None
        if seen.groups is None
        else {
            "notReady": [group.name for group in seen.groups if _status(group, "Ready") != "True"],
            "overQuota": _named(seen.groups, "OverQuota", "True"),
            "hoursExhausted": _named(seen.groups, "CashExhausted", "True"),
        },
    }


def _leader_json(leader: Leader) -> dict[str, Any]:
    return {
        "holder": leader.holder or None,
        "renewed": None if leader.renewed is None else format_timestamp(leader.renewed),
    }


def _watch_json(seen: Glance, watch: Heard) -> dict[str, Any]:
    return {"process": watch.process, "resource": watch.resource, "age": max(0, seen.now - watch.at) // 1000}


def _counted(seen: Glance) -> list[tuple[int, str, str | None]]:
    """Return when each group was recounted last, the oldest first: milliseconds, name, timestamp."""
    found = ((enforcement.counted_at(group), group) for group in seen.groups or ())
    return sorted((at, group.name, group.status.last_reconcile_time) for at, group in found if at is not None)


def lines(seen: Glance) -> list[tuple[str, str]]:
    """Return what is shown besides problems: a word, and what there is to say."""
    return [
        ("versions", _versions(seen)),
        ("webhooks", _webhooks(seen)),
        ("leader", _leads(seen)),
        ("watches", _watches(seen)),
        ("counts", _counts(seen)),
        ("groups", _of_groups(seen)),
    ]


def _versions(seen: Glance) -> str:
    parts = [f"bizrq {seen.bizrq}", f"Kubernetes {seen.kubernetes or 'unknown'}"]
    if seen.up and not seen.images:
        return ", ".join([*parts, f"bizrq up {seen.up}"])
    parts += [f"{name.removeprefix('bizrq-')} {seen.version_of(name) or 'unknown'}" for name in _PROCESSES]
    return ", ".join(parts)


def _webhooks(seen: Glance) -> str:
    admission = seen.admission
    words = {True: "registered", False: "not registered", None: "registration unknown"}
    stated = enforcement.is_stated(seen.groups or ())
    registered = words[stated if admission.registered is None else admission.registered]
    if admission.answers:
        return "registered, and answer"
    return f"{registered}; {'they do not answer' if admission.answers is False else 'whether they answer is unknown'}"


def _leads(seen: Glance) -> str:
    leader = seen.leader
    if leader is None:
        return "unknown"
    renewed = "" if leader.renewed is None else f", renewed {_ago(seen, leader.renewed)}"
    return f"{leader.holder}{renewed}" if leader.holder else "none"


def _watches(seen: Glance) -> str:
    watch = seen.watch
    if watch is None:
        return "unknown"
    return f"oldest: {watch.resource}, last event or bookmark {_ago(seen, watch.at)}, in {watch.process}"


def _counts(seen: Glance) -> str:
    if seen.groups is None:
        return "unknown"
    counted = _counted(seen)
    if not counted:
        return "no group is counted"
    (oldest, name, _), (newest, _, _) = counted[0], counted[-1]
    return f"the last recount was {_ago(seen, newest)}, the oldest {_ago(seen, oldest)} ({name})"


def _of_groups(seen: Glance) -> str:
    if seen.groups is None:
        return "unknown"
    every = counted(len(seen.groups), "group")
    ready = len(_named(seen.groups, "Ready", "True"))
    over, spent = (len(_named(seen.groups, kind, "True")) for kind in ("OverQuota", "CashExhausted"))
    return f"{every}, {ready} ready, {over} over quota, {spent} with exhausted hours"


def _ago(seen: Glance, at: int) -> str:
    return f"{duration(max(0, seen.now - at) // 1000)} ago"
