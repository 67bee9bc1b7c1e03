"""One remembered payer: its line in the record of a group, and what the reservation of a leaving object says of it.

This file alone decides how a line reads, which of two lines of one payer counts, and how many lines can be read
together. Who is remembered, and for how long, is the controller's decision. Times inside are integer milliseconds since
1970.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bizrq.quota.reservation import LIFETIME, Reservation
from bizrq.units.text import counted
from bizrq.units.times import TimestampError, format_timestamp, parse_timestamp
from bizrq.workloads.labels import Models

#: As many lines, and characters of lines, as one object may have. An object in etcd has at most 1.5 MiB. A page gets
#: fewer (`pages.MAX_LINES`), but those of older versions of bizrq are read as well.
MAX_LINES, MAX_LENGTH = 10_000, 1024 * 1024
#: In the line of each payer that is gone, and in no other.
GONE_MARK = " gone="
_VERSION, _SINCE, _GONE, _MODELS = "v1", "since=", GONE_MARK.strip(), "models="
#: In the text of each reservation whose write takes an object from its owner, and in no other.
LEFT_MARK = " left="
_LEFT = LEFT_MARK.strip()
#: The words that each line has, and how the parts between them read. Those of a later version are skipped.
_WORDS, _PART = 4, re.compile(r"(?!since=)[a-z]{1,32}=.*", re.ASCII)
_MODEL = re.compile(r"(cpu|gpu|memory):([A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Memory:
    """One remembered payer: from `since` on `group` paid for what the object with this uid made.

    `place` names the payer for people: `Deployment/team-a/web`. `gone` is when it was seen deleted, or seen to let the
    object go; None while it stands. `models` are those of its labels: what it leaves is charged under them.
    """

    group: str
    place: str
    since: int
    gone: int | None = None
    models: Models = ()


def is_later(one: Memory, other: Memory) -> bool:
    """Return True where of two lines of one payer in one group the first counts."""
    return (one.since, one.gone or 0) > (other.since, other.gone or 0)


class KnownLines(NamedTuple):
    """Lines by uid and the payers that they remember. Most lines of a page stay as they are from write to write."""

    lines: Mapping[str, str]
    payers: Mapping[str, Memory]


NO_LINES = KnownLines({}, {})


class PayersUnreadable(ValueError):
    """A stored record that cannot be counted with; says which line and why."""


def payer_line(uid: str, memory: Memory) -> str:
    """Return `v1 UID since=TIME [gone=TIME] [models=WHAT:MODEL,…] KIND/NAMESPACE/NAME`."""
    ended = "" if memory.gone is None else f"{GONE_MARK}{format_timestamp(memory.gone)}"
    models = "".join(f" {part}" for part in _models_part(memory.models))
    return f"{_VERSION} {uid} {_SINCE}{format_timestamp(memory.since)}{ended}{models} {memory.place}"


def leaving_parts(place: str, models: Models) -> tuple[str, ...]:
    """Return `left=KIND/NAMESPACE/NAME` and `models=WHAT:MODEL,…`: who paid for an object that leaves its owner.

    They are parts of the reservation of that write, so that they are stored before the object has left.
    """
    return (f"{_LEFT}{place}", *_models_part(models))


def leaving_line(entry: Reservation) -> str | None:
    """Return the line of the payer that a reservation states for an object that leaves its owner, if it does."""
    place = next((part.removeprefix(_LEFT) for part in entry.others if part.startswith(_LEFT)), None)
    if place is None:
        return None
    at = format_timestamp(entry.expires - LIFETIME)
    models = [part for part in entry.others if part.startswith(_MODELS)]
    return " ".join([_VERSION, entry.uid, f"{_SINCE}{at}", f"{_GONE}{at}", *models, place])


def payer_lines(payers: Mapping[str, Memory], known: KnownLines = NO_LINES) -> list[str]:
    """Return the lines of payers, sorted."""
    lines, before = known
    return sorted(
        lines[uid] if before.get(uid) is memory else payer_line(uid, memory) for uid, memory in payers.items()
    )


def parse_payer(group: str, line: str) -> tuple[str, Memory]:
    """Return the uid of a line and the payer that it remembers; raises PayersUnreadable."""
    words = line.split(" ")
    if len(words) < _WORDS or words[0] != _VERSION or not words[1]:
        raise PayersUnreadable(f"{line[:120]!r} is no line: write v1 UID since=TIME [gone=TIME] KIND/NAMESPACE/NAME")
    since = _time(line, _SINCE, words[2])
    parts = {f"{word.partition('=')[0]}=": word for word in words[3:-1]}
    if len(parts) < len(words) - _WORDS or not all(map(_PART.fullmatch, parts.values())):
        raise PayersUnreadable(f"{line[:120]!r} is no line: {' '.join(words[3:-1])[:80]!r} cannot be read")
    gone = _time(line, _GONE, parts[_GONE]) if _GONE in parts else None
    models = _models(line, parts[_MODELS]) if _MODELS in parts else ()
    kind, _, rest = words[-1].partition("/")
    if not kind or "/" not in rest or rest.endswith("/"):
        raise PayersUnreadable(f"{line[:120]!r}: {words[-1][:80]!r} is no KIND/NAMESPACE/NAME")
    return words[1], Memory(group, words[-1], since, gone, models)


def parse_payers(group: str, lines: Collection[str], known: KnownLines = NO_LINES) -> dict[str, Memory]:
    """Return the remembered payers of lines by uid, in the order of the lines; raises PayersUnreadable."""
    if not fits(lines):
        raise PayersUnreadable(
            f"it has {counted(len(lines), 'line')} of {_length(lines)} characters: at most {MAX_LINES} of {MAX_LENGTH}"
        )
    found: dict[str, Memory] = {}
    for line in lines:
        uid = line[len(_VERSION) + 1 :].partition(" ")[0]
        if known.lines.get(uid) == line:
            memory = known.payers[uid]
        else:
            uid, memory = parse_payer(group, line)
        if uid in found:
            raise PayersUnreadable(f"{line[:120]!r}: another line has this uid")
        found[uid] = memory
    return found


def fits(lines: Collection[str]) -> bool:
    """Return True if one object may have these lines."""
    return len(lines) <= MAX_LINES and _length(lines) <= MAX_LENGTH


def _length(lines: Iterable[str]) -> int:
    return sum(map(len, lines))


def _models_part(models: Models) -> tuple[str, ...]:
    return (f"{_MODELS}{','.join(f'{what}:{model}' for what, model in models)}",) if models else ()


def _models(line: str, word: str) -> Models:
    found = [_MODEL.fullmatch(part) for part in word.removeprefix(_MODELS).split(",")]
    pairs = tuple((match[1], match[2]) for match in found if match is not None)
    if len(pairs) < len(found) or list(dict(pairs)) != sorted(dict(pairs)) or len(dict(pairs)) < len(pairs):
        raise PayersUnreadable(f"{line[:120]!r}: {word[:80]!r} is no {_MODELS}WHAT:MODEL,…")
    return pairs


def _time(line: str, key: str, word: str) -> int:
    try:
        if word.startswith(key):
            return parse_timestamp(word.removeprefix(key))
    except TimestampError:
        pass  # Neither is a word without the key a time.
    raise PayersUnreadable(f"{line[:120]!r}: {word[:80]!r} is no {key}TIME")
