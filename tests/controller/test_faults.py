"""The controller under faults of the API server and the network: it counts right in the end, and never too little."""

from __future__ import annotations

import pytest

from bizrq.kube.client import Resource
from bizrq.store.groups import GROUPS
from tests.controller.conftest import Books
from tests.support.faults import WATCHES, WRITES, Fault, refused, slow
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.oracle import Recorder


@pytest.mark.parametrize("fault", WRITES.values(), ids=WRITES)
async def test_a_status_write_that_goes_wrong_is_made_right(books: Books, fault: Fault) -> None:
    """The next reconciliation is right whether or not the write happened: the oracle reads it back."""
    async with books.controller(), Recorder(books.client) as recorder:
        await books.group("nlp", cpu="10")
        fault(books.proxy, "PUT", "/nlp/status")
        # Stored without admission: nothing was reserved, so the test itself breaks I2, but not I3.
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        await books.remove(await books.client.get(DEPLOYMENTS, "web", "default"))
        found = await books.uses("nlp", cpu="0")
        assert found.status.reservations == []
        await recorder.caught_up()
        counted = {
            text for group in recorder.revisions("nlp") for text in [(group.status.used or {}).get("limits.cpu")]
        }
        assert counted <= {None, "0", "4"}


@pytest.mark.parametrize("last", WATCHES.values(), ids=WATCHES)
@pytest.mark.parametrize("resource", [DEPLOYMENTS, GROUPS], ids=lambda resource: resource.plural)
async def test_a_watch_that_breaks_loses_nothing(books: Books, resource: Resource, last: bytes) -> None:
    """Changes during the fault are counted, including deletions."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        old = await books.create(deployment("old", "nlp", 1))
        await books.uses("nlp", cpu="1")
        assert await books.proxy.spoil(resource.path(), last) >= 1
        await books.remove(old)
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        await books.group("vision", cpu="3")


async def test_reads_that_are_throttled_and_slow_only_take_longer(books: Books) -> None:
    """An expired reservation is looked up before it is dropped. The look-up first meets 429, 503 and silence."""
    async with books.controller():
        await books.group("nlp", cpu="10")
        for fault in (refused(429, 2, Retry_After="0"), refused(503, 2), slow(0.3, 2)):
            fault(books.proxy, "GET", DEPLOYMENTS.path())
        await books.create(deployment("web", "nlp", 4))
        await books.uses("nlp", cpu="4")
        books.clock.advance(61)
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "4"}, 2)
