"""Lists of stored objects, which all who ask for the same at a moment share.

A namespace may have thousands of pods, and a tenant may ask for them to be listed with each of many requests. So one
list of a kind and namespace is under way at a time, and nobody waits for more than two. None of very large objects is
read to its end: it would take all memory.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from bizrq.kube.client import AnswerTooLarge, Resource, Unreachable
from bizrq.store.ports import ObjectReader
from bizrq.store.shared_reads import SharedReads
from bizrq.workloads.validation import Malformed
from webhooks.charging.deadline import Deadline

Object = dict[str, Any]
#: The kind, the namespace, None for all, the label selector, and whether the list has to be current.
_Key: TypeAlias = tuple[Resource, str | None, str | None, bool]

#: Seconds that a page of a list gets: other requests may wait for it than the one that asked first.
_TIMEOUT = 10.0
#: The bytes of an object on average in a large list. Whoever stores many that are larger takes all memory with them.
_MEAN = 32 * 1024


class SharedLists:
    """Lists objects for all handlers of one process. Nobody may change the objects that it returns."""

    def __init__(self, client: ObjectReader) -> None:
        self._client = client
        self._reads = SharedReads(self._read)

    async def of(
        self,
        resource: Resource,
        deadline: Deadline,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        current: bool = True,
    ) -> tuple[list[Object], str]:
        """Return all objects, and the revision of a read that begins after this call.

        Unless `current`, they are what the API server's cache has. Raises ApiError, Unreachable; Malformed where they
        are too large to be read.
        """
        try:
            async with asyncio.timeout(deadline.seconds_left()):
                found, revision = await self._reads.of((resource, namespace, label_selector, current))
        except TimeoutError:
            raise Unreachable(f"{resource.key} could not be listed in time", sent=True) from None
        return list(found), revision

    async def _read(self, key: _Key) -> tuple[list[Object], str]:
        resource, namespace, label_selector, current = key
        try:
            return await self._client.list(
                resource, namespace, label_selector=label_selector, timeout=_TIMEOUT, mean=_MEAN, current=current
            )
        except AnswerTooLarge:
            # Not only this write: none can be counted, and one that is let pass may cost anything.
            where = f"in namespace {namespace}" if namespace else "in the cluster"
            why = f"the {resource.plural} {where} have over {_MEAN // 1024} KiB on average, too many to be read"
            raise Malformed(f"{why}: delete large ones that nobody needs") from None
