"""Corrections of hours: what a person means, and the object that says it in their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bizrq.api import group as groups
from bizrq.api.group import API_VERSION, GroupObject
from bizrq.figures.errors import BadValue, NotAllowed
from bizrq.kube.client import Forbidden, KubeClient
from bizrq.store.access import whoami
from bizrq.store.hours import CORRECTIONS
from bizrq.units import quantity
from bizrq.units.names import Catalog, UnknownResource, cash_name, metered_resource, normalize


def parse_hours(words: Sequence[str], catalog: Catalog) -> dict[str, str]:
    """Return the given hours by the canonical name of the resource. Raise BadValue."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadValue(f"{word}: expected RESOURCE=HOURS, for example requests.nvidia.com/gpu=-12.5")
        try:
            resource, amount = parse_amount(name, value, catalog)
        except BadValue as error:
            raise BadValue(f"{word}: {error}") from None
        if resource in found:
            raise BadValue(f"{word}: {resource} is given twice")
        found[resource] = amount
    return found


def parse_amount(name: str, value: str, catalog: Catalog) -> tuple[str, str]:
    """Return the canonical name of a resource, without cash/, and its hours as they are sent. Raise BadValue."""
    try:
        resource = metered_resource(normalize(cash_name(metered_resource(name)), catalog))
        amount = quantity.parse(value)
    except (UnknownResource, quantity.QuantityError) as error:
        raise BadValue(str(error)) from None
    if not amount:
        raise BadValue("the amount must not be 0")
    return resource, value.removeprefix("+")


async def correction_of(
    client: KubeClient, group: str, hours: Mapping[str, str], reason: str, name: str = ""
) -> dict[str, Any]:
    """Return the correction in the user's own name, to be created; without a name it gets one then.

    Raise ApiError or Unreachable.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": CORRECTIONS.kind,
        "metadata": {"name": name} if name else {"generateName": f"{group}-"},
        "spec": {"group": group, "hours": dict(hours), "reason": reason, "by": await whoami(client)},
    }


def group_after(group: GroupObject, hours: Mapping[str, str], catalog: Catalog) -> GroupObject:
    """Return the group as its counts are once these hours are a line of its record.

    Spent hours are counted from 0, so a credit may leave more than is shown: then a later debit takes less. What is not
    counted yet stays so. Raise GroupUnreadable.
    """
    used, own = dict(group.status.used or {}), dict(group.status.self_used or {})
    whole, alone = groups.parse_amounts(group, group.status.used), groups.parse_amounts(group, group.status.self_used)
    for resource, text in hours.items():
        name = normalize(cash_name(resource), catalog)
        if name not in whole or name not in alone:
            continue
        after = max(0, alone[name] + quantity.parse(text))
        own[name] = quantity.text(name, after)
        used[name] = quantity.text(name, whole[name] - alone[name] + after)
    return msgspec.structs.replace(group, status=msgspec.structs.replace(group.status, used=used, self_used=own))


async def create_correction(
    client: KubeClient, group: str, hours: Mapping[str, str], reason: str, *, dry_run: bool
) -> dict[str, Any]:
    """Create the correction in the user's own name, and return it. Raise NotAllowed, ApiError or Unreachable."""
    correction = await correction_of(client, group, hours, reason)
    try:
        return await client.create(CORRECTIONS, correction, dry_run=dry_run)
    except Forbidden as error:
        if error.details.get("kind") != CORRECTIONS.plural:
            raise
        message = f"{error.message}: correcting hours requires the verb create on {CORRECTIONS.key}"
        raise NotAllowed(message) from None
