"""A listed maker of pods gets no new pod from Kubernetes' controllers; anybody else does, and an unlisted one again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import crds
from bizrq.api import overlap
from bizrq.builtin import builtin_registry
from bizrq.kube import config
from bizrq.kube.admission import POLICIES, POLICY_BINDINGS
from bizrq.kube.client import AlreadyExists, ApiError, Invalid, KubeClient, NotFound, Resource
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.overlaps import OVERLAPS
from bizrq.units.times import format_timestamp
from controller.overlap import OverlapList
from controller.watch.cluster import now_ms
from tests.support.cluster import Cluster, eventually, has_kinds, served
from tests.support.gate import as_maker, pod_of, rejection
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    PODS,
    REPLICASETS,
    Object,
    bound,
    cluster_role,
    deployment,
    template,
)
from tests.support.tenant import JOBS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("groups")]

MAKERS = builtin_registry().made_makers
[CRD] = [crd for crd in crds.load() if crd["spec"]["names"]["plural"] == overlap.PLURAL]
#: What the policy consists of, in the order of install, with the name of each.
PARTS: dict[Resource, tuple[str, Object]] = {
    CRDS: (CRD["metadata"]["name"], CRD),
    POLICIES: (overlap.NAME, overlap.policy(MAKERS)),
    POLICY_BINDINGS: (overlap.NAME, overlap.binding()),
}
#: Seconds within which an API server applies the policy: it looks for new kinds twice a minute.
APPLIED = 90


async def install(client: KubeClient, *parts: Resource) -> None:
    for resource in parts or PARTS:
        _, obj = PARTS[resource]
        if resource is CRDS:
            await has_kinds(client, [obj])
            continue
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, obj)


async def uninstall(client: KubeClient, *parts: Resource) -> None:
    """Delete these, or all but the CRD, and wait until they are gone."""
    for resource in reversed(parts or (POLICIES, POLICY_BINDINGS)):
        name, _ = PARTS[resource]

        async def gone(resource: Resource = resource, name: str = name) -> bool:
            try:
                await client.delete(resource, name)
            except NotFound:
                return True
            return False

        await eventually(gone, 60, f"{name} is gone")


@pytest_asyncio.fixture(loop_scope="module")
async def listed(client: KubeClient) -> AsyncIterator[OverlapList]:
    """The list, as the controller keeps it, and read by the policy."""
    await install(client)
    async with kept(client) as found:
        yield found
    await uninstall(client)


@contextlib.asynccontextmanager
async def kept(client: KubeClient) -> AsyncIterator[OverlapList]:
    found = OverlapList(client, now_ms, pace=0.05, check=0.2)
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def maker(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """A client with the name of one of Kubernetes' own controllers."""
    async with as_maker(cluster.kubeconfig) as maker:
        yield maker


def replicaset(name: str, namespace: str, replicas: int) -> Object:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {**template(0), "metadata": {"labels": labels}},
        },
    }


