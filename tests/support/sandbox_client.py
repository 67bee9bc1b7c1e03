"""A small client and the objects that the tests of the sandbox speak of."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from sandbox.server import Sandbox

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = "/apis/quota.biz.group/v1alpha1/bizgroupresourcequotas"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def bearer(box: Sandbox) -> dict[str, str]:
    """Headers of the administrator."""
    return {"Authorization": f"Bearer {box.token}"}


class Client:
    """Requests with JSON bodies; every answer is (code, body)."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.headers: Any = {}

    async def send(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **params: str
    ) -> tuple[int, Any]:
        headers = {"Content-Type": kind} if body is not None else {}
        data = io.BytesIO(json.dumps(body).encode()) if body is not None else None
        async with self.session.request(method, path, data=data, headers=headers, params=params) as response:
            self.headers = response.headers
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def ok(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        code, answer = await self.send(method, path, body, **more)
        assert code < 300, answer
        return answer

    async def get(self, path: str, **params: str) -> Any:
        return await self.ok("GET", path, **params)

    async def create(self, path: str, body: Any, **params: str) -> Any:
        return await self.ok("POST", path, body, **params)

    async def merge(self, path: str, body: Any, **params: str) -> tuple[int, Any]:
        return await self.send("PATCH", path, body, kind="application/merge-patch+json", **params)

    async def watch(self, path: str, count: int, **params: str) -> list[Json]:
        """The first `count` events of a watch, within a minute."""
        found: list[Json] = []
        async with asyncio.timeout(60), self.session.get(path, params={"watch": "true", **params}) as response:
            assert response.status == 200, await response.text()
            while len(found) < count and (line := await response.content.readline()):
                found.append(json.loads(line))
        return found


Check = Callable[[], Awaitable[Any]]


async def eventually(check: Check, seconds: float = 60.0) -> Any:
    """The first true result of the check; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not (result := await check()):  # noqa: ASYNC110 - what is awaited has no event of ours
            await asyncio.sleep(0.01)
    return result


def config_map(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def pod(name: str, **spec: Any) -> Json:
    container = {"name": "c", "image": "x"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def deployment(name: str, replicas: int = 1, **annotations: str) -> Json:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def group_crd() -> Json:
    """A CRD much like that of business groups."""
    spec_schema = {
        "type": "object",
        "required": ["hard"],
        "x-kubernetes-validations": [
            {"rule": "self.parent == oldSelf.parent", "message": "parent is immutable", "fieldPath": ".parent"}
        ],
        "properties": {
            "parent": {"type": "string", "default": "", "maxLength": 63},
            "hard": {
                "type": "object",
                "maxProperties": 3,
                "additionalProperties": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "x-kubernetes-int-or-string": True,
                    "maxLength": 32,
                },
                "x-kubernetes-validations": [
                    {
                        "rule": "self.all(k, isQuantity(string(self[k])) && sign(quantity(string(self[k]))) >= 0)",
                        "messageExpression": "'every quantity ' + 'must be >= 0'",
                    }
                ],
            },
        },
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "bizgroupresourcequotas.quota.biz.group"},
        "spec": {
            "group": "quota.biz.group",
            "scope": "Cluster",
            "names": {
                "plural": "bizgroupresourcequotas",
                "kind": "BizGroupResourceQuota",
                "shortNames": ["bizrq"],
            },
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [{"name": "Parent", "type": "string", "jsonPath": ".spec.parent"}],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {"spec": spec_schema, "status": status},
                        }
                    },
                }
            ],
        },
    }


def group(name: str, parent: str = "", **hard: Any) -> Json:
    return {
        "apiVersion": "quota.biz.group/v1alpha1",
        "kind": "BizGroupResourceQuota",
        "metadata": {"name": name},
        "spec": {"parent": parent, "hard": hard},
    }


def binding(pod_name: str, node: str = "n1") -> Json:
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod_name}, "target": target}
