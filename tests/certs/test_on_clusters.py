"""A real API server calls a webhook without failures while its certificate and CA rotate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, Resource
from certs import rotation
from certs.main import CertificateKeeper
from certs.rotation import CA_BUNDLE, CERTIFICATE, SETTLE
from certs.store import ServingCertificate, read_directory
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMES = ["127.0.0.1"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as kube:
        yield kube


def registration(name: str, url: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "bizrq"}},
        "webhooks": [
            {
                "name": "certs.test.biz.group",
                "clientConfig": {"url": url},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
                ],
                "objectSelector": {"matchLabels": {"certs-test": name}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": 30,
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


async def test_no_call_fails_while_certificate_and_ca_rotate(kube: KubeClient, unique: str, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    keeper = CertificateKeeper(tmp_path, NAMES, kube, namespace="bizrq-system", now=lambda: now)
    certificate = ServingCertificate(tmp_path, poll=0.02)
    served: list[str] = []

    async def review(request: web.Request) -> web.Response:
        asked = await request.json()
        served.append(asked["request"]["uid"])
        answer = {"uid": asked["request"]["uid"], "allowed": True}
        # A fresh handshake each time: it is handshakes that a rotation can break.
        return web.json_response(
            {"apiVersion": asked["apiVersion"], "kind": "AdmissionReview", "response": answer},
            headers={"Connection": "close"},
        )

    app = web.Application()
    app.router.add_post("/", review)
    runner = web.AppRunner(app, access_log=None)
    name = f"bizrq-{unique}"
    failures: list[ApiError] = []
    made = 0
    stop = asyncio.Event()

    async def load() -> None:
        nonlocal made
        while not stop.is_set():
            made += 1
            metadata = {"generateName": f"{unique}-", "namespace": "default", "labels": {"certs-test": name}}
            try:
                await kube.create(CONFIGMAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
            except ApiError as error:
                failures.append(error)
            await asyncio.sleep(0.01)

    async def more(count: int) -> None:
        """Wait until this many more objects were created."""
        until = made + count

        async def are() -> bool:
            return made >= until

        await eventually(are)

    async def reloaded() -> bool:
        return certificate.reloads == 2

    await runner.setup()
    await keeper.run_pass()
    await certificate.wait()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context).start()
    work = [asyncio.create_task(certificate.watch())]
    try:
        await kube.create(REGISTRATIONS, registration(name, f"https://127.0.0.1:{runner.addresses[0][1]}/"))
        await keeper.run_pass()
        await _is_called(kube, name, served)
        work += [asyncio.create_task(load()) for _ in range(3)]
        first = read_directory(tmp_path)
        await keeper.run_pass(rotate=True)
        await more(10)
        now += SETTLE
        await keeper.run_pass()
        assert read_directory(tmp_path)[CERTIFICATE] != first[CERTIFICATE]
        await eventually(reloaded)
        await more(10)
        now += rotation.RETIRE + timedelta(seconds=1)
        await keeper.run_pass()
        await more(10)
        stop.set()
        await asyncio.gather(*work[1:])
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await kube.delete(REGISTRATIONS, name)
        for item in (await kube.list(CONFIGMAPS, "default", label_selector=f"certs-test={name}"))[0]:
            await kube.delete(CONFIGMAPS, item["metadata"]["name"], "default")
        await runner.cleanup()
    assert failures == []
    assert made > 20
    assert read_directory(tmp_path)[CA_BUNDLE].count(b"BEGIN") == 1
    assert certificate.reloads == 2


async def _is_called(kube: KubeClient, name: str, served: list[str]) -> None:
    """Wait until the API server calls the webhook: it learns of a registration and its bundle after a moment."""
    metadata = {"name": f"probe-{name}", "namespace": "default", "labels": {"certs-test": name}}
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    async def is_asked() -> bool:
        with contextlib.suppress(ApiError):
            await kube.create(CONFIGMAPS, probe, dry_run=True)
        return bool(served)

    await eventually(is_asked)
