"""How an API server asks a validating webhook: what a review holds, when it asks again, what it makes of answers."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from typing import Any

import pytest

from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import Invalid, KubeClient
from bizrq.settings import load, settings
from bizrq.workloads.labels import LABEL
from tests.contract.conftest import Hook, gathered, rule, webhook
from tests.support.cluster import eventually, refusal
from tests.support.objects import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    OF_KIND,
    SELECTOR,
    Object,
    deployment,
    tfjob,
)
from tests.support.objects import namespace as namespace_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
ON_DEPLOYMENTS = rule("apps", "deployments", "CREATE", "UPDATE", "DELETE")
LABELLED = {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]}


def of(hook: Hook, name: str) -> list[Object]:
    """Reviews of this object by people, not by controllers."""
    reviews = [review for review in hook.reviews if review.get("name", "") == name]
    return [review for review in reviews if not review["userInfo"]["username"].startswith("system:serviceaccount:")]


async def test_a_create_carries_uid_name_and_namespace_and_asks_again_with_another_review_uid(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    await hook.register(webhook("d", ON_DEPLOYMENTS, objectSelector=LABELLED))
    obj = deployment("x", "g", 0, namespace=namespace)
    del obj["metadata"]["name"]
    obj["metadata"]["generateName"] = "made-"
    made = await client.create(DEPLOYMENTS, obj)
    [review] = of(hook, made["metadata"]["name"])
    assert review["operation"] == "CREATE"
    assert review["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert review["object"]["metadata"]["name"] == review["name"] == made["metadata"]["name"]
    assert (review["namespace"], review.get("oldObject"), review["dryRun"]) == (namespace, None, False)
    assert review["kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert review["resource"] == {"group": "apps", "version": "v1", "resource": "deployments"}
    assert review["object"]["spec"]["strategy"]["type"] == "RollingUpdate", "defaulted by then"
    assert review["path"].endswith("?timeout=5s")


async def test_an_update_carries_the_stored_version_and_a_delete_the_stored_object(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    await hook.register(webhook("d", rule("", "configmaps", "UPDATE", "DELETE"), objectSelector=LABELLED))
    made = await client.create(CONFIG_MAPS, _config("c", namespace))
    moved = await client.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}}, namespace=namespace)
    await client.delete(CONFIG_MAPS, "c", namespace)
    update, *_, delete = of(hook, "c")  # asked again where the cache was behind the store
    version = made["metadata"]["resourceVersion"]
    assert update["oldObject"]["metadata"]["resourceVersion"] == version
    assert update["object"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert (delete["operation"], delete.get("object")) == ("DELETE", None)
    assert delete["oldObject"]["metadata"]["resourceVersion"] == moved["metadata"]["resourceVersion"]


async def test_a_deletion_of_all_is_reviewed_object_by_object_and_none_is_named(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    await hook.register(webhook("d", rule("", "configmaps", "DELETE"), objectSelector=LABELLED))
    for name in ("c", "d"):
        await client.create(CONFIG_MAPS, _config(name, namespace))
    await client.request("DELETE", CONFIG_MAPS.path(namespace), body=b"{}")
    reviews = of(hook, "")
    assert {review["oldObject"]["metadata"]["name"] for review in reviews} == {"c", "d"}
    assert {(review["operation"], review["namespace"], review["object"]) for review in reviews} == {
        ("DELETE", namespace, None)
    }


async def test_a_patch_that_meets_a_conflict_is_asked_about_again(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    """One user request, several reviews, each on the version that is stored by then."""
    await hook.register(webhook("d", rule("", "configmaps", "UPDATE"), objectSelector=LABELLED))
    await client.create(CONFIG_MAPS, _config("c", namespace))

    all_came = asyncio.Event()

    async def together(_: Object) -> Object:
        if len(of(hook, "c")) >= 5:
            all_came.set()
        await all_came.wait()
        return {"allowed": True}

    hook.answer = together
    answers = await gathered(5, lambda n: client.patch(CONFIG_MAPS, "c", {"data": {f"k{n}": "1"}}, namespace=namespace))
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    reviews = of(hook, "c")
    assert len(reviews) > 5
    assert len({review["uid"] for review in reviews}) == len(reviews)
    found = await client.get(CONFIG_MAPS, "c", namespace)
    assert set(found["data"]) == {"a", *(f"k{n}" for n in range(5))}


async def test_a_deletion_of_what_moved_meanwhile_is_asked_about_again(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    """Why a parent's deletion and a child's creation need no lock (docs/design.md, "Deleting a parent")."""
    await hook.register(webhook("d", rule("", "configmaps", "DELETE"), objectSelector=LABELLED))
    await client.create(CONFIG_MAPS, _config("c", namespace))

    async def moves_it(review: Object) -> Object:
        if len(of(hook, "c")) == 1:
            await client.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}}, namespace=namespace)
        moved = review["oldObject"]["data"]["a"] == "2"
        return {"allowed": not moved, "status": {"code": 403, "message": "it moved"}}

    hook.answer = moves_it
    assert "it moved" in (await refusal(client.delete(CONFIG_MAPS, "c", namespace))).message
    assert [review["oldObject"]["data"]["a"] for review in of(hook, "c")] == ["1", "2"]


async def test_a_scale_review_has_no_labels_and_no_replicas_for_nothing(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    await hook.register(webhook("s", rule("apps", "deployments/scale", "UPDATE")))
    made = await client.create(DEPLOYMENTS, deployment("d", "g", 1, namespace=namespace))
    await client.patch(DEPLOYMENTS, "d", {"spec": {"replicas": 0}}, namespace=namespace, subresource="scale")
    *_, review = of(hook, "d")  # asked again where the Deployment's controller writes meanwhile
    assert (review["subResource"], review["kind"]["kind"]) == ("scale", "Scale")
    assert review["resource"] == {"group": "apps", "version": "v1", "resource": "deployments"}
    assert review["object"]["spec"] == {}
    assert review["oldObject"]["spec"] == {"replicas": 1}
    assert "labels" not in review["object"]["metadata"]
    assert review["oldObject"]["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(review["oldObject"]["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])


async def test_a_dry_run_says_so(hook: Hook, client: KubeClient, namespace: str) -> None:
    await hook.register(webhook("d", ON_DEPLOYMENTS, objectSelector=LABELLED))
    await client.create(DEPLOYMENTS, deployment("d", "g", 0, namespace=namespace), dry_run=True)
    [review] = of(hook, "d")
    assert review["dryRun"] is True


async def test_a_selector_matches_what_had_the_label_or_has_it(hook: Hook, client: KubeClient, namespace: str) -> None:
    """Removing the label is seen, and adding it; what never had it is not."""
    await hook.register(webhook("d", rule("", "configmaps", "CREATE", "UPDATE", "DELETE"), objectSelector=LABELLED))
    plain = _config("c", namespace)
    plain["metadata"]["labels"] = {}
    await client.create(CONFIG_MAPS, plain)
    await client.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}}, namespace=namespace)
    assert of(hook, "c") == []
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"labels": {LABEL: "g"}}}, namespace=namespace)
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"labels": {LABEL: None}}}, namespace=namespace)
    # A server that reads from a cache behind its store asks again once it knows better.
    had_and_has = [
        tuple(LABEL in review[side]["metadata"].get("labels", {}) for side in ("oldObject", "object"))
        for review in of(hook, "c")
    ]
    assert [each for each, _ in groupby(had_and_has)] == [(False, True), (True, False)]
    assert {review["operation"] for review in of(hook, "c")} == {"UPDATE"}


async def test_a_refusal_reaches_the_user_with_its_code_reason_and_words(
    hook: Hook, client: KubeClient, namespace: str
) -> None:
    await hook.register(webhook("d", rule("", "configmaps", "CREATE"), objectSelector=LABELLED))
    for code, reason in ((403, "Forbidden"), (422, "Invalid"), (429, "TooManyRequests"), (400, "BadRequest")):
        details = {"retryAfterSeconds": 1} if code == 429 else {}

        async def no(_: Object, code: int = code, reason: str = reason, details: Any = details) -> Object:
            status = {"code": code, "reason": reason, "message": "exceeded quota: g", "details": details}
            return {"allowed": False, "status": status}

        hook.answer = no
        error = await refusal(client.create(CONFIG_MAPS, _config("c", namespace)))
        assert (error.status, error.reason) == (code, reason)
        assert error.message == 'admission webhook "d.contract.quota.biz.group" denied the request: exceeded quota: g'
        if code == 429:
            assert error.retry_after == 1


async def test_warnings_of_a_yes_reach_the_user(hook: Hook, client: KubeClient, namespace: str) -> None:
    await hook.register(webhook("d", rule("", "configmaps", "CREATE"), objectSelector=LABELLED))

    async def warns(_: Object) -> Object:
        return {"allowed": True, "warnings": ["over its quota now"]}

    hook.answer = warns
    path = CONFIG_MAPS.path(namespace)
    body = json.dumps(_config("c", namespace)).encode()
    async with client._answer("POST", path, body, None, "application/json") as response:
        assert response.headers.getall("Warning") == ['299 - "over its quota now"']


async def test_no_answer_in_time_or_none_at_all_is_no(hook: Hook, client: KubeClient, namespace: str) -> None:
    """failurePolicy Fail."""
    selected = {"objectSelector": LABELLED, "timeoutSeconds": 1}
    await hook.register(webhook("d", rule("", "configmaps", "CREATE"), **selected))

    async def never(_: Object) -> Object:
        await asyncio.Event().wait()
        return {"allowed": True}

    hook.answer = never
    error = await refusal(client.create(CONFIG_MAPS, _config("c", namespace)))
    assert error.status == 500
    assert 'failed calling webhook "d.contract.quota.biz.group"' in error.message
    assert "context deadline exceeded" in error.message
    dead = {"clientConfig": {"url": "https://127.0.0.1:1/review", "caBundle": hook.bundle}}
    await hook.register(webhook("d", rule("", "configmaps", "CREATE"), objectSelector=LABELLED, **dead))
    error = await refusal(client.create(CONFIG_MAPS, _config("c", namespace)))
    assert error.status == 500
    assert "connection refused" in error.message


# Our own registration, asked by this webhook instead of ours.


@pytest.fixture
def ours(hook: Hook) -> list[Object]:
    """The webhooks of our registration for workloads and scale."""
    made = registration.configuration(
        load(None),
        lambda path: {"url": hook.url + path, "caBundle": hook.bundle},
        namespace="bizrq-system",
    )
    return [each for each in made["webhooks"] if not each["name"].startswith("groups.")]


@pytest.mark.parametrize(
    ("kind", "patch", "skipped"),
    [
        ("Deployment", {"metadata": {"annotations": {"a": "b"}}}, True),
        ("Deployment", {"spec": {"replicas": 0}}, True),
        ("Deployment", {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}, False),
        ("Deployment", {"spec": {"paused": True}}, False),
        ("Deployment", {"metadata": {"labels": {LABEL: None}}}, False),
        ("Deployment", {"metadata": {"labels": {LABEL: "g2"}}}, False),
        ("Deployment", {"metadata": {"labels": {LABEL + "/cpu-type": "A4"}}}, False),
        ("Deployment", {"metadata": {"labels": {"other": "x"}}}, True),
        ("TFJob", {"spec": {"runPolicy": {"suspend": True}}}, False),
        ("TFJob", {"metadata": {"annotations": {"a": "b"}}}, True),
    ],
    ids=str,
)
async def test_our_match_conditions_keep_away_what_cannot_change_a_charge_and_nothing_else(
    hook: Hook, client: KubeClient, ours: list[Object], namespace: str, kind: str, patch: Object, skipped: bool
) -> None:
    """spec, our labels and ownerReferences; as transitions.yaml's cel_skip has it."""
    make = {"Deployment": deployment, "TFJob": tfjob}[kind]
    await client.create(OF_KIND[kind], make("w", "g", 0, namespace=namespace))
    await hook.register(*ours)
    await client.patch(OF_KIND[kind], "w", patch, namespace=namespace)
    assert bool(of(hook, "w")) is not skipped


