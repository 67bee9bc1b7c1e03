"""R3 in short: kill -9 of the webhook's process at the worst moments. Never over; nothing leaks after the expiry."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import web

from bizrq.kube.client import KubeClient
from bizrq.kube.groups import GROUPS
from tests.cluster import Cluster, eventually, refusal
from tests.controller.conftest import Monotonic
from tests.objects import DEPLOYMENTS, deployment, group
from tests.oracle import Recorder, settled
from tests.proxy import Proxy
from tests.reliability.conftest import expire
from tests.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEBHOOKS = Path(sys.executable).with_name("bizrq-webhooks")


async def test_r3_a_kill_before_the_write_after_it_and_before_the_reply(
    cluster: Cluster, client: KubeClient, namespace: str, unique: str, tmp_path: Path
) -> None:
    """A proxy knows the moment: the status write is on its way, or done and not yet answered."""
    clock = Monotonic()
    async with Parts(cluster, tmp_path) as parts, Proxy(cluster.kubeconfig) as proxy:
        await parts.controller(clock=clock, recount_interval=0.5)
        kubeconfig = proxy.write_kubeconfig(tmp_path / "proxied")
        victims: list[asyncio.subprocess.Process] = []

        async def start() -> None:
            port = _free_port()
            process = await asyncio.create_subprocess_exec(
                WEBHOOKS, "--cert-dir", parts.certificates, "--kubeconfig", kubeconfig, "--host", "127.0.0.1",
                "--port", str(port), "--metrics-port", "0", stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            victims.append(process)
            parts.balancer.backends[:] = [port]

        armed: list[str] = []

        def kill() -> None:
            armed.clear()
            victims[-1].send_signal(signal.SIGKILL)

        async def before(line: str) -> web.Response | None:
            if armed == ["before"] and line.startswith("PUT") and line.endswith("/status"):
                kill()
                await victims[-1].wait()
                return web.Response(status=503)
            return None

        async def after(line: str, status: int) -> bool:
            written = line.startswith("PUT") and line.endswith("/status") and status == 200
            if armed == ["after"] and written:
                kill()
                await victims[-1].wait()
                return True
            return False

        proxy.before.append(before)
        proxy.after.append(after)
        try:
            await start()
            await eventually(lambda: _serves(parts), 30, "the webhook serves")
            await parts.register()
            await client.create(GROUPS, group(unique, count="6"))
            await settled(client, [unique])
            async with Recorder(client, unique) as recorder:
                for number, moment in enumerate(("before", "after", "after")):
                    armed[:] = [moment]
                    killed = client.create(DEPLOYMENTS, deployment(f"k{number}", unique, 0, namespace=namespace))
                    assert (await refusal(killed)).status == 500
                    assert not armed
                    await start()
                    await parts.asked()
                    await client.create(DEPLOYMENTS, deployment(f"w{number}", unique, 0, namespace=namespace))
                # Two promises were written for what never came: one create fits beside them, a second does not yet.
                await client.create(DEPLOYMENTS, deployment("fits", unique, 0, namespace=namespace))
                more = deployment("more", unique, 0, namespace=namespace)
                assert "exceeded quota" in (await refusal(client.create(DEPLOYMENTS, more))).message

                async def counted() -> bool:
                    used = (await client.get(GROUPS, unique))["status"]["used"]
                    return used == {"count/deployments.apps": "4"}

                await eventually(counted, 20, "four are stored")
                await expire(client, clock, unique)
                await settled(client, [unique], 30)
                await client.create(DEPLOYMENTS, more)
                await settled(client, [unique], 30)
                await recorder.laws()
        finally:
            for victim in victims:
                if victim.returncode is None:
                    victim.kill()
                await victim.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def _serves(parts: Parts) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", parts.balancer.backends[0])
    except OSError:
        return False
    writer.close()
    return True
