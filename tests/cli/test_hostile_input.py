"""Manifests, configurations and kubeconfigs that anyone may have written: one clear line, soon, and no escapes."""

from __future__ import annotations

import asyncio
import io
import json
import random
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
import yaml

from bizrq import process
from bizrq.api.config import ConfigurationError
from bizrq.cli.completion import group_names
from bizrq.cli.output import tables, terminal
from bizrq.cli.output.failure import Failure, warn
from bizrq.cli.output.tables import OutputFormat, print_document
from bizrq.cli.verbs.usage import UsageOutput, usage
from bizrq.documents import NotYAML, load_all
from bizrq.kube.client import KubeClient, Unreachable
from bizrq.kube.config import ConfigError, Endpoint, StaticCredentials, from_kubeconfig
from bizrq.settings import load
from bizrq.units.text import escaped, printable
from tests.support import hostile
from tests.support.hostile import ESCAPES, MARKUP, STYLE, check_shown, usage_of

MANIFESTS = 400
#: As many kubeconfigs, too.
CONFIGURATIONS = 200
#: Processor time of one answer, in seconds.
MOST = 0.05

BOMBS = {
    "merge keys": "a0: &a0 {k: v}\n"
    + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "aliases": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "depth": "[" * 100_000,
    "depth of blocks": "".join(" " * n + "a:\n" for n in range(2000)),
    "itself": "a: &x [*x]",
    "size": "#" * (16 * 1024 * 1024 + 1),
    "a date": "a: 2001-99-99",
    "a large number": "a: " + "9" * 5000,
    "a tag": "a: !!python/object:os.system x",
    "a number of base 60": "a: " + ":".join(["59"] * 200_000),
    "a tagged number of base 60": "a: !!float '" + ":".join(["59"] * 200_000) + "'",
    "a hexadecimal number": "a: 0x" + "f" * 6000,
    "nodes": "- a\n" * (4 * 1024 * 1024),
    "numbers as keys": "".join(f"{n * (2**61 - 1)}: a\n" for n in range(20_000)),
    "no number": "a: !!int x",
    "an empty number": 'a: !!float ""',
    "no time": "a: !!timestamp x",
    "no truth": "a: !!bool x",
}


