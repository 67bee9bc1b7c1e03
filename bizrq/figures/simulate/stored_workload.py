"""Find a stored workload for `bizrq explain KIND/NAME`, with its charged group, its cost, and one more replica.

This file alone decides which object a user means. The cost is counted as the controller does it, and a dry run decides
one more replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.figures.errors import BadValue, NotThere
from bizrq.figures.simulate.dry_run import DryRun
from bizrq.figures.simulate.in_memory import Fetch
from bizrq.figures.simulate.lookup import RELEASED, FileReferenceReader, readable_payers
from bizrq.figures.simulate.outcome import DryRunOutcome
from bizrq.figures.simulate.reviews import SYSTEM_NAMESPACE
from bizrq.figures.words import alternatives
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.quota.account import Account
from bizrq.quota.allowance import without_lines_of
from bizrq.quota.verdict import ending_of, names_ending
from bizrq.settings import Settings
from bizrq.store.reference_resolver import resources_of
from bizrq.units.resources import Resources
from bizrq.units.slot import Slot
from bizrq.workloads.demand import counting
from bizrq.workloads.kinds.declaration import Adapter
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.labels import group_of, unknown_keys, unknown_label
from bizrq.workloads.later import later
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.ownership.payers import Paid, PayerReason, anywhere, paid_by, place_of
from bizrq.workloads.validation import Malformed, get_path
from webhooks.charging.known_models import KnownModels

Object = dict[str, Any]
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A stored workload with its cost in nano-units, or the `error` why it cannot be counted.

    `above` is the object that is charged for it, "" if it is charged itself. `left` is the payer that is gone or
    released it, if any. `group` is the charged group, and `account` its account if the group exists. `more` is the
    outcome for one more replica, None if it has no replicas. `remarks` explain the cost.
    """

    kind: str
    namespace: str
    name: str
    is_charged: bool
    above: str = ""
    left: str = ""
    group: str | None = None
    account: Account | None = None
    cost: Resources | None = None
    error: str = ""
    has_ended: bool = False
    more: DryRunOutcome | None = None
    remarks: Sequence[str] = ()
    #: Its pods that take more than it asks for, in words: those that are ending, for example.
    ending: Sequence[str] = ()
    #: What these take of which its group has too little. Until that has enough, no pod of it is made.
    lacking: Sequence[str] = ()
    #: The outcome for the object as it is, with what it will make; None for kinds that make nothing of their own.
    later: DryRunOutcome | None = None
    #: True where the user may not read the group.
    is_group_unread: bool = False


async def find_workload(
    client: KubeClient,
    settings: Settings,
    groups: Sequence[GroupObject],
    kind: str,
    namespace: str,
    name: str,
    fetch: Fetch | None = None,
) -> tuple[StoredWorkload, Sequence[str]]:
    """Return the workload of this name, and what the user may not read. Raise NoAnswer, ApiError or Unreachable.

    `fetch` reads a group that is not among `groups`; without it there is no other.
    """
    settings = settings.around(SYSTEM_NAMESPACE)
    adapter = await kind_named(client, settings.registry, kind)
    obj = await _read(client, adapter, namespace, name)
    resolver = FileReferenceReader(client, settings.registry, ())
    of_payers: set[str] = set()
    payers = await readable_payers(client, settings.registry, groups, [adapter.group_kind], of_payers)

    def paid(known: Lookup) -> Paid | None:
        return paid_by(obj, settings.registry, known, payers, anywhere)

    def count(known: Lookup) -> counting.Demand:
        paid(known)
        return counting.own_demand(obj, adapter, known, settings.counting)

    lookup = await resolver.resolve(count, _SECONDS)
    payer = paid(lookup)
    if fetch is not None and payer is not None:
        try:
            read = await fetch(payer.group)
        except Forbidden:
            resolver.unread.add(f"group {payer.group}")
        else:
            groups = [*groups, *([read] if read is not None else [])]
    found = _counted(obj, adapter, settings, groups, payer, partial(count, lookup))
    is_unread = f"group {found.group}" in resolver.unread
    more = [*map(unknown_label, unknown_keys(obj)), *([RELEASED] if of_payers else [])]
    found = replace(found, is_group_unread=is_unread, remarks=[*found.remarks, *more])
    if found.cost is not None:
        known = {name for group in groups for name in group.spec.hard}
        found = replace(
            found,
            remarks=[
                *found.remarks,
                *await _unknown_models(client, found.cost, known, settings, is_complete=fetch is None),
            ],
        )
    found = await _with_later(found, obj, adapter, DryRun(client, settings, groups, [obj], fetch=fetch))
    if found.cost is None or found.account is None or adapter.scale is None or found.has_ended:
        return found, sorted(resolver.unread)
    replicas = get_path(obj, adapter.scale)
    larger = counting.with_scale(obj, adapter, (replicas if isinstance(replicas, int) else 1) + 1)
    dry_run = DryRun(client, settings, groups, [larger], fetch=fetch)
    [more] = await dry_run.outcomes()
    return replace(found, more=more), sorted({*resolver.unread, *dry_run.unread})


