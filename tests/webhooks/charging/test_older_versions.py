"""Scale-ups while older versions stand: each added pod costs what the largest version does that may be scaled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bizrq.kube.client import Resource
from bizrq.units.quantity import NANO
from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership.memory import Memory, payer_line
from bizrq.workloads.ownership.takeover import NOTES
from tests.support.objects import (
    DEPLOYMENTS,
    POD_TEMPLATES,
    PODS,
    REPLICASETS,
    ROLLOUTS,
    Object,
    deployment,
    pod_template,
    referring,
    rollout,
    template,
)
from tests.webhooks.charging.test_owner_trust import owned_by
from tests.webhooks.conftest import RUN_FILE, Api, Hooks, changed, message, run, stored
from tests.webhooks.handlers.test_children import remembers, scaled
from tests.webhooks.handlers.test_workloads import replicas

BOTH = pytest.mark.parametrize("make", [deployment, rollout], ids=["Deployment", "Rollout"])
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENT_CONTROLLER = {"username": "system:serviceaccount:kube-system:deployment-controller"}
RESOURCES = {"Deployment": DEPLOYMENTS, "Rollout": ROLLOUTS}


async def stands(api: Api, workload: Object, **status: Any) -> Object:
    """Store a workload with a status."""
    resource = RESOURCES[workload["kind"]]
    name = (await api.client.create(resource, workload))["metadata"]["name"]
    generation = 1 if workload["kind"] == "Deployment" else "1"
    patch = {"status": {"observedGeneration": generation, **status}}
    return await api.client.patch(resource, name, patch, namespace="default", subresource="status")


async def version(
    api: Api, owner: Object | None, name: str, replicas: int, cpu: str, labels: Object | None = None
) -> Object:
    """Store a ReplicaSet of an owner."""
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template(cpu)}
    hashed = {"app": "x", "pod-template-hash": name, "rollouts-pod-template-hash": name}
    metadata: Object = {"name": name, "namespace": "default", "labels": {**hashed, **(labels or {})}}
    if owner is not None:
        metadata["ownerReferences"] = [owned_by(owner)]
    made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
    return await api.client.create(REPLICASETS, made)


@BOTH
async def test_added_pods_cost_what_the_largest_version_does_that_runs(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="12", used={"cpu": "7"})
    web = await stands(api, make("web", "nlp", 2), replicas=3, updatedReplicas=1)
    await version(api, web, "old", 1, "5")
    await version(api, web, "older", 1, "3")
    for review in (hooks.update(web, changed(web, replicas(4))), scaled(hooks, web, 4)):
        assert "exceeded quota: nlp, requested: limits.cpu=10, used: limits.cpu=7" in message(await review)
    assert (await hooks.update(web, changed(web, replicas(3))))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] - entry.base["limits.cpu"] == 5 * NANO


@BOTH
async def test_versions_without_pods_and_those_of_others_add_nothing(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    web = await stands(api, make("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="now")
    other = await stands(api, make("other", "nlp", 2))
    await version(api, web, "now", 2, "1")
    await version(api, web, "history", 0, "50")
    await version(api, other, "theirs", 2, "50")
    await version(api, None, "unlike", 2, "50", {"app": "y"})
    assert (await hooks.update(web, changed(web, replicas(4))))["allowed"]


@BOTH
async def test_a_scale_down_and_a_new_template_are_priced_at_the_template(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web = await stands(api, make("web", "nlp", 2), replicas=3, updatedReplicas=1)
    await version(api, web, "old", 2, "5")
    assert (await hooks.update(web, changed(web, replicas(1))))["allowed"]
    smaller = changed(web, lambda o: o["spec"].update(template=template("500m")))
    assert (await hooks.update(web, smaller))["allowed"]
    assert await api.entries("nlp") == []


async def test_the_stable_version_of_a_rollout_counts_without_pods(api: Api, hooks: Hooks) -> None:
    """A rollout that is aborted scales it up again, with `dynamicStableScale` from none."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    web = await stands(api, rollout("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="stable")
    await version(api, web, "canary", 2, "1")
    await version(api, web, "stable", 0, "5")
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


