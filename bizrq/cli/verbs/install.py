"""bizrq install: apply the objects of bizrq to a cluster."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq import flags
from bizrq.cli.apply import DryRunOutput, ManifestOutput, apply, named, print_objects, report
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.installation import waiting
from bizrq.cli.installation.deletion import delete, prune
from bizrq.cli.options import DryRun, SystemNamespace, settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, Failure, warn

if TYPE_CHECKING:
    from bizrq.cli.manifests_of_bizrq import InstallPlan
    from bizrq.cli.manifests_of_web import WebPlan
    from bizrq.kube.client import KubeClient

_REPLICAS = 2
#: A network as text.
_CIDR = re.compile(r"[0-9a-fA-F:.]+/[0-9]{1,3}", re.ASCII)


def install(
    image: Annotated[str | None, typer.Option(help="Image of the processes; by default bizrq of this version.")] = None,
    namespace: SystemNamespace = "bizrq-system",
    config: Annotated[Path | None, typer.Option(help="YAML file of the processes' configuration.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Replicas of the webhooks and of the controller, each; at first 2."),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="CA of the API server's client certificate, a PEM file; reviews without it are refused."),
    ] = None,
    client_name: Annotated[
        str | None, typer.Option(help="Common name of the API server's client certificate; needs --client-ca.")
    ] = None,
    no_client_ca: Annotated[
        bool, typer.Option("--no-client-ca", help="Remove the installed client CA and client name.")
    ] = False,
    api_server_cidr: Annotated[
        list[str] | None,
        typer.Option(
            help="Addresses of the API servers, for a NetworkPolicy of the webhooks' port; repeat it. Wrong ones block "
            "every write that is reviewed."
        ),
    ] = None,
    no_api_server_cidr: Annotated[
        bool, typer.Option("--no-api-server-cidr", help="Remove the installed NetworkPolicy.")
    ] = False,
    metrics_anonymous: Annotated[
        bool | None, typer.Option(help="Let everybody read /metrics, without a token; at first --no-metrics-anonymous.")
    ] = None,
    drain_delay: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=flags.LONGEST_DRAIN,
            help="Seconds that webhooks serve on after SIGTERM, until no new reviews come; "
            f"at first {flags.DRAIN_DELAY}.",
        ),
    ] = None,
    allowances: Annotated[
        bool | None,
        typer.Option(
            help="Let webhooks admit ahead of the write where groups have plenty of room; at first --no-allowances."
        ),
    ] = None,
    log_format: Annotated[
        flags.LogFormat | None, typer.Option(help="Form of a line of the log; at first text.")
    ] = None,
    log_level: Annotated[
        flags.LogLevel | None, typer.Option(help="Log nothing that is less severe; at first info.")
    ] = None,
    api_priority: Annotated[
        bool | None,
        typer.Option(
            help="Reserve a share of the API server's seats for the processes' own requests; at first --api-priority."
        ),
    ] = None,
    web: Annotated[bool | None, typer.Option(help="Install the web UI too, or remove it; it needs --web-url.")] = None,
    web_url: Annotated[
        str | None, typer.Option(help="Address at which browsers reach the web UI, like https://quota.corp.")
    ] = None,
    web_tls_secret: Annotated[
        str | None,
        typer.Option(help="Secret with tls.crt and tls.key for the web UI; without it an ingress in front has TLS."),
    ] = None,
    web_oidc_issuer: Annotated[
        str | None, typer.Option(help="Provider to sign in to the web UI with, like https://login.corp/realm.")
    ] = None,
    web_oidc_client_id: Annotated[
        str | None, typer.Option(help="Client of the provider; needs --web-oidc-issuer.")
    ] = None,
    web_oidc_secret: Annotated[
        str | None, typer.Option(help="Secret with the key client-secret, unless the client is a public one.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the webhooks are ready and registered.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for ready and registered webhooks.")] = 180,
    dry_run: DryRun = False,
    output: DryRunOutput = ManifestOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Install or update bizrq in a cluster. Repeating it changes nothing.

    Applies the CRDs, RBAC, processes and Service. The controller registers the webhooks once one of them is ready.
    Deletes what only an earlier install created. Requires administrator rights.

    A new installation requires the verb use to charge a group: give it with bizrq allow. An update keeps what the
    installation has, and says so; a flag that is given wins, and an empty --web-... removes what it named. An image
    becomes that of this version, unless --image named one of another repository. --dry-run prints a new installation.
    """
    from importlib.metadata import version

    from bizrq.api import priority
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.installation.configuration import configuration, requires_use
    from bizrq.cli.installation.stored_flags import FLAGS, REPOSITORY
    from bizrq.store import pause
    from bizrq.store.processes import WEB, WEBHOOKS

    text = settings_of(config).text if config is not None else None
    if no_client_ca and (client_ca is not None or client_name is not None):
        raise Failure("--no-client-ca goes without --client-ca and --client-name", EXIT_BAD_INPUT)
    if no_api_server_cidr and api_server_cidr:
        raise Failure("--no-api-server-cidr goes without --api-server-cidr", EXIT_BAD_INPUT)
    pages = _given(
        url=web_url,
        tls_secret=web_tls_secret,
        issuer=web_oidc_issuer,
        client=web_oidc_client_id,
        client_secret=web_oidc_secret,
    )
    if pages and not web:
        flag = FLAGS[next(iter(pages))]
        raise Failure(f"{flag} needs --web" if web is None else f"--no-web goes without {flag}", EXIT_BAD_INPUT)
    given = _given(
        image=image,
        replicas=replicas,
        metrics_anonymous=metrics_anonymous,
        drain_delay=drain_delay,
        allowances=allowances,
        log_format=log_format,
        log_level=log_level,
        api_priority=api_priority,
    )
    plan = manifests_of_bizrq.InstallPlan(
        namespace,
        client_ca=_authorities(client_ca, client_name),
        client_name=client_name or "",
        api_servers=tuple(dict.fromkeys(map(_network, api_server_cidr or ()))),
        **{"image": f"{REPOSITORY}:{version('bizrq')}", "replicas": _REPLICAS, **given},
    )
    if dry_run:
        _, objects = _planned(plan, configuration(text, None), _web_plan(pages) if web else None)
        print_objects(objects, output)
        _warn_of_strangers(plan)
        return

    async def work(client: KubeClient) -> None:
        await _refuse_elsewhere(client, namespace)
        processes = await _processes(client, namespace)
        installed = await _installed(client, namespace, processes)
        kept, its_web = await _keep_flags(client, plan, processes, given, web, pages)
        kept = await _keeping(client, kept, processes, clients=not no_client_ca, api_servers=not no_api_server_cidr)
        final, objects = _planned(kept, configuration(text, installed), its_web)
        _warn_of_lost_flags(processes, objects)
        priorities = [obj for obj in objects if obj["kind"] in priority.KINDS]
        definitions = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
        others = [obj for obj in objects if obj not in (*priorities, *definitions)]
        for obj in priorities:
            await _apply_priority(client, obj)
        for obj in definitions:
            await apply(client, obj)
        for obj in definitions:
            await waiting.established(client, obj)
        for obj in others:
            if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] == WEB:
                await _make_keys(client, namespace)
            if wait and obj["kind"] == "Deployment" and obj["metadata"]["name"] == WEBHOOKS and WEBHOOKS in processes:
                await waiting.controlled(client, namespace, timeout)
            await apply(client, obj)
        if wait:
            await waiting.served(client, plan, timeout)
        for obj in await prune(client, objects):
            if obj["metadata"]["name"] == manifests_of_bizrq.CLIENT_CA:
                warn("the client CA is removed: the webhooks now answer everybody who reaches their port")
            if obj["kind"] == "NetworkPolicy":
                warn("the NetworkPolicy is removed: every pod can now reach the port of the webhooks")
        for obj in manifests_of_bizrq.outdated(namespace):
            await delete(client, obj)
        if marker := await pause.read(client, namespace):
            warn(f"{marker}; the webhooks are not registered until bizrq resume")
        elif wait:
            await waiting.registered(client, plan, timeout)
        if not requires_use(final.config):
            warn("rights.use is off: who may create workloads in any namespace may charge every group; docs/rights.md")
        elif installed is None:
            warn("nobody may charge a group yet: bizrq allow USER GROUP gives the right; docs/rights.md")
        if installed is None:
            _warn_of_strangers(final)

    run_on(client_for(where), work)


