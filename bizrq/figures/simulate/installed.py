"""The configuration that the webhooks of the cluster run with, as far as the user may read it.

This file alone decides where it is looked for: where `bizrq install` puts it. It applies nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bizrq.api.config import ConfigurationError
from bizrq.figures.simulate.reviews import SYSTEM_NAMESPACE
from bizrq.kube.client import Forbidden, KubeClient, NotFound, Resource
from bizrq.settings import Settings, loads, settings
from bizrq.store.processes import CONFIG, WEBHOOKS

_CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
#: The place of the configuration, for people.
PLACE = f"configmap {CONFIG} in namespace {SYSTEM_NAMESPACE}"


@dataclass(frozen=True, slots=True)
class UnknownSettings:
    """What an answer depends on where the configuration is unknown, and why it is, in words.

    `may_read` is False where the user lacks the right to read it.
    """

    what: str
    why: str
    may_read: bool = True


async def installed_settings(client: KubeClient) -> Settings | UnknownSettings:
    """Return the settings of the installed webhooks, or why they are unknown. Raise ApiError, Unreachable.

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
    except Forbidden:
        return UnknownSettings(PLACE, f"{PLACE} cannot be read", may_read=False)
    except NotFound:
        why = f"bizrq is not installed in namespace {SYSTEM_NAMESPACE}"
        return UnknownSettings(f"the configuration of bizrq, which is not installed in {SYSTEM_NAMESPACE}", why)
    except ConfigurationError as error:
        return UnknownSettings(f"{PLACE}, which this version cannot read", f"{PLACE} cannot be read: {error}")
