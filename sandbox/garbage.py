"""Stand in for the garbage collector and the namespace controller: delete what lost its owner or its namespace.

It deletes objects whose owners are all gone, and those in a namespace that is being deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandbox.admission import Call
from sandbox.api import Api, Selection
from sandbox.controllers import service_account
from sandbox.kinds import NAMESPACES, Resource
from sandbox.lifecycle import FOREGROUND, ORPHAN
from sandbox.status import ApiError
from sandbox.storage import Item, Kind

Json = dict[str, Any]
Dependents = Callable[[str], list[tuple[Kind, Item]]]


class Collector:
    """Delete objects without owners; `dependents` returns the objects that name a uid as an owner."""

    def __init__(self, api: Api, dependents: Dependents) -> None:
        self._api = api
        self._dependents = dependents
        self._call = service_account("generic-garbage-collector")

    async def check(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete the object if all its owners are gone; carry out its own deletion finalizers."""
        item = self._api.store.get(kind, namespace, name)
        resource = self._api.kinds.find(*kind)
        if item is None or resource is None:
            return
        meta = item.obj["metadata"]
        if "deletionTimestamp" in meta:
            await self._finalize(resource, item.obj)
            return
        owners = meta.get("ownerReferences") or []
        if not owners:
            return
        living = [owner for owner in owners if self._lives(owner, namespace)]
        if not living:
            await self._delete(resource, item.obj, None)
        elif len(living) < len(owners):
            await self._set_owners(resource, item.obj, living)

    def _lives(self, owner: Json, namespace: str) -> bool:
        resource = self._api.kinds.by_kind(owner["apiVersion"], owner["kind"])
        if resource is None:
            # The owner's kind is not served (any more, or in this version): keep what cannot be looked up.
            return True
        item = self._api.store.get(resource.store, namespace if resource.namespaced else "", owner["name"])
        return item is not None and item.obj["metadata"]["uid"] == owner["uid"]

    async def _finalize(self, resource: Resource, obj: Json) -> None:
        finalizers = obj["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            for kind, item in self._dependents(obj["metadata"]["uid"]):
                dependent = self._api.kinds.find(*kind)
                if dependent is not None:
                    owners = item.obj["metadata"].get("ownerReferences") or ()
                    left = [owner for owner in owners if owner.get("uid") != obj["metadata"]["uid"]]
                    await self._set_owners(dependent, item.obj, left)
            await self._release(resource, obj, ORPHAN)
        elif FOREGROUND in finalizers:
            dependents = self._dependents(obj["metadata"]["uid"])
            for kind, item in dependents:
                dependent = self._api.kinds.find(*kind)
                if dependent is not None and "deletionTimestamp" not in item.obj["metadata"]:
                    await self._delete(dependent, item.obj, "Foreground")
            if not self._dependents(obj["metadata"]["uid"]):
                await self._release(resource, obj, FOREGROUND)

    async def _delete(self, resource: Resource, obj: Json, policy: str | None) -> None:
        meta = obj["metadata"]
        options: Json = {"preconditions": {"uid": meta["uid"]}, "propagationPolicy": policy or "Background"}
        try:
            await self._api.delete(self._call, resource, meta.get("namespace", ""), meta["name"], options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def _set_owners(self, resource: Resource, obj: Json, owners: list[Json]) -> None:
        await self._patch_metadata(resource, obj, {"ownerReferences": owners or None})

    async def _release(self, resource: Resource, obj: Json, finalizer: str) -> None:
        left = [item for item in obj["metadata"].get("finalizers") or () if item != finalizer]
        change = {"finalizers": left or None, "resourceVersion": obj["metadata"]["resourceVersion"]}
        await self._patch_metadata(resource, obj, change)

    async def _patch_metadata(self, resource: Resource, obj: Json, change: Json) -> None:
        meta = obj["metadata"]
        body = {"metadata": {"uid": meta["uid"], **change}}
        try:
            await self._api.patch(
                self._call,
                resource,
                meta.get("namespace", ""),
                meta["name"],
                "application/merge-patch+json",
                body,
            )
        except ApiError as error:
            if error.code != 404:
                raise


async def empty_namespace(api: Api, name: str) -> bool:
    """Delete the contents of a terminating namespace; once it is empty, remove it and return True."""
    item = api.store.get(NAMESPACES, "", name)
    namespaces = api.kinds.find(*NAMESPACES)
    if item is None or namespaces is None or "deletionTimestamp" not in item.obj["metadata"]:
        return True
    call = Call(service_account("namespace-controller").user)
    left = False
    for kind in {resource.store for resource in api.kinds if resource.namespaced and "delete" in resource.verbs}:
        resource = api.kinds.find(*kind)
        if resource is None or not api.store.items(kind, name):
            continue
        await api.delete_collection(call, Selection(resource, name), {"propagationPolicy": "Background"})
        left = left or bool(api.store.items(kind, name))
    if left:
        return False
    obj = api.get(namespaces, "", name).obj
    body = {**obj, "spec": {**(obj.get("spec") or {}), "finalizers": []}}
    await api.replace(call, namespaces, "", name, body, "finalize")
    return True
