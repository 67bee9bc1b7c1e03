"""Restore groups, records, statements and corrections from a backup of all objects of bizrq.

`kubectl get bizgroup -o yaml > backup.yaml` makes the backup. docs/operations.md, "Backup and restore", has the steps:
neither the controller nor the webhooks may run, and the user needs the ClusterRole bizrq-restore.

What is created again has another uid. What names it by uid, names the new one then; otherwise the controller would
close records as those of an older group. What the store has already is kept as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bizrq.documents import FileSize, NotYAML, load_all, read
from bizrq.kube.client import ApiError, ConfigError, KubeClient, NotFound, Resource, Unreachable
from bizrq.kube.config import default_kubeconfig
from bizrq.process import end
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.payers import PAYERS
from bizrq.units.text import one_line

Object = dict[str, Any]

#: Of a backup. An administrator gives it, who waits some 20 seconds of a processor for a million keys and values.
LARGEST = FileSize(1024 * 1024 * 1024, 100_000_000)

#: In this order: records and statements name groups and corrections by uid.
_KINDS = (GROUPS, CORRECTIONS, CARD_HOURS, STATEMENTS, PAYERS)
#: The fields of a status that are resourceVersions. Those of another cluster, or of an older store, say nothing.
_REVISIONS = ("seen", "countedAt")
#: What is kept of the status of a group: its part of the record of payers. The controller counts the rest anew.
_OF_GROUPS = ("payers", "payersPages")


class BadBackup(ValueError):
    """The file is no backup. The message is one line."""


async def restore(client: KubeClient, items: Sequence[Object]) -> AsyncIterator[str]:
    """Create what the store lacks, with its status, and yield a line for each object. Raise ApiError, Unreachable.

    A run that was cut off is continued: what has no status yet gets it.
    """
    uids: dict[str, str] = {}
    for resource in _KINDS:
        for item in _parents_first([item for item in items if item.get("kind") == resource.kind]):
            wanted = _renamed(_bare(item), uids)
            name = wanted["metadata"]["name"] = _with_uid(item["metadata"]["name"], uids)
            status = _restored(resource, wanted.pop("status", None) or {})
            stored = await _stored(client, resource, name)
            made = stored or await client.create(resource, wanted)
            uids[item["metadata"]["uid"]] = made["metadata"]["uid"]
            if status and not made.get("status"):
                await client.replace(resource, {**made, "status": status}, subresource="status")
                stored = None
            yield f"{resource.key} {name} {'created' if stored is None else 'kept'}"


def _restored(resource: Resource, status: Object) -> Object:
    """Return the fields of a status that are restored."""
    if resource is GROUPS:
        return {key: value for key, value in status.items() if key in _OF_GROUPS}
    return {key: value for key, value in status.items() if key not in _REVISIONS}


async def _stored(client: KubeClient, resource: Resource, name: str) -> Object | None:
    try:
        return await client.get(resource, name)
    except NotFound:
        return None


def _parents_first(items: Sequence[Object]) -> list[Object]:
    """Return the items in an order in which each group follows its parent; nothing else has one."""
    parents = {item["metadata"]["name"]: (item.get("spec") or {}).get("parentBizGroup") or "" for item in items}

    def depth(name: str) -> int:
        seen: set[str] = set()
        while name in parents and name not in seen:
            seen.add(name)
            name = parents[name]
        return len(seen)

    return sorted(items, key=lambda item: depth(item["metadata"]["name"]))


def _bare(item: Object) -> Object:
    """Return an object without the metadata that the API server and the controller write."""
    written = ("name", "labels", "annotations", "ownerReferences")
    return {**item, "metadata": {key: item["metadata"][key] for key in written if key in item["metadata"]}}


def _renamed(value: Any, uids: Mapping[str, str]) -> Any:
    """Return the value with the new uid wherever a field `uid` has an old one."""
    if isinstance(value, list):
        return [_renamed(each, uids) for each in value]
    if isinstance(value, dict):
        renamed = {key: _renamed(each, uids) for key, each in value.items()}
        return {**renamed, "uid": uids.get(renamed["uid"], renamed["uid"])} if "uid" in renamed else renamed
    return value


def _with_uid(name: str, uids: Mapping[str, str]) -> str:
    """Return the name of an object; that of a page ends with the uid of its group."""
    start, dot, last = name.rpartition(".")
    return f"{start}{dot}{uids[last]}" if last in uids else name


def items_of(text: str) -> list[Object]:
    """Return the objects of a backup: those of lists, and single ones. Raise NotYAML, BadBackup."""
    found: list[Object] = []
    for document in load_all(text, LARGEST):
        items = document.get("items", [document]) if isinstance(document, dict) else None
        if not isinstance(items, list):
            raise BadBackup("not a list of objects: make it with kubectl get bizgroup -o yaml")
        for item in items:
            _check(item, len(found))
            found.append(item)
    return found


def _check(item: object, index: int) -> None:
    """Raise BadBackup for what is no object that kubectl has read."""
    if not isinstance(item, dict) or not str(item.get("apiVersion")).startswith(f"{GROUPS.group}/"):
        raise BadBackup(f"items.{index} is no object of bizrq: give the output of kubectl get bizgroup -o yaml")
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not all(isinstance(metadata.get(key), str) for key in ("name", "uid")):
        raise BadBackup(f"items.{index}: metadata lacks name or uid: give the output of kubectl get bizgroup -o yaml")
    for key in ("spec", "status"):
        if not isinstance(item.get(key) or {}, dict):
            raise BadBackup(f"items.{index}: {key} is of the wrong type: write a map of keys to values")
    if not isinstance((item.get("spec") or {}).get("parentBizGroup") or "", str):
        raise BadBackup(f"items.{index}: spec.parentBizGroup is of the wrong type: write a text")


async def _run(kubeconfig: Path, context: str | None, items: Sequence[Object]) -> None:
    async with KubeClient.from_kubeconfig(kubeconfig, context) as client:
        async for line in restore(client, items):
            sys.stdout.write(f"{one_line(line)}\n")


def main() -> None:
    """Restore the backup that the command line names. Exit with one line and status 2 if that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backup", type=Path, help="the output of kubectl get bizgroup -o yaml, or -o json")
    parser.add_argument("--kubeconfig", type=Path, default=default_kubeconfig(), help="the cluster and the user")
    parser.add_argument("--context", help="context of the kubeconfig")
    given = parser.parse_args()
    try:
        items = items_of(read(given.backup, LARGEST))
    except OSError as error:
        end("restore", f"{given.backup}: {error.strerror}")
    except (NotYAML, BadBackup) as error:
        end("restore", f"{given.backup}: {error}")
    try:
        asyncio.run(_run(given.kubeconfig, given.context, items))
    except (ApiError, ConfigError, Unreachable) as error:
        end("restore", str(error))


if __name__ == "__main__":
    main()
