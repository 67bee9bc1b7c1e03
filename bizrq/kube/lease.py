"""Leader election by a coordination.k8s.io/v1 Lease.

This file alone decides which process leads. It does not know the work of a leader. As in client-go's leaderelection, it
trusts no clock of another machine: a lease expires when this process has seen the same record for its whole duration.
A leader stops by its own clock, even if the API server does not answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from bizrq.kube.client import (
    AlreadyExists,
    ApiError,
    ConfigError,
    Conflict,
    KubeClient,
    NotFound,
    Resource,
    Unreachable,
)

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JITTER = 0.2

log = structlog.get_logger(__name__)


async def run_as_leader(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    identity: str,
    on_lead: Callable[[], Awaitable[None]],
    lease_duration: int = 15,
    renew_deadline: float = 10,
    retry_period: float = 2,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run `on_lead` while this process leads. Times are in seconds; the namespace must exist.

    When the lease is lost, `on_lead` is cancelled, and the lease is sought again after its end. When `on_lead` returns
    or raises, the lease is released and this returns or raises the same. When this is cancelled, `on_lead` is
    cancelled, its end awaited and the lease released.

    `on_lead` has lease_duration - renew_deadline to end after its cancellation, before another leader can start. A
    longer end is logged as an error: then only guarded writes keep two leaders apart. Raise ValueError for times that
    do not fit each other and for an empty identity.
    """
    if not 0 < retry_period * (1 + JITTER) < renew_deadline < lease_duration:
        raise ValueError("a lease needs retry_period * 1.2 < renew_deadline < lease_duration")
    if not identity:
        raise ValueError("identity must not be empty: an empty holder means that no process leads")
    candidate = Candidate(client, namespace, name, identity, lease_duration, clock)
    while True:
        if not await candidate.attempt(renew_deadline):
            await asyncio.sleep(retry_period * random.uniform(1, 1 + JITTER))  # noqa: S311 (jitter)
            continue
        log.info("leading", lease=name, identity=identity)
        work = asyncio.ensure_future(on_lead())
        try:
            await _hold(candidate, work, renew_deadline, retry_period)
        finally:
            ended_by_itself = work.done()
            await _stop(work, lease_duration - renew_deadline)
            # Release last: a candidate that sees an empty holder starts at once.
            await candidate.release(retry_period)
        if ended_by_itself:
            return work.result()
        log.error("no longer leading", lease=name, identity=identity)


async def _hold(candidate: Candidate, work: asyncio.Future[None], renew_deadline: float, retry_period: float) -> None:
    """Renew until the work ends, another holds the lease, or the last renewal is `renew_deadline` old."""
    while not work.done():
        await asyncio.wait([work], timeout=max(0.0, min(retry_period, candidate.remaining(renew_deadline))))
        left = candidate.remaining(renew_deadline)
        if left <= 0 or work.done():
            return
        if not await candidate.attempt(left) and candidate.lost:
            return


async def _stop(work: asyncio.Future[None], grace: float) -> None:
    """Cancel the work and wait for its end without a bound, even if this is cancelled too."""
    cancelled = False
    work.cancel()
    began, reported = time.monotonic(), False
    while not work.done():
        try:
            await asyncio.wait([work], timeout=grace)
        except asyncio.CancelledError:
            cancelled = True
        if not work.done() and not reported and time.monotonic() - began >= grace:
            reported = True
            log.error("the work of a former leader does not end; another leader may be at work already")
    if cancelled:
        raise asyncio.CancelledError


class Candidate:
    """The view that one process has of one lease."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost = False  # the last answer said that another holds the lease
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = lease_duration
        self._clock = clock
        self._held: dict[str, Any] | None = None  # the lease as we last wrote it
        self._renewed_at = float("-inf")  # by our clock, before that write was sent
        self._tried: dict[str, Any] | None = None  # a spec whose write was not answered
        self._tried_at = 0.0
        self._seen: dict[str, Any] | None = None
        self._seen_at = 0.0

    def remaining(self, renew_deadline: float) -> float:
        """Return the seconds for which this process may still lead without another renewal."""
        return self._renewed_at + renew_deadline - self._clock()

    async def attempt(self, timeout: float) -> bool:
        """Take or renew the lease. Return False if another holds it, or if that is unknown after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._attempt()
        except (ApiError, Unreachable, ConfigError, TimeoutError) as error:
            log.warning("lease not renewed", lease=self._name, error=str(error) or "timeout")
            return False

    async def release(self, timeout: float) -> None:
        """Clear the holder of the lease if it is ours, so that the next leader need not wait for its expiry."""
        try:
            async with asyncio.timeout(timeout):
                await self._release()
        except (ApiError, Unreachable, ConfigError, TimeoutError) as error:
            log.info("lease not released; it expires", lease=self._name, error=str(error) or "timeout")

    async def _release(self) -> None:
        held, self._held = self._held, None
        while held is not None:
            spec = {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time()}
            try:
                await self._client.replace(LEASES, {**held, "spec": spec})
                return
            except Conflict:
                # Another process took it, or a renewal of ours was stored without an answer.
                found = await self._client.get(LEASES, self._name, self._namespace)
                held = found if found.get("spec") == self._tried else None

    async def _attempt(self) -> bool:
        self.lost = False
        if self._held is not None:
            try:
                return await self._write(self._held)
            except (Conflict, NotFound):
                pass  # Another process wrote, or our last write had no answer: read the lease.
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            blank = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": {}}
            try:
                return await self._write(blank)
            except AlreadyExists:
                return False
        spec = lease.get("spec") or {}
        if spec == self._tried:
            # A write of ours without an answer was stored.
            self._held, self._renewed_at = lease, self._tried_at
        ours = self._held is not None and self._held.get("spec") == spec
        if not ours:
            self._held = None
            if spec != self._seen:
                self._seen, self._seen_at = spec, self._clock()
            # A record with our name that we did not write is of another process, or of this one before a restart.
            duration = float(spec.get("leaseDurationSeconds") or self._duration)
            if spec.get("holderIdentity") and self._clock() < self._seen_at + duration:
                self.lost = True
                return False
        try:
            return await self._write(lease)
        except Conflict:
            return False

    async def _write(self, lease: dict[str, Any]) -> bool:
        before = lease.get("spec") or {}
        now = _micro_time()
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration,
            "renewTime": now,
        }
        if self._held is None:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1 if before else 0
        wanted = {**lease, "spec": spec}
        at = self._clock()
        self._tried, self._tried_at = spec, at
        if "resourceVersion" in lease["metadata"]:
            written = await self._client.replace(LEASES, wanted)
        else:
            written = await self._client.create(LEASES, wanted)
        self._held, self._renewed_at = written, at
        return True


def _micro_time() -> str:
    """Return the time as metav1.MicroTime: UTC, six digits. It distinguishes records and is never compared by order."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
