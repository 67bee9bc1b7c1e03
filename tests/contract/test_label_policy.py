"""Labels that begin like ours and are not: what the API server says of them by itself (webhooks.label_policy)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq.cli.manifests_of_bizrq import resource_of
from bizrq.kube.client import AlreadyExists, ApiError, KubeClient, NotFound
from bizrq.settings import settings
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import DEPLOYMENTS, NAMESPACES, TFJOBS, Object, deployment, template, tfjob
from webhooks import label_policy

pytestmark = pytest.mark.asyncio(loop_scope="module")

TYPO, MODEL_TYPO = "biz.group.resource.qouta", "biz.group.resource.quota/cpu-typ"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def denying(cluster: Cluster, client: KubeClient) -> AsyncIterator[KubeClient]:
    """A cluster whose policy refuses unknown keys."""
    del cluster
    await has_kinds(client, crds.stand_ins())
    objects = label_policy.objects(settings({"unknownLabels": "deny"}), "bizrq-system")
    for obj in objects:
        with contextlib.suppress(AlreadyExists):
            await client.create(resource_of(obj), obj)

    async def applies() -> bool:
        return "reads no label" in await said(client, labelled("probe", {TYPO: "x"}))

    await eventually(applies, 60, "the policy applies")
    yield client
    for obj in objects:
        with contextlib.suppress(NotFound):
            await client.delete(resource_of(obj), obj["metadata"]["name"])


def labelled(name: str, own: dict[str, str], inner: dict[str, str] | None = None) -> Object:
    made = deployment(name, None, 1)
    made["metadata"]["labels"] = own
    made["spec"]["template"]["metadata"]["labels"] |= inner or {}
    return made


def cron_job(inner: dict[str, str]) -> Object:
    pods = {"metadata": {"labels": inner}, "spec": {**template("1")["spec"], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "default"},
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": pods}}},
    }


async def said(client: KubeClient, obj: Object) -> str:
    """Return the refusal of a create, "" where it is allowed. Nothing is stored."""
    try:
        await client.create(resource_by_kind(obj), obj, dry_run=True)
    except ApiError as error:
        return error.message
    return ""


def resource_by_kind(obj: Object) -> Any:
    from bizrq.builtin import builtin_registry
    from bizrq.store.reference_resolver import resources_of

    if obj["kind"] == "Namespace":
        return NAMESPACES
    adapter = builtin_registry().of(obj)
    assert adapter is not None
    return resources_of(adapter)[0]


@pytest.mark.parametrize(
    ("obj", "key"),
    [
        (labelled("a", {TYPO: "nlp"}), TYPO),
        (labelled("a", {"biz.group.resource.quota": "nlp", MODEL_TYPO: "A4"}), MODEL_TYPO),
        (labelled("a", {}, {TYPO: "nlp"}), TYPO),
        (cron_job({TYPO: "nlp"}), TYPO),
        (
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "n", "labels": {f"{TYPO}/required": "true"}},
            },
            f"{TYPO}/required",
        ),
    ],
    ids=["own", "model", "template", "cronjob", "namespace"],
)
async def test_an_unknown_key_is_named_wherever_it_is(denying: KubeClient, obj: Object, key: str) -> None:
    text = await said(denying, obj)
    meant = "one of biz.group.resource.quota/cpu-type," if "/" in key else "biz.group.resource.quota?"
    assert f"bizrq reads no label {key}, so it has no effect; did you mean {meant}" in text


async def test_the_template_of_a_replica_type_is_read_too(denying: KubeClient) -> None:
    job = tfjob("train", "nlp", 1)
    [replica] = job["spec"]["tfReplicaSpecs"].values()
    replica["template"].setdefault("metadata", {})["labels"] = {TYPO: "nlp"}
    with pytest.raises(ApiError, match="reads no label"):
        await denying.create(TFJOBS, job, dry_run=True)


async def test_every_known_key_and_any_foreign_one_pass(denying: KubeClient) -> None:
    own = dict.fromkeys(label_policy.KNOWN, "A4")
    assert await said(denying, labelled("known", own, {**own, "app.kubernetes.io/name": "x", "biz.group": "y"})) == ""


async def test_what_is_stored_may_change_and_what_others_make_is_theirs(denying: KubeClient, unique: str) -> None:
    """Nothing that runs gets stuck: only a change of labels is looked at, and no object that has a controller."""
    metadata = {"uid": "0-0", "controller": True, "apiVersion": "batch/v1", "kind": "Job", "name": "gone"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": unique, "namespace": "default", "labels": {TYPO: "x"}, "ownerReferences": [metadata]},
        "spec": template("1")["spec"],
    }
    assert await said(denying, pod) == ""
    stored = await denying.create(DEPLOYMENTS, labelled(unique, {}))
    assert stored["metadata"]["name"] == unique
    with pytest.raises(ApiError, match="reads no label"):
        await denying.patch(DEPLOYMENTS, unique, {"metadata": {"labels": {TYPO: "x"}}}, namespace="default")
    await denying.patch(DEPLOYMENTS, unique, {"spec": {"paused": True}}, namespace="default")
    await denying.delete(DEPLOYMENTS, unique, "default")


async def test_the_configuration_decides_between_a_warning_a_refusal_and_nothing() -> None:
    actions = {
        word: [obj["spec"].get("validationActions") for obj in label_policy.objects(settings(document), "bizrq-system")]
        for word, document in (
            ("default", {}),
            ("deny", {"unknownLabels": "deny"}),
            ("ignore", {"unknownLabels": "ignore"}),
        )
    }
    assert actions == {"default": [None, ["Warn"]], "deny": [None, ["Deny"]], "ignore": []}
