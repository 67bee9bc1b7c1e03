"""The CRD of groups without any webhook: its schema and CEL refuse what one object can say wrong, and take the rest."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bizrq.kube.client import Conflict, KubeClient
from bizrq.store.groups import GROUPS, PARENT_FIELD, GroupStore
from tests.support.cluster import Cluster, refusal
from tests.support.objects import Object, group

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("groups")]


@pytest.mark.parametrize(
    "hard",
    [
        {"limits.cpu": "10"},
        {"limits.cpu": 10},
        {"limits.cpu": "500m", "limits.memory": "16Gi", "pods": "0"},
        {"requests.nvidia.com/gpu.A100": "1", "cash/requests.nvidia.com/gpu": "10k"},
        {"limits.cpu": "1e3"},
        {"limits.cpu": "0.5"},
        {f"count/k{n}.example.com": "1" for n in range(256)},
    ],
    ids=lambda hard: str(hard)[:60],
)
async def test_good_amounts_are_stored_as_they_were_written(client: KubeClient, unique: str, hard: Any) -> None:
    made = await client.create(GROUPS, {**group(unique), "spec": {"hard": hard}})
    assert made["spec"]["hard"] == hard
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    "hard",
    [
        {"limits.cpu": "-1"},
        {"limits.cpu": -1},
        {"limits.cpu": "NaN"},
        {"limits.cpu": "abc"},
        {"limits.cpu": ""},
        {"limits.cpu": "1_000"},
        {"limits.cpu": "１０"},
        {"limits.cpu": "1" * 33},
        {"limits.cpu": 1.5},
        {"limits.cpu": True},
        {"limits.cpu": {}},
        "10",
        {f"count/k{n}.example.com": "1" for n in range(257)},
    ],
    ids=lambda hard: str(hard)[:60],
)
async def test_bad_amounts_are_refused_by_the_schema_alone(client: KubeClient, unique: str, hard: Any) -> None:
    error = await refusal(client.create(GROUPS, {**group(unique), "spec": {"hard": hard}}))
    assert error.status == 422
    assert error.reason == "Invalid"
    assert error.message.startswith(f'BizGroupResourceQuota.quota.biz.group "{unique}" is invalid: ')
    assert error.details["causes"]


async def test_what_one_object_can_say_of_the_tree_holds_without_a_webhook(client: KubeClient, unique: str) -> None:
    own = await refusal(client.create(GROUPS, group(unique, unique, cpu="1")))
    assert own.message.endswith("spec.parentBizGroup: Invalid value: a group cannot be its own parent")
    long = await refusal(client.create(GROUPS, group("x" * 64, cpu="1")))
    assert long.message.endswith(
        "metadata.name: Invalid value: the name is the value of the label biz.group.resource.quota, so it has at most "
        "63 characters"
    )
    # What is wrong with the characters is said, and nothing of a length that is right.
    for name in ("Nlp", "nlp_1", "nlp-", "a..b"):
        wrong = await refusal(client.create(GROUPS, group(name, cpu="1")))
        assert "metadata.name: " in wrong.message, name
        assert "RFC 1123" in wrong.message, name
        assert "63 characters" not in wrong.message, name
        assert "<nil>" not in wrong.message, name
    await client.create(GROUPS, group(unique, "corp", cpu="1"))
    for patch in ({"parentBizGroup": "other"}, {"parentBizGroup": None}, {"parentBizGroup": ""}):
        error = await refusal(client.patch(GROUPS, unique, {"spec": patch}))
        assert "immutable" in error.message, patch
    await client.create(GROUPS, group(f"{unique}-root", cpu="1"))
    await client.patch(GROUPS, f"{unique}-root", {"spec": {"parentBizGroup": ""}})
    assert (
        "immutable"
        in (await refusal(client.patch(GROUPS, f"{unique}-root", {"spec": {"parentBizGroup": "corp"}}))).message
    )


@pytest.mark.parametrize("amount", [True, 1.5, {}], ids=str)
async def test_amounts_of_the_status_are_integers_or_text(client: KubeClient, unique: str, amount: Any) -> None:
    made = await client.create(GROUPS, group(unique, cpu="4"))
    told = {**made, "status": {"used": {"limits.cpu": 1, "pods": "2"}, "selfUsed": {"limits.cpu": amount}}}
    assert (await refusal(client.replace(GROUPS, told, subresource="status"))).status == 422


async def test_who_applies_a_spec_keeps_its_fields_while_the_status_is_written(
    cluster: Cluster, client: KubeClient, unique: str
) -> None:
    async def apply(who: str, **hard: str) -> Object:
        metadata = {"name": unique}
        asked = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "metadata": metadata, "spec": {"hard": hard}}
        kind, params = "application/apply-patch+yaml", {"fieldManager": who}
        path, body = GROUPS.path(name=unique), orjson.dumps(asked)
        answer = await client.request("PATCH", path, body=body, content_type=kind, params=params)
        return orjson.loads(answer)

    if not cluster.is_real:
        assert (await refusal(apply("one", **{"limits.cpu": "4"}))).status == 415
        return
    await apply("one", **{"limits.cpu": "4", "pods": "9"})
    made = await apply("other", **{"limits.memory": "1Gi"})
    used = {"limits.cpu": "1", "limits.memory": "0", "pods": "1"}
    told = await client.replace(GROUPS, {**made, "status": {"used": used}}, subresource="status")
    assert [e["fieldsV1"] for e in told["metadata"]["managedFields"] if "subresource" in e] == [{"f:status": {}}]
    # What one no longer applies goes, and nothing else.
    left = await apply("one", **{"limits.cpu": "5"})
    assert left["spec"]["hard"] == {"limits.cpu": "5", "limits.memory": "1Gi"}
    assert left["status"] == {"used": used}


async def test_status_is_written_apart_from_spec_and_by_version(client: KubeClient, unique: str) -> None:
    made = await client.create(GROUPS, {**group(unique, cpu="4"), "status": {"used": {"limits.cpu": "9"}}})
    assert "status" not in made
    status: Object = {"used": {"limits.cpu": "1"}, "reservations": ["v1 a/b/c uid=u until=x"], "countedAt": {"a": "1"}}
    told = await client.replace(GROUPS, {**made, "spec": {"hard": {}}, "status": status}, subresource="status")
    assert (told["spec"], told["status"], told["metadata"]["generation"]) == (made["spec"], status, 1)
    assert isinstance(await refusal(client.replace(GROUPS, {**made, "status": {}}, subresource="status")), Conflict)
    same = await client.replace(GROUPS, told, subresource="status")
    assert same["metadata"]["resourceVersion"] == told["metadata"]["resourceVersion"]


async def test_a_full_list_of_reservations_is_stored_and_one_more_is_not(client: KubeClient, unique: str) -> None:
    """A status holds 2,000 entries (docs/reservations.md, "The format")."""
    made = await client.create(GROUPS, group(unique, cpu="4"))
    entries = [f"v1 deployments.apps/team-a/w{n} uid=u{n} until=2026-01-01T00:00:00Z limits.cpu=1" for n in range(2001)]
    full = {**made, "status": {"reservations": entries[:2000]}}
    stored = await client.replace(GROUPS, full, subresource="status")
    assert len(stored["status"]["reservations"]) == 2000
    error = await refusal(client.replace(GROUPS, {**stored, "status": {"reservations": entries}}, subresource="status"))
    assert error.status == 422


async def test_fields_that_nobody_knows_are_dropped(client: KubeClient, unique: str) -> None:
    made = await client.create(GROUPS, {**group(unique), "spec": {"hard": {"pods": "1"}, "hardd": {"pods": "2"}}})
    assert made["spec"] == {"hard": {"pods": "1"}}


SELECTOR = {
    "matchLabels": {"team": "nlp", "example.com/tier": ""},
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default", ""]},
        {"key": "team", "operator": "In", "values": ["nlp"]},
        {"key": "a.b", "operator": "Exists"},
        {"key": "C_d", "operator": "DoesNotExist", "values": []},
    ],
}


@pytest.mark.parametrize("selector", [SELECTOR, {}, {"matchLabels": {}}, {"matchExpressions": []}], ids=str)
async def test_a_namespace_selector_is_stored_as_it_was_written(client: KubeClient, unique: str, selector: Any) -> None:
    made = group(unique)
    made["spec"]["namespaceSelector"] = selector
    assert (await client.create(GROUPS, made))["spec"]["namespaceSelector"] == selector


@pytest.mark.parametrize(
    "selector",
    [
        [],
        {"matchLabels": {"team": True}},
        {"matchLabels": {"team": "-"}},
        {"matchLabels": {"team": "x" * 64}},
        {"matchLabels": {f"k{n}": "" for n in range(33)}},
        {"matchExpressions": [{"key": "team"}]},
        {"matchExpressions": [{"operator": "Exists"}]},
        {"matchExpressions": [{"key": "", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "a b", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "team", "operator": "exists"}]},
        {"matchExpressions": [{"key": "team", "operator": "In"}]},
        {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": []}]},
        {"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["x"]}]},
        {"matchExpressions": [{"key": "team", "operator": "In", "values": ["x y"]}]},
        {"matchExpressions": [{"key": "team", "operator": "In", "values": [f"v{n}" for n in range(65)]}]},
        {"matchExpressions": [{"key": f"k{n}", "operator": "Exists"} for n in range(33)]},
    ],
    ids=lambda selector: str(selector)[:60],
)
async def test_a_bad_namespace_selector_is_refused_by_the_schema_alone(
    client: KubeClient, unique: str, selector: Any
) -> None:
    made = group(unique)
    made["spec"]["namespaceSelector"] = selector
    error = await refusal(client.create(GROUPS, made))
    assert (error.status, error.reason) == (422, "Invalid")


CASH = {
    "period": "weekly",
    "timeZone": "Europe/Berlin",
    "anchor": "2026-01-05T09:00",
    "rollover": {"fraction": "50%", "cap": {"requests.nvidia.com/gpu": "12.5", "limits.cpu": 3}},
    "mode": "safe",
    "maxRunTime": "1d12h",
    "thresholds": [80, 100],
}


@pytest.mark.parametrize(
    "cash", [CASH, {}, {"rollover": {}}, {"mode": "open"}, {"thresholds": []}, {"period": "daily"}], ids=str
)
async def test_how_hours_are_granted_is_stored_as_it_was_written(client: KubeClient, unique: str, cash: Any) -> None:
    made = group(unique)
    made["spec"]["cash"] = cash
    assert (await client.create(GROUPS, made))["spec"]["cash"] == cash


@pytest.mark.parametrize(
    ("cash", "words"),
    [
        ({"period": "hourly"}, "daily"),
        ({"period": ""}, "daily"),
        ({"timeZone": "UTC"}, "need a period"),
        ({"anchor": "2026-01-05"}, "need a period"),
        ({"period": "daily", "anchor": "5.1.2026"}, "anchor"),
        ({"period": "daily", "timeZone": ""}, "timeZone"),
        ({"rollover": {"fraction": "0%"}}, "fraction"),
        ({"rollover": {"fraction": "101%"}}, "fraction"),
        ({"rollover": {"cap": {"limits.cpu": "-1"}}}, "must be a quantity of at least 0"),
        ({"rollover": {"cap": {"limits.cpu": "1" * 33}}}, "cap"),
        ({"mode": "careful"}, "open"),
        ({"maxRunTime": "12h"}, "write mode: safe with it"),
        ({"mode": "open", "maxRunTime": "12h"}, "write mode: safe with it"),
        ({"mode": "safe", "maxRunTime": "12"}, "maxRunTime"),
        ({"mode": "safe", "maxRunTime": ""}, "maxRunTime"),
        ({"thresholds": [0]}, "thresholds"),
        ({"thresholds": [1001]}, "thresholds"),
        ({"thresholds": [80, 80]}, "uplicate"),
        ({"thresholds": list(range(1, 12))}, "thresholds"),
    ],
    ids=str,
)
async def test_what_cannot_be_meant_about_hours_is_refused_by_the_schema_alone(
    client: KubeClient, unique: str, cash: Any, words: str
) -> None:
    made = group(unique)
    made["spec"]["cash"] = cash
    error = await refusal(client.create(GROUPS, made))
    assert (error.status, error.reason) == (422, "Invalid")
    assert words in error.message


@pytest.mark.parametrize("cash", [{"period": "daily"}, CASH], ids=str)
async def test_only_a_root_says_when_its_tree_is_granted_hours(client: KubeClient, unique: str, cash: Any) -> None:
    child = group(unique, "corp")
    child["spec"]["cash"] = cash
    assert "only a root sets cash.period" in (await refusal(client.create(GROUPS, child))).message
    child["spec"]["cash"] = {key: value for key, value in cash.items() if key in ("rollover", "mode", "thresholds")}
    await client.create(GROUPS, child)


async def test_what_admission_has_to_know_of_hours_is_stored_in_the_status(client: KubeClient, unique: str) -> None:
    made = await client.create(GROUPS, group(unique, cpu="4"))
    cash = {
        "periodStart": "2026-11-16T00:00:00.000Z",
        "periodEnd": "2026-11-23T00:00:00.000Z",
        "carried": {"cash/limits.cpu": "1500m"},
        "liens": {"cash/limits.cpu": "12"},
    }
    told = await client.replace(GROUPS, {**made, "status": {"cash": cash}}, subresource="status")
    assert told["status"]["cash"] == cash


async def test_the_children_of_one_group_are_listed_by_their_parent(client: KubeClient, unique: str) -> None:
    for name, parent in (
        (unique, ""),
        (f"{unique}-a", unique),
        (f"{unique}-b", unique),
        (f"{unique}-c", f"{unique}-a"),
    ):
        await client.create(GROUPS, group(name, parent))
    found, _ = await client.list(GROUPS, field_selector=f"{PARENT_FIELD}={unique}")
    assert [child["metadata"]["name"] for child in found] == [f"{unique}-a", f"{unique}-b"]
    store = GroupStore(client)
    assert {child.name for child in await store.children(unique)} == {f"{unique}-a", f"{unique}-b"}
    assert await store.children(f"{unique}-b") == []


async def test_a_field_that_the_definition_does_not_name_selects_nothing_but_an_error(client: KubeClient) -> None:
    error = await refusal(client.list(GROUPS, field_selector="spec.hard=x"))
    assert error.status == 400
