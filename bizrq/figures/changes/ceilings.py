"""Changes of ceilings: what a person means, the patch that says it, and what it does to what is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.figures.errors import BadValue
from bizrq.figures.groups.source import GroupSource, check_known, known_names
from bizrq.figures.groups.view import canonical_name, meant_resources
from bizrq.kube.client import Invalid, KubeClient
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from bizrq.units.names import Catalog

#: How often a change that is relative is tried, if somebody else changes the same ceiling meanwhile.
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted ceiling in nano-units; `sign` is + or - for a change of the stored one."""

    name: str
    sign: str
    nano: int


@dataclass(frozen=True, slots=True)
class ChangedCeiling:
    """A ceiling before, as it was written, and after, and what is used of it, in nano-units; None if not known."""

    group: str
    name: str
    before: str | int | None
    after: int
    used: int | None

    @property
    def is_over(self) -> bool:
        """Return True if more is used than the new ceiling."""
        return self.used is not None and self.used > self.after


def parse_ceilings(words: Sequence[str], *, relative: bool) -> list[Wanted]:
    """Return the wanted ceilings. Raise BadValue."""
    found: dict[str, Wanted] = {}
    for word in words:
        name, equals, amount = word.partition("=")
        if not name or not equals:
            raise BadValue(f"{word[:120]}: write RESOURCE=AMOUNT, for example limits.cpu=10")
        try:
            sign, nano = parse_amount(amount, relative=relative)
        except BadValue as error:
            raise BadValue(f"{word[:120]}: {error}") from None
        if name in found:
            raise BadValue(f"{word[:120]}: {name} is given twice")
        found[name] = Wanted(name, sign, nano)
    return list(found.values())


def parse_amount(text: str, *, relative: bool) -> tuple[str, int]:
    """Return what a person typed as a ceiling, in nano-units, and before it the sign of a relative change, else "".

    Raise BadValue.
    """
    sign = text[:1] if relative and text[:1] in ("+", "-") else ""
    try:
        nano = quantity.parse(text.removeprefix(sign))
    except quantity.QuantityError as error:
        raise BadValue(str(error)) from None
    if nano < 0 or (sign and text[1:2] in ("+", "-")):
        raise BadValue("a ceiling is not below 0")
    return sign, nano


async def change_ceilings(
    client: KubeClient, name: str, wanted: Sequence[Wanted], catalog: Catalog, *, dry_run: bool
) -> list[ChangedCeiling]:
    """Change the ceilings, and return each. Raise NoAnswer, ApiError or Unreachable.

    The patch tests each ceiling that it changes by an amount, and is made again from a new read if a test fails.
    """
    kind = "application/json-patch+json"
    before: Mapping[str, str | int] | None = None
    for _ in range(_TRIES):
        stored = await GroupSource(client, is_complete=False).fetch(name)
        if stored is None:
            check_known([name], await known_names(client), is_complete=False)
            continue
        changes = [changed_ceiling(stored, each, catalog) for each in wanted]
        try:
            await client.patch(GROUPS, name, patch_of(stored, changes), content_type=kind, dry_run=dry_run)
        except Invalid:
            if stored.spec.hard == before or not any(each.sign for each in wanted):
                raise
            # Somebody may have changed a ceiling between the read and the patch. If not, the next time says so.
            before = stored.spec.hard
            continue
        return [_changed(stored, key, nano) for key, nano in changes]
    raise BadValue(f"the ceilings of {name} change all the time: run the command again")


def changed_ceiling(stored: GroupObject, wanted: Wanted, catalog: Catalog) -> tuple[str, int]:
    """Return the key of `spec.hard` that is meant, and its new amount. Raise BadValue."""
    keys = {canonical_name(key, catalog): key for key in stored.spec.hard}
    meant = sorted(meant_resources(wanted.name, keys, catalog))
    if len(meant) > 1:
        raise BadValue(f"{wanted.name} may be {' or '.join(meant)}: name one of them")
    key = keys[meant[0]] if meant else canonical_name(wanted.name, catalog)
    if not wanted.sign:
        return key, wanted.nano
    if not meant:
        raise BadValue(f"{stored.name} has no ceiling for {key}: write {key}=AMOUNT to set one")
    try:
        now = quantity.parse(stored.spec.hard[key])
    except quantity.QuantityError as error:
        raise BadValue(f"group {stored.name}: spec.hard.{key}: {error}") from None
    after = now + wanted.nano if wanted.sign == "+" else now - wanted.nano
    if after < 0:
        text = f"{quantity.text(key, now)} is less than {quantity.text(key, wanted.nano)}"
        raise BadValue(f"{stored.name}: {key}: {text}: a ceiling is not below 0")
    return key, after


def patch_of(stored: GroupObject, changes: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return a JSON Patch (RFC 6902) that fails where a ceiling is not as it was read."""
    made: list[dict[str, Any]] = [] if stored.spec.hard else [{"op": "add", "path": "/spec/hard", "value": {}}]
    for key, nano in changes:
        path = path_of(key)
        if key in stored.spec.hard:
            made.append({"op": "test", "path": path, "value": stored.spec.hard[key]})
        made.append({"op": "add", "path": path, "value": quantity.text(key, nano)})
    return made


def path_of(key: str) -> str:
    """Return where a patch finds a ceiling (RFC 6901)."""
    return "/spec/hard/" + key.replace("~", "~0").replace("/", "~1")


def _changed(stored: GroupObject, key: str, nano: int) -> ChangedCeiling:
    used = wire.parse_amounts(stored, stored.status.used).get(key)
    return ChangedCeiling(stored.name, key, stored.spec.hard.get(key), nano, used)
