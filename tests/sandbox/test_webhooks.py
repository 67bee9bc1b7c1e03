"""Validating webhooks: what they are told, when, and what their answers mean."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from certs import pki
from tests.support.sandbox_client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    WEBHOOKS,
    Client,
    binding,
    config_map,
    deployment,
    pod,
)

Json = dict[str, Any]
Decide = Callable[[Json], Json]


class Hook:
    """A webhook server that records its reviews and answers with `decide` (default: allowed)."""

    def __init__(self, ca: bytes) -> None:
        self.reviews: list[Json] = []
        self.urls: list[str] = []
        self.decide: Decide = lambda request: {"allowed": True}
        self.delay = 0.0
        self.port = 0
        self.connections: set[Any] = set()
        self.ca = ca
        self.raw: web.Response | None = None

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.reviews.append(review["request"])
        self.urls.append(str(request.rel_url))
        self.connections.add(request.transport)
        await asyncio.sleep(self.delay)
        if self.raw is not None:
            return web.Response(text=self.raw.text, status=self.raw.status)
        response = {"uid": review["request"]["uid"], **self.decide(review["request"])}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})

    def registration(self, name: str = "check.example.com", **webhook: Any) -> Json:
        every = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": name,
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{self.port}/validate",
                        "caBundle": base64.b64encode(self.ca).decode(),
                    },
                    "rules": [every],
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    **webhook,
                }
            ],
        }


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    now = datetime.now(UTC)
    ca = pki.make_ca(now)
    pair = pki.make_serving(ca, ["127.0.0.1"], now)
    (tmp_path / "tls.crt").write_bytes(pair.certificate_pem)
    (tmp_path / "tls.key").write_bytes(pair.key_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    hook = Hook(ca.certificate_pem)
    app = web.Application()
    app.router.add_post("/validate", hook.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    hook.port = runner.addresses[0][1]
    yield hook
    await runner.cleanup()


def deny(message: str, **status: Any) -> Decide:
    return lambda request: {"allowed": False, "status": {"message": message, **status}}


async def test_a_create_review_has_the_final_object(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    made = await api.create(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}}, fieldManager="me"
    )
    [request] = hook.reviews
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert request["requestKind"] == request["kind"]
    assert request["name"] == made["metadata"]["name"]
    assert request["namespace"] == "default"
    assert request["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert request["oldObject"] is None
    assert request["dryRun"] is False
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"}
    assert request["userInfo"]["username"] == "kubernetes-admin"
    assert hook.urls == ["/validate?timeout=10s"]


async def test_update_and_delete_reviews_have_the_stored_object(api: Client, hook: Hook):
    made = await api.create(CONFIG_MAPS, config_map("a"))
    await api.create(WEBHOOKS, hook.registration())
    await api.merge(CONFIG_MAPS + "/a", {"data": {"a": "2"}})
    await api.ok("DELETE", CONFIG_MAPS + "/a", propagationPolicy="Background")
    update, delete = hook.reviews
    version = made["metadata"]["resourceVersion"]
    assert (update["operation"], update["oldObject"]["metadata"]["resourceVersion"]) == ("UPDATE", version)
    assert update["object"]["metadata"]["resourceVersion"] == version
    assert update["options"]["kind"] == "UpdateOptions"
    assert (delete["operation"], delete["object"], delete["oldObject"]["data"]) == ("DELETE", None, {"a": "2"})
    assert delete["options"]["propagationPolicy"] == "Background"


async def test_scale_reviews_are_of_scales(api: Client, hook: Hook):
    await api.create(DEPLOYMENTS, deployment("web"))
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments/scale"]}
    await api.create(WEBHOOKS, hook.registration(rules=[rule]))
    await api.merge(DEPLOYMENTS + "/web", {"spec": {"replicas": 2}})
    await api.merge(DEPLOYMENTS + "/web/scale", {"spec": {"replicas": 3}})
    [request] = hook.reviews
    assert request["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert request["resource"]["resource"] == "deployments"
    assert request["subResource"] == "scale"
    assert (request["oldObject"]["spec"], request["object"]["spec"]) == ({"replicas": 2}, {"replicas": 3})


async def test_a_denial_carries_the_status_of_the_review(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    hook.decide = deny("exceeded quota: nlp", code=403, reason="Forbidden", details={"causes": [{"field": "x"}]})
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"] == 'admission webhook "check.example.com" denied the request: exceeded quota: nlp'
    assert status["details"] == {"causes": [{"field": "x"}]}
    hook.decide = deny("try again", code=429, details={"retryAfterSeconds": 1})
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert (code, status["details"]) == (429, {"retryAfterSeconds": 1})
    assert api.headers["Retry-After"] == "1"
    hook.decide = lambda request: {"allowed": False}
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert code == 400
    assert status["message"].endswith("denied the request without explanation")


async def test_warnings_reach_the_client(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    hook.decide = lambda request: {"allowed": True, "warnings": ['lowered "hard"']}
    await api.create(CONFIG_MAPS, config_map("a"))
    assert api.headers["Warning"] == '299 - "lowered \\"hard\\""'


async def test_selectors_and_conditions_choose_the_requests(api: Client, hook: Hook):
    await api.create(
        WEBHOOKS,
        hook.registration(
            objectSelector={"matchLabels": {"quota": "nlp"}},
            namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            matchConditions=[
                {"name": "not-b", "expression": "(oldObject == null ? object : oldObject).metadata.name != 'b'"}
            ],
        ),
    )
    await api.create(CONFIG_MAPS, config_map("plain"))
    await api.create(CONFIG_MAPS, config_map("a", quota="nlp"))
    await api.create(CONFIG_MAPS, config_map("b", quota="nlp"))
    await api.create("/api/v1/namespaces/kube-system/configmaps", config_map("a", quota="nlp"))
    await api.merge(CONFIG_MAPS + "/a", {"metadata": {"labels": None}})
    assert [(r["operation"], r["name"]) for r in hook.reviews] == [("CREATE", "a"), ("UPDATE", "a")]


async def test_a_condition_with_no_answer_fails_as_the_policy_says(api: Client, hook: Hook):
    condition = [{"name": "label", "expression": "object.metadata.labels['none'] == 'x'"}]
    await api.create(WEBHOOKS, hook.registration(matchConditions=condition))
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith('configmaps "a" is forbidden: expression ')
    assert "resulted in error: no such key: " in status["message"]
    await api.merge(WEBHOOKS + "/check.example.com", {"webhooks": [
        {**hook.registration(matchConditions=condition)["webhooks"][0], "failurePolicy": "Ignore"}]})  # fmt: skip
    await api.create(CONFIG_MAPS, config_map("a"))
    assert hook.reviews == []


async def test_a_webhook_that_fails_decides_by_its_policy(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    hook.raw = web.Response(text="broken", status=500)
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert (code, status["reason"]) == (500, "InternalError")
    assert status["message"] == (
        'Internal error occurred: failed calling webhook "check.example.com": failed to call webhook: '
        'an error on the server ("broken") has prevented the request from succeeding'
    )
    await api.send("DELETE", WEBHOOKS + "/check.example.com")
    await api.create(WEBHOOKS, hook.registration(failurePolicy="Ignore"))
    await api.create(CONFIG_MAPS, config_map("a"))


async def test_a_slow_webhook_runs_out_of_time(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration(timeoutSeconds=1))
    hook.delay = 3
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert code == 500
    url = f"https://127.0.0.1:{hook.port}/validate?timeout=1s"
    assert f'failed to call webhook: Post "{url}": context deadline exceeded' in status["message"]


async def test_an_untrusted_certificate_is_refused(api: Client, hook: Hook):
    hook.ca = pki.make_ca(datetime.now(UTC)).certificate_pem
    await api.create(WEBHOOKS, hook.registration())
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert code == 500
    assert "tls: failed to verify certificate: x509" in status["message"]


async def test_a_webhook_that_nobody_serves_is_refused(api: Client, hook: Hook):
    hook.port = 1
    await api.create(WEBHOOKS, hook.registration())
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert code == 500
    assert status["message"].endswith("dial tcp 127.0.0.1:1: connect: connection refused")


async def test_webhooks_are_asked_at_the_same_time_and_one_refusal_is_enough(api: Client, hook: Hook):
    for name in ("a.example.com", "b.example.com", "c.example.com"):
        await api.create(WEBHOOKS, hook.registration(name))
    hook.delay = 0.2
    hook.decide = deny("no")
    async with asyncio.timeout(0.55):
        _, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert len(hook.reviews) >= 3
    assert 'webhook "a.example.com" denied' in status["message"]


async def test_every_retry_of_a_conflict_is_reviewed_again(api: Client, hook: Hook):
    await api.create(CONFIG_MAPS, config_map("a"))
    await api.create(WEBHOOKS, hook.registration())
    hook.delay = 0.02
    answers = await asyncio.gather(*(api.merge(CONFIG_MAPS + "/a", {"data": {f"k{i}": "v"}}) for i in range(8)))
    assert {code for code, _ in answers} == {200}
    assert len(hook.reviews) > 8
    assert len({request["uid"] for request in hook.reviews}) == len(hook.reviews)
    assert len(hook.connections) <= 8


async def test_a_delete_is_reviewed_again_if_the_object_moved(api: Client, hook: Hook):
    await api.create(CONFIG_MAPS, config_map("a"))
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["configmaps"]}
    await api.create(WEBHOOKS, hook.registration(rules=[rule]))
    hook.delay = 0.1
    going = asyncio.create_task(api.send("DELETE", CONFIG_MAPS + "/a"))
    await asyncio.sleep(0.05)
    await api.merge(CONFIG_MAPS + "/a", {"data": {"a": "2"}})
    assert (await going)[0] == 200
    assert [request["oldObject"]["data"]["a"] for request in hook.reviews] == ["1", "2"]


async def test_a_dry_run_asks_only_those_without_side_effects(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    await api.create(CONFIG_MAPS, config_map("a"), dryRun="All")
    assert hook.reviews[0]["dryRun"] is True
    assert hook.reviews[0]["options"]["dryRun"] == ["All"]
    code, status = await api.send("POST", WEBHOOKS, hook.registration("b.example.com", sideEffects="Some"))
    assert code == 422
    assert "sideEffects" in status["message"]


async def test_bindings_and_pod_status_are_reviewed_as_subresources(api: Client, hook: Hook):
    await api.create(PODS, pod("a"))
    await api.create(WEBHOOKS, hook.registration())
    await api.create(PODS + "/a/binding", binding("a"))
    await api.merge(PODS + "/a/status", {"status": {"phase": "Running"}})
    assert [(r["operation"], r.get("subResource"), r["kind"]["kind"]) for r in hook.reviews] == [
        ("CREATE", "binding", "Binding"),
        ("UPDATE", "status", "Pod"),
    ]


async def test_who_asks_is_in_the_review(api: Client, hook: Hook):
    await api.create(WEBHOOKS, hook.registration())
    api.session.headers.update({"Impersonate-User": "alice", "Impersonate-Group": "ml"})
    await api.create(CONFIG_MAPS, config_map("a"))
    assert hook.reviews[0]["userInfo"] == {"username": "alice", "groups": ["ml", "system:authenticated"]}