async def test_a_rollouts_status_hides_no_version_that_runs(api: Api, hooks: Hooks) -> None:
    """Whoever may edit a Rollout may write its status, too; that of a Deployment only its controller writes."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    web = await stands(api, rollout("web", "nlp", 2), replicas=2, updatedReplicas=2, stableRS="canary")
    await version(api, web, "canary", 1, "1")
    await version(api, web, "stable", 1, "5")
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


@pytest.mark.parametrize("selector", [{"selector": {"matchLabels": {"app": "x"}}}, {}])
async def test_a_rollout_that_refers_to_its_template_has_older_versions(
    api: Api, hooks: Hooks, selector: Object
) -> None:
    """It may take the selector of what it refers to as well."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    await api.client.create(POD_TEMPLATES, pod_template("pods"))
    web = await stands(api, referring("web", "nlp", pod_template("pods"), 2, **selector))
    await version(api, web, "old", 1, "5")
    await version(api, None, "nobodys", 1, "50", {"app": "y"})
    assert "requested: limits.cpu=10," in message(await hooks.update(web, changed(web, replicas(4))))


@BOTH
async def test_a_new_workload_may_scale_what_it_adopts(api: Api, hooks: Hooks, make: Callable[..., Object]) -> None:
    """What it adopts is charged already."""
    await api.group("nlp", cpu="10", used={"cpu": "5"})
    left = await version(api, None, "left", 1, "5")
    uid, kind = left["metadata"]["uid"], make("web", "nlp")["kind"]
    line = payer_line(uid, Memory("nlp", f"{kind}/default/web", 1_700_000_000_000, 1_700_000_001_000))
    hooks.webhooks.payers.replace(uid, "nlp", [line])
    assert "exceeded quota: nlp, requested: limits.cpu=15," in message(await hooks.create(make("web", "nlp", 3)))
    assert (await hooks.create(make("web", "nlp", 2)))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.extra["limits.cpu"] == 5 * NANO


# What a refusal says.


@BOTH
async def test_a_refusal_names_the_versions_whose_size_counts_and_says_when_it_passes(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "6"})
    web = await stands(api, make("web", "nlp", 2), replicas=2, updatedReplicas=1)
    old = await version(api, web, "old", 1, "5")
    await version(api, web, "smaller", 1, "2")
    since = old["metadata"]["creationTimestamp"]
    why = (
        "exceeded quota: nlp, requested: limits.cpu=5, used: limits.cpu=6, limited: limits.cpu=9; left: limits.cpu=3; "
        "fits: 0 more replicas; added pods count as limits.cpu=5 each, like those of ReplicaSet old "
        f"(1 pod, since {since}), which may be scaled instead"
    )
    passes = ": the same request passes once the rollout is complete and their pods have gone"
    assert message(await hooks.update(web, changed(web, replicas(3)))) == why + passes + run(
        f"{web['kind'].lower()}/web -n default"
    )
    await api.client.delete(REPLICASETS, "old", "default")
    await api.client.delete(REPLICASETS, "smaller", "default")
    assert (await hooks.update(web, changed(web, replicas(3))))["allowed"]


