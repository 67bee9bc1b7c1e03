"""The views of the groups that users see. What is the same for many users and requests is made once.

This file alone decides what happens where one stored group cannot be read: it is named, and all others are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bizrq.api.group import GroupObject
from bizrq.figures.errors import Unreadable
from bizrq.figures.groups.view import GroupView, TreeView, group_view
from bizrq.units import hierarchy
from bizrq.units.names import Catalog


@dataclass(frozen=True)
class Views:
    """The views of groups by name. `broken` says why single groups are not among them."""

    tree: TreeView
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> Mapping[str, GroupView]:
        return self.tree.groups


class ViewCache:
    """Makes views, and keeps those of the groups that everybody shares."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        #: The view of each group of the shared store, without its children, with the version that it is of.
        self._single: dict[str, tuple[GroupObject, GroupView | Unreadable]] = {}
        self._whole: tuple[str, Views] | None = None

    def shared(self, groups: Mapping[str, GroupObject], version: str) -> Views:
        """Return the views of all groups in their state of this version."""
        if self._whole is None or self._whole[0] != version:
            before, self._single = self._single, {}
            for name, group in groups.items():
                known = before.get(name)
                self._single[name] = known if known is not None and known[0] is group else (group, self._view(group))
            self._whole = version, _joined({name: view for name, (_, view) in self._single.items()}, is_complete=True)
        return self._whole[1]

    def own(self, groups: Mapping[str, GroupObject]) -> Views:
        """Return the views of a few groups of one user."""
        return _joined({name: self._view(group) for name, group in groups.items()}, is_complete=False)

    def _view(self, group: GroupObject) -> GroupView | Unreadable:
        try:
            return group_view(group, (), self._catalog)
        except Unreadable as error:
            return error


def _joined(single: Mapping[str, GroupView | Unreadable], *, is_complete: bool) -> Views:
    """Return views that know their children."""
    fine = {name: view for name, view in single.items() if isinstance(view, GroupView)}
    children = hierarchy.children((name, view.parent) for name, view in fine.items())
    known = {
        name: replace(view, children=tuple(children.get(name, ())), is_complete=is_complete)
        for name, view in fine.items()
    }
    broken = {name: str(view) for name, view in single.items() if isinstance(view, Unreadable)}
    return Views(TreeView(known, is_complete), broken)
