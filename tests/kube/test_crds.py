"""What people read of our kinds in kubectl: every field of `kubectl explain`, and the columns of `kubectl get`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import crds

KINDS = {document["spec"]["names"]["plural"]: document for document in crds.load()}
#: Words of the repository, and forms that are no sentence.
_INTERNAL = re.compile(r"docs/|\.md\b|\.py\b|bizrq\.|\bTODO\b|^[Aa]bsent -")


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property with its path. Kubernetes itself describes metadata."""
    for name, field in schema.get("properties", {}).items():
        if path or name != "metadata":
            yield f"{path}.{name}", field
            yield from fields(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from fields(schema[inner], f"{path}[]")


@pytest.mark.parametrize("plural", KINDS)
def test_every_field_is_described_in_a_sentence(plural: str) -> None:
    for version in KINDS[plural]["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        every = list(fields(schema))
        assert len(every) > 2
        for path, field in [("", schema), *every]:
            text = field.get("description", "")
            assert re.fullmatch(r"[A-Z\"].*\.", text, re.DOTALL), f"{plural}{path}: {text!r}"
            assert not _INTERNAL.search(text), f"{plural}{path}: {text!r}"


def width(columns: list[dict[str, Any]], cells: dict[str, str]) -> int:
    """Return the width of kubectl's table: each column as wide as its cell or head, and three spaces between."""
    wide = [max(len(column["name"]), len(cells[column["name"]])) for column in [{"name": "Name"}, *columns]]
    return sum(wide) + 3 * (len(wide) - 1)


def test_a_list_of_groups_fits_a_terminal() -> None:
    """With names of 20 characters and the longest scarcest resource that is usual."""
    [version] = KINDS["bizgroupresourcequotas"]["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    name = "a-name-of-20-letters"
    cells = {
        "Name": name, "Parent": name, "Ready": "Unknown", "Over": "Unknown", "Hours": "Spent", "Counted": "4m59s",
        "Scarcest": "cash/requests.nvidia.com/gpu 9999/10k (100%)", "Age": "2y181d", "Contact": "#nlp-quota",
    }  # fmt: skip
    narrow = [column for column in columns if not column.get("priority")]
    assert width(narrow, cells) <= 120
    assert width(columns, cells) <= 200
