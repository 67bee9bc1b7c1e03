"""Writes of referenced objects, and of children that outgrow their payer: charged to the workload that grows."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from bizrq.store.groups import GROUPS
from bizrq.units.slot import Slot
from bizrq.workloads.labels import LABEL
from tests.support.cluster import eventually
from tests.support.language import slot
from tests.support.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    OF_KIND,
    ROLLOUTS,
    Object,
    claim_template,
    claiming,
    deployment,
    device_class,
    pod_template,
    ray_spec,
    raycluster,
    rayjob,
    rayservice,
    referring,
    template,
)
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message

WEB = slot("rollouts.argoproj.io/default/web")


async def store(api: Api, obj: Object) -> Object:
    return await api.client.create(OF_KIND[obj["kind"]], obj)


def sized(cpu: str):
    def change(obj: Object) -> None:
        obj.get("spec", obj)["template"] = template(cpu)

    return change


async def edit(hooks: Hooks, old: Object, cpu: str, **how: Any) -> Object:
    return await hooks.review("references", "UPDATE", changed(old, sized(cpu)), old, **how)


@pytest.mark.parametrize("make", [lambda: deployment("shape", None, 0), lambda: pod_template("shape")])
async def test_a_larger_template_is_charged_to_the_rollout_that_refers_to_it(api: Api, hooks: Hooks, make: Any) -> None:
    """The reservation is in the Rollout's slot, and names the object whose write it awaits."""
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    shape = await store(api, make())
    await store(api, referring("web", "nlp", shape, 2))
    assert (await edit(hooks, shape, "3"))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.slot, promise.uid) == (WEB, shape["metadata"]["uid"])
    assert promise.awaited_slot == Slot(OF_KIND[shape["kind"]].key, "default", "shape")
    assert promise.resource_version == int(shape["metadata"]["resourceVersion"])
    assert (promise.amount["limits.cpu"], promise.base["limits.cpu"]) == (6 * 10**9, 2 * 10**9)


async def test_a_refusal_names_the_rollout_and_its_group(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="5", used={"cpu": "2"})
    shape = await store(api, pod_template("shape"))
    await store(api, referring("web", "nlp", shape, 2))
    assert message(await edit(hooks, shape, "3")) == (
        "exceeded quota: nlp, requested: limits.cpu=4, used: limits.cpu=2, limited: limits.cpu=5; "
        "left: limits.cpu=3; fits: 0 more replicas; charged for Rollout default/web, which refers to PodTemplate "
        "shape; run: kubectl bizrq explain nlp"
    )


async def test_every_group_that_grows_has_to_grant_it_in_the_order_of_their_names(api: Api, hooks: Hooks) -> None:
    shape = await store(api, pod_template("shape"))
    for name, cpu in (("a", "10"), ("b", "3"), ("c", "3")):
        await api.group(name, cpu=cpu, used={"cpu": "2"})
        await store(api, referring(f"web-{name}", name, shape, 2))
    assert "exceeded quota: b," in message(await edit(hooks, shape, "3"))
    await api.count("b", cpu="0")
    assert "exceeded quota: c," in message(await edit(hooks, shape, "2"))


