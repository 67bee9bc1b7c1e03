"""Clusters for tests: the sandbox, and a real API server where this machine has the programs for one.

Real means etcd and kube-apiserver, and kube-controller-manager where it is there too, on 127.0.0.1, started once for
each worker. tests/support/binaries.py says where the programs are looked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import crds
from bizrq.api import overlap
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS, REGISTRATIONS
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource, Unreachable
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.payers import PAYERS
from bizrq.workloads.labels import LABEL
from controller.overlap import OVERLAPS
from sandbox.server import Sandbox
from tests.support.binaries import output, program, real_version
from tests.support.objects import CHARGED, CRDS, DEVICE_CLASSES, NAMESPACES, PODS

#: Seconds for a real API server to become ready on a slow machine.
START = 180.0
#: The user as which kube-controller-manager comes: it has no rights but those that Kubernetes gives that name.
CONTROLLERS = "system:kube-controller-manager"

T = TypeVar("T")
Object = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """One API server to test against. `box` is the sandbox, None on a real one."""

    version: str
    kubeconfig: Path
    box: Sandbox | None = None

    @property
    def is_real(self) -> bool:
        return self.box is None


class Real:
    """The processes of a real API server, from `start` to `stop`."""

    def __init__(
        self, folder: Path, controllers: str = "*", *, flags: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """`controllers` are those that kube-controller-manager runs, `flags` more of them by program."""
        self._folder = folder
        self._controllers = controllers
        self._flags = flags or {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[Path, list[str]]] = {}
        #: Where etcd answers.
        self.etcd = ""
        self.kubeconfig = folder / "kubeconfig"
        self.version = real_version()

    @property
    def pids(self) -> dict[str, int]:
        """Of what runs, by the program's name."""
        return {name: process.pid for name, process in self._processes.items()}

    def start(self) -> None:
        """Start everything; a port that somebody took meanwhile costs one more try."""
        for last in (False, True):
            try:
                self._start()
            except RuntimeError:
                self.stop()
                if last:
                    raise
            else:
                return

    def stop(self) -> None:
        """End the processes, last first; what does not end in time is killed: the data is thrown away."""
        while self._processes:
            _, process = self._processes.popitem()
            process.terminate()
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        folder = Path(self._folder, secrets.token_hex(4))
        folder.mkdir(mode=0o700)
        client, peer, secure = _free_ports(3)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        signing, public, tokens = folder / "sa.key", folder / "sa.pub", folder / "tokens.csv"
        signing.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        token, of_controllers = secrets.token_hex(16), secrets.token_hex(16)
        # Kubernetes binds the rights of its controllers to the second name: that user is in no group.
        tokens.write_text(f"{token},admin,admin,system:masters\n{of_controllers},{CONTROLLERS},controllers\n")
        etcd = self.etcd = f"http://127.0.0.1:{client}"
        peers = f"http://127.0.0.1:{peer}"
        self._run(
            folder,
            "etcd",
            "--name=default",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            # Known since 3.4.26 and 3.5: nothing here has to outlive a power cut.
            *(["--unsafe-no-fsync"] if "unsafe-no-fsync" in output("etcd", "--help") else []),
        )
        server = f"https://127.0.0.1:{secure}"
        certificates = folder / "certs"
        self._run(
            folder,
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={secure}",
            f"--cert-dir={certificates}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            f"--service-account-issuer={server}/",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={signing}",
            # Pods can be made where no controller makes service accounts, as envtest has it.
            "--disable-admission-plugins=ServiceAccount",
        )
        where = {"server": server, "certificate-authority": str(certificates / "apiserver.crt")}
        write_kubeconfig(self.kubeconfig, where, token)
        self._ready = partial(self._wait, folder, f"{server}/readyz", token)
        self._ready()
        if program("kube-controller-manager") is not None:
            self._run(
                folder,
                "kube-controller-manager",
                f"--kubeconfig={write_kubeconfig(folder / 'controllers.kubeconfig', where, of_controllers)}",
                "--bind-address=127.0.0.1",
                f"--secure-port={_free_ports(1)[0]}",
                f"--cert-dir={folder / 'controller-certs'}",
                "--leader-elect=false",
                f"--controllers={self._controllers}",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={signing}",
                f"--root-ca-file={certificates / 'apiserver.crt'}",
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def revive(self, name: str) -> None:
        """Start a program that was killed as it was started first, on what it had stored."""
        self._spawn(name)

    def wait(self) -> None:
        """Return once the API server says that it is ready; raises RuntimeError with the end of the logs."""
        self._ready()

    def _run(self, folder: Path, name: str, *arguments: str) -> None:
        self._commands[name] = folder, [*arguments, *self._flags.get(name, ())]
        self._spawn(name)

    def _spawn(self, name: str) -> None:
        path = program(name)
        assert path is not None
        folder, arguments = self._commands[name]
        with Path(folder, f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([path, *arguments], stdout=log, stderr=log)

    def _wait(self, folder: Path, url: str, token: str) -> None:
        """Wait until the API server says that it is ready; raises RuntimeError with the end of the logs."""
        until = time.monotonic() + START
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2, context=trust):
                return
            ended = any(process.poll() is not None for process in self._processes.values())
            if ended or time.monotonic() > until:
                logs = [path.read_text("utf-8", "replace")[-600:] for path in folder.glob("*.log")]
                raise RuntimeError("the API server did not become ready:\n" + "\n".join(logs))
            time.sleep(0.1)


def write_kubeconfig(path: Path, cluster: Object, token: str) -> Path:
    """Write a kubeconfig for the bearer of a token, and return its path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, below those that systems give to connections: no client takes one meanwhile."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = 20_000 + secrets.randbelow(12_000)
            held = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                held.bind(("127.0.0.1", port))
                found.append(port)
        return found


async def eventually(
    check: Callable[[], Awaitable[T]], seconds: float = 60.0, what: str | Callable[[], object] = ""
) -> T:
    """The first true answer of `check`; fails after so many seconds, saying `what` and the last answer."""
    until = time.monotonic() + seconds
    while not (answer := await check()):
        if time.monotonic() > until:
            told = what() if callable(what) else what
            pytest.fail(f"not within {seconds:g} s: {told or check}; last answer: {answer!r}")
        await asyncio.sleep(0.05)
    return answer


async def has_kinds(client: KubeClient, definitions: list[Object]) -> None:
    """Install CRDs that are not there, and wait until their objects can be listed."""
    for crd in definitions:
        with contextlib.suppress(AlreadyExists):
            await client.create(CRDS, crd)
    for crd in definitions:
        spec = crd["spec"]
        names, namespaced = spec["names"], spec["scope"] == "Namespaced"
        await served(
            client, Resource(spec["group"], spec["versions"][0]["name"], names["plural"], names["kind"], namespaced)
        )


async def served(client: KubeClient, resource: Resource) -> None:
    """Wait until objects of a kind can be listed."""

    async def listed() -> bool:
        try:
            await client.list(resource, limit=1)
        except (NotFound, Unreachable):
            return False
        return True

    await eventually(listed, 60, f"{resource.key} is served")


async def sweep(client: KubeClient) -> None:
    """Leave nothing of bizrq, no charged object and no class of devices behind: their names are the cluster's."""
    for resource, name in ((REGISTRATIONS, "bizrq"), (POLICY_BINDINGS, overlap.NAME), (POLICIES, overlap.NAME)):
        with contextlib.suppress(NotFound):
            await client.delete(resource, name)
    for resource in CHARGED:
        with contextlib.suppress(NotFound):
            for obj in (await client.list(resource, label_selector=LABEL))[0]:
                with contextlib.suppress(NotFound):
                    await client.delete(resource, obj["metadata"]["name"], obj["metadata"]["namespace"])
    for pod in (await client.list(PODS, "default"))[0]:
        with contextlib.suppress(NotFound):
            await client.delete(PODS, pod["metadata"]["name"], "default")
    with contextlib.suppress(NotFound):
        for group in (await client.list(GROUPS))[0]:
            name = group["metadata"]["name"]
            with contextlib.suppress(NotFound):
                if group["metadata"].get("finalizers"):
                    await client.patch(GROUPS, name, {"metadata": {"finalizers": None}})
                await client.delete(GROUPS, name)
    for resource in (CARD_HOURS, STATEMENTS, CORRECTIONS, PAYERS, OVERLAPS, DEVICE_CLASSES):
        with contextlib.suppress(NotFound):
            for obj in (await client.list(resource))[0]:
                with contextlib.suppress(NotFound):
                    await client.delete(resource, obj["metadata"]["name"])


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A real API server, started when the first test wants it, stopped after the last test of all."""
    real = Real(tmp_path_factory.mktemp("kubernetes"))
    real.start()
    try:
        yield real
    finally:
        real.stop()


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sandbox", pytest.param("kubernetes", marks=pytest.mark.real)]
)
async def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A cluster with the kinds of the story in it and no bizrq: the sandbox, then a real one."""
    if request.param == "sandbox":
        # kubectl sends its token over https only; for everybody else TLS is a tenth of the time.
        async with Sandbox(tls=request.node.get_closest_marker("kubectl") is not None) as box:
            path = box.write_kubeconfig(tmp_path_factory.mktemp("sandbox") / "kubeconfig")
            async with KubeClient.from_kubeconfig(path) as client:
                await has_kinds(client, crds.stand_ins())
            yield Cluster("sandbox", path, box)
        return
    real: Real = request.getfixturevalue("real_cluster")
    async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
        await has_kinds(client, crds.stand_ins())
        try:
            yield Cluster(real.version, real.kubeconfig)
        finally:
            await sweep(client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """An administrator's client."""
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        yield client


_numbers = itertools.count(1)


@pytest.fixture
def unique() -> str:
    """A word that no other test of this run uses: for names of groups and namespaces."""
    return f"t{next(_numbers)}"


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(client: KubeClient, unique: str) -> str:
    """A fresh namespace."""
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
    return unique


async def refusal(request: Awaitable[object]) -> ApiError:
    """The refusal that a request has to get."""
    try:
        answer = await request
    except ApiError as error:
        return error
    pytest.fail(f"should be refused, but was allowed: {str(answer)[:300]}")
