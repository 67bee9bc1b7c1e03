"""Reviews of workloads and of their /scale: who pays, what counts as growth, and what is let through whatever else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, OF_KIND, deployment, group, rollout, template, tfjob
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored


def replicas(number: Any):
    return lambda obj: obj["spec"].update(replicas=number)


def _container(obj: dict[str, Any]) -> dict[str, Any]:
    return obj["spec"]["template"]["spec"]["containers"][0]


def labelled(group: str | None):
    def change(obj: dict[str, Any]) -> None:
        obj["metadata"]["labels"] = {LABEL: group} if group else {}

    return change


async def test_a_create_is_promised_in_full_before_it_is_allowed(api: Api, hooks: Hooks) -> None:
    """The entry holds every name of the object that the group limits, under the uid of the object."""
    await api.group("nlp", cpu="10")
    response = await hooks.create(changed(deployment("web", "nlp", 4), lambda o: o["metadata"].update(uid="u1")))
    assert response["allowed"]
    [entry] = await api.entries("nlp")
    assert str(entry).startswith("v1 deployments.apps/default/web uid=u1 until=")
    assert entry.amount == {"limits.cpu": 4 * 10**9}
    assert entry.base == {}


async def test_a_refusal_says_everything_in_one_line(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "7"})
    response = await hooks.create(deployment("web", "nlp", 2, cpu="2"))
    assert message(response) == (
        "exceeded quota: nlp, requested: limits.cpu=4, used: limits.cpu=7, limited: limits.cpu=10; "
        "left: limits.cpu=3; fits: 1 more replica; run: kubectl bizrq explain -f FILE -n default"
    )
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["details"]["causes"] == [{"reason": "QuotaExceeded", "message": "limits.cpu", "field": "limits.cpu"}]


async def test_a_move_charges_the_new_group_and_leaves_the_old_one_alone(api: Api, hooks: Hooks) -> None:
    """The old group is released when the move is observed, not before."""
    old_group = await api.group("nlp", cpu="10", used={"cpu": "4"})
    await api.group("vision", cpu="3")
    old = stored(deployment("web", "nlp", 4))
    assert "exceeded quota: vision, requested: limits.cpu=4" in message(
        await hooks.update(old, changed(old, labelled("vision")))
    )
    await api.group("speech", cpu="4")
    assert (await hooks.update(old, changed(old, labelled("speech"))))["allowed"]
    [entry] = await api.entries("speech")
    assert (entry.uid, entry.resource_version, entry.base) == ("uid-of-web", 7, {})
    assert (await api.read("nlp")).metadata.resource_version == old_group.metadata.resource_version


async def test_removing_the_label_is_allowed_and_charges_no_group(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "4"})
    old = stored(deployment("web", "nlp", 4))
    assert (await hooks.update(old, changed(old, labelled(None))))["allowed"]
    assert proxy.sent("PUT") == 0


async def test_an_object_being_deleted_may_change_but_not_grow_unchecked(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    old = stored(deployment("web", "nlp", 4))
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert (await hooks.update(old, changed(old, replicas(1))))["allowed"]
    assert "exceeded quota: nlp, requested: limits.cpu=1" in message(await hooks.update(old, changed(old, replicas(5))))


async def test_an_old_object_that_cannot_be_counted_counts_as_nothing(api: Api, hooks: Hooks) -> None:
    """It was stored before bizrq was installed: a repair is admitted or refused like a create."""
    await api.group("nlp", cpu="4")
    old = stored(rollout("web", "nlp", 1, cpu="abc"))
    assert (await hooks.update(old, changed(rollout("web", "nlp", 4), _like(old))))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.base == {}
    assert "requested: limits.cpu=5" in message(await hooks.update(old, changed(rollout("web", "nlp", 5), _like(old))))


async def test_a_pod_that_hami_comes_to_share_a_card_with_is_charged(api: Api) -> None:
    """HAMi leaves a pod with this label alone, so that its memory of a card is no card."""
    await api.client.create(GROUPS, group("nlp", **{"cards.nvidia.com/gpu": "1"}))
    await api.count("nlp", **{"cards.nvidia.com/gpu": "1"})
    alone = {LABEL: "nlp", "hami.io/webhook": "ignore"}
    found = {"apiVersion": "v1", "kind": "Pod", **template(**{"nvidia.com/gpumem": "3000"})}
    old = stored({**found, "metadata": {"name": "p", "namespace": "default", "labels": alone}})
    async with serving(api.client, hami={"enabled": True}) as hooks:
        assert (await hooks.update(old, changed(old, lambda o: o["metadata"]["labels"].update(app="x"))))["allowed"]
        answer = await hooks.update(old, changed(old, lambda o: o["metadata"]["labels"].pop("hami.io/webhook")))
        assert "exceeded quota: nlp, requested: cards.nvidia.com/gpu=" in message(answer)


async def test_an_unchanged_object_is_allowed_whatever_it_is_and_wherever_its_label_leads(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    """A finalizer must be able to go, and status-driven writers must not be stuck."""
    old = stored(rollout("web", "nobody", -3, cpu="abc"))
    proxy.requests.clear()
    new = changed(old, lambda o: o["metadata"].update(finalizers=[]))
    assert (await hooks.update(old, new))["allowed"]
    assert [line for line in proxy.requests if not line.startswith("WATCH")] == []


async def test_what_makes_nothing_worse_is_allowed_over_quota_and_in_a_group_that_is_not_counted(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "9"})
    await api.client.create(GROUPS, group("new", cpu="1"))
    for name in ("nlp", "new", "nobody"):
        old = stored(deployment("web", name, 9))
        began = time.monotonic()
        assert (await hooks.update(old, changed(old, replicas(8))))["allowed"]
        assert time.monotonic() - began < 0.5
    assert proxy.sent("PUT") == 0


async def test_a_dry_run_is_decided_and_writes_nothing(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="4")
    assert (await hooks.create(deployment("web", "nlp", 4), dry_run=True))["allowed"]
    assert "requested: limits.cpu=5" in message(await hooks.create(deployment("web", "nlp", 5), dry_run=True))
    assert proxy.sent("PUT") == 0


async def test_a_label_that_names_no_group_is_refused_and_says_so(api: Api, hooks: Hooks) -> None:
    response = await hooks.create(deployment("web", "nobody", 1))
    assert message(response) == "quota nobody does not exist: create the group, or correct the label"
    assert response["status"]["code"] == 403


@pytest.mark.parametrize("label", ["../../etc", "a/b", "%2e", "x" * 300, "ü", " "])
async def test_a_label_that_can_be_no_groups_name_is_refused_like_any_unknown(hooks: Hooks, label: str) -> None:
    """The API server would not store such a label, and the webhook refuses it too."""
    response = await hooks.create(deployment("web", label, 1), timeout="2s")
    assert response["status"]["code"] in (403, 422), message(response)


async def test_a_group_that_is_never_counted_is_refused_within_the_deadline(api: Api, hooks: Hooks) -> None:
    """Unknown is not zero. The webhook waits as long as the API server does, at most three seconds."""
    await api.client.create(GROUPS, group("nlp", cpu="4"))
    began = time.monotonic()
    response = await hooks.create(deployment("web", "nlp", 1), timeout="1s")
    assert response["status"]["code"] in (403, 429)
    assert "try again" in message(response)
    assert time.monotonic() - began < 1.0


async def test_a_slow_api_server_is_answered_for_in_time_with_try_again(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """429 with retryAfterSeconds: nothing is wrong with the request."""
    await api.group("nlp", cpu="4")
    assert (await hooks.create(deployment("first", "nlp", 1)))["allowed"]

    async def slow(line: str) -> web.Response | None:
        if line.startswith("PUT"):
            await asyncio.sleep(3)
        return None

    proxy.before.append(slow)
    began = time.monotonic()
    response = await hooks.create(deployment("web", "nlp", 1), timeout="1s")
    assert time.monotonic() - began < 1.0
    assert (response["status"]["code"], response["status"]["reason"]) == (429, "TooManyRequests")
    assert response["status"]["details"] == {"retryAfterSeconds": 1}


async def test_an_api_server_that_is_gone_is_no_yes(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="4")
    assert (await hooks.create(deployment("first", "nlp", 1)))["allowed"]
    await proxy.hang_up()
    for request in (
        hooks.create(deployment("web", "nlp", 1), timeout="1s"),
        hooks.create(deployment("web", "nobody", 1), timeout="1s"),
        _scale(hooks, deployment("first", "nlp", 1), 2, timeout="1s"),
        hooks.create(group("child", "nlp", cpu="1"), timeout="1s"),
    ):
        response = await request
        assert response["status"]["code"] == 429, response


async def test_a_scale_is_charged_by_its_parent_and_by_the_version_it_was_read_at(api: Api, hooks: Hooks) -> None:
    """A Scale carries no labels; the write is decided on the version that it was read from."""
    await api.group("nlp", cpu="4", used={"cpu": "1"})
    parent = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1))
    version = int(parent["metadata"]["resourceVersion"])
    assert (await _scale(hooks, parent, 4))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.uid, entry.resource_version) == (parent["metadata"]["uid"], version)
    assert entry.amount["limits.cpu"] == 4 * 10**9
    assert "requested: limits.cpu=4" in message(await _scale(hooks, parent, 5))


async def test_a_scale_without_replicas_is_a_scale_to_nothing(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """The API server leaves `spec: {}` of a Scale to 0: `omitempty`."""
    await api.group("nlp", cpu="1", used={"cpu": "1"})
    parent = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1))
    assert (await _scale(hooks, parent, None))["allowed"]
    assert proxy.sent("PUT") == 0


async def test_a_scale_of_what_is_gone_or_of_no_group_is_not_ours_to_refuse(api: Api, hooks: Hooks) -> None:
    free = await api.client.create(DEPLOYMENTS, deployment("free", None, 1))
    assert (await _scale(hooks, free, 100))["allowed"]
    assert (await _scale(hooks, stored(deployment("gone", "nlp", 1)), 100))["allowed"]


async def test_uncounted_kinds_and_status_writes_are_allowed(hooks: Hooks, proxy: Proxy) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {LABEL: "nobody"}}}
    assert (await hooks.review("workloads", "CREATE", config, resource=CONFIG_MAPS))["allowed"]
    old = stored(deployment("web", "nobody", 1))
    assert (await hooks.review("workloads", "UPDATE", old, old, sub_resource="status"))["allowed"]
    assert proxy.sent("PUT") == 0


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (tfjob("t", "nlp", -5), "replicas: must not be negative"),
        (tfjob("t", "nlp", "many"), "replicas"),
        (tfjob("t", "nlp", 10**30), "replicas"),
        (rollout("r", "nlp", 1, cpu="abc"), "abc"),
        (rollout("r", "nlp", 1, cpu="1e3000000"), "cpu"),
        (rollout("r", "nlp", 1, cpu="-1"), "cpu"),
        (rollout("r", "nlp", 1, cpu={"no": "quantity"}), "cpu"),
        (changed(rollout("r", "nlp"), lambda o: _container(o).update(resources={"limits": "foo"})), "limits"),
        (changed(rollout("r", "nlp"), lambda o: o["spec"].update(template="none")), "template"),
        (changed(rollout("r", "nlp"), lambda o: o.update(spec=[1])), "spec"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["kind"].lower(),
)  # fmt: skip
async def test_a_bad_object_is_422_says_where_and_charges_nothing(
    api: Api, hooks: Hooks, proxy: Proxy, obj: dict[str, Any], words: str
) -> None:
    await api.group("nlp", cpu="4")
    response = await hooks.create(obj)
    assert words in message(response)
    assert "\n" not in message(response)
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert proxy.sent("PUT") == 0


async def test_containers_must_say_what_hard_has_to_know(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4")
    silent = changed(deployment("web", "nlp"), lambda o: _container(o).pop("resources"))
    assert message(await hooks.create(silent)) == "failed quota: nlp: must specify limits.cpu for: c"


async def test_a_create_by_generated_name_is_charged_under_the_name_it_got(api: Api, hooks: Hooks) -> None:
    """The API server fills name and uid in before it asks."""
    await api.group("nlp", cpu="4")
    made = changed(tfjob("train-x7k2p", "nlp", 1), lambda o: o["metadata"].update(generateName="train-"))
    assert (await hooks.create(made))["allowed"]
    assert [e.slot.name for e in await api.entries("nlp")] == ["train-x7k2p"]


async def _scale(hooks: Hooks, parent: dict[str, Any], number: int | None, **how: Any) -> dict[str, Any]:
    def scale(count: int | None) -> dict[str, Any]:
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {key: parent["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion")},
            "spec": {} if count is None else {"replicas": count},
        }

    old = scale(parent["spec"]["replicas"])
    return await hooks.review(
        "scale", "UPDATE", scale(number), old, sub_resource="scale", resource=OF_KIND[parent["kind"]], **how
    )


def _like(old: dict[str, Any]):
    """Gives an object the identity of a stored one."""
    return lambda obj: obj["metadata"].update(old["metadata"])


HOURS = "cash/requests.nvidia.com/gpu"


async def safe_group(api: Api, liens: dict[str, str] | None, **cash: Any) -> None:
    """100 card-hours in safe mode; `liens` as a recount would publish them, None before one has."""
    made = group("vision", hours="100", gpu="8")
    made["spec"]["cash"] = {"mode": "safe", **cash}
    await api.client.create(GROUPS, made)
    await api.count("vision")
    stored = await api.client.get(GROUPS, "vision")
    if liens is not None:
        stored["status"]["cash"] = {"liens": liens, "periodEnd": "2026-11-23T00:00:00+01:00"}
        await api.client.replace(GROUPS, stored, subresource="status")


def bounded(name: str, workers: int, hours: int | None) -> dict[str, Any]:
    job = tfjob(name, "vision", workers)
    if hours is not None:
        job["spec"]["runPolicy"] = {"activeDeadlineSeconds": hours * 3600}
    return job


async def test_safe_hours_are_promised_for_the_whole_run(api: Api, hooks: Hooks) -> None:
    await safe_group(api, {HOURS: "40"})
    assert (await hooks.create(bounded("a", 4, 10)))["allowed"]
    [promise] = await api.entries("vision")
    assert promise.amount[HOURS] == 40 * 10**9
    assert message(await hooks.create(bounded("b", 4, 10))) == (
        f"exceeded quota: vision, requested: {HOURS}=40, used: {HOURS}=80, limited: {HOURS}=100; left: {HOURS}=20; "
        "fits: 2 more replicas; requested is what it may cost in 10h, used has what others may still cost; "
        "next grant 2026-11-23T00:00:00+01:00; run: kubectl bizrq explain -f FILE -n default"
    )
    assert "set spec.runPolicy.activeDeadlineSeconds, or have spec.cash.maxRunTime" in message(
        await hooks.create(bounded("c", 1, None))
    )


async def test_a_run_that_is_made_longer_is_charged_though_nothing_grows(api: Api, hooks: Hooks) -> None:
    await safe_group(api, {HOURS: "90"}, maxRunTime="30h")
    job = await api.client.create(OF_KIND["TFJob"], bounded("a", 2, 10))

    def longer(hours: int) -> dict[str, Any]:
        return changed(job, lambda o: o["spec"].update(runPolicy={"activeDeadlineSeconds": hours * 3600}))

    assert (await hooks.update(job, longer(15)))["allowed"]
    assert f"requested: {HOURS}=12" in message(await hooks.update(job, longer(16)))
    assert "to 108000 or less" in message(await hooks.update(job, longer(31)))
    assert (await hooks.update(job, longer(9)))["allowed"]


async def test_an_update_that_met_another_write_waits_until_its_first_try_is_seen(api: Api, hooks: Hooks) -> None:
    """The API server itself asks again with a newer version, so that the client never has to retry."""
    await safe_group(api, {HOURS: "80"})
    job = await api.client.create(OF_KIND["TFJob"], bounded("a", 2, 10))
    longer = changed(job, lambda o: o["spec"].update(runPolicy={"activeDeadlineSeconds": 15 * 3600}))
    assert (await hooks.update(job, longer))["allowed"]

    def met(obj: dict[str, Any]) -> dict[str, Any]:
        return changed(
            obj, lambda o: o["metadata"].update(resourceVersion=f"{int(o['metadata']['resourceVersion']) + 9}")
        )

    again = asyncio.create_task(hooks.update(met(job), met(longer)))
    done, _ = await asyncio.wait({again}, timeout=0.3)
    assert not done
    stored = await api.client.get(GROUPS, "vision")
    stored["status"]["reservations"] = []
    await api.client.replace(GROUPS, stored, subresource="status")
    assert (await again)["allowed"]


async def test_safe_hours_wait_for_the_recount_that_says_what_runs_may_still_cost(api: Api, hooks: Hooks) -> None:
    await safe_group(api, None)
    waiting = asyncio.create_task(hooks.create(bounded("a", 1, 1)))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    stored = await api.client.get(GROUPS, "vision")
    stored["status"]["cash"] = {"liens": {}}
    await api.client.replace(GROUPS, stored, subresource="status")
    assert (await waiting)["allowed"]


async def test_where_models_are_strict_cards_of_none_do_not_enter_a_group_that_gives_out_models(
    api: Api, through: KubeClient
) -> None:
    """Nor do those of an unknown model; a group without models takes both the known and those of none."""
    await api.group("nlp", gpu="8", **{"requests.nvidia.com/gpu.A100": "4"})
    await api.group("plain", gpu="8")
    async with serving(through, strictModels=True, gpuModels={"A100": {}}) as strict:
        job = tfjob("train", "nlp", 1)
        assert message(await strict.create(job)) == (
            "failed quota: nlp: must specify the model of requests.nvidia.com/gpu for: Worker"
        )
        known, other = (
            changed(job, lambda o, m=m: o["metadata"]["labels"].update({MODEL_LABELS["gpu"]: m}))
            for m in ("A100", "T4")
        )
        assert (await strict.create(known))["allowed"]
        assert "'T4' is not a known model" in message(await strict.create(other))
        assert (await strict.create(tfjob("train", "plain", 1)))["allowed"]
