"""The ground and the stage for the short forms: webhooks and controller in this process, a clock to set forward."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.controller.conftest import Monotonic
from tests.reliability.stage import Ground, Stage, ground_on, stage_on
from tests.support.cluster import Cluster

SEED = 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A cluster on which a test starts what it needs."""
    async with ground_on(cluster, tmp_path_factory.mktemp("ground"), seed=SEED, clock=Monotonic()) as ground:
        yield ground


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(ground: Ground) -> AsyncIterator[Stage]:
    """Three webhooks behind one address and a controller, registered."""
    async with stage_on(ground) as stage:
        yield stage
