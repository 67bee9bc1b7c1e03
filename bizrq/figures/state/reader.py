"""Read objects of a cluster one by one, and note what may not be read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from bizrq.figures.state.probe import UNAUTHORIZED
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.store.groups import without_managed_fields

Object = dict[str, Any]
#: Kind, namespace ("" for none) and name.
Key = tuple[str, str, str]

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, order=True)
class MissingRight:
    """A verb on a resource (plural.group), in a namespace or, with "", in the cluster."""

    verb: str
    resource: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What could not be found out, and what the API server says; `lacking` is the missing right, if it is that."""

    what: str
    why: str
    lacking: MissingRight | None = None


class Reader:
    """Reads, and notes what it may not read."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.unknown: list[Unknown] = []
        self.unread: set[Key] = set()

    def note(self, what: str, why: str, verb: str, resource: Resource, namespace: str | None = None) -> None:
        """Note once that something is unknown; `why` is the refusal of a verb on a resource."""
        right = MissingRight(verb, resource.key, (namespace or "") if resource.namespaced else "")
        found = Unknown(what, why, right if UNAUTHORIZED.search(why) else None)
        if found not in self.unknown:
            self.unknown.append(found)

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """Return the object, None where there is none or where it cannot be read. Raise Unreachable."""
        try:
            found = await self.client.get(resource, name, namespace or None)
        except NotFound:
            return None
        except ApiError as error:
            self.note(f"{resource.kind} {name}", str(error), "get", resource, namespace)
            self.unread.add((resource.kind, namespace, name))
            return None
        return without_managed_fields(found)

    async def list(self, resource: Resource, namespace: str | None = None) -> tuple[Object, ...]:
        """Return all objects, none where they cannot be read. Raise Unreachable."""
        try:
            items, _ = await self.client.list(resource, namespace, transform=without_managed_fields)
        except NotFound:
            return ()
        except ApiError as error:
            self.note(f"all {resource.plural}", str(error), "list", resource, namespace)
            return ()
        return tuple(items)

    async def version(self) -> tuple[tuple[int, int], str]:
        found = orjson.loads(await self.client.request("GET", "/version"))
        numbers = [_NUMBER.match(str(found.get(part) or "")) for part in ("major", "minor")]
        major, minor = (int(number[0]) if number else 0 for number in numbers)
        return (major, minor), str(found.get("gitVersion") or "unknown")
