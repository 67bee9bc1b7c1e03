"""What a running installation was given: the flags of `bizrq install`, read from the Deployments that it stored.

This file alone decides what an update keeps of them. It does not guess a value that install did not write, and talks to
no cluster.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from bizrq.flags import LogFormat, LogLevel

Object = dict[str, Any]

#: The repository of the default image. An update brings the image of its own version.
REPOSITORY = "bizrq"
#: A tag that names a version.
_VERSION = re.compile(r"v?([0-9]+\.[0-9]+\.[0-9]+\S*)", re.ASCII)
_CLIENT_CA = "--client-ca"
#: Flags of the processes that take no value.
_ALONE = frozenset({"--metrics-anonymous", "--allowances"})
#: Flags that install gives to a process or not: it says itself what becomes of them.
_OPTIONAL = frozenset(
    {
        *(_CLIENT_CA, "--client-name", "--metrics-anonymous", "--config", "--drain-delay", "--allowances"),
        *("--cert-dir", "--oidc-issuer", "--oidc-client-id", "--oidc-client-secret"),
    }
)
#: By field of an InstallPlan and of a WebPlan: the flag of install that sets it, in the order of its help.
FLAGS: Mapping[str, str] = {
    "image": "--image",
    "replicas": "--replicas",
    "metrics_anonymous": "--metrics-anonymous",
    "drain_delay": "--drain-delay",
    "allowances": "--allowances",
    "log_format": "--log-format",
    "log_level": "--log-level",
    "api_priority": "--api-priority",
    "url": "--web-url",
    "tls_secret": "--web-tls-secret",
    "issuer": "--web-oidc-issuer",
    "client": "--web-oidc-client-id",
    "client_secret": "--web-oidc-secret",
}


class NotAsInstalled(ValueError):
    """A stored Deployment is not as install made it. The message is one line that names the flag to give."""


def flags_of_processes(webhooks: Object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an InstallPlan that the Deployment of the webhooks shows, but those in `given`.

    A field at its default may be left out. Raise NotAsInstalled.
    """
    return _read(webhooks, _OF_PROCESSES, given)


