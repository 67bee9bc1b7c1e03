"""The API server presents its certificate to the webhooks, as docs/operations.md says, and nobody else can ask."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml

import crds
from bizrq import registration
from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, Resource
from bizrq.settings import settings
from certs import pki
from certs.store import write_directory
from tests.docs.test_docs import blocks, page
from tests.docs.test_rights import command
from tests.support.accounts import SYSTEM, give_rights, kubeconfig_of
from tests.support.client_certificates import make_client, presenting
from tests.support.cluster import Cluster, Real, _free_ports, eventually, has_kinds
from tests.support.objects import DEPLOYMENTS, Object, deployment
from tests.webhooks.conftest import Api
from tests.webhooks.test_app import a_review

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

NAME = "bizrq-api-server"
SERVICE = f"bizrq-webhooks.{SYSTEM}.svc"
SERVICES = Resource("", "v1", "services", "Service")


@dataclass
class Asking:
    client: KubeClient
    port: int
    bundle: bytes

    async def register(self, reached: Callable[[str], Object]) -> None:
        """Have the API server reach the webhooks in this way, and wait until it asks them, or fails to."""
        bundle = b64encode(self.bundle).decode()
        wanted = registration.configuration(
            settings({}), lambda path: {**reached(path), "caBundle": bundle}, namespace=SYSTEM
        )
        stored = await self.client.create(REGISTRATIONS, wanted)

        async def known() -> bool:
            try:
                await self.client.create(DEPLOYMENTS, deployment("probe", "no-such-group"), dry_run=True)
            except ApiError as error:
                return "no-such-group" in error.message or "failed calling webhook" in error.message
            return False

        await eventually(known, 60, f"{stored['metadata']['name']} is known")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asking]:
    """An API server with the two files of the page, and a webhook process with the two flags."""
    folder = tmp_path_factory.mktemp("asking")
    [port] = _free_ports(1)
    clients, serving_ca, now = pki.make_ca(datetime.now(UTC)), pki.make_ca(datetime.now(UTC)), datetime.now(UTC)
    client = make_client(clients, NAME)
    for name, content in (
        ("clients.crt", clients.certificate_pem),
        ("client.crt", client.certificate_pem),
        ("client.key", client.key_pem),
    ):
        (folder / name).write_bytes(content)
    serving = pki.make_serving(serving_ca, [SERVICE, "localhost", "127.0.0.1"], now)
    write_directory(folder / "serving", {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
    [admission, users] = [yaml.safe_load(block) for block in blocks(page("docs/operations.md"), "yaml")]
    _moved(admission["plugins"][0]["configuration"], "kubeConfigFile", folder)
    [user] = users["users"]
    for key in ("client-certificate", "client-key"):
        _moved(user["user"], key, folder)
    assert user["name"] == f"{SERVICE}:8443"
    user["name"] = f"{SERVICE}:{port}"
    users["users"].append({**user, "name": f"localhost:{port}"})
    (folder / "admission.yaml").write_text(yaml.safe_dump(admission))
    (folder / "kubeconfig").write_text(yaml.safe_dump(users))

    real = Real(
        folder / "cluster", flags={"kube-apiserver": [f"--admission-control-config-file={folder / 'admission.yaml'}"]}
    )
    (folder / "cluster").mkdir()
    await asyncio.to_thread(real.start)
    try:
        async with KubeClient.from_kubeconfig(real.kubeconfig) as kube:
            await has_kinds(kube, [*crds.load(), *crds.stand_ins()])
            await give_rights(kube, settings({}).registry)
            account = await kubeconfig_of(kube, Cluster(real.version, real.kubeconfig), WEBHOOKS, folder)
            with (folder / "webhooks.log").open("wb") as log:
                words = command("bizrq-webhooks", "--kubeconfig", account, "--cert-dir", folder / "serving")
                words += ["--host", "127.0.0.1", "--port", str(port), "--metrics-port", "0", "--drain-delay", "0"]
                words += ["--client-ca", str(folder / "clients.crt"), "--client-name", NAME]
                process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log)
            try:
                found = Asking(kube, port, serving_ca.certificate_pem)
                await eventually(lambda: _is_ready(found), 60, lambda: (folder / "webhooks.log").read_text())
                yield found
            finally:
                process.terminate()
                await process.wait()
    finally:
        await asyncio.to_thread(real.stop)


def _moved(holder: Object, key: str, folder: Path) -> None:
    assert holder[key].startswith("/etc/kubernetes/bizrq/")
    holder[key] = str(folder / Path(holder[key]).name)


async def _is_ready(asking: Asking) -> bool:
    tls = presenting(None, asking.bundle)
    try:
        async with aiohttp.ClientSession() as session, session.get(_url(asking, "/readyz"), ssl=tls) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _url(asking: Asking, path: str, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{asking.port}{path}"


async def forged(asking: Asking, tls: ssl.SSLContext) -> int:
    review = a_review(deployment("forged", "nlp", 2))
    async with (
        aiohttp.ClientSession() as session,
        session.post(_url(asking, "/validate/workloads"), json=review, ssl=tls) as answer,
    ):
        return answer.status


async def test_the_api_server_alone_may_ask(asking: Asking) -> None:
    """By Service, by a URL that has a user, and in vain by a URL that has none."""
    client, api = asking.client, Api(asking.client)
    await api.group("nlp", cpu="10")
    # Nothing of this machine is behind an address of a Service, so this one is another name of it.
    await client.create(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "bizrq-webhooks", "namespace": SYSTEM},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": asking.port}]},
        },
    )
    at = {"name": "bizrq-webhooks", "namespace": SYSTEM, "port": asking.port}
    for name, reached in (
        ("by-service", lambda path: {"service": {**at, "path": path}}),
        ("by-url", lambda path: {"url": _url(asking, path, "localhost")}),
    ):
        await asking.register(reached)
        await client.create(DEPLOYMENTS, deployment(name, "nlp", 2))
        assert [name in str(entry) for entry in await api.entries("nlp")].count(True) == 1
        with pytest.raises(ApiError, match="exceeded quota"):
            await client.create(DEPLOYMENTS, deployment("more", "nlp", 11))
        await client.delete(REGISTRATIONS, "bizrq")

    before = await api.entries("nlp")
    assert await forged(asking, presenting(None, asking.bundle)) == 401
    stranger = make_client(pki.make_ca(datetime.now(UTC)), NAME)
    with pytest.raises(aiohttp.ClientError):
        await forged(asking, presenting(stranger, asking.bundle))
    await asking.register(lambda path: {"url": _url(asking, path)})
    with pytest.raises(ApiError, match="failed calling webhook"):
        await client.create(DEPLOYMENTS, deployment("no-user", "nlp", 1))
    assert await api.entries("nlp") == before
