"""What of an API server we rely on for objects, watches and leases, held against the sandbox and a real one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest

from bizrq.kube.client import AlreadyExists, ApiError, Conflict, Gone, Invalid, KubeClient, NotFound
from bizrq.kube.lease import LEASES
from tests.contract.conftest import gathered
from tests.support.cluster import Cluster, eventually, refusal
from tests.support.objects import CONFIG_MAPS, DEPLOYMENTS, Object, deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")


def config(name: str, namespace: str, **values: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "x"}},
        "data": values,
    }


async def test_a_write_from_an_old_version_is_a_conflict(client: KubeClient, namespace: str) -> None:
    old = await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    await client.replace(CONFIG_MAPS, {**old, "data": {"a": "2"}})
    error = await refusal(client.replace(CONFIG_MAPS, {**old, "data": {"a": "3"}}))
    assert isinstance(error, Conflict)
    assert error.reason == "Conflict"
    assert error.message == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_guarded_write_of_a_lease_that_is_gone_does_not_create_it(client: KubeClient, namespace: str) -> None:
    """A Lease is a kind that a write of a whole object may create."""
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": "l", "namespace": namespace},
        "spec": {"holderIdentity": "me"},
    }
    old = await client.create(LEASES, lease)
    new = await client.replace(LEASES, {**old, "spec": {"holderIdentity": "somebody"}})
    assert isinstance(await refusal(client.replace(LEASES, {**old, "spec": {"holderIdentity": "me"}})), Conflict)
    await client.delete(LEASES, "l", namespace)
    error = await refusal(client.replace(LEASES, new))
    assert isinstance(error, Conflict | NotFound), error
    assert isinstance(await refusal(client.get(LEASES, "l", namespace)), NotFound)
    # Nor is another one of its name taken for it.
    await client.create(LEASES, lease)
    assert isinstance(await refusal(client.replace(LEASES, new)), Conflict)
    guarded_by_uid = {**new, "metadata": {k: v for k, v in new["metadata"].items() if k != "resourceVersion"}}
    assert isinstance(await refusal(client.replace(LEASES, guarded_by_uid)), Conflict)
    await client.delete(LEASES, "l", namespace)
    assert isinstance(await refusal(client.replace(LEASES, guarded_by_uid)), Conflict | NotFound)
    assert isinstance(await refusal(client.get(LEASES, "l", namespace)), NotFound)


async def test_of_many_writes_from_one_version_one_wins(client: KubeClient, namespace: str) -> None:
    old = await client.create(CONFIG_MAPS, config("c", namespace, a="0"))
    answers = await gathered(8, lambda n: client.replace(CONFIG_MAPS, {**old, "data": {"a": str(n + 1)}}))
    assert sum(not isinstance(answer, Exception) for answer in answers) == 1
    assert all(isinstance(answer, Conflict) for answer in answers if isinstance(answer, Exception))


async def test_versions_are_integers_that_grow_over_all_kinds(client: KubeClient, namespace: str) -> None:
    first = await client.create(CONFIG_MAPS, config("a", namespace))
    second = await client.create(DEPLOYMENTS, deployment("d", None, 0, namespace=namespace))
    third = await client.create(CONFIG_MAPS, config("b", namespace))
    versions = [int(obj["metadata"]["resourceVersion"]) for obj in (first, second, third)]
    assert versions == sorted(set(versions))
    _, listed = await client.list(CONFIG_MAPS, namespace)
    assert int(listed) >= versions[-1]


async def test_a_create_of_what_is_there_says_already_exists_and_of_what_is_not_not_found(
    client: KubeClient, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, config("c", namespace))
    error = await refusal(client.create(CONFIG_MAPS, config("c", namespace)))
    assert isinstance(error, AlreadyExists)
    assert error.message == 'configmaps "c" already exists'
    error = await refusal(client.get(CONFIG_MAPS, "none", namespace))
    assert isinstance(error, NotFound)
    assert (error.message, error.details) == ('configmaps "none" not found', {"name": "none", "kind": "configmaps"})


async def test_a_write_that_changes_nothing_is_no_new_version(client: KubeClient, namespace: str) -> None:
    """Why an entry's expiry has to move (docs/design.md, "Admission writes its entry first")."""
    old = await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    same = await client.replace(CONFIG_MAPS, old)
    patched = await client.patch(CONFIG_MAPS, "c", {"data": {"a": "1"}}, namespace=namespace)
    versions = {obj["metadata"]["resourceVersion"] for obj in (old, same, patched)}
    assert len(versions) == 1
    made = deployment("d", None, 0, namespace=namespace)
    await client.create(DEPLOYMENTS, made)
    again = await client.patch(DEPLOYMENTS, "d", {"spec": made["spec"]}, namespace=namespace)
    assert again["metadata"]["generation"] == 1, "what was filled up as before is no change"


