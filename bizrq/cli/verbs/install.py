"""bizrq install and uninstall: apply the objects of bizrq to a cluster, or delete them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bizrq import flags
from bizrq.cli.apply import ManifestOutput, apply, named, print_objects, report
from bizrq.cli.cluster import DEFAULT_FLAGS, ClusterFlags, client_for, run_on
from bizrq.cli.options import settings_of
from bizrq.cli.output.failure import EXIT_BAD_INPUT, EXIT_CLUSTER, EXIT_UNKNOWN, Failure, progress, warn
from bizrq.units.text import by_number, counted

if TYPE_CHECKING:
    from bizrq.cli.manifests_of_bizrq import InstallPlan
    from bizrq.cli.manifests_of_web import WebPlan
    from bizrq.kube.client import KubeClient

_Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of bizrq itself.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the objects in order, and change nothing.")]
_Output = Annotated[ManifestOutput, typer.Option("--output", "-o", help="Output format of --dry-run.")]
#: Seconds to wait for the deletion of a CRD, and until it is established.
_GONE, _ESTABLISHED = 120.0, 60.0
#: Seconds between two lines about the same wait.
_TELL = 15.0
_REPLICAS = 2
#: The nouns whose plural is not the noun with an s.
_MANY = {"record of hours": "records of hours", "bill (statement)": "bills (statements)"}
#: A network as text.
_CIDR = re.compile(r"[0-9a-fA-F:.]+/[0-9]{1,3}", re.ASCII)


def install(
    image: Annotated[str | None, typer.Option(help="Image of the processes; by default bizrq of this version.")] = None,
    namespace: _Namespace = "bizrq-system",
    config: Annotated[Path | None, typer.Option(help="YAML file of the processes' configuration.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Replicas of the webhooks and of the controller, each; initially 2."),
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
        bool | None, typer.Option(help="Let everybody read /metrics, without a token; initially off.")
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
        typer.Option(help="Let webhooks admit ahead of the write where groups have plenty of room; initially off."),
    ] = None,
    log_format: Annotated[flags.LogFormat | None, typer.Option(help="Format of the log; initially text.")] = None,
    log_level: Annotated[flags.LogLevel | None, typer.Option(help="Lowest level to log; initially info.")] = None,
    api_priority: Annotated[
        bool | None,
        typer.Option(help="Reserve a share of the API server's seats for the processes' own requests; initially on."),
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
        str | None, typer.Option(help="Provider to sign in to the web UI with, like https://login.corp.")
    ] = None,
    web_oidc_client_id: Annotated[
        str | None, typer.Option(help="Client of the provider; needs --web-oidc-issuer.")
    ] = None,
    web_oidc_secret: Annotated[
        str | None, typer.Option(help="Secret with the key client-secret, unless the client is a public one.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the webhooks are ready and registered.")] = True,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait for ready and registered webhooks.")] = 180,
    dry_run: _DryRun = False,
    output: _Output = ManifestOutput.YAML,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Install or update bizrq in a cluster. Repeating it changes nothing.

    Applies the CRDs, RBAC, processes and Service. The controller registers the webhooks once one of them is ready.
    Deletes what only an earlier install created. Requires administrator rights.

    In a new installation people need the verb use to charge a group: bizrq allow grants it. An update keeps what the
    installation has, and says so; a flag that is given wins, and an empty --web-... removes what it named. An image
    becomes that of this version, unless --image named one of another repository. --dry-run prints a new installation.
    """
    from importlib.metadata import version

    from bizrq.api import priority
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.install_config import configuration, requires_use
    from bizrq.cli.installed import FLAGS, REPOSITORY
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
            await _established(client, obj)
        for obj in others:
            if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] == WEB:
                await _make_keys(client, namespace)
            if wait and obj["kind"] == "Deployment" and obj["metadata"]["name"] == WEBHOOKS and WEBHOOKS in processes:
                await _controlled(client, namespace, timeout)
            await apply(client, obj)
        if wait:
            await _served(client, plan, timeout)
        for obj in await _prune(client, objects):
            if obj["metadata"]["name"] == manifests_of_bizrq.CLIENT_CA:
                warn("the client CA is removed: the webhooks now answer everybody who reaches their port")
            if obj["kind"] == "NetworkPolicy":
                warn("the NetworkPolicy is removed: every pod can now reach the port of the webhooks")
        for obj in manifests_of_bizrq.outdated(namespace):
            await _delete(client, obj)
        if marker := await pause.read(client, namespace):
            warn(f"{marker}; the webhooks are not registered until bizrq resume")
        elif wait:
            await _registered(client, plan, timeout)
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
            "everybody who reaches the port of the webhooks can forge a review: pass --client-ca and --client-name, or "
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

    from bizrq.cli.installed import NotAsInstalled, flags_of_processes, flags_of_web, image_of, spelled
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

    from bizrq.cli.installed import of_other_version

    if now != before:
        warn(f"the image {before} becomes {now}; --image names another")
    elif of_other_version(now, version("bizrq")):
        warn(f"the processes stay those of the image {now}: pass --image with that of version {version('bizrq')}")


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
    from bizrq.cli.installed import lost

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

    from bizrq.cli.installed import api_servers_of, clients_of
    from bizrq.cli.manifests_of_bizrq import CLIENT_CA
    from bizrq.cli.rbac import WEBHOOKS

    kept = []
    if clients and not plan.client_ca:
        found = clients_of(processes.get(WEBHOOKS), await _stored(client, plan.namespace, "ConfigMap", CLIENT_CA))
        if found is None:
            raise Failure(
                f"the installed webhooks have --client-ca, and what it says cannot be read from configmap/{CLIENT_CA} "
                f"and deployment/{WEBHOOKS}: pass --client-ca and --client-name, or --no-client-ca",
                EXIT_BAD_INPUT,
            )
        plan = replace(plan, client_ca=found[0], client_name=found[1])
        if plan.client_ca:
            kept.append(f"the client CA, and --client-name {plan.client_name!r}; --no-client-ca removes them")
    if api_servers and not plan.api_servers:
        addresses = api_servers_of(await _stored(client, plan.namespace, "NetworkPolicy", WEBHOOKS))
        if addresses is None:
            raise Failure(
                f"networkpolicy/{WEBHOOKS} is not as install made it: pass --api-server-cidr, or --no-api-server-cidr",
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


def uninstall(
    namespace: _Namespace = "bizrq-system",
    crd: Annotated[
        bool, typer.Option("--crd", help="Delete the CRDs too, and with them every group and its hours.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete with --crd what that would delete, unasked.")] = False,
    dry_run: _DryRun = False,
    output: _Output = ManifestOutput.NAME,
    where: ClusterFlags = DEFAULT_FLAGS,
) -> None:
    """Remove bizrq from a cluster, the webhook registration first, so that no write is refused meanwhile.

    A marker as of bizrq pause keeps the controller from registering the webhooks again; it goes last.

    Groups and their CRDs are kept without --crd, which needs --yes: it deletes all groups, and the bills with them.
    With --dry-run it counts them, and exit code 4 means that some may not be listed. The namespace is deleted only if
    install created it.
    """
    from bizrq.cli import manifests_of_bizrq
    from bizrq.cli.manifests_of_web import WebPlan, web_objects
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.registration import NAME
    from bizrq.store.processes import WEB

    plan = manifests_of_bizrq.InstallPlan(namespace, "", 1, " ", client_ca=" ", api_servers=(" ",))
    made = [*manifests_of_bizrq.install_objects(settings_of(None), plan), *web_objects(plan, WebPlan("https://web"))]
    objects = list(reversed(made))
    kept = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
    going = [obj for obj in objects if obj not in kept]
    # Delete the namespace after the objects in it, and what the processes store after them.
    accounts = next(
        i for i, obj in enumerate(going) if obj["kind"] == "ServiceAccount" and obj["metadata"]["name"] != WEB
    )
    going[accounts:accounts] = manifests_of_bizrq.stored_by_processes(namespace)
    registered = {"kind": REGISTRATIONS.kind, "metadata": {"name": NAME}}
    if dry_run:
        print_objects([registered, *going, *(kept if crd else [])], output)
        if crd:
            counts = run_on(client_for(where), _count)
            warn(f"--crd deletes {_sum(counts)}; save bills first")
            if None in counts.values():
                raise typer.Exit(EXIT_UNKNOWN)
        return

    async def work(client: KubeClient) -> None:
        if crd and not yes:
            lost = _sum(await _count(client))
            raise Failure(f"--crd deletes {lost}; save bills first, then add --yes", EXIT_BAD_INPUT)
        await _warn_of_up(client, namespace)
        await _keep_away(client, namespace)
        await _delete(client, registered)
        await _prune(client, going)
        for obj in going:
            await _delete(client, obj)
        await _forget_processes(client, namespace)
        if crd:
            await _disallow(client)
            await _free_groups(client)
            for obj in kept:
                await _delete(client, obj)
                await _gone(client, obj)
        else:
            await _warn_of_kept_groups(client)

    run_on(client_for(where), work)


async def _warn_of_up(client: KubeClient, namespace: str) -> None:
    """Warn if bizrq up runs here: it goes on, and registers nothing again."""
    from bizrq.kube.client import Forbidden
    from bizrq.store import processes
    from bizrq.units.times import TimestampError, parse_timestamp

    try:
        stored = await processes.read(client, namespace)
    except Forbidden:
        # The Leases are deleted later, which says that they may not be read.
        return
    now = int(time.time() * 1000)
    for each in stored:
        with contextlib.suppress(TimestampError):
            if each.info.process == processes.UP and now - parse_timestamp(each.renewed) < processes.DURATION * 1000:
                host = each.info.identity.partition("_")[0]
                warn(f"bizrq up runs on {host}, and checks nothing any more: stop it; a new start registers again")


async def _forget_processes(client: KubeClient, namespace: str) -> None:
    """Delete the Leases of processes that could not do so themselves. What is left counts for nothing."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.kube.lease import LEASES
    from bizrq.store import processes

    try:
        for each in await processes.read(client, namespace):
            with contextlib.suppress(NotFound):
                await client.delete(LEASES, each.name, namespace)
    except Forbidden as error:
        warn(f"Leases of processes may be left: {error.message}")


async def _keep_away(client: KubeClient, namespace: str) -> None:
    """Keep the leader from registering again. Without the namespace, or while that ends, there is none."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.store import pause

    try:
        await pause.begin(client, namespace, pause.UNINSTALL, "")
    except NotFound:
        return
    except Forbidden as error:
        if "NamespaceTerminating" not in {cause.get("reason") for cause in error.details.get("causes") or ()}:
            raise


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


async def _prune(client: KubeClient, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Delete the other objects that carry the label of install: an earlier install created them. Return them."""
    from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, PRIORITIES, PRUNED, resource_of
    from bizrq.kube.client import Forbidden, NotFound

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
                    await _delete(client, item)
                    outdated.append(item)
    return outdated


async def _controlled(client: KubeClient, namespace: str, timeout: int) -> None:
    """Return when all controllers are as they were applied. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.rbac import CONTROLLER, WEBHOOKS
    from controller.registration import is_rolled_out

    deployments = resource_of({"kind": "Deployment"})
    until = time.monotonic() + timeout
    progress(f"waiting up to {timeout} s for the rollout of deployment {CONTROLLER}; {WEBHOOKS} follows")
    while not is_rolled_out(await client.get(deployments, CONTROLLER, namespace)):
        if time.monotonic() > until:
            raise Failure(
                f"the rollout of {CONTROLLER} did not end within {timeout} s, so {WEBHOOKS} is as it was before; check "
                f"kubectl -n {namespace} describe pods, then run install again, or with --no-wait",
                EXIT_CLUSTER,
            )
        await asyncio.sleep(1.0)


async def _served(client: KubeClient, plan: InstallPlan, timeout: int) -> None:
    """Return when a webhook is ready. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.cli.rbac import WEBHOOKS

    deployments = resource_of({"kind": "Deployment"})
    started = time.monotonic()
    until, told = started + timeout, started
    progress(f"waiting up to {timeout} s for a ready webhook of deployment {WEBHOOKS}")
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
        if time.monotonic() >= told + _TELL:
            told = time.monotonic()
            progress(f"still waiting for a ready webhook: {told - started:.0f} of {timeout} s")
        await asyncio.sleep(1.0)


async def _registered(client: KubeClient, plan: InstallPlan, timeout: int) -> None:
    """Return when the leader has registered the webhooks. Raise Failure after `timeout` seconds."""
    import asyncio

    from bizrq.cli.rbac import CONTROLLER
    from bizrq.kube.admission import REGISTRATIONS
    from bizrq.kube.client import NotFound
    from bizrq.registration import NAME

    progress(f"waiting up to {timeout} s until the controller has registered the webhooks")
    until = time.monotonic() + timeout
    while True:
        try:
            await client.get(REGISTRATIONS, NAME)
        except NotFound:
            if time.monotonic() > until:
                raise Failure(
                    f"the controller has not registered the webhooks within {timeout} s, so nothing is refused; "
                    f"kubectl -n {plan.namespace} logs deployment/{CONTROLLER} says why",
                    EXIT_CLUSTER,
                ) from None
            await asyncio.sleep(1.0)
        else:
            return


async def _delete(client: KubeClient, obj: dict[str, Any]) -> None:
    from bizrq.cli.manifests_of_bizrq import INSTALL, MANAGED, PRIORITIES, resource_of
    from bizrq.kube.client import Forbidden, NotFound

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


async def _count(client: KubeClient) -> dict[str, int | None]:
    """Return how many objects `--crd` deletes, by what they are; None for what may not be listed."""
    from bizrq.kube.client import Forbidden, NotFound
    from bizrq.store.groups import GROUPS
    from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS

    nouns = {GROUPS: "group", CARD_HOURS: "record of hours", STATEMENTS: "bill (statement)", CORRECTIONS: "correction"}
    counts: dict[str, int | None] = {}
    for resource, noun in nouns.items():
        try:
            items, _ = await client.list(resource, transform=lambda obj: {"metadata": obj["metadata"]})
            counts[noun] = len(items)
        except NotFound:
            counts[noun] = 0
        except Forbidden:
            counts[noun] = None
    return counts


def _sum(counts: dict[str, int | None]) -> str:
    known = [counted(number, noun, _MANY.get(noun, "")) for noun, number in counts.items() if number is not None]
    unread = [_MANY.get(noun, f"{noun}s") for noun, number in counts.items() if number is None]
    if unread:
        known.append(f"an unknown number of {', '.join(unread)}, which you may not list")
    return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))


async def _disallow(client: KubeClient) -> None:
    """Delete what `bizrq allow` made: a later group of the same name is another."""
    from bizrq.cli.grants import ALLOW, MANAGED
    from bizrq.cli.manifests_of_bizrq import resource_of

    for kind in ("ClusterRoleBinding", "ClusterRole"):
        resource = resource_of({"kind": kind})
        for item in (await client.list(resource, label_selector=f"{MANAGED}={ALLOW}"))[0]:
            await _delete(client, item)


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


async def _established(client: KubeClient, obj: dict[str, Any]) -> None:
    """Return when the API server knows the kind, which a policy may take as parameters. Raise Failure if late."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of

    until = time.monotonic() + _ESTABLISHED
    while time.monotonic() < until:
        stored = await client.get(resource_of(obj), obj["metadata"]["name"])
        conditions = (stored.get("status") or {}).get("conditions") or ()
        if any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
            return
        await asyncio.sleep(0.1)
    why = f"{named(obj)} is not established after {_ESTABLISHED:.0f} s: kubectl describe says why"
    raise Failure(why, EXIT_CLUSTER)


async def _gone(client: KubeClient, obj: dict[str, Any]) -> None:
    """Return when a CRD is deleted with all of its objects. Raise Failure after a timeout."""
    import asyncio

    from bizrq.cli.manifests_of_bizrq import resource_of
    from bizrq.kube.client import NotFound

    progress(f"waiting up to {_GONE:.0f} s until {named(obj)} is deleted with all of its objects")
    until = time.monotonic() + _GONE
    with contextlib.suppress(NotFound):
        while time.monotonic() < until:
            await client.get(resource_of(obj), obj["metadata"]["name"])
            await asyncio.sleep(0.2)
        raise Failure(
            f"{named(obj)} still exists after {_GONE:.0f} s: a finalizer keeps one of its objects", EXIT_CLUSTER
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
    warn(f"{counted(len(groups), 'group')} and the CRDs are kept; bizrq uninstall --crd deletes them")
    if held:
        have = by_number(held, "has", "have")
        warn(f"{held} of them {have} used hours and cannot be deleted one by one without the controller")
