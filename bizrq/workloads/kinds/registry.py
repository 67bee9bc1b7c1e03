"""The known kinds of workload, and which of them are charged, in which namespaces.

This file alone answers which adapter counts an object. It does not read files: the caller passes the declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bizrq.units.slot import Slot
from bizrq.workloads.kinds.declaration import (
    Adapter,
    Codes,
    DeclarationError,
    GroupKind,
)
from bizrq.workloads.kinds.reader import read_adapters
from bizrq.workloads.lookup import group_and_version
from bizrq.workloads.scope import EVERYWHERE, Scope
from bizrq.workloads.validation import describe_value, suggestion


@dataclass(frozen=True)
class Registry:
    """The known kinds by group and kind, and by group and plural. `charged_names` are those that are charged.

    `scope` has the namespaces in which they are.
    """

    adapters: tuple[Adapter, ...]
    charged_names: frozenset[str]
    codes: Codes
    scope: Scope = EVERYWHERE
    _by_kind: dict[GroupKind, Adapter] = field(init=False, repr=False, compare=False)
    _by_resource: dict[tuple[str, str], Adapter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_kind", {a.group_kind: a for a in self.adapters})
        object.__setattr__(self, "_by_resource", {(a.group, a.plural): a for a in self.adapters})

    def by_kind(self, group: str, kind: str) -> Adapter | None:
        return self._by_kind.get((group, kind))

    def by_resource(self, group: str, plural: str) -> Adapter | None:
        return self._by_resource.get((group, plural))

    def of_slot(self, slot: Slot) -> Adapter | None:
        """Return the kind of the objects of a slot; None for an unknown one, as that of groups."""
        plural, _, group = slot.kind.partition(".")
        return self.by_resource(group, plural)

    def of(self, obj: Mapping[str, Any]) -> Adapter | None:
        """Return the adapter of an object's group and kind, whatever its version; None for an unknown kind."""
        kind = obj.get("kind")
        group, _ = group_and_version(obj.get("apiVersion"))
        return self._by_kind.get((group, kind)) if isinstance(kind, str) else None

    def named(self, word: str) -> Adapter | None:
        """Return the kind of a name as kubectl takes it: Deployment, deployments, deployments.apps."""
        return self._by_word.get(word.lower())

    def word_for(self, adapter: Adapter) -> str:
        """Return the short name by which `named` finds a kind of this registry."""
        word = adapter.kind.lower()
        return word if self.named(word) is adapter else adapter.resource

    @cached_property
    def _by_word(self) -> Mapping[str, Adapter]:
        """The kinds by their names; where two share one, it is the first one's."""
        found: dict[str, Adapter] = {}
        for adapter in self.adapters:
            for name in (adapter.kind.lower(), adapter.plural):
                found.setdefault(name, adapter)
                found.setdefault(f"{name}.{adapter.group}", adapter)
        return found

    @cached_property
    def countable(self) -> frozenset[str]:
        """The kinds that `count/` may name: the charged ones. A ceiling on any other would never hold."""
        return frozenset(adapter.resource for adapter in self.charged)

    @cached_property
    def charged(self) -> tuple[Adapter, ...]:
        """The adapters of the charged kinds, in the order of their declaration."""
        return tuple(a for a in self.adapters if self.is_charged(a))

    @cached_property
    def makers(self) -> tuple[Adapter, ...]:
        """The charged kinds that pay for what they make."""
        return tuple(a for a in self.charged if a.pays and a.creates)

    @cached_property
    def passing(self) -> tuple[Adapter, ...]:
        """The charged kinds below which another may pay: what made a pod may pay for what the pod makes."""
        return tuple(a for a in self.charged if a.passes)

    @cached_property
    def made(self) -> tuple[Adapter, ...]:
        """The charged kinds that the makers make."""
        kinds = set[GroupKind]().union(*(a.creates for a in self.makers))
        return tuple(a for a in self.charged if a.group_kind in kinds)

    @cached_property
    def made_makers(self) -> tuple[tuple[str, str], ...]:
        """The API group and the plural of each of `made` that makes others itself."""
        return tuple((a.group, a.plural) for a in self.made if a.creates)

    def is_charged(self, adapter: Adapter) -> bool:
        return adapter.resource in self.charged_names

    def with_charged(self, names: Iterable[str]) -> Registry:
        """Return the same kinds with only these charged (`deployments.apps`, …). Raises DeclarationError."""
        chosen = frozenset(names)
        known = {a.resource: a for a in self.adapters}
        for name in sorted(chosen, key=str):
            if name not in known:
                raise DeclarationError(f"{describe_value(name)} is not a known kind{suggestion(name, known)}")
        return replace(self, charged_names=chosen)

    def with_all_charged(self) -> Registry:
        """Return the same kinds, all of them charged."""
        return replace(self, charged_names=frozenset(a.resource for a in self.adapters))

    def within(self, scope: Scope) -> Registry:
        """Return the same kinds, charged in the namespaces of this scope."""
        return replace(self, scope=scope)

    def extended(self, entries: object) -> Registry:
        """Return the registry with the declarations of a configuration (`adapters`) added and charged.

        A declaration of a known kind must have `override: true`. Raises DeclarationError.
        """
        added = read_adapters(entries, "adapters", self.codes)
        known = dict(self._by_kind)
        plurals = dict(self._by_resource)
        for index, (adapter, override) in enumerate(added):
            old = known.get(adapter.group_kind) or plurals.get((adapter.group, adapter.plural))
            if old is not None and not override:
                raise DeclarationError(
                    f"adapters[{index}]: {adapter.resource} is known already: override: true replaces it"
                )
            if old is not None:
                known.pop(old.group_kind, None)
            known[adapter.group_kind] = adapter
            plurals[adapter.group, adapter.plural] = adapter
        charged = self.charged_names | {a.resource for a, _ in added if not a.estimate}
        return Registry(tuple(known.values()), frozenset(charged), self.codes, self.scope)


def read_registry(entries: object, where: str, codes: Codes) -> Registry:
    """Read declarations of kinds; all of them are charged except estimates. Raises DeclarationError."""
    adapters = tuple(adapter for adapter, _ in read_adapters(entries, where, codes))
    return Registry(adapters, frozenset(a.resource for a in adapters if not a.estimate), codes)
