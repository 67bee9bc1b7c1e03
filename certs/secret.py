"""The certificate files in a Secret, where several processes and pods share them.

This file alone decides how a Secret stores files. If a Secret exists, it is the source: a
process that changes it writes on the version that it decided on. So if two processes rotate, one wins.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bizrq.kube.client import KubeClient, NotFound, Resource
from certs.rotation import FILES

SECRETS = Resource("", "v1", "secrets", "Secret")


@dataclass
class SharedFiles:
    """The files of one Secret, and the object that they were read from; None if it does not exist yet."""

    files: dict[str, bytes]
    held: dict[str, Any] | None


async def read_secret(client: KubeClient, namespace: str, name: str) -> SharedFiles:
    """Read the files. A value that is not base64 counts as absent. Raises ApiError, Unreachable."""
    try:
        held = await client.get(SECRETS, name, namespace)
    except NotFound:
        return SharedFiles({}, None)
    files = {}
    for key, text in (held.get("data") or {}).items():
        if key in FILES:
            try:
                files[key] = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue
    return SharedFiles(files, held)


async def write_secret(
    client: KubeClient, namespace: str, name: str, files: Mapping[str, bytes], shared: SharedFiles
) -> None:
    """Write the files. Raises Conflict or AlreadyExists if another process was faster, other ApiErrors, Unreachable."""
    data = {key: base64.b64encode(content).decode() for key, content in files.items()}
    if shared.held is not None:
        foreign = {key: text for key, text in (shared.held.get("data") or {}).items() if key not in FILES}
        await client.replace(SECRETS, {**shared.held, "data": {**foreign, **data}})
        return
    await client.create(
        SECRETS,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "bizrq"}},
            "type": "Opaque",
            "data": data,
        },
    )
