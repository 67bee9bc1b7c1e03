"""What people ask for in the models of pods, as sentences, and what admission promises for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: The number of pods of a request that leaves it as it is.
SAME = -1


class Entry(NamedTuple):
    """A promise: of a "create", an "update" or a "child". It adds what `amount` is beyond `base`."""

    kind: str
    name: str
    uid: str
    version: int
    generation: int
    amount: int
    base: int

    @property
    def extra(self) -> int:
        return max(0, self.amount - self.base)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.kind, self.uid, self.generation


@dataclass(frozen=True)
class Request:
    verb: str
    name: str
    pods: int = 0
    size: int = 1
    group: str = ""
    after: int | None = None


@dataclass(frozen=True, eq=False)
class Asked:
    """Groups with their `hard` in cores, what people ask for, each a sentence, and what `stands` at the start.

    Controllers start anew so many times. Where somebody `refuses`, an allowed write may get lost.
    """

    groups: Mapping[str, int]
    asks: Sequence[str]
    stands: Sequence[str] = ()
    restarts: int = field(default=0, kw_only=True)
    refuses: bool = field(default=False, kw_only=True)
    requests: tuple[Request, ...] = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "requests", tuple(request_of(i, ask) for i, ask in enumerate(self.asks)))
        object.__setattr__(self, "names", tuple(self.groups))


def request_of(number: int, sentence: str) -> Request:
    """Return what a sentence of `tests.model.pods.Scenario` asks for; `number` is its place among all."""
    words = sentence.split()
    after = number - 1 if words[0] == "then" else None
    if after is not None:
        del words[0]
    verb, name, *rest = words
    group = rest[-1] if rest[-2:-1] in (["in"], ["to"]) else ""
    amount = rest[0] if rest and rest[0] not in ("in", "to") else ""
    pods, _, size = amount.partition("x")
    if verb in ("resize", "child"):
        return Request(verb, name, 0, int(pods), group, after)
    return Request(verb, name, int(pods) if pods else SAME, int(size or 1), group, after)
