"""Custom resources: definitions, schemas, CEL rules, and what is served for them."""

from __future__ import annotations

import asyncio

import aiohttp

from sandbox import openapi2
from sandbox.server import Sandbox
from tests.support.sandbox_client import CRDS, GROUPS, Client, eventually, group, group_crd

NAME = "bizgroupresourcequotas.quota.biz.group"


async def test_a_definition_is_served_at_once(api: Client):
    crd = await api.create(CRDS, group_crd())
    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    made = await api.create(GROUPS, group("nlp", "ai", pods=5))
    assert made["metadata"]["generation"] == 1
    served = await api.get("/apis/quota.biz.group/v1alpha1")
    assert [r["name"] for r in served["resources"]] == ["bizgroupresourcequotas", "bizgroupresourcequotas/status"]
    document = await api.get("/openapi/v3/apis/quota.biz.group/v1alpha1")
    assert "group.biz.quota.v1alpha1.BizGroupResourceQuota" in document["components"]["schemas"]
    listed = await api.get(GROUPS)
    assert listed["items"][0]["kind"] == "BizGroupResourceQuota"


async def test_a_deleted_definition_takes_its_objects_along(api: Client):
    await api.create(CRDS, group_crd())
    await api.create(GROUPS, group("nlp"))
    going = await api.ok("DELETE", f"{CRDS}/{NAME}")
    assert going["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]

    async def gone() -> bool:
        code, _ = await api.send("GET", GROUPS)
        return code == 404

    await eventually(gone)
    await api.create(CRDS, group_crd())
    assert (await api.get(GROUPS))["items"] == []


async def test_schema_and_rules_refuse_with_kubernetes_words(api: Client):
    await api.create(CRDS, group_crd())
    code, status = await api.send("POST", GROUPS, group("nlp", pods=True))
    assert (code, status["reason"]) == (422, "Invalid")
    assert 'must be of type integer,string: "boolean"' in status["message"]
    body = group("nlp", a=1, b=2, c=3, d=4)
    code, status = await api.send("POST", GROUPS, body)
    assert status["message"] == (
        'BizGroupResourceQuota.quota.biz.group "nlp" is invalid: [spec.hard: Too many: 4: must have at most 3 items, '
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct "
        "the existing errors to complete validation]"
    )
    code, status = await api.send("POST", GROUPS, {**group("nlp"), "spec": {}})
    assert "spec.hard: Required value" in status["message"]
    code, status = await api.send("POST", GROUPS, group("nlp", pods="-1"))
    assert status["message"] == (
        'BizGroupResourceQuota.quota.biz.group "nlp" is invalid: spec.hard: Invalid value: every quantity must be >= 0'
    )
    assert status["details"]["causes"] == [
        {
            "reason": "FieldValueInvalid",
            "message": "Invalid value: every quantity must be >= 0",
            "field": "spec.hard",
        }
    ]


async def test_a_transition_rule_stands_for_updates(api: Client):
    await api.create(CRDS, group_crd())
    await api.create(GROUPS, group("nlp", "ai"))
    code, status = await api.merge(GROUPS + "/nlp", {"spec": {"parent": "other"}})
    assert code == 422
    assert status["details"]["causes"][0]["field"] == "spec.parent"
    code, _ = await api.merge(GROUPS + "/nlp", {"spec": {"hard": {"pods": "9"}}})
    assert code == 200


async def test_defaults_are_filled_and_the_unknown_is_pruned(api: Client):
    await api.create(CRDS, group_crd())
    body = group("nlp")
    del body["spec"]["parent"]
    body["spec"]["hurd"] = {}
    code, status = await api.send("POST", GROUPS, body, fieldValidation="Strict")
    assert (code, status["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.hurd"' in status["message"]
    made = await api.create(GROUPS, body)
    assert api.headers["Warning"] == '299 - "unknown field \\"spec.hurd\\""'
    assert made["spec"] == {"hard": {}, "parent": ""}


async def test_status_and_spec_have_their_own_paths(api: Client):
    await api.create(CRDS, group_crd())
    made = await api.create(GROUPS, {**group("nlp"), "status": {"used": {}}})
    assert "status" not in made
    written = await api.ok("PUT", GROUPS + "/nlp/status", {**made, "status": {"used": {"pods": "1"}}})
    assert (written["status"], written["metadata"]["generation"]) == ({"used": {"pods": "1"}}, 1)
    code, status = await api.send("PUT", GROUPS + "/nlp/status", {**made, "status": {}})
    assert (code, status["reason"]) == (409, "Conflict")
    code, changed = await api.merge(GROUPS + "/nlp", {"spec": {"hard": {"pods": 2}}, "status": {"used": None}})
    assert (changed["status"], changed["metadata"]["generation"]) == ({"used": {"pods": "1"}}, 2)


async def test_an_update_of_a_custom_resource_names_its_version(api: Client):
    await api.create(CRDS, group_crd())
    made = await api.create(GROUPS, group("nlp"))
    del made["metadata"]["resourceVersion"]
    code, status = await api.send("PUT", GROUPS + "/nlp", made)
    assert code == 422
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in status["message"]


async def test_a_definition_with_a_bad_rule_is_refused(api: Client):
    crd = group_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] = "self.parent.nonsense() == other"
    code, status = await api.send("POST", CRDS, crd)
    assert code == 422
    assert "undeclared reference to 'nonsense'" in status["message"]


async def test_tables_show_the_printer_columns(api: Client):
    await api.create(CRDS, group_crd())
    await api.create(GROUPS, group("nlp", "ai"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    async with api.session.get(GROUPS, headers={"Accept": accept}) as response:
        table = await response.json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Parent"]
    assert table["rows"][0]["cells"] == ["nlp", "ai"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_watches_end_with_the_definition(api: Client):
    await api.create(CRDS, group_crd())
    await api.create(GROUPS, group("nlp"))
    watching = asyncio.create_task(api.watch(GROUPS, 9))
    await asyncio.sleep(0.05)
    await api.ok("DELETE", f"{CRDS}/{NAME}")
    assert [event["type"] for event in await watching] == ["ADDED", "DELETED"]


async def test_kubectl_1_28_is_told_that_fields_are_checked_here(box: Sandbox) -> None:
    """It asks for OpenAPI v2 in protobuf before it writes; nobody gets it in another form."""
    async with aiohttp.ClientSession(box.url) as session:
        async with session.get("/openapi/v2", headers={"Accept": openapi2.ASKED}) as answer:
            assert (answer.status, answer.content_type) == (200, openapi2.MEDIA_TYPE)
            told = await answer.read()
        async with session.get("/openapi/v2") as answer:
            assert answer.status == 404
    assert told.count(b"fieldValidation") == told.count(b"x-kubernetes-group-version-kind") > 20
    assert b"group: 'apps'\nkind: Deployment\nversion: v1\n" in told
