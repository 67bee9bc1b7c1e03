"""Conditions and events of card-hours: before they run out, when they will, and when the next grant is."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bizrq.api.group import GroupObject
from bizrq.store.groups import GROUPS
from tests.controller.conftest import Books
from tests.support.objects import group, tfjob
from tests.support.scraped import sample

HOURS = "cash/requests.nvidia.com/gpu"


def condition(found: GroupObject, kind: str) -> tuple[str, str, str]:
    [told] = [each for each in found.status.conditions if each.type == kind]
    return told.status, told.reason, told.message


async def metric(name: str, of: str) -> float | None:
    return await sample(name, group=of, resource=HOURS)


async def daily(books: Books, name: str, hours: str, **cash: Any) -> datetime:
    """A root whose hours are granted at midnight, twelve hours from now."""
    now = books.box.clock.now()
    books.box.clock.advance((now.replace(hour=12, minute=0, second=0, microsecond=0) - now).total_seconds() % 86_400)
    made = group(name, hours=hours)
    made["spec"]["cash"] = {"period": "daily", **cash}
    await books.create(made)
    noon = books.box.clock.now()
    return noon.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


async def test_hours_that_run_low_are_told_once_with_when_they_are_out_and_by_whom(books: Books) -> None:
    async with books.controller():
        midnight = await daily(books, "vision", "10")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(3600)
        found = await books.uses("vision", hours="1")
        out = midnight - timedelta(hours=2)
        burn = f"out at {out.isoformat()} at the present burn, by tfjobs.kubeflow.org/default/train 100%"
        assert condition(found, "CashLow") == (
            "False",
            "Left",
            f"{HOURS}: 1 of 10 used (10%), {burn}; next grant {midnight.isoformat()}",
        )
        assert found.status.cash is not None
        assert found.status.cash.period_end == midnight.isoformat()
        assert await metric("bizrq_cash_used_ratio", "vision") == 0.1
        assert await metric("bizrq_cash_exhaustion_timestamp_seconds", "vision") == out.timestamp()
        books.box.clock.advance(7 * 3600)
        found = await books.uses("vision", hours="8")
        assert condition(found, "CashLow")[:2] == ("True", "ThresholdReached")
        assert f"{HOURS}: 8 of 10 used (80%), {burn}" in await books.says("vision", "CashLow")
        assert (await books.told("CashLow")).startswith(f"a threshold is reached: {HOURS}; ")
        books.box.clock.advance(3600)
        await books.uses("vision", hours="9")
        books.box.clock.advance(3600)
        found = await books.uses("vision", hours="10")
        assert condition(found, "CashExhausted") == (
            "True",
            "Spent",
            f"spent: {HOURS}; growth is refused, next grant {midnight.isoformat()}",
        )
        assert len(await books.events("CashLow")) == 1
        books.box.clock.advance(3 * 3600)
        found = await books.uses("vision", hours="1")
        assert condition(found, "CashExhausted")[0] == "False"
        assert found.status.cash is not None
        assert found.status.cash.period_start == midnight.isoformat()


async def test_what_is_left_comes_over_is_spent_first_and_told_as_it_goes(books: Books) -> None:
    async with books.controller():
        await daily(books, "vision", "10", rollover={"fraction": "50%"})
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job)
        books.box.clock.advance(4 * 3600)
        await books.uses("vision", hours="4")
        await books.ends("train-0")
        books.box.clock.advance(8 * 3600 + 1800)
        found = await books.until("vision", lambda g: g.status.cash.carried == {HOURS: "3"})
        assert found.status.used[HOURS] == "0"
        await books.pod("train-1", job)
        books.box.clock.advance(2 * 3600)
        await books.until("vision", lambda g: g.status.cash.carried == {HOURS: "1"} and g.status.used[HOURS] == "0")
        books.box.clock.advance(3 * 3600)
        await books.until("vision", lambda g: not g.status.cash.carried and g.status.used[HOURS] == "2")


async def test_a_budget_that_is_only_handed_down_is_told_by_whoever_spends_it(books: Books) -> None:
    async with books.controller():
        await books.group("corp", hours="10")
        await books.group("vision", "corp", hours="10")
        job = await books.create(tfjob("train", "vision", 1))
        await books.pod("train-0", job, since=9 * 3600)
        found = await books.uses("vision", hours="9")
        assert condition(found, "CashLow")[0] == "True"
        assert condition(await books.uses("corp", hours="10"), "CashLow") == (
            "False",
            "Left",
            "no budget of hours is low",
        )
        await books.client.patch(GROUPS, "vision", {"spec": {"cash": {"thresholds": [95]}}})
        await books.until("vision", lambda g: condition(g, "CashLow")[0] == "False")


async def test_the_ready_condition_is_a_group_at_a_glance(books: Books) -> None:
    """The column of kubectl get has resources before hours, models after their base, and no more than fit."""
    names = ("limits.memory", "limits.cpu.A4", "limits.cpu", HOURS, "requests.nvidia.com/gpu")
    counted = [f"count/{kind}" for kind in ("deployments.apps", "jobs.batch", "cronjobs.batch", "daemonsets.apps")]
    async with books.controller():
        nlp = await books.group("nlp", **dict.fromkeys(names, "8"))
        free = await books.group("free")
        many = await books.group("many", **dict.fromkeys((*names[:2], *counted, "pods", "limits.cpu"), "8"))
    assert condition(nlp, "Ready")[2] == (
        f"limits.cpu 0/8, limits.cpu.A4 0/8, limits.memory 0/8, requests.nvidia.com/gpu 0/8, {HOURS} 0/8"
    )
    assert condition(free, "Ready")[2] == "no hard limits: everything that is charged here is admitted"
    assert condition(many, "Ready")[2].endswith(", and 2 more")
