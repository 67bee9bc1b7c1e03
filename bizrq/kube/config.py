"""The address of the API server and the credentials for it.

This file alone decides which server, CA and credentials a kubeconfig or a pod's service account means. It opens no
connection and knows no Kubernetes object. It reads static credentials itself, because the import of kubernetes_asyncio
delays a command by a second. That library runs exec plugins, auth providers and service accounts.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from bizrq.kube.kubeconfig import ConfigError, address, at_home, checked, is_host, merged

# The interval, in seconds, at which a credential that can change is read again: a token file, an expiring token.
REFRESH_SECONDS = 60.0
# The seconds before its expiry at which an exec plugin's token is renewed, as in client-go.
EXPIRY_ROOM_SECONDS = 300.0

#: Characters of a name that a message repeats, and how many names.
_SHOWN, _LISTED = 128, 20
#: Bytes of a certificate, a key or a token file; certificates of a whole system have 300 KiB.
_LARGEST_FILE = 4 * 1024 * 1024


@dataclass(frozen=True)
class Identity:
    """The identity of a request: an Authorization header, and a client certificate (PEM chain, PEM key) for TLS."""

    authorization: str | None = None
    certificate: tuple[bytes, bytes] | None = None


class Credentials(Protocol):
    async def identity(self, *, rejected: bool = False) -> Identity:
        """Return the current identity; `rejected` if the server answered 401 to the last one. Raise ConfigError."""
        ...


@dataclass(frozen=True)
class Endpoint:
    """A server, its trust and its credentials. `ca` is PEM text; None means the system's roots."""

    server: str
    credentials: Credentials
    ca: str | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    #: The name of the cluster in the kubeconfig, "" without one.
    cluster: str = ""
    #: The default namespace, as in kubectl.
    namespace: str = "default"
    #: Headers of each request: those of impersonation.
    headers: tuple[tuple[str, str], ...] = ()
    #: The bytes that the kernel may keep of one connection. None leaves that to the kernel.
    receive_buffer: int | None = None

    def tls(self, identity: Identity) -> ssl.SSLContext | None:
        """Return an SSL context for this server and identity; None for plain http. Raise ConfigError."""
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca)
        except (ssl.SSLError, ValueError, TypeError) as error:
            raise ConfigError(f"the certificate authority of {self.server} is not a PEM certificate: {error}") from None
        # Python 3.13 made this check a default. Old CAs of clusters fail it, and kubectl does not make it.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if identity.certificate is not None:
            _load_pair(context, identity.certificate)
        return context


def _load_pair(context: ssl.SSLContext, pair: tuple[bytes, bytes]) -> None:
    """Load a certificate and its key, by files in a private directory: OpenSSL reads a key from a file only."""
    with tempfile.TemporaryDirectory(prefix="bizrq-") as directory:
        certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
        certificate.write_bytes(pair[0])
        key.touch(mode=0o600)
        key.write_bytes(pair[1])
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise ConfigError(f"the client certificate and key do not load: {error}") from None


def default_kubeconfig() -> Path:
    """Return the path at which kubectl looks last."""
    return at_home("~/.kube/config")


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The flags of kubectl that override a kubeconfig; None and empty change nothing."""

    cluster: str | None = None
    user: str | None = None
    server: str | None = None
    token: str | None = None
    insecure: bool = False
    impersonated: str | None = None
    groups: tuple[str, ...] = ()

    def apply(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with the overrides. Raise ConfigError."""
        if self.groups and not self.impersonated:
            raise ConfigError("--as-group needs --as: a group is acted for together with a user")
        for flag, text in (
            ("--token", self.token),
            ("--as", self.impersonated),
            *(("--as-group", g) for g in self.groups),
        ):
            checked(text or "", flag)
        found = endpoint
        if self.server:
            found = replace(found, server=_server(self.server, "--server"), cluster="")
        if self.token:
            found = replace(found, credentials=StaticCredentials({"token": self.token}))
        if self.insecure:
            found = replace(found, verify=False, ca=None)
        if self.impersonated:
            groups = tuple(("Impersonate-Group", group) for group in self.groups)
            found = replace(found, headers=(("Impersonate-User", self.impersonated), *groups))
        return found


NO_OVERRIDES = Overrides()


