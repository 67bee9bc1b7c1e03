"""The CRD of corrections without any webhook: what one object can say wrong is refused, and none is ever edited."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.hours import CORRECTIONS
from tests.support.cluster import refusal
from tests.support.objects import Object, correction

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("groups")]


@pytest.mark.parametrize("hours", [{"limits.cpu": "-12.5"}, {"limits.cpu": "1k", "limits.memory": "-8Gi"}], ids=str)
async def test_a_correction_is_stored_as_it_was_written(client: KubeClient, unique: str, hours: Any) -> None:
    asked = correction(unique, "nlp", hours)
    assert (await client.create(CORRECTIONS, asked))["spec"] == asked["spec"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hours": {}}, "hours"),
        ({"hours": {"limits.cpu": "0"}}, "a quantity that is not 0"),
        ({"hours": {"limits.cpu": "many"}}, "a quantity that is not 0"),
        ({"hours": {"limits.cpu": "1" * 33}}, "hours"),
        ({"hours": {f"n{n}": "1" for n in range(65)}}, "hours"),
        ({"reason": ""}, "say why"),
        ({"reason": " \n"}, "say why"),
        ({"reason": "x" * 1025}, "reason"),
        ({"by": ""}, "by"),
        ({"group": ""}, "group"),
        ({"group": None}, "group"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_no_correction_is_refused_by_the_schema_alone(
    client: KubeClient, unique: str, spec: Any, words: str
) -> None:
    asked = correction(unique, "nlp", {"limits.cpu": "1"})
    asked["spec"].update(spec)
    error = await refusal(client.create(CORRECTIONS, asked))
    assert (error.status, error.reason) == (422, "Invalid")
    assert words in error.message


@pytest.mark.parametrize(
    "edit",
    [
        {"hours": {"limits.cpu": "2"}},
        {"hours": {"limits.memory": "1"}},
        {"reason": "another"},
        {"by": "bob"},
        {"group": "vision"},
    ],
    ids=str,
)
async def test_none_is_ever_edited_but_told_to_be_applied(client: KubeClient, unique: str, edit: Object) -> None:
    made = await client.create(CORRECTIONS, correction(unique, "nlp", {"limits.cpu": "1"}))
    assert "never edited" in (await refusal(client.patch(CORRECTIONS, unique, {"spec": edit}))).message
    at = "2026-11-21T00:00:00.000Z"
    told = await client.patch(CORRECTIONS, unique, {"status": {"applied": at}}, subresource="status")
    assert (told["status"], told["spec"]) == ({"applied": at}, made["spec"])
