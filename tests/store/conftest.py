from __future__ import annotations

import asyncio

from tests.support.fake_server import client, server
from tests.support.patience import PatientLoop

__all__ = ["client", "server"]


def pytest_asyncio_loop_factories() -> dict[str, type[asyncio.AbstractEventLoop]]:
    """Every test here runs in this process."""
    return {"patient": PatientLoop}
