"""The API server presents its certificate to the webhooks, as docs/operations.md says, and nobody else can ask."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import orjson
import pytest
import pytest_asyncio
import yaml

import crds
from bizrq import registration
from bizrq.cli.manifests_of_bizrq import InstallPlan, install_objects
from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, Forbidden, KubeClient, Resource, Unauthorized
from bizrq.settings import settings
from certs import pki
from certs.store import write_directory
from tests.cli.conftest import Bizrq
from tests.docs.test_docs import blocks, page
from tests.docs.test_rights import command
from tests.support.accounts import SYSTEM, give_rights, kubeconfig_of
from tests.support.client_certificates import make_client, presenting
from tests.support.cluster import Cluster, Real, _free_ports, eventually, has_kinds
from tests.support.objects import DEPLOYMENTS, PODS, Object, deployment
from tests.webhooks.conftest import Api
from tests.webhooks.test_app import a_review

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

NAME = "bizrq-api-server"
SERVICE = f"bizrq-webhooks.{SYSTEM}.svc"
SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


@dataclass
class Asking:
    client: KubeClient
    port: int
    bundle: bytes
    folder: Path
    kubeconfig: Path
    #: The kubeconfig of the webhooks' account.
    account: Path

    @property
    def only_api_server(self) -> list[str]:
        """The flags of webhooks that ask for the API server's certificate."""
        return ["--client-ca", str(self.folder / "clients.crt"), "--client-name", NAME]

    @asynccontextmanager
    async def webhooks(self, host: str, port: int, flags: Sequence[str]) -> AsyncIterator[None]:
        """A webhook process with these flags, until it is ready and then to its end."""
        log = self.folder / f"webhooks-{port}.log"
        words = command("bizrq-webhooks", "--kubeconfig", self.account, "--cert-dir", self.folder / "serving")
        words += ["--host", host, "--port", str(port), "--metrics-port", "0", "--drain-delay", "0", *flags]
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(*words, stdout=out, stderr=out)
        try:
            await eventually(lambda: _is_ready(self, f"https://{host}:{port}"), 60, log.read_text)
            yield
        finally:
            process.terminate()
            await process.wait()

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
            found = Asking(kube, port, serving_ca.certificate_pem, folder, real.kubeconfig, account)
            async with found.webhooks("127.0.0.1", port, found.only_api_server):
                yield found
    finally:
        await asyncio.to_thread(real.stop)


def _moved(holder: Object, key: str, folder: Path) -> None:
    assert holder[key].startswith("/etc/kubernetes/bizrq/")
    holder[key] = str(folder / Path(holder[key]).name)


async def _is_ready(asking: Asking, url: str) -> bool:
    # Nobody else knows the port, and the certificate does not have every address.
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz", ssl=False) as answer:
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


async def test_who_may_use_the_proxy_of_the_api_server_forges_reviews_unless_its_certificate_is_asked_for(
    asking: Asking,
) -> None:
    """The API server connects for a person by Service and by pod, past a NetworkPolicy. It presents no certificate."""
    host = _address()
    client, api = asking.client, Api(asking.client)
    await api.group("proxied", cpu="10")
    await client.create(ROLES, {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "proxy", "namespace": SYSTEM},
        "rules": [{"apiGroups": [""], "resources": ["services/proxy", "pods/proxy"], "verbs": ["create"]}],
    })  # fmt: skip
    await client.create(ROLE_BINDINGS, {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "proxy", "namespace": SYSTEM},
        "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "Role", "name": "proxy", "apiGroup": "rbac.authorization.k8s.io"},
    })  # fmt: skip
    ports = dict(zip(("guarded", "open"), _free_ports(2), strict=True))
    for name, port in ports.items():
        await _behind_a_service(client, name, host, port)
    async with (
        asking.webhooks(host, ports["guarded"], asking.only_api_server),
        asking.webhooks(host, ports["open"], []),
        _as(asking, "mallory") as mallory,
        _as(asking, "nobody") as nobody,
    ):
        before = await api.read("proxied")
        for by in ("services", "pods"):
            with pytest.raises(Forbidden, match=f"{by}/proxy"):
                await _proxied(nobody, by, "open", ports["open"])
            with pytest.raises(Unauthorized, match="a review needs the client certificate of the API server"):
                await _proxied(mallory, by, "guarded", ports["guarded"])
        assert await api.read("proxied") == before, "nothing is written for them"
        for number, by in enumerate(("services", "pods"), 1):
            answer = await _proxied(mallory, by, "open", ports["open"])
            assert answer["response"]["allowed"], answer
            entries = [str(entry) for entry in await api.entries("proxied")]
            assert len(entries) == number
            assert f"forged-by-{by}" in str(entries)


