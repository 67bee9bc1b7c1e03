"""`make reliability`: the experiments in full. `python -m tests.reliability [R1 R4 …] [--seed N] [--write]`.

One row an experiment: what it has to show, what it measured, PASS or FAIL. Exit code 1 if one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

import crds
from bizrq.kube.client import ApiError, KubeClient, Unreachable
from sandbox.server import Sandbox
from tests.controller.conftest import Monotonic
from tests.reliability import table
from tests.reliability.experiments.protocol import r25
from tests.reliability.stage import Ground, Outcome, ground_on, noted, real_on, stage_on, under_way
from tests.reliability.table import ALONE, KILLED, REAL, RUNNING, STAGED, Experiment
from tests.support.binaries import why_not_real
from tests.support.cluster import Cluster, has_kinds

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
MARK, END_MARK = "<!-- make reliability writes this -->", "<!-- up to here -->"
IDS = [*sorted((e.id for e in (*STAGED, *ALONE, *REAL, KILLED, RUNNING)), key=lambda text: int(text[1:])), "R25"]


@dataclass(frozen=True)
class Row:
    id: str
    on: str
    passes: str
    figures: str
    passed: bool
    #: The day, the seed, and whether it was the short form.
    form: str
    seconds: float

    @property
    def place(self) -> str:
        """How the row begins: another run of the same on the same comes in its place."""
        return f"| {self.id} | {self.on} |"

    def __str__(self) -> str:
        said = f"{'PASS' if self.passed else 'FAIL'} ({self.form})"
        return f"{self.place} {self.passes} | {self.figures.replace('|', '/')} | {said} |"


class Run:
    """Plays what was asked for, and keeps a row of each."""

    def __init__(
        self, wanted: list[str], seed: int, short: bool, writes: bool, console: Console, *, allowances: bool
    ) -> None:
        self.rows: list[Row] = []
        self._allowances = allowances
        self._wanted = wanted
        self._seed = seed
        self._short = short
        self._writes = writes
        self._console = console

    async def on_sandbox(self, folder: Path) -> None:
        async with Sandbox() as box:
            cluster = Cluster("sandbox", box.write_kubeconfig(folder / "kubeconfig"), box)
            async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
                await has_kinds(client, crds.stand_ins())
            await self._on(cluster, folder)
            await self._running(cluster, folder)

    async def on_kubernetes(self, folder: Path) -> None:
        if RUNNING.id in self._wanted:
            place = folder / "running"
            place.mkdir()
            async with real_on(place, controllers="*") as (_, cluster):
                await self._running(cluster, place)
        if self._wanted == [RUNNING.id]:
            return
        async with real_on(folder) as (real, cluster):
            await self._on(cluster, folder)
            async with self._ground(cluster, folder, has_clock=False) as ground:
                await self._all(REAL, ground)
            if KILLED.id in self._wanted:
                # Last: it kills the cluster again and again.
                async with self._ground(cluster, folder) as ground, stage_on(ground) as stage:
                    await self._play(KILLED, cluster, lambda size: KILLED.play(stage, real=real, **size))

    async def without_cluster(self) -> None:
        if "R25" in self._wanted:
            size = table.R25_SHORT if self._short else table.R25_FULL
            await self._row("R25", "no cluster", table.R25_PASSES, lambda: asyncio.to_thread(self._r25, size))

    def _r25(self, size: dict[str, int]) -> Outcome:
        return r25(number=self._seed, **size)

    def _ground(self, cluster: Cluster, folder: Path, *, has_clock: bool = True):
        clock = Monotonic() if self._short and has_clock else None
        return ground_on(cluster, folder, seed=self._seed, say=self._say, clock=clock, allowances=self._allowances)

    async def _on(self, cluster: Cluster, folder: Path) -> None:
        async with self._ground(cluster, folder) as ground:
            if any(experiment.id in self._wanted for experiment in STAGED):
                async with stage_on(ground) as stage:
                    await self._all(STAGED, stage)
            await self._all(ALONE, ground)

    async def _running(self, cluster: Cluster, folder: Path) -> None:
        if RUNNING.id in self._wanted:
            async with self._ground(cluster, folder) as ground:
                await self._play(RUNNING, cluster, lambda size: RUNNING.play(ground, **size))

    async def _all(self, experiments: tuple[Experiment, ...], ground: Ground) -> None:
        for experiment in experiments:
            if experiment.id in self._wanted:
                await self._play(experiment, ground.cluster, lambda size, of=experiment: of.play(ground, **size))

    async def _play(
        self, experiment: Experiment, cluster: Cluster, play: Callable[[dict[str, object]], Awaitable[Outcome]]
    ) -> None:
        size = experiment.short if self._short else experiment.full
        if not self._allowances:
            await self._row(experiment.id, cluster.version, experiment.passes, lambda: play(size))
            return
        on = f"{cluster.version}, allowances"
        await self._row(experiment.id, on, experiment.passes, lambda: _counting(cluster, play(size | experiment.roomy)))

    async def _row(self, name: str, on: str, passes: str, play: Callable[[], Awaitable[Outcome]]) -> None:
        self._console.print(f"{name} on {on} …", style="dim")
        began = time.monotonic()
        try:
            outcome = await play()
        except (Exception, ExceptionGroup, pytest.fail.Exception) as error:
            # Whatever goes wrong is this experiment's result; the others are still worth their while.
            self._console.print_exception(max_frames=6)
            figures, passed = " ".join(f"{type(error).__name__}: {error}".split())[:300], False
        else:
            figures, passed = "; ".join([outcome.figures, *outcome.missed]), not outcome.missed
        form = f"{datetime.now(UTC):%Y-%m-%d}, seed {self._seed}{', short' if self._short else ''}"
        row = Row(name, on, passes, figures, passed, form, time.monotonic() - began)
        self.rows.append(row)
        if self._writes:
            write(row)
        self._console.print(f"{row} {row.seconds:.0f} s", soft_wrap=True, markup=False)

    def _say(self, line: str) -> None:
        self._console.print(f"  {line}", style="dim", markup=False)


async def _counting(cluster: Cluster, play: Awaitable[Outcome]) -> Outcome:
    """Play it, and say how many creates were admitted by notes meanwhile: the controller deletes old journals."""
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as client:
        before = await noted(client)
        last = dict(before)

        async def look() -> None:
            while True:
                # The experiment may have killed the API server.
                with contextlib.suppress(ApiError, Unreachable):
                    last.update(await noted(client))
                await asyncio.sleep(1)

        async with under_way(look()):
            outcome = await play
    notes = sum(last.values()) - sum(before.values())
    return replace(outcome, figures=f"{outcome.figures}; {notes} admitted by notes")


def told(rows: list[str]) -> str:
    """The table of docs/results.md, by number and by what it ran on."""
    ordered = sorted(rows, key=lambda row: (int(row.split("|")[1].strip(" R")), row))
    return "\n".join(["| id | on | passes when | figures | result |", "|---|---|---|---|---|", *ordered])


def write(row: Row) -> None:
    """Put the row in place of its last one in the table between the marks; the words around it are a person's."""
    before = RESULTS.read_text("utf-8")
    found = re.search(f"{MARK}\n(.*?){END_MARK}", before, flags=re.DOTALL)
    if found is None:
        raise SystemExit(f"{RESULTS} has no marks {MARK} and {END_MARK} to write between")
    others = [line for line in found[1].splitlines() if re.match(r"\| R\d", line) and not line.startswith(row.place)]
    after = f"{MARK}\n{told([*others, str(row)])}\n{END_MARK}"
    RESULTS.write_text(before.replace(found[0], after), "utf-8")


