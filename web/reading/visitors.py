"""The users who are here, each with a client of their own.

This file alone decides which groups a user sees, how often they prove it, and when a user is forgotten. Every request
to the API server has the credentials of the user for whom it is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.client import ApiError, ConfigError, Forbidden, KubeClient, NotFound, Unauthorized, Unreachable
from bizrq.kube.config import Credentials, Endpoint, StaticCredentials
from bizrq.metrics import observed
from bizrq.store.access import whoami
from bizrq.store.groups import GROUPS
from web.problems import SignedOut, no_such_group, not_installed, unavailable
from web.reading import rights
from web.reading.followed import Followed
from web.reading.hub import Hub, ShownGroups
from web.reading.recent import Recent
from web.reading.rights import Rights
from web.reading.shared import SharedGroups

log = structlog.get_logger(__name__)

#: Seconds after which a user proves their rights again. With a look every few seconds, a stream ends within a minute.
PROOF = 45.0
#: Seconds without a request or a stream after which a user is forgotten, and between two looks for that.
_IDLE, _SWEEP = 300.0, 15.0
#: Seconds that the first read of groups may take.
_FIRST_READ = 10.0
#: Connections of one user to the API server; a user who follows groups by name needs one for each.
_CONNECTIONS = 64
#: Forms of a user that are known to be applied.
_SENT = 100

REJECTED = "The API server no longer accepts your credentials."


@dataclass(frozen=True)
class Seen:
    """The groups that a user may read now. `is_complete` is True where these are all that there are.

    `away_since` is the Unix time since which they may be out of date, None where they are current. `knows_names` is
    False where the API server cannot tell which groups the user may read.
    """

    groups: Mapping[str, GroupObject]
    is_complete: bool
    away_since: float | None
    rights: Rights
    #: Differs after every change of the groups.
    version: str = ""

    @property
    def knows_names(self) -> bool:
        return self.is_complete or self.rights.rules.is_complete


class Visitor:
    """One user. `is_rejected` is True once the API server has answered 401 to their credentials."""

    def __init__(
        self,
        key: str,
        endpoint: Endpoint,
        shared: SharedGroups,
        everybody: Hub,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self.key = key
        self.client = observed(KubeClient(endpoint, connections=_CONNECTIONS))
        self.name = ""
        self.is_rejected = False
        self.last_seen = monotonic()
        self._credentials = endpoint.credentials
        self._shared = shared
        self._everybody = everybody
        self._monotonic = monotonic
        self._own = Hub()
        self._followed = Followed(self.client, on_change=self._own.tell, on_rejected=self._reject)
        self._rights: Rights | None = None
        self._proven_at = float("-inf")
        self._away_since: float | None = None
        self._lock = asyncio.Lock()
        self.recent = Recent(monotonic)
        self._sent: OrderedDict[str, None] = OrderedDict()

    @property
    def hub(self) -> Hub:
        """Return where this user's streams listen."""
        return self._everybody if self._rights is not None and self._rights.lists else self._own

    async def prove(self) -> Rights:
        """Return the rights of the user, at most `PROOF` seconds old. Raise SignedOut, or Problem for a first proof.

        While the API server does not answer, those of the last proof hold: nobody can take them away meanwhile.
        """
        async with self._lock:
            if self.is_rejected:
                raise SignedOut(REJECTED)
            if self._rights is None or self._monotonic() - self._proven_at >= PROOF:
                await self._prove()
            assert self._rights is not None  # noqa: S101 _prove raises otherwise
            return self._rights

    async def _prove(self) -> None:
        try:
            if not self.name:
                self.name = await whoami(self.client)
            found = await rights.read_rights(self.client)
        except Unauthorized:
            self._reject()
            raise SignedOut(REJECTED) from None
        except (ApiError, Unreachable, ConfigError) as error:
            if self._rights is None:
                raise unavailable(error) from None
            self._away_since = self._away_since or time.time()
            log.info("rights are not proven again", error=str(error))
            return
        if self.is_rejected:
            # The user was forgotten meanwhile: their credentials must not be lent again.
            raise SignedOut(REJECTED)
        lost = self._rights is not None and self._rights.lists and not found.lists
        self._rights, self._proven_at, self._away_since = found, self._monotonic(), None
        if found.lists:
            self._shared.lend(self.key, self._credentials)
            await self._followed.close()
            return
        if lost:
            await self._shared.withdraw(self.key)
        unnamed = set(self._followed.names) - found.rules.readable
        if not found.rules.is_complete:
            unnamed = {name for name in unnamed if not await self._may_get(name)}
        await self._followed.leave(unnamed)
        await self._followed.follow(found.rules.readable, _FIRST_READ)

    async def _may_get(self, name: str) -> bool:
        """Return True if the user may read a group that the rules do not name, or the API server cannot tell."""
        try:
            return await rights.may(self.client, "get", name)
        except (ApiError, Unreachable, ConfigError) as error:
            log.info("a right is not proven again", group=name, error=str(error))
            return True

    async def seen(self) -> Seen:
        """Return what the user may read now. Raise SignedOut or Problem."""
        proven = await self.prove()
        if not proven.lists:
            return Seen(self._followed.by_name, False, self.away_since, proven)
        store = self._shared.lend(self.key, self._credentials)
        informer = store.informer
        try:
            async with asyncio.timeout(_FIRST_READ):
                await informer.synced.wait()
        except TimeoutError:
            raise unavailable(informer.problem or "it has not sent the groups yet") from None
        if informer.installed is False:
            raise not_installed(self.client.server)
        return Seen(store.by_name, True, self.away_since, proven, self._everybody.version)

    @property
    def away_since(self) -> float | None:
        """Return the Unix time since which what the user sees may be out of date, None while it is current."""
        of_groups = self._shared if self._rights is not None and self._rights.lists else self._followed
        return of_groups.away_since or self._away_since

    def state(self, scope: ShownGroups) -> str:
        """Return a word that differs after any change of the groups of a page, and when one comes or goes."""
        if scope.is_all:
            return self.hub.version
        found = self._found(scope)
        return f"{max((group.resource_version for group in found.values()), default=0)}-{len(found)}"

    def _found(self, scope: ShownGroups) -> dict[str, GroupObject]:
        store = self._shared.store
        if self.hub is not self._everybody or store is None:
            return {name: group for name, group in self._followed.by_name.items() if scope.has(name, group.parent)}
        found = {name: known for name in scope.names if (known := store.cached(name)) is not None}
        return found | {child.name: child for above in scope.below for child in store.known_children(above)}

    def note_sent(self, form: str) -> None:
        """Note by its token that a form was applied."""
        self._sent[form] = None
        if len(self._sent) > _SENT:
            self._sent.popitem(last=False)

    def has_sent(self, form: str) -> bool:
        """Return True if this form was applied here; another replica does not know of it."""
        return form in self._sent

    def touch(self) -> None:
        """Note that the user is here."""
        self.last_seen = self._monotonic()

    async def group(self, name: str, seen: Seen) -> GroupObject:
        """Return one group by its name, read now if it is not among those that are seen. Raise Problem."""
        if known := seen.groups.get(name):
            return known
        try:
            stored = await self.client.get(GROUPS, name)
        except (NotFound, Forbidden):
            raise no_such_group(name) from None
        except Unauthorized:
            self._reject()
            raise SignedOut(REJECTED) from None
        except (ApiError, Unreachable, ConfigError) as error:
            raise unavailable(error) from None
        if not seen.is_complete:
            await self._followed.follow([name], 0)
        return wire.from_dict(stored)

    def _reject(self) -> None:
        self.is_rejected = True
        self.hub.wake()

    async def close(self) -> None:
        """Use the credentials no more: streams that are open end."""
        self._reject()
        await self._shared.withdraw(self.key)
        await self._followed.close()
        await self.client.close()


