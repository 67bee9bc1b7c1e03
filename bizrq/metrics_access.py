"""Who may read /metrics: who has a token with which the cluster's authorizers let them `get` that path.

This file alone decides that, for how long an answer holds, and how often the API server is asked. It serves nothing.

The figures of all groups are there. Strangers must not learn them, nor make us ask the API server without end.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import structlog

from bizrq.kube.client import ApiError, ConfigError, KubeClient, Resource, Unreachable
from bizrq.store.access import ACCESS_REVIEWS

log = structlog.get_logger(__name__)

TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
PATH, VERB = "/metrics", "get"
#: Seconds for which a yes and a no hold.
YES_SECONDS, NO_SECONDS = 30.0, 10.0
#: Seconds in which the API server has to answer.
PATIENCE = 5.0
#: Seconds between two questions about unknown tokens from one address, and how many addresses may ask in that time.
PACE, _PEERS = 1.0, 20
#: Answers that are kept, of each kind.
_KEPT = 50
#: Seconds between two log lines about an API server that does not answer.
_QUIET = 60.0
_BEARER = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE | re.ASCII)


class MetricsAccess:
    """Asks the API server about tokens, and remembers its answers for a moment."""

    def __init__(self, client: KubeClient | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a client no token can be checked, so nobody may read."""
        self._client = client
        self._clock = clock
        #: By a hash of the token: until when the answer holds. A token that had a yes may be asked about at any time.
        self._yes: OrderedDict[bytes, float] = OrderedDict()
        self._no: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        #: By address: when it last made us ask about an unknown token.
        self._guesses: OrderedDict[str, float] = OrderedDict()
        self._logged = -math.inf

    async def status(self, authorization: str, peer: str) -> int:
        """Return 200 for a request that may read, else the status of its refusal: 401, 403 or 503.

        `authorization` is the header of that name, "" for none, and `peer` the address of the sender.
        """
        match = _BEARER.fullmatch(authorization)
        if match is None:
            return 401
        token, now = match[1], self._clock()
        key = hashlib.sha256(token.encode()).digest()
        if self._yes.get(key, -math.inf) > now:
            return 200
        until, status = self._no.get(key, (-math.inf, 0))
        if until > now:
            return status
        if self._client is None or (key not in self._yes and not self._may_guess(peer, now)):
            return 503
        try:
            async with asyncio.timeout(PATIENCE):
                status = await _asked(self._client, token)
        except (ApiError, ConfigError, Unreachable, TimeoutError) as error:
            if now >= self._logged + _QUIET:
                self._logged = now
                log.warning("the token of a scrape could not be checked", error=str(error) or "no answer in time")
            return 503
        self._keep(key, status)
        return status

    def _may_guess(self, peer: str, now: float) -> bool:
        """Return whether an address may make us ask about an unknown token now, and note that it did."""
        while self._guesses and next(iter(self._guesses.values())) + PACE <= now:
            self._guesses.popitem(last=False)
        if peer in self._guesses or len(self._guesses) >= _PEERS:
            return False
        self._guesses[peer] = now
        return True

    def _keep(self, key: bytes, status: int) -> None:
        now = self._clock()
        self._yes.pop(key, None)
        self._no.pop(key, None)
        if status == 200:
            self._yes[key] = now + YES_SECONDS
        else:
            self._no[key] = now + NO_SECONDS, status
        for kept in (self._yes, self._no):
            while len(kept) > _KEPT:
                kept.popitem(last=False)


async def _asked(client: KubeClient, token: str) -> int:
    """Return what the API server says of a token. Raises ApiError, Unreachable, ConfigError."""
    review = await _created(client, TOKEN_REVIEWS, {"token": token})
    user = review.get("user") or {}
    if review.get("authenticated") is not True or not user.get("username"):
        return 401
    about = {
        "user": user["username"],
        "groups": user.get("groups") or [],
        "uid": user.get("uid") or "",
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": PATH, "verb": VERB},
    }
    access = await _created(client, ACCESS_REVIEWS, about)
    return 200 if access.get("allowed") is True and access.get("denied") is not True else 403


async def _created(client: KubeClient, resource: Resource, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a review."""
    review = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
    return (await client.create(resource, review, timeout=PATIENCE)).get("status") or {}
