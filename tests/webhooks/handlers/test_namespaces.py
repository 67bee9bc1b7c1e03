"""Namespaces that give a default group or require one, and what may change about that."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.workloads.labels import LABEL, REQUIRED
from tests.support.objects import DEPLOYMENTS, NAMESPACES, OF_KIND, TFJOBS, Object, deployment, namespace, tfjob
from tests.support.proxy import Proxy
from tests.webhooks.charging.test_owner_trust import COLLECTOR, OPERATOR, child, owned_by, released
from tests.webhooks.conftest import Api, Hooks, changed, message, stored


async def team(api: Api, hooks: Hooks, name: str = "team", **labels: str) -> Object:
    """A namespace that the webhooks know."""
    made = await api.client.create(NAMESPACES, namespace(name, **labels))
    await hooks.webhooks.resolver.informers[-1].catch_up(int(made["metadata"]["resourceVersion"]), 5)
    return made


def labelled(obj: Object, **labels: str | None) -> Object:
    kept = {**obj["metadata"].get("labels", {}), **labels}
    return changed(obj, lambda o: o["metadata"].update(labels={k: v for k, v in kept.items() if v is not None}))


async def review(hooks: Hooks, new: Object, old: Object | None = None) -> Object:
    return await hooks.review("namespaces", "UPDATE" if old else "CREATE", new, old, resource=NAMESPACES)


# The default.


async def test_scaling_a_workload_without_a_label_is_charged_to_the_default(api: Api, hooks: Hooks) -> None:
    await team(api, hooks, **{LABEL: "nlp"})
    await api.group("nlp", cpu="4", used={"cpu": "1"})
    parent = await api.client.create(DEPLOYMENTS, deployment("web", None, 1, namespace="team"))
    assert message(await scaled(hooks, parent, 6)) == (
        "exceeded quota: nlp, requested: limits.cpu=5, used: limits.cpu=1, limited: limits.cpu=4; "
        "left: limits.cpu=3; fits: 3 more replicas; run: kubectl bizrq explain deployment/web -n team"
    )
    assert (await scaled(hooks, parent, 4))["allowed"]


async def test_scaling_a_child_of_a_charged_owner_costs_what_the_owner_does_not_cover(api: Api, hooks: Hooks) -> None:
    """Its owner undoes it, but by then the pods are there."""
    await api.group("nlp", cpu="3", used={"cpu": "3"})
    owner = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 3))
    below = deployment("rs", "nlp", 1)
    metadata = {**below["metadata"], "labels": {"app": "x"}, "ownerReferences": [owned_by(owner)]}
    below = await api.client.create(OF_KIND["ReplicaSet"], {**below, "kind": "ReplicaSet", "metadata": metadata})
    assert (await scaled(hooks, below, 3))["allowed"]
    assert "exceeded quota: nlp" in message(await scaled(hooks, below, 9))


async def test_a_default_that_changed_a_moment_ago_is_read_before_anybody_is_refused(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    """The watch of namespaces is behind what is stored."""
    await team(api, hooks, **{LABEL: "nlp"})
    await api.group("nlp", cpu="1", used={"cpu": "1"})
    await api.group("vision", cpu="4")
    proxy.freeze(NAMESPACES.path())
    await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": {LABEL: "vision"}}})
    assert (await hooks.create(deployment("web", None, 2, namespace="team")))["allowed"]
    assert [str(e.slot) for e in await api.entries("vision")] == ["deployments.apps/team/web"]
    assert await api.entries("nlp") == []


async def test_a_default_that_is_new_is_read_before_anybody_is_let_in_for_nothing(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="1", used={"cpu": "1"})
    proxy.freeze(NAMESPACES.path())
    await api.client.create(NAMESPACES, namespace("team", **{LABEL: "nlp"}))
    assert "exceeded quota: nlp" in message(await hooks.create(deployment("web", None, 2, namespace="team")))


async def test_a_default_does_not_change_under_the_workloads_that_it_pays_for(api: Api, hooks: Hooks) -> None:
    old = await team(api, hooks, **{LABEL: "nlp"})
    await api.group("nlp", cpu="9")
    await api.group("vision", cpu="9")
    for name in ("a", "b", "c"):
        await api.client.create(DEPLOYMENTS, deployment(name, None, 1, namespace="team"))
    for group in ("vision", None):
        assert message(await review(hooks, labelled(old, **{LABEL: group}), old)) == (
            "the label biz.group.resource.quota of namespace team cannot change while workloads without a label are "
            "charged to nlp by it: deployments.apps/team/a, deployments.apps/team/b; label or delete them first"
        )
    assert (await review(hooks, labelled(old, other="x"), old))["allowed"]


async def test_a_default_is_not_set_over_workloads_that_were_not_admitted(api: Api, hooks: Hooks) -> None:
    old = await team(api, hooks)
    await api.group("nlp", cpu="9")
    await api.client.create(DEPLOYMENTS, deployment("web", None, 1, namespace="team"))
    assert "would be charged to nlp without having been admitted: deployments.apps/team/web" in message(
        await review(hooks, labelled(old, **{LABEL: "nlp"}), old)
    )


async def test_a_default_does_not_change_under_what_was_promised_a_moment_ago(api: Api, hooks: Hooks) -> None:
    """The object is not stored yet; its reservation is."""
    old = await team(api, hooks, **{LABEL: "nlp"})
    await api.group("nlp", cpu="9")
    assert (await hooks.create(deployment("web", None, 1, namespace="team")))["allowed"]
    refused = await review(hooks, labelled(old, **{LABEL: None}), old)
    assert "deployments.apps/team/web (admitted a moment ago)" in message(refused)


async def test_labelled_and_owned_workloads_are_not_in_the_way(api: Api, hooks: Hooks) -> None:
    old = await team(api, hooks)
    await api.group("nlp", cpu="9")
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1, namespace="team"))
    pod = changed(child(owner, "w0", None), lambda o: o["metadata"].update(namespace="team"))
    await api.client.create(OF_KIND["Pod"], pod)
    assert (await review(hooks, labelled(old, **{LABEL: "nlp"}), old))["allowed"]


async def test_a_default_that_does_not_exist_is_warned_of(api: Api, hooks: Hooks) -> None:
    response = await review(hooks, namespace("team", **{LABEL: "nobody"}))
    assert response["allowed"]
    [warning] = response["warnings"]
    assert warning == "quota nobody does not exist: until it does, workloads without a label are refused here"
    await api.group("nlp", cpu="9")
    assert "warnings" not in await review(hooks, namespace("team", **{LABEL: "nlp"}))


# A group is required.


async def test_where_a_group_is_required_a_workload_without_one_is_refused(api: Api, hooks: Hooks) -> None:
    await team(api, hooks, **{REQUIRED: "true"})
    await api.group("nlp", cpu="9")
    plain = deployment("web", None, 1, namespace="team")
    response = await hooks.create(plain)
    assert message(response) == (
        "namespace team requires a group: label Deployment team/web biz.group.resource.quota "
        "with the group that pays for it"
    )
    assert response["status"]["code"] == 403
    charged = stored(deployment("web", "nlp", 1, namespace="team"))
    assert "namespace team requires a group" in message(await hooks.update(charged, labelled(charged, **{LABEL: None})))
    assert (await hooks.create(deployment("web", "nlp", 1, namespace="team")))["allowed"]


@pytest.mark.parametrize("value", ["false", "yes", ""])
async def test_only_true_requires_it(api: Api, hooks: Hooks, value: str) -> None:
    await team(api, hooks, **{REQUIRED: value})
    assert (await hooks.create(deployment("web", None, 1, namespace="team")))["allowed"]


async def test_a_default_is_the_group_that_is_required(api: Api, hooks: Hooks) -> None:
    await team(api, hooks, **{REQUIRED: "true", LABEL: "nlp"})
    await api.group("nlp", cpu="9")
    assert (await hooks.create(deployment("web", None, 1, namespace="team")))["allowed"]
    assert len(await api.entries("nlp")) == 1


async def test_a_workload_from_before_goes_on_but_does_not_grow(api: Api, hooks: Hooks) -> None:
    await team(api, hooks, **{REQUIRED: "true"})
    old = await api.client.create(DEPLOYMENTS, deployment("web", None, 2, namespace="team"))
    assert (await hooks.update(old, changed(old, lambda o: o["spec"].update(replicas=1))))["allowed"]
    assert "requires a group" in message(await hooks.update(old, changed(old, lambda o: o["spec"].update(replicas=3))))
    assert "requires a group" in message(await scaled(hooks, old, 3))
    going = changed(old, lambda o: o["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    more = changed(going, lambda o: o["spec"].update(replicas=3))
    assert "requires a group" in message(await hooks.update(going, more))
    assert (await hooks.update(going, changed(going, lambda o: o["spec"].update(replicas=0))))["allowed"]


async def test_children_of_a_charged_owner_need_no_label(api: Api, hooks: Hooks) -> None:
    """As far as its charge reaches; a forged one is charged to the owner's group, not refused for its label."""
    await team(api, hooks, **{REQUIRED: "true"})
    await api.group("nlp", cpu="1", used={"cpu": "1"})
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1, namespace="team"))
    pod = changed(child(owner, "w0", None, **{"nvidia.com/gpu": 1}), lambda o: o["metadata"].update(namespace="team"))
    assert (await hooks.create(pod, user=OPERATOR))["allowed"]
    await api.client.create(OF_KIND["Pod"], pod)
    forged = changed(pod, lambda o: o["metadata"].update(name="w1"))
    assert "exceeded quota: nlp" in message(await hooks.create(forged))
    held = stored(pod)
    assert (await hooks.update(held, released(held), user=COLLECTOR))["allowed"]


async def scaled(hooks: Hooks, parent: Object, number: int) -> Object:
    def scale(count: Any) -> Object:
        about = {key: parent["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": about, "spec": {"replicas": count}}

    old = scale(parent["spec"]["replicas"])
    of = OF_KIND[parent["kind"]]
    return await hooks.review("scale", "UPDATE", scale(number), old, sub_resource="scale", resource=of)
