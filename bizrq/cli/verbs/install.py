"""bizrq install and uninstall: what stands in a cluster where bizrq runs, put there and taken away."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import settings_of
from bizrq.cli.output.failure import EXIT_CLUSTER, Failure, warn

if TYPE_CHECKING:
    from bizrq.cli.manifests_of_bizrq import InstallPlan
    from bizrq.kube.client import KubeClient, Resource

_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where bizrq itself runs.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the objects instead, in their order.")]
#: Seconds that a kind's deletion may take.
_GONE = 120.0
#: Whose fields those are that install says.
_MANAGER = "bizrq-install"
_STRICT = {"fieldValidation": "Strict"}
#: The status of an API server that does not know a patch's kind.
_UNSUPPORTED = 415


class InstallOutput(StrEnum):
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


_Output = Annotated[InstallOutput, typer.Option("--output", "-o", help="How --dry-run prints them.")]


def install(
    image: Annotated[str | None, typer.Option(help="The processes' image, by default bizrq of this version.")] = None,
    namespace: _Namespace = "bizrq-system",
    config: Annotated[Path | None, typer.Option(help="The processes' configuration, one YAML document.")] = None,
    replicas: Annotated[int, typer.Option(min=1, max=20, help="Of webhooks and of the controller, each.")] = 2,
    wait: Annotated[bool, typer.Option(help="Register the webhooks once one is ready, not before.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for a webhook.")] = 180,
    dry_run: _DryRun = False,
    output: _Output = InstallOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Install bizrq in a cluster, or bring what is installed up to date; to do it again changes nothing.

    The CRD, rights, the processes and their Service, then the registration, since a webhook that is registered and
    not there refuses. What an earlier install made and this one does not goes. Needs an administrator's rights.
    """
    from importlib.metadata import version

    settings = settings_of(config)

    from bizrq.cli import manifests_of_bizrq

    text = config.read_text("utf-8") if config is not None else ""
    plan = manifests_of_bizrq.InstallPlan(namespace, image or f"bizrq:{version('bizrq')}", replicas, text)
    objects = manifests_of_bizrq.install_objects(settings, plan)
    if dry_run:
        _print(objects, output)
        return
    *before, registration = objects

    async def work(client: KubeClient) -> None:
        for obj in before:
            await _apply(client, obj)
        if wait:
            await _served(client, plan, timeout)
        await _apply(client, registration)
        await _prune(client, objects)

    run_on(client_for(where), work)