async def _with_later(found: StoredWorkload, obj: Object, adapter: Adapter, dry_run: DryRun) -> StoredWorkload:
    """Return the workload with what it will make or grow to. Raise ApiError or Unreachable."""
    with contextlib.suppress(Malformed):
        if not found.has_ended and not found.above and later(obj, adapter):
            [outcome] = await dry_run.outcomes()
            return replace(found, later=outcome)
    return found


async def _unknown_models(
    client: KubeClient, cost: Resources, ceilings: Collection[str], settings: Settings, *, is_complete: bool
) -> Sequence[str]:
    """Return a sentence for each model of a cost that no ceiling, node or configured model has."""
    models = KnownModels(client, settings.counting, lambda: ceilings, is_complete=is_complete)
    found = await models.unknown(cost, (), _SECONDS)
    return list(found.sentences) if found is not None else []


def _counted(
    obj: Object,
    adapter: Adapter,
    settings: Settings,
    groups: Sequence[GroupObject],
    paid: Paid | None,
    count: Callable[[], counting.Demand],
) -> StoredWorkload:
    """Return the workload with its payer and, if it pays itself, with its cost."""
    namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    found = StoredWorkload(adapter.kind, namespace, name, settings.registry.is_charged(adapter))
    is_others = paid is not None and paid.is_by_another
    try:
        if not is_others:
            group_of(obj)
    except Malformed as error:
        return replace(found, error=str(error))
    if paid is not None:
        stored = next((each for each in groups if each.name == paid.group), None)
        account = without_lines_of(wire.account_of(stored, settings.catalog)) if stored is not None else None
        left = _as_named(paid.place) if paid.reason is PayerReason.LEFTOVER else ""
        found = replace(found, group=paid.group, account=account, left=left)
        if stored is not None and account is not None:
            place = Slot(adapter.resource, namespace, name)
            lines = stored.status.ending
            taken = names_ending(place, lines)
            found = replace(
                found,
                ending=ending_of(place, sorted(account.hard), lines),
                lacking=sorted(
                    name for name, hard in account.hard.items() if name in taken and account.taken(name) > hard
                ),
            )
        if paid.payer != obj["metadata"]["uid"]:
            return replace(found, above=_as_named(place_of(paid.slot_of)))
    if not found.is_charged:
        return found
    found = replace(found, has_ended=not counting.is_live(obj, adapter))
    try:
        demand = count()
    except Malformed as error:
        return replace(found, error=str(error))
    remarks = [
        *counting.surge_remarks(demand),
        *(f"counted as the largest that it can mean: {problem}" for problem in demand.unreadable),
    ]
    return replace(found, cost=dict(counting.total_demand(demand)), remarks=remarks)


def _as_named(place: str) -> str:
    """Return a place as messages have it: `Deployment team-a/web`."""
    return place.replace("/", " ", 1)


async def _read(client: KubeClient, adapter: Adapter, namespace: str, name: str) -> Object:
    for resource in resources_of(adapter):
        try:
            return await client.get(resource, name, namespace)
        except NotFound:
            continue
        except ValueError as error:
            raise BadValue(str(error)) from None
    raise NotThere(f"there is no {adapter.kind} {name} in namespace {namespace}")


async def kind_named(client: KubeClient, registry: Registry, word: str) -> Adapter:
    """Return the kind of a name as kubectl accepts it: Deployment, deployments, deployments.apps, deploy.

    Raise NotThere.
    """
    meant = word.lower()
    found = registry.named(meant)
    if found is None:
        short = await _short_names(client, registry)
        found = short.get(meant)
    if found is None:
        known = sorted({adapter.kind.lower() for adapter in registry.adapters})
        raise NotThere(f"{word} is not a counted kind; {alternatives(meant, known)}")
    return found


async def _short_names(client: KubeClient, registry: Registry) -> dict[str, Adapter]:
    """Return the cluster's short names of the counted kinds."""

    async def of(group: str, version: str) -> list[Object]:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        with contextlib.suppress(NotFound):
            return orjson.loads(await client.request("GET", path)).get("resources") or []
        return []

    groups = sorted({(a.group, version) for a in registry.adapters for version in a.versions})
    lists = await asyncio.gather(*(of(*each) for each in groups))
    found: dict[str, Adapter] = {}
    for (group, _), resources in zip(groups, lists, strict=True):
        for resource in resources:
            adapter = registry.by_resource(group, resource["name"])
            if adapter is not None:
                for name in resource.get("shortNames") or ():
                    found.setdefault(name, adapter)
    return found