async def test_generation_counts_spec_and_status_is_written_apart(client: KubeClient, namespace: str) -> None:
    made = await client.create(DEPLOYMENTS, deployment("d", None, 0, namespace=namespace))
    assert made["metadata"]["generation"] == 1
    moved = await client.patch(DEPLOYMENTS, "d", {"spec": {"paused": True}}, namespace=namespace)
    assert moved["metadata"]["generation"] == 2
    told = {"status": {"collisionCount": 7}, "spec": {"replicas": 9}}
    status = await client.patch(DEPLOYMENTS, "d", told, namespace=namespace, subresource="status")
    assert (status["metadata"]["generation"], status["spec"]["replicas"]) == (2, 0)
    assert status["status"]["collisionCount"] == 7
    spec = await client.patch(DEPLOYMENTS, "d", {"status": {"collisionCount": 8}}, namespace=namespace)
    assert spec["status"].get("collisionCount") != 8


async def test_a_generated_name_is_new_each_time(client: KubeClient, namespace: str) -> None:
    obj = config("x", namespace)
    del obj["metadata"]["name"]
    obj["metadata"]["generateName"] = "made-"
    made = [(await client.create(CONFIG_MAPS, obj))["metadata"] for _ in range(3)]
    assert len({m["name"] for m in made}) == len({m["uid"] for m in made}) == 3
    assert all(m["name"].startswith("made-") and len(m["name"]) == 10 for m in made)


async def test_pages_of_one_list_share_one_revision(client: KubeClient, namespace: str) -> None:
    for number in range(7):
        await client.create(CONFIG_MAPS, config(f"c{number}", namespace))
    path = CONFIG_MAPS.path(namespace)
    query = {"limit": "3", "labelSelector": "app=x"}
    first = orjson.loads(await client.request("GET", path, params=query))
    await client.create(CONFIG_MAPS, config("c00", namespace))
    names, page = [item["metadata"]["name"] for item in first["items"]], first
    while token := page["metadata"].get("continue"):
        page = orjson.loads(await client.request("GET", path, params={**query, "continue": token}))
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [item["metadata"]["name"] for item in page["items"]]
    assert names == [f"c{number}" for number in range(7)]
    error = await refusal(client.request("GET", path, params={"limit": "3", "continue": "nonsense"}))
    assert error.status == 400


async def test_labels_select(client: KubeClient, namespace: str) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2", "y": ""}), ("c", {})):
        obj = config(name, namespace)
        obj["metadata"]["labels"] = labels
        await client.create(CONFIG_MAPS, obj)
    rows = {"x": "ab", "x=1": "a", "x!=1": "bc", "x in (1,2)": "ab", "!x": "c", "x,y": "b", "x notin (2)": "ac"}
    for selector, names in rows.items():
        items, _ = await client.list(CONFIG_MAPS, namespace, label_selector=selector)
        # A cluster's own controllers put ConfigMaps of theirs into every namespace.
        ours = [item["metadata"]["name"] for item in items if item["metadata"]["name"] in ("a", "b", "c")]
        assert "".join(ours) == names, selector


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        ("application/merge-patch+json", {"data": {"a": None, "b": "2"}}),
        ("application/strategic-merge-patch+json", {"data": {"a": None, "b": "2"}}),
        (
            "application/json-patch+json",
            [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data", "value": {"b": "2"}}],
        ),
    ],
    ids=["merge", "strategic", "json"],
)
async def test_patches_of_every_type_change_what_they_say(
    client: KubeClient, namespace: str, content_type: str, patch: Any
) -> None:
    await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    found = await client.patch(CONFIG_MAPS, "c", patch, namespace=namespace, content_type=content_type)
    assert found["data"] == {"b": "2"}


