"""A registration and a webhook that only refuses what `bizrq` asks in order to see whether webhooks answer."""

from __future__ import annotations

import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from bizrq.figures.state.probe import not_asked
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient
from bizrq.probe import NAME as PROBE
from bizrq.store.groups import GROUPS
from certs.pki import make_ca, make_serving
from tests.support.cluster import eventually
from tests.support.objects import Object


@contextlib.asynccontextmanager
async def answering(client: KubeClient, folder: Path) -> AsyncIterator[None]:
    """Have a webhook answer about groups, as that of an installation does to the command line. It allows all else."""
    ca = make_ca(datetime.now(UTC))
    serving = make_serving(ca, ["127.0.0.1"], datetime.now(UTC))
    (folder / "tls.crt").write_bytes(serving.certificate_pem)
    (folder / "tls.key").write_bytes(serving.key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    app = web.Application()
    app.router.add_post("/groups", _answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    webhook: Object = {
        "name": "groups.quota.biz.group",
        "clientConfig": {
            "url": f"https://127.0.0.1:{runner.addresses[0][1]}/groups",
            "caBundle": b64encode(ca.certificate_pem).decode(),
        },
        "rules": [
            {
                "apiGroups": [GROUPS.group],
                "apiVersions": ["*"],
                "resources": [GROUPS.plural],
                "operations": ["CREATE"],
            }
        ],
        "matchConditions": [{"name": "probe", "expression": f"object.metadata.name == '{PROBE}'"}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    configuration = {
        "apiVersion": REGISTRATIONS.api_version,
        "kind": REGISTRATIONS.kind,
        "metadata": {"name": "bizrq"},
        "webhooks": [webhook],
    }
    try:
        await client.create(REGISTRATIONS, configuration)

        async def is_asked() -> bool:
            return not await not_asked(client)

        await eventually(is_asked, 60, "the webhook is asked")
        yield
    finally:
        await runner.cleanup()


async def _answer(request: web.Request) -> web.Response:
    review = await request.json()
    answer = {"uid": review["request"]["uid"], "allowed": False, "status": {"code": 422, "message": "no such name"}}
    return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})
