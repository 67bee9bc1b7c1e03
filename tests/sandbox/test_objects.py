"""Creating, reading, changing and deleting objects."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from sandbox.server import Sandbox
from tests.support.sandbox_client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    Client,
    bearer,
    binding,
    config_map,
    deployment,
    pod,
)


async def test_a_created_object_has_what_the_system_sets(api: Client):
    made = await api.create(DEPLOYMENTS, deployment("web"))
    meta = made["metadata"]
    assert meta["uid"]
    assert meta["generation"] == 1
    assert meta["namespace"] == "default"
    assert int(meta["resourceVersion"]) > 0
    assert made["spec"]["strategy"]["type"] == "RollingUpdate"
    assert made["status"] == {}


async def test_generated_names_differ(api: Client):
    body = {**config_map(""), "metadata": {"generateName": "c-"}}
    names = {(await api.create(CONFIG_MAPS, body))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("c-") and len(name) == 7 for name in names)


async def test_a_second_create_is_refused(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a"))
    assert (code, status["reason"]) == (409, "AlreadyExists")
    assert status["message"] == 'configmaps "a" already exists'
    assert status["details"] == {"name": "a", "kind": "configmaps"}


async def test_what_is_not_there_is_not_found(api: Client):
    code, status = await api.send("GET", DEPLOYMENTS + "/none")
    assert (code, status["message"]) == (404, 'deployments.apps "none" not found')
    assert status["details"] == {"name": "none", "group": "apps", "kind": "deployments"}
    code, status = await api.send("POST", "/api/v1/namespaces/none/configmaps", config_map("a"))
    assert (code, status["message"]) == (404, 'namespaces "none" not found')
    code, status = await api.send("GET", "/apis/none.io/v1/things")
    assert (code, status) == (404, "404 page not found\n")
    code, status = await api.send("GET", "/api/v1/things")
    assert (code, status["message"]) == (404, "the server could not find the requested resource")


async def test_an_update_from_an_old_version_is_a_conflict(api: Client):
    old = await api.create(CONFIG_MAPS, config_map("a"))
    await api.ok("PUT", CONFIG_MAPS + "/a", {**old, "data": {"a": "2"}})
    code, status = await api.send("PUT", CONFIG_MAPS + "/a", {**old, "data": {"a": "3"}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes '
        "to the latest version and try again"
    )


async def test_an_update_that_changes_nothing_keeps_the_version(api: Client):
    old = await api.create(CONFIG_MAPS, config_map("a"))
    same = await api.ok("PUT", CONFIG_MAPS + "/a", old)
    assert same["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


async def test_generation_counts_changes_of_the_spec_only(api: Client):
    await api.create(DEPLOYMENTS, deployment("web"))

    async def generation(body: object) -> int:
        code, answer = await api.merge(DEPLOYMENTS + "/web", body)
        assert code == 200
        return answer["metadata"]["generation"]

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"spec": {"replicas": 2}}) == 2
    assert await generation({"status": {"replicas": 2}}) == 2


async def test_status_is_written_apart_from_the_rest(api: Client):
    made = await api.create(DEPLOYMENTS, deployment("web"))
    body = {**made, "status": {"replicas": 3}, "spec": {**made["spec"], "replicas": 9}}
    await api.ok("PUT", DEPLOYMENTS + "/web/status", body)
    now = await api.get(DEPLOYMENTS + "/web")
    assert (now["status"]["replicas"], now["spec"]["replicas"]) == (3, 1)
    _, now = await api.merge(DEPLOYMENTS + "/web", {"status": {"replicas": 7}})
    assert now["status"]["replicas"] == 3


async def test_concurrent_patches_all_get_in(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    answers = await asyncio.gather(*(api.merge(CONFIG_MAPS + "/a", {"data": {f"k{i}": "v"}}) for i in range(20)))
    assert {code for code, _ in answers} == {200}
    assert len((await api.get(CONFIG_MAPS + "/a"))["data"]) == 21


async def test_a_patch_with_an_old_version_is_a_conflict(api: Client):
    old = await api.create(CONFIG_MAPS, config_map("a"))
    await api.merge(CONFIG_MAPS + "/a", {"data": {"b": "1"}})
    code, _ = await api.merge(
        CONFIG_MAPS + "/a",
        {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"b": "2"}},
    )
    assert code == 409


async def test_a_dry_run_stores_nothing(api: Client):
    made = await api.create(CONFIG_MAPS, config_map("a"), dryRun="All")
    assert made["metadata"]["uid"]
    code, _ = await api.send("GET", CONFIG_MAPS + "/a")
    assert code == 404


async def test_an_object_stays_until_its_finalizers_let_go(api: Client):
    body = config_map("a")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(CONFIG_MAPS, body)
    answer = await api.ok("DELETE", CONFIG_MAPS + "/a")
    assert answer["metadata"]["deletionTimestamp"]
    code, status = await api.merge(CONFIG_MAPS + "/a", {"metadata": {"finalizers": ["example.com/hold", "b.io/c"]}})
    assert code == 422
    assert "no new finalizers can be added" in status["message"]
    await api.merge(CONFIG_MAPS + "/a", {"metadata": {"finalizers": None}})
    code, _ = await api.send("GET", CONFIG_MAPS + "/a")
    assert code == 404


async def test_a_delete_can_insist_on_a_uid(api: Client):
    made = await api.create(CONFIG_MAPS, config_map("a"))
    code, status = await api.send("DELETE", CONFIG_MAPS + "/a", {"preconditions": {"uid": "other"}})
    assert code == 409
    assert (
        f"the UID in the precondition (other) does not match the UID in record ({made['metadata']['uid']})"
        in status["message"]
    )
    answer = await api.ok("DELETE", CONFIG_MAPS + "/a")
    assert answer["status"] == "Success"
    assert answer["details"]["uid"] == made["metadata"]["uid"]


async def test_a_collection_is_deleted_by_its_selector(api: Client):
    for name, kind in (("a", "x"), ("b", "x"), ("c", "y")):
        await api.create(CONFIG_MAPS, config_map(name, kind=kind))
    await api.ok("DELETE", CONFIG_MAPS, labelSelector="kind in (x)")
    left = await api.get(CONFIG_MAPS)
    assert [item["metadata"]["name"] for item in left["items"]] == ["c"]


async def test_lists_come_in_pages_of_one_revision(api: Client):
    for index in range(5):
        await api.create(CONFIG_MAPS, config_map(f"c{index}"))
    first = await api.get(CONFIG_MAPS, limit="2")
    assert first["metadata"]["remainingItemCount"] == 3
    await api.ok("DELETE", CONFIG_MAPS + "/c3")
    await api.create(CONFIG_MAPS, config_map("c9"))
    second = await api.get(CONFIG_MAPS, limit="9", **{"continue": first["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in second["items"]] == ["c2", "c3", "c4"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in second["metadata"]


async def test_a_page_that_history_forgot_is_expired(box: Sandbox, api: Client):
    for index in range(3):
        await api.create(CONFIG_MAPS, config_map(f"c{index}"))
    first = await api.get(CONFIG_MAPS, limit="2")
    await api.create(CONFIG_MAPS, config_map("c9"))
    box.compact()
    code, status = await api.send("GET", CONFIG_MAPS, limit="2", **{"continue": first["metadata"]["continue"]})
    assert (code, status["reason"]) == (410, "Expired")


async def test_field_selectors_know_a_few_fields(api: Client):
    await api.create(PODS, pod("a"))
    await api.create(PODS, pod("b"))
    await api.create(PODS + "/b/binding", binding("b"))
    found = await api.get("/api/v1/pods", fieldSelector="spec.nodeName=n1,status.phase!=Succeeded")
    assert [item["metadata"]["name"] for item in found["items"]] == ["b"]
    code, status = await api.send("GET", PODS, fieldSelector="spec.image=x")
    assert (code, status["message"]) == (400, "field label not supported: spec.image")


async def test_binding_places_a_pod_once(api: Client):
    await api.create(PODS, pod("a"))
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    await api.create(PODS + "/a/binding", body)
    placed = await api.get(PODS + "/a")
    assert placed["spec"]["nodeName"] == "n1"
    [condition] = placed["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    code, status = await api.send("POST", PODS + "/a/binding", body)
    assert code == 409
    assert 'pod a is already assigned to node "n1"' in status["message"]


async def test_a_running_pod_is_deleted_gracefully(api: Client):
    await api.create(PODS, pod("a"))
    await api.create(PODS + "/a/binding", binding("a"))
    going = await api.ok("DELETE", PODS + "/a")
    assert going["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.ok("DELETE", PODS + "/a", {"gracePeriodSeconds": 0})
    code, _ = await api.send("GET", PODS + "/a")
    assert code == 404


async def test_scale_reads_and_writes_replicas(api: Client):
    await api.create(DEPLOYMENTS, deployment("web", replicas=2))
    scale = await api.get(DEPLOYMENTS + "/web/scale")
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 2}, "app=web")
    code, scale = await api.merge(DEPLOYMENTS + "/web/scale", {"spec": {"replicas": 0}})
    assert (code, scale["spec"]) == (200, {})
    assert (await api.get(DEPLOYMENTS + "/web"))["spec"]["replicas"] == 0
    code, status = await api.merge(DEPLOYMENTS + "/web/scale", {"spec": {"replicas": -1}})
    assert code == 422
    old = {**scale, "spec": {"replicas": 5}}
    await api.merge(DEPLOYMENTS + "/web", {"metadata": {"labels": {"a": "b"}}})
    code, status = await api.send("PUT", DEPLOYMENTS + "/web/scale", old)
    assert (code, status["reason"]) == (409, "Conflict")


async def test_invalid_objects_are_refused_with_every_cause(api: Client):
    body = deployment("web", replicas=-1)
    body["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    code, status = await api.send("POST", DEPLOYMENTS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in status["details"]["causes"]] == [
        "spec.replicas",
        "spec.template.metadata.labels",
    ]
    assert status["message"].startswith('Deployment.apps "web" is invalid: [spec.replicas: Invalid value: -1: must')
    code, status = await api.send("POST", CONFIG_MAPS, config_map("Not_A_Name"))
    assert code == 422
    assert "a lowercase RFC 1123 subdomain" in status["message"]
    code, status = await api.send("POST", CONFIG_MAPS, config_map("a", bad="x" * 64))
    assert code == 422
    body = deployment("web")
    body["spec"]["replicas"] = "2"
    code, status = await api.send("POST", DEPLOYMENTS, body)
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_a_pod_requests_what_it_is_limited_to(api: Client):
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}
    made = await api.create(PODS, body)
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    made = await api.create(DEPLOYMENTS, deployment("web"))
    assert "requests" not in made["spec"]["template"]["spec"]["containers"][0]["resources"]


async def test_what_the_sandbox_cannot_do_it_says(api: Client):
    await api.create(DEPLOYMENTS, deployment("web"))
    code, _ = await api.send("PATCH", DEPLOYMENTS + "/web", {}, kind="application/apply-patch+yaml")
    assert code == 415
    code, _ = await api.send("POST", CONFIG_MAPS, {}, kind="application/vnd.kubernetes.protobuf")
    assert code == 415
    code, status = await api.send("GET", PODS + "/a/log")
    assert (code, status["reason"]) == (501, "NotImplemented")
    code, _ = await api.send("POST", DEPLOYMENTS + "/web", {})
    assert code == 405


async def test_built_in_lists_leave_kinds_out_of_their_items(api: Client):
    await api.create(CONFIG_MAPS, config_map("a"))
    listed = await api.get(CONFIG_MAPS)
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert "kind" not in listed["items"][0]


async def test_faults_may_answer_in_place_of_the_server(box: Sandbox, api: Client):
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "code": 429}, status=429)

    box.faults.append(busy)
    code, _ = await api.send("GET", CONFIG_MAPS)
    assert code == 429
    box.faults.remove(busy)
    code, _ = await api.send("GET", CONFIG_MAPS)
    assert code == 200


async def test_a_sandbox_can_serve_https_that_its_kubeconfig_trusts(tmp_path: Path):
    async with Sandbox(tls=True, controllers=False) as box:
        config = yaml.safe_load(box.write_kubeconfig(tmp_path / "deep" / "kubeconfig").read_text())
        cluster = config["clusters"][0]["cluster"]
        assert cluster["server"].startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        async with aiohttp.ClientSession(
            box.url, connector=aiohttp.TCPConnector(ssl=trust), headers=bearer(box)
        ) as session:
            assert (await Client(session).get("/version"))["gitVersion"].startswith("v1.36.0")


async def test_an_object_that_etcd_would_not_take_is_refused(api: Client):
    env = [{"name": "E", "value": "x" * 1_600_000}]
    code, status = await api.send("POST", PODS, pod("a", containers=[{"name": "c", "image": "x", "env": env}]))
    assert (code, status["message"]) == (500, "etcdserver: request is too large")
    big = {"big.io/a": "x" * 300_000}
    code, status = await api.send(
        "POST", CONFIG_MAPS, {**config_map("a"), "metadata": {"name": "a", "annotations": big}}
    )
    assert code == 422
    assert "metadata.annotations: Too long" in status["message"]
