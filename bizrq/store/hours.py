"""Reads of the stored card-hours: record pages and statements, of one group or of all.

This file alone decides how they are listed. The controller watches and writes them.
"""

from __future__ import annotations

from bizrq.api import corrections
from bizrq.api import hours as wire
from bizrq.api.group import API_GROUP
from bizrq.api.hours import CardHours, Statement
from bizrq.kube.client import KubeClient, NotFound, Resource

CARD_HOURS = Resource(API_GROUP, "v1alpha1", wire.CARD_HOURS_PLURAL, wire.CARD_HOURS, namespaced=False)
CORRECTIONS = Resource(API_GROUP, "v1alpha1", corrections.PLURAL, corrections.KIND, namespaced=False)
STATEMENTS = Resource(API_GROUP, "v1alpha1", wire.STATEMENTS_PLURAL, wire.STATEMENT, namespaced=False)


async def pages(client: KubeClient, group: str = "") -> list[CardHours]:
    """Return the record pages of one group, or of all, read now. Raise ApiError, Unreachable or HoursUnreadable."""
    items, _ = await client.list(CARD_HOURS, label_selector=_of(group))
    found = map(wire.record_of, items)
    return sorted(found, key=lambda page: (page.spec.group, page.spec.page))


async def named_pages(client: KubeClient, group: str) -> list[CardHours]:
    """Return the record pages of a group, each by its name, for who may not list them: [] if there is no record.

    Raise Forbidden, another ApiError, Unreachable or HoursUnreadable.
    """
    try:
        first = wire.record_of(await client.get(CARD_HOURS, group))
    except NotFound as error:
        if not error.details.get("name"):
            # The cluster does not know the kind.
            raise
        return []
    names = (wire.page_name(group, first.spec.uid, number) for number in range(1, first.status.pages))
    return [first, *[wire.record_of(await client.get(CARD_HOURS, name)) for name in names]]


async def statements(client: KubeClient, group: str = "") -> list[Statement]:
    """Return the statements of one group, or of all, oldest first. Raise ApiError, Unreachable or HoursUnreadable."""
    return await _statements(client, _of(group))


async def last_statements(client: KubeClient) -> list[Statement]:
    """Return the last statements of deleted groups, whose hours their parents have. Raise as `statements` does."""
    return await _statements(client, wire.HEIR_LABEL)


async def _statements(client: KubeClient, selector: str | None) -> list[Statement]:
    items, _ = await client.list(STATEMENTS, label_selector=selector)
    found = map(wire.statement_of, items)
    return sorted(found, key=lambda each: (each.spec.group, each.spec.end, each.spec.page))


def _of(group: str) -> str | None:
    return f"{wire.GROUP_LABEL}={group}" if group else None
