"""Namespaces that are managed and others: what is charged there, and who may change which of the two one is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, REQUIRED
from tests.support.objects import DEPLOYMENTS, NAMESPACES, OF_KIND, Object, claim, deployment
from tests.support.proxy import Proxy
from tests.webhooks.charging.test_authorization import BOB, may
from tests.webhooks.conftest import Api, Hooks, message, serving
from tests.webhooks.handlers.test_namespaces import labelled, team

CHARGED = {"quota": "on"}
SELECTOR = {"matchLabels": CHARGED, "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}


@pytest.fixture
async def selecting(through: KubeClient) -> AsyncIterator[Hooks]:
    """Webhooks that manage the namespaces of SELECTOR, all but `spared`."""
    async with serving(through, managedNamespaces=SELECTOR, exemptNamespaces=["spared"]) as hooks:
        yield hooks


async def review(hooks: Hooks, new: Object, old: Object | None, user: Any = BOB) -> Object:
    operation = "UPDATE" if old else "CREATE"
    return await hooks.review("namespaces", operation, new, old, resource=NAMESPACES, user=user)


async def changing(api: Api, hooks: Hooks, new: Object, old: Object) -> str:
    """The first group on which bob lacks the right `manage` for this change; "" where he lacks none."""
    response = await review(hooks, new, old)
    if response["allowed"]:
        return ""
    assert response["status"]["code"] == 403
    head, _, group = message(response).partition(": ")[0].rpartition(" ")
    assert head == f"bob may not change what namespace {new['metadata']['name']} charges quota"
    return group


@pytest.mark.parametrize(
    ("name", "labels", "is_managed"),
    [
        ("team", {}, False),
        ("team", {"quota": "off"}, False),
        ("team", {**CHARGED, "old": ""}, False),
        ("spared", CHARGED, False),
        ("team", CHARGED, True),
        ("team", {**CHARGED, "other": "x"}, True),
    ],
)
async def test_only_what_is_in_a_managed_namespace_is_charged(
    api: Api, selecting: Hooks, name: str, labels: dict[str, str], is_managed: bool
) -> None:
    await api.group("nlp", cpu="1")
    await team(api, selecting, name, **labels, **{REQUIRED: "true"})
    response = await selecting.create(deployment("web", "nlp", 2, namespace=name))
    assert response["allowed"] is not is_managed
    assert bool(response.get("warnings")) is not is_managed
    unlabelled = await selecting.create(deployment("other", None, 2, namespace=name))
    assert unlabelled["allowed"] is not is_managed
    assert not unlabelled.get("warnings")


async def test_a_default_of_an_unmanaged_namespace_charges_nobody(api: Api, selecting: Hooks) -> None:
    await api.group("nlp", cpu="1")
    await team(api, selecting, **{LABEL: "nlp"})
    assert (await selecting.create(deployment("web", None, 2, namespace="team")))["allowed"]
    assert await api.entries("nlp") == []


async def test_a_namespace_that_was_labelled_a_moment_ago_is_read_before_anybody_is_let_in_for_nothing(
    api: Api, selecting: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="1")
    await team(api, selecting)
    proxy.freeze(NAMESPACES.path())
    await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": CHARGED}})
    assert "exceeded quota: nlp" in message(await selecting.create(deployment("web", "nlp", 2, namespace="team")))


async def test_to_take_a_namespace_out_needs_manage_on_each_group_that_pays_there(api: Api, selecting: Hooks) -> None:
    """By default, by label, by claim, and for what was admitted a moment ago; groups that do not exist pay nothing."""
    old = await team(api, selecting, **CHARGED, **{LABEL: "a"})
    for name in "abcdef":
        await api.group(name, cpu="9")
    for name, group in (("web", "b"), ("lost", "nobody")):
        await api.client.create(DEPLOYMENTS, deployment(name, group, 1, namespace="team"))
    await api.client.create(DEPLOYMENTS, deployment("web", "f", 1))
    made = claim("s", 1, namespace="team")
    made["metadata"]["labels"] = {LABEL: "c"}
    await api.client.create(OF_KIND["ResourceClaim"], made)
    assert (await selecting.create(deployment("new", "d", 1, namespace="team")))["allowed"]
    for change in ({"quota": None}, {"quota": "off"}, {"old": ""}):
        new = labelled(old, **change)
        assert await changing(api, selecting, new, old) == "a"
    for right, lacking in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "")):
        await may(api, "bob", "manage", right)
        assert await changing(api, selecting, labelled(old, quota=None), old) == lacking


async def test_to_bring_a_namespace_in_needs_manage_on_the_groups_that_pay_from_then_on(
    api: Api, selecting: Hooks
) -> None:
    """They have admitted nothing there."""
    old = await team(api, selecting, **{LABEL: "a"})
    for name in "ab":
        await api.group(name, cpu="1")
    await api.client.create(DEPLOYMENTS, deployment("web", "b", 5, namespace="team"))
    new = labelled(old, **CHARGED)
    assert await changing(api, selecting, new, old) == "a"
    await may(api, "bob", "manage", "a", "b")
    assert await changing(api, selecting, new, old) == ""


async def test_other_changes_of_labels_need_no_right(api: Api, selecting: Hooks) -> None:
    await api.group("nlp", cpu="9")
    managed = await team(api, selecting, **CHARGED, **{LABEL: "nlp"})
    plain = await team(api, selecting, "plain")
    for old, change in ((managed, {"x": "y"}), (plain, {"x": "y"}), (plain, {LABEL: "nlp"})):
        assert await changing(api, selecting, labelled(old, **change), old) == ""


async def test_another_default_group_needs_no_manage(api: Api, hooks: Hooks) -> None:
    given = await team(api, hooks, **{LABEL: "nlp"})
    for name in ("nlp", "vision"):
        await api.group(name, cpu="9")
    assert await changing(api, hooks, labelled(given, **{LABEL: None}), given) == ""
    assert await changing(api, hooks, labelled(given, **{LABEL: "vision"}), given) == ""


async def test_a_group_may_be_deleted_whatever_names_it_in_namespaces_that_are_not_managed(
    api: Api, selecting: Hooks
) -> None:
    await api.group("nlp", cpu="9")
    group = await api.client.get(GROUPS, "nlp")
    for name in ("team", "spared"):
        await team(api, selecting, name, **{LABEL: "nlp"})
        for workload, label in (("web", "nlp"), ("plain", None)):
            await api.client.create(DEPLOYMENTS, deployment(workload, label, 1, namespace=name))
        made = claim("s", 1, namespace=name)
        made["metadata"]["labels"] = {LABEL: "nlp"}
        await api.client.create(OF_KIND["ResourceClaim"], made)
    assert (await selecting.delete(group))["allowed"]
    stored = await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": CHARGED}})
    await selecting.webhooks.resolver.informers[-1].catch_up(int(stored["metadata"]["resourceVersion"]), 5)
    refused = message(await selecting.delete(group))
    assert "team/" in refused
    assert "spared" not in refused
