"""bizrq install and uninstall: apply the objects of bizrq to a cluster, or delete them."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import settings_of
from bizrq.cli.output import terminal
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, warn

if TYPE_CHECKING:
    from bizrq.cli.manifests_of_bizrq import InstallPlan
    from bizrq.kube.client import KubeClient, Resource

_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of bizrq itself.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the objects in order, and change nothing.")]
#: Seconds to wait for the deletion of a CRD.
_GONE = 120.0
#: The field manager of server-side apply.
_MANAGER = "bizrq-install"
_STRICT = {"fieldValidation": "Strict"}
_CIDR = re.compile(r"[0-9a-fA-F:.]+/[0-9]{1,3}", re.ASCII)
#: The HTTP status for a patch type that the API server does not support.
_UNSUPPORTED = 415


class InstallOutput(StrEnum):
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


_Output = Annotated[InstallOutput, typer.Option("--output", "-o", help="Output format of --dry-run.")]


def install(
    image: Annotated[str | None, typer.Option(help="Image of the processes; by default bizrq of this version.")] = None,
    namespace: _Namespace = "bizrq-system",
    config: Annotated[Path | None, typer.Option(help="YAML file of the processes' configuration.")] = None,
    replicas: Annotated[
        int, typer.Option(min=1, max=20, help="Replicas of the webhooks and of the controller, each.")
    ] = 2,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="CA of the API server's client certificate, a PEM file; reviews without it are refused."),
    ] = None,
    client_name: Annotated[
        str | None, typer.Option(help="Common name of the API server's client certificate; needs --client-ca.")
    ] = None,
    api_server_cidr: Annotated[
        list[str] | None,
        typer.Option(
            help="Addresses of the API servers, for a NetworkPolicy of the webhooks' port; repeat it. Wrong ones block "
            "every write that is reviewed."
        ),
    ] = None,
    metrics_anonymous: Annotated[
        bool, typer.Option("--metrics-anonymous", help="Let everybody read /metrics, without a token.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Register the webhooks only once one of them is ready.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for a ready webhook.")] = 180,
    dry_run: _DryRun = False,
    output: _Output = InstallOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Install or update bizrq in a cluster. Repeating it changes nothing.

    Applies the CRDs, RBAC, processes and Service, and the webhook registration last, because a registered webhook
    that does not run refuses every write. Deletes what only an earlier install created. Requires administrator rights.
    """
    from importlib.metadata import version

    settings = settings_of(config)

    from bizrq.cli import manifests_of_bizrq

    plan = manifests_of_bizrq.InstallPlan(
        namespace,
        image or f"bizrq:{version('bizrq')}",
        replicas,
        config.read_text("utf-8") if config is not None else "",
        client_ca=_authorities(client_ca, client_name),
        client_name=client_name or "",
        api_servers=tuple(dict.fromkeys(map(_network, api_server_cidr or ()))),
        metrics_anonymous=metrics_anonymous,
    )
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
        for obj in await _prune(client, objects):
            if obj["metadata"]["name"] == manifests_of_bizrq.CLIENT_CA:
                warn("without --client-ca the webhooks now answer everybody who reaches their port")
            if obj["kind"] == "NetworkPolicy":
                warn("without --api-server-cidr every pod can now reach the port of the webhooks")

    run_on(client_for(where), work)


