"""Reviews of groups: the rules of the tree, with the parent charged before a child is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.store.groups import GROUPS
from tests.support.language import entry
from tests.support.objects import DEPLOYMENTS, PODS, TFJOBS, deployment, group, tfjob
from tests.support.proxy import Proxy
from tests.webhooks.charging.test_owner_trust import child
from tests.webhooks.conftest import Api, Hooks, changed, message
from tests.webhooks.conftest import stored as at_rest


def hard(**amounts: str):
    return lambda obj: obj["spec"].update(hard=group("x", **amounts)["spec"]["hard"])


async def stored(api: Api, name: str) -> dict[str, Any]:
    return await api.client.get(GROUPS, name)


async def test_a_root_is_allowed_and_no_group_is_charged(hooks: Hooks, proxy: Proxy) -> None:
    assert (await hooks.create(group("corp", cpu="100")))["allowed"]
    assert proxy.sent("PUT") == 0


async def test_a_child_is_allowed_once_its_hard_stands_in_the_parents_status(api: Api, hooks: Hooks) -> None:
    await api.group("corp", cpu="100")
    assert (await hooks.create(group("ai", "corp", cpu="60")))["allowed"]
    [promise] = await api.entries("corp")
    assert str(promise.slot) == "bizgroupresourcequotas.quota.biz.group//ai"
    assert promise.amount == {"limits.cpu": 60 * 10**9}
    assert message(await hooks.create(group("other", "corp", cpu="41"))) == (
        "exceeded quota: corp, requested: limits.cpu=41, used: limits.cpu=60, limited: limits.cpu=100; "
        "left: limits.cpu=40; run: kubectl bizrq explain corp"
    )


async def test_a_child_that_is_there_is_not_created_again_and_reserves_nothing(api: Api, hooks: Hooks) -> None:
    """The API server would say so, but only once the parent had let it in: for want of room it would not."""
    await api.group("corp", cpu="100", used={"cpu": "60"})
    await api.group("ai", "corp", cpu="60")
    for cpu in ("10", "60"):
        refused = await hooks.create(group("ai", "corp", cpu=cpu))
        assert refused["status"]["code"] == 409
        assert message(refused).startswith('bizgroupresourcequotas.quota.biz.group "ai" already exists')
    assert await api.entries("corp") == []
    await api.client.delete(GROUPS, "ai")
    assert (await hooks.create(group("ai", "corp", cpu="10")))["allowed"]


async def test_all_that_a_write_breaks_is_said_at_once(api: Api, hooks: Hooks) -> None:
    """The rules of the group itself and those of its parent, in order; the first gives the code."""
    await api.group("corp", cpu="100")
    asked = group("-ai", "corp", gpu="1")
    asked["spec"]["namespaceSelector"] = {"matchExpressions": [{"key": "team", "operator": "in"}]}
    refused = message(await hooks.create(asked)).split("; ")
    assert "spec.namespaceSelector: matchExpressions[0].operator: 'in' is none of" in refused[0]
    assert "group name '-ai' cannot be a label's value" in refused[1]
    assert "spec.hard must name every resource that its parent corp names" in refused[2]
    assert refused[3] == "missing: limits.cpu"
    asked["spec"]["parentBizGroup"] = "nobody"
    assert message(await hooks.create(asked)).endswith(
        "; group -ai: its parent nobody does not exist: create the parent first"
    )


async def test_a_child_that_takes_nothing_still_leaves_its_mark(api: Api, hooks: Hooks) -> None:
    """A deletion of the parent under review at the same time has to see it."""
    await api.group("corp", cpu="100")
    assert (await hooks.create(group("empty", "corp", cpu="0")))["allowed"]
    assert [e.slot.name for e in await api.entries("corp")] == ["empty"]
    refused = message(await hooks.delete(await stored(api, "corp")))
    assert "group corp has children: empty; delete them first" in refused


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (group("ai", "nobody", cpu="1"), "its parent nobody does not exist"),
        (group("ai", "ai", cpu="1"), "cannot be its own parent"),
        (group("ai", "corp", gpu="1"), "missing: limits.cpu"),
        (group("a" * 64, "corp", cpu="1"), "at most 63"),
        (group("-ai", "corp", cpu="1"), "cannot be a label's value"),
        (group("ai", "corp", **{"cpu": "1", "requests.nvidia.com/gpux": "1"}), "did you mean requests.nvidia.com/gpu"),
        (group("ai", "corp", cpu="NaN"), "NaN"),
        (group("ai", "corp", cpu="-1"), "greater than or equal to 0"),
        (group("ai", "corp", cpu="1e3000000"), "1e3000000"),
        (group("ai", "corp", **{"cpu": "1", "limits.cpu.": "1"}), "limits.cpu."),
        (group("ai", "corp", **{"cpu": "1", "requests.cpu": "1", "cash/pods": "x"}), "cash/pods"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_group_is_refused_whole_and_charges_no_group(
    api: Api, hooks: Hooks, proxy: Proxy, child: dict[str, Any], words: str
) -> None:
    await api.group("corp", cpu="100")
    assert words in message(await hooks.create(child))
    assert proxy.sent("PUT") == 0


async def test_the_parent_never_changes(api: Api, hooks: Hooks) -> None:
    await api.group("corp", cpu="100")
    await api.group("ai", "corp", cpu="10")
    old = await stored(api, "ai")
    for parent in ("", "other"):
        response = await hooks.update(
            old, changed(old, lambda o, parent=parent: o["spec"].update(parentBizGroup=parent))
        )
        assert "spec.parentBizGroup is immutable" in message(response)
        assert response["status"]["code"] == 422
    root = await stored(api, "corp")
    assert (await hooks.update(root, changed(root, lambda o: o["spec"].update(parentBizGroup=""))))["allowed"]


async def test_a_larger_hard_is_promised_by_the_parent_and_a_smaller_one_is_only_seen(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("corp", cpu="100", used={"cpu": "60"})
    await api.group("ai", "corp", cpu="60")
    old = await stored(api, "ai")
    proxy.requests.clear()
    assert (await hooks.update(old, changed(old, hard(cpu="50"))))["allowed"]
    assert proxy.sent("PUT") == 0
    assert "requested: limits.cpu=41" in message(await hooks.update(old, changed(old, hard(cpu="101"))))
    assert (await hooks.update(old, changed(old, hard(cpu="100"))))["allowed"]
    [promise] = await api.entries("corp")
    assert promise.extra == {"limits.cpu": 40 * 10**9}


async def test_lowering_below_what_is_used_is_allowed_with_a_warning(api: Api, hooks: Hooks) -> None:
    await api.group("corp", cpu="100", used={"cpu": "60"})
    old = await stored(api, "corp")
    response = await hooks.update(old, changed(old, hard(cpu="50")))
    assert response["allowed"]
    [warning] = response["warnings"]
    assert "limits.cpu 50 (used 60)" in warning


def cash(**said: Any):
    return lambda obj: obj["spec"].update(cash=said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"period": "daily", "timeZone": "Europe/Berln"}, "timeZone: 'Europe/Berln' is no time zone: did you mean"),
        ({"period": "daily", "anchor": "2026-02-30"}, "anchor: '2026-02-30' is no local time"),
        ({"period": "hourly"}, "period: 'hourly' is none of daily, weekly, monthly"),
        ({"rollover": {"fraction": "half"}}, "rollover.fraction: 'half' is none"),
        ({"rollover": {"cap": {"limits.cpux": "1"}}}, "rollover.cap: cash/limits.cpux: unknown resource name: did you"),
        ({"mode": "careful"}, "mode: 'careful' is none of open, safe"),
        ({"mode": "safe", "maxRunTime": "0h"}, "maxRunTime: '0h' is no time to run"),
        ({"thresholds": [0]}, "thresholds: write percents from 1 to 1000"),
    ],
    ids=str,
)
async def test_invalid_hours_are_refused_and_stored_ones_block_no_other_edit(
    hooks: Hooks, said: dict[str, Any], words: str
) -> None:
    root = group("corp", cpu="100")
    response = await hooks.create(changed(root, cash(**said)))
    assert f"group corp: spec.cash.{words}" in message(response)
    assert response["status"]["code"] == 422
    stored = changed(root, cash(**said))
    assert (await hooks.update(stored, changed(stored, hard(cpu="50"))))["allowed"]


async def test_only_a_root_says_when_hours_are_granted(api: Api, hooks: Hooks) -> None:
    root = group("corp", hours="100")
    assert (await hooks.create(changed(root, cash(period="weekly", timeZone="Europe/Berlin"))))["allowed"]
    await api.group("corp", hours="100")
    child = group("ai", "corp", hours="10")
    refused = message(await hooks.create(changed(child, cash(period="weekly"))))
    assert "only a root sets spec.cash.period, timeZone and anchor" in refused
    assert (await hooks.create(changed(child, cash(mode="safe", rollover={}, thresholds=[90]))))["allowed"]


async def test_a_parent_being_deleted_takes_no_child(api: Api, hooks: Hooks) -> None:
    await api.client.create(
        GROUPS, changed(group("corp", cpu="100"), lambda o: o["metadata"].update(finalizers=["quota.biz.group/x"]))
    )
    await api.count("corp")
    await api.client.delete(GROUPS, "corp")
    assert "is being deleted" in message(await hooks.create(group("ai", "corp", cpu="1")))


async def test_a_child_waits_for_a_parent_that_is_not_counted_yet_then_says_so(api: Api, hooks: Hooks) -> None:
    await api.client.create(GROUPS, group("corp", cpu="100"))
    response = await hooks.create(group("ai", "corp", cpu="1"), timeout="1s")
    assert "try again" in message(response)


async def test_names_are_added_leaf_first_and_removed_root_first(api: Api, hooks: Hooks) -> None:
    await api.group("corp", cpu="100", used={"cpu": "10"})
    await api.group("ai", "corp", cpu="10")
    corp, ai = await stored(api, "corp"), await stored(api, "ai")
    refused = message(await hooks.update(corp, changed(corp, hard(cpu="100", gpu="8"))))
    assert "its child ai does not name requests.nvidia.com/gpu" in refused
    assert (await hooks.update(ai, changed(ai, hard(cpu="10", gpu="4"))))["allowed"]
    assert "missing: limits.cpu" in message(await hooks.update(ai, changed(ai, hard(gpu="4"))))
    assert (await hooks.update(corp, changed(corp, hard(gpu="8"))))["allowed"] is False
    await api.client.patch(GROUPS, "ai", {"spec": {"hard": {"requests.nvidia.com/gpu": "4"}}})
    assert (await hooks.update(corp, changed(corp, hard(gpu="8"))))["allowed"]


async def test_a_deletion_names_two_of_the_children_or_of_the_workloads(api: Api, hooks: Hooks) -> None:
    await api.group("corp", cpu="100")
    for name in ("a", "b", "c"):
        await api.group(name, "corp", cpu="1")
    assert "has children: a, b and 1 more" in message(await hooks.delete(await stored(api, "corp")))
    for name in ("x", "y", "z"):
        await api.client.create(DEPLOYMENTS, deployment(name, "a"))
    words = message(await hooks.delete(await stored(api, "a")))
    assert "deployments.apps/default/x, deployments.apps/default/y" in words
    assert (await hooks.delete(await stored(api, "b")))["allowed"]


async def test_a_deletion_sees_what_is_promised_and_not_stored_yet(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    await api.count("nlp", entry("web", "cpu=1"))
    assert "has workloads: deployments.apps/team-a/web" in message(await hooks.delete(await stored(api, "nlp")))


async def test_a_deletion_sees_pods_that_run_on_though_they_are_gone(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    ending = ["pods/team-a/p limits.cpu=1 ending=1 until=2026-11-22T10:05:30Z"]
    await api.client.patch(GROUPS, "nlp", {"status": {"ending": ending}}, subresource="status")
    words = message(await hooks.delete(await stored(api, "nlp")))
    assert (
        "group nlp is charged for pods: 1 pod of pods/team-a/p is ending until 2026-11-22T10:05:30Z; try again after"
        in words
    )
    await api.client.patch(GROUPS, "nlp", {"status": {"ending": None}}, subresource="status")
    assert (await hooks.delete(await stored(api, "nlp")))["allowed"]


async def test_a_deletion_sees_the_pods_that_a_job_has_left(api: Api, hooks: Hooks) -> None:
    """A parameter server runs on after its job has ended, and is charged."""
    await api.group("nlp", cpu="10")
    job = await api.client.create(TFJOBS, tfjob("train", "nlp", 2))
    ended = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    await api.client.patch(TFJOBS, "train", {"status": ended}, namespace="default", subresource="status")
    assert (await hooks.delete(await stored(api, "nlp")))["allowed"]
    await api.client.create(PODS, child(job, "ps-0", None))
    assert "has workloads: tfjobs.kubeflow.org/default/train" in message(await hooks.delete(await stored(api, "nlp")))
    await api.client.patch(PODS, "ps-0", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
    assert (await hooks.delete(await stored(api, "nlp")))["allowed"]


async def test_a_dry_run_of_a_child_writes_nothing(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("corp", cpu="100")
    assert (await hooks.create(group("ai", "corp", cpu="60"), dry_run=True))["allowed"]
    assert "requested: limits.cpu=101" in message(await hooks.create(group("ai", "corp", cpu="101"), dry_run=True))
    assert proxy.sent("PUT") == 0


async def test_an_update_that_leaves_spec_alone_is_allowed_whatever_the_tree_says(api: Api, hooks: Hooks) -> None:
    """A finalizer can always be removed, even from a group whose parent is gone."""
    await api.group("orphan", cpu="1")
    old = changed(await stored(api, "orphan"), lambda o: o["spec"].update(parentBizGroup="gone"))
    assert (await hooks.update(old, changed(old, lambda o: o["metadata"].update(finalizers=[]))))["allowed"]


async def test_entries_of_a_newer_format_let_nothing_grow_and_everything_shrink(api: Api, hooks: Hooks) -> None:
    """A newer version has written them, and was rolled back."""
    await api.group("corp", cpu="100")
    await api.group("ai", "corp", cpu="60", used={"cpu": "4"})
    entry = "v2 deployments.apps/default/web uid=u until=2026-01-01T00:00:00Z what=else"
    for name in ("ai", "corp"):
        await api.client.patch(GROUPS, name, {"status": {"reservations": [entry]}}, subresource="status")
    assert "is not of format v1: a newer version of bizrq" in message(await hooks.create(deployment("new", "ai", 1)))
    web = at_rest(deployment("web", "ai", 4))
    assert "cannot be read" in message(await hooks.update(web, changed(web, lambda o: o["spec"].update(replicas=5))))
    for less in (lambda o: o["spec"].update(replicas=3), lambda o: o["metadata"].update(annotations={"a": "b"})):
        assert (await hooks.update(web, changed(web, less)))["allowed"]

    old = await stored(api, "ai")
    assert "is not of format v1" in message(await hooks.update(old, changed(old, hard(cpu="61"))))
    assert "is not of format v1" in message(await hooks.update(old, changed(old, hard(cpu="50", gpu="1"))))
    elsewhere = changed(old, lambda o: o["spec"].update(parentBizGroup=""))
    assert "is not of format v1" in message(await hooks.update(old, elsewhere))
    assert "is not of format v1" in message(await hooks.delete(old))
    assert (await hooks.update(old, changed(old, hard(cpu="50"))))["allowed"]
    assert (await hooks.update(old, changed(old, lambda o: o["spec"].update(owner="ml"))))["allowed"]
