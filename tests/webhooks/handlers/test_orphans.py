"""Deleting a workload without its children: refused where no group would pay for them."""

from __future__ import annotations

import pytest

from bizrq.kube.client import Unreachable
from bizrq.workloads.labels import LABEL
from tests.support.objects import NAMESPACES, OF_KIND, PODS, TFJOBS, Object, namespace, tfjob
from tests.support.proxy import Proxy
from tests.webhooks.charging.test_owner_trust import child
from tests.webhooks.conftest import Api, Hooks, changed, message


async def orphan(hooks: Hooks, obj: Object) -> Object:
    return await hooks.review("orphans", "DELETE", None, obj)


async def test_pods_without_the_label_are_not_left_without_a_payer(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9")
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1))
    await api.client.create(PODS, child(owner, "w0", None))
    response = await orphan(hooks, owner)
    assert message(response) == (
        "TFJob default/train pays for Pod w0, which no group would pay for without it: label its pod template "
        "biz.group.resource.quota: nlp and delete it once all its pods have that, or delete it without orphaning them"
    )
    assert response["status"]["code"] == 403


@pytest.mark.parametrize("group", ["nlp", "vision"])
async def test_pods_with_a_label_pay_for_themselves(api: Api, hooks: Hooks, group: str) -> None:
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1))
    await api.client.create(PODS, child(owner, "w0", group))
    assert (await orphan(hooks, owner))["allowed"]


async def test_pods_that_ended_and_others_pods_are_not_in_the_way(api: Api, hooks: Hooks) -> None:
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1))
    other = await api.client.create(TFJOBS, tfjob("other", "nlp", 1))
    await api.client.create(PODS, child(owner, "w0", None))
    await api.client.create(PODS, child(other, "w1", None))
    await api.client.patch(PODS, "w0", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
    assert (await orphan(hooks, owner))["allowed"]
    assert not (await orphan(hooks, other))["allowed"]


async def test_what_no_group_pays_for_may_be_orphaned(api: Api, hooks: Hooks) -> None:
    owner = await api.client.create(TFJOBS, changed(tfjob("train", "nlp", 1), lambda o: o["metadata"].pop("labels")))
    await api.client.create(PODS, child(owner, "w0", None))
    assert (await orphan(hooks, owner))["allowed"]


async def test_where_the_namespace_has_a_default_orphans_are_charged_to_it(api: Api, hooks: Hooks) -> None:
    made = await api.client.create(NAMESPACES, namespace("team", **{LABEL: "nlp"}))
    await hooks.webhooks.resolver.informers[-1].catch_up(int(made["metadata"]["resourceVersion"]), 5)
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1, namespace="team"))
    pod = changed(child(owner, "w0", None), lambda o: o["metadata"].update(namespace="team"))
    await api.client.create(OF_KIND["Pod"], pod)
    assert (await orphan(hooks, owner))["allowed"]


async def test_what_cannot_be_read_is_refused_with_try_again(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 1))

    async def broken(line: str) -> None:
        if line.startswith("GET") and "/pods" in line:
            raise Unreachable("gone")

    proxy.before.append(broken)
    response = await orphan(hooks, owner)
    assert response["status"]["code"] == 429
    assert "try again" in message(response)
