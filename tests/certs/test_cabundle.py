"""The bundle is written to our webhooks only, however the configuration changes meanwhile."""

from __future__ import annotations

import base64
from typing import Any

import jsonpatch

from bizrq import registration
from bizrq.kube.client import KubeClient
from bizrq.settings import load
from certs import cabundle
from tests.support.fake_server import FakeServer

PLURAL = "validatingwebhookconfigurations"
NAMES = ["bizrq-webhooks.bizrq-system.svc", "127.0.0.1"]
BUNDLE = b"-----BEGIN CERTIFICATE-----"
OURS = {"labels": {"app.kubernetes.io/name": "bizrq"}}
TEXT = base64.b64encode(BUNDLE).decode()


def webhook(name: str, **client_config: Any) -> dict[str, Any]:
    service = {"service": {"name": "bizrq-webhooks", "namespace": "bizrq-system"}}
    return {"name": name, "clientConfig": client_config or service}


def test_each_of_our_webhooks_is_tested_by_name_and_then_patched() -> None:
    configuration = {
        "webhooks": [
            webhook("a"),
            webhook("b", service={"name": "bizrq-webhooks", "namespace": "bizrq-system"}, caBundle="b2xk"),
            webhook("theirs", service={"name": "other", "namespace": "bizrq-system"}),
            webhook("d", url="https://127.0.0.1:8443/validate/groups"),
            webhook("e", url="https://127.0.0.2:8443/validate/groups"),
        ]
    }
    operations = cabundle.patch(configuration, BUNDLE, NAMES)
    assert [(each["op"], each["path"]) for each in operations] == [
        ("test", "/webhooks/0/name"),
        ("add", "/webhooks/0/clientConfig/caBundle"),
        ("test", "/webhooks/1/name"),
        ("replace", "/webhooks/1/clientConfig/caBundle"),
        ("test", "/webhooks/3/name"),
        ("add", "/webhooks/3/clientConfig/caBundle"),
    ]
    after = jsonpatch.apply_patch(configuration, operations)
    assert [each["clientConfig"].get("caBundle") for each in after["webhooks"]] == [TEXT, TEXT, None, TEXT, None]
    assert cabundle.patch(after, BUNDLE, NAMES) == []
    assert cabundle.announced_bundles([after], NAMES) == [BUNDLE] * 3


def test_a_configuration_without_webhooks_needs_no_patch() -> None:
    assert cabundle.patch({"metadata": {"name": "bizrq"}}, BUNDLE, NAMES) == []
    assert cabundle.announced_bundles([{"webhooks": None}], NAMES) == []


def test_our_configurations_are_found_by_their_label() -> None:
    made = registration.configuration(load(None), lambda path: {"url": path}, namespace="x")
    assert cabundle.is_ours(made)
    assert cabundle.is_ours({"metadata": {"name": "x", **OURS}})
    assert not cabundle.is_ours({"metadata": {"name": "bizrq", "labels": {"app.kubernetes.io/name": "other"}}})
    for metadata in ({"name": "bizrq"}, {"labels": None}, {"labels": ["bizrq"]}, None, "x"):
        assert not cabundle.is_ours({"metadata": metadata})


async def test_the_bundle_is_injected_once(server: FakeServer, client: KubeClient) -> None:
    server.put(PLURAL, "bizrq", "", metadata=OURS, webhooks=[webhook("a")])
    after = await cabundle.inject(client, "bizrq", BUNDLE, NAMES)
    assert after is not None
    assert after["webhooks"][0]["clientConfig"]["caBundle"] == TEXT
    await cabundle.inject(client, "bizrq", BUNDLE, NAMES)
    assert sum(request.startswith("PATCH") for request in server.requests) == 1
    assert await cabundle.inject(client, "bizrq-none", BUNDLE, NAMES) is None


async def test_a_list_that_changed_under_the_patch_is_read_again(server: FakeServer, client: KubeClient) -> None:
    stale = server.put(PLURAL, "bizrq", "", metadata=OURS, webhooks=[webhook("a"), webhook("b")])
    theirs = webhook("theirs", service={"name": "other", "namespace": "x"})
    reads = 0
    get = client.get

    async def get_stale_first(*arguments: Any, **options: Any) -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return stale if reads == 1 else await get(*arguments, **options)

    client.get = get_stale_first  # type: ignore[method-assign]
    server.put(PLURAL, "bizrq", "", metadata=OURS, webhooks=[theirs, webhook("a")])
    after = await cabundle.inject(client, "bizrq", BUNDLE, NAMES)
    assert after is not None
    assert [each["clientConfig"].get("caBundle") for each in after["webhooks"]] == [None, TEXT]