@BOTH
async def test_a_refusal_of_another_template_and_more_pods_says_what_comes_first(
    api: Api, hooks: Hooks, make: Callable[..., Object]
) -> None:
    """The controller scales what runs before it replaces that, so the same request never passes."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    web = await stands(api, make("web", "nlp", 2, cpu="2"), replicas=2, updatedReplicas=2)
    await version(api, web, "now", 2, "2")
    smaller = changed(web, lambda o: o["spec"].update(template=template("1")))
    refused = message(await hooks.update(web, changed(smaller, replicas(4))))
    then = ": change the template by itself first, and the rest once the rollout is complete and their pods have gone"
    assert "which may be scaled instead" + then in refused
    assert (await hooks.update(web, smaller))["allowed"]


async def test_a_refusal_does_not_promise_that_a_request_passes_which_is_too_large_anyway(
    api: Api, hooks: Hooks
) -> None:
    await api.group("nlp", cpu="9", pods=2, used={"cpu": "6", "pods": 2})
    web = await stands(api, deployment("web", "nlp", 2), replicas=2, updatedReplicas=1)
    await version(api, web, "old", 1, "5")
    refused = message(await hooks.update(web, changed(web, replicas(3))))
    assert "added pods count as limits.cpu=5 each, like those of ReplicaSet old (1 pod, " in refused
    assert "passes" not in refused


async def test_a_refusal_names_two_of_the_largest_versions(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "6"})
    web = await stands(api, deployment("web", "nlp", 2))
    for name in "abcd":
        await version(api, web, name, 2, "5")
    refused = message(await hooks.update(web, changed(web, replicas(3))))
    assert refused.count("ReplicaSet ") == 2
    assert "(2 pods, since" in refused
    assert " and 2 more, which may be scaled instead" in refused


async def test_a_refusal_of_a_stateful_set_names_its_revision(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="12", used={"cpu": "10"})
    made = {**deployment("db", "nlp", 2, cpu="5"), "kind": "StatefulSet"}
    partition = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 9}}}
    old = stored(changed(made, lambda o: o.update(spec={**o["spec"], **partition}, status={"replicas": 2})))
    grown = changed(old, lambda o: o["spec"].update(replicas=3, template=template("1")))
    refused = message(await hooks.update(old, grown, resource=STATEFULSETS))
    assert "added pods count as limits.cpu=5 each, like those of the stored template (2 pods), which" in refused


async def test_a_stateful_set_waits_until_its_controller_has_seen_all_but_the_stored_template(
    api: Api, hooks: Hooks
) -> None:
    """It may have read one of before, and make a revision of it that becomes the current one."""
    await api.group("nlp", cpu="12")
    made = changed(deployment("db", "nlp", 0), lambda o: o.update(kind="StatefulSet"))
    made["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": 9}}
    made = await api.client.create(STATEFULSETS, made)
    behind = changed(made, lambda o: o["metadata"].update(generation=3))
    grown = changed(behind, lambda o: o["spec"].update(replicas=3))
    for observed, allowed in ((None, False), (1, False), (2, True)):
        if observed is not None:
            status = {"status": {"observedGeneration": observed}}
            await api.client.patch(STATEFULSETS, "db", status, namespace="default", subresource="status")
        answer = await hooks.update(behind, grown, resource=STATEFULSETS, timeout="1s")
        assert answer["allowed"] is allowed
        if not allowed:
            assert "the controller of StatefulSet default/db has not seen its last changes yet" in message(answer)
            assert answer["status"]["code"] == 429
    one = changed(made, lambda o: o["metadata"].update(generation=1))
    assert (await hooks.update(one, changed(one, lambda o: o["spec"].update(replicas=3)), resource=STATEFULSETS))[
        "allowed"
    ]
    freely = changed(grown, lambda o: o["spec"].pop("updateStrategy"))
    assert (await hooks.update(behind, freely, resource=STATEFULSETS))["allowed"]


async def test_a_refusal_of_a_new_workload_names_what_it_adopts(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "5"})
    left = await version(api, None, "left", 1, "5")
    remembers(hooks, left["metadata"]["uid"])
    refused = message(await hooks.create(deployment("web", "nlp", 3)))
    assert refused.endswith(
        "which may be scaled instead: the same request passes once nothing of that is left" + RUN_FILE
    )


@pytest.mark.parametrize("group", ["nlp", None], ids=["labelled", "unlabelled"])
async def test_a_paused_deployment_scales_what_it_adopts_and_nobody_left(
    api: Api, hooks: Hooks, group: str | None
) -> None:
    """It makes no version of its own, so its controller scales the newest that there is."""
    await api.group("nlp", cpu="9")
    await version(api, None, "bare", 0, "5", {LABEL: group} if group else None)
    web = changed(deployment("web", "nlp", 2), lambda o: o["spec"].update(paused=True))
    assert "exceeded quota: nlp, requested: limits.cpu=10," in message(await hooks.create(web))
    assert (await hooks.create(deployment("web", "nlp", 2)))["allowed"]


# What people do to the ReplicaSets of a paused Deployment.


async def held(api: Api, *, paused: bool = True) -> tuple[Object, Object, Object]:
    """A Deployment of two pods of one core, the ReplicaSet that has them, and an older one of five cores."""
    made = changed(deployment("web", "nlp", 2), lambda o: o["spec"].update(paused=paused))
    web = await stands(api, made, replicas=2, updatedReplicas=2)
    return web, await version(api, web, "now", 2, "1"), await version(api, web, "old", 0, "5")


def labels(obj: Object) -> None:
    obj["metadata"]["labels"]["app"] = "y"


def no_owner(obj: Object) -> None:
    """Its Deployment adopts it again."""
    obj["metadata"]["ownerReferences"] = []


@pytest.mark.parametrize("change", [None, labels])
async def test_what_takes_over_has_to_fit(api: Api, hooks: Hooks, change: Callable[[Object], None] | None) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "3"})
    _, now, _ = await held(api)
    operation, new = ("DELETE", None) if change is None else ("UPDATE", changed(now, change))
    said = message(await hooks.review("versions", operation, new, now, resource=REPLICASETS))
    assert "exceeded quota: nlp, requested: limits.cpu=8, used: limits.cpu=3" in said
    assert "like those of ReplicaSet old (no pods, " in said
    assert "charged for Deployment default/web, of which an older version takes over" in said
    await api.count("nlp", cpu="2")
    assert (await hooks.review("versions", operation, new, now, resource=REPLICASETS))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] - entry.base["limits.cpu"] == 8 * NANO


async def test_what_lets_nothing_take_over_is_free(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, now, old = await held(api)
    for operation, new, of in (
        ("DELETE", None, old),
        ("UPDATE", changed(now, no_owner), now),
        ("UPDATE", changed(now, lambda o: o["spec"].update(replicas=0)), now),
        ("UPDATE", changed(old, labels), old),
    ):
        assert (await hooks.review("versions", operation, new, of, resource=REPLICASETS))["allowed"]
    assert await api.entries("nlp") == []


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "not paused"])
@pytest.mark.parametrize(
    ("options", "finalizers", "left"),
    [
        ({"propagationPolicy": "Orphan"}, [], 2),
        ({"orphanDependents": True}, [], 2),
        ({}, ["orphan"], 2),
        ({"propagationPolicy": "Background"}, ["orphan"], 1),
        (None, [], 1),
    ],
)
async def test_pods_that_are_left_have_to_fit_beside_those_that_come(
    api: Api, hooks: Hooks, options: Object | None, finalizers: list[str], left: int, paused: bool
) -> None:
    """One of three pods has a second owner, which keeps it; one is being deleted already."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, now, _ = await held(api, paused=paused)
    await api.client.delete(REPLICASETS, "old", "default")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "now", "uid": now["metadata"]["uid"]}
    second = {"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": "k"}
    for name, more in (("a", []), ("b", [second]), ("c", [second])):
        metadata: Object = {"name": name, "namespace": "default", "labels": {"app": "x"}, "finalizers": ["a.b/c"]}
        metadata["ownerReferences"] = [{**owner, "controller": True}, *more]
        await api.client.create(PODS, {"metadata": metadata, "spec": template("1")["spec"]})
    await api.client.delete(PODS, "c", "default")
    now = changed(now, lambda o: o["metadata"].update(finalizers=finalizers))
    review = partial(hooks.review, "versions", "DELETE", None, now, resource=REPLICASETS, options=options)
    said = message(await review())
    assert f"exceeded quota: nlp, requested: limits.cpu={left}, used: limits.cpu=2" in said
    assert "charged for Deployment default/web, which makes others in place of the pods that stay (deleted with" in said
    await api.count("nlp", cpu="0")
    assert (await review())["allowed"]
    assert sum(entry.extra["limits.cpu"] for entry in await api.entries("nlp")) == left * NANO


