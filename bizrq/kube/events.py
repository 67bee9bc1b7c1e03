"""Kubernetes Events: written once, counted when repeated, dropped rather than late.

This file alone decides which occurrences become Events. It knows no reasons and no kinds. Events are for people:
nothing here blocks, raises or waits for the API server, and no code may rely on a written event. The budget per object
and the merging of similar messages are those of client-go (tools/record/events_cache.go).
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
# The namespace of events about cluster-wide objects, as in client-go.
CLUSTER_NAMESPACE = "default"

BURST = 25  # events about one object in a burst
REFILL_SECONDS = 300.0  # the time after which an object may have one more event
SIMILAR = 10  # messages of one reason about one object, from which on they share one event
SIMILAR_SECONDS = 600.0  # the rest after which a reason has events of its own again
REMEMBERED = 4096
QUEUED = 1000
ATTEMPTS = 5
MESSAGE_BYTES = 1024  # the limit of the API server

Key = tuple[str, ...]
V = TypeVar("V")

log = structlog.get_logger(__name__)


@dataclass
class _WrittenEvent:
    """A stored event: its name and its counts, observed and written."""

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
    """Record events in the background of the running event loop. Use `async with`, or call `close()` at the end."""

    def __init__(
        self,
        client: KubeClient,
        component: str,
        *,
        instance: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_pause: float = 1.0,
    ) -> None:
        """`component` is the reportingComponent of the events, `instance` their reportingInstance."""
        self.dropped = 0  # events over the budget, beyond the queue's length, or refused by the API server
        self._client = client
        self._component = component
        self._instance = instance or component
        self._clock = clock
        self._first_pause = first_pause
        self._written: OrderedDict[Key, _WrittenEvent] = OrderedDict()
        self._budgets: OrderedDict[Key, _Budget] = OrderedDict()
        self._similar: OrderedDict[Key, _Similar] = OrderedDict()
        # The queue holds keys: an event is written as it is when its turn comes, with all repeats.
        self._queue: OrderedDict[Key, dict[str, Any]] = OrderedDict()
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def event(self, obj_ref: Mapping[str, Any], type: str, reason: str, message: str) -> None:  # noqa: A002
        """Queue an event about an object. Return at once and never raise.

        `obj_ref` is an object, or a reference with apiVersion, kind, name, namespace and uid. `type` is "Normal" or
        "Warning", `reason` a CamelCase word, `message` one line.
        """
        try:
            self._observe(reference(obj_ref), type, reason, message)
        except Exception:
            self.dropped += 1
            log.exception("event not recorded", reason=reason)

    async def close(self, timeout: float = 2.0) -> None:
        """Write the queued events for at most `timeout` seconds, and stop."""
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
        event = _recall(self._written, key, lambda: _WrittenEvent(_event_name(involved["name"]), stamp))
        event.count += 1
        if key not in self._queue and len(self._queue) >= QUEUED:
            self.dropped += 1
            return
        self._queue[key] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": involved.get("namespace") or CLUSTER_NAMESPACE},
            "involvedObject": involved,
            "type": type_,
            "reason": reason,
            "message": message,
            "firstTimestamp": event.first,
            "lastTimestamp": stamp,
            "count": event.count,
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
        """Return the message to write, and True if the messages of this reason share one event."""
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
                # The namespace ends, a right is missing, or the event is invalid: another attempt fails too.
                log.info("event not written", reason=document["reason"], error=str(error))
                return False
            if self._closing:
                return False
            await asyncio.sleep(pause)
            pause *= 2
        return False

    async def _write(self, key: Key, document: dict[str, Any]) -> None:
        event = self._written.get(key)
        if event is not None and event.written:
            patch = {name: document[name] for name in ("count", "lastTimestamp", "message")}
            metadata = document["metadata"]
            try:
                await self._client.patch(EVENTS, metadata["name"], patch, namespace=metadata["namespace"])
                event.written = document["count"]
                return
            except NotFound:
                # Events expire after an hour. A later repeat is a new event under a new name.
                event.name, event.first, event.count, event.written = (
                    _event_name(document["involvedObject"]["name"]),
                    document["lastTimestamp"],
                    1,
                    0,
                )
                metadata["name"], document["firstTimestamp"], document["count"] = event.name, event.first, 1
        await self._client.create(EVENTS, document)
        if event is not None:
            event.written = document["count"]


def reference(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return an ObjectReference without a version: two states of one object are one subject.

    Raise KeyError if the kind or the name is missing.
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
    """Return the value for `key`, made if it is missing. Drop the least recently used beyond REMEMBERED."""
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
