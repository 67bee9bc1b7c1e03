from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.fake_server import client, server
from tests.support.patience import PatientLoop

__all__ = ["client", "server"]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A real API server is a process of its own."""
    is_real = item.path.name == "test_on_clusters.py"
    return {"real": asyncio.new_event_loop} if is_real else {"patient": PatientLoop}
