"""A bare API server, and one with everything in it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from sandbox.server import Sandbox
from tests.support.patience import PatientLoop
from tests.support.sandbox_client import Client, bearer


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """kubectl is a process of its own."""
    is_real = item.path.name == "test_kubectl.py"
    return {"real": asyncio.new_event_loop} if is_real else {"patient": PatientLoop}


async def _client(box: Sandbox) -> AsyncIterator[Client]:
    trust = ssl.create_default_context(cadata=box.ca.decode()) if box.ca else True
    connector = aiohttp.TCPConnector(ssl=trust)
    async with aiohttp.ClientSession(box.url, connector=connector, headers=bearer(box)) as session:
        yield Client(session)


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    """A bare API server: nothing acts in it but the test."""
    async with Sandbox(controllers=False, bookmark_seconds=0.1) as box:
        yield box


@pytest.fixture
async def api(box: Sandbox) -> AsyncIterator[Client]:
    async for client in _client(box):
        yield client


@pytest.fixture
async def cluster() -> AsyncIterator[Sandbox]:
    """A sandbox with controllers, scheduler and kubelet."""
    async with Sandbox(tls=True) as box:
        yield box


@pytest.fixture
async def kube(cluster: Sandbox) -> AsyncIterator[Client]:
    async for client in _client(cluster):
        yield client
