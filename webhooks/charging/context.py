"""The objects that all handlers of one process share."""

from __future__ import annotations

from dataclasses import dataclass

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GroupStore
from bizrq.store.reference_resolver import ReferenceResolver
from bizrq.units.names import Catalog
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.registry import Registry
from webhooks.charging.authorization import Authorizer
from webhooks.charging.group_commit import Reserver


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a review is decided with; `webhooks.routes` builds it once."""

    registry: Registry
    config: CountingConfig
    catalog: Catalog
    resolver: ReferenceResolver
    client: KubeClient
    groups: GroupStore
    reserver: Reserver
    authorizer: Authorizer
