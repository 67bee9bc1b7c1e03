"""The configuration that the webhooks of the cluster run with, as far as the user may read it.

This file alone decides where it is looked for: where `bizrq install` puts it. It applies nothing of it.
"""

from __future__ import annotations

from bizrq.api.config import ConfigurationError
from bizrq.figures.simulate.reviews import SYSTEM_NAMESPACE
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.settings import Settings, loads, settings
from bizrq.store.processes import CONFIG, WEBHOOKS

_CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
#: The place of the configuration, for people.
PLACE = f"configmap {CONFIG} in namespace {SYSTEM_NAMESPACE}"


async def installed_settings(client: KubeClient) -> Settings | None:
    """Return the settings of the installed webhooks, None where they are unknown. Raise ApiError, Unreachable.

    They are unknown where the user may not read them, where a newer version wrote them, and where the processes were
    not started by `bizrq install` in its own namespace.
    """
    try:
        try:
            found = await client.get(_CONFIG_MAPS, CONFIG, SYSTEM_NAMESPACE)
        except NotFound:
            # An installation without a configuration has none.
            await client.get(_DEPLOYMENTS, WEBHOOKS, SYSTEM_NAMESPACE)
            return settings({})
        return loads(str((found.get("data") or {}).get("config.yaml", "")), PLACE)
    except (Forbidden, NotFound, ConfigurationError):
        return None
