"""The BizGroupCorrection on the wire: a credit or debit that a person gives a group.

This file alone decides how one reads. Who may make one is the webhook's question; the controller makes it a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bizrq.api.group import API_GROUP, API_VERSION, ObjectMeta
from bizrq.hours.budget import HOUR
from bizrq.units import names, quantity
from bizrq.units.names import Catalog

KIND, PLURAL = "BizGroupCorrection", "bizgroupcorrections"
RESOURCE = f"{PLURAL}.{API_GROUP}"


class CorrectionSpec(msgspec.Struct, rename="camel"):
    group: str
    hours: dict[str, str]
    reason: str
    by: str


class CorrectionStatus(msgspec.Struct, omit_defaults=True):
    applied: str = ""


class CorrectionObject(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    spec: CorrectionSpec
    status: CorrectionStatus = msgspec.field(default_factory=CorrectionStatus)
    api_version: str = API_VERSION
    kind: str = KIND


class CorrectionUnreadable(ValueError):
    """No correction; says which field and why."""


def from_dict(obj: Mapping[str, Any]) -> CorrectionObject:
    """Return one correction from parsed JSON. Raises CorrectionUnreadable."""
    try:
        return msgspec.convert(obj, CorrectionObject)
    except msgspec.MsgspecError as error:
        raise CorrectionUnreadable(f"not a {KIND}: {error}") from None


def amounts_of(correction: CorrectionObject, catalog: Catalog) -> dict[str, int]:
    """Return nano-units x milliseconds by canonical name without cash/; raises CorrectionUnreadable."""
    found: dict[str, int] = {}
    for given, text in sorted(correction.spec.hours.items()):
        try:
            name = names.metered_resource(names.normalize(names.cash_name(given), catalog))
            amount = quantity.parse(text)
        except (names.UnknownResource, quantity.QuantityError) as error:
            raise CorrectionUnreadable(f"spec.hours: {given[:80]}: {error}") from None
        if not amount or name in found:
            what = "is 0" if not amount else f"is also given as {name}"
            raise CorrectionUnreadable(f"spec.hours: {given[:80]}: {what}")
        found[name] = amount * HOUR
    if not found:
        raise CorrectionUnreadable("spec.hours: names no hours")
    return found
