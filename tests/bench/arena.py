"""One API server with everything that is compared on it: no quota, native quota, a webhook that allows all, ours.

Everything runs in processes of its own, as a cluster has it, ours as their own service accounts; the load generator is
this one, an administrator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import crds
from bizrq import registration
from bizrq.cli.rbac import CONTROLLER, WEBHOOKS
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound, Resource, ServerError
from bizrq.quota.allowance import is_line_text
from bizrq.settings import load
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from certs.pki import make_ca, make_serving
from certs.store import write_directory
from tests.support.accounts import give_rights, kubeconfig_of
from tests.support.cluster import Cluster, Real, _free_ports, eventually, has_kinds
from tests.support.objects import DEPLOYMENTS, NAMESPACES, group
from tests.support.serving import ALLOWANCES

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
COUNT = "count/deployments.apps"
#: What has no ceiling in practice.
PLENTY = "1000000"
MODES = ("plain", "native", "allow", "ours")
BIN = Path(sys.executable).parent


@dataclass
class Arena:
    """A running arena; `client` is the load generator's."""

    client: KubeClient
    kubeconfig: Path
    version: str
    #: What runs, this process among it, by what it is.
    pids: dict[str, int]
    _numbers: int = 0
    _bodies: dict[str, dict[str, Any]] = field(default_factory=dict)

    def deployment(self, mode: str, group_name: str = "hot") -> dict[str, Any]:
        """A Deployment of the mode's namespace, without pods: what is measured is its admission."""
        self._numbers += 1
        labels = {"ours": {LABEL: group_name}, "allow": {"bench": "allow"}}.get(mode, {})
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"d{self._numbers}", "namespace": mode, "labels": labels},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "x"}},
                "template": {
                    "metadata": {"labels": {"app": "x"}},
                    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"cpu": "1"}}}]},
                },
            },
        }

    async def clear(self, mode: str) -> None:
        """Delete what a round left, in as few calls as can be, and let the books follow."""

        async def empty() -> bool:
            try:
                await self.client.request("DELETE", DEPLOYMENTS.path(mode), timeout=120)
            except ServerError as error:
                # An API server ends the call after a minute. It has deleted some by then.
                if error.status != HTTPStatus.GATEWAY_TIMEOUT:
                    raise
            return not (await self.client.list(DEPLOYMENTS, mode, limit=1))[0]

        await eventually(empty, 600, "deployments are gone")

    async def group(self, name: str, parent: str = "", **hard: str) -> None:
        async def created() -> bool:
            try:
                await self.client.create(GROUPS, group(name, parent, **(hard or {"count": PLENTY})))
            except AlreadyExists:
                return True
            except ApiError:
                # The webhooks are still starting.
                return False
            return True

        await eventually(created, 60, f"group {name} created")

        async def counted() -> bool:
            return "used" in (await self.client.get(GROUPS, name)).get("status", {})

        await eventually(counted, 60, f"group {name} counted")

    async def groups(self, names: Sequence[str]) -> None:
        """Create groups without a ceiling in practice, fifty at a time."""
        for start in range(0, len(names), 50):
            await asyncio.gather(*(self.group(name) for name in names[start : start + 50]))

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used: steadier than the clock where a machine is shared."""
        tick = os.sysconf("SC_CLK_TCK")
        used = {}
        for name, pid in self.pids.items():
            # utime and stime, by their places after the name, which may hold anything (proc(5)).
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / tick
        return used

    async def status_writes(self) -> float:
        """Status writes of groups that the API server has seen succeed, by whatever process."""
        text = (await self.client.request("GET", "/metrics")).decode()
        wanted = ('resource="bizgroupresourcequotas"', 'subresource="status"', 'verb="PUT"', 'code="200"')
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("apiserver_request_total{") and all(word in line for word in wanted)
        )


@contextlib.asynccontextmanager
async def arena(folder: Path, *, replicas: int = 1, allowances: bool = False) -> AsyncIterator[Arena]:
    """Start everything, wait until each mode answers as it should, stop everything.

    With `allowances` our webhooks admit by them where they can.
    """
    real = Real(folder, controllers="resourcequota-controller,namespace-controller")
    processes: list[subprocess.Popen[bytes]] = []
    real.start()
    try:
        async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
            await has_kinds(client, [*crds.load(), *crds.stand_ins()])
            for name in MODES:
                with contextlib.suppress(AlreadyExists):
                    await client.create(
                        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                    )
            quota = {"metadata": {"name": "count", "namespace": "native"}, "spec": {"hard": {COUNT: PLENTY}}}
            await client.create(QUOTAS, {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
            await give_rights(client, load(None).registry)
            cluster = Cluster(real.version, real.kubeconfig)
            webhooks, controller = [
                await kubeconfig_of(client, cluster, account, folder) for account in (WEBHOOKS, CONTROLLER)
            ]
            bundle = _certificates(folder / "tls")
            ports = _free_ports(replicas + 1)
            processes.append(_spawn(folder, "-m", "tests.bench.allow", str(folder / "tls"), str(ports[0])))
            processes.extend(
                _spawn(
                    folder,
                    str(BIN / "bizrq-webhooks"),
                    *("--cert-dir", str(folder / "tls"), "--kubeconfig", str(webhooks)),
                    *("--host", "127.0.0.1", "--port", str(port), "--metrics-port", "0", "--drain-delay", "0"),
                    *(ALLOWANCES if allowances else ()),
                )
                for port in ports[1:]
            )
            processes.append(
                _spawn(
                    folder,
                    str(BIN / "bizrq-controller"),
                    *("--kubeconfig", str(controller), "--metrics-port", "0"),
                )
            )
            await _register(client, bundle, ports)
            names = ["allow", *(f"webhooks {n}" for n in range(replicas)), "controller"]
            ours = {name: process.pid for name, process in zip(names, processes, strict=True)}
            here = Arena(client, real.kubeconfig, real.version, {**real.pids, **ours, "load": os.getpid()})
            await here.group("hot")
            await _answers(here)
            if allowances:
                await _gives(here)
            yield here
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
        real.stop()


def _spawn(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with Path(folder, "processes.log").open("ab") as log:
        return subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)


def _certificates(folder: Path) -> str:
    now = datetime.now(UTC)
    ca = make_ca(now)
    serving = make_serving(ca, ["127.0.0.1"], now)
    write_directory(folder, {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
    return b64encode(ca.certificate_pem).decode()


async def _register(client: KubeClient, bundle: str, ports: list[int]) -> None:
    """Ours on the first replica's port (a Service would spread them), and the one that allows all."""
    ours = registration.configuration(
        load(None),
        lambda path: {"url": f"https://127.0.0.1:{ports[1]}{path}", "caBundle": bundle},
        namespace="bizrq-system",
    )
    # The same rules and conditions, so that only the deciding differs.
    workloads = next(webhook for webhook in ours["webhooks"] if webhook["name"].startswith("workloads"))
    allow = {
        **workloads,
        "name": "allow.bench.test",
        "clientConfig": {"url": f"https://127.0.0.1:{ports[0]}/", "caBundle": bundle},
        "objectSelector": {"matchLabels": {"bench": "allow"}},
    }
    for configuration in (ours, {**ours, "metadata": {"name": "allow"}, "webhooks": [allow]}):
        await client.create(REGISTRATIONS, configuration)


async def _gives(here: Arena) -> None:
    """Wait until our webhooks hold an allowance of the hot group: a count that sees creates gives it."""

    async def given() -> bool:
        await here.client.create(DEPLOYMENTS, here.deployment("ours"))
        return any(map(is_line_text, (await here.client.get(GROUPS, "hot"))["status"].get("reservations", ())))

    await eventually(given, 60, "the hot group has an allowance")


async def _answers(here: Arena) -> None:
    """Wait until every mode admits, natively counted where native quota counts."""
    for mode in MODES:

        async def admits(mode: str = mode) -> bool:
            try:
                await here.client.create(DEPLOYMENTS, here.deployment(mode))
            except (ApiError, NotFound):
                return False
            return True

        await eventually(admits, 60, f"{mode} admits")

    async def counted() -> bool:
        quota = await here.client.get(QUOTAS, "count", "native")
        return quota.get("status", {}).get("used", {}).get(COUNT) is not None

    await eventually(counted, 60, "native quota counts")
    await asyncio.sleep(1)
