"""`make bench`: the benchmarks of docs/results.md, by name or all. `python -m tests.bench [B1 B9 …] [--write]`.

What needs a cluster comes first, and nothing begins once the minutes are over: what was measured until then is written.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench import admission, core, hours, pages, recounts, scrapes, start
from tests.bench.arena import arena
from tests.support.binaries import why_not_real

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
#: How the second cell of a row begins that was measured with allowances.
WITH_ALLOWANCES = "with allowances: "
MARK, END_MARK = "<!-- make bench writes this -->", "<!-- up to here: make bench -->"
#: What needs no cluster, and what needs a real one.
ALONE = {
    "B4": hours.pods,
    "B5": core.memory,
    "B9": core.decisions,
    "B10": start.command_line,
    "B11": hours.many_groups,
    "B12": core.below,
    "B13": recounts.recounts,
    "B15": scrapes.scrapes,
    "B18": pages.of_many_groups,
}
ON_CLUSTER = {
    "B1": admission.hot_group,
    "B2": admission.spread,
    "B3": admission.depth,
    "B7": admission.handshakes,
    "B8": admission.capacity_back,
    "B14": admission.beside_hours,
    "B16": admission.paced,
    "B17": pages.beside_pages,
    # Last: it puts a registration of its own in place of the others'.
    "B6": admission.cold_start,
}


class Run:
    """Plays benchmarks until the time is over, and writes what each measured as soon as it has."""

    def __init__(self, minutes: float, writes: bool, allowances: bool) -> None:
        self.rows: list[str] = []
        self._allowances = allowances
        self._until = time.monotonic() + 60 * minutes
        self._writes = writes
        self._console = Console(stderr=True, highlight=False)

    def play(self, names: list[str]) -> None:
        on_cluster = [name for name in ON_CLUSTER if name in names]
        if on_cluster and (why := why_not_real()):
            self._say(f"not run: {', '.join(on_cluster)}: {why}")
        elif on_cluster:
            asyncio.run(self._on_cluster(on_cluster))
        for name, bench in ALONE.items():
            if name in names and self._begins(name):
                self._keep(name, bench(), "")

    async def _on_cluster(self, names: list[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="bizrq-bench-") as folder:
            async with arena(Path(folder), allowances=self._allowances) as here:
                for name in names:
                    if self._begins(name):
                        try:
                            rows = await ON_CLUSTER[name](here)
                        except (Exception, pytest.fail.Exception) as error:
                            # The others are still worth their while.
                            self._console.print_exception(max_frames=4)
                            self._say(f"{name} failed: {error}")
                        else:
                            self._keep(name, rows, here.version)

    def _begins(self, name: str) -> bool:
        left = self._until - time.monotonic()
        self._say(f"{name} …" if left > 0 else f"{name} not run: the minutes are over")
        return left > 0

    def _keep(self, name: str, rows: list[str], on: str) -> None:
        ran = f"{datetime.now(UTC):%Y-%m-%d}, {on or f'Python {platform.python_version()}'}"
        begins = f"| {name} | {WITH_ALLOWANCES}" if self._allowances else f"| {name} | "
        rows = [f"{begins}{row.removeprefix(f'| {name} | ')} {ran} |" for row in rows]
        for row in rows:
            self._console.print(row, soft_wrap=True, markup=False)
        self.rows += rows
        if self._writes:
            write(rows)

    def _say(self, line: str) -> None:
        self._console.print(line, style="dim", soft_wrap=True, markup=False)


def kind_of(row: str) -> tuple[str, bool]:
    """Return the benchmark of a row, and whether it ran with allowances: those stand beside those without."""
    _, name, what, *_ = row.split("|")
    return name.strip(), what.strip().startswith(WITH_ALLOWANCES.strip())


def told(rows: list[str]) -> str:
    """The table, by number and in the order of measuring."""
    ordered = sorted(rows, key=lambda row: int(row.split("|")[1].strip(" B")))
    return "\n".join(["| id | what | figures | ran |", "|---|---|---|---|", *ordered])


def write(rows: list[str]) -> None:
    """Put these in place of the rows of their kind; the words around the table are a person's."""
    before = RESULTS.read_text("utf-8")
    found = re.search(f"{MARK}\n(.*?){END_MARK}", before, flags=re.DOTALL)
    if found is None:
        raise SystemExit(f"{RESULTS} has no marks {MARK} and {END_MARK} to write between")
    kinds = {kind_of(row) for row in rows}
    others = [line for line in found[1].splitlines() if re.match(r"\| B\d", line) and kind_of(line) not in kinds]
    RESULTS.write_text(before.replace(found[0], f"{MARK}\n{told([*others, *rows])}\n{END_MARK}"), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="ID", help="by default all")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/results.md")
    parser.add_argument("--allowances", action="store_true", help="with webhooks that admit by allowances")
    parser.add_argument("--minutes", type=float, default=12.0, help="none begins later than this")
    arguments = parser.parse_args()
    chosen = [name.upper() for name in arguments.names] or [*ALONE, *ON_CLUSTER]
    if unknown := sorted({*chosen} - {*ALONE, *ON_CLUSTER}):
        parser.error(f"no benchmark {', '.join(unknown)}: take some of {' '.join((*ON_CLUSTER, *ALONE))}")
    run = Run(arguments.minutes, arguments.write, arguments.allowances)
    run.play(chosen)
    sys.stdout.write(told(run.rows) + "\n")
