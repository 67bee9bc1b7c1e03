"""Reviews of workloads with a surge: what is charged of it, what a refusal says, and fields that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.units.quantity import NANO
from tests.support.objects import DEPLOYMENTS, Object, deployment, rollout
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored
from tests.webhooks.handlers.test_workloads import replicas

Change = Callable[[Object], None]


def surge(most: Any) -> Change:
    return lambda obj: obj["spec"].update(strategy={"rollingUpdate": {"maxSurge": most}})


def canary(most: Any) -> Change:
    return lambda obj: obj["spec"].update(strategy={"canary": {"maxSurge": most}})


async def test_surge_beyond_the_replicas_is_charged_when_it_is_written(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    web = stored(deployment("web", "nlp", 2))
    assert message(await hooks.update(web, changed(web, surge(200)))) == (
        "exceeded quota: nlp, requested: limits.cpu=198, used: limits.cpu=2, limited: limits.cpu=10; "
        "left: limits.cpu=8; 198 of the 200 pods of main are surge; "
        "run: kubectl bizrq explain deployment/web -n default"
    )
    assert (await hooks.update(web, changed(web, surge(10))))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.base["limits.cpu"], entry.amount["limits.cpu"]) == (2 * NANO, 10 * NANO)


@pytest.mark.parametrize("most", [None, "25%", "100%", 2, 0])
async def test_surge_up_to_the_replicas_costs_nothing(api: Api, hooks: Hooks, most: Any) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web = stored(deployment("web", "nlp", 2))
    assert (await hooks.update(web, changed(web, surge(most))))["allowed"]
    assert await api.entries("nlp") == []


async def test_the_first_replica_brings_the_surge_with_it(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    idle = stored(changed(deployment("web", "nlp", 0), surge(200)))
    assert "requested: limits.cpu=200," in message(await hooks.update(idle, changed(idle, replicas(2))))


@pytest.mark.parametrize(
    ("kept", "change"),
    [
        ("fewer replicas", replicas(2)),
        ("an image", lambda o: o["spec"]["template"]["spec"]["containers"][0].update(image="b")),
        ("a pause", lambda o: o["spec"].update(paused=True)),
        ("less surge", surge("25%")),
        ("more replicas in place of surge", replicas(200)),
    ],
)
async def test_a_change_that_declares_no_growth_is_allowed_over_the_limit(
    api: Api, hooks: Hooks, kept: str, change: Change
) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "200"})
    web = stored(changed(deployment("web", "nlp", 20), surge(200)))
    assert (await hooks.update(web, changed(web, change)))["allowed"], kept


async def test_with_the_policy_count_all_of_the_surge_is_charged(api: Api, through: Any) -> None:
    await api.group("nlp", cpu="10")
    async with serving(through, surge="count") as hooks:
        web = changed(deployment("web", "nlp", 8), surge("25%"))
        assert (await hooks.create(web))["allowed"]
        [entry] = await api.entries("nlp")
        assert entry.amount["limits.cpu"] == 10 * NANO


@pytest.mark.parametrize(
    ("make", "change", "why"),
    [
        (deployment, surge("lots"), "spec.strategy.rollingUpdate.maxSurge: must be a whole number or a percentage"),
        (rollout, canary(-1), "spec.strategy.canary.maxSurge: must not be negative, but is -1"),
        (rollout, lambda o: o["spec"].update(strategy=[]), "spec.strategy: must be a map, not a list"),
        (
            rollout,
            lambda o: o["spec"]["template"]["spec"].update(terminationGracePeriodSeconds="long"),
            "spec.template.spec.terminationGracePeriodSeconds: must be a whole number of seconds from 0, not 'long'",
        ),
    ],
)
async def test_a_field_that_cannot_be_read_is_refused_where_a_person_writes_it(
    api: Api, hooks: Hooks, make: Any, change: Change, why: str
) -> None:
    await api.group("nlp", cpu="10")
    new = changed(make("web", "nlp"), change)
    for refused in (await hooks.create(new), await hooks.update(stored(make("web", "nlp")), new)):
        assert why in message(refused)
        assert refused["status"]["code"] == 422
    assert (await hooks.create(changed(new, lambda o: o["metadata"].update(labels={}))))["allowed"]


async def test_an_object_that_is_stored_with_such_a_field_may_be_changed_otherwise(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="80", used={"cpu": "70"})
    bad = stored(changed(rollout("web", "nlp", 10), canary("about 70")))
    for allowed in (replicas(5), replicas(70), canary("25%")):
        assert (await hooks.update(bad, changed(bad, allowed)))["allowed"]
    assert "requested: limits.cpu=15," in message(await hooks.update(bad, changed(bad, replicas(85))))
    assert "not 'about 80'" in message(await hooks.update(bad, changed(bad, canary("about 80"))))


async def test_a_scale_up_is_charged_with_the_surge_of_its_parent(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    parent = await api.client.create(DEPLOYMENTS, changed(deployment("web", "nlp", 0), surge(200)))
    metadata = {key: parent["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    old = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 0}}
    how: Any = {"resource": DEPLOYMENTS, "sub_resource": "scale"}
    refused = await hooks.review("scale", "UPDATE", {**old, "spec": {"replicas": 1}}, old, **how)
    assert "199 of the 200 pods of main are surge" in message(refused)
