"""A backup that `deploy/restore.py` cannot read is one line, and a large one is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bizrq.documents import LARGEST
from tests.docs.test_docs import ROOT, script
from tests.support.hostile import ESCAPES
from tests.support.objects import group

RESTORE = script(ROOT / "deploy/restore.py")


def backed_up(name: str, **more: Any) -> dict[str, Any]:
    found = group(name)
    return {**found, "metadata": {**found["metadata"], "uid": f"uid-of-{name}"}, **more}


def test_a_backup_beyond_the_bound_of_manifests_is_read() -> None:
    items = [backed_up(f"g{n}", spec={"owner": "x" * 1024 * 1024}) for n in range(17)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    assert len(text) > LARGEST.bytes
    assert RESTORE.items_of(text) == items
    assert RESTORE.LARGEST.nodes > LARGEST.nodes


def test_lists_single_objects_and_an_empty_list_are_read() -> None:
    one, two = backed_up("one"), backed_up("two")
    assert RESTORE.items_of(f"{json.dumps({'items': [one]})}\n---\n{json.dumps(two)}") == [one, two]
    assert RESTORE.items_of('{"kind": "List", "items": []}') == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not YAML: while parsing"),
        ("- 1", "not a list of objects"),
        ("items: {a: b}", "not a list of objects"),
        ("items: [7]", "items.0 is no object of bizrq: give the output of kubectl get bizgroup -o yaml"),
        ("apiVersion: v1\nkind: Pod", "items.0 is no object of bizrq"),
        (json.dumps(group("a")), "items.0: metadata lacks name or uid"),
        (json.dumps(backed_up("a", metadata=[])), "items.0: metadata lacks name or uid"),
        (json.dumps(backed_up("a", spec=[1])), "items.0: spec is of the wrong type"),
        (json.dumps(backed_up("a", status="x")), "items.0: status is of the wrong type"),
        (json.dumps(backed_up("a", spec={"parentBizGroup": ["b"]})), "items.0: spec.parentBizGroup is of the wrong"),
        (None, "No such file or directory"),
    ],
)
def test_a_broken_backup_is_one_line_with_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    said: str,
) -> None:
    assert refusal(tmp_path, monkeypatch, capsys, text).startswith(f"restore: {tmp_path}/backup.yaml: {said}")


def test_a_cluster_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(tmp_path, monkeypatch, capsys, json.dumps(backed_up("a")))
    assert said == f"restore: {tmp_path}/none: there is no such file"


def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> str:
    """The one line on stderr with which the program ends."""
    backup = tmp_path / "backup.yaml"
    if text is not None:
        backup.write_text(text)
    monkeypatch.setattr(sys, "argv", ["restore.py", str(backup), "--kubeconfig", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        RESTORE.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_names_are_shown_without_what_a_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def restored(*_: object) -> Any:
        for text in ESCAPES:
            yield f"bizgroups {text}\nforged created"

    (tmp_path / "none").write_text(
        "current-context: one\ncontexts: [{name: one, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    (tmp_path / "backup.yaml").write_text("items: []")
    monkeypatch.setattr(RESTORE, "restore", restored)
    monkeypatch.setattr(
        sys, "argv", ["restore.py", str(tmp_path / "backup.yaml"), "--kubeconfig", str(tmp_path / "none")]
    )
    RESTORE.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ESCAPES)
    assert all(line.isprintable() and line.endswith("forged created") for line in lines)