def uninstall(
    namespace: _Namespace = "bizrq-system",
    crd: Annotated[bool, typer.Option("--crd", help="The CRD too, and with it every group and what it spent.")] = False,
    dry_run: _DryRun = False,
    output: _Output = InstallOutput.NAME,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Take bizrq out of a cluster: the registration first, so that nothing is refused meanwhile.

    Groups and their CRD stay, unless --crd is given. The namespace goes only where install made it.
    """
    from bizrq.cli import manifests_of_bizrq

    plan = manifests_of_bizrq.InstallPlan(namespace, "", 1, " ")
    objects = list(reversed(manifests_of_bizrq.install_objects(settings_of(None), plan)))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": manifests_of_bizrq.SECRET, "namespace": namespace},
    }
    kept = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    going = [obj for obj in objects if obj not in kept]
    # The namespace last of what stands in it.
    going.insert(next(i for i, obj in enumerate(going) if obj["kind"] == "ServiceAccount"), secret)
    if dry_run:
        _print([*going, *(kept if crd else [])], output)
        return

    async def work(client: KubeClient) -> None:
        registration, *rest = going
        await _delete(client, registration)
        await _prune(client, going)
        for obj in rest:
            await _delete(client, obj)
        if crd:
            await _free_groups(client)
            for obj in kept:
                await _delete(client, obj)
                await _gone(client, obj)
        else:
            await _report_what_stays(client)

    run_on(client_for(where), work)


def _print(objects: list[dict[str, Any]], form: InstallOutput) -> None:
    if form is InstallOutput.NAME:
        for obj in objects:
            sys.stdout.write(f"{_named(obj)}\n")
        return
    if form is InstallOutput.JSON:
        from bizrq.cli.output import terminal

        terminal.print_json({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects})
        return
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors: what is the same twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    yaml.dump_all(objects, sys.stdout, Dumper=Plain, sort_keys=False, width=110)


def _named(obj: dict[str, Any]) -> str:
    """As kubectl names it: deployment.apps/bizrq-webhooks."""
    from bizrq.cli.manifests_of_bizrq import resource_of

    resource = resource_of(obj)
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    return f"{kind}/{obj['metadata']['name']}"


def _said(obj: dict[str, Any], what: str) -> None:
    typer.echo(f"{_named(obj)} {what}")


async def _apply(client: KubeClient, obj: dict[str, Any]) -> None:
    """Have the object say what we say, by server-side apply: what others say of it stays, what we say no more goes."""
    import orjson

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import ApiError, NotFound

    resource, metadata = resource_of(obj), obj["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        stored = await client.get(resource, name, namespace)
    except NotFound:
        stored = None
    if stored is not None and obj["kind"] == "Namespace":
        # Whoever made it, it is theirs: our labels would have uninstall delete it.
        _said(obj, "unchanged")
        return
    params = {**_STRICT, "fieldManager": _MANAGER, "force": "true"}
    path, kind = resource.path(namespace, name), "application/apply-patch+yaml"
    try:
        answer = await client.request("PATCH", path, body=orjson.dumps(obj), params=params, content_type=kind)
    except ApiError as error:
        if error.status != _UNSUPPORTED:
            raise
        answer = await _merge(client, resource, obj, stored)
    if stored is None:
        _said(obj, "created")
    else:
        _said(obj, "unchanged" if _wanted(orjson.loads(answer)) == _wanted(stored) else "configured")


async def _merge(client: KubeClient, resource: Resource, obj: dict[str, Any], stored: dict[str, Any] | None) -> bytes:
    """The same where there is no server-side apply, as on the sandbox: what we say no more stays."""
    import orjson

    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    if stored is None:
        return await client.request("POST", resource.path(namespace), body=orjson.dumps(obj), params=_STRICT)
    patch, kind = orjson.dumps(_with_bundles(obj, stored)), "application/merge-patch+json"
    return await client.request("PATCH", resource.path(namespace, name), body=patch, params=_STRICT, content_type=kind)


async def _prune(client: KubeClient, objects: Sequence[dict[str, Any]]) -> None:
    """Delete what has the label of install and is none of these: an earlier one made it, in the same namespaces."""
    from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, PRUNED, resource_of

    kept = {(resource_of(o), o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
    namespaces = sorted({namespace for _, namespace, _ in kept if namespace})
    for resource in PRUNED:
        for namespace in namespaces if resource.namespaced else (None,):
            items, _ = await client.list(resource, namespace, label_selector=f"{MANAGED}={INSTALL}")
            for item in items:
                if (resource, namespace, item["metadata"]["name"]) not in kept:
                    await _delete(client, item)


def _wanted(obj: dict[str, Any]) -> dict[str, Any]:
    """What of an object people decide: not its status, nor what the API server counts."""
    counted = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in counted}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": metadata}


def _with_bundles(obj: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """The registration with the caBundles that bizrq-certs has given it: a patch replaces the whole list."""
    if "webhooks" not in obj:
        return obj
    bundles = {w["name"]: w["clientConfig"].get("caBundle") for w in stored.get("webhooks") or ()}
    webhooks = [
        {**w, "clientConfig": {**w["clientConfig"], **({"caBundle": bundle} if bundle else {})}}
        for w in obj["webhooks"]
        for bundle in [bundles.get(w["name"])]
    ]
    return {**obj, "webhooks": webhooks}


async def _served(client: KubeClient, plan: InstallPlan, timeout: int) -> None:
    """Return once a webhook can answer; raises Failure after so many seconds."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.rbac import WEBHOOKS

    deployments = resource_of({"kind": "Deployment"})
    until = time.monotonic() + timeout
    while True:
        stored = await client.get(deployments, WEBHOOKS, plan.namespace)
        if (stored.get("status") or {}).get("availableReplicas"):
            return
        if time.monotonic() > until:
            raise Failure(
                f"no webhook is ready after {timeout} s, so none is registered and nothing is refused: look at "
                f"kubectl -n {plan.namespace} describe pods, then run install again (or --no-wait)",
                EXIT_CLUSTER,
            )
        await asyncio.sleep(1.0)


async def _delete(client: KubeClient, obj: dict[str, Any]) -> None:
    from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, resource_of
    from bizrq.kube.client import NotFound

    resource, metadata = resource_of(obj), obj["metadata"]
    try:
        if obj["kind"] == "Namespace":
            stored = await client.get(resource, metadata["name"])
            if (stored["metadata"].get("labels") or {}).get(MANAGED) != INSTALL:
                _said(obj, "stays: install did not make it")
                return
        await client.delete(resource, metadata["name"], metadata.get("namespace"))
    except NotFound:
        return
    _said(obj, "deleted")


async def _free_groups(client: KubeClient) -> None:
    """Take our finalizer off the groups: the controller, which would do it, is gone."""
    from bizrq.api.group import FINALIZER
    from bizrq.kube.client import NotFound
    from bizrq.store.groups import GROUPS

    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    for group in groups:
        finalizers = group["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            rest = [each for each in finalizers if each != FINALIZER]
            with contextlib.suppress(NotFound):
                await client.patch(GROUPS, group["metadata"]["name"], {"metadata": {"finalizers": rest}})


async def _gone(client: KubeClient, obj: dict[str, Any]) -> None:
    """Return when a CRD has gone with all of its objects; raises Failure."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    until = time.monotonic() + _GONE
    with contextlib.suppress(NotFound):
        while time.monotonic() < until:
            await client.get(resource_of(obj), obj["metadata"]["name"])
            await asyncio.sleep(0.2)
        raise Failure(f"{_named(obj)} is still there after {_GONE:.0f} s: something holds a group", EXIT_CLUSTER)


async def _report_what_stays(client: KubeClient) -> None:
    from bizrq.api.group import FINALIZER
    from bizrq.kube.client import NotFound
    from bizrq.store.groups import GROUPS

    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    held = sum(FINALIZER in (group["metadata"].get("finalizers") or []) for group in groups)
    warn(f"{len(groups)} groups and their CRD stay; bizrq uninstall --crd removes them")
    if held:
        warn(f"{held} of them have spent hours, and cannot be deleted one by one without a controller")
