"""Which code answers which reviews: the paths that `webhooks.registration` sends them to, and what is behind each.

The process asks it over HTTP (`webhooks.app`), and `bizrq fit` on copies of the groups: one set of rules for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bizrq.api.review import Request
from bizrq.quota.verdict import Verdict
from bizrq.settings import Settings
from bizrq.store.ports import GroupReader, ObjectReader, ReferenceReader
from webhooks import registration
from webhooks.charging.authorization import Authorizer
from webhooks.charging.group_commit import Reserver
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.handlers.autoscalers import AutoscalerHandler
from webhooks.handlers.claims import ClaimHandler
from webhooks.handlers.corrections import CorrectionHandler
from webhooks.handlers.groups import Answer, GroupHandler
from webhooks.handlers.namespaces import NamespaceHandler
from webhooks.handlers.orphans import OrphanHandler
from webhooks.handlers.references import ReferenceHandler
from webhooks.handlers.workloads import WorkloadHandler

#: The answer to a review, until a deadline in `time.monotonic` seconds.
Handler = Callable[[Request, float], Awaitable[Answer]]


def handlers(
    client: ObjectReader,
    store: GroupReader,
    reserver: Reserver,
    resolver: ReferenceReader,
    authorizer: Authorizer,
    settings: Settings,
    namespace: str,
) -> Mapping[str, Handler]:
    """Each path with its handler; `namespace` is where bizrq itself runs."""
    registry, config, catalog = settings.registry, settings.counting, settings.catalog
    references = ReferenceHandler(client, reserver, resolver, authorizer, registry, config)
    children = OwnerTrust(client, resolver, registry, config, settings.controllers)
    exempt = registration.exempt_namespaces(namespace)
    workloads = WorkloadHandler(
        client, reserver, resolver, authorizer, references, children, registry, config, exempt=exempt
    )
    groups = GroupHandler(client, store, reserver, resolver, authorizer, registry, config, catalog=catalog)
    return {
        "/validate/groups": groups.admit,
        "/validate/workloads": _plain(workloads.admit),
        "/validate/scale": _plain(workloads.scale),
        "/validate/references": _plain(references.admit),
        "/validate/claims": _plain(ClaimHandler(reserver, resolver, authorizer, references, config).admit),
        "/validate/orphans": _plain(OrphanHandler(client, resolver, registry, config).admit),
        "/validate/namespaces": NamespaceHandler(client, store, resolver, authorizer, registry, config).admit,
        "/validate/corrections": _plain(CorrectionHandler(store, authorizer, catalog=catalog).admit),
        "/validate/autoscalers": AutoscalerHandler(client, store, resolver, registry, config, catalog).admit,
    }


def _plain(admit: Callable[[Request, float], Awaitable[Verdict]]) -> Handler:
    async def answer(request: Request, deadline: float) -> Answer:
        return Answer(await admit(request, deadline))

    return answer
