"""`bizrq web` as a program."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.web.conftest import Browser, World
from tests.web.test_local import origin

BIZRQ = Path(sys.executable).with_name("bizrq")


async def test_bizrq_web_prints_its_address_and_ends_with_an_interrupt(world: World, tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        BIZRQ,
        "web",
        "--kubeconfig",
        str(tmp_path / "admin"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("web: http://127.0.0.1:")
    browser = Browser(origin(line.split()[1]))
    try:
        assert (await browser.get("/?" + urlsplit(line.split()[1]).query)).status == 200
    finally:
        await browser.session.close()
        process.terminate()
        _, said = await process.communicate()
    assert process.returncode == 0
    assert f"as kubernetes-admin on {world.box.url}" in said.decode()


async def test_bizrq_web_without_a_cluster_says_so(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        BIZRQ, "web", "--kubeconfig", str(tmp_path / "absent"), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert "there is no such file" in said.decode()
