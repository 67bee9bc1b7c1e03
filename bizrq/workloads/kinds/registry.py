"""The kinds of workload that are known, and which of them are charged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

import yaml

from bizrq.workloads.kinds.declaration import (
    Adapter,
    DeclarationError,
    GroupKind,
)
from bizrq.workloads.kinds.reader import read_adapters
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.validation import nearest, show


@dataclass(frozen=True)
class Registry:
    """The kinds that are known, by group and kind, and by group and plural; `charged_names` are those that pay."""

    adapters: tuple[Adapter, ...]
    charged_names: frozenset[str]
    _by_kind: dict[GroupKind, Adapter] = field(init=False, repr=False, compare=False)
    _by_resource: dict[tuple[str, str], Adapter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_kind", {(a.group, a.kind): a for a in self.adapters})
        object.__setattr__(self, "_by_resource", {(a.group, a.plural): a for a in self.adapters})

    def by_kind(self, group: str, kind: str) -> Adapter | None:
        return self._by_kind.get((group, kind))

    def by_resource(self, group: str, plural: str) -> Adapter | None:
        return self._by_resource.get((group, plural))

    def of(self, obj: Mapping[str, Any]) -> Adapter | None:
        """The adapter of an object's group and kind, in whatever version."""
        kind = obj.get("kind")
        group, _ = group_and_version(obj.get("apiVersion"))
        return self._by_kind.get((group, kind)) if isinstance(kind, str) else None

    @cached_property
    def charged(self) -> tuple[Adapter, ...]:
        """The adapters of the kinds that are charged, in the order of their declaration."""
        return tuple(a for a in self.adapters if self.is_charged(a))

    def is_charged(self, adapter: Adapter) -> bool:
        return adapter.resource in self.charged_names

    def only(self, names: Iterable[str]) -> Registry:
        """The same kinds, of which only these are charged (`deployments.apps`, …). Raises DeclarationError."""
        chosen = frozenset(names)
        known = {a.resource: a for a in self.adapters}
        for name in sorted(chosen, key=str):
            if name not in known:
                raise DeclarationError(f"{show(name)} is no kind that is known{nearest(name, known)}")
        return replace(self, charged_names=chosen)

    def everything(self) -> Registry:
        """The same kinds, all of them charged."""
        return replace(self, charged_names=frozenset(a.resource for a in self.adapters))

    def extended(self, entries: object) -> Registry:
        """With the declarations of a configuration (`adapters`) added, and charged.

        One for a kind that is there already must say `override: true`. Raises DeclarationError.
        """
        added = read_adapters(entries, "adapters")
        known = dict(self._by_kind)
        plurals = dict(self._by_resource)
        for index, (adapter, override) in enumerate(added):
            old = known.get((adapter.group, adapter.kind)) or plurals.get((adapter.group, adapter.plural))
            if old is not None and not override:
                raise DeclarationError(
                    f"adapters[{index}]: {adapter.resource} is known already: override: true replaces it"
                )
            if old is not None:
                known.pop((old.group, old.kind), None)
            known[adapter.group, adapter.kind] = adapter
            plurals[adapter.group, adapter.plural] = adapter
        charged = self.charged_names | {a.resource for a, _ in added if not a.estimate}
        return Registry(tuple(known.values()), frozenset(charged))


@cache
def builtin() -> Registry:
    """All kinds that bizrq ships declarations of, all of them charged but those that are only estimated."""
    text = resources.files("bizrq.workloads.kinds").joinpath("kinds.yaml").read_text("utf-8")
    adapters = tuple(adapter for adapter, _ in read_adapters(yaml.safe_load(text), "kinds.yaml"))
    return Registry(adapters, frozenset(a.resource for a in adapters if not a.estimate))
