"""The search through all that can happen, for every model: breadth first, so a way into trouble is a shortest one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

World = TypeVar("World", bound=Hashable)


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
) -> Finding:
    """Visit every world that `steps` lead to. `law` returns what the second of two worlds in a row breaks.

    Raises AssertionError beyond `most` worlds.
    """
    came: dict[World, tuple[World, str] | None] = {start: None}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        for says, after in steps(world):
            if after in came:
                continue
            came[after] = (world, says)
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