class Visitors:
    """All users who are here, by their credentials."""

    def __init__(self, endpoint: Endpoint, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`endpoint` is the API server; its credentials are used only for `local`."""
        self._endpoint = endpoint
        self._monotonic = monotonic
        self.everybody = Hub()
        self.shared = SharedGroups(endpoint, on_change=self.everybody.tell)
        self._by_key: dict[str, Visitor] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_key)

    def start(self) -> None:
        self._sweeping = asyncio.create_task(self._sweep(), name="forget users")

    async def stop(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for visitor in list(self._by_key.values()):
            await visitor.close()
        self._by_key.clear()
        await self.shared.close()

    def bearer(self, token: str) -> Visitor:
        """Return the user of a bearer token."""
        return self._of(hashlib.sha256(token.encode()).hexdigest(), StaticCredentials({"token": token}))

    def local(self) -> Visitor:
        """Return the user of the endpoint's own credentials."""
        return self._of("", self._endpoint.credentials)

    def _of(self, key: str, credentials: Credentials) -> Visitor:
        visitor = self._by_key.get(key)
        if visitor is None:
            headers = self._endpoint.headers if not key else ()
            endpoint = replace(self._endpoint, credentials=credentials, headers=headers)
            visitor = Visitor(key, endpoint, self.shared, self.everybody, monotonic=self._monotonic)
            self._by_key[key] = visitor
        visitor.last_seen = self._monotonic()
        return visitor

    async def forget(self, visitor: Visitor) -> None:
        """Use the credentials of this user no more."""
        if self._by_key.get(visitor.key) is visitor:
            del self._by_key[visitor.key]
        await visitor.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            now = self._monotonic()
            for visitor in list(self._by_key.values()):
                if visitor.is_rejected or now - visitor.last_seen >= _IDLE:
                    await self.forget(visitor)
