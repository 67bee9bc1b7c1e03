"""R29: mutated reviews at a webhook; mutated manifests, configurations and kubeconfigs at the command line.

Each gets an answer, soon, in one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from bizrq.cli.verbs.usage import UsageOutput
from bizrq.kube.client import NotFound
from bizrq.store.groups import GROUPS
from tests.reliability.stage import Ground, Outcome
from tests.support import hostile
from tests.support.objects import OF_KIND, deployment, tfjob


async def r29(
    ground: Ground, *, reviews: int, manifests: int, fits: int, files: int, cpu: float, tls: float
) -> Outcome:
    """One after the other. Half of `files` are configurations, half are kubeconfigs.

    `cpu` is in seconds of processor time, the least of four where the first took longer. `tls` is that of a kubeconfig,
    for which certificates are loaded.
    """
    async with ground.parts() as parts:
        pid = (await parts.webhook_process()).process.pid
        [port] = parts.balancer.backends
        await ground.controller(parts, 30)
        async with _surroundings(ground):
            trust = ssl.create_default_context(cafile=parts.folder / "ca.crt")
            connector = aiohttp.TCPConnector(ssl=trust)
            async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector) as session:
                told, most = await _reviews(ground, session, pid, reviews, cpu)
            shown, counted, asked = await _manifests(ground, parts.folder / "m.yaml", manifests, fits, cpu)
    with tempfile.TemporaryDirectory(dir=ground.folder) as folder:
        read, settled = await _files(ground, Path(folder), files // 2, _CONFIGURATION, cpu)
        used, reached = await _files(ground, Path(folder), files // 2, _KUBECONFIG, tls)
    slowest = [
        *(("a review", most, cpu), ("bizrq usage", counted, cpu), ("bizrq fit", asked, cpu)),
        *(("a configuration", settled, cpu), ("a kubeconfig", reached, tls)),
    ]
    missed = [
        f"an answer of {what} took {1000 * seconds:.0f} ms of CPU, not {1000 * bound:g}"
        for what, seconds, bound in slowest
        if seconds >= bound
    ]
    figures = (
        f"{_counts(told)} reviews, at most {1000 * most:.0f} ms of CPU; {_counts(shown)} manifests, at most "
        f"{1000 * counted:.0f} ms of usage and {1000 * asked:.0f} ms of fit; {_counts(read)} configurations, at most "
        f"{1000 * settled:.0f} ms; {_counts(used)} kubeconfigs, at most {1000 * reached:.0f} ms; no traceback, no "
        "escape sequence, no markup obeyed"
    )
    return Outcome(figures, missed)


@contextlib.asynccontextmanager
async def _surroundings(ground: Ground) -> AsyncIterator[None]:
    """The group that all is charged to, and what reviews and manifests refer to."""
    around = hostile.surroundings()
    await ground.group("nlp", **hostile.HARD)
    for obj in around:
        await ground.client.create(OF_KIND[obj["kind"]], obj)
    try:
        yield
    finally:
        for obj in reversed(around):
            with contextlib.suppress(NotFound):
                metadata = obj["metadata"]
                await ground.client.delete(OF_KIND[obj["kind"]], metadata["name"], metadata.get("namespace"))
        with contextlib.suppress(NotFound):
            await ground.client.delete(GROUPS, "nlp")


async def _reviews(
    ground: Ground, session: aiohttp.ClientSession, pid: int, count: int, cpu: float
) -> tuple[Counter[str], float]:
    rng, told, most = ground.random("R29 reviews"), Counter[str](), 0.0

    async def answered(path: str, body: bytes) -> tuple[int, float]:
        worked = _worked(pid)
        async with session.post(path, data=body, params={"timeout": "1s"}) as answer:
            text = await answer.text()
        worked = _worked(pid) - worked
        assert answer.status in (200, 400), (answer.status, path, body)
        hostile.check_answer(answer.status, text)
        return answer.status, worked

    for _ in range(count):
        path, body = hostile.review(rng)
        status, seconds = await answered(path, body)
        told["decided" if status == 200 else "not reviews"] += 1
        most = max(most, await _least(seconds, cpu, lambda path=path, body=body: _second(answered(path, body))))
    async with session.get("/readyz") as answer:
        assert answer.status == 200, "the webhook lives on"
    return told, most


async def _manifests(
    ground: Ground, path: Path, count: int, fits: int, cpu: float
) -> tuple[Counter[str], float, float]:
    """Every one to `bizrq usage`, so many to `bizrq fit` as well. Return the counts, and the slowest of each."""
    rng, shown, counted, asked = ground.random("R29 manifests"), Counter[str](), 0.0, 0.0
    kubeconfig = ground.cluster.kubeconfig
    # What the first call imports and compiles is not its answer's.
    path.write_text("{}")
    await asyncio.to_thread(hostile.fit_of, path, kubeconfig)
    hostile.usage_of(path, UsageOutput.TABLE)
    with _frozen():
        for number in range(count):
            text = hostile.manifest(rng)
            path.write_text(text, "utf-8", errors="surrogatepass")
            form = rng.choice(list(UsageOutput))
            out, err, seconds = hostile.usage_of(path, form)
            hostile.check_shown(out, err, text)
            shown["refused by usage" if err else "counted by usage"] += 1
            worked = await _least(seconds, cpu, lambda form=form: _now(hostile.usage_of(path, form)[2]))
            if worked >= cpu:
                ground.say(f"{1000 * worked:.0f} ms of usage -o {form} for {text!r}")
            counted = max(counted, worked)
            if number % max(1, count // fits):
                continue

            async def fit(text: str = text) -> float:
                code, out, err, worked = await asyncio.to_thread(hostile.fit_of, path, kubeconfig)
                assert code in (0, 1, 2), (code, out, err, text)
                hostile.check_shown(out, err, text)
                return worked

            shown["asked of fit"] += 1
            worked = await _least(await fit(), cpu, fit)
            if worked >= cpu:
                ground.say(f"{1000 * worked:.0f} ms of fit for {text!r}")
            asked = max(asked, worked)
    return shown, counted, asked


@dataclass(frozen=True)
class _File:
    """What `bizrq` reads: how one is made, the words before its path, and what each exit code means."""

    kind: str
    make: Callable[[random.Random], str]
    words: tuple[str, ...]
    codes: Mapping[int, str]


_CONFIGURATION = _File("configurations", hostile.configuration, ("usage", "--config"), {0: "read", 2: "refused"})
#: No port answers, so nothing is found.
_KUBECONFIG = _File(
    "kubeconfigs", hostile.kubeconfig, ("tree", "--kubeconfig"), {2: "refused", 3: "of a server that does not answer"}
)


async def _files(ground: Ground, folder: Path, count: int, what: _File, cpu: float) -> tuple[Counter[str], float]:
    """Every one to the program as the whole of it. Return the counts, and the slowest."""
    rng, told, most = ground.random(f"R29 {what.kind}"), Counter[str](), 0.0
    path, manifests = folder / "file.yaml", folder / "manifests.yaml"
    manifests.write_text(yaml.safe_dump_all([deployment("web", "nlp", 2), tfjob("t", "nlp", 2)]))
    path.write_text(hostile.plain_kubeconfig())

    def words() -> tuple[object, ...]:
        rest = ("-f", manifests) if what is _CONFIGURATION else ("--context", rng.choice(("one", "one", "one", "two")))
        return *what.words, path, *rest

    for context in ("one", "two"):
        # What the first call imports is not its answer's.
        await asyncio.to_thread(hostile.called, *_KUBECONFIG.words, path, "--context", context)
    with _frozen():
        for _ in range(count):
            text, given = what.make(rng), words()
            path.write_text(text, "utf-8", errors="surrogatepass")

            async def call(text: str = text, given: tuple[object, ...] = given) -> hostile.Called:
                done = await asyncio.to_thread(hostile.called, *given)
                hostile.check_called(done, what.codes, text)
                return done

            async def again(call: Callable[[], Awaitable[hostile.Called]] = call) -> float:
                return (await call()).seconds

            done = await call()
            told[what.codes[done.code]] += 1
            worked = await _least(done.seconds, cpu, again)
            if worked >= cpu:
                ground.say(f"{1000 * worked:.0f} ms of bizrq {what.words[0]} for {text[:1000]!r}")
            most = max(most, worked)
    return told, most


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Have the collector of garbage look at what is made from now on alone: the rest is of no answer."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _least(seconds: float, cpu: float, again: Callable[[], Awaitable[float]]) -> float:
    """A collection of garbage, or a watch, may fall into one answer; not into each of four."""
    return seconds if seconds < cpu else min([seconds, *[await again() for _ in range(3)]])


async def _second(answer: Awaitable[tuple[int, float]]) -> float:
    return (await answer)[1]


async def _now(seconds: float) -> float:
    return seconds


def _worked(pid: int) -> float:
    """The processor time that a process has used, in seconds, from the scheduler's own count in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _counts(told: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(told.items()))
