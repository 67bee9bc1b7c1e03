from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from tests.support.fake_server import FakeServer
from tests.support.patience import PatientLoop


def pytest_asyncio_loop_factories() -> dict[str, type[asyncio.AbstractEventLoop]]:
    """Every test here runs in this process."""
    return {"patient": PatientLoop}


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(Endpoint(server.url, StaticCredentials({}))) as client:
        yield client
