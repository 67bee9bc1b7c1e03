"""The process `bizrq-web`."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import SplitResult, urlsplit

import structlog
import typer

from bizrq import command_line, flags, process
from bizrq.kube import config as kube_config
from bizrq.kube.config import ConfigError, Endpoint, StaticCredentials

if TYPE_CHECKING:
    from certs.store import ServingCertificate
    from web.credentials.oidc import Provider

log = structlog.get_logger(__name__)

_NAME = "bizrq-web"
#: Hosts that need no https.
_HERE = ("127.0.0.1", "localhost", "::1")
#: Where a pod finds the certificate of its API server.
_POD_CA = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


def serve(
    public_url: Annotated[
        str, typer.Option(help="Address at which browsers reach the pages, like https://quota.corp.")
    ],
    keys: Annotated[
        Path, typer.Option(help="Folder of the keys that seal cookies: the files current, and other or none.")
    ],
    listen: Annotated[str, typer.Option(help="Address and port to serve on; :: is every address.")] = "[::]:8444",
    cert_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of tls.crt and tls.key; without it a proxy in front has the certificate."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file, one YAML document.")] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig that names the API server; its user is not used. Default: the pod's."),
    ] = None,
    api_ca: Annotated[Path, typer.Option(help="Certificate authority of the pod's API server, a PEM file.")] = _POD_CA,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Network of proxies whose Authorization header signs people in, like 10.0.0.0/8."),
    ] = None,
    oidc_issuer: Annotated[str, typer.Option(help="Provider to sign in with, like https://login.corp.")] = "",
    oidc_client_id: Annotated[str, typer.Option(help="Client that the API server accepts tokens for.")] = "",
    oidc_client_secret: Annotated[Path | None, typer.Option(help="File with the secret of the client.")] = None,
    oidc_scopes: Annotated[
        str, typer.Option(help="Scopes to ask the provider for, separated by spaces.")
    ] = "openid email groups offline_access",
    oidc_ca: Annotated[Path | None, typer.Option(help="Certificate authority of the provider, a PEM file.")] = None,
    tokens: Annotated[bool, typer.Option(help="Let people sign in with a pasted token.")] = True,
    metrics_port: flags.MetricsPort = 9093,
    log_format: flags.LogFormatOption = flags.LogFormat.TEXT,
    log_level: flags.LogLevelOption = flags.LogLevel.INFO,
    drain_delay: flags.DrainDelay = flags.DRAIN_DELAY,
) -> None:
    """Serve the web UI. It has no rights of its own: each request to the API server is the user's."""
    import asyncio

    from bizrq.settings import ConfigurationError, load
    from certs.store import ServingCertificate
    from web.app import Site, Web
    from web.credentials.gates import ClusterGate
    from web.credentials.keys import Keyring
    from web.credentials.oidc import Oidc
    from web.credentials.session import CookieNames
    from web.reading.visitors import Visitors

    process.configure_logging(log_format, log_level)
    try:
        settings = load(config)
        endpoint = replace(_endpoint(kubeconfig, api_ca), receive_buffer=process.RECEIVE_BUFFER)
        ring = Keyring(keys)
        origin = _origin(public_url)
        host, port = _address(listen)
        networks = [ip_network(each, strict=False) for each in trusted_proxy or ()]
        provider = _provider(oidc_issuer, oidc_client_id, oidc_client_secret, oidc_scopes, oidc_ca)
    except (ConfigurationError, ConfigError, ValueError) as error:
        process.end(_NAME, str(error))
    except OSError as error:
        process.end(_NAME, f"{error.filename}: {error.strerror}")
    names = CookieNames(origin.startswith("https://"))

    async def main(stop: process.Stop) -> None:
        visitors = Visitors(endpoint)
        oidc = Oidc(provider, f"{origin}/sign-in/done") if provider is not None else None
        gate = ClusterGate(visitors, names, ring, oidc=oidc, proxies=networks, takes_tokens=tokens)
        pages = Web(visitors, gate, settings, names, ring, Site([origin]))
        certificate = ServingCertificate(cert_dir) if cert_dir is not None else None

        async def work() -> None:
            if certificate is not None:
                await certificate.wait()
            bound = await pages.start(host, port, _context_of(certificate) if certificate is not None else None)
            log.info("serving", port=bound, public_url=origin, api_server=endpoint.server)
            await (certificate.watch() if certificate is not None else asyncio.Event().wait())

        # The metrics name no group and no user, and the process has no right to ask who scrapes.
        async with process.metrics_served(host, metrics_port, lambda: pages.unready, None):
            try:
                await process.until_stopped(stop, work())
                log.info("draining", seconds=drain_delay)
                await pages.drain(drain_delay)
            finally:
                await pages.stop()

    process.serve(_NAME, main)


