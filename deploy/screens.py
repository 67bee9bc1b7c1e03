"""Write the pictures of the terminal in docs anew: `python deploy/screens.py` plays the demo's story on a sandbox.

Each picture is an SVG of what the commands print then, in the colours that they print, for light and dark pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from bizrq.cli.standalone import Standalone, TargetCluster  # noqa: E402
from bizrq.kube.client import ApiError, KubeClient  # noqa: E402
from bizrq.settings import load  # noqa: E402
from bizrq.store.groups import GROUPS  # noqa: E402
from examples import story  # noqa: E402
from sandbox.clock import Clock  # noqa: E402
from sandbox.server import Sandbox  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
#: Columns of the terminal.
WIDTH = 100
#: The commands of each picture, by its file.
COMMANDS = {
    "terminal-tree": ("bizrq tree",),
    "terminal-refusal": ("kubectl scale deployment chat --replicas=5", "bizrq explain deploy/chat"),
    "terminal-explain": ("bizrq explain nlp",),
    "terminal-bill": ("bizrq report --hours", "bizrq report vision --hours --by workload"),
}
#: Pixels of a column, of a line, around the text, and from the top of a line to the foot of its letters.
_COLUMN, _LINE, _MARGIN, _FOOT = 8.4, 20, 14, 14
#: What the terminal's colours are on light and on dark paper; each has a contrast of at least 4.5 to 1.
_COLORS = {
    "paper": ("#ffffff", "#161b22"),
    "edge": ("#d0d7de", "#3d444d"),
    "ink": ("#1f2328", "#e6edf3"),
    "dim": ("#59636e", "#9198a1"),
    "red": ("#c21c2b", "#ff7b72"),
    "green": ("#116329", "#56d364"),
    "yellow": ("#7d4e00", "#e3b341"),
}
#: The names of a terminal's colours that are used.
_NAMES = {1: "red", 2: "green", 3: "yellow"}


@contextlib.asynccontextmanager
async def played() -> AsyncIterator[tuple[Sandbox, Path]]:
    """Yield a sandbox where the demo has been played and a group is over quota, and its kubeconfig."""
    # A whole minute is written without seconds, and the picture would be narrower.
    clock = Clock(now=datetime.now(UTC).replace(second=30, microsecond=0), rate=0)
    folder = Path(tempfile.mkdtemp(prefix="bizrq-pictures-"))
    kubeconfig = folder / "kubeconfig"
    try:
        async with (
            Sandbox(tls=True, clock=clock) as box,
            Standalone(load(None), TargetCluster(None, None, kubeconfig), sandbox=box, cash_interval=1.0),
            KubeClient.from_kubeconfig(kubeconfig) as client,
        ):
            told = story.Story(client, story.by_clock(client, clock), Console(file=StringIO()))
            await told.play()
            hard = {"limits.cpu": "20", "requests.nvidia.com/gpu": "0", story.GPU_HOURS: "60"}
            await client.create(GROUPS, story.group("speech", "ai", hard))
            await client.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": "9"}, "contact": "#nlp"}})
            await told.sees("nlp", "hard", {"limits.cpu": "9"})
            yield box, kubeconfig
    finally:
        shutil.rmtree(folder)


async def screens() -> dict[str, str]:
    """Return what each picture shows, by its file: commands behind a prompt, and what they print, with colours."""
    found: dict[str, str] = {}
    async with played() as (_, kubeconfig):
        for name, commands in COMMANDS.items():
            parts = [f"$ {command}\n{await _printed(command, kubeconfig)}" for command in commands]
            found[name] = "\n".join(parts)
    return found


async def _printed(command: str, kubeconfig: Path) -> str:
    """Run a command of bizrq on a terminal; of kubectl, `scale` alone is known."""
    program, *arguments = command.split()
    if program == "kubectl":
        return await _scaled(arguments, kubeconfig)
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG")}
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(WIDTH), "KUBECONFIG": str(kubeconfig)}
    run = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name(program),
        *arguments,
        env={**kept, **terminal},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await run.communicate()
    return printed.decode()


async def _scaled(arguments: Sequence[str], kubeconfig: Path) -> str:
    """Scale a Deployment, and return what kubectl prints of the API server's refusal."""
    _, _, name, replicas = arguments
    patch = {"spec": {"replicas": int(replicas.removeprefix("--replicas="))}}
    async with KubeClient.from_kubeconfig(kubeconfig) as client:
        try:
            await client.patch(story.DEPLOYMENTS, name, patch, namespace="default", subresource="scale")
        except ApiError as error:
            # A terminal breaks the line wherever it ends; between words it is easier to read.
            lines = textwrap.wrap(f"Error from server (Forbidden): {error.message}", WIDTH, break_on_hyphens=False)
            return "".join(f"{line}\n" for line in lines)
    raise SystemExit(f"{' '.join(arguments)} was not refused")


def svg(text: str) -> str:
    """Draw lines of a terminal, whose colours are escape sequences."""
    lines = [Text.from_ansi(line) for line in text.splitlines()]
    columns = max(cell_len(line.plain.rstrip()) for line in lines)
    width, height = round(columns * _COLUMN) + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    drawn = [piece for row, line in enumerate(lines) for piece in _line(line, _MARGIN + row * _LINE + _FOOT)]
    light, dark = ("".join(f"--{name}:{pair[at]};" for name, pair in _COLORS.items()) for at in (0, 1))
    rules = [f".{name}{{fill:var(--{name})}}" for name in _COLORS if name not in ("paper", "edge", "ink")]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"',
            ">",
            "<style>",
            f":root{{{light}}}",
            f"@media (prefers-color-scheme: dark){{:root{{{dark}}}}}",
            "rect{fill:var(--paper);stroke:var(--edge)}",
            "text{fill:var(--ink);font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}",
            *rules,
            ".bold{font-weight:bold}",
            "</style>",
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _line(line: Text, foot: int) -> list[str]:
    """Draw a line in pieces of one style each; each begins at its column, whatever the widths of a font."""
    drawn, column = [], 0
    for segment in line.render(Console(file=StringIO(), width=len(line) + 1), end=""):
        for blanks, piece in re.findall(r"(\s*)(\S+(?: \S+)*)?", segment.text):
            column += cell_len(blanks)
            if piece:
                place = f'x="{_MARGIN + column * _COLUMN:.1f}" y="{foot}" textLength="{cell_len(piece) * _COLUMN:.1f}"'
                drawn.append(f"<text {place}{_class(segment.style)}>{escape(piece)}</text>")
            column += cell_len(piece)
    return drawn


def _class(style: Style | None) -> str:
    if style is None:
        return ""
    color = style.color.number if style.color is not None else None
    words = [_NAMES.get(color, str(style.color))] if color is not None else []
    words += ["bold"] if style.bold else []
    words += ["dim"] if style.dim else []
    if unknown := set(words) - {"bold", *_COLORS}:
        raise SystemExit(f"no colour for {', '.join(sorted(unknown))}")
    return f' class="{" ".join(words)}"' if words else ""


def main() -> None:
    for name, text in asyncio.run(screens()).items():
        (FOLDER / f"{name}.svg").write_text(svg(text), "utf-8")


if __name__ == "__main__":
    main()
