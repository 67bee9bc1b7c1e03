"""Who is believed about an ownerReference, and what a child pays that its owner's charge does not reach."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.support.objects import (
    DEPLOYMENTS,
    MPIJOBS,
    OF_KIND,
    PODS,
    REPLICASETS,
    ROLLOUTS,
    TFJOBS,
    Object,
    deployment,
    rollout,
    template,
    tfjob,
)
from tests.support.tenant import JOBS
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored

#: Of Kubernetes, and of an operator that is not listed.
REPLICASET_CONTROLLER = {"username": "system:serviceaccount:kube-system:replicaset-controller"}
OPERATOR = {"username": "system:serviceaccount:kubeflow:training-operator"}
OF_REPLICA_SET: Object = {"apiVersion": REPLICASETS.api_version, "kind": "ReplicaSet"}
TRAIN = "tfjobs.kubeflow.org/default/train"
COLLECTOR = {"username": "system:serviceaccount:kube-system:generic-garbage-collector"}


def child(owner: Object, name: str, group: str | None = "nlp", *, cpu: Any = "1", **limits: Any) -> Object:
    """A pod that says the owner made it."""
    metadata: Object = {"name": name, "namespace": "default", "ownerReferences": [owned_by(owner)]}
    if group:
        metadata["labels"] = {LABEL: group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(cpu, **limits)["spec"]}


def owned_by(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def released(obj: Object) -> Object:
    return changed(obj, lambda o: o["metadata"].pop("ownerReferences"))


async def job(api: Api, workers: int = 2) -> Object:
    """A stored job whose workers ask for a core and a card each."""
    return await api.client.create(TFJOBS, tfjob("train", "nlp", workers))


async def worker(api: Api, owner: Object, name: str) -> Object:
    return await api.client.create(PODS, child(owner, name, **{"nvidia.com/gpu": 1}))


async def test_pods_within_their_owners_count_cost_nothing_for_any_user(api: Api, hooks: Hooks) -> None:
    """Covers an operator that is not listed, and people who make a job's pods by hand."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    owner = await job(api)
    await worker(api, owner, "w0")
    for user in (OPERATOR, None):
        assert (await hooks.create(child(owner, "w1", **{"nvidia.com/gpu": 1}), user=user))["allowed"]
    assert {(str(e.slot), str(e.awaited_slot)) for e in await api.entries("nlp")} == {(TRAIN, "pods/default/w1")}
    assert all(not any(e.extra.values()) for e in await api.entries("nlp"))


IN_NAMESPACE: Object = {
    "username": "system:serviceaccount:default:driver",
    "groups": ["system:serviceaccounts:default"],
}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(("user", "may"), [(None, False), (IN_NAMESPACE, False), (OPERATOR, True)])
async def test_people_state_what_hard_names_within_their_owners_count(
    api: Api, hooks: Hooks, kind: str, user: Object | None, may: bool
) -> None:
    """An operator may add containers that state nothing: its account is of another namespace."""
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = await job(api)
    bare = {"name": "bare", "image": "x"}
    made = changed(child(owner, "w0"), lambda o: o["spec"].update({kind: [*o["spec"].get(kind, ()), bare]}))
    answer = await hooks.create(made, user=user)
    assert answer["allowed"] is may
    if not may:
        assert "must specify limits.cpu for: bare" in message(answer)


