"""Corrections of hours: what a person means, and the object that says it in their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bizrq.api.group import API_VERSION
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
            resource = metered_resource(normalize(cash_name(metered_resource(name)), catalog))
            amount = quantity.parse(value)
        except (UnknownResource, quantity.QuantityError) as error:
            raise BadValue(f"{word}: {error}") from None
        if not amount:
            raise BadValue(f"{word}: the amount must not be 0")
        if resource in found:
            raise BadValue(f"{word}: {resource} is given twice")
        found[resource] = value.removeprefix("+")
    return found


async def create_correction(
    client: KubeClient, group: str, hours: Mapping[str, str], reason: str, *, dry_run: bool
) -> dict[str, Any]:
    """Create the correction in the user's own name, and return it. Raise NotAllowed, ApiError or Unreachable."""
    correction = {
        "apiVersion": API_VERSION,
        "kind": CORRECTIONS.kind,
        "metadata": {"generateName": f"{group}-"},
        "spec": {"group": group, "hours": dict(hours), "reason": reason, "by": await whoami(client)},
    }
    try:
        return await client.create(CORRECTIONS, correction, dry_run=dry_run)
    except Forbidden as error:
        if error.details.get("kind") != CORRECTIONS.plural:
            raise
        message = f"{error.message}: correcting hours requires the verb create on {CORRECTIONS.key}"
        raise NotAllowed(message) from None