def _given(**flags_by_field: Any) -> dict[str, Any]:
    """Return the fields whose flags are given."""
    return {field: value for field, value in flags_by_field.items() if value is not None}


def _warn_of_strangers(plan: InstallPlan) -> None:
    if not plan.client_ca and not plan.api_servers:
        warn(
            "everybody who reaches the port of the webhooks can forge a review: give --client-ca and --client-name, or "
            '--api-server-cidr; docs/operations.md, "Who may ask"'
        )


def _web_plan(given: dict[str, Any]) -> WebPlan:
    """Return how the web UI is installed. Raise Failure."""
    from bizrq.cli.manifests_of_web import WebPlan
    from bizrq.kube.config import ConfigError
    from web.main import issuer_of

    plan = WebPlan(**{"url": "", **given})
    if not plan.url.startswith("https://"):
        raise Failure(
            f"--web needs --web-url, an address like https://quota.corp: {plan.url[:200]!r} is none", EXIT_BAD_INPUT
        )
    if bool(plan.issuer) != bool(plan.client):
        raise Failure("--web-oidc-issuer and --web-oidc-client-id need each other", EXIT_BAD_INPUT)
    if plan.client_secret and not plan.issuer:
        raise Failure("--web-oidc-secret needs --web-oidc-issuer", EXIT_BAD_INPUT)
    if plan.issuer:
        try:
            issuer_of(plan.issuer, "--web-oidc-issuer")
        except ConfigError as error:
            raise Failure(str(error), EXIT_BAD_INPUT) from None
    return plan


