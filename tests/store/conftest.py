from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from tests.support.fake_server import FakeServer


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(Endpoint(server.url, StaticCredentials({}))) as client:
        yield client
