"""A list that is too large to be read refuses the write that needs it, also where the webhook fails open."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bizrq.kube.client import AnswerTooLarge
from bizrq.workloads.validation import Malformed
from tests.support.objects import PODS
from webhooks.charging.deadline import Deadline
from webhooks.charging.shared_lists import SharedLists


class Large:
    """A cluster whose objects are large."""

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def list(self, *_: Any, mean: int | None = None, **__: Any) -> tuple[list[dict[str, Any]], str]:
        await asyncio.sleep(0)
        raise AnswerTooLarge(413, "RequestEntityTooLarge", f"over {mean} bytes")


@pytest.mark.asyncio
@pytest.mark.parametrize(("namespace", "where"), [("team-a", "in namespace team-a"), (None, "in the cluster")])
async def test_what_cannot_be_listed_cannot_be_counted(namespace: str | None, where: str) -> None:
    lists = SharedLists(Large())
    said = f"the pods {where} have over 32 KiB on average, too many to be read: delete large ones that nobody needs"
    many = [lists.of(PODS, Deadline(time.monotonic() + 10), namespace) for _ in range(3)]
    assert [str(each) for each in await asyncio.gather(*many, return_exceptions=True)] == [said] * 3
    with pytest.raises(Malformed):
        await lists.of(PODS, Deadline(time.monotonic() + 10), namespace)
