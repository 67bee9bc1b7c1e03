"""Stores which makers of pods are over their group's quota through overlap, for the API server to reject their pods.

This file alone writes that ConfigMap (`bizrq.api.overlap`). The reconciler says which makers are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import zip_longest

import structlog

from bizrq.api import overlap
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource, Unreachable

log = structlog.get_logger(__name__)

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
#: Seconds between two writes at least, and until a write that failed is tried again.
PACE = 1.0


class OverlapList:
    """The listed makers of all groups; `run` keeps the stored list equal to it."""

    def __init__(self, client: KubeClient, namespace: str, *, pace: float = PACE) -> None:
        self._client = client
        self._namespace = namespace
        self._pace = pace
        #: Texts by key, by group; no group without any.
        self._listed: dict[str, Mapping[str, str]] = {}
        self._changed = asyncio.Event()

    def set(self, group: str, listed: Mapping[str, str]) -> None:
        """Replace the makers of a group: the text of the rejection by key."""
        before = self._listed.pop(group, {})
        if listed:
            self._listed[group] = dict(listed)
        if dict(before) != dict(listed):
            self._changed.set()

    def forget(self, group: str) -> None:
        """Forget a group that is gone."""
        self.set(group, {})

    async def run(self) -> None:
        """Write the list whenever it changes, until cancelled. The first write replaces what an earlier leader left."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except (ApiError, Unreachable) as error:
                # New pods pass meanwhile, and are counted.
                log.warning("overlap not stored, retrying", error=str(error))
                self._changed.set()
            await asyncio.sleep(self._pace)

    async def _write(self) -> None:
        # One of each group in turn: no group takes the place of others.
        turns = zip_longest(*(sorted(texts.items()) for _, texts in sorted(self._listed.items())))
        listed = dict(each for turn in turns for each in turn if each is not None)
        body = overlap.config_map(self._namespace, listed)
        if len(listed) > len(body["data"]):
            log.warning("too many workloads overlap: pods of some are not rejected", listed=len(listed))
        try:
            stored = await self._client.get(CONFIG_MAPS, overlap.NAME, self._namespace)
        except NotFound:
            try:
                await self._client.create(CONFIG_MAPS, body)
            except AlreadyExists:
                self._changed.set()
            return
        before = stored.get("data") or {}
        if before == body["data"]:
            return
        changes = {**dict.fromkeys(before), **body["data"]}
        await self._client.patch(CONFIG_MAPS, overlap.NAME, {"data": changes}, namespace=self._namespace)