async def _refuse_elsewhere(client: KubeClient, namespace: str) -> None:
    """Raise Failure if the processes run in another namespace: they would lose their rights to those of this one."""
    from bizrq.cli.rbac import WEBHOOKS

    binding = await _stored(client, namespace, "ClusterRoleBinding", WEBHOOKS)
    for other in sorted({subject.get("namespace") or "" for subject in (binding or {}).get("subjects") or ()}):
        if other not in ("", namespace) and await _stored(client, other, "Deployment", WEBHOOKS):
            raise Failure(
                f"bizrq is installed in namespace {other}: add -n {other}, or run bizrq uninstall -n {other} first",
                EXIT_BAD_INPUT,
            )


async def _processes(client: KubeClient, namespace: str) -> dict[str, dict[str, Any]]:
    """Return the stored Deployments of the processes, by name."""
    from bizrq.cli.rbac import CERTS, CONTROLLER, WEBHOOKS
    from bizrq.store.processes import WEB

    found = {name: await _stored(client, namespace, "Deployment", name) for name in (CERTS, WEBHOOKS, CONTROLLER, WEB)}
    return {name: deployment for name, deployment in found.items() if deployment is not None}


async def _keep_flags(
    client: KubeClient,
    plan: InstallPlan,
    processes: dict[str, dict[str, Any]],
    given: dict[str, Any],
    web: bool | None,
    pages: dict[str, Any],
) -> tuple[InstallPlan, WebPlan | None]:
    """Return the plans with what the installation has where no flag is given, and say so. Raise Failure."""
    from dataclasses import replace

    from bizrq.cli.installation.stored_flags import NotAsInstalled, flags_of_processes, flags_of_web, image_of, spelled
    from bizrq.cli.rbac import WEBHOOKS
    from bizrq.store.processes import WEB

    webhooks = processes.get(WEBHOOKS)
    stored_web = processes.get(WEB) if web is not False else None
    try:
        kept = flags_of_processes(webhooks, given) if webhooks else {}
        of_web = flags_of_web(stored_web, pages) if stored_web else {}
    except NotAsInstalled as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    if webhooks and "api_priority" not in given and not await _has_priority(client):
        kept["api_priority"] = False
    final = replace(plan, **kept)
    told = {field: value for field, value in kept.items() if value != getattr(plan, field)} | of_web
    if told:
        alone = " --web" if of_web and web is None else ""
        warn(f"kept:{alone} {spelled(told)}; a flag that is given wins")
    if webhooks and "image" not in given:
        _say_image(image_of(webhooks), final.image)
    return final, _web_plan(of_web | pages) if web or stored_web else None


def _say_image(before: str, now: str) -> None:
    """Say which image an update without --image brings, where that may surprise."""
    from importlib.metadata import version

    from bizrq.cli.installation.stored_flags import of_other_version

    if now != before:
        warn(f"the image {before} becomes {now}; --image names another")
    elif of_other_version(now, version("bizrq")):
        warn(f"the processes stay those of the image {now}: give --image with that of version {version('bizrq')}")


async def _has_priority(client: KubeClient) -> bool:
    """Return whether API priority is installed; False for who may not see it, and so not change it either."""
    from bizrq.api import priority
    from bizrq.kube.client import Forbidden

    try:
        return await _stored(client, "", priority.KINDS[0], priority.LEVEL) is not None
    except Forbidden:
        return False


def _warn_of_lost_flags(processes: dict[str, dict[str, Any]], objects: Sequence[dict[str, Any]]) -> None:
    """Name the flags of the installed processes that somebody else gave them: these Deployments are install's."""
    from bizrq.cli.installation.stored_flags import lost

    for obj in objects:
        stored = processes.get(obj["metadata"]["name"]) if obj["kind"] == "Deployment" else None
        if stored and (flags_lost := lost(stored, obj)):
            warn(f"{named(obj)} loses what install has no flag for: {', '.join(flags_lost)}")