def job(name: str, namespace: str) -> Object:
    spec = {"template": {"spec": {**template(0)["spec"], "restartPolicy": "Never"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


async def pods_of(client: KubeClient, namespace: str, uid: str) -> list[Object]:
    found = (await client.list(PODS, namespace))[0]
    return [pod for pod in found if uid in {o["uid"] for o in pod["metadata"].get("ownerReferences") or ()}]


async def stored(client: KubeClient) -> dict[str, str]:
    try:
        return (await client.get(OVERLAPS, overlap.NAME)).get("listed") or {}
    except NotFound:
        return {}


async def test_a_listed_replicaset_gets_no_pod_until_it_is_listed_no_longer(
    listed: OverlapList, client: KubeClient, maker: KubeClient, namespace: str
) -> None:
    made = await client.create(REPLICASETS, replicaset("web", namespace, 0))
    uid = made["metadata"]["uid"]
    listed.set("nlp", {uid: "exceeded quota: nlp"})

    async def is_stored() -> bool:
        return await stored(client) == {uid: "exceeded quota: nlp"}

    await eventually(is_stored, 30, "the list is stored")
    probe = pod_of(uid, namespace=namespace, owner="web")

    async def applies() -> bool:
        return bool(await rejection(maker, probe))

    await eventually(applies, APPLIED, "the policy applies")
    await client.patch(REPLICASETS, "web", {"spec": {"replicas": 1}}, namespace=namespace)

    async def is_rejected() -> bool:
        conditions = (await client.get(REPLICASETS, "web", namespace)).get("status", {}).get("conditions") or ()
        return any("exceeded quota: nlp" in str(c.get("message")) for c in conditions)

    await eventually(is_rejected, 60, "the controller's pod is rejected")
    # So is a person's.
    assert await rejection(client, probe) == "exceeded quota: nlp"
    assert not await pods_of(client, namespace, uid)

    other = await client.create(REPLICASETS, replicaset("other", namespace, 1))

    async def other_runs() -> bool:
        return bool(await pods_of(client, namespace, other["metadata"]["uid"]))

    await eventually(other_runs, 60, "a ReplicaSet that is not listed gets its pod")
    listed.set("nlp", {})

    async def runs() -> bool:
        # A controller that was rejected often waits long, unless it sees a change.
        poke = {"metadata": {"annotations": {"poked": str(time.monotonic())}}}
        await client.patch(REPLICASETS, "web", poke, namespace=namespace)
        return bool(await pods_of(client, namespace, uid))

    await eventually(runs, 60, "the pod comes once the ReplicaSet is listed no longer")


async def test_a_new_version_of_a_listed_deployment_gets_no_pod(
    listed: OverlapList, client: KubeClient, namespace: str
) -> None:
    """Its ReplicaSet is not listed itself. One that is only called alike is another's."""
    key = overlap.version_key(namespace, "web", "pod-template-hash")
    listed.set("nlp", {key: "exceeded quota: nlp"})

    async def is_stored() -> bool:
        return await stored(client) == {key: "exceeded quota: nlp"}

    await eventually(is_stored, 30, "the list is stored")
    await client.create(DEPLOYMENTS, deployment("web", None, 1, namespace=namespace))

    async def is_rejected() -> bool:
        """As soon as the policy is seen to apply: until then pods pass, and are deleted."""
        found = (await client.list(REPLICASETS, namespace))[0]
        for each in (await client.list(PODS, namespace))[0]:
            with contextlib.suppress(NotFound):
                await client.delete(PODS, each["metadata"]["name"], namespace)
        conditions = [c for each in found for c in (each.get("status") or {}).get("conditions") or ()]
        return any("exceeded quota: nlp" in str(each.get("message")) for each in conditions)

    await eventually(is_rejected, APPLIED, "the pod of the new ReplicaSet is rejected")
    alike = await client.create(REPLICASETS, replicaset("web-alike", namespace, 1))

    async def runs() -> bool:
        return bool(await pods_of(client, namespace, alike["metadata"]["uid"]))

    await eventually(runs, 60, "a ReplicaSet that is called alike gets its pod")


def owned(made: Object, kind: str, name: str, uid: str, api_version: str = "apps/v1") -> Object:
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


async def test_a_maker_with_a_new_name_below_a_listed_owner_is_rejected(
    listed: OverlapList, client: KubeClient, maker: KubeClient, namespace: str
) -> None:
    """No key would find its pods. One whose own key is listed is made, and its pods are rejected.

    A ReplicaSet is listed by its own key only while nobody owns it.
    """
    uid = "00000000-0000-4000-8000-000000000001"
    keys = (overlap.maker_key(namespace, kind, "known") for kind in ("Job", "ReplicaSet"))
    listed.set("nlp", dict.fromkeys((uid, *keys), "exceeded quota: nlp"))

    async def applies() -> bool:
        return bool(await rejection(maker, pod_of(uid)))

    await eventually(applies, APPLIED, "the policy applies")
    full = "exceeded quota: nlp"
    for kind, name, reason in ((JOBS, "new", full), (JOBS, "known", ""), (REPLICASETS, "known", full)):
        made = replicaset(name, namespace, 0) if kind is REPLICASETS else job(name, namespace)
        obj = owned(made, "JobSet", "own", uid, "jobset.x-k8s.io/v1alpha2")
        assert await rejection(client, obj, kind) == reason, (kind.kind, name)
    assert not await rejection(client, owned(replicaset("new", namespace, 0), "JobSet", "own", "2"), REPLICASETS)


async def test_a_rejection_ends_at_its_time(
    listed: OverlapList, client: KubeClient, maker: KubeClient, namespace: str
) -> None:
    """By the API server's clock, whether or not anybody changes the list."""
    uid = "00000000-0000-4000-8000-000000000002"
    key = overlap.maker_key(namespace, "ReplicaSet", "probe")
    until = format_timestamp(round(time.time() * 1000) + 3_600_000)
    listed.set("nlp", dict.fromkeys((uid, key), "exceeded quota: nlp"), {uid: until})
    probe = pod_of(uid, namespace=namespace, owner="other")

    async def is_rejected() -> bool:
        return bool(await rejection(maker, probe))

    await eventually(is_rejected, APPLIED, "the policy applies")
    soon = round(time.time() * 1000) + 3_000
    listed.set("nlp", dict.fromkeys((uid, key), "exceeded quota: nlp"), {uid: format_timestamp(soon)})
    await asyncio.sleep(1)
    assert await is_rejected()

    async def is_allowed() -> bool:
        return not await is_rejected()

    await eventually(is_allowed, 10, "the rejection has ended")
    assert time.time() * 1000 >= soon - 1000
    # The other key has no end.
    assert await rejection(maker, pod_of(uid, namespace=namespace)) == "exceeded quota: nlp"
    assert (await stored(client)).keys() == {uid, key}


async def test_what_a_listed_deployment_has_adopted_is_not_raised(
    listed: OverlapList, client: KubeClient, maker: KubeClient, namespace: str
) -> None:
    """A version has the name of its Deployment and the hash of its template: its pods are found by that."""
    made = await client.create(DEPLOYMENTS, deployment("web", None, 0, namespace=namespace))
    uid = made["metadata"]["uid"]
    for name, labels in (
        ("a1", {"app": "x"}),
        ("a2", {"app": "x"}),
        ("web-abc", {"app": "x", "pod-template-hash": "abc"}),
    ):
        each = replicaset(name, namespace, 0)
        each["metadata"]["labels"] = labels
        each["spec"]["selector"] = {"matchLabels": labels}
        each["spec"]["template"]["metadata"] = {"labels": labels}
        await client.create(REPLICASETS, owned(each, "Deployment", "web", uid))
    # Of a2 this is from when nobody owned it: the controller takes it out.
    keys = (uid, overlap.version_key(namespace, "web", "pod-template-hash"))
    before = overlap.maker_key(namespace, "ReplicaSet", "a2")
    listed.set("nlp", dict.fromkeys((*keys, before), "exceeded quota: nlp"))

    async def applies() -> bool:
        return bool(await rejection(maker, pod_of(uid)))

    await eventually(applies, APPLIED, "the policy applies")
    more = {"spec": {"replicas": 1}}
    for name in ("a1", "a2"):
        with pytest.raises(ApiError, match="exceeded quota: nlp"):
            await client.patch(REPLICASETS, name, more, namespace=namespace, dry_run=True)
    await client.patch(REPLICASETS, "web-abc", more, namespace=namespace, dry_run=True)
    await client.patch(REPLICASETS, "a1", {"metadata": {"annotations": {"a": "b"}}}, namespace=namespace)


async def rejects(maker: KubeClient, listed: OverlapList, uid: str) -> None:
    """List it and nothing else, and wait until its pods are rejected."""
    listed.set("nlp", {uid: f"exceeded quota: {uid}"})

    async def is_rejected() -> bool:
        return await rejection(maker, pod_of(uid)) == f"exceeded quota: {uid}"

    await eventually(is_rejected, APPLIED, f"pods of {uid} are rejected")


async def allows(maker: KubeClient, uid: str) -> None:
    async def is_allowed() -> bool:
        return not await rejection(maker, pod_of(uid))

    await eventually(is_allowed, APPLIED, f"pods of {uid} are allowed")


@pytest.mark.parametrize(
    "parts",
    [(POLICIES,), (POLICY_BINDINGS,), (POLICIES, POLICY_BINDINGS), (CRDS,), (CRDS, POLICIES, POLICY_BINDINGS)],
    ids=["policy", "binding", "uninstalled", "crd", "uninstalled with the crd"],
)
async def test_what_is_deleted_rejects_nothing_and_applies_again_once_it_is_made_again(
    listed: OverlapList, client: KubeClient, maker: KubeClient, unique: str, parts: tuple[Resource, ...]
) -> None:
    """An API server reads our parameters again each time, and goes on to see what changes in them."""
    await rejects(maker, listed, f"{unique}-1")
    await uninstall(client, *parts)
    await allows(maker, f"{unique}-1")
    await install(client, *parts)
    await rejects(maker, listed, f"{unique}-2")
    await rejects(maker, listed, f"{unique}-3")
    assert not await rejection(maker, pod_of(f"{unique}-2"))


async def test_without_a_list_nothing_is_rejected_and_the_controller_makes_it_again(
    listed: OverlapList, client: KubeClient, maker: KubeClient, unique: str
) -> None:
    await rejects(maker, listed, unique)
    async with kept(client):
        # The list of a controller that lists nothing.
        await allows(maker, unique)
    await client.delete(OVERLAPS, overlap.NAME)
    await rejects(maker, listed, unique)


async def test_pods_that_no_listed_workload_makes_are_never_rejected(
    listed: OverlapList, client: KubeClient, maker: KubeClient, namespace: str, unique: str
) -> None:
    """Whoever makes them, for what is not listed or only looks alike."""
    await rejects(maker, listed, unique)
    key = overlap.version_key(namespace, "web", "pod-template-hash")
    listed.set("nlp", {unique: "exceeded quota: nlp", key: "exceeded quota: nlp"})
    version = pod_of("other", namespace=namespace, owner="web-1a2b")
    version["metadata"]["labels"] = {"pod-template-hash": "1a2b"}

    async def is_rejected() -> bool:
        return await rejection(maker, version) == "exceeded quota: nlp"

    await eventually(is_rejected, 30, "pods of a version of web are rejected")
    assert await rejection(client, version) == "exceeded quota: nlp"

    def changed(pod: Object, **metadata: object) -> Object:
        return {**pod, "metadata": {**pod["metadata"], **metadata}}

    def owned(pod: Object, **reference: object) -> Object:
        [owner] = pod["metadata"]["ownerReferences"]
        kept = {key: value for key, value in {**owner, **reference}.items() if value is not None}
        return changed(pod, ownerReferences=[kept])

    unlisted = [
        pod_of("other"),
        changed(pod_of(unique), ownerReferences=[]),
        # Owners that do not make it.
        owned(pod_of(unique), controller=None),
        owned(pod_of(unique), controller=False),
        # Of a Deployment of the same name elsewhere, of others that are called alike, and of a StatefulSet.
        changed(version, namespace="default"),
        owned(version, name="web-b-1a2b"),
        owned(version, name="web"),
        changed(version, labels={}),
        changed(version, labels={"pod-template-hash": "3c4d"}),
        owned(version, kind="StatefulSet"),
    ]
    for pod in unlisted:
        assert not await rejection(maker, pod), pod["metadata"]


async def test_the_largest_list_is_stored_and_its_texts_are_told(
    listed: OverlapList, client: KubeClient, maker: KubeClient, unique: str
) -> None:
    """As many as may be, names that are as long as names can be, and texts that are too long."""
    first = {f"{number:036}": "exceeded quota: nlp" for number in range(overlap.MAX_LISTED)}
    longest = overlap.version_key("n" * 63, "w" * 253, "pod-template-hash")
    listed.set("a", {longest: "exceeded quota: nlp"})
    listed.set("b", {unique: "exceeded quota: " + "é" * 2 * overlap.MAX_TEXT})
    listed.set("c", first)

    async def are_stored() -> bool:
        return len(await stored(client)) == overlap.MAX_LISTED

    await eventually(are_stored, 30, "the list is stored")
    assert longest in await stored(client)

    async def is_rejected() -> bool:
        return (await rejection(maker, pod_of(unique))).startswith("exceeded quota: éé")

    await eventually(is_rejected, APPLIED, "a long text is told")


async def test_no_other_list_can_be_made_and_none_beyond_its_bounds(client: KubeClient) -> None:
    made = overlap.overlap_list({})
    with pytest.raises(Invalid, match="the list is called bizrq-overlap"):
        await client.create(OVERLAPS, {**made, "metadata": {"name": "other"}})
    for wrong in (
        {"uid": "x" * (overlap.MAX_TEXT + 1)},
        {f"{number}": "x" for number in range(overlap.MAX_LISTED + 1)},
        {"uid": 1},
    ):
        with pytest.raises(Invalid):
            await client.create(OVERLAPS, {**made, "listed": wrong}, dry_run=True)


async def test_who_makes_the_policy_or_the_binding_has_to_be_allowed_to_read_the_list(
    listed: OverlapList, client: KubeClient, cluster: Cluster, unique: str
) -> None:
    """`get` on the kind for the policy, on the one list for the binding. The controller's account has less."""
    if not cluster.is_real:
        pytest.skip("the sandbox authorizes nothing")
    api = {"apiGroups": ["admissionregistration.k8s.io"], "verbs": ["create"]}
    makes = {**api, "resources": [POLICIES.plural, POLICY_BINDINGS.plural]}
    reads = {"apiGroups": [OVERLAPS.group], "resources": [OVERLAPS.plural], "verbs": ["get"]}
    role = {**cluster_role(unique, "get"), "rules": [makes]}
    await client.create(CLUSTER_ROLES, role)
    await client.create(CLUSTER_ROLE_BINDINGS, bound(unique, unique))
    policy = {**overlap.policy(MAKERS), "metadata": {"name": unique}}
    binding = {**overlap.binding(), "metadata": {"name": unique}}
    person = KubeClient(config.from_kubeconfig(cluster.kubeconfig, None, config.Overrides(impersonated=unique)))

    async def may(group: str, resource: str, verb: str, name: str = "") -> None:
        attributes = {"group": group, "resource": resource, "verb": verb, "name": name}
        spec = {"user": unique, "resourceAttributes": attributes}
        review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}

        async def answered() -> bool:
            return (await client.create(ACCESS_REVIEWS, review))["status"]["allowed"]

        await eventually(answered, 30, f"{unique} may {verb} {resource}")

    async with person:
        await may(POLICIES.group, POLICIES.plural, "create")
        with pytest.raises(Invalid, match='must have "get" permission on all objects of the referenced paramKind'):
            await person.create(POLICIES, policy, dry_run=True)
        with pytest.raises(Invalid, match='does not have "get" permission'):
            await person.create(POLICY_BINDINGS, binding, dry_run=True)
        one = {**reads, "resourceNames": [overlap.NAME]}
        await client.patch(CLUSTER_ROLES, unique, {"rules": [makes, one]})
        await may(OVERLAPS.group, OVERLAPS.plural, "get", overlap.NAME)
        await person.create(POLICY_BINDINGS, binding, dry_run=True)
        await client.patch(CLUSTER_ROLES, unique, {"rules": [makes, reads]})
        await may(OVERLAPS.group, OVERLAPS.plural, "get", "*")
        await person.create(POLICIES, policy, dry_run=True)
    await client.delete(CLUSTER_ROLE_BINDINGS, bound(unique, unique)["metadata"]["name"])
    await client.delete(CLUSTER_ROLES, unique)


async def test_what_an_earlier_leader_listed_is_replaced(client: KubeClient) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(OVERLAPS, overlap.NAME)
    await served(client, OVERLAPS)
    await client.create(OVERLAPS, overlap.overlap_list({"old": "exceeded quota: gone"}))
    async with kept(client) as found:
        found.set("nlp", {"new": "exceeded quota: nlp"})

        async def is_replaced() -> bool:
            return await stored(client) == {"new": "exceeded quota: nlp"}

        await eventually(is_replaced, 30, "the list is replaced")
