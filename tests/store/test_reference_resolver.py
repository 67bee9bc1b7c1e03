"""References resolve to owners of every known kind; unreadable ones resolve to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from aiohttp import web

from bizrq.builtin import builtin_registry
from bizrq.kube.client import Forbidden, KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.settings import settings
from bizrq.store.reference_resolver import ReferenceResolver
from bizrq.workloads.demand import counting
from tests.support.objects import Object, deployment, rollout

TRAINER = {
    "match": {"group": "ml.example.com", "kind": "Trainer", "resource": "trainers", "versions": ["v1"]},
    "roles": [{"name": "w", "count": [{"path": "spec.replicas", "default": 1}], "template": ["spec.template"]}],
    "creates": ["apps/Deployment"],
}
SETTINGS = settings({"adapters": [TRAINER]})


class Objects:
    """A fake API server with these objects by path: 403 for paths that start with `forbidden`, else 404."""

    def __init__(self) -> None:
        self.at: dict[str, Object] = {}
        self.forbidden: tuple[str, ...] = ()
        self.asked: list[str] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        code, reason = 404, "NotFound"
        if request.path.startswith(self.forbidden):
            code, reason = 403, "Forbidden"
        elif request.path in self.at:
            return web.json_response(self.at[request.path])
        status = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": reason}
        return web.json_response(status, status=code)


@pytest.fixture
async def objects() -> AsyncIterator[Objects]:
    async with Objects() as found:
        yield found


@pytest.fixture
async def related(objects: Objects) -> AsyncIterator[ReferenceResolver]:
    async with KubeClient(Endpoint(objects.url, StaticCredentials({}))) as client:
        yield ReferenceResolver(client, SETTINGS.registry)


def owned(obj: Object, api_version: str, kind: str, uid: str = "uid-of-owner") -> Object:
    owner = {"apiVersion": api_version, "kind": kind, "name": "owner", "uid": uid, "controller": True}
    obj["metadata"]["ownerReferences"] = [owner]
    return obj


async def cost(related: ReferenceResolver, obj: Object) -> dict[str, Any]:
    lookup = await related.resolve(lambda f: counting.demand(obj, SETTINGS.registry, f, SETTINGS.counting), 5.0)
    return dict(counting.demand(obj, SETTINGS.registry, lookup, SETTINGS.counting).resources)


@pytest.mark.parametrize(
    "adapter", [*builtin_registry().adapters, SETTINGS.registry.adapters[-1]], ids=lambda a: a.resource
)
async def test_an_owner_of_every_registered_kind_is_read(
    related: ReferenceResolver, objects: Objects, adapter: Any
) -> None:
    prefix = f"/apis/{adapter.group}" if adapter.group else "/api"
    path = f"{prefix}/{adapter.versions[0]}/namespaces/default/{adapter.plural}/owner"
    objects.at[path] = {"kind": adapter.kind, "metadata": {"name": "owner", "uid": "u"}}
    found = await related.resolve(lambda lookup: lookup.get(adapter.group, adapter.kind, "default", "owner"), 5.0)
    assert objects.asked == [path]
    assert found.get(adapter.group, adapter.kind, "default", "owner") == objects.at[path]


async def test_a_configured_kind_pays_for_its_children(related: ReferenceResolver, objects: Objects) -> None:
    made = owned(deployment("web", "nlp", 3), "ml.example.com/v1", "Trainer")
    assert (await cost(related, made))["limits.cpu"] == 3 * 10**9
    labels = {"biz.group.resource.quota": "nlp"}
    path = "/apis/ml.example.com/v1/namespaces/default/trainers/owner"
    objects.at[path] = {"kind": "Trainer", "metadata": {"name": "owner", "uid": "uid-of-owner", "labels": labels}}
    assert not any((await cost(related, made)).values())
    assert (await cost(related, owned(made, "ml.example.com/v1", "Trainer", "forged")))["limits.cpu"] == 3 * 10**9


async def test_an_owner_without_the_right_to_read_it_neither_exempts_nor_fails(
    related: ReferenceResolver, objects: Objects
) -> None:
    """A reference to a kind that we may not read must not stop the recount of the group."""
    objects.forbidden = ("/apis/serving.kserve.io/",)
    made = owned(deployment("web", "nlp", 3), "serving.kserve.io/v1beta1", "InferenceService")
    assert (await cost(related, made))["limits.cpu"] == 3 * 10**9
    assert objects.asked == ["/apis/serving.kserve.io/v1beta1/namespaces/default/inferenceservices/owner"]


async def test_a_forbidden_reference_of_a_workload_is_an_error(related: ReferenceResolver, objects: Objects) -> None:
    objects.forbidden = ("/apis/apps/",)
    made = rollout("web", "nlp")
    del made["spec"]["template"]
    made["spec"]["workloadRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    with pytest.raises(Forbidden):
        await cost(related, made)


async def test_an_owner_of_an_unknown_kind_is_not_read(related: ReferenceResolver, objects: Objects) -> None:
    made = owned(deployment("web", "nlp", 3), "unknown.example.com/v1", "Thing")
    assert (await cost(related, made))["limits.cpu"] == 3 * 10**9
    assert objects.asked == []