async def main(run: Run, names: list[str], cluster: str) -> None:
    """Play them: first what needs no cluster, last what kills one."""
    await run.without_cluster()
    on_cluster = [name for name in names if name != "R25"]
    with tempfile.TemporaryDirectory(prefix="bizrq-reliability-") as folder:
        if on_cluster and cluster in ("sandbox", "all"):
            await run.on_sandbox(Path(folder))
        if on_cluster and cluster in ("kubernetes", "all"):
            place = Path(folder, "kubernetes")
            place.mkdir()
            await run.on_kubernetes(place)


def started() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="ID", help=f"by default all of {' '.join(IDS)}")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="by default another each time")
    parser.add_argument("--cluster", choices=("sandbox", "kubernetes", "all"), help="by default real where it can be")
    parser.add_argument("--short", action="store_true", help="the sizes of make test")
    parser.add_argument("--allowances", action="store_true", help="with webhooks that admit by allowances")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/results.md")
    arguments = parser.parse_args()
    names = [name.upper() for name in arguments.names] or IDS
    if unknown := sorted(set(names) - set(IDS)):
        parser.error(f"no experiment {', '.join(unknown)}: take some of {' '.join(IDS)}")
    why = why_not_real()
    cluster = arguments.cluster or ("sandbox" if why else "kubernetes")
    if why and cluster != "sandbox":
        parser.error(f"there can be no Kubernetes here: {why}")
    console = Console(stderr=True, highlight=False)
    console.print(f"seed {arguments.seed}")
    if why:
        console.print(f"on the sandbox, which is no proof for Kubernetes: {why}", soft_wrap=True)
    run = Run(names, arguments.seed, arguments.short, arguments.write, console, allowances=arguments.allowances)
    asyncio.run(main(run, names, cluster))
    sys.stdout.write(told([str(row) for row in run.rows]) + "\n")
    return 0 if all(row.passed for row in run.rows) else 1


if __name__ == "__main__":
    sys.exit(started())
