"""Manifests, configurations and kubeconfigs that anyone may have written: one clear line, soon, and no escapes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bizrq.api.config import ConfigurationError
from bizrq.cli.output import tables, terminal
from bizrq.cli.output.failure import Failure, warn
from bizrq.cli.output.tables import OutputFormat, print_document
from bizrq.cli.verbs.usage import UsageOutput, usage
from bizrq.documents import NotYAML, load_all
from bizrq.kube.config import ConfigError, from_kubeconfig
from bizrq.settings import load
from bizrq.units.text import escaped, printable
from tests.support.objects import deployment, rayjob, rollout, tfjob

#: In `make test`; BIZRQ_MANIFESTS=10000 plays the full size.
MANIFESTS = int(os.environ.get("BIZRQ_MANIFESTS", "400"))
#: Processor time of one answer, in seconds.
MOST = 0.05

ESCAPES = ("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202eabc", "\u2066", "\x7f", "\r", "\x08", "\U000e0041")
MARKUP = ("[red]", "[/]", "[link=http://x]y[/link]", ":bomb:", "[bold", "[/nothing]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")

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
    "no number": "a: !!int x",
    "an empty number": 'a: !!float ""',
    "no time": "a: !!timestamp x",
    "no truth": "a: !!bool x",
}


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


def test_ordinary_anchors_are_read() -> None:
    text = "x: &x {a: 1}\ny: {<<: *x, b: 2}\nz: [*x, *x]\n---\nx: &x 1\ny: *x\n"
    assert load_all(text) == [{"x": {"a": 1}, "y": {"a": 1, "b": 2}, "z": [{"a": 1}, {"a": 1}]}, {"x": 1, "y": 1}]
    with pytest.raises(NotYAML, match="no node before it"):
        load_all("a: &x 1\n---\nb: *x")


def _mutated(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Return the value with a part replaced by something that nobody expects."""
    odd = [None, -1, 1.5, 10**30, "", "x" * 300, "\x00", [], {}, [[]], True, {"a": None}, {1: 2}, "٣", "1e999", ".inf"]
    if depth > 8 or rng.random() < 0.08:
        return rng.choice([*odd, *ESCAPES, *MARKUP, float("inf"), float("nan")])
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        changed = {**value, key: _mutated(rng, value[key], depth + 1)}
        if rng.random() < 0.1:
            changed[rng.choice([*ESCAPES, *MARKUP])] = changed.pop(key)
        return changed
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [*value[:index], _mutated(rng, value[index], depth + 1), *value[index + 1 :]]
    if isinstance(value, str) and rng.random() < 0.5:
        return value + rng.choice([*ESCAPES, *MARKUP])
    return _mutated(rng, value, 9)


def _text(rng: random.Random, obj: Any) -> str:
    text = yaml.safe_dump(obj, allow_unicode=True) if rng.random() < 0.5 else json.dumps(obj)
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        text = (
            text[:at] + rng.choice(["&a ", "*a", "<<: ", "{", "]", "\t", "!!int ", "\x1b", "? ", "---\n"]) + text[at:]
        )
    return text


def test_mutated_manifests_are_answered_at_once_and_without_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rng = random.Random(20260102)
    originals = [deployment("web", "nlp", 2), tfjob("t", "nlp", 2), rayjob("j", "nlp", 2), rollout("c", "nlp")]
    path = tmp_path / "m.yaml"
    usage_of(path, deployment("web", "nlp", 2), UsageOutput.TABLE)
    told = {"counted": 0, "refused": 0}
    for _ in range(MANIFESTS):
        obj = copy.deepcopy(rng.choice(originals))
        for _ in range(rng.randint(1, 3)):
            obj = _mutated(rng, obj)
        text = _text(rng, obj)
        path.write_text(text, "utf-8", errors="surrogatepass")
        form = rng.choice(list(UsageOutput))
        out, err, seconds = _answer(path, form)
        told["refused" if err else "counted"] += 1
        assert len(err.splitlines()) <= 1, (err, text)
        for shown in (STYLE.sub("", out) if form is UsageOutput.TABLE else out, err):
            assert printable(shown) == shown, (shown, text)
        if form is UsageOutput.JSON and not err:
            json.loads(out)
        if seconds > MOST:
            # A collection of all tests' garbage is not the answer's.
            seconds = min(_answer(path, form)[2] for _ in range(3))
        assert seconds < MOST, text
    assert min(told.values()) > MANIFESTS / 20, told


def usage_of(path: Path, obj: Any, form: UsageOutput) -> str:
    path.write_text(yaml.safe_dump(obj))
    return _answer(path, form)[0]


def _answer(path: Path, form: UsageOutput) -> tuple[str, str, float]:
    out, err = io.StringIO(), io.StringIO()
    began = time.thread_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            usage([path], output=form)
        except Failure as failure:
            warn(str(failure))
    return out.getvalue(), err.getvalue(), time.thread_time() - began


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


def test_what_is_no_terminal_code_is_kept() -> None:
    for text in ("größer", "部署", "a\tb\n", "x → y", "▓░", ""):
        assert printable(text) == text
    assert json.loads(escaped('"\U000e0041\u202e"')) == "\U000e0041\u202e"