async def test_our_match_conditions_see_a_new_owner_and_a_new_label(
    hook: Hook, client: KubeClient, ours: list[Object], namespace: str
) -> None:
    made = await client.create(DEPLOYMENTS, deployment("w", None, 0, namespace=namespace))
    await hook.register(*ours)
    await client.patch(DEPLOYMENTS, "w", {"metadata": {"labels": {LABEL: "g"}}}, namespace=namespace)
    assert of(hook, "w")
    hook.reviews.clear()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": made["metadata"]["uid"], "controller": False}
    await client.patch(DEPLOYMENTS, "w", {"metadata": {"ownerReferences": [owner]}}, namespace=namespace)
    assert of(hook, "w")


async def test_a_namespace_is_sent_where_it_comes_under_management_or_leaves_it(
    hook: Hook, client: KubeClient, unique: str
) -> None:
    """A selector of the webhook would see the new labels alone."""
    given = settings({"managedNamespaces": SELECTOR})
    made = registration.configuration(
        given, lambda path: {"url": hook.url + path, "caBundle": hook.bundle}, namespace="bizrq-system"
    )
    name = f"sent-{unique}"
    await client.create(NAMESPACES, namespace_of(name, quota="on", stage="a", owner="x"))
    await hook.register(*(each for each in made["webhooks"] if each["name"].startswith("namespaces.")))
    for labels, is_sent in (
        ({"other": "x"}, False),
        ({"stage": "b"}, True),
        ({"owner": None}, False),
        ({"stage": "a", "owner": "y"}, True),
        ({"example.com/old": ""}, True),
        ({LABEL: "nlp"}, False),
        ({"example.com/old": None}, True),
        ({LABEL: None}, True),
    ):
        await client.patch(NAMESPACES, name, {"metadata": {"labels": labels}})
        assert bool(of(hook, name)) is is_sent, labels
        hook.reviews.clear()
    await hook.unregister()
    await client.delete(NAMESPACES, name)


