"""The CA bundle in webhook configurations, written by a JSON patch that cannot hit another webhook.

This file alone decides which webhooks are ours and what the patch is. It does not make certificates.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

import jsonpatch
import structlog

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import Conflict, Invalid, KubeClient, NotFound

NAME = "bizrq"
ATTEMPTS = 5

log = structlog.get_logger(__name__)


def is_ours(configuration: dict[str, Any]) -> bool:
    """Return True for a configuration named `bizrq` or `bizrq-…`."""
    name = (configuration.get("metadata") or {}).get("name") or ""
    return name == NAME or name.startswith(f"{NAME}-")


def patch(configuration: dict[str, Any], bundle: bytes, names: Collection[str]) -> list[dict[str, Any]]:
    """Return a JSON patch (RFC 6902) that gives `bundle` (PEM) to the webhooks that a certificate for `names` serves.

    A patch addresses a webhook by its index, and the list may have changed, so the patch first tests each webhook's
    name. [] if all have the bundle already.
    """
    wanted = base64.b64encode(bundle).decode()
    operations: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client_config = webhook.get("clientConfig") or {}
        if _server_name(client_config) not in names or client_config.get("caBundle") == wanted:
            continue
        verb = "replace" if "caBundle" in client_config else "add"
        operations += [
            {"op": "test", "path": f"/webhooks/{index}/name", "value": webhook["name"]},
            {"op": verb, "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted},
        ]
    # The library checks that the patch applies to this object.
    jsonpatch.apply_patch(configuration, operations)
    return operations


def announced_bundles(configurations: Iterable[dict[str, Any]], names: Collection[str]) -> list[bytes]:
    """Return the bundle of each webhook that we serve; b"" for a missing or broken one."""
    return [
        _decoded((webhook.get("clientConfig") or {}).get("caBundle"))
        for configuration in configurations
        for webhook in configuration.get("webhooks") or ()
        if _server_name(webhook.get("clientConfig") or {}) in names
    ]


async def inject(client: KubeClient, name: str, bundle: bytes, names: Collection[str]) -> dict[str, Any] | None:
    """Write `bundle` into the configuration `name`; return the object after that, None if there is none.

    If the list of webhooks changed between read and patch, the `test` of the patch fails and both are repeated.
    Raises ApiError, Unreachable.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            configuration = await client.get(REGISTRATIONS, name)
            operations = patch(configuration, bundle, names)
            if not operations:
                return configuration
            configuration = await client.patch(
                REGISTRATIONS, name, operations, content_type="application/json-patch+json"
            )
        except NotFound:
            return None
        except (Invalid, Conflict):
            if attempt == ATTEMPTS:
                raise
            continue
        log.info("CA bundle injected", configuration=name, webhooks=len(operations) // 2)
        return configuration
    raise AssertionError("unreachable: the last attempt returns or raises")


def _server_name(client_config: dict[str, Any]) -> str | None:
    """Return the name that the API server will look for in our certificate."""
    if service := client_config.get("service"):
        return f"{service.get('name')}.{service.get('namespace')}.svc"
    if url := client_config.get("url"):
        return urlsplit(url).hostname
    return None


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return b""
