"""The stored registration of the webhooks.

Who wants the marker of a pause, too, reads it after this. `bizrq pause` writes its marker first and then deletes the
registration. So whoever sees no registration of a pause sees the marker, and whoever misses the marker has read a
registration: to update that one never creates it again.
"""

from __future__ import annotations

from typing import Any

from bizrq.api.enforcement import REGISTRATION
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient, NotFound


async def stored(client: KubeClient, *, timeout: float | None = None) -> dict[str, Any] | None:
    """Return the registration, None without one. Raise ApiError, and Unreachable after `timeout` seconds."""
    try:
        return await client.get(REGISTRATIONS, REGISTRATION, timeout=timeout)
    except NotFound:
        return None


def has_entries(registration: dict[str, Any] | None) -> bool:
    """Return whether there is a registration by which the API server asks anybody."""
    return bool(registration and registration.get("webhooks"))
