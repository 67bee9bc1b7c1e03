"""The element tree of pages, and its text.

This file alone says where the elements come from, and how a tree becomes the body of an answer. A tree escapes all
text, so no name or reason of other people becomes markup.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from bizrq.html.elements import element
from bizrq.units.text import printable

__all__ = ["Element", "element", "fragment", "page", "shown"]


def page(root: Element) -> bytes:
    """Return a whole document."""
    return b"<!DOCTYPE html>\n" + fragment(root)


def fragment(root: Element) -> bytes:
    """Return one element with what is in it."""
    return tostring(root, "unicode", method="html").encode("utf-8", "replace")


def shown(text: object) -> str:
    """Return text of other people without the characters that a browser would obey."""
    return printable(str(text))
