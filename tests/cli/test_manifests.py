"""`-f`: files, folders, several files in one flag, standard input; an invalid manifest is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Bizrq
from tests.support.objects import deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

FITS = "fits Deployment default/less, in vision, up to 12 replicas"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "less.yml").write_text(yaml.safe_dump(deployment("less", "vision")))
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(deployment("chat", "nlp", 3)))
    (tmp_path / "notes.txt").write_text("no manifest")
    return tmp_path


async def test_folders_are_read_recursively_with_a_flag(bizrq: Bizrq, folder: Path) -> None:
    assert (await bizrq("fit", "-f", folder)).plain == "fits Deployment default/chat, in nlp"
    assert (await bizrq("fit", "-R", "-f", folder)).plain.splitlines()[0] == FITS
    result = await bizrq("usage", "-R", "-f", folder, "-o", "yaml")
    assert [row["name"] for row in yaml.safe_load(result.out)] == ["less", "chat"]
    (folder / "chat.yaml").unlink()
    result = await bizrq("fit", "-f", folder)
    assert (result.code, "-R reads its subfolders too" in result.err) == (2, True)


async def test_several_files_are_given_in_one_flag_or_on_standard_input(bizrq: Bizrq, folder: Path) -> None:
    both = f"{folder / 'below' / 'less.yml'},{folder / 'chat.yaml'}"
    assert len((await bizrq("fit", "-f", both)).plain.splitlines()) == 2
    text = yaml.safe_dump_all([deployment("less", "vision"), None, deployment("chat", "nlp", 3)])
    assert len((await bizrq("fit", "-f", "-", stdin=text)).plain.splitlines()) == 2


async def test_usage_puts_what_sets_no_namespace_into_the_one_that_is_given(bizrq: Bizrq) -> None:
    """As fit and kubectl do, so that the label of that Namespace counts."""
    bare = deployment("bare", "", 2)
    del bare["metadata"]["namespace"], bare["metadata"]["labels"]
    other = deployment("other", "nlp", 1)
    label = {"biz.group.resource.quota": "vision"}
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": label}}
    text = yaml.safe_dump_all([team, {"apiVersion": "v1", "kind": "List", "items": [bare]}, other])

    async def places(*flags: str) -> list[tuple[str, str, str | None]]:
        found = json.loads((await bizrq("usage", "-f", "-", "-o", "json", *flags, stdin=text)).out)
        return [(row["namespace"], row["name"], row["group"]) for row in found]

    assert await places() == [("default", "bare", None), ("default", "other", "nlp")]
    assert await places("-n", "team") == [("team", "bare", "vision"), ("default", "other", "nlp")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", "not a Kubernetes object"),
        ("kind: Deployment", "apiVersion is missing"),
        (
            "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: apps/v1",
            ", document 2: not a Kubernetes object: kind is missing",
        ),
        ("", "no objects found"),
        ("---\n---\n", "no objects found"),
        ("a: [", "not YAML"),
        ("a: &x [*x, *y]", "not YAML"),
        ("\0", "not YAML"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "explain"])
async def test_an_invalid_manifest_is_exit_2_in_one_line(
    bizrq: Bizrq, tmp_path: Path, verb: str, text: str, expected: str
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    result = await bizrq(verb, "-f", path)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"bizrq: {path}")
    assert expected in result.err


async def test_a_url_is_not_fetched(bizrq: Bizrq) -> None:
    result = await bizrq("fit", "-f", "https://example.invalid/web.yaml")
    assert (result.code, "curl" in result.err) == (2, True)
