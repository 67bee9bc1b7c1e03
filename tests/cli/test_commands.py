"""Every command with good and bad input, its start-up imports, and completion."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bizrq.cli.main import app
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq

on_the_loop = pytest.mark.asyncio(loop_scope="module")

BIN = Path(sys.executable).parent
VERBS = [command.name or "" for command in app.registered_commands]
#: What must not be there yet when a person only asks for help; it makes up most of a second.
HEAVY = (
    "aiohttp",
    "asyncio",
    "cryptography",
    "kubernetes_asyncio",
    "msgspec",
    "pydantic",
    "prometheus_client",
    "yaml",
    "structlog",
)


@pytest.mark.parametrize("width", [80, 160, None])
@pytest.mark.parametrize("verb", VERBS)
@on_the_loop
async def test_help_describes_each_verb_and_a_bad_flag_is_exit_2(bizrq: Bizrq, verb: str, width: int | None) -> None:
    result = await bizrq(verb, "--help", width=width)
    assert (result.code, result.err) == (0, "")
    assert f"bizrq {verb}" in result.plain
    assert width is None or all(len(line) <= width for line in result.plain.splitlines())
    bad = await bizrq(verb, "--no-such-flag", width=width)
    assert (bad.code, bad.out) == (2, "")
    assert bad.err == f"bizrq: unknown option --no-such-flag; see bizrq {verb} --help\n"


@pytest.mark.parametrize("verb", ["", *VERBS])
@on_the_loop
async def test_help_breaks_no_word_on_a_narrow_terminal(bizrq: Bizrq, verb: str) -> None:
    narrow, wide = [(await bizrq(*verb.split(), "--help", width=width)).plain.split() for width in (60, 160)]
    broken = [word for before, word in pairwise(narrow) if word not in wide and "-" not in (before[-1], word[-1])]
    assert broken == []
    assert not any(word.endswith("...") and word not in wide for word in narrow), "every verb's line is whole"


@pytest.mark.parametrize("verb", VERBS)
@on_the_loop
async def test_the_text_of_help_fills_its_lines(bizrq: Bizrq, verb: str) -> None:
    """A line ends where the next word has no room."""
    text = re.split("\n(?:Arguments|Options):\n", (await bizrq(verb, "--help", width=80)).plain)[0]
    lines = [line.strip() for line in text.splitlines()]
    for line, following in pairwise(lines[2:]):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > 76, line


@on_the_loop
async def test_version_is_one_line_and_an_unknown_verb_is_exit_2(bizrq: Bizrq) -> None:
    result = await bizrq("version")
    assert (result.code, result.out.count("\n"), result.err) == (0, 1, "")
    result = await bizrq("fti")
    assert (result.code, result.out) == (2, "")
    assert "unknown verb fti; did you mean fit?" in result.err


@pytest.mark.parametrize(
    "line",
    [
        *("tree", "get", "report", "report --hours", "forecast", "audit", "describe nlp", "explain nlp"),
        *("correct nlp requests.nvidia.com/gpu=1 --reason x", "uninstall", "install --no-wait"),
    ],
)
@on_the_loop
async def test_an_unreachable_cluster_is_exit_3_in_one_line(bizrq: Bizrq, nowhere: Path, line: str) -> None:
    result = await bizrq(*line.split(), "--kubeconfig", nowhere)
    assert (result.code, result.out, result.err.count("\n")) == (3, "", 1)
    assert result.err.startswith("bizrq: ")
    assert "127.0.0.1:1" in result.err
    result = await bizrq(*line.split(), "--kubeconfig", nowhere.with_name("none"))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


@on_the_loop
async def test_a_cluster_without_bizrq_gets_a_hint_to_install_it(tmp_path: Path, bizrq: Bizrq) -> None:
    async with Sandbox(controllers=False) as box:
        result = await bizrq("tree", "--kubeconfig", box.write_kubeconfig(tmp_path / "bare"))
    assert result.code == 3
    assert "bizrq is not installed in the cluster" in result.err
    assert "bizrq install" in result.err


def test_help_imports_no_heavy_module() -> None:
    """B10: heavy modules are imported where they are used."""
    code = "import sys, bizrq.cli.main; print([m for m in sys.argv[1:] if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "line", ["tree", "report --hours", "explain nlp", "fit -f -", "correct nlp limits.cpu=1 --reason x"]
)
def test_a_verb_imports_only_what_its_first_request_needs(line: str) -> None:
    """B10: these modules take up to a second each; only processes, plugins and the sandbox need them."""
    code = (
        "import sys; from bizrq.cli.main import run\ntry: run()\nfinally: print([m for m in HEAVY if m in sys.modules])"
    )
    others = ("kubernetes_asyncio", "cryptography", "prometheus_client", "uvloop", "jsonpatch", "sandbox", "controller")
    words = [sys.executable, "-c", f"HEAVY = {others}; {code}", *line.split(), "--server", "http://127.0.0.1:1"]
    pod = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}'
    done = subprocess.run(words, capture_output=True, text=True, input=pod, check=False)
    assert (done.returncode, done.stdout.strip()) == (3, "[]"), done.stderr


@pytest.mark.parametrize("line", ["tree", "get -o yaml", "get --watch", "status", "tree --help"])
@on_the_loop
async def test_a_closed_pipe_ends_the_command_silently(bizrq: Bizrq, line: str) -> None:
    """As with `| head`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [str(BIN / "bizrq"), *line.split(), "--kubeconfig", str(bizrq.kubeconfig)]
    with os.fdopen(writing, "w") as closed:
        process = await asyncio.create_subprocess_exec(*words, stdout=closed, stderr=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            _, result = await process.communicate()
    assert (process.returncode, result) == (128 + signal.SIGPIPE, b""), "1 would be the answer no"


@pytest.mark.parametrize("line", ["tree", "get -o yaml", "tree --help"])
@on_the_loop
async def test_an_output_that_cannot_be_written_is_one_line_and_no_answer(bizrq: Bizrq, line: str) -> None:
    """As on a full disk. Who closes the output wants nothing of it."""
    words = [str(BIN / "bizrq"), *line.split(), "--kubeconfig", str(bizrq.kubeconfig)]
    with open("/dev/full", "w") as full:  # noqa: PTH123 a device
        process = await asyncio.create_subprocess_exec(*words, stdout=full, stderr=asyncio.subprocess.PIPE)
        _, result = await process.communicate()
    assert (process.returncode, result) == (2, b"bizrq: standard output: No space left on device\n")
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec {shlex.join(words)} >&-", stderr=asyncio.subprocess.PIPE
    )
    _, result = await process.communicate()
    assert (process.returncode, result) == (0, b"")