async def test_a_deployment_that_is_not_paused_makes_its_version_again(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web, now, _ = await held(api, paused=False)
    assert (await hooks.review("versions", "DELETE", None, now, resource=REPLICASETS))["allowed"]
    pause = changed(web, lambda o: o["spec"].update(paused=True))
    assert (await hooks.update(web, pause))["allowed"]
    await api.client.delete(REPLICASETS, "now", "default")
    assert "exceeded quota: nlp, requested: limits.cpu=8, " in message(await hooks.update(web, pause))
    assert (await hooks.update(pause, web))["allowed"]


async def test_a_version_that_is_held_while_it_is_deleted_does_not_count_as_there(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web, _, _ = await held(api, paused=False)
    await api.client.patch(REPLICASETS, "now", {"metadata": {"finalizers": ["example.com/hold"]}}, namespace="default")
    await api.client.delete(REPLICASETS, "now", "default")
    assert "exceeded quota" in message(await hooks.update(web, changed(web, lambda o: o["spec"].update(paused=True))))


@pytest.mark.parametrize("replicas_before", [0, 1])
async def test_the_first_pod_costs_what_that_of_an_older_version_does(
    api: Api, hooks: Hooks, replicas_before: int
) -> None:
    await api.group("nlp", cpu="4", used={"cpu": str(replicas_before)})
    made = changed(deployment("web", "nlp", replicas_before), lambda o: o["spec"].update(paused=True))
    web = await stands(api, made)
    await version(api, web, "old", 0, "5")
    assert "requested: limits.cpu=5," in message(await hooks.update(web, changed(web, replicas(replicas_before + 1))))


async def test_who_writes_a_note_of_the_controller_divides_what_is_missing(api: Api, hooks: Hooks) -> None:
    """Unpaused, too: it scales where a note says that the declared number has changed."""
    await api.group("nlp", cpu="9", used={"cpu": "7"})
    rolling = {"strategy": {"rollingUpdate": {"maxSurge": "100%"}}}
    web = await stands(api, changed(deployment("web", "nlp", 2), lambda o: o["spec"].update(rolling)), replicas=3)
    await version(api, web, "now", 2, "1")
    old = await version(api, web, "old", 1, "5")
    noted = changed(old, lambda o: o["metadata"].update(annotations={NOTES[0]: "9", NOTES[1]: "1"}))
    refused = message(await hooks.review("versions", "UPDATE", noted, old, resource=REPLICASETS))
    assert "exceeded quota: nlp, requested: limits.cpu=4, " in refused
    assert (await hooks.review("versions", "UPDATE", old, old, resource=REPLICASETS))["allowed"]


async def raised(hooks: Hooks, obj: Object, count: int) -> Object:
    """Review that the controller of Deployments raises a ReplicaSet."""
    new = changed(obj, replicas(count))
    return await hooks.review("versions", "UPDATE", new, obj, resource=REPLICASETS, user=DEPLOYMENT_CONTROLLER)


async def test_what_the_controller_raises_has_to_fit_beyond_its_deployment(api: Api, hooks: Hooks) -> None:
    """But for the version of now, up to what is declared and the surge."""
    await api.group("nlp", cpu="9", used={"cpu": "7"})
    web = await stands(api, deployment("web", "nlp", 2), replicas=3)
    now, old = await version(api, web, "now", 1, "1"), await version(api, web, "old", 1, "5")
    second = await version(api, web, "then", 1, "1")
    for count in (2, 3):
        assert (await raised(hooks, now, count))["allowed"]
    assert await api.entries("nlp") == []
    assert "exceeded quota: nlp, requested: limits.cpu=5;" in message(await raised(hooks, old, 2))
    # Of two with the template of now the older one is the version of now; of one second, that with the first name.
    assert "exceeded quota: nlp, requested: limits.cpu=39;" in message(await raised(hooks, second, 40))
    assert "exceeded quota: nlp, requested: limits.cpu=39;" in message(await raised(hooks, now, 40))
    await api.count("nlp", cpu="4")
    assert (await raised(hooks, old, 2))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.slot.name, entry.pending_write and entry.pending_write.name) == ("web", "old")


async def test_what_a_write_of_the_deployment_was_admitted_with_covers_nothing_that_its_controller_raises(
    api: Api, hooks: Hooks
) -> None:
    """It has to fit beside that promise, until a recount settles it."""
    await api.group("nlp", cpu="12", used={"cpu": "7"})
    web = await stands(api, deployment("web", "nlp", 2), replicas=3, updatedReplicas=1)
    await version(api, web, "now", 2, "1")
    old = await version(api, web, "old", 1, "5")
    assert (await hooks.update(web, changed(web, replicas(3))))["allowed"]
    await api.client.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3}}, namespace="default")
    assert "exceeded quota: nlp, requested: limits.cpu=5;" in message(await raised(hooks, old, 2))
    await api.count("nlp", cpu="7")
    assert (await raised(hooks, old, 2))["allowed"]


