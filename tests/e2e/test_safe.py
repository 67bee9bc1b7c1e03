"""Hours in safe mode as people meet them: at once, no two get the same; what to set is said; explain says the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bizrq.kube.client import ApiError, KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from bizrq.workloads.labels import LABEL
from tests.support.cluster import eventually, refusal
from tests.support.objects import Object, group, template

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("station")]

HOURS = "cash/requests.nvidia.com/gpu"
JOBS = Resource("batch", "v1", "jobs", "Job")


def job(name: str, of: str, hours: int | None, gpus: int = 1) -> Object:
    pods = template("1", **{"nvidia.com/gpu": gpus})
    pods["spec"]["restartPolicy"] = "Never"
    bound = {} if hours is None else {"activeDeadlineSeconds": hours * 3600}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: of}},
        "spec": {"template": {"spec": pods["spec"]}, **bound},
    }


async def safe(client: KubeClient, name: str, hours: str, **cash: Any) -> None:
    made = group(name, hours=hours)
    made["spec"]["cash"] = {"mode": "safe", **cash}
    await client.create(GROUPS, made)


async def published(client: KubeClient, name: str, lien: str) -> Object:
    async def told() -> Object | None:
        found = await client.get(GROUPS, name)
        liens = found.get("status", {}).get("cash", {}).get("liens")
        calm = not found.get("status", {}).get("reservations")
        return found if calm and liens is not None and liens.get(HOURS, "") == lien else None

    found = await eventually(told, 60, f"liens of {lien}")
    assert found is not None
    return found


async def test_twenty_jobs_at_once_never_get_the_same_hours(client: KubeClient, unique: str) -> None:
    """Ten hours each of a hundred: ten are let in, and what they may cost stands in the status."""
    await safe(client, unique, "100")
    answers = await asyncio.gather(
        *(client.create(JOBS, job(f"{unique}-{n}", unique, 10)) for n in range(20)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, ApiError)]
    assert len(refused) == 10, answers
    assert all(f"exceeded quota: {unique}, requested: {HOURS}=10, " in e.message for e in refused)
    assert all("requested is what it may cost in 10h" in e.message for e in refused)

    async def spent_or_held() -> bool:
        """Where jobs start, time takes of the lien what it has not spent yet: nothing runs."""
        found = await client.get(GROUPS, unique)
        liens = found["status"]["cash"].get("liens", {}).get(HOURS, "0")
        return not found["status"].get("reservations") and 99 * 10**9 < quantity.parse(liens) <= 100 * 10**9

    await eventually(spent_or_held, 60, "liens of all")


async def test_what_is_unbounded_is_told_what_to_set(client: KubeClient, unique: str) -> None:
    await safe(client, unique, "10")
    await published(client, unique, "")
    error = await refusal(client.create(JOBS, job(unique, unique, None)))
    assert error.status == 403
    assert error.message.endswith(
        f"nothing bounds the run of jobs.batch/default/{unique}: set spec.activeDeadlineSeconds, or have "
        "spec.cash.maxRunTime of the group set"
    )
    await client.patch(GROUPS, unique, {"spec": {"cash": {"maxRunTime": "5h"}}})
    await client.create(JOBS, job(unique, unique, None))
    error = await refusal(client.create(JOBS, job(f"{unique}-b", unique, 6)))
    assert error.message.endswith("may run for 6h: set spec.activeDeadlineSeconds to 18000 or less")


async def test_a_job_is_given_more_time_only_as_hours_are_left(client: KubeClient, unique: str) -> None:
    await safe(client, unique, "20")
    made = await client.create(JOBS, job(unique, unique, 10))
    name = made["metadata"]["name"]
    error = await refusal(client.patch(JOBS, name, {"spec": {"activeDeadlineSeconds": 21 * 3600}}, namespace="default"))
    assert f"exceeded quota: {unique}, requested: {HOURS}=11" in error.message
    await client.patch(JOBS, name, {"spec": {"activeDeadlineSeconds": 19 * 3600}}, namespace="default")
    assert "exceeded quota" in (await refusal(client.create(JOBS, job(f"{unique}-b", unique, 2)))).message
