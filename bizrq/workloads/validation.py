"""Validate the values of objects from clients, and describe in one line what is wrong.

This file alone reads untrusted values and words the messages. It does not know what the values mean. Nothing here
recurses into a value or builds a large number or text from one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bizrq.units.text import is_segment

MAX_COUNT = 2**31 - 1
"""The largest count that the API has room for (replicas and their like are int32)."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}", re.ASCII)


class Malformed(ValueError):
    """The object cannot be counted. The message is one line of ASCII: the path, then what is wrong there."""


def malformed(path: str, what: str) -> Malformed:
    return Malformed(f"{path}: {what}" if path else what)


def describe_value(value: object) -> str:
    """Return a value as messages show it: one line of ASCII with at most about 50 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = ascii(value if len(value) <= 32 else value[:32] + "...")
        return text if len(text) <= 48 else text[:44] + "...'"
    if isinstance(value, int):
        # Python refuses to write an int of more than 4,300 digits.
        return str(value) if -(2**64) < value < 2**64 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"a {type(value).__name__[:32]}"


def child_path(path: str, key: object) -> str:
    """Return the path of a key of a map, or of an index of a list."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{path}[{describe_value(key)}]"
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{describe_value(key)}]"


def expect_map(value: object, path: str) -> dict[str, Any]:
    """Return the map at `path`; absent and null are empty. Raises Malformed."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    raise malformed(path, f"must be a map, not {describe_value(value)}")


def map_at(obj: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the map that an object has below these keys, and an empty one for anything else. Raises nothing."""
    found: Any = obj
    for key in keys:
        # To ask whether a dict is a Mapping is slow.
        found = found.get(key) if isinstance(found, (dict, Mapping)) else None
    return found if isinstance(found, dict) else {}


def expect_list(value: object, path: str) -> Sequence[Any]:
    """Return the list at `path`; absent and null are empty. Raises Malformed."""
    if isinstance(value, list):
        return value
    if value is None:
        return ()
    raise malformed(path, f"must be a list, not {describe_value(value)}")


def expect_text(value: object, path: str) -> str:
    """Return the text at `path`; absent and null are empty. Raises Malformed."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise malformed(path, f"must be a string, not {describe_value(value)}")


def expect_bool(value: object, path: str) -> bool:
    """Return the boolean at `path`; absent and null are false. Raises Malformed."""
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise malformed(path, f"must be true or false, not {describe_value(value)}")


def expect_count(value: object, path: str) -> int:
    """Return the whole number at `path`, from 0 to MAX_COUNT. Raises Malformed; a bool, a float or a text is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise malformed(path, f"must be a whole number, not {describe_value(value)}")
    if value < 0:
        raise malformed(path, f"must not be negative, but is {describe_value(value)}")
    if value > MAX_COUNT:
        raise malformed(path, f"must be at most {MAX_COUNT}, but is {describe_value(value)}")
    return value


def expect_metadata(obj: Mapping[str, Any]) -> None:
    """Raise Malformed unless `metadata` is what an API server makes of it (apimachinery `meta/v1` ObjectMeta).

    Kinds differ in all else, so their readers check that. What is not read is not looked at.
    """
    path = "metadata"
    metadata = expect_map(obj.get(path), path)
    if not metadata:
        raise malformed(path, "is missing")
    for key in ("name", "namespace", "generateName"):
        if key in metadata and not is_segment(expect_text(metadata[key], f"{path}.{key}")):
            raise malformed(f"{path}.{key}", f"{describe_value(metadata[key])} is no name of an object")
    for key in ("uid", "resourceVersion", "deletionTimestamp"):
        if key in metadata:
            expect_text(metadata[key], f"{path}.{key}")
    version = metadata.get("resourceVersion") or "0"
    if not (version.isascii() and version.isdigit() and len(version) < 20):
        raise malformed(f"{path}.resourceVersion", f"{describe_value(version)} is no version of a stored object")
    for key in ("labels", "annotations"):
        for name, value in expect_map(metadata.get(key), f"{path}.{key}").items():
            if not isinstance(value, str):
                expect_text(value, child_path(f"{path}.{key}", name))
    for index, reference in enumerate(expect_list(metadata.get("ownerReferences"), f"{path}.ownerReferences")):
        at = f"{path}.ownerReferences[{index}]"
        for key in ("apiVersion", "kind", "name", "uid"):
            expect_text(expect_map(reference, at).get(key), f"{at}.{key}")
        expect_bool(reference and reference.get("controller"), f"{at}.controller")
    for index, name in enumerate(expect_list(metadata.get("finalizers"), f"{path}.finalizers")):
        expect_text(name, f"{path}.finalizers[{index}]")


def get_path(value: object, keys: Sequence[str], path: str = "") -> Any:
    """Return the value under keys; None where one of them is absent or null. Raises Malformed where one is no map."""
    for key in keys:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise malformed(path, f"must be a map, not {describe_value(value)}")
        value = value.get(key)
        path = f"{path}.{key}" if path else key
    return value


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return `, did you mean x?`, or nothing where no known word is close."""
    if not isinstance(word, str):
        return ""
    spelled = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word[:100].casefold(), spelled, n=1)
    return f", did you mean {spelled[close[0]]}?" if close else ""
