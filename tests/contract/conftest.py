"""A webhook that notes what it is asked and answers as the test says, registered on either kind of cluster."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import web

import crds
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, NotFound
from certs.pki import make_ca, make_serving
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import CONFIG_MAPS, Object

Answer = Callable[[Object], Awaitable[Object]]
NAME = "contract.quota.biz.group"


async def yes(_: Object) -> Object:
    return {"allowed": True}


class Hook:
    """`reviews` has every request that came; `answer` decides."""

    def __init__(self, client: KubeClient, folder: Path) -> None:
        self.reviews: list[Object] = []
        self.answer: Answer = yes
        self.client = client
        ca = make_ca(datetime.now(UTC))
        serving = make_serving(ca, ["127.0.0.1"], datetime.now(UTC))
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.write_bytes(serving.certificate_pem)
        key.write_bytes(serving.key_pem)
        self.bundle = b64encode(ca.certificate_pem).decode()
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.unregister()
        if self._runner is not None:
            await self._runner.cleanup()

    async def register(self, *webhooks: Object, probe: bool = True) -> None:
        """Have these called, each with what it does not say filled up, and wait until they are."""
        defaults = {
            "clientConfig": {"url": f"{self.url}/review", "caBundle": self.bundle},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }
        seen = {
            "name": f"probe.{NAME}",
            "rules": [rule("", "configmaps", "CREATE")],
            "matchConditions": [{"name": "probe", "expression": "object.metadata.name == 'probe'"}],
        }
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "contract"},
            "webhooks": [{**defaults, **webhook} for webhook in (*webhooks, *([seen] if probe else []))],
        }
        with contextlib.suppress(NotFound):
            await self.client.delete(REGISTRATIONS, "contract")
        await self.client.create(REGISTRATIONS, configuration)
        if probe:
            await eventually(self._asked, 60, "the webhook is asked")
        self.reviews.clear()

    async def unregister(self) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(REGISTRATIONS, "contract")

        # Until it is forgotten, requests of the next test would be asked about.
        async def forgotten() -> bool:
            return not await self._asked()

        await eventually(forgotten, 60, "the webhook is forgotten")
        self.reviews.clear()

    async def _asked(self) -> bool:
        self.reviews.clear()
        probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": "default"}}
        with contextlib.suppress(ApiError):
            await self.client.create(CONFIG_MAPS, probe, dry_run=True)
        return bool(self.reviews)

    async def _serve(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.reviews.append({**review["request"], "path": request.path_qs})
        probe = (review["request"].get("object") or {}).get("metadata", {}).get("name") == "probe"
        answer = {"allowed": True} if probe else await self.answer(review["request"])
        return web.json_response(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": review["request"]["uid"], **answer},
            }
        )


def rule(group: str, resource: str, *operations: str, version: str = "v1") -> Object:
    return {"apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": list(operations)}


def webhook(name: str, *rules: Object, **more: Any) -> Object:
    return {"name": f"{name}.{NAME}", "rules": list(rules), **more}


@pytest_asyncio.fixture(loop_scope="module")
async def hook(client: KubeClient, tmp_path: Path) -> AsyncIterator[Hook]:
    hook = Hook(client, tmp_path)
    await hook.start()
    yield hook
    await hook.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def groups(cluster: Cluster, client: KubeClient) -> None:
    """The CRD of groups is installed."""
    await has_kinds(client, crds.load())


async def gathered(count: int, make: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """The answers or errors of so many requests sent at once."""
    return await asyncio.gather(*(make(n) for n in range(count)), return_exceptions=True)
