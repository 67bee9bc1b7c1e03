"""The RBAC objects by which `bizrq allow` lets somebody charge or read a group.

This file alone decides who a word of the command line means, and how the objects are called. It talks to no cluster.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from bizrq.api.group import API_GROUP, PLURAL
from bizrq.api.hours import CARD_HOURS_PLURAL, page_name
from bizrq.units.text import printable

Object = dict[str, Any]

#: Who made the objects. Not the name of install, which deletes what it no longer makes.
MANAGED: Final = "app.kubernetes.io/managed-by"
ALLOW: Final = "bizrq-allow"
#: The group of an object, for people who look for them.
GROUP_LABEL: Final = f"{API_GROUP}/group"
#: The uid of the group that a binding was made for.
UID: Final = f"{API_GROUP}/group-uid"
_RBAC: Final = "rbac.authorization.k8s.io"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_GROUP: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
#: The longest name of a user or group of users that is accepted.
_LONGEST: Final = 1_024
_KINDS: Final = ("user", "group", "namespace", "serviceaccount")
#: Pages of a record that a new role names, also where the record has fewer: it may grow.
_PAGES: Final = 16
#: Of the hash in the name of a binding: 64 bits.
_HASH: Final = 16


class Right(Enum):
    """What somebody is allowed, with the verbs that it takes: to list and watch one object is to select its name."""

    USE = ("use",)
    READ = ("get", "list", "watch")


class NoSubject(ValueError):
    """A word that names nobody. The message is one line."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of RBAC: a User or a Group, with the words that people read."""

    kind: str
    name: str
    shown: str


def subject(word: str) -> Subject:
    """Return who is meant: `ann` or `user:ann`, `group:ml`, `namespace:team-a`, `serviceaccount:team-a:deployer`.

    A namespace stands for all of its service accounts. Raise NoSubject.
    """
    prefix, colon, rest = word.partition(":")
    kind, name = (prefix, rest) if colon and prefix in _KINDS else ("user", word)
    if not name.strip():
        raise NoSubject(f"{word!r} names nobody: write ann, group:ml, namespace:team-a or serviceaccount:team-a:robot")
    if len(name) > _LONGEST or not name.isprintable():
        raise NoSubject(f"{printable(word[:64])!r} is no name of a user: it has control characters, or is too long")
    if kind == "user":
        return Subject("User", name, f"user {name}")
    if kind == "group":
        return Subject("Group", name, f"members of {name}")
    if kind == "namespace":
        _check(name, word, "namespace:NAME")
        return Subject("Group", f"system:serviceaccounts:{name}", f"service accounts of namespace {name}")
    namespace, _, account = name.partition(":")
    for part in (namespace, *account.split(".")):
        _check(part, word, "serviceaccount:NAMESPACE:NAME")
    return Subject("User", f"system:serviceaccount:{namespace}:{account}", f"service account {namespace}:{account}")


def _check(name: str, word: str, form: str) -> None:
    if not _NAME.fullmatch(name):
        raise NoSubject(f"{printable(word[:64])!r} is not {form}: use a-z, 0-9 and '-'")


def is_doubtful(word: str) -> bool:
    """Return True for a word with a prefix that may be a mistyped one: all of it is then the name of a user."""
    prefix, colon, _ = word.partition(":")
    return bool(colon) and prefix not in (*_KINDS, "system")


def is_group_name(text: str) -> bool:
    """Return True for text that a group can be called."""
    return _GROUP.fullmatch(text) is not None


def role_name(group: str, right: Right = Right.USE) -> str:
    return f"bizrq-{right.name.lower()}-{group}"


def binding_name(group: str, who: Subject, right: Right = Right.USE) -> str:
    """Return a name of its own for each group and subject: names of users may have any characters, in any case."""
    digest = hashlib.sha256(f"{group}\0{who.kind}\0{who.name}".encode()).hexdigest()
    return f"{role_name(group, right)}-{digest[:_HASH]}"


def record_pages(group: str, uid: str, pages: int) -> list[str]:
    """Return the names of the pages that the record of a group with this uid has, and of those that it may get."""
    return [page_name(group, uid, number) for number in range(1, max(_PAGES, 2 * pages))]


def role(group: str, right: Right = Right.USE, pages: Sequence[str] = ()) -> Object:
    """Return the role of a right to one group.

    Who reads it reads its record of hours too: a page with the name of the group, and the others by `pages`.
    """
    named = {"apiGroups": [API_GROUP]}
    rules = [{**named, "resourceNames": [group], "resources": [PLURAL], "verbs": [*right.value]}]
    if right is Right.READ:
        names = [group, *pages]
        rules.append({**named, "resourceNames": names, "resources": [CARD_HOURS_PLURAL], "verbs": ["get"]})
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": role_name(group, right), "labels": _labels(group)},
        "rules": rules,
    }


def binding(group: str, who: Subject, right: Right = Right.USE, uid: str = "") -> Object:
    """Return the binding of the role to somebody. Groups have no namespace, so a RoleBinding would give nothing.

    It goes by the group's name; `uid` is kept so that `earlier` finds it when another group has the name.
    """
    metadata = {"name": binding_name(group, who, right), "labels": _labels(group)}
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {**metadata, "annotations": {UID: uid}} if uid else metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role_name(group, right)},
        "subjects": [{"apiGroup": _RBAC, "kind": who.kind, "name": who.name}],
    }


def is_ours(stored: Object) -> bool:
    """Return True if `bizrq allow` made the object."""
    return ((stored.get("metadata") or {}).get("labels") or {}).get(MANAGED) == ALLOW


def earlier(stored: Iterable[Object], uid: str, right: Right) -> list[str]:
    """Return who was given this right to a group with another uid, as words for `subject`."""
    found = set()
    for each in stored:
        made_for = (each["metadata"].get("annotations") or {}).get(UID, uid)
        group = (each["metadata"].get("labels") or {}).get(GROUP_LABEL, "")
        if made_for != uid and each["roleRef"]["name"] == role_name(group, right):
            found |= {f"{subject['kind'].lower()}:{subject['name']}" for subject in each.get("subjects") or ()}
    return sorted(found)


def _labels(group: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "bizrq", MANAGED: ALLOW, GROUP_LABEL: group}
