"""The objects that all handlers of one process share."""

from __future__ import annotations

from dataclasses import dataclass

from bizrq.store.ports import GroupReader, ObjectReader, PayerMemory, ReferenceReader
from bizrq.units.names import Catalog
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.kinds.registry import Registry
from webhooks.charging.authorization import Authorizer
from webhooks.charging.confirmation import Confirmation
from webhooks.charging.group_commit import Reserver
from webhooks.charging.recall import Recaller
from webhooks.charging.shared_lists import SharedLists


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a review is decided with; `webhooks.routes` builds it once."""

    registry: Registry
    config: CountingConfig
    catalog: Catalog
    resolver: ReferenceReader
    confirmation: Confirmation
    client: ObjectReader
    lists: SharedLists
    groups: GroupReader
    reserver: Reserver
    #: None where nothing is held ahead, as in a simulation.
    recaller: Recaller | None
    authorizer: Authorizer
    payers: PayerMemory