async def test_a_json_patch_whose_test_fails_changes_nothing(client: KubeClient, namespace: str) -> None:
    """How a caBundle is injected without writing over somebody else's change."""
    made = await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    patch = [{"op": "test", "path": "/data/a", "value": "2"}, {"op": "remove", "path": "/data/a"}]
    error = await refusal(
        client.patch(CONFIG_MAPS, "c", patch, namespace=namespace, content_type="application/json-patch+json")
    )
    assert isinstance(error, Invalid)
    found = await client.get(CONFIG_MAPS, "c", namespace)
    assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_containers_merge_by_name_in_a_strategic_patch(client: KubeClient, namespace: str) -> None:
    await client.create(DEPLOYMENTS, deployment("d", None, 0, namespace=namespace))
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "new"}]}}}}
    found = await client.patch(
        DEPLOYMENTS, "d", patch, namespace=namespace, content_type="application/strategic-merge-patch+json"
    )
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]) == ("new", {"cpu": "1"})


async def test_preconditions_guard_a_deletion(client: KubeClient, namespace: str) -> None:
    made = (await client.create(CONFIG_MAPS, config("c", namespace)))["metadata"]
    assert isinstance(await refusal(client.delete(CONFIG_MAPS, "c", namespace, uid="other")), Conflict)
    assert isinstance(await refusal(client.delete(CONFIG_MAPS, "c", namespace, resource_version="1")), Conflict)
    await client.delete(CONFIG_MAPS, "c", namespace, uid=made["uid"], resource_version=made["resourceVersion"])


async def test_a_finalizer_keeps_an_object_until_it_goes(client: KubeClient, namespace: str) -> None:
    obj = config("c", namespace)
    obj["metadata"]["finalizers"] = ["quota.biz.group/x"]
    await client.create(CONFIG_MAPS, obj)
    await client.delete(CONFIG_MAPS, "c", namespace)
    kept = await client.get(CONFIG_MAPS, "c", namespace)
    assert kept["metadata"]["deletionTimestamp"]
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"finalizers": None}}, namespace=namespace)
    assert isinstance(await refusal(client.get(CONFIG_MAPS, "c", namespace)), NotFound)


async def test_a_dry_run_answers_as_if_and_stores_nothing(client: KubeClient, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, config("c", namespace), dry_run=True)
    assert made["metadata"]["uid"]
    assert isinstance(await refusal(client.get(CONFIG_MAPS, "c", namespace)), NotFound)


async def test_a_watch_brings_what_happened_since_in_order_with_the_last_state_of_what_went(
    client: KubeClient, namespace: str
) -> None:
    _, since = await client.list(CONFIG_MAPS, namespace)
    await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    await client.patch(CONFIG_MAPS, "c", {"data": {"a": "2"}}, namespace=namespace)
    await client.delete(CONFIG_MAPS, "c", namespace)
    seen: list[tuple[str, str, int]] = []
    async with contextlib.aclosing(
        client.watch(CONFIG_MAPS, namespace=namespace, resource_version=since, label_selector="app=x")
    ) as events:
        async with asyncio.timeout(60):
            async for kind, obj in events:
                if kind != "BOOKMARK":
                    seen.append((kind, obj["data"]["a"], int(obj["metadata"]["resourceVersion"])))
                if len(seen) == 3:
                    break
    assert [(kind, value) for kind, value, _ in seen] == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    versions = [version for *_, version in seen]
    assert versions == sorted(set(versions))


