"""Find models that a write names and that nothing in the cluster has: no ceiling, no node and no configured model.

This file alone decides where a model is looked for. What is found is remembered for a while, so that a stream of
mistyped labels lists the nodes once in five minutes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from bizrq.kube.client import ApiError, Unreachable
from bizrq.store.ports import ObjectReader
from bizrq.store.reference_resolver import NODES
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices.models import known_model, models_named, unknown_model, unread_model

#: Seconds for which the models of all ceilings, and of all nodes, are remembered.
_CEILINGS, _NODES = 10.0, 300.0
#: The most seconds to list the nodes in; the write is not held up for longer.
_PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class UnknownModels:
    """Sentences about unknown models; `is_sure` is False where nodes or groups could not be read."""

    sentences: Collection[str]
    is_sure: bool


class KnownModels:
    """The models that ceilings, nodes and the configuration name."""

    def __init__(
        self,
        client: ObjectReader,
        config: CountingConfig,
        ceilings: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        *,
        is_complete: bool = True,
    ) -> None:
        """`ceilings` returns the names in `hard` of all groups, or unless `is_complete` of those that may be read."""
        self._client = client
        self._config = config
        self._all_ceilings = ceilings
        self._clock = clock
        self._is_complete = is_complete
        self._ceilings: frozenset[tuple[str, str]] = frozenset()
        self._ceilings_until = -math.inf
        self._labels: frozenset[str] | None = None
        self._labels_until = -math.inf

    async def unknown(self, resources: Iterable[str], own: Iterable[str], seconds: float) -> UnknownModels | None:
        """Return what is unknown among the models of these resources; None for nothing.

        `own` are the names in `hard` of the charged group. Raise nothing: nodes that cannot be read within `seconds`
        are left out.
        """
        config = self._config
        named = models_named(resources, config.catalog)
        if not named:
            return None
        named -= models_named(own, config.catalog)
        named = {(sort, model) for sort, model in named if sort != "gpu" or known_model(model, config) is None}
        named -= self._of_ceilings() if named else frozenset()
        if not named:
            return None
        labels = await self._of_nodes(seconds)
        if labels is not None:
            named = {(sort, model) for sort, model in named if model not in labels}
        if not self._is_complete:
            return UnknownModels([unread_model(*each) for each in sorted(named)], is_sure=False) if named else None
        known = self._ceilings | {("gpu", model) for model in config.gpu_models}
        where = "any ceiling, node or gpuModels" if labels is not None else "any ceiling or gpuModels (nodes not read)"
        sentences = [unknown_model(sort, model, known, where) for sort, model in sorted(named)]
        return UnknownModels(sentences, labels is not None) if sentences else None

    def _of_ceilings(self) -> frozenset[tuple[str, str]]:
        now = self._clock()
        if now >= self._ceilings_until:
            self._ceilings = frozenset(models_named(self._all_ceilings(), self._config.catalog))
            self._ceilings_until = now + _CEILINGS
        return self._ceilings

    async def _of_nodes(self, seconds: float) -> frozenset[str] | None:
        """Return the values of the labels of all nodes; None where they cannot be read."""
        now = self._clock()
        if now >= self._labels_until:
            # Until it has answered, others go on with what was known before.
            self._labels_until = now + _NODES
            self._labels = await self._list_nodes(seconds)
        return self._labels

    async def _list_nodes(self, seconds: float) -> frozenset[str] | None:
        try:
            async with asyncio.timeout(min(_PATIENCE, seconds / 2)):
                nodes, _ = await self._client.list(NODES, transform=_label_values)
        except (ApiError, Unreachable, TimeoutError):
            return None
        values = {value for node in nodes for value in node["values"]}
        return frozenset(values | {model for value in values if (model := known_model(value, self._config))})


def _label_values(node: dict[str, object]) -> dict[str, object]:
    metadata = node["metadata"]
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return {"values": list((labels or {}).values())}
