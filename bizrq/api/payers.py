"""The BizGroupPayers on the wire: the record of who paid for what the workloads of one group made.

This file alone decides the shape of the stored object. `bizrq.workloads.ownership` decides how its lines read:
`memory` those of payers, `runs_on` those of pods that have vanished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bizrq.api import group
from bizrq.api.group import API_VERSION

KIND, PLURAL = "BizGroupPayers", "bizgrouppayers"


class GroupReference(msgspec.Struct, rename="camel"):
    """The owner reference of a record to its group: the garbage collector deletes the record with the group."""

    name: str = ""
    uid: str = ""
    api_version: str = API_VERSION
    kind: str = group.KIND


class PayersMeta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[GroupReference] = []


class PayersStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    payers: list[str] = []
    vanished: list[str] = []
    counted_at: dict[str, str] = {}


class PayersObject(msgspec.Struct, rename="camel"):
    """The record of the group of its name."""

    metadata: PayersMeta
    status: PayersStatus = msgspec.field(default_factory=PayersStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def group_uid(self) -> str:
        """Return the uid of the group whose record this is. Another group may have its name later."""
        return next((owner.uid for owner in self.metadata.owner_references if owner.kind == group.KIND), "")


class PayersRecordUnreadable(ValueError):
    """No record; says which field and why."""


def from_dict(obj: Mapping[str, Any]) -> PayersObject:
    """Return one record from parsed JSON; raises PayersRecordUnreadable."""
    try:
        return msgspec.convert(obj, PayersObject)
    except msgspec.MsgspecError as error:
        raise PayersRecordUnreadable(f"not a {KIND}: {error}") from None


def to_json(record: PayersObject) -> dict[str, Any]:
    return msgspec.to_builtins(record)
