"""A bare API server, and one with everything in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from sandbox.server import Sandbox
from tests.support.sandbox_client import Client


async def _client(box: Sandbox) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(box.url) as session:
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
    async with Sandbox() as box:
        yield box


@pytest.fixture
async def kube(cluster: Sandbox) -> AsyncIterator[Client]:
    async for client in _client(cluster):
        yield client
