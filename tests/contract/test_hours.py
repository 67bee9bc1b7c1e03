"""Records and statements of hours, by their definitions alone: whose they are, and that nobody edits what is over."""

from __future__ import annotations

import pytest

from bizrq.api import hours as wire
from bizrq.api.group import ObjectMeta
from bizrq.hours.metering import RecordPage, UsageRate
from bizrq.hours.periods import ALL_TIME
from bizrq.kube.client import Conflict, Invalid, KubeClient
from bizrq.store.hours import CARD_HOURS, STATEMENTS, pages, statements

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("groups")]

RATE = UsageRate("jobs.batch/team-a/train", (("requests.nvidia.com/gpu", 10**9),))
PAGE = RecordPage(watermark=1_700_000_000_000, running={RATE: {"pod-1": 1_699_999_000_000}})


async def test_a_record_is_written_on_the_version_that_was_read_and_stays_its_groups(
    client: KubeClient, unique: str
) -> None:
    metadata = ObjectMeta(name=unique, labels={wire.GROUP_LABEL: unique})
    record = wire.CardHours(metadata, wire.CardHoursSpec(unique, "8f3c"), wire.status_of(PAGE))
    made = await client.create(CARD_HOURS, wire.to_json(record))
    body = {**wire.to_json(record), "metadata": made["metadata"]}
    stored = await client.replace(CARD_HOURS, body, subresource="status")
    assert wire.page_of(wire.record_of(stored)) == PAGE
    with pytest.raises(Conflict):
        await client.replace(CARD_HOURS, body, subresource="status")
    stored["spec"]["uid"] = "another"
    with pytest.raises(Invalid, match="a record stays its group's"):
        await client.replace(CARD_HOURS, stored)
    assert [page.metadata.name for page in await pages(client, unique)] == [unique]


async def test_a_statement_is_never_edited(client: KubeClient, unique: str) -> None:
    lines = PAGE.periods[0]
    assert lines.period == ALL_TIME
    made = wire.statement(wire.CardHoursSpec(unique, "8f3c"), PAGE, lines, PAGE.watermark)
    stored = await client.create(STATEMENTS, wire.to_json(made))
    stored["spec"]["total"] = {"requests.nvidia.com/gpu": "1"}
    with pytest.raises(Invalid, match="a statement is never edited"):
        await client.replace(STATEMENTS, stored)
    assert [each.spec for each in await statements(client, unique)] == [made.spec]
