"""Rights where nobody knows whether the webhooks ask for them: a change that lacks one is granted with a warning."""

from __future__ import annotations

from bizrq.api.config import RightsConfig
from bizrq.api.review import Request
from bizrq.quota.verdict import Denied, Reason
from bizrq.store.ports import AccessReviewer, GroupReader, ObjectReader
from webhooks.charging.authorization import Authorizer
from webhooks.charging.deadline import Deadline

_RIGHTS = frozenset({Reason.MAY_NOT_USE, Reason.MAY_NOT_GRANT})


class UnsureAuthorizer(Authorizer):
    """Asks for every right, and keeps what the webhooks would say if they asked, too."""

    def __init__(self, client: ObjectReader, groups: GroupReader, reviewer: AccessReviewer, why: str) -> None:
        """`why` says why it is unknown."""
        super().__init__(client, groups, reviewer, RightsConfig(use=True, grant=True))
        self._why = why
        #: Each once, in order.
        self._lacking: dict[str, None] = {}

    def taken(self) -> list[str]:
        """Return the warnings of the changes that were checked since the last call."""
        found, self._lacking = list(self._lacking), {}
        return [
            f"the cluster refuses this if it asks for rights, which is unknown: {self._why}; it would say: {message}"
            for message in found
        ]

    async def check_use(self, request: Request, group: str, deadline: Deadline) -> Denied | None:
        return self._noted(await super().check_use(request, group, deadline))

    async def check_grant(
        self, request: Request, verb: str, name: str, parent: str, deadline: Deadline
    ) -> Denied | None:
        return self._noted(await super().check_grant(request, verb, name, parent, deadline))

    def _noted(self, denied: Denied | None) -> Denied | None:
        if denied is None or denied.reason not in _RIGHTS:
            return denied
        self._lacking[denied.message] = None
        return None
