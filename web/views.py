"""The views of the groups that a user sees, made once for all pages and users of one state.

This file alone decides what happens where one stored group cannot be read: it is named, and all others are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bizrq.api.group import GroupObject
from bizrq.figures.errors import Unreadable
from bizrq.figures.groups.view import GroupView, TreeView, tree_view
from bizrq.units.names import Catalog
from web.visitors import Seen


@dataclass(frozen=True)
class Views:
    """The views of groups by name. `broken` says why single groups are not among them."""

    tree: TreeView
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> Mapping[str, GroupView]:
        return self.tree.groups


def views_of(seen: Seen, catalog: Catalog) -> Views:
    """Return the views of all groups that a user sees."""
    groups = list(seen.groups.values())
    try:
        return Views(tree_view(groups, catalog, is_complete=seen.is_complete))
    except Unreadable:
        broken: dict[str, str] = {}
        fine: list[GroupObject] = []
        for group in groups:
            try:
                tree_view([group], catalog)
            except Unreadable as error:
                broken[group.name] = str(error)
            else:
                fine.append(group)
        return Views(tree_view(fine, catalog, is_complete=seen.is_complete), broken)
