"""Which code answers which reviews: the paths that `webhooks.registration` sends them to, and what is behind each.

The process asks it over HTTP (`webhooks.app`), and `bizrq fit` on copies of the groups: one set of rules for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from bizrq.api.review import Request
from bizrq.kube.client import KubeClient
from bizrq.quota.verdict import Verdict
from bizrq.settings import Settings
from bizrq.store.groups import GroupStore
from bizrq.store.reference_resolver import Related
from webhooks import registration
from webhooks.charging.authorization import Rights
from webhooks.charging.group_commit import Reserver
from webhooks.charging.owner_trust import Children
from webhooks.handlers.autoscalers import Autoscalers
from webhooks.handlers.claims import SharedClaims
from webhooks.handlers.corrections import Corrections
from webhooks.handlers.groups import Answer, Groups
from webhooks.handlers.namespaces import Namespaces
from webhooks.handlers.orphans import Orphans
from webhooks.handlers.references import References
from webhooks.handlers.workloads import Workloads

#: The answer to a review, until a deadline in `time.monotonic` seconds.
Handler = Callable[[Request, float], Awaitable[Answer]]


def doors(
    client: KubeClient,
    store: GroupStore,
    reserver: Reserver,
    related: Related,
    rights: Rights,
    settings: Settings,
    namespace: str,
) -> Mapping[str, Handler]:
    """Each path with its handler; `namespace` is where bizrq itself runs."""
    registry, config, catalog = settings.registry, settings.counting, settings.catalog
    references = References(client, reserver, related, rights, registry, config)
    children = Children(client, related, registry, config, settings.controllers)
    exempt = registration.exempt(namespace)
    workloads = Workloads(client, reserver, related, rights, references, children, registry, config, exempt=exempt)
    groups = Groups(client, store, reserver, related, rights, registry, config, catalog=catalog)
    return {
        "/validate/groups": groups.admit,
        "/validate/workloads": _plain(workloads.admit),
        "/validate/scale": _plain(workloads.scale),
        "/validate/references": _plain(references.admit),
        "/validate/claims": _plain(SharedClaims(reserver, related, rights, references, config).admit),
        "/validate/orphans": _plain(Orphans(client, related, registry, config).admit),
        "/validate/namespaces": Namespaces(client, store, related, rights, registry, config).admit,
        "/validate/corrections": _plain(Corrections(store, rights, catalog=catalog).admit),
        "/validate/autoscalers": Autoscalers(client, store, related, registry, config, catalog).admit,
    }


def _plain(admit: Callable[[Request, float], Awaitable[Verdict]]) -> Handler:
    async def answer(request: Request, deadline: float) -> Answer:
        return Answer(await admit(request, deadline))

    return answer
