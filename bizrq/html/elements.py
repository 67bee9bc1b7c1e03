"""Make trees of HTML and SVG elements: no text in them becomes markup."""

from __future__ import annotations

from xml.etree.ElementTree import Element


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """Make an element with text and children, escaped on output; `class_` becomes `class`, and `_` becomes `-`."""
    made = Element(tag, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made
