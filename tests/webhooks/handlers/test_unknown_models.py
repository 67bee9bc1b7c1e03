"""A model that nothing has, where the configuration refuses it: only what could be read is a reason to refuse."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.kube.client import Forbidden, Resource
from bizrq.store.reference_resolver import NODES
from tests.support.objects import Object, deployment
from tests.webhooks.conftest import Api, message, serving

SAID = "biz.group.resource.quota/cpu-type: 'A4x' is no model of any ceiling"


def of_typo() -> Object:
    made = deployment("web", "nlp", 1)
    made["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": "A4x"}
    return made


async def test_a_model_that_nothing_has_is_refused(api: Api) -> None:
    await api.group("nlp", cpu=10, **{"limits.cpu.A4": "4"})
    async with serving(api.client, unknownModels="deny") as hooks:
        refused = await hooks.create(of_typo())
    assert message(refused).startswith(f"Deployment default/web: {SAID}, node or gpuModels, did you mean A4?")


async def test_nothing_is_refused_for_nodes_that_cannot_be_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning says so."""
    await api.group("nlp", cpu=10, **{"limits.cpu.A4": "4"})
    listed = api.client.list

    async def without_nodes(resource: Resource, *arguments: Any, **more: Any) -> Any:
        if resource == NODES:
            raise Forbidden(403, "Forbidden", "nodes is forbidden")
        return await listed(resource, *arguments, **more)

    async with serving(api.client, unknownModels="deny") as hooks:
        monkeypatch.setattr(api.client, "list", without_nodes)
        answer = await hooks.create(of_typo())
    assert answer["allowed"]
    [warning] = answer["warnings"]
    assert warning.startswith(f"{SAID} or gpuModels (nodes not read), did you mean A4?")
    assert warning.endswith("; unknownModels: deny refuses it only where all nodes and groups can be read")
