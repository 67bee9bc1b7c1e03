"""R4, R5, R26 and R31: recounts, watches and edits of `hard` that race with admissions."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from bizrq.cli.rbac import CONTROLLER
from bizrq.kube.client import ApiError, Resource
from bizrq.kube.config import from_kubeconfig
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from tests.reliability.people import People
from tests.reliability.stage import COUNT, REPLICAS, Ground, Outcome, Stage, expected, under_way
from tests.support.binaries import kubectl as kubectl_program
from tests.support.binaries import program, why_no_kubectl
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, Object, deployment
from tests.support.oracle import Recorder
from tests.support.proxy import Proxy
from tests.web.conftest import Browser
from tests.web.test_edit import to_apply
from web.local import serving

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


async def r4(ground: Ground, *, seconds: float, fits: int, workers: int, delay: float) -> Outcome:
    """Create and delete, twice as many as fit, with validators that sleep; natively in a namespace beside ours."""
    rng = ground.random("R4")
    ours, native = ground.name(), ground.name()
    answers: Counter[str] = Counter()
    over = asyncio.Event()

    async def sleep(_: Object) -> Object:
        await asyncio.sleep(rng.random() * delay)
        return {"allowed": True}

    async with ground.parts() as parts:
        await parts.webhooks(REPLICAS, allowances=ground.allowances)
        await parts.controller(clock=ground.clock or time.monotonic, recount_interval=0.05)
        await parts.register()
        await ground.namespace(ours)
        await ground.group(ours, count=str(fits))
        sides: list[tuple[str, str | None]] = [(ours, ours)]
        if await _native(ground, native, fits):
            sides.append((native, None))

        async def work(namespace: str, of: str | None, number: int) -> None:
            while not over.is_set():
                name = f"w{number}"
                try:
                    await ground.people.create(DEPLOYMENTS, deployment(name, of, 0, namespace=namespace))
                except ApiError as error:
                    # Natively a conflict reaches the client; with ours none may.
                    expected(error, 403, 429, *((409, 500) if namespace == native else ()))
                    answers[f"{namespace} {error.status}"] += 1
                    await asyncio.sleep(0.05)
                    continue
                answers[f"{namespace} stored"] += 1
                await asyncio.sleep(rng.random() * delay / 2)
                await ground.people.delete(DEPLOYMENTS, name, namespace)

        async with (
            ground.chaos(sleep, resource="deployments", operation="CREATE"),
            ground.recorder(ours) as recorder,
        ):
            tasks = [work(*side, number) for side in sides for number in range(workers)]
            async with under_way(*tasks) as running:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    running.check()
                    await asyncio.sleep(0.1)
                over.set()
                await running.ended()
            await ground.expire(ours)
            await ground.agreed(ours)
            revisions = await recorder.laws()
            most = {namespace: _most(recorder, namespace) for namespace, _ in sides}
        for namespace, _ in sides:
            await ground.clear(namespace)
    assert most[ours] <= fits, f"{most[ours]} of ours were stored at once"
    beside = (
        f"native at most {most[native]} ({answers[f'{native} stored']} creates)"
        if native in most
        else "no native quota beside it here"
    )
    return Outcome(
        f"limit {fits}: ours at most {most[ours]} ({answers[f'{ours} stored']} creates), {beside}; "
        f"{revisions} revisions checked"
    )


async def _native(ground: Ground, namespace: str, fits: int) -> bool:
    """A namespace with a ResourceQuota of its own; False where nobody would count it."""
    if not ground.cluster.is_real or program("kube-controller-manager") is None:
        return False
    await ground.namespace(namespace)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "count", "namespace": namespace}}
    await ground.client.create(QUOTAS, {**quota, "spec": {"hard": {COUNT: str(fits)}}})

    async def counted() -> bool:
        found = await ground.client.get(QUOTAS, "count", namespace)
        return COUNT in found.get("status", {}).get("used", {})

    await eventually(counted, 60, "native quota counts")
    return True


def _most(recorder: Recorder, namespace: str) -> int:
    """The Deployments that a namespace had at once, at most."""
    stored: set[str] = set()
    most = 0
    for _, what, kind, obj in sorted(recorder.events, key=lambda event: event[0]):
        if kind.key == DEPLOYMENTS.key and obj["metadata"]["namespace"] == namespace:
            (stored.discard if what == "DELETED" else stored.add)(obj["metadata"]["name"])
            most = max(most, len(stored))
    return most


async def r5(ground: Ground, *, seconds: float, fits: int, workers: int) -> Outcome:
    """A controller whose watch stands still, then another one that begins with a list from before all that."""
    rng = ground.random("R5")
    name = ground.name()
    path = DEPLOYMENTS.path()
    await ground.namespace(name)
    stored, late = 0, 0
    over = asyncio.Event()
    async with ground.parts() as parts:
        first, second = Proxy(parts.kubeconfigs[CONTROLLER]), Proxy(parts.kubeconfigs[CONTROLLER])
        await parts.enter(first)
        await parts.enter(second)
        end_first = await ground.controller(parts, 0.1, first.write_kubeconfig(parts.folder / "first"))
        await ground.webhooks(parts)
        await parts.register()
        await ground.group(name, count=str(fits))
        for number in range(fits // 4):
            await ground.people.create(DEPLOYMENTS, deployment(f"old{number}", name, 0, namespace=name))
        await ground.counts(name)
        stale = await ground.client.request("GET", path)
        lists = 0

        async def from_before(line: str) -> web.Response | None:
            """No streamed list, and three lists that show what was."""
            nonlocal lists
            if lists < 3 and line == f"WATCH {path}":
                return web.json_response({"kind": "Status", "code": 422, "reason": "Invalid"}, status=422)
            if lists < 3 and line == f"GET {path}":
                lists += 1
                return web.Response(body=stale, content_type="application/json")
            return None

        async def work(number: int) -> None:
            nonlocal stored, late
            obj = f"w{number}"
            while not over.is_set():
                try:
                    await ground.people.create(DEPLOYMENTS, deployment(obj, name, 0, namespace=name))
                except ApiError as error:
                    # 500 and 504 are those of an API server that did not wait for an answer any longer.
                    expected(error, 403, 429, 500, 504)
                    late += error.status >= 500
                    await asyncio.sleep(0.1)
                    continue
                stored += 1
                await asyncio.sleep(rng.random() * 0.4)
                if number % 2 or rng.random() < 0.5:
                    await ground.people.delete(DEPLOYMENTS, obj, name)
                else:
                    await asyncio.sleep(1)
                    await ground.people.delete(DEPLOYMENTS, obj, name)

        async with ground.recorder(name) as recorder:
            async with under_way(*map(work, range(workers))) as tasks:
                first.frozen.add(path)
                first.freeze(path)
                await _for(seconds, ground, tasks)
                if ground.clock is not None:
                    ground.clock.advance(61)
                    await _for(seconds, ground, tasks)
                ground.say("the second controller takes over")
                second.before.append(from_before)
                second.frozen.add(path)
                await end_first()
                await ground.controller(parts, 0.1, second.write_kubeconfig(parts.folder / "second"))
                await _for(seconds / 3, ground, tasks)
                second.thaw(path)
                await _for(min(seconds, 5), ground, tasks)
                over.set()
                await tasks.ended()
            await ground.expire(name)
            await ground.agreed(name)
            revisions = await recorder.laws()
        await ground.clear(name)
    assert lists, "the second controller never saw a stale list"
    return Outcome(
        f"a watch frozen for {seconds:.0f} s, a failover, {lists} stale lists, {stored} creates stored meanwhile, "
        f"{late} without an answer in time; "
        f"{revisions} revisions checked, none under-counted"
    )


async def _for(seconds: float, ground: Ground, tasks: Any) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        tasks.check()
        if int(left) % 30 == 29:
            ground.say(f"{left:.0f} s more")
            await asyncio.sleep(min(left, 1))
        await asyncio.sleep(min(left, 0.1))


#: Edits a group, by its name and the amount to write, and returns the seconds that each step of it took.
Edit = Callable[[str, int], Awaitable[list[float]]]


async def r26(stage: Stage, *, edits: int, concurrency: int, p99: float) -> Outcome:
    """A person edits `hard` while so many creators write to the group all the time."""
    people = stage.people if isinstance(stage.people, People) else None
    # kubectl sends a token over https alone, and the sandbox of the experiments has none.
    kubectl = kubectl_program() if people is not None and not why_no_kubectl() else None
    person = ["--token", people.tokens[0]] if people is not None else []

    async def edit(name: str, amount: int) -> list[float]:
        spec = {"spec": {"hard": {COUNT: str(amount)}}}
        asked = time.monotonic()
        if kubectl is None:
            await stage.people.patch(GROUPS, name, spec)
            return [time.monotonic() - asked]
        process = await asyncio.create_subprocess_exec(
            *(kubectl, "--kubeconfig", stage.cluster.kubeconfig, *person, "patch", "bizrq", name, "--type=merge"),
            *("-p", json.dumps(spec)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return [time.monotonic() - asked]

    return await _edits(stage, edit, "kubectl patch" if kubectl else "PATCH", edits, concurrency, p99)


async def r31(stage: Stage, *, edits: int, concurrency: int, p99: float) -> Outcome:
    """A person edits `hard` on a page of the web UI, and applies what they previewed."""
    async with serving(from_kubeconfig(stage.cluster.kubeconfig), settings({})) as address:
        parts = urlsplit(address)
        browser = Browser(f"http://{parts.netloc}")

        async def edit(name: str, amount: int) -> list[float]:
            path = f"/groups/{name}/edit"
            clicks = [time.monotonic()]
            form = await browser.get(path)
            clicks.append(time.monotonic())
            fields = {"base": form.field("base"), f"hard:{COUNT}": str(amount), "owner": "", "contact": ""}
            preview = await browser.post(path, {**fields, "step": "preview"})
            clicks.append(time.monotonic())
            assert "The API server would accept this" in preview.words, preview.words
            answer = await browser.post(path, to_apply(preview), follow=False)
            clicks.append(time.monotonic())
            assert answer.headers.get("Location", "").endswith("?done=changed"), answer.words
            # The creators' client has a queue.
            stored = await stage.watcher.get(GROUPS, name)
            assert stored["spec"]["hard"] == {COUNT: str(amount)}
            return [end - begin for begin, end in itertools.pairwise(clicks)]

        try:
            assert (await browser.get(f"/?{parts.query}")).status == 200
            return await _edits(stage, edit, "form, preview and apply, each of them a click", edits, concurrency, p99)
        finally:
            await browser.session.close()


async def _edits(stage: Stage, edit: Edit, by: str, edits: int, concurrency: int, p99: float) -> Outcome:
    rng = stage.random("R26")
    name = stage.name()
    await stage.namespace(name)
    await stage.group(name, count="1000000")
    created, numbers = 0, iter(range(10**9))
    over = asyncio.Event()

    async def work() -> None:
        nonlocal created
        for number in numbers:
            if over.is_set():
                return
            try:
                await stage.people.create(DEPLOYMENTS, deployment(f"w{number}", name, 0, namespace=name))
            except ApiError as error:
                # A busy group may say try again; that it is full would be false.
                expected(error, 429)
            created += 1

    took: list[float] = []
    async with stage.recorder(name) as recorder:
        began = time.monotonic()
        async with under_way(*(work() for _ in range(concurrency))) as tasks:
            await asyncio.sleep(1)
            for number in range(1, edits + 1):
                tasks.check()
                took += await edit(name, 1_000_000 + number)
                if number % 10 == 0:
                    stage.say(f"{number} edits, the last in {took[-1]:.2f} s")
                await asyncio.sleep(rng.random() * 0.5)
            over.set()
            await tasks.ended()
        rate = created / (time.monotonic() - began)
        await stage.expire(name)
        await stage.clear(name)
        assert await stage.agreed(name) == 0
        revisions = await recorder.laws()
    took.sort()
    # The nearest rank: of 200 two may be slower.
    worst = took[math.ceil(0.99 * len(took)) - 1]
    missed = [f"p99 {worst:.2f} s, {p99:g} s allowed"] if worst > p99 else []
    return Outcome(
        f"{edits} edits by {by} under {rate:.0f} creates a second of "
        f"{concurrency} creators: p50 {took[len(took) // 2]:.2f} s, p99 {worst:.2f} s, max {took[-1]:.2f} s; "
        f"{revisions} revisions checked",
        missed,
    )
