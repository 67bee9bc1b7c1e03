"""The devices that HAMi shares, as `devices/hami.yaml` lists them.

This file alone reads that list; its head is the grammar. It does not know pods: `devices.hami` applies the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """How a container asks for memory of a card: in units of `name`, each of `mib` MiB."""

    name: str
    mib: int = 1
    card: int = 0
    steps: tuple[int, ...] = ()
    most: int = 0
    only: tuple[int, ...] = ()
    bytes: bool = False


@dataclass(frozen=True, slots=True)
class CoresRule:
    """How a container asks for cores of a card, which has `full` of them."""

    name: str
    full: int = 100
    unsaid: Literal["none", "full", "exclusive"] = "none"
    strict: bool = False
    needs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class SliceRule:
    """A resource name for one of `of` equal parts of a device."""

    name: str
    of: int


@dataclass(frozen=True, slots=True)
class HamiDevice:
    """One entry of `hami.yaml`."""

    vendor: str
    count: str
    implied: bool = False
    one: bool = False
    memory: MemoryRule | None = None
    percentage: str = ""
    cores: CoresRule | None = None
    slices: SliceRule | None = None
    writes: tuple[str, ...] = ()
    totals: bool = False
    several: Literal["", "whole", "written"] = ""
    pairs: bool = False
    soft: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    allocated: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The resource names that ask for parts of it."""
        named = (self.memory, self.cores, self.slices)
        return (*(part.name for part in named if part is not None), *([self.percentage] if self.percentage else ()))

    @property
    def cards(self) -> str:
        return f"cards.{self.count}"


def read_devices(entries: Iterable[Mapping[str, Any]]) -> tuple[HamiDevice, ...]:
    """Read the entries of `hami.yaml` in their order. Raises TypeError for a key that the grammar does not have."""
    return tuple(_device(dict(entry)) for entry in entries)


def _device(entry: dict[str, Any]) -> HamiDevice:
    for key, part in (("memory", MemoryRule), ("cores", CoresRule), ("slices", SliceRule)):
        if key in entry:
            entry[key] = part(**{k: _frozen(v) for k, v in entry[key].items()})
    return HamiDevice(**{key: _frozen(value) for key, value in entry.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else MappingProxyType(value) if isinstance(value, dict) else value
