"""What may stand in an object that somebody sent, and how to say in one line that something else does.

This file alone reads untrusted values and words complaints about them. It does not know what the values mean. Nothing
here recurses into a value or builds a large number or text from one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

MOST = 2**31 - 1
"""The largest count that the API has room for (replicas and their like are int32)."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}", re.ASCII)


class Malformed(ValueError):
    """The object cannot be counted. The message is one line of ASCII: the path, then what is wrong there."""


def malformed(path: str, what: str) -> Malformed:
    return Malformed(f"{path}: {what}" if path else what)


def show(value: object) -> str:
    """A value as it may stand in a message: one line, ASCII, at most some 50 characters."""
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


def child(path: str, key: object) -> str:
    """The path of a key of a map, or of an index of a list."""
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{path}[{show(key)}]"
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f"{path}.{key}" if path else key
    return f"{path}[{show(key)}]"


def a_map(value: object, path: str) -> dict[str, Any]:
    """The map that has to stand here; absent and null are an empty one."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    raise malformed(path, f"must be a map, not {show(value)}")


def a_list(value: object, path: str) -> Sequence[Any]:
    """The list that has to stand here; absent and null are an empty one."""
    if isinstance(value, list):
        return value
    if value is None:
        return ()
    raise malformed(path, f"must be a list, not {show(value)}")


def a_text(value: object, path: str) -> str:
    """The text that has to stand here; absent and null are empty."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise malformed(path, f"must be a text, not {show(value)}")


def a_flag(value: object, path: str) -> bool:
    """The boolean that has to stand here; absent and null are false."""
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise malformed(path, f"must be true or false, not {show(value)}")


def a_count(value: object, path: str) -> int:
    """The whole number that has to stand here, from 0 to MOST. A bool, a float or a text is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise malformed(path, f"must be a whole number, not {show(value)}")
    if value < 0:
        raise malformed(path, f"must not be negative, but is {show(value)}")
    if value > MOST:
        raise malformed(path, f"must be at most {MOST}, but is {show(value)}")
    return value


def at(value: object, keys: Sequence[str], path: str = "") -> Any:
    """What stands under keys, None where any of them is absent or null. Raises Malformed where one is no map."""
    for key in keys:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise malformed(path, f"must be a map, not {show(value)}")
        value = value.get(key)
        path = f"{path}.{key}" if path else key
    return value


def nearest(word: object, known: Iterable[str]) -> str:
    """`, did you mean x?` or nothing."""
    if not isinstance(word, str):
        return ""
    spelled = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word[:100].casefold(), spelled, n=1)
    return f", did you mean {spelled[close[0]]}?" if close else ""
