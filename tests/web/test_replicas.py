"""Two replicas of `bizrq-web` as processes: one is killed, and nobody signs in again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bizrq.store.groups import GROUPS
from tests.web.conftest import Browser, World
from tests.web.test_edit import to_apply
from tests.web.test_live import Stream

WEB = Path(sys.executable).with_name("bizrq-web")
#: The address that both are reached at, through a balancer that this test plays.
ORIGIN = "http://127.0.0.1"


@asynccontextmanager
async def replica(world: World, kubeconfig: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and its own address."""
    process = await asyncio.create_subprocess_exec(
        WEB,
        *("--public-url", ORIGIN, "--listen", "127.0.0.1:0", "--keys", str(world.keys)),
        *("--kubeconfig", str(kubeconfig), "--metrics-port", "0", "--drain-delay", "0", "--log-format", "json"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    while '"port": ' not in said:
        line = (await process.stderr.readline()).decode()
        assert line, said
        said += line
    try:
        port = said.rpartition('"port": ')[2].partition(",")[0].strip("} ")
        yield process, f"{ORIGIN}:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_a_replica_is_killed_and_nobody_signs_in_again(world: World, tmp_path: Path):
    await world.group("ai", cpu=60)
    await world.group("nlp", "ai", cpu=20)
    tokens = {name: await world.user(name, "get", "list", "watch", "patch") for name in ("ada", "bob", "eve")}
    admin = tmp_path / "admin"
    async with replica(world, admin) as (first, at_first), replica(world, admin) as (_, at_second):
        people = {name: Browser(at_first) for name in tokens}
        try:
            previews = {}
            for name, browser in people.items():
                await browser.get("/sign-in")
                answer = await browser.post("/sign-in", {"token": tokens[name], "to": "/"}, Origin=ORIGIN)
                assert (answer.status, name in answer.words) == (200, True)
                form = await browser.get("/groups/nlp/edit")
                fields = {"base": form.field("base"), "hard:limits.cpu": f"{30 + len(previews)}", "step": "preview"}
                previews[name] = await browser.post("/groups/nlp/edit", fields, Origin=ORIGIN)
                assert previews[name].status == 200
            stream = await people["eve"].session.get(f"{at_first}/live?since=x")
            assert await Stream(stream).event() == ("changed", "")
            first.kill()
            await first.wait()

            for name, browser in people.items():
                browser.address = at_second
                for path in ("/", "/tree", "/groups/nlp"):
                    answer = await browser.get(path)
                    assert (answer.status, name in answer.words) == (200, True), path
            # A form of the page that the dead one made is taken by the other.
            fields = {**to_apply(previews["ada"]), "form-token": previews["ada"].field("form-token")}
            answer = await people["ada"].post("/groups/nlp/edit", fields, Origin=ORIGIN)
            assert (answer.status, "The group is changed" in answer.words) == (200, True)
            assert (await world.admin.get(GROUPS, "nlp"))["spec"]["hard"] == {"limits.cpu": "30"}
            async with people["eve"].session.get(f"{at_second}/live?since=x") as again:
                assert again.status == 200
                assert await Stream(again).event() == ("changed", "")
        finally:
            for browser in people.values():
                await browser.session.close()