async def test_nobody_pays_for_what_a_controller_raises_below_a_deployment_of_no_group(api: Api, hooks: Hooks) -> None:
    web = await stands(api, deployment("web", None, 2), replicas=3)
    old = await version(api, web, "old", 1, "5")
    assert (await raised(hooks, old, 20))["allowed"]


async def test_a_scale_down_by_hand_lets_the_only_other_version_that_runs_take_over(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "6"})
    made = changed(deployment("web", "nlp", 3), lambda o: o["spec"].update(paused=True))
    web = await stands(api, made, replicas=3, updatedReplicas=2)
    now, _ = await version(api, web, "now", 2, "1"), await version(api, web, "old", 1, "5")
    scale = {"kind": "Scale", "metadata": now["metadata"], "spec": {"replicas": 0}}
    refused = message(
        await hooks.review("versions", "UPDATE", scale, scale, resource=REPLICASETS, sub_resource="scale")
    )
    assert "requested: limits.cpu=8, " in refused


async def test_a_pause_amid_a_rollout_is_free(api: Api, hooks: Hooks) -> None:
    """All that its controller may have are there, or the current version has all that it is to have."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    web = await stands(api, deployment("web", "nlp", 4), replicas=5, updatedReplicas=2)
    notes = {NOTES[0]: "4", NOTES[1]: "5"}
    for name, count, cpu in (("now", 2, "1"), ("old", 3, "5")):
        await version(api, web, name, count, cpu)
    pause = changed(web, lambda o: o["spec"].update(paused=True))
    assert (await hooks.update(web, pause))["allowed"]
    for name, count in (("now", 4), ("old", 0)):
        await api.client.patch(REPLICASETS, name, {"spec": {"replicas": count}}, namespace="default")
    assert (await hooks.update(web, pause))["allowed"]
    for name, count in (("now", 3), ("old", 1)):
        change = {"spec": {"replicas": count}, "metadata": {"annotations": notes}}
        await api.client.patch(REPLICASETS, name, change, namespace="default")
    assert "requested: limits.cpu=4, " in message(await hooks.update(web, pause))
