"""The tree of groups by their names: ancestry, root, children and subtree.

This file alone decides how a tree is walked. Admission allows no cycle, but a stored one must not hang a process: each
walk visits a name once. "" is the parent of a root.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping

#: Return the name of a group's parent, "" for a root and for an unknown group.
ParentOf = Callable[[str], str]


def lineage(name: str, parent_of: ParentOf) -> Iterator[str]:
    """Yield a name, then its ancestors, the nearest first."""
    visited: set[str] = set()
    while name and name not in visited:
        visited.add(name)
        yield name
        name = parent_of(name)


async def read_lineage(name: str, parent_of: Callable[[str], Awaitable[str]]) -> AsyncIterator[str]:
    """Yield as `lineage` does, and read a parent only when the caller asks for the next name."""
    visited: set[str] = set()
    while name and name not in visited:
        visited.add(name)
        yield name
        name = await parent_of(name)


def ancestry(name: str, parent_of: ParentOf) -> list[str]:
    """Return the ancestors of a name, the nearest first."""
    return list(lineage(name, parent_of))[1:]


def root(name: str, parent_of: ParentOf) -> str:
    """Return the last ancestor of a name, or the name itself if it has none."""
    return [name, *ancestry(name, parent_of)][-1]


def children(parents: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the sorted names of the children by parent, from pairs of a name and its parent."""
    found: dict[str, list[str]] = {}
    for name, parent in sorted(parents):
        found.setdefault(parent, []).append(name)
    return found


def tops(parents: Mapping[str, str]) -> list[str]:
    """Return the sorted names from which `subtree` reaches every name; parents by name, "" for a root.

    They are the roots, and of each cycle its first name.
    """
    found, checked = set[str](), set[str]()
    for name in sorted(parents):
        above = list(lineage(name, lambda at: "" if at in checked else parents[at]))
        last = above[-1]
        if last not in checked:
            found.add(min(above[above.index(parents[last]) :]) if parents[last] else last)
        checked.update(above)
    return sorted(found)


def subtree(name: str, children_of: Callable[[str], Collection[str]]) -> list[str]:
    """Return a name and all its descendants, each parent before its children."""
    found: dict[str, None] = {}
    pending = [name]
    while pending:
        visited = pending.pop()
        if visited not in found:
            found[visited] = None
            pending.extend(reversed(list(children_of(visited))))
    return list(found)


class ChildIndex:
    """The children of each group, kept current as groups come, move and go."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._children: dict[str, dict[str, None]] = {}

    def put(self, name: str, parent: str) -> None:
        """Record the parent of a name, "" for a root, in place of the one before."""
        if self._parents.get(name) == parent:
            return
        self.remove(name)
        self._parents[name] = parent
        self._children.setdefault(parent, {})[name] = None

    def remove(self, name: str) -> None:
        """Drop a name. Its children keep their parent."""
        parent = self._parents.pop(name, None)
        if parent is None:
            return
        siblings = self._children[parent]
        del siblings[name]
        if not siblings:
            del self._children[parent]

    def children(self, name: str) -> Collection[str]:
        """Return the names of the children as a copy, in the order in which they came."""
        return tuple(self._children.get(name, ()))

    def parent(self, name: str) -> str:
        """Return the parent of a name; "" for a root and for an unknown name."""
        return self._parents.get(name, "")
