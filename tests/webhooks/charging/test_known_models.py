"""Which models of a write are unknown, and how often a cluster is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.kube.client import Resource, Unreachable
from bizrq.settings import settings
from webhooks.charging.known_models import KnownModels

CONFIG = settings({"gpuModels": {"A100": {"aliases": ["NVIDIA-A100-SXM4-80GB"]}}}).counting
CEILINGS = ["limits.cpu", "limits.cpu.A4", "cash/requests.nvidia.com/gpu.H100"]
NODE = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "Tesla-T4", "cpu-family": "EPYC"}}}


class Nodes:
    """A cluster with these nodes, or one that does not answer; counts its lists."""

    def __init__(self, nodes: list[dict[str, Any]] | None) -> None:
        self.nodes = nodes
        self.lists = 0

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def list(
        self, _: Resource, *, transform: Callable[[dict[str, Any]], Any], **__: Any
    ) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        if self.nodes is None:
            raise Unreachable("nobody is there", sent=False)
        return [transform(node) for node in self.nodes], "1"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("limits.cpu.A4", None),
        ("requests.cpu.A4", None),
        ("limits.cpu.EPYC", None),
        ("requests.nvidia.com/gpu.A100", None),
        ("requests.nvidia.com/gpu.H100", None),
        ("requests.nvidia.com/gpu.Tesla-T4", None),
        ("limits.cpu", None),
        ("limits.cpu.A4x", "biz.group.resource.quota/cpu-type: 'A4x' is no model of any ceiling, node or gpuModels, "
         "did you mean A4?; no ceiling limits it"),
        ("limits.memory.A4", "biz.group.resource.quota/memory-type: 'A4' is no model of any ceiling, node or "
         "gpuModels; no ceiling limits it"),
        ("requests.nvidia.com/gpu.A10O", "biz.group.resource.quota/gpu-type: 'A10O' is no model of any ceiling, node "
         "or gpuModels, did you mean A100?; no ceiling limits it"),
    ],
)  # fmt: skip
async def test_a_model_is_known_by_a_ceiling_a_node_or_the_configuration(resource: str, said: str | None) -> None:
    found = await KnownModels(Nodes([NODE]), CONFIG, lambda: CEILINGS).unknown([resource], (), 10)
    assert (found and (list(found.sentences), found.is_sure)) == (said and ([said], True))


@pytest.mark.asyncio
async def test_nodes_are_listed_for_what_nothing_else_knows_and_once_in_five_minutes() -> None:
    now = [0.0]
    nodes = Nodes([NODE])
    models = KnownModels(nodes, CONFIG, lambda: CEILINGS, lambda: now[0])
    await models.unknown(["limits.cpu.A4"], (), 10)
    await models.unknown(["limits.cpu.own"], ["limits.cpu.own"], 10)
    assert nodes.lists == 0
    for at in (0.0, 100.0, 299.0):
        now[0] = at
        assert await models.unknown(["limits.cpu.A5"], (), 10) is not None
    assert nodes.lists == 1
    now[0] = 300.0
    await models.unknown(["limits.cpu.A5"], (), 10)
    assert nodes.lists == 2


@pytest.mark.asyncio
async def test_unread_nodes_make_the_answer_unsure() -> None:
    found = await KnownModels(Nodes(None), CONFIG, lambda: CEILINGS).unknown(["limits.cpu.A4x"], (), 10)
    assert found is not None
    assert not found.is_sure
    assert "(nodes not read)" in next(iter(found.sentences))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ("limits.cpu.A4", None),
        ("limits.cpu.EPYC", None),
        ("limits.cpu.A4x", "biz.group.resource.quota/cpu-type: whether a ceiling limits 'A4x' is unknown: not all "
         "groups are read"),
    ],
)  # fmt: skip
async def test_nothing_is_denied_of_ceilings_that_may_not_be_read(resource: str, said: str | None) -> None:
    models = KnownModels(Nodes([NODE]), CONFIG, lambda: CEILINGS, is_complete=False)
    found = await models.unknown([resource], (), 10)
    assert (found and (list(found.sentences), found.is_sure)) == (said and ([said], False))