@pytest.mark.parametrize(
    "expression",
    ["other == 1", "object.metadata.nonsense()", "nonsense(1)", "object.(", "has(object)", "1 == 1.0", "'a' + 1 == 1"],
)
async def test_an_expression_with_an_unknown_name_or_two_types_is_refused(expression: str, client: KubeClient) -> None:
    condition = {"name": "c", "expression": expression}
    hook = {
        "name": "contract.quota.biz.group",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [rule("", "configmaps", "CREATE")],
        "matchConditions": [condition],
    }
    of_kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    configuration = {**of_kind, "metadata": {"name": "never-stored"}, "webhooks": [hook]}
    with pytest.raises(Invalid, match="compilation failed"):
        await client.create(REGISTRATIONS, configuration, dry_run=True)


@pytest.mark.parametrize(
    "expression",
    [
        "object.data.all(k, v, k != v)",
        "object.?nothing.?deeper.orValue('none') == 'none' && object[?'kind'].hasValue()",
        "object.data.exists(k, k == 'a') && !('x' in object.data) && object.data.filter(k, k == 'a').size() == 1",
        "quantity('1500m').isGreaterThan(quantity('1')) && quantity('2').compareTo(quantity('2000m')) == 0",
        "sign(quantity('-1')) == -1 && isQuantity('1Gi') && !isQuantity('abc') && quantity('1') == quantity('1000m')",
        "'a,b,c'.split(',').size() == 3 && 'Hello'.lowerAscii() == 'hello' && 'abc123'.find('[0-9]+') == '123'",
        "object.nothing == 1 || true",
        "dyn(1) == 1.0 && dyn(1) != '1' && 7 / 2 - 7 % 4 == 0",
        "type(object.data.a) == string && object.data.a.matches('^[0-9]$')",
    ],
)
async def test_an_expression_that_is_true_here_is_true_there(
    expression: str, hook: Hook, client: KubeClient, namespace: str
) -> None:
    condition = {"name": "c", "expression": expression}
    await hook.register(webhook("d", rule("", "configmaps", "CREATE"), matchConditions=[condition]), probe=False)

    async def asked() -> bool:
        await client.create(CONFIG_MAPS, _config("c", namespace), dry_run=True)
        return bool(of(hook, "c"))

    await eventually(asked, 20, "the webhook is asked")