@on_the_loop
async def test_ctrl_c_ends_a_request_without_a_response(bizrq: Bizrq) -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    words = [str(BIN / "bizrq"), "tree", "--kubeconfig", str(bizrq.kubeconfig), "-s", f"http://127.0.0.1:{port}"]
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        await came.wait()
        process.send_signal(signal.SIGINT)
        _, result = await process.communicate()
        await gone.wait()
    server.close()
    assert (process.returncode, result) == (130, b"")


@on_the_loop
async def test_a_real_terminal_gets_bars_and_a_pipe_none(bizrq: Bizrq) -> None:
    """Run the program on a pseudo-terminal of 80 columns made by script(1)."""
    if shutil.which("script") is None:
        pytest.skip("no script(1) on PATH")
    here = {**os.environ, "KUBECONFIG": str(bizrq.kubeconfig), "TERM": "xterm-256color"}
    here.pop("NO_COLOR", None)
    command = f"stty cols 80; {BIN / 'kubectl-bizrq'} tree nlp"
    done = await asyncio.to_thread(
        subprocess.run, ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, env=here, check=True
    )
    assert "\x1b[31m███████!" in done.stdout


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["tre"], ["tree"]),
        (["fit", "--name"], ["--namespace"]),
        (["get", "-o", "j"], ["json"]),
        (["tree", "v"], ["vision"]),
        (["describe", "nlp", "o"], ["ocr"]),
        (["fit", "-f", "no-such"], []),
        (["report", "--by", "w"], ["workload"]),
        (["forecast", "v"], ["vision"]),
        (["correct", "n"], ["nlp"]),
    ],
)
@on_the_loop
async def test_kubectl_completes_verbs_flags_and_groups(bizrq: Bizrq, words: list[str], candidates: list[str]) -> None:
    """As kubectl asks: candidates, then a directive (4: no files; 0: files if there are no candidates)."""
    here = {**os.environ, "KUBECONFIG": str(bizrq.kubeconfig)}
    done = await asyncio.to_thread(
        subprocess.run, [BIN / "kubectl_complete-bizrq", *words], capture_output=True, text=True, env=here, check=True
    )
    assert done.stdout.split() == [*candidates, ":4" if candidates else ":0"]
    assert done.stderr == ""


def test_the_version_and_the_help_of_a_verb_have_their_usual_forms() -> None:
    def said(program: str, *words: str) -> str:
        return subprocess.run([BIN / program, *words], capture_output=True, text=True, check=True).stdout

    assert said("bizrq", "--version") == said("bizrq", "version")
    assert said("bizrq", "help", "tree") == said("bizrq", "tree", "--help")
    assert said("bizrq", "help") == said("bizrq", "--help")
    assert "Usage: kubectl bizrq tree" in said("kubectl-bizrq", "tree", "--help")
    assert "Usage: bizrq tree" in said("bizrq", "tree", "--help")
    for shell, words in (("bash", "complete -o"), ("zsh", "#compdef bizrq"), ("fish", "complete --command bizrq")):
        assert words in said("bizrq", "completion", shell), shell


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_are_valid_in_their_shells(shell: str, tmp_path: Path) -> None:
    here = {**os.environ, "_BIZRQ_COMPLETE": f"source_{shell}"}
    done = subprocess.run([BIN / "bizrq"], capture_output=True, text=True, env=here, check=True)
    assert "_BIZRQ_COMPLETE" in done.stdout
    if shutil.which(shell) is not None:
        script = tmp_path / "completion"
        script.write_text(done.stdout)
        subprocess.run([shell, "-n", script], check=True)


@pytest.mark.kubectl
@on_the_loop
async def test_the_kubectl_plugin_is_the_same_program(bizrq: Bizrq, tmp_path: Path) -> None:
    """kubectl finds it on PATH, and passes flags and exit codes on."""

    async def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        here = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), "KUBECONFIG": "/nowhere"}
        words = ["kubectl", "bizrq", *arguments, "--kubeconfig", str(bizrq.kubeconfig)]
        return await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, env=here, check=False)

    done = await kubectl("get", "nlp", "-o", "name")
    assert (done.returncode, done.stdout) == (0, "bizgroupresourcequota.quota.biz.group/nlp\n")
    assert (await kubectl("tree", "npl")).returncode == 2
