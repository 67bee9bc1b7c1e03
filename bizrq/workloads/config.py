"""What somebody may decide about how workloads are counted.

This file alone holds those knobs and their defaults (docs/configuration.md). It does
not know files or YAML: keys as in the configuration come as a map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from bizrq.units.names import Catalog

Surge = Literal["ignore", "count"]
Suspended = Literal["zero", "reserve"]
Terminal = Literal["live-pods", "release"]
Elastic = Literal["current", "max"]


@dataclass(frozen=True)
class GpuModel:
    """A model of card: the names that node labels and annotations have for it, and its memory (0: not known)."""

    aliases: tuple[str, ...] = ()
    memory_mib: int = 0


@dataclass(frozen=True)
class DeviceClassMapping:
    """What a DRA device class stands for: an extended resource, and a model of it ("" for none)."""

    resource: str
    model: str = ""


@dataclass(frozen=True)
class Hami:
    """Fractional GPUs as HAMi shares them."""

    enabled: bool = False
    device_split_count: int = 10
    vendors: tuple[str, ...] = ("nvidia",)


@dataclass(frozen=True)
class CountsAs:
    """A way to ask for cards that bizrq has no name for: by a resource of containers, or by a pod's annotation.

    It counts as cards of `card`, in `unit`; `times` is an annotation with the number of cards that each value is for.
    """

    card: str
    unit: Literal["cards", "percent", "MiB", "256MiB", "GiB"] = "cards"
    resource: str = ""
    annotation: str = ""
    times: str = ""


@dataclass(frozen=True)
class CountingConfig:
    """All knobs of counting. Immutable, so that one value decides one way everywhere."""

    count_admin_access: bool = False
    strict_models: bool = False
    surge: Surge = "ignore"
    suspended: Suspended = "zero"
    terminal: Terminal = "live-pods"
    elastic: Elastic = "current"
    gpu_models: Mapping[str, GpuModel] = field(default_factory=lambda: MappingProxyType({}))
    gpu_resources: tuple[str, ...] = ()
    device_class_mappings: Mapping[str, DeviceClassMapping] = field(default_factory=lambda: MappingProxyType({}))
    hami: Hami = Hami()
    counts_as: tuple[CountsAs, ...] = ()

    @cached_property
    def counts_cards(self) -> bool:
        """Whether `cards.` are emitted: where cards are shared, or something says how large they are."""
        return self.hami.enabled or bool(self.counts_as) or any(m.memory_mib for m in self.gpu_models.values())

    @cached_property
    def catalog(self) -> Catalog:
        """The resource names that are known, with those that these knobs add. Raises UnknownResource."""
        return Catalog(kinds=frozenset()).extended(
            gpu_resources=self.gpu_resources,
            device_classes={name: mapped.resource for name, mapped in self.device_class_mappings.items()},
        )

    @cached_property
    def models_by_alias(self) -> Mapping[str, str]:
        """Folded raw name to model; a model's own name is one of its aliases."""
        known = {alias.casefold(): name for name, model in self.gpu_models.items() for alias in model.aliases}
        return {**known, **{name.casefold(): name for name in self.gpu_models}}


DEFAULT = CountingConfig()
