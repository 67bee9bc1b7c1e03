"""A change of a group that a person wants: what they typed, the request that says it, and the API server's verdict.

This file alone decides what a form means and which requests change a group. A preview and its application are the same
request but for dryRun. An edit tests the generation that the person saw, and no resourceVersion: a busy group's status
changes that all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from bizrq.api.group import API_VERSION, KIND
from bizrq.figures.changes.ceilings import parse_amount, path_of
from bizrq.figures.errors import BadValue
from bizrq.figures.groups.view import canonical_name
from bizrq.kube.answers import parse
from bizrq.kube.client import ApiError, Invalid, KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.units import quantity
from bizrq.units.names import Catalog

#: The name under which changes of this page are in metadata.managedFields.
MANAGER = "bizrq-web"
#: Managers through which people write, and bizrq's own: they keep nothing in step with a repository.
_PEOPLE = ("kubectl", "bizrq", "OpenAPI-Generator", "python-requests", "Mozilla")
#: What is behind the names of well-known managers.
_TOOLS: Sequence[tuple[str, str]] = (
    ("argocd", "Argo CD"),
    ("kustomize-controller", "Flux"),
    ("helm-controller", "Flux"),
    ("helm", "Helm"),
)
_PATCH = "application/json-patch+json"
#: What an API server puts before the sentence of a webhook.
_DENIED = " denied the request: "

Hard = dict[str, str | int]


class Base(msgspec.Struct, frozen=True):
    """The version of a group that a person saw. `hard` has the amounts as they are written."""

    uid: str
    generation: int
    hard: Hard = {}
    owner: str = ""
    contact: str = ""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Base:
        metadata, spec = stored["metadata"], stored.get("spec") or {}
        return cls(
            metadata["uid"],
            metadata["generation"],
            dict(spec.get("hard") or {}),
            spec.get("owner") or "",
            spec.get("contact") or "",
        )


@dataclass(frozen=True)
class Typed:
    """What a person typed: an amount by the name of each ceiling, ±n for a change by n, "" for no ceiling."""

    ceilings: Mapping[str, str]
    owner: str = ""
    contact: str = ""

    @property
    def is_relative(self) -> bool:
        """Return True if something is meant as a change of what is there: then the same form twice changes more."""
        return any(text.strip()[:1] in ("+", "-") for text in self.ceilings.values() if text.strip())


@dataclass(frozen=True)
class Plan:
    """What was typed, as a change. `errors` has a sentence by the name of a ceiling; then there is nothing to send."""

    base: Base
    hard: Hard
    owner: str
    contact: str
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        """Return the names of the ceilings that differ."""
        before, after = self.base.hard, self.hard
        return sorted({*before, *after} - {n for n in before if n in after and str(before[n]) == str(after[n])})

    @property
    def is_empty(self) -> bool:
        return not self.changed and (self.owner, self.contact) == (self.base.owner, self.base.contact)

    def is_done(self, stored: Base) -> bool:
        """Return True if the stored group is as this change makes it."""
        amounts = {name: str(amount) for name, amount in stored.hard.items()}
        mine = {name: str(amount) for name, amount in self.hard.items()}
        is_same = (stored.owner, stored.contact) == (self.owner, self.contact)
        return stored.uid == self.base.uid and amounts == mine and is_same

    @property
    def patch(self) -> list[dict[str, Any]]:
        """Return the JSON Patch (RFC 6902), which fails on any other generation than the one that was seen."""
        base = self.base
        made: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": base.uid},
            {"op": "test", "path": "/metadata/generation", "value": base.generation},
        ]
        if not base.hard and self.hard:
            made.append({"op": "add", "path": "/spec/hard", "value": {}})
        for name in self.changed:
            path, after = path_of(name), self.hard.get(name)
            made.append(
                {"op": "remove", "path": path} if after is None else {"op": "add", "path": path, "value": after}
            )
        for key, before, now in (("owner", base.owner, self.owner), ("contact", base.contact, self.contact)):
            if before != now:
                path = f"/spec/{key}"
                made.append({"op": "add", "path": path, "value": now} if now else {"op": "remove", "path": path})
        return made


@dataclass(frozen=True)
class Verdict:
    """What the API server says. `stored` is the object as it is, or would be, with `warnings`."""

    stored: dict[str, Any]
    warnings: Sequence[str] = ()


def plan(base: Base, typed: Typed, catalog: Catalog) -> Plan:
    """Return what was typed as a change of this version. A name that is not known stays as it is typed."""
    hard: Hard = dict(base.hard)
    errors: dict[str, str] = {}
    there = {canonical_name(name, catalog): name for name in base.hard}
    for name, text in typed.ceilings.items():
        key = there.get(canonical_name(name, catalog), canonical_name(name, catalog))
        try:
            after = _amount(key, base.hard.get(key), "".join(text.split()))
        except BadValue as error:
            errors[name] = str(error)
            continue
        if after is None:
            hard.pop(key, None)
        else:
            hard[key] = after
    return Plan(base, hard, typed.owner.strip(), typed.contact.strip(), errors)


def _amount(name: str, stored: str | int | None, text: str) -> str | int | None:
    """Return the amount that is meant, None for no ceiling. Raise BadValue."""
    if not text:
        return None
    if stored is not None and text == str(stored):
        return stored
    sign, nano = parse_amount(text, relative=True)
    if not sign:
        return quantity.text(name, nano)
    if stored is None:
        raise BadValue("there is no ceiling to change by that: write the amount")
    try:
        now = quantity.parse(stored)
    except quantity.QuantityError as error:
        raise BadValue(str(error)) from None
    after = now + nano if sign == "+" else now - nano
    if after < 0:
        raise BadValue(f"{stored} is less than {text[1:]}: a ceiling is not below 0")
    return quantity.text(name, after)


def differences(before: Base, now: Base) -> list[str]:
    """Return what somebody else changed between two versions, in words."""
    if before.uid != now.uid:
        return ["the group was deleted and created again"]
    found: list[str] = []
    for name in sorted({*before.hard, *now.hard}):
        old, new = before.hard.get(name), now.hard.get(name)
        if str(old) != str(new):
            found.append(f"{name}: {'no ceiling' if old is None else old} → {'no ceiling' if new is None else new}")
    for word, old, new in (("owner", before.owner, now.owner), ("contact", before.contact, now.contact)):
        if old != new:
            found.append(f"{word}: {old or 'none'} → {new or 'none'}")
    return found or ["another part of the group"]


def other_managers(stored: Mapping[str, Any]) -> list[str]:
    """Return who else keeps the spec of a group, such as a GitOps tool: by its own name, and by that of the tool."""
    found: list[str] = []
    for entry in (stored.get("metadata") or {}).get("managedFields") or ():
        manager = str(entry.get("manager") or "")
        if entry.get("subresource") or "f:spec" not in (entry.get("fieldsV1") or {}):
            continue
        if not manager or manager.startswith(_PEOPLE):
            continue
        tool = next((tool for start, tool in _TOOLS if manager.startswith(start)), "")
        found.append(f"{tool} ({manager})" if tool else manager)
    return sorted(set(found))


def manifest(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to commit for a group with this spec."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": dict(spec)}


async def send(client: KubeClient, name: str, wanted: Plan, *, dry_run: bool) -> Verdict:
    """Send the patch. Raise ApiError or Unreachable; Invalid without causes where the group is another one now."""
    path = GROUPS.path(name=name)
    return await _write(client, "PATCH", path, wanted.patch, _PATCH, dry_run)


async def create(client: KubeClient, made: dict[str, Any], *, dry_run: bool, kind: Resource = GROUPS) -> Verdict:
    """Create a group, or a correction of its hours. Raise ApiError or Unreachable."""
    return await _write(client, "POST", kind.path(), made, "application/json", dry_run)


async def delete(client: KubeClient, name: str, uid: str, *, dry_run: bool) -> Sequence[str]:
    """Delete a group of this uid, and return warnings. Raise ApiError or Unreachable."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    warnings: list[str] = []
    await client.request(
        "DELETE", GROUPS.path(name=name), body=orjson.dumps(options), params=_said(dry_run), on_warning=warnings.append
    )
    return warnings


async def _write(
    client: KubeClient, method: str, path: str, document: Any, content_type: str, dry_run: bool
) -> Verdict:
    warnings: list[str] = []
    take: Callable[[str], None] = warnings.append
    params = {"fieldManager": MANAGER, "fieldValidation": "Strict", **_said(dry_run)}
    body = orjson.dumps(document)
    answer = await client.request(method, path, body=body, params=params, content_type=content_type, on_warning=take)
    return Verdict(parse(answer), warnings)


def _said(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def sentence(error: ApiError) -> str:
    """Return a refusal without what Kubernetes puts before the sentence of a webhook: it says nothing to a person."""
    return error.message.partition(_DENIED)[2] or error.message


def is_outdated(error: ApiError) -> bool:
    """Return True if a test of the patch may have failed: then the group is another one than the person saw.

    The API server gives no cause of that, and neither does a webhook whose refusal has the same status.
    """
    return isinstance(error, Invalid) and not error.details.get("causes") and _DENIED not in error.message
