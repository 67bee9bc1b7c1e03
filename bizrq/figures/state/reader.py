"""Read objects of a cluster one by one, and note what may not be read."""

from __future__ import annotations

import re
from typing import Any

import orjson

from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.store.groups import without_managed_fields

Object = dict[str, Any]
#: Kind, namespace ("" for none) and name.
Key = tuple[str, str, str]

_NUMBER = re.compile(r"\d+")


class Reader:
    """Reads, and notes what it may not read."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.unknown: list[str] = []
        self.unread: set[Key] = set()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """Return the object, None where there is none or where it cannot be read. Raise Unreachable."""
        try:
            found = await self.client.get(resource, name, namespace or None)
        except NotFound:
            return None
        except ApiError as error:
            self.unknown.append(f"{resource.key} {name}: {error}")
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
            self.unknown.append(f"{resource.key}: {error}")
            return ()
        return tuple(items)

    async def version(self) -> tuple[tuple[int, int], str]:
        found = orjson.loads(await self.client.request("GET", "/version"))
        numbers = [_NUMBER.match(str(found.get(part) or "")) for part in ("major", "minor")]
        major, minor = (int(number[0]) if number else 0 for number in numbers)
        return (major, minor), str(found.get("gitVersion") or "unknown")
