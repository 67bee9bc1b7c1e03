"""ResourceClaims that several workloads share: charged once, in a place of their own, to one group."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bizrq.kube.client import AlreadyExists
from bizrq.quota.verdict import Verdict
from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership.memory import Memory, payer_line
from tests.support.language import NOW, entry, slot
from tests.support.objects import (
    CLAIMS,
    DEPLOYMENTS,
    OF_KIND,
    PODS,
    TFJOBS,
    Object,
    claim,
    deployment,
    device_class,
    sharing,
    tfjob,
)
from tests.support.proxy import Proxy
from tests.webhooks.charging.test_owner_trust import child
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored
from webhooks.charging.group_commit import Reserver

CLAIM_CONTROLLER = {"username": "system:serviceaccount:kube-system:resourceclaim-controller"}
PLACE = slot("resourceclaims.resource.k8s.io/default/s")
GPU = "requests.nvidia.com/gpu"


async def shared(api: Api, count: int = 4, group: str | None = None) -> Object:
    """A stored claim of so many devices."""
    await api.client.create(OF_KIND["DeviceClass"], device_class("gpu"))
    return await api.client.create(CLAIMS, of(claim("s", count), group))


def of(obj: Object, group: str | None) -> Object:
    return changed(obj, lambda o: o["metadata"].update(labels={LABEL: group} if group else {}))


def user(name: str, group: str | None = "nlp", replicas: int = 2) -> Object:
    return sharing(deployment(name, group, replicas), "s")


async def written(hooks: Hooks, new: Object, old: Object | None = None, **how: Any) -> Object:
    new = new if old else changed(new, lambda o: o["metadata"].update(uid="uid-of-s"))
    return await hooks.review("claims", "UPDATE" if old else "CREATE", new, old, resource=CLAIMS, **how)


async def test_a_shared_claim_is_promised_once_in_its_own_place(api: Api, hooks: Hooks) -> None:
    """Each of two workloads reserves it, and it costs what the larger of the two says: neither waits for the other."""
    await api.group("nlp", cpu="10", gpu="4")
    await shared(api)
    for name in ("a", "b"):
        assert (await hooks.create(user(name)))["allowed"]
    claims = [e for e in await api.entries("nlp") if e.slot == PLACE]
    assert [(str(e.awaited_slot), e.amount[GPU]) for e in claims] == [
        ("deployments.apps/default/a", 4 * 10**9),
        ("deployments.apps/default/b", 4 * 10**9),
    ]
    pods = [e for e in await api.entries("nlp") if e.slot != PLACE]
    assert [(e.amount["limits.cpu"], GPU in e.amount) for e in pods] == [(2 * 10**9, False)] * 2


async def test_a_claim_that_does_not_fit_is_refused_and_nothing_is_promised(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="3")
    await shared(api)
    assert message(await hooks.create(user("a"))) == (
        "exceeded quota: nlp, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=0, "
        "limited: requests.nvidia.com/gpu=3; left: requests.nvidia.com/gpu=3; charged for ResourceClaim default/s; "
        "run: kubectl bizrq explain nlp"
    )
    assert await api.entries("nlp") == []


async def test_pods_that_do_not_fit_leave_no_promise_of_their_claim(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="1", gpu="4")
    await shared(api)
    assert "requested: limits.cpu=2" in message(await hooks.create(user("a")))
    assert proxy.sent("PUT") == 0


async def test_what_another_workload_of_the_group_holds_already_fits_where_nothing_is_left(
    api: Api, hooks: Hooks
) -> None:
    """It leaves a mark all the same: the other one may go before this one is stored."""
    await api.group("nlp", cpu="10", gpu="4", used={"cpu": "2", "gpu": "4"})
    await shared(api)
    await api.client.create(DEPLOYMENTS, user("a"))
    assert (await hooks.create(user("b")))["allowed"]
    [mark] = [e for e in await api.entries("nlp") if e.slot == PLACE]
    assert (mark.amount[GPU], mark.extra.get(GPU, 0)) == (4 * 10**9, 0)


async def test_a_workload_that_scales_with_its_claim_says_nothing_of_it(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4", used={"cpu": "2", "gpu": "4"})
    await shared(api)
    old = await api.client.create(DEPLOYMENTS, user("a"))
    assert (await hooks.update(old, changed(old, lambda o: o["spec"].update(replicas=5))))["allowed"]
    assert [str(e.slot) for e in await api.entries("nlp")] == ["deployments.apps/default/a"]


async def test_a_claim_that_another_groups_workload_names_is_refused(api: Api, hooks: Hooks) -> None:
    """Refused until that workload is gone or has moved to the group; then the claim moves with it."""
    await api.group("nlp", cpu="10", gpu="9")
    await api.group("vision", cpu="10", gpu="9")
    await shared(api)
    first = await api.client.create(DEPLOYMENTS, user("a", "vision"))
    response = await hooks.create(user("b"))
    assert message(response) == "Deployment default/b: ResourceClaim 's' is charged to group vision, not to nlp"
    assert (await hooks.update(first, of(first, "nlp")))["allowed"]
    assert {e.slot for e in await api.entries("nlp")} == {PLACE, slot("deployments.apps/default/a")}


async def test_workloads_that_share_a_claim_move_while_they_ask_for_no_pods(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4", used={"cpu": "4", "gpu": "4"})
    await api.group("vision", cpu="10", gpu="4")
    await shared(api)
    users = [await api.client.create(DEPLOYMENTS, user(name)) for name in ("a", "b")]
    assert "is charged to group nlp, not to vision" in message(await hooks.update(users[0], of(users[0], "vision")))
    for name in ("a", "b"):
        await api.client.patch(DEPLOYMENTS, name, {"spec": {"replicas": 0}}, namespace="default")
    for name in ("a", "b"):
        old = await api.client.get(DEPLOYMENTS, name, "default")
        moved = of(old, "vision")
        assert (await hooks.update(old, moved))["allowed"]
        await api.client.patch(DEPLOYMENTS, name, {"metadata": {"labels": {LABEL: "vision"}}}, namespace="default")
    for name in ("a", "b"):
        old = await api.client.get(DEPLOYMENTS, name, "default")
        assert (await hooks.update(old, changed(old, lambda o: o["spec"].update(replicas=2))))["allowed"]


async def test_a_claim_that_another_groups_workload_is_about_to_name_is_refused_for_now(api: Api, hooks: Hooks) -> None:
    """Its write is not stored yet, and may never be."""
    for group in ("nlp", "vision"):
        await api.group(group, cpu="10", gpu="4")
    await shared(api)
    assert (await hooks.create(user("a")))["allowed"]
    answer = await hooks.create(user("b", "vision"))
    assert answer["status"]["code"] == 429
    assert "ResourceClaim default/s was promised to deployments.apps/default/a a moment ago" in message(answer)
    assert await api.entries("vision") == []
    # A workload that moves has its own promise in the group that it leaves.
    first = await api.client.create(DEPLOYMENTS, user("a"))
    assert (await hooks.update(first, of(first, "vision")))["allowed"]


async def test_of_two_groups_that_come_for_a_claim_at_the_same_moment_one_gets_it(api: Api, hooks: Hooks) -> None:
    """What was reserved for the other is taken back, or each would be in the way of the other for a minute."""
    users = {"nlp": user("a"), "vision": user("b", "vision")}
    for group in users:
        await api.group(group, cpu="10", gpu="4")
    await shared(api)
    allowed: list[bool] = []
    # Both may lose, and try again as people do.
    for _ in range(10):
        answers = await asyncio.gather(*map(hooks.create, users.values()))
        allowed = [answer["allowed"] for answer in answers]
        entries = [await api.entries(group) for group in users]
        assert [bool(each) for each in entries] == allowed
        if any(allowed):
            break
    assert sum(allowed) == 1


async def test_a_create_that_finds_its_claim_taken_leaves_no_reservation(
    api: Api, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another group's workload is stored after it was counted, and before its reservation is."""
    for group in ("nlp", "vision"):
        await api.group(group, cpu="10", gpu="9")
    await shared(api)
    reserve = Reserver.reserve

    async def late(self: Reserver, *args: Any, **more: Any) -> Verdict:
        with suppress(AlreadyExists):
            await api.client.create(DEPLOYMENTS, user("a", "vision"))
        return await reserve(self, *args, **more)

    monkeypatch.setattr(Reserver, "reserve", late)
    answer = await hooks.create(user("b"))
    assert message(answer) == "Deployment default/b: ResourceClaim 's' is charged to group vision, not to nlp"
    assert await api.entries("nlp") == []


