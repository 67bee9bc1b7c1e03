"""The data that bizrq ships: declarations of kinds, HAMi's devices, and the resource names that follow from them.

This file alone reads the package's own data files, each once and when it is first needed. The core takes their content
as plain values.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from bizrq.units.names import Catalog
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.hami_devices import HamiDevice, read_devices
from bizrq.workloads.kinds.registry import Registry, read_registry
from bizrq.workloads.special import CODES


@cache
def builtin_registry() -> Registry:
    """Return the kinds that `kinds.yaml` declares, all of them charged except estimates."""
    return read_registry(_document("bizrq.workloads.kinds", "kinds.yaml"), "kinds.yaml", CODES)


@cache
def shared_devices() -> tuple[HamiDevice, ...]:
    """Return all devices that HAMi shares, in the order of `hami.yaml`."""
    return read_devices(_document("bizrq.workloads.devices", "hami.yaml"))


@cache
def builtin_catalog() -> Catalog:
    """Return the resource names that are known without a configuration."""
    return CountingConfig(kinds=builtin_registry().countable).catalog


def _document(package: str, name: str) -> Any:
    # Every process reads them as it starts, and Python alone takes five times as long as C.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    [document] = yaml.load_all(resources.files(package).joinpath(name).read_text("utf-8"), loader)
    return document
