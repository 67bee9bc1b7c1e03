"""`bizrq up` as a program: what it prints, what it leaves behind, and that a start after a kill works."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, NotFound
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.store import pause
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq
from tests.support.cluster import Cluster, eventually, refusal
from tests.support.objects import CRDS, DEPLOYMENTS, NAMESPACES, deployment, group, namespace

pytestmark = pytest.mark.asyncio(loop_scope="module")
BIZRQ = Path(sys.executable).with_name("bizrq")
#: A Lease that a killed process left takes up to 15 seconds, and machines are slow.
PATIENCE = 60


class Up:
    """A running `bizrq up`, and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while not self.lines or self.lines[-1] != "ready":
                line = await self.process.stdout.readline()
                assert line, f"ended before it was ready: {await self._told()}"
                self.lines.append(line.decode().rstrip("\n"))

    async def ends(self, number: signal.Signals) -> tuple[int, str]:
        """Exit code and what it said on stderr, once it was sent this signal."""
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE):
            told = await self._told()
            return await self.process.wait(), told

    async def _told(self) -> str:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        rest = await self.process.stdout.read()
        assert rest == b"", "something more on stdout"
        return (await self.process.stderr.read()).decode()


@asynccontextmanager
async def up(*arguments: object, **environment: str) -> AsyncIterator[Up]:
    process = await asyncio.create_subprocess_exec(
        BIZRQ,
        "up",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield Up(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def registered(client: KubeClient) -> bool:
    try:
        await client.get(REGISTRATIONS, "bizrq")
    except NotFound:
        return False
    return True


async def test_without_a_flag_it_is_a_sandbox_whatever_the_environment_says(tmp_path: Path) -> None:
    """Nobody tries this out on production by accident. stdout has two lines; everything else is on stderr."""
    path = tmp_path / "made" / "kubeconfig"
    elsewhere = tmp_path / "production"
    elsewhere.write_text("this is no kubeconfig")
    async with up("--write-kubeconfig", path, KUBECONFIG=str(elsewhere), HOME=str(tmp_path)) as running:
        await running.ready()
        kubeconfig, web, ready = running.lines
        assert (kubeconfig, ready) == (f"kubeconfig: {path}", "ready")
        assert web.startswith("web: http://127.0.0.1:")
        assert path.stat().st_mode & 0o077 == 0
        async with KubeClient.from_kubeconfig(path) as client:
            await client.create(GROUPS, group("nlp", cpu="4"))
            await client.create(DEPLOYMENTS, deployment("web", "nlp", 4))
            over = client.create(DEPLOYMENTS, deployment("more", "nlp", 1))
            assert "exceeded quota: nlp, requested: limits.cpu=1" in (await refusal(over)).message
        code, told = await running.ends(signal.SIGTERM)
    assert code == 0, told
    assert "Traceback" not in told
    assert "bizrq: open: everybody may charge every group, since rights.use is off" in told


async def test_it_is_not_open_where_the_configuration_asks_for_the_right(tmp_path: Path) -> None:
    config, path = tmp_path / "config.yaml", tmp_path / "kubeconfig"
    config.write_text("rights: {use: true}\n")
    async with up("--write-kubeconfig", path, "--config", config) as running:
        await running.ready()
        ann = Overrides(impersonated="ann", groups=("system:authenticated",))
        async with KubeClient.from_kubeconfig(path) as client, KubeClient(from_kubeconfig(path, None, ann)) as person:
            await client.create(GROUPS, group("nlp", cpu="4"))
            refused = await refusal(person.create(DEPLOYMENTS, deployment("web", "nlp", 1)))
            assert "ann may not charge quota nlp" in refused.message
        code, told = await running.ends(signal.SIGTERM)
    assert code == 0, told
    assert "open:" not in told


async def test_a_stop_takes_the_registration_away_and_nothing_else(cluster: Cluster, client: KubeClient) -> None:
    """On a cluster that was named: CRDs, groups and workloads stay, and writes go on without us."""
    async with up("--kubeconfig", cluster.kubeconfig) as running:
        await running.ready()
        web, ready = running.lines
        assert web.startswith("web: http://127.0.0.1:")
        assert ready == "ready"
        assert await registered(client)
        await client.create(GROUPS, group("stays", cpu="4"))
        await client.create(DEPLOYMENTS, deployment("stays", "stays", 4))
        assert "exceeded quota" in (await refusal(client.create(DEPLOYMENTS, deployment("no", "stays", 1)))).message
        code, told = await running.ends(signal.SIGTERM)
    assert code == 0, told
    assert "Traceback" not in told
    assert not await registered(client)
    assert (await client.get(CRDS, "bizgroupresourcequotas.quota.biz.group"))["spec"]
    assert (await client.get(GROUPS, "stays"))["status"]["used"] == {"limits.cpu": "4"}
    await client.create(DEPLOYMENTS, deployment("free", "stays", 1))


async def test_after_a_kill_writes_are_refused_until_a_next_start_replaces_what_was_left(
    cluster: Cluster, client: KubeClient
) -> None:
    """Fail closed: an unreachable webhook is no yes. What was promised before the kill still counts after it."""
    async with up("--kubeconfig", cluster.kubeconfig) as first:
        await first.ready()
        await client.create(GROUPS, group("killed", cpu="4"))
        await client.create(DEPLOYMENTS, deployment("before", "killed", 3))
        await first.ends(signal.SIGKILL)
    assert await registered(client)
    error = await refusal(client.create(DEPLOYMENTS, deployment("between", "killed", 1)))
    assert error.status == 500
    assert "failed calling webhook" in error.message
    async with up("--kubeconfig", cluster.kubeconfig) as second:
        await second.ready()
        await client.create(DEPLOYMENTS, deployment("fits", "killed", 1))
        assert "exceeded quota" in (await refusal(client.create(DEPLOYMENTS, deployment("no", "killed", 1)))).message

        async def counted() -> bool:
            return (await client.get(GROUPS, "killed"))["status"]["used"] == {"limits.cpu": "4"}

        await eventually(counted, 60, "both Deployments are counted")
        await second.ends(signal.SIGINT)
    assert not await registered(client)


async def test_started_during_a_pause_it_checks_nothing_until_the_pause_ends(
    cluster: Cluster, client: KubeClient, unique: str
) -> None:
    """Says so in a line that names the remedy. An uninstall beside it warns."""
    await client.create(NAMESPACES, namespace(unique))
    await pause.begin(client, unique, "etcd is slow", "ann")
    async with up("--kubeconfig", cluster.kubeconfig, "--namespace", unique) as running:
        await running.ready()
        assert not await registered(client)
        await client.create(GROUPS, group("paused", cpu="1"))
        assert await pause.end(client, unique)

        async def is_refused() -> bool:
            try:
                await client.create(DEPLOYMENTS, deployment("no", "paused", 2), dry_run=True)
            except ApiError as error:
                return "exceeded quota" in error.message
            return False

        await eventually(is_refused, 60, "it registers")
        removed = await Bizrq(cluster.kubeconfig, client)("uninstall", "-n", unique)
        assert removed.code == 0, removed.err
        [warned] = [line for line in removed.err.splitlines() if "bizrq up" in line]
        assert warned.startswith("bizrq: bizrq up runs on ")
        assert warned.endswith(", and checks nothing any more: stop it; a new start registers again")
        assert not await registered(client)
        code, told = await running.ends(signal.SIGTERM)
    assert code == 0, told
    [said] = [line for line in told.splitlines() if "nothing is checked until bizrq resume" in line]
    assert said.startswith("bizrq: paused since ")
    assert " by ann: etcd is slow; " in said


async def test_it_does_not_start_into_an_uninstall(cluster: Cluster, client: KubeClient, unique: str) -> None:
    await client.create(NAMESPACES, namespace(unique))
    await pause.begin(client, unique, pause.UNINSTALL, "")
    async with up("--kubeconfig", cluster.kubeconfig, "--namespace", unique) as running:
        async with asyncio.timeout(PATIENCE):
            _, told = await running.process.communicate()
    assert running.process.returncode == 2
    assert f"bizrq: bizrq uninstall has not ended in namespace {unique}: run it again, or bizrq resume" in told.decode()
    assert not await registered(client)


async def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    """Exit 2 for a kubeconfig that is none, 3 for a server that does not answer."""
    bad, dead = tmp_path / "bad", tmp_path / "dead"
    bad.write_text("[]")
    dead.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [], '
        '"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}'
    )
    for path, wanted in ((tmp_path / "none", 2), (bad, 2), (dead, 3)):
        async with up("--kubeconfig", path) as running:
            out, told = await asyncio.wait_for(running.process.communicate(), PATIENCE)
            assert (running.process.returncode, out) == (wanted, b""), told.decode()
            last = told.decode().strip().splitlines()[-1]
            assert last.startswith("bizrq: "), told.decode()
            assert "Traceback" not in told.decode()