async def test_a_claim_that_names_a_group_is_charged_to_it_from_then_on(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4")
    await api.client.create(OF_KIND["DeviceClass"], device_class("gpu"))
    assert "requested: requests.nvidia.com/gpu=5" in message(await written(hooks, of(claim("s", 5), "nlp")))
    assert (await written(hooks, of(claim("s", 4), "nlp")))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.slot, promise.awaited_slot, promise.uid) == (PLACE, PLACE, "uid-of-s")
    assert (await written(hooks, claim("other", 9)))["allowed"]
    assert "does not exist" in message(await written(hooks, of(claim("s", 1), "nobody")))


async def test_a_workload_of_the_group_that_a_claim_names_needs_nothing_more(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4", used={"gpu": "4"})
    await shared(api, group="nlp")
    assert (await hooks.create(user("a")))["allowed"]
    await api.group("vision", cpu="10", gpu="4")
    assert "is charged to group nlp, not to vision" in message(await hooks.create(user("b", "vision")))


async def test_a_claim_cannot_leave_those_that_name_it(api: Api, hooks: Hooks) -> None:
    await api.group("vision", cpu="10", gpu="9")
    await api.group("nlp", cpu="10", gpu="4", used={"gpu": "4"})
    plain = await shared(api)
    for name in ("a", "b", "c"):
        await api.client.create(DEPLOYMENTS, user(name))
    assert message(await written(hooks, of(plain, "vision"), plain)) == (
        "ResourceClaim default/s: ResourceClaim 's' is charged to group vision, not to nlp, but is named by "
        "Deployment default/a and Deployment default/b and 1 more"
    )
    assert (await written(hooks, of(plain, "nlp"), plain))["allowed"]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_claim_stays_with_the_group_of_the_pods_that_hold_it(api: Api, hooks: Hooks, has_ended: bool) -> None:
    """What made them names it no more."""
    for name in ("nlp", "vision"):
        await api.group(name, cpu="10", gpu="9")
    plain = await shared(api)
    job = await api.client.create(TFJOBS, tfjob("train", "nlp", 1))
    pod = child(job, "train-0", None)
    pod["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimName": "s"}]
    await api.client.create(PODS, pod)
    phase = {"status": {"phase": "Succeeded" if has_ended else "Running"}}
    await api.client.patch(PODS, "train-0", phase, namespace="default", subresource="status")
    moved = await written(hooks, of(plain, "vision"), plain)
    named = await hooks.create(user("b", "vision"))
    assert (moved["allowed"], named["allowed"]) == (has_ended, has_ended)
    if not has_ended:
        assert "is charged to group vision, not to nlp, but is named by Pod default/train-0" in message(moved)
        assert message(named) == "Deployment default/b: ResourceClaim 's' is charged to group nlp, not to vision"


