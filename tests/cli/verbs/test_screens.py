"""The verbs that read, on a tree of 200 groups and 6 levels: what every width, NO_COLOR and ASCII show.

The first lines of each screen are in `screens/`; BIZRQ_WRITE_SCREENS=1 writes them anew, to be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import typer.main
import yaml

import crds
from bizrq.cli.main import app
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.cli.conftest import NOT_KEPT, Bizrq, CommandResult
from tests.cli.test_commands import BIN
from tests.support.cluster import has_kinds
from tests.support.objects import DEPLOYMENTS, Object, deployment, group, named
from tests.support.records import W2, W3, record, spent, stored

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Children of a group, by its level: 1 + 3 + 9 + 27 + 54 + 106 groups.
_CHILDREN = (3, 3, 3, 2, 2)
GROUP_COUNT, LEVELS = 200, 6
_SCREENS = Path(__file__).parent / "screens"
#: What verbs that read groups say first of an installation in which something is wrong.
_STATE = re.compile("bizrq: (quota is not enforced|the counts of)")
#: The answer of a verb that writes begins with the name of what it wrote, as kubectl's does.
_NAMES_AN_OBJECT = re.compile(r"\w+\.quota\.biz\.group/\S+ would be created")
#: The end of a name that the API server makes.
_TIME = re.compile(r"20\d\d-\S+Z")
_GENERATED = re.compile(r"-[a-z0-9]{5} would")
#: What differs in each run of a verb that serves.
_VARYING = ((r"(?<=127\.0\.0\.1:)\S+", "PORT"), (r"(?<=kubeconfig: ).*", "FILE"), (r"\b\d+ s\b", "N s"))
#: How a line of the log begins, and one of a wait on a slow machine.
_PASSING = re.compile(r"20\d\d-\d\d-\d\dT|still waiting")
#: What verbs that serve print last before they serve.
SERVERS = {"up --write-kubeconfig KUBECONFIG": "ready", "web": "web: "}
PAUSES = ("pause --yes --reason upgrade", "resume --timeout 0")
#: The terminals: how many columns, and what else is special.
_TERMINALS = ((60, ""), (80, ""), (120, ""), (80, "no-color"), (80, "ascii"))
#: The lines of a screen that are kept.
_LINES = 24
VERBS = (
    *("tree", "tree -o wide", "tree --depth 3 --sort percent", "get", "get -o wide", "report", "report -o wide"),
    *("report --hours", "forecast", "forecast -o wide", "audit", "explain platform-a-b-c-a-b", "describe platform-a-b"),
    "help",
    "set platform-a-b limits.cpu=+5 limits.memory=-1Gi --dry-run",
    *("status", "doctor", "usage -f FILE --config CONFIG", "fit -f FILE --config CONFIG"),
    *("explain -f FILE --config CONFIG", "explain deployment/chat --config CONFIG"),
    *("allow ann platform-a --dry-run -o name", "install --dry-run -o name"),
    *("uninstall --dry-run -o name", "uninstall --crd --dry-run -o name", "version"),
    "create platform-new --parent platform-a limits.cpu=5 requests.nvidia.com/gpu=0 --dry-run",
    "correct platform-a-b requests.nvidia.com/gpu=-2 --reason broken --dry-run",
    *("completion bash", "completion zsh", "completion fish"),
)
#: Exit codes other than 0: the sandbox has groups and no bizrq, and one of the workloads does not fit.
CODES = {"status": 1, "doctor": 1, "fit -f FILE --config CONFIG": 1}
#: Usage errors and bad input: one line each, whatever the terminal.
ERRORS = (
    *("nonsense", "tre", "tree --sort foo", "tree --depth x", "get -o foo", "get -l a=(", "status --depth 3"),
    *("explain", "explain deploy", "explain a b c", "explain platform platform-a", "fit", "fit -f none.yaml"),
    *("usage -f none.yaml", "allow ann", "allow ann nothing", "set platform-a cpu"),
    *("create Bad_Name cpu=1", "report --by foo", "install --replicas 0", "web --port 99999"),
    *("completion tcsh", "pause", "uninstall --crd", "help nonsense"),
)


def tree() -> list[tuple[str, str]]:
    """Return names with their parents, each parent first."""
    found, level = [("platform", "")], ["platform"]
    for children in _CHILDREN:
        level = [f"{parent}-{letter}" for parent in level for letter in "abc"[:children]]
        found += [(name, name.rpartition("-")[0]) for name in level]
    return found[:GROUP_COUNT]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    path = tmp_path_factory.mktemp("screens") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, [*crds.load(), *crds.stand_ins()])
        for number, (name, parent) in enumerate(tree()):
            made = await client.create(
                GROUPS, group(name, parent or None, cpu="1200", gpu="16", hours="1k", **{"limits.memory": "64Gi"})
            )
            used = {"cpu": f"{number * 7}", "limits.memory": f"{number % 64}Gi", "gpu": f"{number % 17}", "hours": "12"}
            made["status"] = {"used": named(used), "selfUsed": named(used), "lastReconcileTime": W2}
            await client.replace(GROUPS, made, subresource="status")
        await client.create(DEPLOYMENTS, workload("chat", "platform-c", 4))
        line = spent("deployments.apps/team-with-a-long-name/inference-of-a-large-model", "gpu=12")
        await stored(client, record("platform-a-b", {"open": {"start": W2, "end": W3, "settled": [line]}}))
        small = workload("small", "platform-a-b", 2)
        large = workload("a-long-name-of-a-deployment", "platform-a-b-c", 2000)
        typo = workload("typo", "platform-a-b", 1)
        typo["metadata"]["labels"]["biz.group.resource.qouta"] = "x"
        (path.parent / "FILE").write_text(yaml.safe_dump_all([small, large, typo]), "utf-8")
        (path.parent / "CONFIG").write_text("{}", "utf-8")
        yield Bizrq(path, client)


def workload(name: str, of: str, replicas: int) -> Object:
    made = deployment(name, of, replicas)
    [container] = made["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"]["memory"] = "64Mi"
    return made


def words(bizrq: Bizrq, verb: str) -> list[str]:
    """Return the words of a command with the paths of its files."""
    return [str(bizrq.kubeconfig.parent / word) if word in ("FILE", "CONFIG") else word for word in verb.split()]


def same_as_before(file: Path, text: str) -> tuple[str, str]:
    """Return what is shown and what was, for a comparison; BIZRQ_WRITE_SCREENS=1 writes the file first."""
    if os.environ.get("BIZRQ_WRITE_SCREENS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    return text, file.read_text("utf-8")


async def test_the_tree_has_200_groups_and_6_levels() -> None:
    names = [name for name, _ in tree()]
    assert (len(names), max(name.count("-") for name in names) + 1) == (GROUP_COUNT, LEVELS)


async def test_every_verb_has_a_screen() -> None:
    shown = {line.split()[0] for line in (*VERBS, *SERVERS, *PAUSES)}
    assert shown == set(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue] a group


@pytest.mark.parametrize(
    ("verb", "width", "variant"),
    [(verb, width, variant) for verb in VERBS for width, variant in _TERMINALS],
)
async def test_a_screen_has_no_broken_line_and_no_dash_for_a_zero(
    bizrq: Bizrq, verb: str, width: int, variant: str
) -> None:
    environment = {"NO_COLOR": "1"} if variant == "no-color" else {}
    encoding = "ascii" if variant == "ascii" else "utf-8"
    result = await bizrq(*words(bizrq, verb), width=width, encoding=encoding, **environment)
    assert result.code == CODES.get(verb, 0), result.err
    ageless = _GENERATED.sub("-XXXXX would", result.ageless.replace(version("bizrq"), "VERSION"))
    lines = ageless.splitlines()
    # Only commands and names to copy, and scripts, may be longer.
    if "-o name" not in verb and not verb.startswith("completion") and not _NAMES_AN_OBJECT.match(ageless):
        assert [line for line in lines if len(line) > width and "kubectl patch" not in line] == []
    assert not [line for line in lines if re.search(r"(^| )-( |$)", line)]
    if verb in ("tree", "get"):
        assert {word for line in lines for word in line.split()} >= {name for name, _ in tree()}
    assert (variant, "\x1b[3" in result.out) != ("no-color", True)
    assert (variant, result.out.isascii()) != ("ascii", False)
    text = "\n".join(lines[:_LINES]) + "\n"
    file = _SCREENS / f"{re.sub('[^a-z0-9]+', '-', verb.lower())}-{width}{f'-{variant}' if variant else ''}.txt"
    shown, before = same_as_before(file, text)
    # Ages are of different lengths, and in a sentence they decide where a line ends.
    blanks = r"\s+" if verb == "status" else " +"
    assert re.sub(blanks, " ", shown) == re.sub(blanks, " ", before)


@pytest.mark.parametrize(("width", "variant"), _TERMINALS)
async def test_a_pause_and_its_end_say_what_follows(bizrq: Bizrq, width: int, variant: str) -> None:
    environment = {"NO_COLOR": "1"} if variant == "no-color" else {}
    terminal: dict[str, Any] = {"width": width, "encoding": "ascii" if variant == "ascii" else "utf-8", **environment}
    said = [await bizrq(*line.split(), "-n", "default", **terminal) for line in PAUSES]
    assert [result.code for result in said] == [0, 0]
    lines = [line for result in said for line in result.plain.splitlines()]
    text = _TIME.sub("TIME", "\n".join(lines)) + "\n"
    file = _SCREENS / f"pause-and-resume-{width}{f'-{variant}' if variant else ''}.txt"
    shown, before = same_as_before(file, text)
    assert shown == before
    assert "".join(line for line in lines if len(line) > width) == ""


@pytest.mark.parametrize(
    ("verb", "width", "variant"),
    [(verb, width, variant) for verb in SERVERS for width, variant in _TERMINALS],
)
async def test_a_verb_that_serves_says_what_it_waits_for_and_where_it_serves(
    bizrq: Bizrq, tmp_path: Path, verb: str, width: int, variant: str
) -> None:
    """On a terminal, until Ctrl-C. What is logged differs from run to run."""
    chosen = {"no-color": {"NO_COLOR": "1"}, "ascii": {"PYTHONIOENCODING": "ascii"}}.get(variant, {})
    given = [word.replace("KUBECONFIG", str(tmp_path / "kubeconfig")) for word in verb.split()]
    code, out = await asyncio.to_thread(served, bizrq, given, width, SERVERS[verb], chosen)
    assert code == 0, out
    assert (variant, "\x1b[3" in out) != ("no-color", True)
    assert (variant, out.isascii()) != ("ascii", False)
    lines = [line for line in CommandResult(0, out, "").plain.splitlines() if not _PASSING.match(line)]
    assert [line for line in lines if line.startswith("waiting") and not re.match(r"waiting up to \d+ s ", line)] == []
    text = "\n".join(lines) + "\n"
    for varying, word in _VARYING:
        text = re.sub(varying, word, text)
    name = verb.split()[0]
    shown, before = same_as_before(_SCREENS / f"{name}-{width}{f'-{variant}' if variant else ''}.txt", text)
    assert shown == before


def served(bizrq: Bizrq, words: list[str], width: int, last: str, chosen: dict[str, str]) -> tuple[int, str]:
    """Run a verb on a terminal until a line that begins with `last`, then press Ctrl-C; return exit code and output."""
    kept = {key: value for key, value in os.environ.items() if key not in NOT_KEPT}
    here = {**kept, "KUBECONFIG": str(bizrq.kubeconfig), "TERM": "xterm-256color", "COLUMNS": str(width), **chosen}
    ours, its = os.openpty()
    process = subprocess.Popen([BIN / "bizrq", *words], stdout=its, stderr=its, stdin=subprocess.DEVNULL, env=here)
    os.close(its)
    late = threading.Timer(60, process.kill)
    late.start()
    out, is_ended = b"", False
    with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:
        while piece := terminal.read(4096):
            out += piece
            if not is_ended and any(line.startswith(last.encode()) for line in out.split(b"\n")[:-1]):
                is_ended = True
                process.send_signal(signal.SIGINT)
    late.cancel()
    return process.wait(), out.decode().replace("\r\n", "\n")


async def complaint(bizrq: Bizrq, command: str, **terminal: Any) -> str:
    """Return the one line by which a command is refused; the state of the installation may be told before it."""
    result = await bizrq(*command.split(), **terminal)
    lines = [line for line in result.err.splitlines() if not _STATE.match(line)]
    assert (result.code, result.out, len(lines)) == (2, "", 1), (command, result)
    return f"$ bizrq {command}\n{lines[0]}\n"


async def test_a_usage_error_is_one_line_on_every_terminal(bizrq: Bizrq) -> None:
    text = "".join([await complaint(bizrq, command, width=60) for command in ERRORS])
    for wider in ({"width": 120}, {"width": 80, "encoding": "ascii"}, {"width": 80, "NO_COLOR": "1"}):
        # Some of them, to keep the run short.
        for command in ERRORS[::4]:
            assert await complaint(bizrq, command, **wider) in text
    shown, before = same_as_before(_SCREENS / "errors.txt", text)
    assert shown == before
