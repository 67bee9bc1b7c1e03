"""Which texts are manifests."""

from __future__ import annotations

import pytest

from bizrq.figures.errors import BadValue
from bizrq.figures.manifests import objects_of


def test_empty_documents_are_left_out() -> None:
    text = "---\napiVersion: v1\nkind: Pod\n---\n---\n{apiVersion: v1, kind: Service}\n"
    assert [each["kind"] for each in objects_of(text)] == ["Pod", "Service"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no objects found"),
        ("a: [", "not YAML: "),
        ("apiVersion: v1\nkind: Pod\n---\n- 1", "document 2: not a Kubernetes object: apiVersion and kind are missing"),
        ("apiVersion: v1", "document 1: not a Kubernetes object: kind is missing"),
    ],
)
def test_what_is_no_manifest_is_named_in_one_line(text: str, said: str) -> None:
    with pytest.raises(BadValue) as raised:
        objects_of(text)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
