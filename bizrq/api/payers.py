"""The BizGroupPayers on the wire: one page of the record of who paid for what the workloads of a group made.

This file alone decides the shape and the name of a stored page. `bizrq.workloads.ownership` decides how its lines read:
`memory` those of payers, `runs_on` those of pods that have vanished; and which page a line goes to: `pages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bizrq.api import group
from bizrq.api.group import API_VERSION, GROUP_LABEL

KIND, PLURAL = "BizGroupPayers", "bizgrouppayers"


class GroupReference(msgspec.Struct, rename="camel"):
    """The owner reference of a page to its group: the garbage collector deletes the record with the group."""

    name: str = ""
    uid: str = ""
    api_version: str = API_VERSION
    kind: str = group.KIND


class PayersMeta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    owner_references: list[GroupReference] = []


class PayersSpec(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The group and its uid, and the number of the page. A page without one is the first of the group of its name."""

    group: str = ""
    uid: str = ""
    page: int = 0


class PayersStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    payers: list[str] = []
    vanished: list[str] = []
    counted_at: dict[str, str] = {}


class PayersObject(msgspec.Struct, rename="camel"):
    """One page."""

    metadata: PayersMeta
    spec: PayersSpec = msgspec.field(default_factory=PayersSpec)
    status: PayersStatus = msgspec.field(default_factory=PayersStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def group_uid(self) -> str:
        """Return the uid of the group whose record this is. Another group may have its name later."""
        owners = (owner.uid for owner in self.metadata.owner_references if owner.kind == group.KIND)
        return self.spec.uid or next(owners, "")


class PayersRecordUnreadable(ValueError):
    """No page of a record; says which field and why."""


def page_name(group_name: str, group_uid: str, number: int) -> str:
    """Return the name of a page. The first has the group's; others have more than 63 characters, as no group has."""
    return f"{group_name}.remembered-payers.page-{number:03}.{group_uid}" if number else group_name


def new_page(group_name: str, group_uid: str, number: int) -> PayersObject:
    """Return an empty page to create."""
    owner = GroupReference(group_name, group_uid)
    labels = {GROUP_LABEL: group_name}
    metadata = PayersMeta(page_name(group_name, group_uid, number), labels=labels, owner_references=[owner])
    return PayersObject(metadata, PayersSpec(group_name, group_uid, number))


def group_of(obj: Mapping[str, Any]) -> str:
    """Return the name of the group of a stored page, which need not be readable otherwise."""
    spec = obj.get("spec")
    named = spec.get("group") if isinstance(spec, dict) else None
    return named if isinstance(named, str) and named else str(obj["metadata"]["name"])


def from_dict(obj: Mapping[str, Any]) -> PayersObject:
    """Return one page from parsed JSON; raises PayersRecordUnreadable."""
    try:
        return msgspec.convert(obj, PayersObject)
    except msgspec.MsgspecError as error:
        raise PayersRecordUnreadable(f"not a {KIND}: {error}") from None


def to_json(page: PayersObject) -> dict[str, Any]:
    return msgspec.to_builtins(page)
