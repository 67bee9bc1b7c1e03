"""Corrections as people make them: reviewed, a line of the record, and told to be."""

from __future__ import annotations

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS
from tests.support.cluster import eventually, refusal
from tests.support.objects import correction, group

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("station")]

GPU = "requests.nvidia.com/gpu"


async def test_a_correction_shows_in_used_in_the_record_and_in_itself(client: KubeClient, unique: str) -> None:
    await client.create(GROUPS, group(unique, hours="100"))
    asked = correction(unique, unique, {GPU: "8"}, by="somebody")
    error = await refusal(client.create(CORRECTIONS, asked))
    assert error.status == 422
    assert "spec.by: is 'somebody', but " in error.message
    asked["spec"]["by"] = error.message.rpartition(" but ")[2].removesuffix(" asks")
    await client.create(CORRECTIONS, asked)

    async def told() -> bool:
        found = await client.get(CORRECTIONS, unique)
        used = (await client.get(GROUPS, unique)).get("status", {}).get("used", {})
        return bool(found.get("status", {}).get("applied")) and used.get(f"cash/{GPU}") == "8"

    await eventually(told, 60, "the correction is applied")
    [line] = (await client.get(CARD_HOURS, unique))["status"]["open"]["corrections"]
    assert (line["by"], line["reason"]) == (asked["spec"]["by"], "mended")
    assert (
        "no hours of limits.cpu"
        in (
            await refusal(
                client.create(CORRECTIONS, correction(f"{unique}-b", unique, {"limits.cpu": "1"}, by=line["by"]))
            )
        ).message
    )