async def test_what_makes_no_rollout_grow_is_allowed_and_written_nowhere(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """Covers shrinking, a group over quota, another group's user, no label, and a missing group."""
    await api.group("nlp", cpu="1", used={"cpu": "9"})
    shape = await store(api, pod_template("shape", "3"))
    await store(api, pod_template("other"))
    await store(api, referring("web", "nlp", shape, 2))
    assert (await edit(hooks, shape, "2"))["allowed"]
    assert (await edit(hooks, await api.client.get(OF_KIND["PodTemplate"], "other", "default"), "9"))["allowed"]
    lone = await store(api, pod_template("lone"))
    await store(api, referring("free", None, lone, 2))
    assert (await edit(hooks, lone, "9"))["allowed"]
    assert proxy.sent("PUT") == 0


async def test_a_dry_run_of_a_template_is_decided_and_writes_nothing(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="5", used={"cpu": "2"})
    shape = await store(api, pod_template("shape"))
    await store(api, referring("web", "nlp", shape, 2))
    assert (await edit(hooks, shape, "2", dry_run=True))["allowed"]
    assert "exceeded quota: nlp" in message(await edit(hooks, shape, "3", dry_run=True))
    assert proxy.sent("PUT") == 0


async def test_more_pods_wait_for_larger_ones_that_are_under_way(api: Api, hooks: Hooks) -> None:
    """Each alone would fit. The Rollout is refused after a while, and is counted with the stored template."""
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    shape = await store(api, pod_template("shape"))
    web = await store(api, referring("web", "nlp", shape, 2))
    assert (await edit(hooks, shape, "2"))["allowed"]
    more = changed(web, lambda o: o["spec"].update(replicas=6))
    answer = await hooks.update(web, more, timeout="2s")
    assert (answer["status"]["code"], "a change of podtemplates/default/shape is under way" in message(answer)) == (
        429,
        True,
    )
    await api.client.replace(OF_KIND["PodTemplate"], changed(shape, sized("2")))
    assert "requested: limits.cpu=8" in message(await hooks.update(web, more))
    assert (await hooks.update(web, changed(web, lambda o: o["spec"].update(replicas=5))))["allowed"]


async def test_larger_pods_wait_for_more_of_them_and_are_counted_with_these(api: Api, hooks: Hooks) -> None:
    """The wait ends as soon as the other write is stored."""
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    shape = await store(api, pod_template("shape"))
    web = await store(api, referring("web", "nlp", shape, 2))
    more = changed(web, lambda o: o["spec"].update(replicas=4))
    assert (await hooks.update(web, more))["allowed"]
    waiting = asyncio.create_task(edit(hooks, shape, "2"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await api.client.replace(ROLLOUTS, more)
    assert (await waiting)["allowed"]
    assert max(each.amount["limits.cpu"] for each in await api.entries("nlp")) == 8 * 10**9


async def test_a_rollout_that_moves_says_so_in_the_group_that_it_leaves(api: Api, hooks: Hooks) -> None:
    """Otherwise the template would be charged to the old group, and the new group would not see it."""
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    await api.group("vision", cpu="10")
    shape = await store(api, pod_template("shape"))
    web = await store(api, referring("web", "nlp", shape, 2))
    moved = changed(web, lambda o: o["metadata"].update(labels={LABEL: "vision"}))
    assert (await hooks.update(web, moved))["allowed"]
    [leaves], [enters] = await api.entries("nlp"), await api.entries("vision")
    assert (leaves.slot, leaves.uid, leaves.extra["limits.cpu"]) == (enters.slot, enters.uid, 0)
    assert enters.extra["limits.cpu"] == 2 * 10**9
    assert message(await edit(hooks, shape, "2", timeout="2s")) == f"PodTemplate default/shape {PROMISED}"


PROMISED = "was promised to rollouts.argoproj.io/default/web a moment ago: try again"


async def test_what_a_rollout_comes_to_refer_to_waits_for_it(api: Api, hooks: Hooks) -> None:
    """The Rollout is admitted and not stored: a list of what refers to the template does not have it."""
    await api.group("nlp", cpu="10")
    shape, other = await store(api, deployment("shape", None, 0)), await store(api, pod_template("other"))
    assert (await hooks.create(referring("web", "nlp", shape, 2)))["allowed"]
    [promise] = await api.entries("nlp")
    assert "templates=shape" in str(promise).split()
    response = await hooks.review("references", "DELETE", None, shape)
    assert (message(response), response["status"]["code"]) == (f"Deployment default/shape {PROMISED}", 429)
    assert message(await edit(hooks, shape, "5")) == f"Deployment default/shape {PROMISED}"
    assert (await hooks.review("references", "DELETE", None, other))["allowed"]


async def test_a_template_that_is_stored_just_after_the_promise_is_counted(api: Api, hooks: Hooks) -> None:
    """Its write was answered before the Rollout came to refer to it."""
    await api.group("nlp", cpu="10")
    shape = await store(api, deployment("shape", None, 0))
    creating = asyncio.create_task(hooks.create(referring("web", "nlp", shape, 2)))
    await eventually(lambda: _has_entries(api, "nlp"), 5, "the promise is stored")
    await api.client.replace(DEPLOYMENTS, changed(shape, sized("6")))
    assert "exceeded quota: nlp, requested: limits.cpu=12" in message(await creating)


async def _has_entries(api: Api, group: str) -> bool:
    return bool(await api.entries(group))


async def test_a_dry_run_of_what_comes_to_refer_to_a_template_waits_for_nothing(
    api: Api, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.charging.charger.LANDS", 60.0)
    await api.group("nlp", cpu="10")
    shape = await store(api, deployment("shape", None, 0))
    async with asyncio.timeout(5):
        assert (await hooks.create(referring("web", "nlp", shape, 2), dry_run=True))["allowed"]


async def test_what_a_rollout_without_pods_refers_to_waits_until_it_has_some(api: Api, hooks: Hooks) -> None:
    """It needs no template before, so that nothing is charged for a larger one."""
    await api.group("nlp", cpu="10")
    shape = await store(api, deployment("shape", None, 0))
    web = await store(api, referring("web", "nlp", shape, 0))
    assert (await hooks.review("references", "DELETE", None, shape))["allowed"]
    assert (await hooks.update(web, changed(web, lambda o: o["spec"].update(replicas=2))))["allowed"]
    assert PROMISED in message(await hooks.review("references", "DELETE", None, shape))
    assert PROMISED in message(await edit(hooks, shape, "9"))


async def test_a_pod_template_that_is_created_again_is_charged_to_its_users(api: Api, hooks: Hooks) -> None:
    """The Rollout cannot be counted without it."""
    await api.group("nlp", cpu="5")
    await store(api, referring("web", "nlp", pod_template("shape"), 2))
    refused = message(await hooks.review("references", "CREATE", pod_template("shape", "3")))
    assert "exceeded quota: nlp, requested: limits.cpu=6" in refused
    assert "charged for Rollout default/web, which refers to PodTemplate shape" in refused
    new = changed(pod_template("shape", "2"), lambda o: o["metadata"].update(uid="u2"))
    assert (await hooks.review("references", "CREATE", new))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.slot, promise.uid, promise.amount["limits.cpu"]) == (WEB, "u2", 4 * 10**9)


@pytest.mark.parametrize("make", [lambda: deployment("shape", None, 0), lambda: pod_template("shape")])
async def test_a_rollout_cannot_come_to_refer_to_what_is_being_deleted(api: Api, hooks: Hooks, make: Any) -> None:
    """What comes in its place may be of any size; a Rollout that stands asks for no more of it."""
    await api.group("nlp", cpu="10", used={"cpu": "2"})
    other = await store(api, pod_template("other"))
    made = make()
    shape = await store(api, changed(made, lambda o: o["metadata"].update(finalizers=["example.com/held"])))
    web = await store(api, referring("web", "nlp", shape, 2))
    another = await store(api, referring("another", "nlp", other, 2))
    await api.client.delete(OF_KIND[shape["kind"]], "shape", "default")
    gone = f"{shape['kind']} shape, which has the template of its pods, is being deleted: refer to another"
    assert gone in message(await hooks.create(referring("new", "nlp", shape, 2)))
    assert gone in message(await hooks.update(web, changed(web, lambda o: o["spec"].update(replicas=3))))
    moved = changed(another, lambda o: o["spec"].update(workloadRef=web["spec"]["workloadRef"]))
    assert gone in message(await hooks.update(another, moved))
    assert (await hooks.update(web, changed(web, lambda o: o["spec"].update(replicas=1))))["allowed"]
    assert (
        await hooks.update(web, changed(web, lambda o: o["spec"].update(workloadRef=another["spec"]["workloadRef"])))
    )["allowed"]
    await api.client.patch(OF_KIND[shape["kind"]], "shape", {"metadata": {"finalizers": None}}, namespace="default")


# -- Claim templates ---------------------------------------------------------------------------------------------------


async def devices(api: Api, group: str = "nlp", replicas: int = 2) -> Object:
    """A Deployment whose pods have a claim each, of a template that is not there."""
    await store(api, device_class("gpu"))
    return await store(api, claiming(deployment("web", group, replicas), "devices"))


async def test_a_claim_template_that_is_created_again_is_charged_to_its_users(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", gpu="10")
    await devices(api)
    assert "requested: requests.nvidia.com/gpu=12" in message(
        await hooks.review("references", "CREATE", claim_template("devices", 6))
    )
    new = changed(claim_template("devices", 5), lambda o: o["metadata"].update(uid="u5"))
    assert (await hooks.review("references", "CREATE", new))["allowed"]
    [promise] = await api.entries("nlp")
    assert (str(promise.slot), promise.uid, promise.resource_version) == ("deployments.apps/default/web", "u5", None)
    assert str(promise.awaited_slot) == "resourceclaimtemplates.resource.k8s.io/default/devices"
    assert promise.amount["requests.nvidia.com/gpu"] == 10 * 10**9


async def test_a_claim_template_that_is_used_stays_and_the_refusal_names_two_users(api: Api, hooks: Hooks) -> None:
    await store(api, device_class("gpu"))
    used = await store(api, claim_template("devices", 1))
    free = await store(api, claim_template("free", 1))
    for name in ("a", "b", "c"):
        await store(api, claiming(deployment(name, "nlp", 0), "devices"))
    await store(api, claiming(deployment("d", None), "free"))
    assert message(await hooks.review("references", "DELETE", None, used)) == (
        "ResourceClaimTemplate default/devices is used by Deployment default/a and Deployment default/b and 1 more: "
        "delete those first, or have them use another"
    )
    assert (await hooks.review("references", "DELETE", None, free))["allowed"]


async def test_with_its_namespace_a_claim_template_may_go(api: Api, hooks: Hooks) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}}
    await api.client.create(NAMESPACES, namespace)
    await store(api, device_class("gpu"))
    used = await store(api, claim_template("devices", 1, namespace="going"))
    held = claiming(deployment("web", "nlp", namespace="going"), "devices")
    held["metadata"]["finalizers"] = ["example.com/held"]
    await store(api, held)
    assert "is used by" in message(await hooks.review("references", "DELETE", None, used))
    await api.client.delete(NAMESPACES, "going")
    assert (await hooks.review("references", "DELETE", None, used))["allowed"]
    await api.client.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}, namespace="going")


