"""Apply manifests to a cluster, and print them, for the verbs that write objects.

This file alone decides how an object is applied, and when it counts as unchanged.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.output import terminal

if TYPE_CHECKING:
    from bizrq.kube.client import KubeClient, Resource

#: The field manager of `bizrq install`.
INSTALLER = "bizrq-install"
_STRICT = {"fieldValidation": "Strict"}


class ManifestOutput(StrEnum):
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


DryRunOutput = Annotated[ManifestOutput, typer.Option("--output", "-o", help="Output format of --dry-run.")]


def print_objects(objects: list[dict[str, Any]], form: ManifestOutput) -> None:
    if form is ManifestOutput.NAME:
        for obj in objects:
            terminal.write(f"{named(obj)}\n")
        return
    if form is ManifestOutput.JSON:
        terminal.print_json({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects})
        return
    import yaml

    class Plain(yaml.SafeDumper):
        """Write equal parts in full, without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    yaml.dump_all(objects, sys.stdout, Dumper=Plain, sort_keys=False, width=110)


def named(obj: dict[str, Any]) -> str:
    """Return the name as kubectl prints it: deployment.apps/bizrq-webhooks."""
    from bizrq.cli.manifests_of_bizrq import resource_of

    resource = resource_of(obj)
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    return f"{kind}/{obj['metadata']['name']}"


def report(obj: dict[str, Any], what: str) -> None:
    terminal.write(f"{named(obj)} {what}\n")


async def apply(client: KubeClient, obj: dict[str, Any], manager: str = INSTALLER) -> None:
    """Apply the object by server-side apply: keep the fields of others, remove those that we no longer set."""
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    resource, metadata = resource_of(obj), obj["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        stored = await client.get(resource, name, namespace)
    except NotFound:
        stored = None
    if stored is not None and obj["kind"] == "Namespace":
        # Do not label an existing namespace: uninstall would delete it.
        report(obj, "unchanged")
        return
    answer = await client.apply_or_create(resource, obj, manager, stored=stored)
    if answer is None:
        answer = await _merged(client, resource, obj)
    if stored is None:
        report(obj, "created")
    else:
        report(obj, "unchanged" if _wanted(answer) == _wanted(stored) else "configured")


async def _merged(client: KubeClient, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
    """Patch the object without server-side apply; fields that we no longer set stay."""
    import orjson

    from bizrq.kube.answers import parse

    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    patch, kind = orjson.dumps(obj), "application/merge-patch+json"
    path = resource.path(namespace, name)
    return parse(await client.request("PATCH", path, body=patch, params=_STRICT, content_type=kind))


def _wanted(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its status and without the fields that the API server sets."""
    counted = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in counted}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": metadata}
