"""The web UI on this machine, as the user of a kubeconfig: for `bizrq web`, `bizrq up` and `make demo`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bizrq.kube.config import Endpoint
from bizrq.settings import Settings
from web.app import Site, Web
from web.credentials.gates import LocalGate
from web.credentials.keys import Keyring
from web.credentials.session import CookieNames
from web.reading.visitors import Visitors

HOST = "127.0.0.1"


@asynccontextmanager
async def serving(endpoint: Endpoint, settings: Settings, port: int = 0) -> AsyncIterator[str]:
    """Serve at this machine only, inside the context. Yield the address with its key. Raise OSError."""
    visitors = Visitors(endpoint)
    # Browsers give a cookie to every port of a host: another bizrq web must not take this one's.
    names = CookieNames(is_secure=False, suffix=f"-{secrets.token_hex(4)}")
    gate = LocalGate(visitors, names)
    pages = Web(visitors, gate, settings, names, Keyring(None), Site(()))
    try:
        bound = await pages.start(HOST, port)
        hosts = [f"{HOST}:{bound}", f"localhost:{bound}"]
        pages.site = Site([f"http://{host}" for host in hosts], hosts)
        yield f"http://{hosts[0]}/?key={gate.key}"
    finally:
        await pages.stop()