async def test_a_label_that_comes_or_goes_is_added_or_deleted_in_a_watch_that_selects(
    client: KubeClient, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, config("c", namespace, a="1"))
    _, since = await client.list(CONFIG_MAPS, namespace)
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"labels": {"app": "y"}}}, namespace=namespace)
    await client.patch(CONFIG_MAPS, "c", {"metadata": {"labels": {"app": "x"}}}, namespace=namespace)
    kinds: list[str] = []
    async with contextlib.aclosing(
        client.watch(CONFIG_MAPS, namespace=namespace, resource_version=since, label_selector="app=x")
    ) as events:
        async with asyncio.timeout(60):
            async for kind, _ in events:
                kinds += [kind] if kind != "BOOKMARK" else []
                if len(kinds) == 2:
                    break
    assert kinds == ["DELETED", "ADDED"]


async def test_a_watch_can_begin_with_the_state_that_is_there_and_says_when_that_is_over(
    client: KubeClient, namespace: str
) -> None:
    """KEP-3157."""
    for name in ("a", "b"):
        await client.create(CONFIG_MAPS, config(name, namespace))
    seen: list[str] = []
    async with contextlib.aclosing(
        client.watch(
            CONFIG_MAPS, namespace=namespace, resource_version="", label_selector="app=x", send_initial_events=True
        )
    ) as events:
        async with asyncio.timeout(60):
            async for kind, obj in events:
                if kind == "BOOKMARK":
                    assert obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                    break
                seen.append(f"{kind} {obj['metadata']['name']}")
    assert seen == ["ADDED a", "ADDED b"]


async def test_a_revision_that_never_was_or_is_long_gone_is_no_place_to_watch_from(
    cluster: Cluster, client: KubeClient, namespace: str
) -> None:
    """410, in the answer or as the watch's first event; the sandbox is told to forget, etcd forgets revision 1."""
    await client.create(CONFIG_MAPS, config("c", namespace))
    if cluster.box is not None:
        cluster.box.compact()
    with contextlib.suppress(Gone):
        async with contextlib.aclosing(
            client.watch(CONFIG_MAPS, namespace=namespace, resource_version="1", timeout_seconds=2)
        ) as events:
            async for kind, _ in events:
                assert cluster.is_real, f"{kind} from a forgotten revision"
    items, version = await client.list(CONFIG_MAPS, namespace)
    assert int(version) > 1
    assert items


async def test_a_lease_is_taken_by_one(client: KubeClient, namespace: str) -> None:
    """Compare and swap, as leadership needs it."""
    blank = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": "l", "namespace": namespace},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
    }
    created = await gathered(5, lambda _: client.create(LEASES, blank))
    assert sum(not isinstance(answer, Exception) for answer in created) == 1
    lease = await client.get(LEASES, "l", namespace)

    def taken(by: int) -> Object:
        return {
            **lease,
            "spec": {**lease["spec"], "holderIdentity": f"h{by}", "renewTime": "2026-01-01T00:00:00.123456Z"},
        }

    answers = await gathered(5, lambda n: client.replace(LEASES, taken(n)))
    [winner] = [answer for answer in answers if not isinstance(answer, Exception)]
    found = await client.get(LEASES, "l", namespace)
    assert found["spec"] == winner["spec"]
    assert found["spec"]["renewTime"] == "2026-01-01T00:00:00.123456Z"


async def test_scale_reads_and_writes_replicas_of_its_parent(client: KubeClient, namespace: str) -> None:
    made = await client.create(DEPLOYMENTS, deployment("d", None, 3, namespace=namespace))
    path = DEPLOYMENTS.path(namespace, "d", "scale")
    scale = orjson.loads(await client.request("GET", path))
    assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 3})
    assert scale["metadata"]["uid"] == made["metadata"]["uid"]
    assert "labels" not in scale["metadata"]
    await client.patch(DEPLOYMENTS, "d", {"spec": {"replicas": 0}}, namespace=namespace, subresource="scale")

    async def is_zero() -> bool:
        return (await client.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 0

    await eventually(is_zero)
    scale = orjson.loads(await client.request("GET", path))
    assert scale["spec"] == {}
    error = await refusal(
        client.patch(DEPLOYMENTS, "d", {"spec": {"replicas": -1}}, namespace=namespace, subresource="scale")
    )
    assert isinstance(error, ApiError)
    assert error.status == 422
