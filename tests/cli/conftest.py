"""Run the command line as a person does, on a sandbox with groups whose status the tests wrote."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio
import typer
import typer.main
import yaml

import crds
from bizrq.cli.main import run
from bizrq.kube.client import KubeClient
from bizrq.quota.reservation import Reservation
from bizrq.store.groups import GROUPS
from bizrq.units.times import format_timestamp
from sandbox.server import Sandbox
from tests.support.answering import answering
from tests.support.cluster import has_kinds
from tests.support.language import entry
from tests.support.objects import DEPLOYMENTS, Object, deployment, group, named
from tests.webhooks.conftest import Api

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_AGE = re.compile(r"\b\d+[smhd]\b")


@dataclass(frozen=True)
class CommandResult:
    """The result of a command: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def plain(self) -> str:
        """Return stdout without colours and trailing spaces."""
        return "\n".join(line.rstrip() for line in _ANSI.sub("", self.out).splitlines())

    @property
    def ageless(self) -> str:
        """Return `plain` with every age replaced by AGO."""
        return _AGE.sub("AGO", self.plain)


@contextlib.asynccontextmanager
async def until_interrupted(process: asyncio.subprocess.Process) -> AsyncIterator[asyncio.StreamReader]:
    """Yield the stdout of a command that goes on until Ctrl-C, which comes after the block and is no failure."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield process.stdout
            process.send_signal(signal.SIGINT)
            await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class _Screen(io.StringIO):
    """An output stream that is a terminal with this encoding."""

    def __init__(self, encoding: str, *, is_terminal: bool) -> None:
        super().__init__()
        self._encoding = encoding
        self._is_terminal = is_terminal

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] as io.TextIOWrapper has it
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


#: What a developer's own terminal may change.
NOT_KEPT = ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "LC_ALL", "LC_CTYPE", "LANG")
_LOCK = threading.Lock()
#: Typer builds all verbs anew for each call of the program, which a process makes once.
_COMMAND = functools.cache(typer.main.get_command)


class Bizrq:
    """Run a command: `await bizrq("tree", width=80)` on a terminal of this width, without `width` into a pipe."""

    def __init__(self, kubeconfig: Path, client: KubeClient) -> None:
        """`client` is an administrator's client of the same API server."""
        self.kubeconfig = kubeconfig
        self.client = client

    async def __call__(
        self,
        *arguments: object,
        width: int | None = None,
        stdin: str = "",
        encoding: str = "utf-8",
        **environment: str,
    ) -> CommandResult:
        out = _Screen(encoding, is_terminal=bool(width))
        return await asyncio.to_thread(self._run, [str(a) for a in arguments], out, width, stdin, environment)

    def _run(
        self, arguments: list[str], out: io.StringIO, width: int | None, stdin: str, environment: dict[str, str]
    ) -> CommandResult:
        err = io.StringIO()
        shown = {"COLUMNS": str(width), "LINES": "60", "TERM": "xterm-256color"} if width else {}
        kept = {k: v for k, v in os.environ.items() if k not in NOT_KEPT}
        here = {**kept, "KUBECONFIG": str(self.kubeconfig), **shown, **environment}
        with (
            _LOCK,
            mock.patch.dict(os.environ, here, clear=True),
            mock.patch("sys.argv", ["bizrq", *arguments]),
            mock.patch("sys.stdin", io.StringIO(stdin)),
            mock.patch("typer.main.get_command", _COMMAND),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                run()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            else:
                code = 0
        return CommandResult(code, out.getvalue(), err.getvalue())


def promised(place: str, **amounts: str) -> Reservation:
    return entry(place, " ".join(f"{name}={amount}" for name, amount in named(dict(amounts)).items()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """The tree of the story: nlp is over its A4 cores, vision has spent its hours, ocr is not counted yet."""
    path = tmp_path_factory.mktemp("cli") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, [*crds.load(), *crds.stand_ins()])
        api = Api(client)
        a4, a100 = "limits.cpu.A4", "requests.nvidia.com/gpu.A100"
        await api.group("corp", cpu="100", gpu="16", hours="1000", used={"cpu": "60", "gpu": "16", "hours": "520"})
        await api.group("ai", "corp", cpu="60", gpu="16", hours="500", used={"cpu": "30", "gpu": "16", "hours": "120"})
        await api.group("nlp", "ai", cpu="10", gpu="4", hours="100", **{a4: "3"})
        await api.group("vision", "ai", cpu="20", gpu="12", hours="16", **{a100: "12"})
        await client.create(GROUPS, group("ocr", "ai", cpu="5", gpu="0", hours="0"))
        await _own(client, "corp", cpu="0", gpu="0", hours="20")
        await _own(client, "ai", cpu="0", gpu="0", hours="4")
        await api.count("nlp", promised("web", cpu="2"), cpu="6", **{a4: "4"})
        await api.count("vision", cpu="8", gpu="8", hours="16", **{a100: "8"})
        await _says(client, "ai", ("Ready", "True", "limits.cpu 30/60"), ("OverQuota", "False", "within its quota"))
        over = "over quota by limits.cpu.A4=1; growth is refused, nothing is stopped"
        await _says(client, "nlp", ("Ready", "True", "limits.cpu 6/10"), ("OverQuota", "True", over))
        labels = {"biz.group.resource.quota/cpu-type": "A4"}
        chat = deployment("chat", "nlp", 4)
        chat["metadata"]["labels"] |= labels
        # As `kubectl apply` leaves it: a file without the label takes it away.
        chat["metadata"]["annotations"] = {LAST_APPLIED: json.dumps({"metadata": {"labels": labels}})}
        await client.create(DEPLOYMENTS, chat)
        await client.create(DEPLOYMENTS, deployment("search", "nlp", 2))
        async with answering(client, path.parent):
            yield Bizrq(path, client)


async def _own(client: KubeClient, name: str, **own: str) -> None:
    """Return what a group's own workloads use; its children hold the rest."""
    stored = await client.get(GROUPS, name)
    stored["status"]["selfUsed"] = named(dict(own))
    await client.replace(GROUPS, stored, subresource="status")


async def _says(client: KubeClient, name: str, *conditions: tuple[str, str, str]) -> None:
    """Return the conditions of a group as a recount writes them."""
    stored = await client.get(GROUPS, name)
    since = {"reason": "CommandResult", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    stored["status"]["conditions"] = [
        {"type": kind, "status": status, "message": message, **since} for kind, status, message in conditions
    ]
    stored["status"]["lastReconcileTime"] = format_timestamp(int(time.time() * 1000))
    await client.replace(GROUPS, stored, subresource="status")


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A kubeconfig of a server that does not answer."""
    path = tmp_path / "nowhere"
    path.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [], '
        '"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}'
    )
    return path


def written(folder: Path, *documents: Object) -> Path:
    """Write a file of these manifests."""
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(documents), "utf-8")
    return path