def flags_of_web(web: Object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a WebPlan that the Deployment of the web UI shows, but those in `given`.

    Raise NotAsInstalled.
    """
    return _read(web, _OF_WEB, given)


def api_servers_of(policy: Object | None) -> tuple[str, ...] | None:
    """Return the CIDRs of a stored NetworkPolicy, () without one, None where install did not make it so."""
    if policy is None:
        return ()
    rules = (policy.get("spec") or {}).get("ingress") or ()
    peers = [peer for rule in rules for peer in rule.get("from") or ()]
    blocks = [peer.get("ipBlock") or {} for peer in peers]
    return (
        tuple(block["cidr"] for block in blocks) if blocks and all({*block} == {"cidr"} for block in blocks) else None
    )


def clients_of(webhooks: Object | None, config_map: Object | None) -> tuple[str, str] | None:
    """Return the client CA and client name of stored webhooks, ("", "") without them, None where they do not fit."""
    options = _options(webhooks) if webhooks else {}
    authority = ((config_map or {}).get("data") or {}).get("ca.crt", "")
    if _CLIENT_CA not in options and not authority:
        return "", ""
    name = options.get("--client-name", "")
    return (authority, name) if _CLIENT_CA in options and authority and name else None


def asks_for_certificate(container: Object) -> bool:
    """Return whether the webhooks of a stored container ask for a client certificate."""
    return _CLIENT_CA in _of_container(container)


def spelled(kept: Mapping[str, Any]) -> str:
    """Return these fields of plans as flags on a command line."""
    words = []
    for field, flag in FLAGS.items():
        if field in kept:
            value = kept[field]
            switch = flag if value else flag.replace("--", "--no-", 1)
            words.append(switch if isinstance(value, bool) else f"{flag}={value}")
    return shlex.join(words)


def of_other_version(image: str, version: str) -> bool:
    """Return whether the tag of an image names another version. A digest, or another tag, names none."""
    tag = _VERSION.fullmatch(_repository_and_tag(image)[1])
    return tag is not None and tag[1] != version


def lost(stored: Object, planned: Object) -> list[str]:
    """Return the flags of a stored process that install does not know, sorted: somebody else gave them."""
    return sorted(_options(stored).keys() - _options(planned).keys() - _OPTIONAL)


def _read(deployment: Object, fields: Mapping[str, Callable[[Object], Any]], given: Mapping[str, Any]) -> Object:
    found: dict[str, Any] = {}
    for field, read in fields.items():
        if field in given:
            continue
        try:
            value = read(deployment)
        except (LookupError, TypeError, ValueError):
            name = deployment["metadata"]["name"]
            raise NotAsInstalled(f"deployment/{name} is not as install made it: pass {FLAGS[field]}") from None
        if value is not None:
            found[field] = value
    return found


def _pod(deployment: Object) -> Object:
    return deployment["spec"]["template"]["spec"]


def _options(deployment: Object) -> dict[str, str]:
    return _of_container(_pod(deployment)["containers"][0])


def _of_container(container: Object) -> dict[str, str]:
    """Return the flags of a stored process with their values, "" for one without."""
    words = iter([*(container.get("command") or ()), *(container.get("args") or ())][1:])
    found = {}
    for word in words:
        flag, joined, value = word.partition("=")
        found[flag] = value if joined or flag in _ALONE else next(words, "")
    return found


def image_of(deployment: Object) -> str:
    """Return the image of a stored process. Raise LookupError or TypeError."""
    return _pod(deployment)["containers"][0]["image"]


def _repository_and_tag(image: str) -> tuple[str, str]:
    """Return an image's repository, and its tag, "" for none. A registry may have a port."""
    path, slash, last = image.partition("@")[0].rpartition("/")
    name, _, tag = last.partition(":")
    return path + slash + name, tag


def _image(deployment: Object) -> str | None:
    """Return the image, None for one of the default repository."""
    image = image_of(deployment)
    return None if _repository_and_tag(image)[0] == REPOSITORY else image


def _replicas(deployment: Object) -> int | None:
    """Return the replicas, None where somebody has stopped the processes."""
    return int(deployment["spec"]["replicas"]) or None


def _option(flag: str, convert: Callable[[str], Any]) -> Callable[[Object], Any]:
    """Return a reader of a flag that an earlier version may not have written."""

    def read(deployment: Object) -> Any:
        value = _options(deployment).get(flag)
        return None if value is None else convert(value)

    return read


def _secret(flag: str, volume: str) -> Callable[[Object], str | None]:
    """Return a reader of the Secret of this volume, from which the flag's file comes."""

    def read(deployment: Object) -> str | None:
        if flag not in _options(deployment):
            return None
        [name] = [each["secret"]["secretName"] for each in _pod(deployment)["volumes"] if each["name"] == volume]
        return name

    return read


_OF_PROCESSES: Mapping[str, Callable[[Object], Any]] = {
    "image": _image,
    "replicas": _replicas,
    "metrics_anonymous": lambda deployment: "--metrics-anonymous" in _options(deployment) or None,
    "drain_delay": _option("--drain-delay", int),
    "allowances": lambda deployment: "--allowances" in _options(deployment) or None,
    "log_format": _option("--log-format", LogFormat),
    "log_level": _option("--log-level", LogLevel),
}
_OF_WEB: Mapping[str, Callable[[Object], Any]] = {
    "url": lambda deployment: _options(deployment)["--public-url"],
    "tls_secret": _secret("--cert-dir", "certificate"),
    "issuer": _option("--oidc-issuer", str),
    "client": _option("--oidc-client-id", str),
    "client_secret": _secret("--oidc-client-secret", "provider"),
}