BUSY = "ResourceClaimTemplate default/devices was promised to deployments.apps/default/web a moment ago: try again"


async def test_a_claim_template_waits_for_what_may_come_to_name_it(api: Api, hooks: Hooks) -> None:
    """The workload is admitted and not stored: a list of what names the template does not have it."""
    await api.group("nlp", cpu="9", gpu="4")
    await store(api, device_class("gpu"))
    used = await store(api, claim_template("devices", 1))
    web = claiming(deployment("web", "nlp", 4), "devices")
    assert (await hooks.create(web))["allowed"]
    [promise] = await api.entries("nlp")
    assert "templates=devices" in str(promise).split()
    assert message(await hooks.review("references", "DELETE", None, used)) == BUSY
    assert (await hooks.review("references", "CREATE", claim_template("free", 8)))["allowed"]
    await api.client.delete(OF_KIND["ResourceClaimTemplate"], "devices", "default")
    response = await hooks.review("references", "CREATE", claim_template("devices", 8))
    assert (message(response), response["status"]["code"]) == (BUSY, 429)


async def test_a_claim_template_stays_where_its_user_is_stored_and_counted_while_users_are_listed(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    """Then the user is not in the list, and its promise is gone once that has come."""
    await api.group("nlp", cpu="9", gpu="4")
    await store(api, device_class("gpu"))
    used = await store(api, claim_template("devices", 1))
    web = claiming(deployment("web", "nlp", 4), "devices")
    assert (await hooks.create(web))["allowed"]

    async def is_stored_once_listed(request: str, _code: int) -> bool:
        if request.startswith("GET ") and request.partition("?")[0].endswith("/namespaces/default/deployments"):
            proxy.after.clear()
            await store(api, web)
            await api.count("nlp", cpu="4", gpu="4")
        return False

    proxy.after.append(is_stored_once_listed)
    assert "is used by Deployment default/web" in message(await hooks.review("references", "DELETE", None, used))
    assert not proxy.after, "the deployments were not listed"


async def test_a_deployment_that_no_rollout_names_goes_without_a_read_of_the_groups(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    """Nor by a list that waits for what was written before: many are deleted, and few are named."""
    await api.group("nlp", cpu="10")
    shape, other = [await store(api, deployment(name, None, 0)) for name in ("shape", "other")]
    web = await store(api, referring("web", "nlp", other, 2))
    before = proxy.sent("GET", GROUPS.path())
    assert (await hooks.review("references", "DELETE", None, shape))["allowed"]
    assert proxy.sent("GET", GROUPS.path()) == before
    assert "is used by Rollout default/web" in message(await hooks.review("references", "DELETE", None, other))
    assert (await hooks.create(referring("next", "nlp", shape, 2)))["allowed"]
    said = "Deployment default/shape was promised to rollouts.argoproj.io/default/next a moment ago: try again"
    assert message(await hooks.review("references", "DELETE", None, shape)) == said
    await api.client.delete(ROLLOUTS, web["metadata"]["name"], "default")
    assert (await hooks.review("references", "DELETE", None, other))["allowed"]


@pytest.mark.parametrize("is_labelled", [True, False])
async def test_an_update_that_needs_no_more_says_which_claim_templates_it_comes_to_name(
    api: Api, hooks: Hooks, is_labelled: bool
) -> None:
    await api.group("nlp", cpu="9", gpu="4")
    await store(api, device_class("gpu"))
    for name in ("devices", "other"):
        await store(api, claim_template(name, 1))
    old = (
        claiming(deployment("web", "nlp", 4), "other")
        if is_labelled
        else claiming(deployment("web", None, 4), "devices")
    )
    old = await store(api, old)
    new = changed(claiming(copy.deepcopy(old), "devices"), lambda o: o["metadata"].update(labels={LABEL: "nlp"}))
    assert (await hooks.update(old, new))["allowed"]
    [promise] = await api.entries("nlp")
    assert promise.may_name_template("devices")
    assert not promise.may_name_template("other")
    stored = await store(api, claim_template("free", 1))
    assert (await hooks.review("references", "DELETE", None, stored))["allowed"]
    assert (await hooks.update(new, changed(new, lambda o: o["spec"].update(paused=True))))["allowed"]
    assert await api.entries("nlp") == [promise]


async def test_a_claim_template_whose_name_is_taken_is_none_that_may_land_later(api: Api, hooks: Hooks) -> None:
    """It is reviewed before the one of that name goes, and may be stored after that."""
    await store(api, device_class("gpu"))
    await store(api, claim_template("devices", 1))
    response = await hooks.review("references", "CREATE", claim_template("devices", 8))
    assert message(response) == 'resourceclaimtemplates.resource.k8s.io "devices" already exists'
    assert response["status"]["code"] == 409


# -- Children that outgrow their payer ---------------------------------------------------------------------------------

TRAIN = slot("rayjobs.ray.io/default/train")


def workers(number: int):
    return lambda obj: obj["spec"].update(ray_spec(number))


async def cluster_of(api: Api, workers: int = 2, labels: Object | None = None) -> tuple[Object, Object]:
    """A RayJob of two workers (4 cpu with head and submitter) and the cluster that was made of it."""
    job = await store(api, rayjob("train", "nlp", 2))
    return job, await store(api, raycluster("train-abc", workers, job, labels=labels))


@pytest.mark.parametrize("labels", [{}, {LABEL: "nlp"}], ids=["no label", "the label"])
async def test_a_child_that_outgrows_its_payer_is_charged_to_it(api: Api, hooks: Hooks, labels: Object) -> None:
    """Counts the head, five workers and the submitter; the reservation awaits the cluster's write."""
    await api.group("nlp", cpu="8", used={"cpu": "4"})
    _, made = await cluster_of(api, labels=labels)
    assert message(await hooks.update(made, changed(made, workers(7)))) == (
        "exceeded quota: nlp, requested: limits.cpu=5, used: limits.cpu=4, limited: limits.cpu=8; left: limits.cpu=4; "
        "charged for RayJob default/train, which made RayCluster train-abc; run: kubectl bizrq explain nlp"
    )
    assert (await hooks.update(made, changed(made, workers(5))))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.slot, promise.uid) == (TRAIN, made["metadata"]["uid"])
    assert str(promise.awaited_slot) == "rayclusters.ray.io/default/train-abc"
    assert (promise.amount["limits.cpu"], promise.base["limits.cpu"]) == (7 * 10**9, 4 * 10**9)
    assert "count/rayclusters.ray.io" not in promise.amount


async def test_a_child_that_is_made_or_grows_within_what_is_paid_leaves_its_mark(api: Api, hooks: Hooks) -> None:
    """Otherwise its payer could ask for less meanwhile and free what the child uses. It is allowed over quota."""
    await api.group("nlp", cpu="3", used={"cpu": "4"})
    job = await store(api, rayjob("train", "nlp", 2))
    made = changed(raycluster("train-abc", 2, job), lambda o: o["metadata"].update(uid="u-abc"))
    assert (await hooks.create(made))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.slot, promise.uid, promise.extra["limits.cpu"]) == (TRAIN, "u-abc", 0)


