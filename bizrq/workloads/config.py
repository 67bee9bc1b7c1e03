"""The settings of counting and their defaults (docs/configuration.md).

This file alone holds them. It does not know files or YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from bizrq.units.names import Catalog
from bizrq.workloads.hami_devices import HamiDevice

Surge = Literal["ignore", "count"]
Suspended = Literal["zero", "reserve"]
Terminal = Literal["live-pods", "release"]
Elastic = Literal["current", "max"]
Unknown = Literal["warn", "deny", "ignore"]


@dataclass(frozen=True)
class GpuModel:
    """A model of card: its names in node labels and annotations, and its memory (0: not known)."""

    aliases: tuple[str, ...] = ()
    memory_mib: int = 0


@dataclass(frozen=True)
class DeviceClassMapping:
    """The extended resource that a DRA device class is, and a model of it ("" for none)."""

    resource: str
    model: str = ""


@dataclass(frozen=True)
class Hami:
    """How HAMi shares cards. `devices` are those of the vendors that it serves."""

    enabled: bool = False
    device_split_count: int = 10
    devices: tuple[HamiDevice, ...] = field(kw_only=True)

    @cached_property
    def devices_by_name(self) -> Mapping[str, tuple[HamiDevice, ...]]:
        """The devices by each resource name that asks for them or for parts of them."""
        found: dict[str, tuple[HamiDevice, ...]] = {}
        for device in self.devices:
            for name in (device.count, *device.parts):
                found[name] = (*found.get(name, ()), device)
        return found


@dataclass(frozen=True)
class CountsAs:
    """A way to ask for cards that bizrq has no name for: a resource of containers, or an annotation of a pod.

    It counts as cards of `card`, in `unit`. `times` is an annotation with the number of cards that each value is for.
    """

    card: str
    unit: Literal["cards", "percent", "MiB", "256MiB", "GiB"] = "cards"
    resource: str = ""
    annotation: str = ""
    times: str = ""


@dataclass(frozen=True)
class CountingConfig:
    """All settings of counting. `kinds` are those that `count/` names, as `deployments.apps`: the charged ones.

    Immutable, so that one value decides one way everywhere.
    """

    kinds: frozenset[str] = field(kw_only=True)
    count_admin_access: bool = False
    strict_models: bool = False
    surge: Surge = "ignore"
    suspended: Suspended = "zero"
    terminal: Terminal = "live-pods"
    elastic: Elastic = "current"
    gpu_models: Mapping[str, GpuModel] = field(default_factory=lambda: MappingProxyType({}))
    gpu_resources: tuple[str, ...] = ()
    device_class_mappings: Mapping[str, DeviceClassMapping] = field(default_factory=lambda: MappingProxyType({}))
    hami: Hami = Hami(devices=())
    counts_as: tuple[CountsAs, ...] = ()
    unknown_models: Unknown = "warn"

    @cached_property
    def counts_cards(self) -> bool:
        """True if `cards.` are emitted: where cards are shared, or the configuration gives their size."""
        return self.hami.enabled or bool(self.counts_as) or any(m.memory_mib for m in self.gpu_models.values())

    @cached_property
    def catalog(self) -> Catalog:
        """The one catalog of resource names that `hard` may have and workloads emit. Raises UnknownResource."""
        return Catalog(kinds=self.kinds).extended(
            gpu_resources=self.gpu_resources,
            device_classes={name: mapped.resource for name, mapped in self.device_class_mappings.items()},
        )

    @cached_property
    def models_by_alias(self) -> Mapping[str, str]:
        """Case-folded raw name to model; a model's own name is one of its aliases."""
        known = {alias.casefold(): name for name, model in self.gpu_models.items() for alias in model.aliases}
        return {**known, **{name.casefold(): name for name in self.gpu_models}}
