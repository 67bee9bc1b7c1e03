from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from tests.support.fake_server import FakeServer
from tests.support.patience import PatientLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A real API server and a credentials plugin are processes of their own."""
    return (
        {"real": asyncio.new_event_loop}
        if item.path.name in ("test_config.py", "test_on_clusters.py")
        else {"patient": PatientLoop}
    )


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(Endpoint(server.url, StaticCredentials({}))) as client:
        yield client