async def test_a_child_that_shrinks_writes_nothing(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="3", used={"cpu": "4"})
    _, made = await cluster_of(api, 5)
    assert (await hooks.update(made, changed(made, workers(4))))["allowed"]
    assert proxy.sent("PUT") == 0


async def test_of_two_clusters_the_larger_one_counts_while_a_service_is_upgraded(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="8", used={"cpu": "6"})
    service = await store(api, rayservice("serve", "nlp", 2))
    await store(api, raycluster("serve-abc", 5, service))
    second = raycluster("serve-def", 7, service)
    assert (await hooks.create(second))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.amount["limits.cpu"], promise.base["limits.cpu"]) == (8 * 10**9, 6 * 10**9)
    assert "requested: limits.cpu=3" in message(await hooks.create(changed(second, workers(8))))


async def test_a_second_cluster_of_a_job_pays_for_itself(api: Api, hooks: Hooks) -> None:
    """A job has one cluster: another one that names it as owner pays for what the job's charge does not cover.

    Submitter, head and two workers are four; a cluster that grew within them leaves less for another.
    """
    await api.group("nlp", cpu="8", used={"cpu": "4"})
    job, _ = await cluster_of(api, 2)
    forged = raycluster("train-def", 2, job)
    response = await hooks.create(changed(forged, workers(4)))
    assert "requested: limits.cpu=5, used: limits.cpu=4" in message(response)
    assert (await hooks.create(forged))["allowed"]
    [promise] = await api.entries("nlp")
    assert (str(promise.slot), promise.amount["limits.cpu"]) == ("rayclusters.ray.io/default/train-def", 3 * 10**9)


