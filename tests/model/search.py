"""The search through all that can happen, for every model: breadth first, so a way into trouble is a shortest one."""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

World = TypeVar("World", bound=Hashable)
Asked = TypeVar("Asked", bound=Callable[..., Any])

_REMEMBERED: list[Any] = []


def remembered(function: Asked) -> Asked:
    """Return the function with an answer for each question that is put to it in one search.

    Many worlds agree in what it is asked about. It must go by its arguments alone, each hashable. The next search asks
    anew: tests patch what it calls.
    """
    # Tuples of two types may be equal.
    known: Any = functools.lru_cache(maxsize=None, typed=True)(function)
    _REMEMBERED.append(known)
    return known


def _forget() -> None:
    for known in _REMEMBERED:
        known.cache_clear()


def _itself(world: World) -> World:
    return world


@dataclass(frozen=True)
class Finding:
    """What an exploration came to: the number of worlds, and the way into the first that breaks a law."""

    worlds: int
    law: str | None = None
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.worlds} worlds: {self.law or 'holds'}" + "".join(f"\n  {step}" for step in self.path)


def search(
    start: World,
    steps: Callable[[World], Iterable[tuple[str, World]]],
    law: Callable[[World, World], str | None],
    most: int,
    *,
    same: Callable[[World], World] = _itself,
) -> Finding:
    """Visit every world that `steps` lead to. `law` returns what the second of two worlds in a row breaks.

    Worlds are one where `same` returns one for them: that is visited. Raises AssertionError beyond `most` worlds.
    """
    _forget()
    collects = gc.isenabled()
    # Worlds stay, and refer to one another in no circle: the collector would walk all of them again and again.
    gc.disable()
    try:
        return _search(same(start), steps, law, most, same)
    finally:
        if collects:
            gc.enable()
        _forget()


def _search(
    start: World,
    steps: Callable[[World], Iterable[tuple[str, World]]],
    law: Callable[[World, World], str | None],
    most: int,
    same: Callable[[World], World],
) -> Finding:
    came: dict[World, tuple[World, str] | None] = {start: None}
    todo = deque([start])
    #: What `same` was asked about: several worlds lead to each.
    known: set[World] = set()
    while todo:
        world = todo.popleft()
        for says, after in steps(world):
            if same is not _itself:
                if after in known:
                    continue
                known.add(after)
                after = same(after)
            step = world, says
            # A look and an entry in one: the hash of a world is most of what either costs.
            if came.setdefault(after, step) is not step:
                continue
            broken = law(world, after)
            if broken is not None:
                return Finding(len(came), broken, _way(came, after))
            if len(came) > most:
                raise AssertionError(f"more than {most} worlds: the scenario is too large to explore")
            todo.append(after)
    return Finding(len(came))


def _way(came: Mapping[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    way: list[str] = []
    while (step := came[world]) is not None:
        world, says = step
        way.append(says)
    return tuple(reversed(way))