def _context_of(certificate: ServingCertificate) -> Callable[[], ssl.SSLContext]:
    return lambda: certificate.context


def _endpoint(kubeconfig: Path | None, ca: Path) -> Endpoint:
    """Return the API server without any credentials. Raise ConfigError."""
    if kubeconfig is not None:
        found = kube_config.from_kubeconfig(kubeconfig)
        return Endpoint(found.server, StaticCredentials({}), found.ca, found.verify, found.server_name, found.proxy)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("not inside a cluster: name the API server with --kubeconfig")
    try:
        text = ca.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{ca}: {error}") from None
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(f"https://{shown}:{port}", StaticCredentials({}), text)


def _provider(issuer: str, client_id: str, secret: Path | None, scopes: str, ca: Path | None) -> Provider | None:
    """Return the provider to sign in with, None without one. Raise ConfigError or OSError."""
    from web.credentials.oidc import Provider

    if not issuer:
        return None
    text = secret.read_text("utf-8").strip() if secret else ""
    authority = ca.read_text("ascii") if ca else None
    provider = Provider(issuer_of(issuer), client_id, text, tuple(scopes.split()), authority)
    if not client_id:
        raise ConfigError("--oidc-issuer needs --oidc-client-id")
    return provider


def _split(url: str) -> SplitResult:
    """Return the parts of an address, all empty where it cannot be read."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # A port that is no number is an error only here.
    except ValueError:
        return urlsplit("")
    return parts


def _is_private(parts: SplitResult) -> bool:
    """Return True where nobody on the way reads what is sent there."""
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE)


def issuer_of(url: str, flag: str = "--oidc-issuer") -> str:
    """Return the address of the provider. Raise ConfigError for one without a host, and for plain http elsewhere."""
    parts = _split(url)
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{flag}: {url[:200]!r} is no address of a provider: write https://HOST/PATH")
    if not _is_private(parts):
        raise ConfigError(f"{flag}: {url[:200]!r}: secrets and tokens need https: write https://HOST/PATH")
    return url


def _origin(url: str) -> str:
    """Return the origin of the public address. Raise ConfigError for one with a path, and for plain http elsewhere."""
    parts = _split(url)
    host, port = parts.hostname or "", parts.port
    if not host or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"--public-url: {url[:200]!r} is no address of a host: write https://HOST")
    if not _is_private(parts):
        raise ConfigError(f"--public-url: {url[:200]!r}: cookies need https: write https://HOST")
    shown = f"[{host}]" if ":" in host else host
    usual = {"https": 443, "http": 80}[parts.scheme]
    return f"{parts.scheme}://{shown}" + (f":{port}" if port not in (None, usual) else "")


def _address(text: str) -> tuple[str, int]:
    """Return host and port of --listen. Raise ConfigError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen: {text[:100]!r} is no address: write 127.0.0.1:8444 or [::]:8444")
    return host.removeprefix("[").removesuffix("]"), int(port)


def run() -> None:
    command_line.run_alone(serve, "bizrq-web")