async def _make_keys(client: KubeClient, namespace: str) -> None:
    """Make the Secret with the keys of the web UI, where there is none: other keys would sign everybody out."""
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.manifests_of_web import keys
    from bizrq.kube.client import AlreadyExists

    secret = keys(namespace)
    with contextlib.suppress(AlreadyExists):
        await client.create(resource_of(secret), secret)
        report(secret, "created")


def _planned(plan: InstallPlan, text: str, web: WebPlan | None) -> tuple[InstallPlan, list[dict[str, Any]]]:
    """Return the plan with this configuration, and its objects. Raise Failure."""
    from dataclasses import replace

    from bizrq.api.config import ConfigurationError
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.manifests_of_web import web_objects
    from bizrq.settings import loads

    try:
        settings = loads(text, f"the configuration in configmap/{manifests_of_bizrq.CONFIG}")
    except ConfigurationError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None
    final = replace(plan, config=text)
    objects = manifests_of_bizrq.install_objects(settings, final)
    return final, [*objects, *(web_objects(final, web) if web is not None else [])]


async def _installed(client: KubeClient, namespace: str, processes: dict[str, dict[str, Any]]) -> str | None:
    """Return the text of the installed configuration, "" without one, None where nothing is installed. Raise Failure.

    A registration without our Deployment is of processes that somebody runs in another way: not a new installation.
    """
    from bizrq import registration
    from bizrq.api.config import ConfigurationError
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.rbac import WEBHOOKS
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.settings import loads

    registered = WEBHOOKS in processes or await _stored(client, namespace, REGISTRATIONS.kind, registration.NAME)
    if not registered:
        return None
    found = await _stored(client, namespace, "ConfigMap", manifests_of_bizrq.CONFIG)
    text = ((found or {}).get("data") or {}).get("config.yaml", "")
    try:
        loads(text, f"configmap/{manifests_of_bizrq.CONFIG} in namespace {namespace}")
    except ConfigurationError as error:
        raise Failure(f"{error}; correct it first", EXIT_BAD_INPUT) from None
    return text


async def _keeping(
    client: KubeClient, plan: InstallPlan, processes: dict[str, dict[str, Any]], *, clients: bool, api_servers: bool
) -> InstallPlan:
    """Return the plan with what is installed of these two where it names none, and say so. Raise Failure."""
    from dataclasses import replace

    from bizrq.cli.installation.stored_flags import api_servers_of, clients_of
    from bizrq.cli.manifests_of_bizrq import CLIENT_CA
    from bizrq.cli.rbac import WEBHOOKS

    kept = []
    if clients and not plan.client_ca:
        found = clients_of(processes.get(WEBHOOKS), await _stored(client, plan.namespace, "ConfigMap", CLIENT_CA))
        if found is None:
            raise Failure(
                f"the installed webhooks have --client-ca, and what it says cannot be read from configmap/{CLIENT_CA} "
                f"and deployment/{WEBHOOKS}: give --client-ca and --client-name, or --no-client-ca",
                EXIT_BAD_INPUT,
            )
        plan = replace(plan, client_ca=found[0], client_name=found[1])
        if plan.client_ca:
            kept.append(f"the client CA, and --client-name {plan.client_name!r}; --no-client-ca removes them")
    if api_servers and not plan.api_servers:
        addresses = api_servers_of(await _stored(client, plan.namespace, "NetworkPolicy", WEBHOOKS))
        if addresses is None:
            raise Failure(
                f"networkpolicy/{WEBHOOKS} is not as install made it: give --api-server-cidr, or --no-api-server-cidr",
                EXIT_BAD_INPUT,
            )
        plan = replace(plan, api_servers=addresses)
        if addresses:
            kept.append(f"--api-server-cidr {', '.join(addresses)}; --no-api-server-cidr removes it")
    for line in kept:
        warn(f"kept: {line}")
    return plan


async def _stored(client: KubeClient, namespace: str, kind: str, name: str) -> dict[str, Any] | None:
    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    resource = resource_of({"kind": kind})
    try:
        return await client.get(resource, name, namespace if resource.namespaced else None)
    except NotFound:
        return None


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


async def _apply_priority(client: KubeClient, obj: dict[str, Any]) -> None:
    """Apply an object of API priority. Raise Failure, with the field that the cluster rejects."""
    from bizrq.kube.client import ApiError

    try:
        await apply(client, obj)
    except ApiError as error:
        causes = [c for c in error.details.get("causes") or () if isinstance(c, dict) and c.get("field")]
        why = "; ".join(f"{c['field']}: {c.get('message', '')}" for c in causes) or str(error)
        raise Failure(
            f"{named(obj)} is rejected: {why}; nothing but the objects listed above is installed; run install with "
            '--no-api-priority, and see docs/operations.md, "API priority"',
            EXIT_CLUSTER,
        ) from None
