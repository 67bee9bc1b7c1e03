"""The resource names of an installation without a configuration."""

from __future__ import annotations

from bizrq.settings import settings
from bizrq.units.names import Catalog

CATALOG: Catalog = settings({}).catalog
