"""Rows for programs: the columns of CSV, which are keys of JSON too."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bizrq.units.text import printable

#: The keys of every figure of a resource, in JSON and CSV.
AMOUNTS = ("unit", "hard", "used", "selfUsed", "granted", "reserved", "left", "percentOfHard", "ahead", "liens")
#: The columns of a report of groups.
REPORT = ("group", "parent", "resource", *AMOUNTS)


def csv_text(heads: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one line of heads, then the rows; an unknown value is empty.

    No character is left that a terminal would obey.
    """
    text = io.StringIO()
    # No CRLF as in RFC 4180: terminals and grep read this too.
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if row[key] is None else row[key] for key in heads} for row in rows)
    return printable(text.getvalue())