async def test_a_pod_below_an_owner_that_is_being_deleted_pays_for_itself(api: Api, hooks: Hooks) -> None:
    """Its controller makes no more, and what the owner asks for may change."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    held = changed(tfjob("train", "nlp", 2), lambda o: o["metadata"].update(finalizers=["example.com/held"]))
    owner = await api.client.create(TFJOBS, held)
    await api.client.delete(TFJOBS, "train", "default")
    assert "requested: limits.cpu=4" in message(await hooks.create(child(owner, "w0", cpu="4")))
    assert (await hooks.create(child(owner, "w0", cpu="1")))["allowed"]
    [entry] = await api.entries("nlp")
    assert (str(entry.slot), entry.extra["limits.cpu"]) == ("pods/default/w0", 10**9)
    await api.client.patch(TFJOBS, "train", {"metadata": {"finalizers": None}}, namespace="default")


async def test_a_pod_beyond_its_owners_count_pays_for_itself(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner = await job(api)
    await worker(api, owner, "w0")
    await worker(api, owner, "w1")
    forged = child(owner, "forged", **{"nvidia.com/gpu": 1})
    assert (await hooks.create(forged))["allowed"]
    [entry] = await api.entries("nlp")
    assert (str(entry.slot), str(entry.awaited_slot)) == (TRAIN, "pods/default/forged")
    assert (entry.amount["limits.cpu"], entry.base) == (1_000_000_000, {})
    assert "count/pods" not in entry.amount
    second = changed(forged, lambda o: o["metadata"].update(name="second"))
    assert message(await hooks.create(second)).startswith("exceeded quota: nlp, requested: limits.cpu=1, used: ")


async def test_a_forged_child_pays_for_more_than_a_pod_of_its_owner_has(api: Api, hooks: Hooks) -> None:
    """Covers a pod of a hundred cores in place of one core, and a pod with cards that no template names."""
    await api.group("nlp", cpu="10", gpu="8", used={"cpu": "2", "gpu": "2"})
    owner = await job(api)
    assert "requested: limits.cpu=99" in message(await hooks.create(child(owner, "big", cpu="100")))
    cards = child(owner, "cards", **{"nvidia.com/gpu": 9})
    assert "requested: requests.nvidia.com/gpu=8" in message(await hooks.create(cards))


async def test_pods_that_the_owner_has_yet_to_make_keep_their_part(api: Api, hooks: Hooks) -> None:
    """Its controller makes the others besides: of four workers of one core, one of three cores is two too many."""
    await api.group("nlp", cpu="5", gpu="4", used={"cpu": "4", "gpu": "4"})
    owner = await job(api, 4)
    await worker(api, owner, "w0")
    large = child(owner, "w1", cpu="3", **{"nvidia.com/gpu": 1})
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await hooks.create(large))
    as_declared = child(owner, "w1", **{"nvidia.com/gpu": 1})
    assert (await hooks.create(as_declared))["allowed"]
    assert not any(amount for entry in await api.entries("nlp") for amount in entry.extra.values())
    half = child(owner, "w2", cpu="500m", **{"nvidia.com/gpu": 1})
    assert (await hooks.create(half))["allowed"]
    [entry] = [each for each in await api.entries("nlp") if each.awaited_slot.name == "w2"]
    assert not any(entry.extra.values())


async def test_a_pod_is_resized_beside_those_that_the_owner_has_yet_to_make(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", gpu="4", used={"cpu": "4", "gpu": "4"})
    owner = await job(api, 4)
    first = await worker(api, owner, "w0")
    refused = await hooks.update(first, resized(first, "4"), sub_resource="resize")
    assert "exceeded quota: nlp, requested: limits.cpu=3" in message(refused)


async def test_what_is_below_a_pod_of_a_workload_pays_for_itself(api: Api, hooks: Hooks) -> None:
    """A driver's executors are the application's. Other pods make nothing that somebody pays for."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner = await job(api)
    first = await worker(api, owner, "w0")
    reason = "metadata.ownerReferences: nlp pays for Pod w0, and not for what is below it: label this object"
    assert reason in message(await hooks.create(child(first, "more", None)))
    bare = stored(released(child(first, "bare", None)))
    below = changed(bare, lambda o: o["metadata"].update(ownerReferences=[owned_by(first)]))
    assert reason in message(await hooks.update(bare, below))
    assert (await hooks.create(child(first, "more")))["allowed"]
    [entry] = await api.entries("nlp")
    assert (str(entry.slot), entry.extra["limits.cpu"]) == ("pods/default/more", 1_000_000_000)


