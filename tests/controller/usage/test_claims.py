"""ResourceClaims that several workloads share: counted once, in the group that they are charged to."""

from __future__ import annotations

from bizrq.api import group as wire
from bizrq.kube.client import Resource
from bizrq.units.resources import nonzero
from bizrq.workloads.labels import LABEL
from tests.controller.conftest import Books
from tests.controller.usage.test_excess import reference
from tests.support.at_rest import at_rest
from tests.support.language import entry
from tests.support.objects import (
    CLAIMS,
    DEPLOYMENTS,
    PODS,
    REPLICASETS,
    Object,
    claim,
    claim_template,
    claiming,
    deployment,
    device_class,
    sharing,
    template,
    tfjob,
)

POD_GROUP = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
#: Serves the alpha kind, as a cluster with its feature gate does.
POD_GROUPS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.k8s.io"},
    "spec": {
        "group": "scheduling.k8s.io",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
GPU = "requests.nvidia.com/gpu"
PLACE = "resourceclaims.resource.k8s.io/default/s"


async def shared(books: Books, count: int = 4, group: str | None = None) -> Object:
    await books.create(device_class("gpu"))
    made = claim("s", count)
    made["metadata"]["labels"] = {LABEL: group} if group else {}
    return await books.create(made)


def user(name: str, group: str = "nlp") -> Object:
    return sharing(deployment(name, group, 1), "s")


async def two_groups(books: Books) -> None:
    for group in ("nlp", "vision"):
        await books.group(group, gpu="9")


async def moves_with_its_claim(books: Books, name: str) -> None:
    """Move a Deployment from nlp to vision: its claim of four devices is charged there alone."""
    await books.client.patch(DEPLOYMENTS, name, {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
    await books.uses("vision", gpu="4")
    await books.uses("nlp", gpu="0")


async def test_a_claim_is_counted_once_for_all_who_name_it_and_goes_with_the_last(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9", gpu="9")
        await shared(books)
        made = [await books.create(user(name)) for name in ("a", "b")]
        await books.uses("nlp", cpu="2", gpu="4")
        await books.remove(made[0])
        await books.uses("nlp", cpu="1", gpu="4")
        await books.remove(made[1])
        await books.uses("nlp", cpu="0", gpu="0")


async def test_a_claim_that_names_a_group_is_counted_as_long_as_it_stands(books: Books) -> None:
    """A claim moves with its own label; without one, with the oldest workload that names it."""
    async with books.controller():
        await two_groups(books)
        made = await shared(books, group="nlp")
        await books.uses("nlp", gpu="4")
        await books.client.patch(CLAIMS, "s", {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
        await books.uses("nlp", gpu="0")
        await books.uses("vision", gpu="4")
        await books.remove(made)
        await books.uses("vision", gpu="0")


async def test_of_two_groups_the_first_pays_and_the_other_is_told(books: Books) -> None:
    """Both were admitted at the same moment. When the first is deleted, the other's group pays."""
    async with books.controller():
        await two_groups(books)
        await shared(books)
        first = await books.create(user("a"))
        await books.uses("nlp", gpu="4")
        books.box.clock.advance(5)
        await books.create(user("b", "vision"))
        told = "deployments.apps/default/b uses " + PLACE + ", which group nlp pays for"
        found = await books.until("vision", lambda g: told in " ".join(c.message for c in g.status.conditions))
        assert found.status.used == {"requests.nvidia.com/gpu": "0"}
        await books.remove(first)
        await books.uses("vision", gpu="4")
        await books.uses("nlp", gpu="0")


async def test_what_a_workload_adopts_pays_for_no_claim_any_more(books: Books) -> None:
    """A ReplicaSet that was left and adopted again is older than the Deployment that moves with it."""
    async with books.controller():
        await two_groups(books)
        await shared(books)
        alone = {**user("a", "nlp"), "kind": "ReplicaSet"}
        alone["metadata"]["labels"] = {LABEL: "nlp", **alone["spec"]["selector"]["matchLabels"]}
        await books.create(alone)
        await books.uses("nlp", gpu="4")
        books.box.clock.advance(5)
        made = await books.create(user("b"))
        change = {"metadata": {"ownerReferences": [reference(made)], "labels": {LABEL: None}}}
        await books.client.patch(REPLICASETS, "a", change, namespace="default")
        await books.uses("nlp", gpu="4")
        await books.holds_still("nlp", lambda g: g.status.used == {GPU: "4"})
        await moves_with_its_claim(books, "b")


async def test_who_is_left_pays_at_once(books: Books) -> None:
    """Nothing else makes a recount of the other group due."""
    async with books.controller(recount_interval=300.0):
        await two_groups(books)
        await shared(books)
        first = await books.create(user("a"))
        await books.uses("nlp", gpu="4")
        books.box.clock.advance(5)
        await books.create(user("b", "vision"))
        told = "deployments.apps/default/b uses " + PLACE
        await books.until("vision", lambda g: told in " ".join(c.message for c in g.status.conditions))
        await at_rest(really=True)
        await books.remove(first)
        await books.uses("vision", gpu="4")


async def test_a_promise_of_a_claim_is_paid_with_what_others_hold_of_it(books: Books) -> None:
    """The reservation ends with the workload's write; until then it adds the part of the claim that is not counted."""
    async with books.controller():
        await books.group("nlp", gpu="9")
        await shared(books)
        awaits = "deployments.apps/default/b"
        await books.promise("nlp", entry(PLACE, "gpu=4", of="never", awaits=awaits))
        first = await books.create(user("a"))
        found = await books.uses("nlp", gpu="4")
        [kept] = wire.reservations_of(found)
        assert nonzero(kept.extra) == {}
        await books.remove(first)
        await books.uses("nlp", gpu="0")
        [kept] = wire.reservations_of(await books.read("nlp"))
        assert kept.extra == {"requests.nvidia.com/gpu": 4 * 10**9}
        books.clock.advance(61)
        await books.until("nlp", lambda g: not g.status.reservations)


async def test_a_claim_that_is_gone_is_held_with_those_that_name_it(books: Books) -> None:
    async with books.controller():
        await books.group("nlp", cpu="9", gpu="9")
        made = await shared(books)
        await books.create(user("a"))
        await books.uses("nlp", cpu="1", gpu="4")
        await books.remove(made)
        await books.until("nlp", lambda g: any(c.type == "Uncountable" for c in g.status.conditions))
        await books.holds_still("nlp", lambda g: g.status.used == {"limits.cpu": "1", "requests.nvidia.com/gpu": "4"})


async def test_the_claim_of_pods_that_outlive_their_job_is_still_theirs(books: Books) -> None:
    """A claim that only a pod names is counted too."""
    async with books.controller():
        await books.group("nlp", cpu="9", gpu="9")
        await shared(books)
        made = tfjob("train", "nlp", 1, gpu=0)
        job = await books.create(made)
        named = [{"name": "devices", "resourceClaimName": "s"}]
        await books.pod("w", job, gpu=0, resourceClaims=named)
        await books.uses("nlp", cpu="1", gpu="4")
        status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
        kind = books.kind(job)
        await books.client.patch(kind, "train", {"status": status}, namespace="default", subresource="status")
        await books.holds_still("nlp", lambda g: g.status.used["requests.nvidia.com/gpu"] == "4")
        await books.client.patch(
            PODS, "w", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
        )
        await books.uses("nlp", cpu="0", gpu="0")


async def test_a_claim_comes_along_with_the_workload_that_moves(books: Books) -> None:
    async with books.controller():
        await two_groups(books)
        await shared(books)
        await books.create(user("a"))
        await books.uses("nlp", gpu="4")
        await moves_with_its_claim(books, "a")


async def test_the_claim_of_a_pod_group_comes_along_with_the_pods_that_share_it(books: Books) -> None:
    """No pod stays for it with the group that is left: none of them has a claim of its own."""
    await books.box.install([POD_GROUPS])
    async with books.controller():
        await two_groups(books)
        await books.create(device_class("gpu"))
        await books.create(claim_template("t", 4))
        member = claiming(deployment("a", "nlp", 2), "t")
        pod = member["spec"]["template"]["spec"]
        pod["schedulingGroup"] = {"podGroupName": "pg"}
        await books.client.create(POD_GROUP, {
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": "pg", "namespace": "default"},
            "spec": {"resourceClaims": pod["resourceClaims"]}})  # fmt: skip
        made = await books.create(member)
        version = {"replicas": 2, "selector": member["spec"]["selector"], "template": member["spec"]["template"]}
        labels = member["spec"]["selector"]["matchLabels"]
        metadata = {"name": "a-1", "namespace": "default", "labels": labels, "ownerReferences": [reference(made)]}
        below = await books.create({**made, "kind": "ReplicaSet", "metadata": metadata, "spec": version})
        shares = {"resourceClaims": pod["resourceClaims"], "schedulingGroup": pod["schedulingGroup"]}
        for name in ("p", "q"):
            await books.pod(name, below, gpu=0, **shares)
        await books.uses("nlp", gpu="4")
        await moves_with_its_claim(books, "a")


async def test_a_pod_is_not_older_than_what_was_created_in_the_same_second(books: Books) -> None:
    """The first by name pays, whatever the order in which both are seen."""
    async with books.controller():
        await two_groups(books)
        await shared(books)
        spec = {**template("1")["spec"], "resourceClaims": [{"name": "devices", "resourceClaimName": "s"}]}
        metadata = {"name": "p", "namespace": "default", "labels": {LABEL: "vision"}}
        await books.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        await books.uses("vision", gpu="4")
        await books.create(user("a"))
        await books.uses("nlp", gpu="4")
        await books.uses("vision", gpu="0")
