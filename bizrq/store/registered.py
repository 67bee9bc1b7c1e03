"""The stored registration of the webhooks, and the marker of a pause beside it.

This file alone decides in which order both are read: the registration first. `bizrq pause` writes its marker first and
then deletes the registration. So whoever sees no registration of a pause sees the marker, and whoever misses the marker
has read a registration: to update that one never creates it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bizrq.api.enforcement import REGISTRATION
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient, NotFound
from bizrq.store import pause
from bizrq.store.pause import Pause


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration as it is stored, and the pause; None for what is not there."""

    stored: dict[str, Any] | None
    pause: Pause | None

    @property
    def has_entries(self) -> bool:
        """Return whether the API server asks anybody."""
        return has_entries(self.stored)


async def stored(client: KubeClient, *, timeout: float | None = None) -> dict[str, Any] | None:
    """Return the registration, None without one. Raise ApiError, and Unreachable after `timeout` seconds."""
    try:
        return await client.get(REGISTRATIONS, REGISTRATION, timeout=timeout)
    except NotFound:
        return None


def has_entries(registration: dict[str, Any] | None) -> bool:
    """Return whether there is a registration by which the API server asks anybody."""
    return bool(registration and registration.get("webhooks"))


async def read(client: KubeClient, namespace: str, *, timeout: float | None = None) -> Registered:
    """Return the registration and the pause of the installation in this namespace.

    Raise ApiError, and Unreachable if one of the two reads takes longer than `timeout` seconds.
    """
    found = await stored(client, timeout=timeout)
    return Registered(found, await pause.read(client, namespace, timeout=timeout))