async def test_children_of_all_kinds_share_what_their_owner_is_charged(api: Api, hooks: Hooks) -> None:
    """An MPIJob makes pods, and a Job. A Job that is being deleted may be held, and keeps its pods."""
    await api.group("nlp", cpu="4", used={"cpu": "3"})
    roles = {
        "Launcher": {"replicas": 1, "template": template("1")},
        "Worker": {"replicas": 2, "template": template("1")},
    }
    owner = {
        "apiVersion": MPIJOBS.api_version,
        "kind": MPIJOBS.kind,
        "metadata": {"name": "train", "namespace": "default", "labels": {LABEL: "nlp"}},
        "spec": {"mpiReplicaSpecs": roles},
    }
    owner = await api.client.create(MPIJOBS, owner)
    await api.client.create(PODS, child(owner, "w0"))
    launcher: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": child(owner, "launcher")["metadata"]}
    launcher["metadata"]["finalizers"] = ["example.com/held"]
    launcher["spec"] = {"template": template("1"), "parallelism": 2}
    launcher["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    await api.client.create(JOBS, launcher)
    await api.client.delete(JOBS, "launcher", "default")
    assert (await hooks.create(child(owner, "w1")))["allowed"]
    assert [entry.extra["limits.cpu"] for entry in await api.entries("nlp")] == [1_000_000_000]
    assert "exceeded quota" in message(await hooks.create(child(owner, "w2")))


async def test_a_controller_adopts_what_no_group_paid_for_as_far_as_it_fits(api: Api, hooks: Hooks) -> None:
    """Kubernetes' controllers adopt whatever matches. Two pods of one core are declared."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner = await api.client.create(REPLICASETS, {**deployment("web", "nlp", 2), **OF_REPLICA_SET})
    for cpu, is_allowed in (("1", True), ("2", True), ("3", False)):
        found = child(owner, f"of-{cpu}", None, cpu=cpu)
        found["metadata"]["labels"] = {"app": "x"}
        stands = stored(released(found))
        adopted = changed(stands, lambda o: o["metadata"].update(ownerReferences=[owned_by(owner)]))
        answer = await hooks.update(stands, adopted, user=REPLICASET_CONTROLLER)
        assert answer["allowed"] is is_allowed
        touched = changed(adopted, lambda o: o["metadata"]["labels"].update(more="1"))
        assert (await hooks.update(adopted, touched, user=REPLICASET_CONTROLLER))["allowed"]
    assert sum(entry.extra["limits.cpu"] for entry in await api.entries("nlp")) == 1_000_000_000


async def test_pods_that_ended_or_go_or_are_anothers_are_not_in_the_way(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner = await job(api, 1)
    other = await api.client.create(TFJOBS, tfjob("other", "nlp", 1))
    await worker(api, other, "theirs")
    await worker(api, owner, "over")
    await api.client.patch(PODS, "over", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
    assert (await hooks.create(child(owner, "w0", **{"nvidia.com/gpu": 1})))["allowed"]
    [entry] = await api.entries("nlp")
    assert not any(entry.extra.values())


async def test_children_that_come_at_the_same_moment_share_their_owners_charge(api: Api, hooks: Hooks) -> None:
    """Three of five are covered, one fits beside them; none of them is stored when the others are decided."""
    await api.group("nlp", cpu="4", used={"cpu": "3"})
    owner = await job(api, 3)
    pods = [child(owner, f"w{number}", None, **{"nvidia.com/gpu": 1}) for number in range(5)]
    answers = await asyncio.gather(*(hooks.create(pod, user=OPERATOR) for pod in pods))
    assert sum(answer["allowed"] for answer in answers) == 4
    assert sum(entry.extra["limits.cpu"] for entry in await api.entries("nlp")) == 1_000_000_000


async def test_a_child_whose_entry_a_recount_may_have_dropped_is_listed_again(api: Api, hooks: Hooks) -> None:
    """The status was counted from pods that are newer than the list: it may have dropped the entry of one of them."""
    await api.group("nlp", cpu="2", used={"cpu": "1"})
    owner = await job(api, 1)
    group = await api.client.get(GROUPS, "nlp")
    group["status"]["countedAt"] = {"pods": str(10**12)}
    await api.client.replace(GROUPS, group, subresource="status")
    response = await hooks.create(child(owner, "w0"), user=OPERATOR)
    assert "other children of tfjobs.kubeflow.org/default/train are being created" in message(response)
    assert response["status"]["code"] == 429


async def test_a_scale_up_of_the_owner_does_not_wait_for_its_children(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = await job(api, 2)
    assert (await hooks.create(child(owner, "w0", **{"nvidia.com/gpu": 1}), user=OPERATOR))["allowed"]
    grown = changed(owner, lambda o: o["spec"]["tfReplicaSpecs"]["Worker"].update(replicas=4))
    assert (await hooks.update(owner, grown))["allowed"]
    assert sum(entry.extra["limits.cpu"] for entry in await api.entries("nlp")) == 2_000_000_000


async def test_kubernetes_own_controllers_and_listed_ones_are_believed(
    api: Api, hooks: Hooks, through: KubeClient
) -> None:
    await api.group("nlp", cpu="1", used={"cpu": "1"})
    owner = await job(api, 0)
    assert (await hooks.create(child(owner, "w"), user=REPLICASET_CONTROLLER))["allowed"]
    assert "exceeded quota" in message(await hooks.create(child(owner, "w"), user=OPERATOR))
    async with serving(through, controllers=["system:serviceaccount:kubeflow:*"]) as told:
        assert (await told.create(child(owner, "w"), user=OPERATOR))["allowed"]
        assert "exceeded quota" in message(await told.create(child(owner, "w")))


async def test_a_reference_that_is_added_later_is_worth_no_more(api: Api, hooks: Hooks) -> None:
    """A bare pod that takes an owner stays charged where the owner's charge does not reach."""
    await api.group("nlp", cpu="2", used={"cpu": "1"})
    owner = await job(api, 0)
    bare = stored(released(child(owner, "p")))
    adopted = changed(bare, lambda o: o["metadata"].update(ownerReferences=[owned_by(owner)]))
    grown = changed(adopted, lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(cpu="5"))
    assert (await hooks.update(bare, adopted))["allowed"]
    assert "requested: limits.cpu=4" in message(await hooks.update(bare, grown))


async def test_a_child_that_grows_after_it_was_let_in_pays_for_that(api: Api, hooks: Hooks) -> None:
    """An empty ReplicaSet with a forged owner costs nothing; scaled up it does."""
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 2))
    empty = stored(replica_set(owner, "rs", 0))
    assert (await hooks.create(empty))["allowed"]
    within = changed(empty, lambda o: o["spec"].update(replicas=2))
    beyond = changed(empty, lambda o: o["spec"].update(replicas=5))
    assert (await hooks.update(empty, within))["allowed"]
    [entry] = await api.entries("nlp")
    assert not any(entry.extra.values())
    assert "requested: limits.cpu=3" in message(await hooks.update(empty, beyond))
    assert (await hooks.update(empty, beyond, user=REPLICASET_CONTROLLER))["allowed"]


