"""bizrq as `bizrq up` runs it, in the tests' own process, on a sandbox and on a real cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from bizrq.cli.standalone import Station, Where
from bizrq.settings import Settings, load
from tests.support.cluster import Cluster


def station_on(cluster: Cluster, configuration: Settings | None = None, **how: Any) -> Station:
    """Everything of bizrq, not started yet."""
    where = Where(cluster.kubeconfig if cluster.is_real else None, None, Path(cluster.kubeconfig))
    return Station(configuration or load(None), where, sandbox=cluster.box, **how)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def station(cluster: Cluster) -> AsyncIterator[Station]:
    """A running bizrq for all tests of a module."""
    async with station_on(cluster) as running:
        yield running
