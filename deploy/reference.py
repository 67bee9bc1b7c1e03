"""Print docs/reference.md, every field of the CustomResourceDefinitions of bizrq.

`python deploy/reference.py > docs/reference.md` writes the page; a test compares them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import crds

Schema = dict[str, Any]

HEAD = """\
# Fields of the CRDs

`python deploy/reference.py` generates this page from [crds/](../crds). `kubectl explain bizrq.spec` shows the same in a
terminal. All kinds are cluster-scoped, in the API group `quota.biz.group`, version `v1alpha1`. People write the `spec`
of BizGroupResourceQuota and BizGroupCorrection. [bizrq alone writes](rights.md#what-bizrq-alone-writes) everything
else.

In a field's name, `[]` is each item of a list, and `{}` is each value of a map. A **bold** field must be given.
"""


def page() -> str:
    """Return the page as Markdown: one section for each kind, one row for each field."""
    return "\n".join([HEAD, *(_section(crd) for crd in sorted(crds.load(), key=_order))])


def _order(crd: Schema) -> tuple[bool, str]:
    """Put the kind that people write most first."""
    kind = crd["spec"]["names"]["kind"]
    return kind != "BizGroupResourceQuota", kind


def _section(crd: Schema) -> str:
    names = crd["spec"]["names"]
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    told = [f"## {names['kind']}", "", f"Short name: `{names['shortNames'][0]}`."]
    if text := _text(schema):
        told += ["", textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)]
    told += ["", "| field | type | description |", "|---|---|---|"]
    for path, field, is_required in _fields(schema, ""):
        name = f"**`{path}`**" if is_required else f"`{path}`"
        told.append(f"| {name} | {_type(field)} | {_text(field)} |")
    return "\n".join(told) + "\n"


def _fields(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema, bool]]:
    """Yield path, schema and whether it must be given of each field below, parents first."""
    for name, field in schema.get("properties", {}).items():
        if not prefix and name in ("apiVersion", "kind", "metadata"):
            continue
        path = f"{prefix}{name}"
        yield path, field, name in schema.get("required", ())
        yield from _fields(field, f"{path}.")
        for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
            if isinstance(inner := field.get(key), dict):
                yield from _fields(inner, f"{path}{mark}.")


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if isinstance(inner := schema.get("items"), dict):
        return f"list of {_type(inner)}"
    if isinstance(inner := schema.get("additionalProperties"), dict):
        return f"map of {_type(inner)}"
    return str(schema.get("format") or schema.get("type", "any"))


def _text(schema: Schema) -> str:
    """Return the description in one line, with links to the pages that it names."""
    text = re.sub(r"\s+", " ", schema.get("description", "")).strip().replace("|", "\\|")
    return re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](\1.md)", text)


if __name__ == "__main__":
    sys.stdout.write(page())
