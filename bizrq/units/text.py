"""Which characters of other people's text a person is shown, which can be a part of a path, and words for numbers."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: 0 groups, 1 group, 2 groups. `plural` is by default the noun with an s."""
    return f"{number} {by_number(number, noun, plural or f'{noun}s')}"


def by_number(number: int, one: str, many: str) -> str:
    """Return the word for one thing, or that for no and for many things."""
    return one if number == 1 else many


def printable(text: str) -> str:
    """Replace the characters that a terminal obeys or that change the writing direction; keep newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str) -> str:
    """Return the text as `printable` does, with newlines and tabs as spaces."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def sanitize(text: str) -> str:
    """Return the text in one line, without the characters that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def is_segment(text: str) -> bool:
    """Return whether a request could name an object so (apimachinery `api/validation/path`); "" names none yet."""
    return text not in (".", "..") and "/" not in text and "%" not in text


def escaped(json: str) -> str:
    """Write the same characters of a JSON text as escapes, which every reader of JSON understands."""
    return "\n".join(line if line.isprintable() else _escaped_line(line) for line in json.split("\n"))


def _escaped_line(line: str) -> str:
    return "".join(c if c.isprintable() else _escape(c) for c in line)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