async def test_a_claim_that_a_pod_holds_which_stays_with_another_group_is_refused_for_now(
    api: Api, hooks: Hooks
) -> None:
    """Its workload has moved: it ends, or goes to that workload's group."""
    for name in ("nlp", "vision"):
        await api.group(name, cpu="10", gpu="9")
    await shared(api)
    job = await api.client.create(TFJOBS, tfjob("train", "vision", 1))
    pod = child(job, "train-0", None)
    pod["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimName": "s"}]
    pod = await api.client.create(PODS, pod)
    stays = Memory("nlp", "TFJob/default/train", 1, 1)
    hooks.webhooks.payers.replace("p", "nlp", [payer_line(pod["metadata"]["uid"], stays)])
    answer = await hooks.create(user("b", "vision"))
    assert answer["status"]["code"] == 429
    assert message(answer) == (
        "ResourceClaim default/s is held by Pod default/train-0, which stays with group nlp for now: try again"
    )


async def test_a_claim_that_moves_is_charged_where_it_goes(api: Api, hooks: Hooks) -> None:
    await api.group("vision", cpu="10", gpu="3")
    await api.group("nlp", cpu="10", gpu="4", used={"gpu": "4"})
    mine = await shared(api, group="nlp")
    assert "exceeded quota: vision" in message(await written(hooks, of(mine, "vision"), mine))
    await api.client.delete(CLAIMS, "s", "default")
    small = await api.client.create(CLAIMS, of(claim("s", 3), "nlp"))
    assert (await written(hooks, of(small, "vision"), small))["allowed"]
    assert [str(e.slot) for e in await api.entries("vision")] == [str(PLACE)]