def from_kubeconfig(path: str | Path, context: str | None = None, overrides: Overrides = NO_OVERRIDES) -> Endpoint:
    """Return the endpoint of `context`, by default the current-context, of a kubeconfig. Raise ConfigError.

    `path` may be a list as in $KUBECONFIG; the first file that defines a name wins, as in kubectl.
    """
    found = merged([at_home(part) for part in str(path).split(os.pathsep) if part])
    chosen = context or found["current-context"]
    if not chosen:
        raise ConfigError(f"{path}: there is no current-context; name one with --context")
    if chosen not in found["contexts"]:
        raise ConfigError(f"{path}: there is no context {_quoted(chosen)}; known: {_known(found['contexts'])}")
    scope, scoped = found["contexts"][chosen], f"{path}: context {_quoted(chosen)}"
    cluster_name, user_name = overrides.cluster or scope.get("cluster"), overrides.user or scope.get("user")
    if cluster_name not in found["clusters"]:
        raise ConfigError(
            f"{path}: context {_quoted(chosen)} names the cluster {_quoted(cluster_name)}, which is not there"
        )
    if user_name and user_name not in found["users"]:
        raise ConfigError(f"{scoped} names the user {_quoted(user_name)}, which is not there")
    cluster, user = found["clusters"][cluster_name], found["users"].get(user_name, {})
    plugin = "exec" in user or "auth-provider" in user
    endpoint = replace(
        _cluster(cluster, f"{path}: cluster {_quoted(cluster_name)}"),
        credentials=PluginCredentials(_as_document(chosen, cluster, user)) if plugin else StaticCredentials(user),
        cluster=cluster_name,
        namespace=scope.get("namespace") or "default",
    )
    return overrides.apply(endpoint)


def _quoted(name: str | None) -> str:
    """Return a name as a message repeats it."""
    return repr(name) if name is None or len(name) <= _SHOWN else f"{name[:_SHOWN]!r}..."


def _known(names: Iterable[str]) -> str:
    """Return some names in one line."""
    found = sorted(names)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(name[:_SHOWN] for name in found[:_LISTED]) + more or "none"


def _server(text: str, whose: str) -> str:
    """Return an API server's address without a trailing slash. Raise ConfigError for one that is not usable."""
    found = address(text, f"{whose} needs a server", "https://host:6443")
    if "@" in urlsplit(found).netloc:
        raise ConfigError(f"{whose}: an address of a server has no user: write username and password of the user")
    return found


def _cluster(cluster: Mapping[str, Any], where: str) -> Endpoint:
    """Return the endpoint of a cluster, without credentials. Raise ConfigError."""
    name, proxy = cluster.get("tls-server-name"), cluster.get("proxy-url")
    if name and not is_host(name):
        raise ConfigError(f"{where}: tls-server-name: write a name of a host, not {name[:256]!r}")
    ca = _text_or_file(cluster, "certificate-authority")
    return Endpoint(
        server=_server(cluster.get("server") or "", where),
        credentials=StaticCredentials({}),
        ca=ca.decode("ascii", "replace") if ca else None,
        verify=not cluster.get("insecure-skip-tls-verify"),
        server_name=name or None,
        proxy=address(proxy, f"{where}: proxy-url needs an address", "http://host:3128") if proxy else None,
    )


def in_cluster() -> Endpoint:
    """Return the endpoint of a pod's service account. Raise ConfigError outside a cluster."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_incluster_config

    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
        ca = Path(str(configuration.ssl_ca_cert)).read_text("ascii")
    except ConfigException as error:
        raise ConfigError(f"not inside a cluster: {str(error).rstrip('.')}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the pod's service account cannot be read: {_why(error)}") from None
    return Endpoint(server=str(configuration.host), credentials=ServiceAccountCredentials(configuration), ca=ca)


def from_environment(overrides: Overrides = NO_OVERRIDES) -> Endpoint:
    """Return the endpoint of $KUBECONFIG, else ~/.kube/config, else the pod's service account, as kubectl does."""
    named = os.environ.get("KUBECONFIG")
    if named:
        return from_kubeconfig(named, None, overrides)
    if os.access(default_kubeconfig(), os.F_OK):
        return from_kubeconfig(default_kubeconfig(), None, overrides)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return overrides.apply(in_cluster())
    if overrides.server:
        return overrides.apply(Endpoint(server="", credentials=StaticCredentials({})))
    raise ConfigError("no cluster: pass --kubeconfig or set KUBECONFIG")