def uninstall(
    namespace: _Namespace = "bizrq-system",
    crd: Annotated[
        bool, typer.Option("--crd", help="Delete the CRDs too, and with them every group and its hours.")
    ] = False,
    dry_run: _DryRun = False,
    output: _Output = InstallOutput.NAME,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Remove bizrq from a cluster, the webhook registration first, so that no write is refused meanwhile.

    Groups and their CRDs are kept without --crd. The namespace is deleted only if install created it.
    """
    from bizrq.cli import manifests_of_bizrq

    plan = manifests_of_bizrq.InstallPlan(namespace, "", 1, " ", client_ca=" ", api_servers=(" ",))
    objects = list(reversed(manifests_of_bizrq.install_objects(settings_of(None), plan)))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": manifests_of_bizrq.SECRET, "namespace": namespace},
    }
    kept = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    going = [obj for obj in objects if obj not in kept]
    # Delete the namespace after the objects in it.
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
            await _warn_of_kept_groups(client)

    run_on(client_for(where), work)


def _authorities(client_ca: Path | None, client_name: str | None) -> str:
    """Return the CA of the API server's client certificate as PEM text, "" for none. Raise Failure."""
    if client_ca is None and client_name is None:
        return ""
    from certs.clients import clients_of
    from certs.pki import CertificateError

    try:
        clients = clients_of(client_ca, client_name)
        return clients.authorities() if clients is not None else ""
    except CertificateError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def _network(text: str) -> str:
    """Return a CIDR of `--api-server-cidr` as Kubernetes writes it. Raise Failure."""
    import ipaddress

    def refused(remedy: str) -> Failure:
        return Failure(f"--api-server-cidr {text[:64]!r} {remedy}", EXIT_BAD_INPUT)

    if not _CIDR.fullmatch(text):
        raise refused("is no CIDR: write an address and a prefix length, such as 10.0.0.0/24 or fd00::/64")
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        raise refused("is no CIDR: write one such as 10.0.0.0/24 or fd00::/64") from None
    if isinstance(address, ipaddress.IPv6Interface) and address.ipv4_mapped is not None:
        raise refused(f"is IPv4 in the form of IPv6: write {address.ipv4_mapped} with its own prefix length")
    if address.ip != address.network.network_address:
        alone = f"{address.ip}/{address.max_prefixlen}"
        raise refused(f"has an address inside its network: write {address.network}, or {alone}")
    if address.network.prefixlen == 0:
        raise refused("is every address: name those of the API servers, or leave the flag out")
    return str(address.network)


def _print(objects: list[dict[str, Any]], form: InstallOutput) -> None:
    if form is InstallOutput.NAME:
        for obj in objects:
            terminal.write(f"{_named(obj)}\n")
        return
    if form is InstallOutput.JSON:
        terminal.print_json({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects})
        return
    import yaml

    class Plain(yaml.SafeDumper):
        """Write equal parts in full, without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    yaml.dump_all(objects, sys.stdout, Dumper=Plain, sort_keys=False, width=110)


def _named(obj: dict[str, Any]) -> str:
    """Return the name as kubectl prints it: deployment.apps/bizrq-webhooks."""
    from bizrq.cli.manifests_of_bizrq import resource_of

    resource = resource_of(obj)
    kind = f"{resource.kind.lower()}.{resource.group}" if resource.group else resource.kind.lower()
    return f"{kind}/{obj['metadata']['name']}"


def _report(obj: dict[str, Any], what: str) -> None:
    terminal.write(f"{_named(obj)} {what}\n")


async def _apply(client: KubeClient, obj: dict[str, Any]) -> None:
    """Apply the object by server-side apply: keep the fields of others, remove those that we no longer set."""
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
        # Do not label an existing namespace: uninstall would delete it.
        _report(obj, "unchanged")
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
        _report(obj, "created")
    else:
        _report(obj, "unchanged" if _wanted(orjson.loads(answer)) == _wanted(stored) else "configured")


async def _merge(client: KubeClient, resource: Resource, obj: dict[str, Any], stored: dict[str, Any] | None) -> bytes:
    """Create or patch the object without server-side apply, as on the sandbox; fields that we no longer set stay."""
    import orjson

    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
    if stored is None:
        return await client.request("POST", resource.path(namespace), body=orjson.dumps(obj), params=_STRICT)
    patch, kind = orjson.dumps(_with_bundles(obj, stored)), "application/merge-patch+json"
    return await client.request("PATCH", resource.path(namespace, name), body=patch, params=_STRICT, content_type=kind)


async def _prune(client: KubeClient, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Delete the other objects that carry the label of install: an earlier install created them. Return them."""
    from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, PRUNED, resource_of

    kept = {(resource_of(o), o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
    namespaces = sorted({namespace for _, namespace, _ in kept if namespace})
    outdated = []
    for resource in PRUNED:
        for namespace in namespaces if resource.namespaced else (None,):
            items, _ = await client.list(resource, namespace, label_selector=f"{MANAGED}={INSTALL}")
            for item in items:
                if (resource, namespace, item["metadata"]["name"]) not in kept:
                    await _delete(client, item)
                    outdated.append(item)
    return outdated


def _wanted(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its status and without the fields that the API server sets."""
    counted = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in obj["metadata"].items() if key not in counted}
    return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": metadata}


def _with_bundles(obj: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Keep the caBundles that bizrq-certs has set in the registration, because a patch replaces the whole list."""
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
    """Return when a webhook is ready. Raise Failure after `timeout` seconds."""
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
                f"no webhook became ready within {timeout} s, so none is registered and nothing is refused; check "
                f"kubectl -n {plan.namespace} describe pods, then run install again, or with --no-wait",
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
                _report(obj, "kept: install did not create it")
                return
        await client.delete(resource, metadata["name"], metadata.get("namespace"))
    except NotFound:
        return
    _report(obj, "deleted")


async def _free_groups(client: KubeClient) -> None:
    """Remove our finalizer from the groups, because the controller no longer runs."""
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
    """Return when a CRD is deleted with all of its objects. Raise Failure after a timeout."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    until = time.monotonic() + _GONE
    with contextlib.suppress(NotFound):
        while time.monotonic() < until:
            await client.get(resource_of(obj), obj["metadata"]["name"])
            await asyncio.sleep(0.2)
        raise Failure(
            f"{_named(obj)} still exists after {_GONE:.0f} s: a finalizer keeps one of its objects", EXIT_CLUSTER
        )


async def _warn_of_kept_groups(client: KubeClient) -> None:
    from bizrq.api.group import FINALIZER
    from bizrq.kube.client import NotFound
    from bizrq.store.groups import GROUPS

    try:
        groups, _ = await client.list(GROUPS)
    except NotFound:
        return
    held = sum(FINALIZER in (group["metadata"].get("finalizers") or []) for group in groups)
    warn(f"{len(groups)} groups and their CRDs are kept; bizrq uninstall --crd deletes them")
    if held:
        warn(f"{held} of them have used hours and cannot be deleted one by one without the controller")