async def test_a_claim_that_is_created_again_is_charged_to_its_users(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4")
    await api.client.create(OF_KIND["DeviceClass"], device_class("gpu"))
    await api.client.create(DEPLOYMENTS, user("a"))
    assert message(await written(hooks, claim("s", 5))).endswith(
        "charged for Deployment default/a, which names it; run: kubectl bizrq explain nlp"
    )
    assert (await written(hooks, claim("s", 4)))["allowed"]
    assert [str(e.slot) for e in await api.entries("nlp")] == [str(PLACE)]


async def test_a_claim_that_is_named_stays_and_one_of_a_pod_goes(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10", gpu="4")
    made = await shared(api)
    await api.client.create(DEPLOYMENTS, user("a"))

    async def deleted(obj: Object) -> Object:
        return await hooks.review("references", "DELETE", None, obj, resource=CLAIMS)

    assert message(await deleted(made)) == (
        "ResourceClaim default/s is used by Deployment default/a: delete those first, or have them use another"
    )
    pods = changed(made, lambda o: o["metadata"].update(ownerReferences=[{"kind": "Pod", "name": "p", "uid": "u"}]))
    assert (await deleted(pods))["allowed"]
    await api.client.delete(DEPLOYMENTS, "a", "default")
    assert (await deleted(made))["allowed"]


async def test_a_claim_that_was_promised_a_moment_ago_stays(api: Api, hooks: Hooks) -> None:
    """Without the claim, the workload whose write is under way could not be counted. An abandoned write expires."""
    await api.group("nlp", cpu="10", gpu="4")
    made = await shared(api)

    async def deleted() -> Object:
        return await hooks.review("references", "DELETE", None, made, resource=CLAIMS, timeout="1s")

    assert (await hooks.create(user("a")))["allowed"]
    await api.group("vision", cpu="10", gpu="4")
    assert message(await written(hooks, of(made, "vision"), made)) == (
        "ResourceClaim default/s was promised to deployments.apps/default/a a moment ago: try again"
    )
    assert (await written(hooks, of(made, "nlp"), made, dry_run=True))["allowed"]
    refused = await deleted()
    assert message(refused) == (
        "ResourceClaim default/s was promised to deployments.apps/default/a a moment ago: try again"
    )
    assert refused["status"]["code"] == 429
    [promise] = [e for e in await api.entries("nlp") if e.slot == PLACE]
    await api.count("nlp", replace(promise, expires=NOW))
    assert (await deleted())["allowed"]
    await api.count("nlp", promise)
    await api.client.create(DEPLOYMENTS, user("a"))
    assert "is used by Deployment default/a: delete those first" in message(await deleted())


def owned(obj: Object, kind: str = "Pod", uid: str = "u", **more: Any) -> Object:
    reference = {"apiVersion": "example.com/v1" if kind == "Own" else "v1", "kind": kind, "name": "p", "uid": uid}
    return changed(obj, lambda o: o["metadata"].update(ownerReferences=[reference | more]))


async def test_the_claim_of_a_pod_is_charged_once(api: Api, hooks: Hooks) -> None:
    """Its label comes from the template, and the registration does not send it for review."""
    await api.group("nlp", gpu="1")
    made = owned(of(claim("s", 4), "nlp"))
    assert (await written(hooks, made, user=CLAIM_CONTROLLER))["allowed"]
    assert await api.entries("nlp") == []


@pytest.mark.parametrize("kind", ["Pod", "PodGroup"])
async def test_nobody_but_kubernetes_makes_a_claim_for_a_pod(api: Api, hooks: Hooks, kind: str) -> None:
    """The pod may be one that comes later. What it has as an owner already may stay, or go."""
    plain, mine = claim("s", 32), owned(claim("s", 32), kind)
    why = f"metadata.ownerReferences: only Kubernetes makes claims for {kind} p: remove the reference"
    why = f"ResourceClaim default/s: {why}"
    assert message(await written(hooks, mine)) == why
    assert message(await written(hooks, mine, plain)) == why
    assert message(await written(hooks, owned(plain, kind, "v"), mine)) == why
    assert message(await written(hooks, owned(plain, kind, controller=True), mine)) == why
    assert (await written(hooks, of(mine, None), mine))["allowed"]
    assert (await written(hooks, plain, mine))["allowed"]
    for old in (None, plain):
        assert (await written(hooks, mine, old, user=CLAIM_CONTROLLER))["allowed"]


async def test_an_owner_of_another_kind_has_no_pods_uid(api: Api, hooks: Hooks) -> None:
    """Kubernetes compares no more than the uid."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q", "namespace": "default"}}
    uid = (await api.client.create(PODS, {**pod, "spec": {"containers": [{"name": "c", "image": "x"}]}}))["metadata"][
        "uid"
    ]
    forged = owned(claim("s", 32), "Own", uid)
    assert "only Kubernetes makes claims for Pod q" in message(await written(hooks, forged))
    assert "only Kubernetes makes claims for Pod q" in message(await written(hooks, forged, claim("s", 32)))
    assert (await written(hooks, owned(claim("s", 32), "Own")))["allowed"]


async def test_listed_accounts_make_claims_for_pods(api: Api) -> None:
    async with serving(api.client, controllers=["system:serviceaccount:volcano:*"]) as hooks:
        scheduler = {"username": "system:serviceaccount:volcano:scheduler"}
        assert (await written(hooks, owned(claim("s", 4)), user=scheduler))["allowed"]


async def test_a_group_whose_claim_stands_is_not_empty(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", gpu="4")
    await shared(api, group="nlp")
    group = await api.read("nlp")
    refused = message(await hooks.delete(stored({"kind": group.kind, "apiVersion": group.api_version,
                                                 "metadata": {"name": "nlp"}, "spec": {"hard": {}}})))  # fmt: skip
    assert "has workloads: resourceclaims.resource.k8s.io/default/s" in refused


@pytest.mark.parametrize("dry", [True, False])
async def test_a_claim_that_cannot_be_counted_is_refused(api: Api, hooks: Hooks, dry: bool) -> None:
    await api.group("nlp", gpu="4")
    words = "ResourceClaim default/s: ResourceClaim 's': spec.devices.requests[0].exactly.deviceClassName: "
    assert message(await written(hooks, of(claim("s"), "nlp"), dry_run=dry)).startswith(words)
    assert entry("x", "gpu=1") not in await api.entries("nlp")
