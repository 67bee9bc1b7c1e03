"""What the flags of `bizrq install` ask for.

This file alone decides which flags go together, and what a network and a client CA are. It talks to no cluster.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bizrq.cli.installation.stored_flags import FLAGS, REPOSITORY
from bizrq.cli.manifests_of_bizrq import InstallPlan
from bizrq.cli.manifests_of_web import WebPlan
from bizrq.cli.output.failure import EXIT_BAD_INPUT, Failure
from bizrq.kube.config import ConfigError
from certs.clients import clients_of
from certs.pki import CertificateError

_REPLICAS = 2
#: A network as text.
_CIDR = re.compile(r"[0-9a-fA-F:.]+/[0-9]{1,3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requested:
    """An installation as the flags ask for it.

    `plan` has a default for each flag that is not given, and no configuration; `given` are its fields that are. `web`
    is None without --web and --no-web, and `pages` are the fields of a WebPlan whose flags are given. `config` is the
    text of --config, None without it.
    """

    plan: InstallPlan
    given: Mapping[str, Any]
    web: bool | None
    pages: Mapping[str, Any]
    config: str | None
    removes_client_ca: bool
    removes_api_servers: bool


def given(**values: Any) -> dict[str, Any]:
    """Return the fields whose flags are given."""
    return {field: value for field, value in values.items() if value is not None}


def requested(
    namespace: str,
    config: str | None,
    fields: Mapping[str, Any],
    *,
    client_ca: Path | None,
    client_name: str | None,
    no_client_ca: bool,
    api_server_cidr: Sequence[str],
    no_api_server_cidr: bool,
    web: bool | None,
    pages: Mapping[str, Any],
) -> Requested:
    """Return what the flags ask for; `fields` are those of an InstallPlan that are given. Raise Failure."""
    if no_client_ca and (client_ca is not None or client_name is not None):
        raise Failure("--no-client-ca goes without --client-ca and --client-name", EXIT_BAD_INPUT)
    if no_api_server_cidr and api_server_cidr:
        raise Failure("--no-api-server-cidr goes without --api-server-cidr", EXIT_BAD_INPUT)
    if pages and not web:
        flag = FLAGS[next(iter(pages))]
        raise Failure(f"{flag} needs --web" if web is None else f"--no-web goes without {flag}", EXIT_BAD_INPUT)
    plan = InstallPlan(
        namespace,
        client_ca=_authorities(client_ca, client_name),
        client_name=client_name or "",
        api_servers=tuple(dict.fromkeys(map(_network, api_server_cidr))),
        **{"image": f"{REPOSITORY}:{version('bizrq')}", "replicas": _REPLICAS, **fields},
    )
    return Requested(plan, fields, web, pages, config, no_client_ca, no_api_server_cidr)


def web_plan(fields: Mapping[str, Any]) -> WebPlan:
    """Return how the web UI is installed. Raise Failure."""
    from web.main import issuer_of

    plan = WebPlan(**{"url": "", **fields})
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


def _authorities(client_ca: Path | None, client_name: str | None) -> str:
    """Return the CA of the API server's client certificate as PEM text, "" for none. Raise Failure."""
    if client_ca is None and client_name is None:
        return ""
    try:
        clients = clients_of(client_ca, client_name)
        return clients.authorities() if clients is not None else ""
    except CertificateError as error:
        raise Failure(str(error), EXIT_BAD_INPUT) from None


def _network(text: str) -> str:
    """Return a CIDR of `--api-server-cidr` as Kubernetes writes it. Raise Failure."""

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
