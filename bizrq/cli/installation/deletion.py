"""Delete objects of an installation.

This file alone decides what an earlier install left, and which objects are left where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bizrq.cli.apply import named, report
from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, PRIORITIES, PRUNED, resource_of
from bizrq.cli.output.failure import warn
from bizrq.kube.client import Forbidden, KubeClient, NotFound

Object = dict[str, Any]


async def prune(client: KubeClient, objects: Sequence[Object]) -> list[Object]:
    """Delete the other objects that carry the label of install: an earlier install created them. Return them."""
    kept = {(resource_of(o), o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
    namespaces = sorted({namespace for _, namespace, _ in kept if namespace})
    outdated = []
    for resource in PRUNED:
        for namespace in namespaces if resource.namespaced else (None,):
            try:
                items, _ = await client.list(resource, namespace, label_selector=f"{MANAGED}={INSTALL}")
            except (Forbidden, NotFound) as error:
                # A cluster may keep API priority for itself, or have none.
                if resource not in PRIORITIES:
                    raise
                if isinstance(error, Forbidden):
                    warn(f"{resource.key} of an earlier install may be left: {error.message}")
                continue
            for item in items:
                if (resource, namespace, item["metadata"]["name"]) not in kept:
                    await delete(client, item)
                    outdated.append(item)
    return outdated


async def delete(client: KubeClient, obj: Object) -> None:
    """Delete the object and say so, except for a namespace that install did not create."""
    resource, metadata = resource_of(obj), obj["metadata"]
    try:
        if obj["kind"] == "Namespace":
            stored = await client.get(resource, metadata["name"])
            if (stored["metadata"].get("labels") or {}).get(MANAGED) != INSTALL:
                report(obj, "kept: install did not create it")
                return
        await client.delete(resource, metadata["name"], metadata.get("namespace"))
    except NotFound:
        return
    except Forbidden as error:
        if resource not in PRIORITIES:
            raise
        warn(f"{named(obj)} may be left: {error.message}")
        return
    report(obj, "deleted")
