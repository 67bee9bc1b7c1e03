"""A controller whose clock is off is the program itself: it starts and gets ready."""

from __future__ import annotations

from pathlib import Path

import crds
from bizrq.kube.client import KubeClient
from sandbox.server import Sandbox
from tests.reliability import leaders
from tests.support.cluster import has_kinds


async def test_a_controller_with_a_wrong_clock_gets_ready(tmp_path: Path) -> None:
    async with Sandbox(controllers=False) as box:
        kubeconfig = box.write_kubeconfig(tmp_path / "kubeconfig")
        async with KubeClient.from_kubeconfig(kubeconfig) as client:
            await has_kinds(client, crds.load())
        async with leaders.apart(kubeconfig, tmp_path, "default", 30) as leader:
            await leader.ready()