@pytest.mark.parametrize("kind", ["Deployment", "Rollout"])
async def test_of_scales_only_those_up_are_asked_about(
    hook: Hook, client: KubeClient, ours: list[Object], namespace: str, kind: str
) -> None:
    obj = {**deployment("w", "g", 2, namespace=namespace)}
    if kind == "Rollout":
        obj |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    await client.create(OF_KIND[kind], obj)
    await hook.register(*[each for each in ours if each["name"].startswith("scale.")])
    for replicas in (1, 0, 0, 3, 2):
        await client.patch(
            OF_KIND[kind], "w", {"spec": {"replicas": replicas}}, namespace=namespace, subresource="scale"
        )

    def count(scale: Object) -> int:
        return scale.get("spec", {}).get("replicas", 0)

    # An API server may first try on a stale object, and then a step down looks like one up: 0 to 2 instead of 3 to 2.
    steps = [(count(asked["oldObject"]), count(asked["object"])) for asked in of(hook, "w")]
    assert (0, 3) in steps
    assert all(old < new for old, new in steps), steps


async def test_a_status_write_is_never_asked_about(
    hook: Hook, client: KubeClient, ours: list[Object], namespace: str
) -> None:
    await client.create(DEPLOYMENTS, deployment("w", "g", 0, namespace=namespace))
    await hook.register(*ours)
    told = {"status": {"collisionCount": 7}}
    found = await client.patch(DEPLOYMENTS, "w", told, namespace=namespace, subresource="status")
    assert found["status"]["collisionCount"] == 7
    assert of(hook, "w") == []


def _config(name: str, namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: "g"}},
        "data": {"a": "1"},
    }
