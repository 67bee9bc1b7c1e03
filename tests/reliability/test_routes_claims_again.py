"""Routes by claim templates and claims that are deleted and made again with more devices.

What names them then is not the workload that pays: an older version of it, or a ReplicaSet that one left. Or a claim of
one's own comes in place of the one that Kubernetes has made for a pod. The tenant's group has four devices. The oracle
adds up the claims of pods that are live, and asks no code of bizrq who pays.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from bizrq.kube.client import ApiError, KubeClient, Resource
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.reliability.routes import attempt, for_a_while, gone, of_kind, owned, owned_by_map, pod, web
from tests.support.cluster import Cluster, eventually
from tests.support.logged_errors import LoggedErrors
from tests.support.objects import (
    CLAIM_TEMPLATES,
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    PODS,
    Object,
    claim,
    claim_template,
    claiming,
    device_class,
    group,
    sharing,
)
from tests.support.tenant import STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "requests.nvidia.com/gpu"
HARD = 4
PERSON = "a person"
DELETED = pytest.mark.parametrize("by", [PERSON, "the garbage collector"])


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def devices(client: KubeClient, tenant: Tenant, logged: LoggedErrors, done: list[str]) -> AsyncIterator[None]:
    """The class stays: pods of the tests before may still run, and cannot be counted without it.

    With their namespace the templates go first, and what names them cannot be counted until it goes, too: drift.
    """
    for name in done:
        logged.allow(f"drift: group={name},")
    await attempt(client.create(DEVICE_CLASSES, device_class("gpu")))
    await client.patch(GROUPS, tenant.name, {"spec": {"hard": {GPU: str(HARD)}}})

    async def is_counted() -> bool:
        return GPU in ((await client.get(GROUPS, tenant.name))["status"].get("used") or {})

    await eventually(is_counted)
    yield
    logged.allow(f"drift: group={tenant.name},")


async def held(tenant: Tenant) -> int:
    """The devices of all claims that live pods have or share."""
    pods = {each["metadata"]["uid"]: each for each in await tenant.pods()}
    shared = {
        entry["resourceClaimName"]
        for each in pods.values()
        for entry in each["spec"].get("resourceClaims") or ()
        if "resourceClaimName" in entry
    }
    total = 0
    for each in (await tenant.admin.list(CLAIMS, tenant.name))[0]:
        owners = {owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()}
        if owners & pods.keys() or each["metadata"]["name"] in shared:
            total += sum(one["exactly"].get("count", 1) for one in each["spec"]["devices"]["requests"])
    return total


async def has_pods(tenant: Tenant) -> bool:
    return bool(await tenant.pods())


async def has_none(tenant: Tenant) -> bool:
    return not await tenant.pods()


def without_label(made: Object) -> Object:
    return {**made, "metadata": {key: value for key, value in made["metadata"].items() if key != "labels"}}


async def charged(tenant: Tenant) -> str:
    status = (await tenant.admin.get(GROUPS, tenant.name))["status"]
    return f"used {(status.get('used') or {}).get(GPU)}, reservations {status.get('reservations')}"


async def fits(tenant: Tenant) -> None:
    """No more devices are held than the group has, some seconds later too."""
    await asyncio.sleep(3)
    found = await held(tenant)
    assert found <= HARD, f"{found} devices are held of {HARD}; {await charged(tenant)}"


async def renew(tenant: Tenant, count: int) -> None:
    """Delete the pods that run, and wait a while for others."""
    old = {each["metadata"]["uid"] for each in await tenant.pods()}
    for each in await tenant.pods():
        await attempt(tenant.delete(PODS, each["metadata"]["name"], grace=1))

    async def are_new() -> bool:
        return len([each for each in await tenant.pods() if each["metadata"]["uid"] not in old]) >= count

    await for_a_while(are_new, 5)


async def to_delete(tenant: Tenant, by: str, obj: Object) -> Object:
    """The object, which goes with a ConfigMap where the garbage collector is to delete it: nobody reviews that."""
    return obj if by == PERSON else await owned_by_map(tenant, obj)


async def comes_again(tenant: Tenant, by: str, resource: Resource, larger: Object, count: int) -> None:
    """Delete an object and create it anew, then the pods, as far as that is allowed."""
    name = larger["metadata"]["name"]
    deleted = (resource, name) if by == PERSON else (CONFIG_MAPS, "owner")
    if await attempt(tenant.delete(*deleted)) is None:
        await gone(tenant, resource, name)
        await attempt(tenant.create(resource, larger))
        await renew(tenant, count)


@DELETED
@pytest.mark.parametrize("how", ["paused", "partition", "left"])
async def test_a_template_comes_again_larger_below_an_older_version(tenant: Tenant, how: str, by: str) -> None:
    """The workload that pays names another template by then."""
    resource = STATEFULSETS if how == "partition" else DEPLOYMENTS
    old = await to_delete(tenant, by, claim_template("old", 1, namespace=tenant.name))
    await tenant.create(CLAIM_TEMPLATES, old)
    await tenant.create(CLAIM_TEMPLATES, claim_template("new", 1, namespace=tenant.name))
    made = claiming(web(tenant, HARD), "old")
    await tenant.create(resource, of_kind(resource, made) if resource is STATEFULSETS else made)
    await tenant.running(HARD)
    names = [{"name": "devices", "resourceClaimTemplateName": "new"}]
    change = {"spec": {"template": {"spec": {"resourceClaims": names}}}}
    if how == "paused":
        await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await tenant.patch(DEPLOYMENTS, "web", change)
    elif how == "partition":
        await tenant.patch(STATEFULSETS, "web", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": HARD}}}})
        await tenant.patch(STATEFULSETS, "web", change)
    else:
        await tenant.delete(DEPLOYMENTS, "web", "Orphan")
        await gone(tenant, DEPLOYMENTS, "web")
    await asyncio.sleep(2)
    await comes_again(tenant, by, CLAIM_TEMPLATES, claim_template("old", 8, namespace=tenant.name), HARD)
    await fits(tenant)


@DELETED
@pytest.mark.parametrize("how", ["paused", "left"])
async def test_a_claim_comes_again_larger_below_an_older_version(tenant: Tenant, how: str, by: str) -> None:
    await tenant.create(CLAIMS, await to_delete(tenant, by, claim("old", 1, namespace=tenant.name)))
    await tenant.create(CLAIMS, claim("new", 1, namespace=tenant.name))
    await tenant.create(DEPLOYMENTS, sharing(web(tenant, 1), "old"))
    await tenant.running(1)
    if how == "paused":
        await tenant.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        names = [{"name": "devices", "resourceClaimName": "new"}]
        await tenant.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"resourceClaims": names}}}})
    else:
        await tenant.delete(DEPLOYMENTS, "web", "Orphan")
        await gone(tenant, DEPLOYMENTS, "web")
    await asyncio.sleep(2)
    await comes_again(tenant, by, CLAIMS, claim("old", 32, namespace=tenant.name), 1)
    await fits(tenant)


@pytest.mark.parametrize("how", ["created", "updated", "labelled"])
async def test_a_template_comes_again_larger_at_the_moment_of_a_write_that_names_it(tenant: Tenant, how: str) -> None:
    """The workload is not stored yet, or not with that name, or charges no group yet."""
    await tenant.create(CLAIM_TEMPLATES, claim_template("other", 1, namespace=tenant.name))
    for number in range(10):
        name, workload = f"t{number}", f"web{number}"
        await tenant.create(CLAIM_TEMPLATES, claim_template(name, 1, namespace=tenant.name))
        made = claiming(web(tenant, HARD, name=workload, app=workload, cpu="1m"), name)
        if how == "updated":
            await attempt(tenant.create(DEPLOYMENTS, claiming(copy.deepcopy(made), "other")))
        elif how == "labelled":
            await tenant.create(DEPLOYMENTS, without_label(made))
        change = made if how == "updated" else {"metadata": {"labels": made["metadata"]["labels"]}}

        async def written(made: Object = made, workload: str = workload, change: Object = change) -> None:
            if how == "created":
                await attempt(tenant.create(DEPLOYMENTS, made))
            else:
                await attempt(tenant.patch(DEPLOYMENTS, workload, change))

        async def larger(name: str = name, number: int = number) -> None:
            await asyncio.sleep(number * 0.003)
            again = claim_template(name, 8, namespace=tenant.name)
            # Both at once: the create may find the name free.
            await asyncio.gather(
                attempt(tenant.delete(CLAIM_TEMPLATES, name)), attempt(tenant.create(CLAIM_TEMPLATES, again))
            )
            await attempt(tenant.create(CLAIM_TEMPLATES, again))

        await asyncio.gather(written(), larger())
        await for_a_while(lambda: has_pods(tenant), 2)
        if how != "labelled" or await is_labelled(tenant, workload):
            await fits(tenant)
        await attempt(tenant.delete(DEPLOYMENTS, workload))
        await gone(tenant, DEPLOYMENTS, workload)
        for each in await tenant.pods():
            await attempt(tenant.delete(PODS, each["metadata"]["name"], grace=1))
        await eventually(lambda: has_none(tenant), 30, "the pods are gone")


async def is_labelled(tenant: Tenant, workload: str) -> bool:
    """Whether a group pays for a Deployment: nobody does for one that could not get its label."""
    return LABEL in (await tenant.admin.get(DEPLOYMENTS, workload, tenant.name))["metadata"].get("labels", {})


async def claims_of(tenant: Tenant, uid: str) -> list[str]:
    """The names of the claims that this pod owns."""
    claims = [each["metadata"] for each in (await tenant.admin.list(CLAIMS, tenant.name))[0]]
    return [each["name"] for each in claims if any(o["uid"] == uid for o in each.get("ownerReferences") or ())]


async def held_back(tenant: Tenant, name: str, devices: int) -> str:
    """A pod that is not to be scheduled yet, and the claim g that Kubernetes makes for it; return its uid."""
    await tenant.create(CLAIM_TEMPLATES, claim_template(name, devices, namespace=tenant.name))
    made = pod(tenant, name)
    made["spec"]["schedulingGates"] = [{"name": "example.com/held"}]
    made["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": name}]
    uid = str((await tenant.create(PODS, made))["metadata"]["uid"])

    async def has_claim() -> bool:
        return bool(await claims_of(tenant, uid))

    await for_a_while(has_claim, 10)
    return uid


def large(tenant: Tenant, name: str) -> Object:
    """A claim that says of itself that it is g of a pod."""
    made = claim(name, 32, namespace=tenant.name)
    made["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "g"}
    return made


@pytest.mark.parametrize("how", ["new", "owned later", "another pod's", "of that name", "of that name and uid"])
async def test_a_claim_of_ones_own_comes_in_place_of_a_pods(tenant: Tenant, cluster: Cluster, how: str) -> None:
    """Kubernetes makes none where it finds one that the pod owns and that has the annotation, or the name of before."""
    uid = await held_back(tenant, "p", 1)
    first = await claims_of(tenant, uid)
    if not first and how not in ("new", "owned later"):
        pytest.skip("the sandbox makes no claims for pods")
    alike = [large(tenant, name) for name in first]
    if how == "new":
        await attempt(tenant.create(CLAIMS, owned(large(tenant, "mine"), "Pod", "p", uid, "v1")))
    elif how == "owned later":
        await attempt(tenant.create(CLAIMS, large(tenant, "mine")))
        owners = owned(large(tenant, "mine"), "Pod", "p", uid, "v1")["metadata"]["ownerReferences"]
        await attempt(tenant.patch(CLAIMS, "mine", {"metadata": {"ownerReferences": owners}}))
    elif how == "another pod's":
        owners = owned(large(tenant, "mine"), "Pod", "p", uid, "v1")["metadata"]["ownerReferences"]
        for name in await claims_of(tenant, await held_back(tenant, "q", 3)):
            await attempt(tenant.patch(CLAIMS, name, {"metadata": {"ownerReferences": owners}}))
    for name in first:
        await attempt(tenant.delete(CLAIMS, name))
    for each in alike:
        if how == "of that name":
            await attempt(tenant.create(CLAIMS, owned(each, "Pod", "p", uid, "v1")))
        elif how == "of that name and uid":
            del each["metadata"]["annotations"]
            await attempt(tenant.create(CLAIMS, owned(each, "Own", "p", uid, "example.com/v1")))
    await asyncio.sleep(2)
    for name in ("p", "q"):
        await attempt(tenant.patch(PODS, name, {"spec": {"schedulingGates": []}}))
    await fits(tenant)


async def another_group(client: KubeClient, tenant: Tenant) -> tuple[str, Callable[[], Awaitable[list[int]]]]:
    """Make a second group. Return its name, and a function that reads the devices that both are charged for."""
    other = f"{tenant.name}-other"
    await client.create(GROUPS, group(other, gpu=str(HARD)))

    async def amounts() -> list[int]:
        groups = [await client.get(GROUPS, name) for name in (tenant.name, other)]
        return [int((each.get("status", {}).get("used") or {}).get(GPU, -1)) for each in groups]

    async def are_counted() -> bool:
        return await amounts() == [0, 0]

    await eventually(are_counted, 30, "both groups are counted")
    return other, amounts


async def test_workloads_that_share_a_claim_move_while_they_have_no_pods(tenant: Tenant, client: KubeClient) -> None:
    other, amounts = await another_group(client, tenant)
    await tenant.create(CLAIMS, claim("c", HARD, namespace=tenant.name))
    for name in ("a", "b"):
        await tenant.create(DEPLOYMENTS, sharing(web(tenant, 1, name=name, app=name, label=tenant.name), "c"))
    await tenant.running(2)
    assert await attempt(tenant.patch(DEPLOYMENTS, "a", {"metadata": {"labels": {LABEL: other}}})) is not None
    for name in ("a", "b"):
        await tenant.scale(DEPLOYMENTS, name, 0)
    await eventually(lambda: has_none(tenant), 30, "the pods are gone")
    for change in ({"metadata": {"labels": {LABEL: other}}}, {"spec": {"replicas": 1}}):
        for name in ("a", "b"):
            await tenant.patch(DEPLOYMENTS, name, change)
    await tenant.running(2)

    async def have_moved() -> bool:
        return await amounts() == [0, HARD]

    await eventually(have_moved, 10, "the other group pays for the claim")


async def test_two_groups_come_for_claims_at_the_same_moment(tenant: Tenant, client: KubeClient) -> None:
    """One of them is admitted: two would leave devices that nobody pays for, and none a claim that nobody gets."""
    other, amounts = await another_group(client, tenant)
    for turn in range(4):
        await tenant.create(CLAIMS, claim(f"c{turn}", 2, namespace=tenant.name))
        users = [
            sharing(web(tenant, 1, name=f"{who}{turn}", app=f"{who}{turn}", label=label), f"c{turn}")
            for who, label in (("a", tenant.name), ("b", other))
        ]
        refused: list[ApiError | None] = []
        # Both may lose, and try again as people do.
        for _ in range(3):
            refused = await asyncio.gather(*(attempt(tenant.create(DEPLOYMENTS, each)) for each in users))
            if None in refused:
                break
        assert refused.count(None) == 1, (turn, refused)
        if refused[0] is None:
            await asyncio.sleep(1)
            await tenant.delete(DEPLOYMENTS, f"a{turn}")
        await eventually(lambda: is_paid(tenant, amounts), 10, "all devices are paid for")


async def is_paid(tenant: Tenant, amounts: Callable[[], Awaitable[list[int]]]) -> bool:
    return await held(tenant) <= sum(await amounts())