async def test_doctor_says_of_webhooks_that_ask_for_no_certificate_that_reviews_can_be_forged(asking: Asking) -> None:
    """As `install` makes them, with the flags of the test above and without."""
    bizrq = Bizrq(asking.kubeconfig, asking.client)
    authority = (asking.folder / "clients.crt").read_text()
    for plan, notices in (
        (InstallPlan(SYSTEM, "bizrq:1", 0), 1),
        (InstallPlan(SYSTEM, "bizrq:1", 0, client_ca=authority, client_name=NAME), 0),
    ):
        [made] = [
            each
            for each in install_objects(settings({}), plan)
            if (each["kind"], each["metadata"]["name"]) == ("Deployment", WEBHOOKS)
        ]
        await asking.client.create(DEPLOYMENTS, made)
        try:
            said = await bizrq("doctor", "-n", SYSTEM)
        finally:
            await asking.client.delete(DEPLOYMENTS, WEBHOOKS, SYSTEM)
        assert said.out.count("notice: who may ask: the webhooks ask for no client certificate") == notices, said


# The last one: it registers the webhooks, for which the others would have to wait.
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


def _address() -> str:
    """An address of this machine that the API server's proxy takes: not that of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has the loopback alone")
        return probe.getsockname()[0]


@asynccontextmanager
async def _as(asking: Asking, user: str) -> AsyncIterator[KubeClient]:
    endpoint = replace(asking.client.endpoint, headers=(("Impersonate-User", user),))
    async with KubeClient(endpoint) as client:
        yield client


async def _behind_a_service(client: KubeClient, name: str, host: str, port: int) -> None:
    """Store a pod at this address, and a Service of this name with it behind: no node runs one here."""
    container = {"name": "webhooks", "image": "bizrq:1"}
    spec = {"serviceAccountName": WEBHOOKS, "automountServiceAccountToken": False, "containers": [container]}
    metadata = {"name": name, "namespace": SYSTEM, "labels": {"proxied": name}}
    pod = await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}], "conditions": ready}
    await client.patch(PODS, name, {"status": status}, namespace=SYSTEM, subresource="status")
    reference = {"kind": "Pod", "namespace": SYSTEM, "name": name, "uid": pod["metadata"]["uid"]}
    await client.create(SERVICES, {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": {"ports": [{"name": "webhooks", "port": 8443, "targetPort": port}]},
    })  # fmt: skip
    await client.create(ENDPOINTS, {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": name, "namespace": SYSTEM},
        "subsets": [
            {"addresses": [{"ip": host, "targetRef": reference}], "ports": [{"name": "webhooks", "port": port}]}
        ],
    })  # fmt: skip


async def _proxied(client: KubeClient, by: str, name: str, port: int) -> Object:
    """The answer to a forged review that goes through the API server to a Service or to a pod."""
    review = a_review(deployment(f"forged-by-{by}", "proxied", 1), by)
    review["request"]["name"] = f"forged-by-{by}"
    at = f"https:{name}:{8443 if by == 'services' else port}"
    path = f"/api/v1/namespaces/{SYSTEM}/{by}/{at}/proxy/validate/workloads"
    return orjson.loads(await client.request("POST", path, body=orjson.dumps(review)))
