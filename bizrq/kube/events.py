"""Kubernetes Events about what happened to an object: told once, counted when repeated, dropped rather than
late.

This file alone decides which occurrences become Events. It knows no reasons and no kinds. Events are for
people: nothing here blocks, raises or waits for the API server, and nobody may rely on an event having been
written. The budget per object and the merging of similar messages are client-go's
(tools/record/events_cache.go).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import structlog

from bizrq.kube.client import (
    ApiError,
    ConfigError,
    Conflict,
    KubeClient,
    NotFound,
    Resource,
    ServerError,
    TooManyRequests,
    Unreachable,
)

EVENTS = Resource("", "v1", "events", "Event")
# The namespace for events about objects that have none, as client-go's recorder chooses it.
CLUSTER_NAMESPACE = "default"

BURST = 25  # events about one object at once,
REFILL_SECONDS = 300.0  # and one more each five minutes
SIMILAR = 10  # messages of one reason about one object after which they are one event,
SIMILAR_SECONDS = 600.0  # until the reason rests for so long
REMEMBERED = 4096
QUEUED = 1000
ATTEMPTS = 5
MESSAGE_BYTES = 1024  # the API server's bound

Key = tuple[str, ...]
V = TypeVar("V")

log = structlog.get_logger(__name__)


@dataclass
class _WrittenEvent:
    """An event that stands in the cluster: its name there and how often it has happened."""

    name: str
    first: str
    count: int = 0
    written: int = 0


@dataclass
class _Budget:
    left: float
    at: float


@dataclass
class _Similar:
    at: float
    messages: set[str] = field(default_factory=set)


class EventRecorder:
    """Records events in the background of the running event loop. Use `async with`, or call `close()` at
    the end.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        *,
        instance: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_pause: float = 1.0,
    ) -> None:
        """`component` is who tells (reportingComponent), `instance` which process of it."""
        self.dropped = 0  # over budget, or the queue was full, or the API server would not take it
        self._client = client
        self._component = component
        self._instance = instance or component
        self._clock = clock
        self._first_pause = first_pause
        self._written: OrderedDict[Key, _WrittenEvent] = OrderedDict()
        self._budgets: OrderedDict[Key, _Budget] = OrderedDict()
        self._similar: OrderedDict[Key, _Similar] = OrderedDict()
        # Keys, not events: what is queued is written as it stands when its turn comes, repeats included.
        self._queue: OrderedDict[Key, dict[str, Any]] = OrderedDict()
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def event(self, obj_ref: Mapping[str, Any], type: str, reason: str, message: str) -> None:  # noqa: A002
        """Tells that something happened to an object; returns at once and never raises.

        `obj_ref` is an object, or a reference with apiVersion, kind, name, namespace and uid. `type` is
        "Normal" or "Warning", `reason` a CamelCase word, `message` one line.
        """
        try:
            self._observe(reference(obj_ref), type, reason, message)
        except Exception:
            self.dropped += 1
            log.exception("event not recorded", reason=reason)

    async def close(self, timeout: float = 2.0) -> None:
        """Writes what is queued, for at most `timeout` seconds, and stops."""
        task, self._task = self._task, None
        self._closing = True
        if task is None:
            return
        self._filled.set()
        await asyncio.wait([task], timeout=timeout)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.dropped += len(self._queue)
        self._queue.clear()

    def _observe(self, involved: dict[str, str], type_: str, reason: str, message: str) -> None:
        about = tuple(sorted(involved.items()))
        subject = tuple(f"{key}={value}" for key, value in about)
        now = self._clock()
        if self._closing or not self._affordable(subject, now):
            self.dropped += 1
            return
        message, grouped = self._grouped((*subject, type_, reason), message, now)
        key = (*subject, type_, reason, "" if grouped else message)
        stamp = _timestamp()
        told = _recall(self._written, key, lambda: _WrittenEvent(_event_name(involved["name"]), stamp))
        told.count += 1
        if key not in self._queue and len(self._queue) >= QUEUED:
            self.dropped += 1
            return
        self._queue[key] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": told.name, "namespace": involved.get("namespace") or CLUSTER_NAMESPACE},
            "involvedObject": involved,
            "type": type_,
            "reason": reason,
            "message": message,
            "firstTimestamp": told.first,
            "lastTimestamp": stamp,
            "count": told.count,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        self._filled.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._flush())

    def _affordable(self, subject: Key, now: float) -> bool:
        budget = _recall(self._budgets, subject, lambda: _Budget(BURST, now))
        budget.left = min(BURST, budget.left + (now - budget.at) / REFILL_SECONDS)
        budget.at = now
        if budget.left < 1:
            return False
        budget.left -= 1
        return True

    def _grouped(self, similar_key: Key, message: str, now: float) -> tuple[str, bool]:
        """The message to write, and whether many unlike messages of one reason have become one event."""
        text = " ".join(message.split())
        while len(text.encode()) > MESSAGE_BYTES - 40:
            text = text[: len(text) * 9 // 10] + "…"
        similar = _recall(self._similar, similar_key, lambda: _Similar(now))
        if now - similar.at > SIMILAR_SECONDS:
            similar.messages.clear()
        similar.at = now
        if text not in similar.messages and len(similar.messages) < SIMILAR:
            similar.messages.add(text)
        if len(similar.messages) < SIMILAR:
            return text, False
        return f"(combined from similar events): {text}", True

    async def _flush(self) -> None:
        while True:
            while self._queue:
                key, document = next(iter(self._queue.items()))
                if not await self._delivered(key, document):
                    self.dropped += 1
                if self._queue.get(key) is document:
                    del self._queue[key]
            if self._closing:
                return
            self._filled.clear()
            await self._filled.wait()

    async def _delivered(self, key: Key, document: dict[str, Any]) -> bool:
        pause = self._first_pause
        for _ in range(ATTEMPTS):
            try:
                await self._write(key, document)
                return True
            except (Unreachable, TooManyRequests, ServerError, Conflict) as error:
                log.debug("event not written yet", error=str(error))
            except (ApiError, ConfigError) as error:
                # A namespace that ends, missing rights, a refusal: trying again would not help.
                log.info("event not written", reason=document["reason"], error=str(error))
                return False
            if self._closing:
                return False
            await asyncio.sleep(pause)
            pause *= 2
        return False

    async def _write(self, key: Key, document: dict[str, Any]) -> None:
        told = self._written.get(key)
        if told is not None and told.written:
            patch = {name: document[name] for name in ("count", "lastTimestamp", "message")}
            metadata = document["metadata"]
            try:
                await self._client.patch(EVENTS, metadata["name"], patch, namespace=metadata["namespace"])
                told.written = document["count"]
                return
            except NotFound:
                # Events live an hour; a repeat after that starts anew, under a new name.
                told.name, told.first, told.count, told.written = (
                    _event_name(document["involvedObject"]["name"]),
                    document["lastTimestamp"],
                    1,
                    0,
                )
                metadata["name"], document["firstTimestamp"], document["count"] = told.name, told.first, 1
        await self._client.create(EVENTS, document)
        if told is not None:
            told.written = document["count"]


def reference(obj: Mapping[str, Any]) -> dict[str, str]:
    """An ObjectReference, without a version: two states of one object are one subject.

    KeyError without a kind or name.
    """
    metadata = obj.get("metadata") or obj
    fields = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj["kind"],
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata.get("uid"),
    }
    return {name: str(value) for name, value in fields.items() if value}


def _recall(memory: OrderedDict[Key, V], key: Key, make: Callable[[], V]) -> V:
    """The value for `key`, made if need be; the longest unused is forgotten beyond REMEMBERED."""
    if key not in memory:
        memory[key] = make()
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)
    memory.move_to_end(key)
    return memory[key]


def _event_name(about: str) -> str:
    return f"{about[:200].rstrip('.-')}.{secrets.token_hex(8)}"


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