@pytest.mark.parametrize(("user", "may"), [(None, False), ({"username": "system:serviceaccount:ray:kuberay"}, True)])
@pytest.mark.parametrize("is_new", [True, False], ids=["made", "changed"])
async def test_people_state_what_hard_names_in_what_outgrows_its_payer(
    api: Api, hooks: Hooks, user: Object | None, may: bool, is_new: bool
) -> None:
    """An operator's account is of another namespace, and may make pods that state nothing."""
    await api.group("nlp", cpu="8", used={"cpu": "4"})
    job = await store(api, rayjob("train", "nlp", 2))
    made = raycluster("train-abc", 2, job)
    bare = changed(made, lambda o: o["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0].pop("resources"))
    if is_new:
        answer = await hooks.create(bare, user=user)
    else:
        old = await store(api, made)
        answer = await hooks.update(old, changed(old, lambda o: o.update(spec=bare["spec"])), user=user)
    assert answer["allowed"] is may
    if not may:
        assert "must specify limits.cpu for: c" in message(answer)


async def test_a_payer_that_changes_is_counted_with_its_stored_child(api: Api, hooks: Hooks) -> None:
    """Asking for as many as run already costs nothing, and is recorded; a larger submitter is added to them."""
    await api.group("nlp", cpu="8", used={"cpu": "7"})
    job, _ = await cluster_of(api, 5)
    four = changed(job, lambda o: o["spec"].update(rayClusterSpec=ray_spec(4)))
    assert (await hooks.update(job, four))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.awaited_slot, promise.amount["limits.cpu"], promise.extra["limits.cpu"]) == (TRAIN, 7 * 10**9, 0)
    submitter = changed(job, lambda o: o["spec"].update(submitterPodTemplate=template("3")))
    assert "requested: limits.cpu=2" in message(await hooks.update(job, submitter))


async def test_what_is_no_child_of_a_payer_is_charged_as_ever(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """Covers a forged owner and an owner that does not pay."""
    await api.group("nlp", cpu="1")
    job = await store(api, rayjob("free", None, 2))
    assert (await hooks.create(raycluster("free-abc", 5, job)))["allowed"]
    forged = changed(
        raycluster("abc", 5, job, labels={LABEL: "nlp"}), lambda o: o["metadata"]["ownerReferences"][0].update(uid="x")
    )
    assert "exceeded quota: nlp, requested: limits.cpu=6" in message(await hooks.create(forged))
    assert proxy.sent("PUT") == 0
