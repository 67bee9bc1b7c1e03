"""The JSON of an answer, whatever is nested in it.

The API server stores objects of up to 10,000 levels, as in `metadata.managedFields`, which nobody has to read. Parsers
that are written for speed give up at some 1,000, and one such object in a list hides all others. This file alone
decides what is left out then.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

#: The levels that are kept of an answer that is nested too deep. A parser reads 1,024, and its writer writes 254.
KEPT: Final = 200
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)
_OPENS: Final = b"[{"
_CLOSES: Final = b"]}"


def parse(body: bytes) -> Any:
    """Return what JSON says. Where it is nested too deep, `null` stands for what is below `KEPT` levels.

    Raises orjson.JSONDecodeError for what is no JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        shallow = _cut(body)
        if shallow is None:
            raise
    return orjson.loads(shallow)


def _cut(body: bytes) -> bytes | None:
    """Return the text without what is below `KEPT` levels; None where nothing is."""
    kept: list[bytes] = []
    depth, start = 0, 0
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first in _OPENS:
            depth += 1
            if depth == KEPT + 1:
                kept += (body[start : token.start()], b"null")
        elif first in _CLOSES:
            if depth == KEPT + 1:
                start = token.end()
            depth -= 1
    return b"".join((*kept, body[start:])) if kept else None
