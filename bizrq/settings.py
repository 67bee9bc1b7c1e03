"""Turn the document of `--config` into the plain values that the core takes.

This file alone does that: how to count, which kinds, in which namespaces, which names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from bizrq import documents
from bizrq.api import selector
from bizrq.api.config import Configuration, ConfigurationError, RightsConfig, parse
from bizrq.api.selector import SelectorError
from bizrq.builtin import builtin_registry, shared_devices
from bizrq.documents import NotYAML
from bizrq.units.names import Catalog, UnknownResource
from bizrq.workloads.config import CountingConfig, CountsAs, DeviceClassMapping, GpuModel, Hami, Unknown
from bizrq.workloads.hami_devices import HamiDevice
from bizrq.workloads.kinds.declaration import DeclarationError
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.scope import ALWAYS_EXEMPT, Scope, as_expressions
from bizrq.workloads.validation import describe_value, suggestion

#: A name of a namespace (kubernetes apimachinery pkg/util/validation, IsDNS1123Label).
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Settings:
    """A configuration as values: how to count, which kinds, in which namespaces, which names and rights are checked.

    `controllers` are the accounts whose ownerReferences are trusted in addition to Kubernetes' own controllers.
    `keep_statements` is the number of periods whose statements are kept; 0 keeps all. `unknown_labels` is for label
    keys that begin like ours.
    """

    counting: CountingConfig
    registry: Registry
    rights: RightsConfig
    controllers: tuple[str, ...]
    keep_statements: int
    unknown_labels: Unknown = "warn"
    #: The text that it was read from, "" without one.
    text: str = field(default="", compare=False, repr=False)

    @property
    def catalog(self) -> Catalog:
        """The resource names that are known: those of `counting`."""
        return self.counting.catalog

    def around(self, namespace: str) -> Settings:
        """Return the same settings for an installation in this namespace, which is exempt."""
        return replace(self, registry=self.registry.within(self.registry.scope.around(namespace)))


def load(path: Path | None) -> Settings:
    """Return the settings of a file, or the defaults without one. Raises ConfigurationError."""
    if path is None:
        return settings({})
    try:
        return loads(documents.read(path), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except NotYAML as error:
        raise ConfigurationError(f"{path}: {error}") from None


def loads(text: str, where: str) -> Settings:
    """Return the settings of a text; `where` names it in an error. Raises ConfigurationError."""
    try:
        found = documents.load_all(text)
        if len(found) > 1:
            raise ConfigurationError(f"{len(found)} documents: write one")
        return replace(settings(found[0] if found else None), text=text)
    except (ConfigurationError, NotYAML) as error:
        raise ConfigurationError(f"{where}: {error}") from None


def settings(document: object) -> Settings:
    """Return the settings of a parsed document. Raises ConfigurationError."""
    given = parse(document)
    try:
        registry = builtin_registry().extended(given.adapters).within(_scope(given))
    except DeclarationError as error:
        raise ConfigurationError(str(error)) from None
    served = _devices(given.hami.vendors)
    counting = CountingConfig(
        kinds=registry.countable,
        count_admin_access=given.count_admin_access,
        strict_models=given.strict_models,
        unknown_models=given.unknown_models,
        surge=given.surge,
        suspended=given.suspended,
        terminal=given.terminal,
        elastic=given.elastic,
        gpu_models=MappingProxyType(
            {name: GpuModel(tuple(model.aliases), model.memory_mib) for name, model in given.gpu_models.items()}
        ),
        gpu_resources=tuple(given.gpu_resources),
        device_class_mappings=MappingProxyType(
            {name: DeviceClassMapping(c.resource, c.model) for name, c in given.device_class_mappings.items()}
        ),
        hami=Hami(given.hami.enabled, given.hami.device_split_count, devices=served if given.hami.enabled else ()),
        counts_as=tuple(_counts_as(index, dict(entry)) for index, entry in enumerate(given.counts_as)),
    )
    try:
        _ = counting.catalog  # reject invalid names at start
    except UnknownResource as error:
        raise ConfigurationError(str(error)) from None
    return Settings(
        counting, registry, given.rights, tuple(given.controllers), given.keep_statements, given.unknown_labels
    )


def _scope(given: Configuration) -> Scope:
    """Return the managed namespaces. Raises ConfigurationError."""
    for index, name in enumerate(given.exempt_namespaces):
        if not _NAMESPACE.fullmatch(name):
            raise ConfigurationError(
                f"exemptNamespaces.{index}: {describe_value(name)} is no name of a namespace: write at most 63 small "
                "letters, digits or '-', with a letter or digit at both ends"
            )
    try:
        if given.managed_namespaces is not None:
            selector.validate(given.managed_namespaces)
    except SelectorError as error:
        raise ConfigurationError(f"managedNamespaces: {error}") from None
    return Scope(ALWAYS_EXEMPT | set(given.exempt_namespaces), as_expressions(given.managed_namespaces))


def _devices(named: list[str]) -> tuple[HamiDevice, ...]:
    """Return the devices of these vendors. Raises ConfigurationError."""
    known = {device.vendor for device in shared_devices()}
    for index, vendor in enumerate(named):
        if vendor not in known:
            meant = suggestion(vendor, known) or f": write one of {', '.join(sorted(known))}"
            raise ConfigurationError(
                f"hami.vendors.{index}: {describe_value(vendor)} is not a vendor that HAMi serves{meant}"
            )
    return tuple(device for device in shared_devices() if device.vendor in named)


def _counts_as(index: int, entry: dict[str, str]) -> CountsAs:
    if bool(entry["resource"]) == bool(entry["annotation"]):
        raise ConfigurationError(f"countsAs.{index}: give either resource or annotation")
    return CountsAs(**entry)  # pyright: ignore[reportArgumentType]