def test_a_parser_says_where_a_text_is_wrong_and_not_what_it_is() -> None:
    with pytest.raises(NotYAML, match=r"^not YAML: while parsing .* at line \d, column \d") as raised:
        load_all("a: [")
    assert "string" not in str(raised.value)


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_one_line_wherever_it_is_read(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(bomb)
    readers: tuple[tuple[Callable[[], object], type[Exception]], ...] = (
        (lambda: usage([path]), Failure),
        (lambda: load(path), ConfigurationError),
        (lambda: from_kubeconfig(path), ConfigError),
    )
    for read, error in readers:
        began = time.thread_time()
        with pytest.raises(error) as raised:
            read()
        assert time.thread_time() - began < 1
        assert str(raised.value).startswith(f"{path}: ")
        assert str(raised.value).isprintable()


def test_a_file_beyond_the_bound_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse.yaml"
    with path.open("wb") as file:
        file.truncate(3 * 1024**3)
    for read in (lambda: usage([path]), lambda: load(path), lambda: from_kubeconfig(path)):
        began = time.thread_time()
        with pytest.raises((Failure, ConfigurationError, ConfigError), match=r"sparse.yaml: larger than 16 MiB$"):
            read()
        assert time.thread_time() - began < 1
    monkeypatch.setattr("sys.stdin", _Endless())
    with pytest.raises(Failure, match=r"^-: larger than 16 MiB$"):
        usage([Path("-")])


class _Endless(io.StringIO):
    def read(self, size: int | None = -1, /) -> str:
        assert size is not None
        assert size > 0, "what has no end is not read to its end"
        return "#" * size


def test_numbers_of_a_usual_length_and_number_keys_are_read() -> None:
    assert load_all(f"a: 0x{'f' * 16}\nb: {'9' * 300}\n1: 1.5e3\n2: 1") == [
        {"a": 2**64 - 1, "b": int("9" * 300), 1: "1.5e3", 2: 1}
    ]


def test_ordinary_anchors_are_read() -> None:
    text = "x: &x {a: 1}\ny: {<<: *x, b: 2}\nz: [*x, *x]\n---\nx: &x 1\ny: *x\n"
    assert load_all(text) == [{"x": {"a": 1}, "y": {"a": 1, "b": 2}, "z": [{"a": 1}, {"a": 1}]}, {"x": 1, "y": 1}]
    with pytest.raises(NotYAML, match="no node before it"):
        load_all("a: &x 1\n---\nb: *x")


def test_mutated_manifests_are_answered_at_once_and_without_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R29 in the reliability runner plays 10,000, and `bizrq fit` as well."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    rng = random.Random(20260102)
    path = tmp_path / "m.yaml"
    path.write_text("{}")
    usage_of(path, UsageOutput.TABLE)
    told = {"counted": 0, "refused": 0}
    for _ in range(MANIFESTS):
        text = hostile.manifest(rng)
        path.write_text(text, "utf-8", errors="surrogatepass")
        form = rng.choice(list(UsageOutput))
        out, err, seconds = usage_of(path, form)
        told["refused" if err else "counted"] += 1
        check_shown(out, err, text)
        if form is UsageOutput.JSON and not err:
            json.loads(out)
        if seconds > MOST:
            # A collection of all tests' garbage is not the answer's.
            seconds = min(usage_of(path, form)[2] for _ in range(3))
        assert seconds < MOST, text
    assert min(told.values()) > MANIFESTS / 20, told


@pytest.mark.parametrize(
    ("verb", "text", "said"),
    [
        ("tree", {"current-context": "c" * 5000}, "current-context is longer than 4096 characters"),
        (
            "tree",
            {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:9/{'a' * 5000}"}}]},
            "clusters.0.cluster: server is longer than 4096 characters",
        ),
        ("tree", {"current-context": "c" * 4000}, f"there is no context '{'c' * 128}'...; known: none"),
        (
            "tree",
            {"current-context": "x", "contexts": [{"name": f"c{n:05}", "context": {}} for n in range(20_000)]},
            ", c00019 and 19980 more",
        ),
        (
            "tree",
            {"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "d" * 4000}}]},
            f"context 'x' names the cluster '{'d' * 128}'..., which is not there",
        ),
        (
            "usage",
            {"gpuResources": [1] * 20_000},
            "gpuResources.1: 1 is of the wrong type: write a text; and 19992 more",
        ),
    ],
    ids=["a long name", "a long address", "a long context", "contexts", "a long cluster", "errors"],
)
def test_a_long_list_or_name_is_one_clear_line(tmp_path: Path, verb: str, text: dict[str, Any], said: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps(text))
    manifests = tmp_path / "m.yaml"
    manifests.write_text("{}")
    done = hostile.called(verb, *(("--kubeconfig", path) if verb == "tree" else ("-f", manifests, "--config", path)))
    hostile.check_called(done, (2,), said)
    assert said in done.err
    assert len(done.err) < 1000


def test_mutated_configurations_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    rng = random.Random(20260703)
    path = tmp_path / "c.yaml"
    told = {"read": 0, "refused": 0}
    for _ in range(CONFIGURATIONS):
        text = hostile.configuration(rng)
        path.write_text(text, "utf-8", errors="surrogatepass")
        try:
            load(path)
            told["read"] += 1
        except ConfigurationError as error:
            told["refused"] += 1
            check_one_line(error, text)
    assert min(told.values()) > CONFIGURATIONS / 20, told


def test_mutated_kubeconfigs_are_read_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host is looked up and no port listens, but a request goes as far as it can."""

    def lookup(host: bytes | str | None, *_: object, **__: object) -> NoReturn:
        # The true one does this first, and fails so.
        if isinstance(host, str):
            host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "no such host")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    rng = random.Random(20260704)
    path = tmp_path / "k.yaml"
    told = {"read": 0, "refused": 0}
    for _ in range(CONFIGURATIONS):
        text = hostile.kubeconfig(rng)
        path.write_text(text, "utf-8", errors="surrogatepass")
        try:
            asyncio.run(_ask(from_kubeconfig(path, rng.choice((None, None, None, "two")))))
            told["read"] += 1
        except ConfigError as error:
            told["refused"] += 1
            check_one_line(error, text)
    assert min(told.values()) > CONFIGURATIONS / 20, told


async def _ask(endpoint: Endpoint) -> None:
    """Send a request, and begin a handshake. Raise ConfigError."""
    async with KubeClient(endpoint) as client:
        with pytest.raises(Unreachable):
            await client.request("POST", "/healthz", timeout=5)
    if context := endpoint.tls(await endpoint.credentials.identity()):
        name = endpoint.server_name or urlsplit(endpoint.server).hostname
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)


def check_one_line(error: Exception, text: str) -> None:
    """Fail for a message of several lines once it is printed."""
    warn(str(error))
    assert "\n" not in str(error), (str(error), text)
    assert str(error), text


def test_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for text in MARKUP:
        terminal.console().print(text)
        tables.print_table(("name", "more"), [[text, text]])
        shown = STYLE.sub("", capsys.readouterr().out)
        assert shown.count(text) == 3, shown


def test_every_way_to_print_passes_the_filter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.text import Text

    monkeypatch.setenv("FORCE_COLOR", "1")
    for text in ESCAPES:
        terminal.console().print(Text(f"a{text}b", "bold red"))
        terminal.print_sentences(terminal.console(), [f"a{text}b"], 2)
        tables.print_table(("name", f"h{text}"), [[f"a{text}b", Text(f"c{text}d", "red")]])
        tables.print_csv(["a"], [{"a": f"a{text}b"}])
        tables.print_names([f"a{text}b"])
        terminal.write(f"a{text}b\n")
        warn(f"a{text}b")
        said = capsys.readouterr()
        for shown in (STYLE.sub("", said.out), said.err):
            assert printable(shown) == shown, ascii(shown)
            assert "a" in shown
        for form, read in ((OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)):
            print_document({"a": text, text: "é"}, form)
            shown = capsys.readouterr().out
            assert printable(shown) == shown, ascii(shown)
            assert read(shown) == {"a": text, text: "é"}, "a script reads what there is"


def test_a_name_of_a_file_forges_no_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failure) as raised:
        usage([Path("none\nbizrq: forged\x1b[31m")])
    warn(str(raised.value))
    with pytest.raises(SystemExit):
        process.prepare("bizrq-webhooks", Path("none\nforged"), None)
    assert [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()] == ["bizrq", "bizrq-webhooks"]


def test_completion_has_no_name_that_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No API server stores such a name; a server that says so is none."""

    async def items(*_: object, **__: object) -> tuple[list[dict[str, Any]], str]:
        return [{"metadata": {"name": f"nlp{end}"}} for end in ("", *ESCAPES, "\n")], "1"

    monkeypatch.setattr(KubeClient, "list", items)
    monkeypatch.setattr(
        "bizrq.cli.cluster.client_for", lambda _: KubeClient(Endpoint("http://127.0.0.1:9", StaticCredentials({})))
    )
    assert group_names("n") == ["nlp"]


def test_what_is_no_terminal_code_is_kept() -> None:
    for text in ("größer", "部署", "a\tb\n", "x → y", "▓░", ""):
        assert printable(text) == text
    assert json.loads(escaped('"\U000e0041\u202e"')) == "\U000e0041\u202e"
