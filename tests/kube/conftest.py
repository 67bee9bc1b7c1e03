from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.fake_server import client, server
from tests.support.patience import PatientLoop

__all__ = ["client", "server"]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A real API server and a credentials plugin are processes of their own."""
    return (
        {"real": asyncio.new_event_loop}
        if item.path.name in ("test_config.py", "test_on_clusters.py")
        else {"patient": PatientLoop}
    )
