"""`make bench`: the benchmarks of docs/results.md, by name or all. `python -m tests.bench [B1 B9 …] [--write]`."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.bench import admission, core, hours, recounts, start
from tests.bench.arena import arena
from tests.cluster import why_not_real

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
#: What needs no cluster, and what needs a real one.
ALONE = {
    "B4": hours.pods,
    "B5": core.memory,
    "B9": core.decisions,
    "B10": start.command_line,
    "B11": hours.many_groups,
    "B12": core.below,
    "B13": recounts.recounts,
}
ON_CLUSTER = {
    "B1": admission.hot_group,
    "B2": admission.spread,
    "B3": admission.depth,
    "B7": admission.handshakes,
    "B8": admission.capacity_back,
    # Last: it puts a registration of its own in place of the others'.
    "B6": admission.cold_start,
}


def main(names: list[str]) -> list[str]:
    """The rows of the table; each is printed as it comes."""
    console = Console(stderr=True, highlight=False)
    rows: list[str] = []

    def told(lines: list[str]) -> None:
        rows.extend(lines)
        for line in lines:
            console.print(line, soft_wrap=True)

    for name, bench in ALONE.items():
        if name in names:
            console.print(f"{name} …", style="dim")
            told(bench())
    wanted = [name for name in ON_CLUSTER if name in names]
    if wanted and (why := why_not_real()):
        told([f"| {name} | not run: {why} | |" for name in wanted])
    elif wanted:
        asyncio.run(_on_cluster(wanted, told, console))
    return rows


async def _on_cluster(names: list[str], told: Callable[[list[str]], None], console: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="bizrq-bench-") as folder:
        async with arena(Path(folder)) as here:
            console.print(f"on {here.version}", style="dim")
            for name in names:
                console.print(f"{name} …", style="dim")
                told(await ON_CLUSTER[name](here))


def written(rows: list[str]) -> str:
    ran = f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()}"
    return "\n".join(
        [
            "## Benchmarks",
            "",
            f"`make bench`, {ran}. Ratios of interleaved rounds on one API server: median (min to max).",
            "",
            "| id | what | figures |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="by default all")
    parser.add_argument("--write", action="store_true", help="replace the part of docs/results.md")
    arguments = parser.parse_args()
    chosen = [name.upper() for name in arguments.names] or [*ALONE, *ON_CLUSTER]
    text = written(main(chosen))
    if arguments.write:
        before = RESULTS.read_text("utf-8") if RESULTS.exists() else "# Results\n"
        head, _, rest = before.partition("## Benchmarks")
        _, mark, after = rest.partition("\n## ")
        RESULTS.write_text(head.rstrip() + "\n\n" + text + (mark + after if mark else ""), "utf-8")
    else:
        sys.stdout.write(text)
