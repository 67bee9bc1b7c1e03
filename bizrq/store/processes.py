"""The Lease of each process of bizrq: what runs, as which version and with which configuration.

This file alone knows these Leases. A Lease says what its process is for as long as it is renewed; it elects nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from bizrq.kube.client import AlreadyExists, ApiError, ConfigError, KubeClient, NotFound, Unreachable
from bizrq.kube.lease import LEASES

#: The names of the processes, which their Deployments have too.
WEBHOOKS, CONTROLLER, CERTS, WEB = "bizrq-webhooks", "bizrq-controller", "bizrq-certs", "bizrq-web"
#: The one process of `bizrq up`, which is webhooks and controller.
UP = "bizrq-up"
#: The ConfigMap with the configuration of the processes.
CONFIG = "bizrq-config"
#: Seconds for which a Lease counts after it was renewed, and between two renewals.
DURATION, RENEWAL = 40, 10.0
#: Seconds in which a process that ends deletes its Lease.
_ENDING = 2.0
#: The environment variable with the uid of the pod; the Lease goes with the pod.
POD_UID: Final = "POD_UID"
#: The label with the name of the process.
PROCESS: Final = "app.kubernetes.io/component"
_PREFIX: Final = "bizrq.quota.biz.group/"
#: The annotation with the kind and the age of the oldest watch.
_WATCH: Final = f"{_PREFIX}watch"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What a process says of itself. `process` is its name, such as bizrq-webhooks, `identity` one of a kind.

    `formats` are those of reservations that it reads. `config` is the digest of its configuration, "" for none, and
    `rules` that of the registration that it serves or renders, "" for neither.
    """

    process: str
    identity: str
    version: str
    formats: tuple[str, ...]
    config: str = ""
    rules: str = ""


@dataclass(frozen=True, slots=True)
class OldestWatch:
    """The kind of a process of which the API server sent something longest ago, and how many seconds ago."""

    resource: str
    age: float


@dataclass(frozen=True, slots=True)
class StoredProcess:
    """A process as its Lease has it. `renewed` is the text of the time, by the clock of that process.

    The age of `watch` is that at the renewal; None where the process watches nothing, or is older than this field.
    """

    name: str
    info: ProcessInfo
    renewed: str
    watch: OldestWatch | None = None


def digest(text: str) -> str:
    """Return the digest of a configuration's text, "" for an empty one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


async def read(client: KubeClient, namespace: str) -> list[StoredProcess]:
    """Return the processes of this namespace, by name, also those that are not renewed. Raise ApiError, Unreachable."""
    items, _ = await client.list(LEASES, namespace, label_selector=f"app.kubernetes.io/name=bizrq,{PROCESS}")
    return sorted((_stored(item) for item in items), key=lambda each: each.name)


class ProcessLease:
    """Keeps the Lease of this process."""

    def __init__(
        self,
        client: KubeClient,
        info: ProcessInfo,
        *,
        namespace: str,
        unready: Callable[[], str],
        oldest_watch: Callable[[], OldestWatch | None] = lambda: None,
    ) -> None:
        """`unready` returns why the process is not ready, "" once it is: the Lease begins then."""
        self._client = client
        self._oldest_watch = oldest_watch
        self._namespace = namespace
        self._unready = unready
        self._lease = lease_of(info, namespace, os.environ.get(POD_UID, ""))

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Renew the Lease within the block, from the moment that the process is ready, and delete it at the end."""
        task = asyncio.create_task(self._run(), name="lease of the process")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _run(self) -> None:
        is_begun = False
        try:
            while True:
                is_begun = is_begun or not self._unready()
                try:
                    if is_begun:
                        await self._renew()
                except (ApiError, Unreachable, ConfigError) as error:
                    log.warning("lease of the process not renewed", error=str(error))
                await asyncio.sleep(RENEWAL if is_begun else 1.0)
        finally:
            if is_begun:
                await self._delete()

    async def _delete(self) -> None:
        try:
            async with asyncio.timeout(_ENDING):
                await self._client.delete(LEASES, self._lease["metadata"]["name"], self._namespace)
        except (ApiError, Unreachable, ConfigError, TimeoutError) as error:
            log.info("lease of the process not deleted; it ends", error=str(error) or "timeout")

    async def _renew(self) -> None:
        name, spec = self._lease["metadata"]["name"], {**self._lease["spec"], "renewTime": _micro_time()}
        own, watch = self._lease["metadata"], self._oldest_watch()
        if watch is not None:
            own["annotations"][_WATCH] = f"{watch.resource} {watch.age:.1f}"
        metadata = {"labels": own["labels"], "annotations": own["annotations"]}
        try:
            await self._client.patch(LEASES, name, {"metadata": metadata, "spec": spec}, namespace=self._namespace)
        except NotFound:
            # Another process of this pod creates it in the same moment at worst, and is renewed next time.
            with contextlib.suppress(AlreadyExists):
                await self._client.create(LEASES, {**self._lease, "spec": spec})


class Watched:
    """Which processes run, by when their Leases were seen to change: no clock of another machine is trusted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}

    def running(self, stored: list[StoredProcess]) -> list[ProcessInfo]:
        """Return those that were renewed, or seen for the first time, within DURATION."""
        now = self._clock()
        for each in stored:
            if self._seen.get(each.name, ("", 0.0))[0] != each.renewed:
                self._seen[each.name] = each.renewed, now
        names = {each.name for each in stored}
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
        return [each.info for each in stored if now - self._seen[each.name][1] < DURATION]


def lease_of(info: ProcessInfo, namespace: str, pod_uid: str = "") -> dict[str, Any]:
    """Return the Lease to store. That of a pod has the pod's name, and goes with it."""
    host = info.identity.partition("_")[0]
    own = f"{info.process}-{hashlib.sha256(info.identity.encode()).hexdigest()[:10]}"
    metadata: dict[str, Any] = {
        "name": host if pod_uid and host.startswith(f"{info.process}-") else own,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "bizrq", PROCESS: info.process.removeprefix("bizrq-")},
        "annotations": {
            f"{_PREFIX}version": info.version,
            f"{_PREFIX}formats": ",".join(info.formats),
            f"{_PREFIX}config": info.config,
            f"{_PREFIX}rules": info.rules,
        },
    }
    if pod_uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": host, "uid": pod_uid}]
    spec = {"holderIdentity": info.identity, "leaseDurationSeconds": DURATION}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _stored(lease: dict[str, Any]) -> StoredProcess:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    told = {key.removeprefix(_PREFIX): value for key, value in (metadata.get("annotations") or {}).items()}
    info = ProcessInfo(
        process=f"bizrq-{metadata['labels'][PROCESS]}",
        identity=str(spec.get("holderIdentity") or ""),
        version=told.get("version", ""),
        formats=tuple(filter(None, told.get("formats", "").split(","))),
        config=told.get("config", ""),
        rules=told.get("rules", ""),
    )
    return StoredProcess(metadata["name"], info, str(spec.get("renewTime") or ""), _watch(told.get("watch", "")))


def _watch(text: str) -> OldestWatch | None:
    resource, _, age = text.partition(" ")
    try:
        return OldestWatch(resource, float(age))
    except ValueError:
        return None


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
