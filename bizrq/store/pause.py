"""The marker of a pause: while this ConfigMap is there, no leader registers the webhooks.

This file alone knows the marker. It has to be written and read while no process of ours runs and no kind of ours is
served, so it is a plain ConfigMap in the namespace of bizrq.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bizrq.kube.client import AlreadyExists, KubeClient, NotFound, Resource

CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
#: The name of the marker.
NAME: Final = "bizrq-paused"
#: The reason of a marker that goes with an installation, and resumes nothing.
UNINSTALL: Final = "bizrq uninstall"
#: The characters of a reason that the marker keeps.
MAX_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused, why and since when (RFC 3339); "" for what the marker does not say."""

    reason: str
    by: str
    since: str

    @property
    def resumes(self) -> bool:
        """Return whether checks go on when the marker is deleted; False for that of an uninstall."""
        return self.reason != UNINSTALL

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        since = f" since {self.since}" if self.since else ""
        return f"paused{since}{by}" + (f": {self.reason}" if self.reason else "")


def marker(namespace: str, reason: str = "", by: str = "") -> dict[str, Any]:
    """Return the marker as the object to store."""
    metadata = {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/name": "bizrq"}}
    data = {"reason": reason[:MAX_REASON], "by": by[:MAX_REASON]}
    return {"apiVersion": "v1", "kind": CONFIG_MAPS.kind, "metadata": metadata, "data": data}


async def read(client: KubeClient, namespace: str, *, timeout: float | None = None) -> Pause | None:
    """Return the pause of the installation in this namespace, None without one.

    Raise ApiError, and Unreachable after `timeout` seconds.
    """
    try:
        return of(await client.get(CONFIG_MAPS, NAME, namespace, timeout=timeout))
    except NotFound:
        return None


async def begin(client: KubeClient, namespace: str, reason: str, by: str) -> Pause:
    """Store the marker; one that is there stays as it is. Return what is stored. Raise ApiError, Unreachable."""
    try:
        return of(await client.create(CONFIG_MAPS, marker(namespace, reason, by)))
    except AlreadyExists:
        return await read(client, namespace) or Pause(reason, by, "")


async def end(client: KubeClient, namespace: str) -> bool:
    """Delete the marker. Return False if there was none. Raise ApiError, Unreachable."""
    try:
        await client.delete(CONFIG_MAPS, NAME, namespace)
    except NotFound:
        return False
    return True


def of(stored: dict[str, Any]) -> Pause:
    """Return what a marker says."""
    data = stored.get("data") or {}
    since = stored["metadata"].get("creationTimestamp")
    return Pause(str(data.get("reason") or ""), str(data.get("by") or ""), str(since or ""))