async def test_the_surge_of_an_update_is_the_owners(api: Api, hooks: Hooks) -> None:
    """An operator that is not listed rolls out: the new ReplicaSet runs next to the old one."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    owner = await api.client.create(ROLLOUTS, rollout("web", "nlp", 4))
    await api.client.create(OF_KIND["ReplicaSet"], replica_set(owner, "old", 4))
    assert (await hooks.create(replica_set(owner, "new", 1), user=OPERATOR))["allowed"]
    assert "exceeded quota" in message(await hooks.create(replica_set(owner, "new", 2), user=OPERATOR))


async def test_an_operator_that_is_not_listed_rolls_out_step_by_step(api: Api, hooks: Hooks) -> None:
    """Each step is reviewed, so none is counted beyond what is stored."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    owner = await api.client.create(ROLLOUTS, rollout("web", "nlp", 4))
    await api.client.create(REPLICASETS, replica_set(owner, "old", 3))
    new = await api.client.create(REPLICASETS, replica_set(owner, "new", 1))
    for replicas, is_allowed in ((2, True), (3, False)):
        grown = changed(new, lambda o, n=replicas: o["spec"].update(replicas=n))
        assert (await hooks.update(new, grown, user=OPERATOR))["allowed"] is is_allowed


async def test_a_second_replica_set_of_a_deployment_pays_for_itself(api: Api, hooks: Hooks) -> None:
    """Its controller may raise the first to all of its replicas before it knows the second."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    owner = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 4))
    first, second = replica_set(owner, "web-1", 2), replica_set(owner, "web-2", 2)
    assert (await hooks.create(first))["allowed"]
    assert "exceeded quota" in message(await hooks.create(second))
    await api.client.create(REPLICASETS, first)
    assert "exceeded quota" in message(await hooks.create(replica_set(owner, "web-3", 2)))


async def test_what_a_controller_lets_go_of_is_charged_and_never_refused(api: Api, hooks: Hooks) -> None:
    """The garbage collector would retry for ever; where there is no room, the recount reports it.

    Who paid is stored all the same.
    """
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 2))
    first, second = (stored(replica_set(owner, name, 1)) for name in ("first", "second"))
    assert (await hooks.update(first, released(first), user=COLLECTOR))["allowed"]
    assert [str(e.slot) for e in await api.entries("nlp")] == ["replicasets.apps/default/first"]
    assert (await hooks.update(second, released(second), user=COLLECTOR))["allowed"]
    added = {entry.slot.name: (entry.extra["limits.cpu"], entry.others) for entry in await api.entries("nlp")}
    says = ("left=Deployment/default/web",)
    assert added == {"first": (1_000_000_000, says), "second": (0, says)}
    assert "exceeded quota" in message(await hooks.update(second, released(second)))


@pytest.mark.parametrize("user", [None, {"username": "system:serviceaccount:kube-system:vpa-updater"}])
async def test_a_pod_that_is_resized_beyond_its_owners_charge_pays_for_that(
    api: Api, hooks: Hooks, user: Object | None
) -> None:
    """Whoever resizes: no template asks for it. Back to what the template says costs nothing."""
    await api.group("nlp", cpu="4", gpu="2", used={"cpu": "2", "gpu": "2"})
    owner = await job(api)
    small = await api.client.create(PODS, child(owner, "w0", cpu="500m", **{"nvidia.com/gpu": 1}))
    large = await worker(api, owner, "w1")
    assert (await hooks.update(small, resized(small, "1"), sub_resource="resize", user=user))["allowed"]
    assert not any(amount for e in await api.entries("nlp") for amount in e.extra.values())
    assert (await hooks.update(large, resized(large, "3"), sub_resource="resize", user=user))["allowed"]
    [entry] = [e for e in await api.entries("nlp") if e.awaited_slot.name == "w1"]
    assert (str(entry.slot), entry.extra["limits.cpu"], entry.extra.get("pods", 0)) == (TRAIN, 2_000_000_000, 0)
    refused = await hooks.update(large, resized(large, "9"), sub_resource="resize", user=user)
    assert "exceeded quota: nlp, requested: limits.cpu=8" in message(refused)


async def test_a_bare_pod_that_is_resized_is_charged_like_any_update(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "1"})
    bare = stored(released(child({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "uid": "x"}}, "bare")))
    assert (await hooks.update(bare, resized(bare, "4"), sub_resource="resize"))["allowed"]
    refused = await hooks.update(bare, resized(bare, "5"), sub_resource="resize")
    assert "exceeded quota: nlp, requested: limits.cpu=4" in message(refused)


def resized(pod: Object, cpu: str) -> Object:
    def change(obj: Object) -> None:
        for amounts in obj["spec"]["containers"][0]["resources"].values():
            amounts["cpu"] = cpu

    return changed(pod, change)


def replica_set(owner: Object, name: str, replicas: int) -> Object:
    made = deployment(name, "nlp", replicas)
    metadata = {**made["metadata"], "ownerReferences": [owned_by(owner)]}
    metadata["labels"] = {**metadata["labels"], "app": "x"}
    labels = {"metadata": {"labels": {"app": "x", "rs": name}}}
    spec = {**made["spec"], "template": {**made["spec"]["template"], **labels}}
    return {**made, "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
