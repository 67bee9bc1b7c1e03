"""Which relatives of a group have some of a resource left: its parent and its siblings.

This file alone decides what of that may be said where some groups may not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bizrq.figures.groups.view import GroupView, ResourceView, TreeView


@dataclass(frozen=True, slots=True)
class Relatives:
    """What the relatives of a group have of one resource.

    `parent` is the name of the parent, "" for a root. `of_parent` is None where the parent has no ceiling for the
    resource, and where it may not be read. `siblings` have some left, the most first; they are None where the user may
    not list groups, so that they are unknown.
    """

    resource: str
    parent: str
    is_parent_read: bool
    of_parent: ResourceView | None
    siblings: Sequence[tuple[str, ResourceView]] | None
    contact: str = ""


def relatives(tree: TreeView, view: GroupView, resource: str) -> Relatives:
    """Return what the relatives of a group have left of a resource."""
    return relatives_below(tree, view.parent, view.name, resource)


def relatives_below(tree: TreeView, parent: str, child: str, resource: str) -> Relatives:
    """Return what the relatives of a child have left of a resource. The child need not exist yet."""
    above = tree.groups.get(parent)
    if above is None:
        return Relatives(resource, parent, False, None, None if parent else ())
    able = [
        (name, figures)
        for name in above.children
        if name != child and (figures := of_resource(tree.groups[name], resource)) is not None
        if figures.left is not None and figures.left > 0
    ]
    siblings = sorted(able, key=lambda pair: (-(pair[1].left or 0), pair[0])) if tree.is_complete else None
    return Relatives(resource, parent, True, of_resource(above, resource), siblings, above.group.contact)


def of_resource(view: GroupView, resource: str) -> ResourceView | None:
    """Return the figures of one resource, None where the group has no ceiling for it."""
    return next((figures for figures in view.resources if figures.resource == resource), None)