class StaticCredentials:
    """The token, token file, password or client certificate of a kubeconfig. Files are read again each minute."""

    def __init__(self, user: Mapping[str, Any]) -> None:
        self._user = user
        self._known: Identity | None = None
        self._read_at = 0.0

    async def identity(self, *, rejected: bool = False) -> Identity:
        if self._known is None or rejected or time.monotonic() - self._read_at > REFRESH_SECONDS:
            self._known, self._read_at = self._read(), time.monotonic()
        return self._known

    def _read(self) -> Identity:
        user = self._user
        chain, key = _text_or_file(user, "client-certificate"), _text_or_file(user, "client-key")
        if (chain is None) != (key is None):
            raise ConfigError("a client certificate needs both client-certificate and client-key")
        authorization = None
        if token := user.get("token") or _token(user.get("tokenFile")):
            authorization = f"Bearer {token}"
        elif "username" in user and "password" in user:
            pair = f"{user['username']}:{user['password']}".encode()
            authorization = "Basic " + base64.b64encode(pair).decode()
        return Identity(authorization, (chain, key) if chain is not None and key is not None else None)


class PluginCredentials:
    """Exec plugins and auth providers (OIDC, GCP), by kubernetes_asyncio; run again on expiry or rejection."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._loader: Any = None
        self._known: Identity | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def identity(self, *, rejected: bool = False) -> Identity:
        asked_at = time.monotonic()
        async with self._lock:
            renewed_meanwhile = self._read_at >= asked_at
            if self._known is None or (not renewed_meanwhile and (rejected or self._is_due())):
                self._known, self._read_at = await self._read(), time.monotonic()
            return self._known

    def _is_due(self) -> bool:
        if time.monotonic() - self._read_at < REFRESH_SECONDS:
            return False
        if "exec" not in self._document["users"][0]["user"]:
            return True
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        return expiry is not None and expiry.timestamp() - EXPIRY_ROOM_SECONDS <= time.time()

    async def _read(self) -> Identity:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config.kube_config import KubeConfigLoader

        # A loader with an unexpired token does not run the plugin again after a 401, so make a new one.
        self._loader = KubeConfigLoader(config_dict=self._document)
        configuration = Configuration()
        try:
            await self._loader.load_and_set(configuration)
        # A plugin fails in many ways: its exit code, its output, a missing program.
        except Exception as error:
            raise ConfigError(f"the credentials plugin failed: {' '.join(str(error).split())}") from error
        authorization, pair = configuration.api_key.get("BearerToken"), None
        if configuration.cert_file and configuration.key_file:
            what = "the credentials plugin's certificate"
            pair = (_content(configuration.cert_file, what), _content(configuration.key_file, what))
        return Identity(authorization and checked(authorization, "the credentials plugin's token"), pair)


class ServiceAccountCredentials:
    """A pod's projected token, which the kubelet rotates; kubernetes_asyncio reads it again each minute."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration

    async def identity(self, *, rejected: bool = False) -> Identity:
        return Identity(await self._configuration.get_api_key_with_prefix("BearerToken"))


def _as_document(name: str, cluster: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": user}],
    }


def _text_or_file(section: Mapping[str, Any], key: str) -> bytes | None:
    """Return PEM bytes from `key`-data (base64), else from the file that `key` names, as in client-go."""
    encoded = section.get(f"{key}-data")
    if encoded:
        try:
            return base64.b64decode("".join(encoded.split()), validate=True)
        except ValueError:
            raise ConfigError(f"{key}-data is not base64") from None
    return _content(named, key) if (named := section.get(key)) else None


def _token(named: str | None) -> str | None:
    """Return the token of a file. Raise ConfigError."""
    if not named:
        return None
    try:
        return checked(_content(named, "tokenFile").decode("utf-8").strip(), f"tokenFile: {named}")
    except UnicodeDecodeError:
        raise ConfigError(f"tokenFile: {named} is not text") from None


def _content(named: str, what: str) -> bytes:
    """Return what is in a file. Raise ConfigError."""
    try:
        with Path(named).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(f"{what}: {named} cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise ConfigError(f"{what}: {named} is larger than {_LARGEST_FILE // 1024 // 1024} MiB")
    return content


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
