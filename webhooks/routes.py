"""Bind each endpoint of `bizrq.registration` to the code that answers it.

The process serves these over HTTP (`webhooks.app`), and `bizrq fit` asks them about copies of the groups: one set of
rules for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from bizrq import registration
from bizrq.api.review import Request
from bizrq.settings import Settings
from bizrq.store.ports import GroupReader, ObjectReader, PayerMemory, ReferenceReader
from webhooks.charging.adoption import Adoption
from webhooks.charging.authorization import Authorizer
from webhooks.charging.beyond import Beyond
from webhooks.charging.charger import Charger
from webhooks.charging.confirmation import Confirmation
from webhooks.charging.context import Context
from webhooks.charging.deadline import Deadline
from webhooks.charging.group_commit import Reserver
from webhooks.charging.grown_children import GrownChildren
from webhooks.charging.owner_trust import OwnerTrust
from webhooks.charging.payers import Payers
from webhooks.charging.recall import Recaller
from webhooks.charging.reference_users import ReferenceUsers
from webhooks.charging.shared_claims import SharedClaims
from webhooks.charging.shared_lists import SharedLists
from webhooks.handlers.answer import Admit, Answer, answer
from webhooks.handlers.autoscalers import AutoscalerHandler
from webhooks.handlers.claims import ClaimHandler
from webhooks.handlers.corrections import CorrectionHandler
from webhooks.handlers.groups import GroupHandler
from webhooks.handlers.in_use import InUseCheck
from webhooks.handlers.namespaces import NamespaceHandler
from webhooks.handlers.references import ReferenceHandler
from webhooks.handlers.versions import VersionHandler
from webhooks.handlers.workload_count import WorkloadCounter
from webhooks.handlers.workloads import WorkloadHandler

#: Answers a review until a deadline.
Handler = Callable[[Request, Deadline], Awaitable[Answer]]


def handlers(
    client: ObjectReader,
    groups: GroupReader,
    reserver: Reserver,
    recaller: Recaller | None,
    resolver: ReferenceReader,
    authorizer: Authorizer,
    payers: PayerMemory,
    settings: Settings,
    namespace: str,
) -> Mapping[str, Handler]:
    """Return each path with its handler; `namespace` is where bizrq itself runs."""
    settings = settings.around(namespace)
    confirmation = Confirmation(resolver, groups, settings.catalog)
    context = Context(
        registry=settings.registry,
        config=settings.counting,
        catalog=settings.catalog,
        resolver=resolver,
        confirmation=confirmation,
        client=client,
        lists=SharedLists(client),
        groups=groups,
        reserver=reserver,
        recaller=recaller,
        authorizer=authorizer,
        payers=payers,
    )
    users = ReferenceUsers(context)
    claims = SharedClaims(context, users)
    who_pays = Payers(context)
    children = GrownChildren(context, claims, who_pays)
    charger = Charger(authorizer, reserver, client, confirmation)
    adoption = Adoption(context)
    beyond = Beyond(context, adoption)
    owner_trust = OwnerTrust(context, who_pays, beyond, settings.controllers)
    counter = WorkloadCounter(context, claims, children, owner_trust, who_pays, adoption, beyond)
    workloads = WorkloadHandler(context, charger, counter, owner_trust, who_pays, adoption)
    rows: Mapping[registration.ReviewEndpoint, Admit] = {
        registration.GROUPS: GroupHandler(context).admit,
        registration.WORKLOADS: workloads.admit,
        registration.SCALE: workloads.scale,
        registration.CHILDREN: workloads.leaving,
        registration.VERSIONS: VersionHandler(context, charger, who_pays, owner_trust).admit,
        registration.REFERENCES: ReferenceHandler(
            context, charger, users, claims, InUseCheck(context, users, claims)
        ).admit,
        registration.CLAIMS: ClaimHandler(context, charger, users, claims, owner_trust).admit,
        registration.NAMESPACES: NamespaceHandler(context).admit,
        registration.CORRECTIONS: CorrectionHandler(context).admit,
        registration.AUTOSCALERS: AutoscalerHandler(context).admit,
        registration.INDIRECT: workloads.indirect,
    }
    return {endpoint.path: partial(answer, endpoint, admit) for endpoint, admit in rows.items()}
