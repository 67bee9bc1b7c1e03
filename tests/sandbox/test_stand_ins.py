"""Controllers, scheduler, kubelet, garbage collector: what makes, places, runs, ends and removes pods."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

import sandbox
from sandbox.server import Sandbox
from tests.support.sandbox_client import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    PODS,
    Client,
    config_map,
    deployment,
    eventually,
)

TFJOBS = "/apis/kubeflow.org/v1/namespaces/default/tfjobs"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"
ROLLOUTS = "/apis/argoproj.io/v1alpha1/namespaces/default/rollouts"


async def pods(kube: Client, **params: str) -> list[dict]:
    return (await kube.get(PODS, **params))["items"]


async def phases(kube: Client) -> list[str]:
    return sorted(item["status"].get("phase", "") for item in await pods(kube))


async def install(kube: Client, name: str) -> None:
    path = Path(sandbox.__file__).parent / "crds" / f"{name}.yaml"
    await kube.create(CRDS, yaml.safe_load(path.read_text()))


async def test_a_deployment_gets_running_pods_on_nodes(kube: Client):
    await kube.create(DEPLOYMENTS, deployment("web", replicas=3))

    async def available() -> bool:
        status = (await kube.get(DEPLOYMENTS + "/web"))["status"]
        return status.get("availableReplicas") == 3 and status["observedGeneration"] == 1

    await eventually(available)
    found = await pods(kube)
    assert len(found) == 3
    assert all(item["spec"]["nodeName"] and item["status"]["phase"] == "Running" for item in found)
    assert all(item["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet" for item in found)
    await kube.merge(DEPLOYMENTS + "/web/scale", {"spec": {"replicas": 1}})
    await eventually(lambda: _count(kube, 1))


async def _count(kube: Client, wanted: int) -> bool:
    return len(await pods(kube)) == wanted


async def test_a_replica_set_whose_pods_are_rejected_stays_as_it_is_until_one_is_not(kube: Client):
    """Each rejection names another pod. If that were stored, the change would be the reason to try at once."""
    metadata = {"name": "no-pods"}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]
    spec = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "false"}]}
    await kube.create(f"{ADMISSION}/validatingadmissionpolicies", {"metadata": metadata, "spec": spec})
    bound = {"policyName": "no-pods", "validationActions": ["Deny"]}
    await kube.create(f"{ADMISSION}/validatingadmissionpolicybindings", {"metadata": metadata, "spec": bound})
    await kube.create(DEPLOYMENTS, deployment("web", replicas=2))
    seen: list[str] = []

    async def rejected() -> bool:
        found = (await kube.get(REPLICASETS))["items"]
        if not any(item["status"].get("conditions") for item in found):
            return False
        seen.append(found[0]["metadata"]["resourceVersion"])
        return len(seen) > 30

    await eventually(rejected)
    assert len(set(seen[10:])) == 1
    await kube.ok("DELETE", f"{ADMISSION}/validatingadmissionpolicybindings/no-pods")
    await eventually(lambda: _count(kube, 2))


async def test_a_new_template_replaces_the_pods(kube: Client):
    await kube.create(DEPLOYMENTS, deployment("web", replicas=2))
    await eventually(lambda: _count(kube, 2))
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "y"}]}}}}
    await kube.merge(DEPLOYMENTS + "/web", template)

    async def replaced() -> bool:
        return [item["spec"]["containers"][0]["image"] for item in await pods(kube)] == ["y", "y"]

    await eventually(replaced)


async def test_what_a_deleted_object_owned_goes_too(kube: Client):
    await kube.create(DEPLOYMENTS, deployment("web", replicas=2))
    await eventually(lambda: _count(kube, 2))
    await kube.ok("DELETE", DEPLOYMENTS + "/web")
    await eventually(lambda: _count(kube, 0))
    assert (await kube.get("/apis/apps/v1/replicasets"))["items"] == []


async def test_an_orphaned_child_stays(kube: Client):
    await kube.create(DEPLOYMENTS, deployment("web", replicas=1))
    await eventually(lambda: _count(kube, 1))
    await kube.ok("DELETE", DEPLOYMENTS + "/web", propagationPolicy="Orphan")

    async def gone() -> bool:
        code, _ = await kube.send("GET", DEPLOYMENTS + "/web")
        return code == 404

    await eventually(gone)
    [left] = (await kube.get("/apis/apps/v1/replicasets"))["items"]
    assert "ownerReferences" not in left["metadata"]


async def test_a_foreground_delete_waits_for_the_children(kube: Client):
    await kube.create(DEPLOYMENTS, deployment("web", replicas=1))
    await eventually(lambda: _count(kube, 1))
    going = await kube.ok("DELETE", DEPLOYMENTS + "/web", propagationPolicy="Foreground")
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def gone() -> bool:
        code, _ = await kube.send("GET", DEPLOYMENTS + "/web")
        return code == 404 and not await pods(kube)

    await eventually(gone)


async def test_a_namespace_takes_its_contents_along(kube: Client):
    await kube.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await kube.create("/api/v1/namespaces/team/configmaps", config_map("a"))
    answer = await kube.ok("DELETE", "/api/v1/namespaces/team")
    assert answer["status"]["phase"] == "Terminating"

    async def gone() -> bool:
        code, _ = await kube.send("GET", "/api/v1/namespaces/team")
        return code == 404

    await eventually(gone)
    code, _ = await kube.send("GET", "/api/v1/namespaces/team/configmaps/a")
    assert code == 404
    assert (await kube.send("POST", "/api/v1/namespaces/team/configmaps", config_map("a")))[0] == 404


async def test_a_tfjob_of_two_hours_ends_after_two_hours_of_the_clock(cluster: Sandbox, kube: Client):
    await install(kube, "tfjobs")
    template = {
        "metadata": {"annotations": {"sandbox.bizrq/run-seconds": "7200"}},
        "spec": {"containers": [{"name": "tensorflow", "image": "x"}]},
    }
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "train"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 8, "template": template}}},
    }
    await kube.create(TFJOBS, body)

    async def running() -> bool:
        return await phases(kube) == ["Running"] * 8

    await eventually(running)
    cluster.clock.advance(7190)
    assert await running()
    cluster.clock.advance(20)

    async def succeeded() -> Any:
        conditions = (await kube.get(TFJOBS + "/train"))["status"]["conditions"]
        return next((c for c in conditions if c["type"] == "Succeeded" and c["status"] == "True"), None)

    await eventually(succeeded)
    for item in await pods(kube):
        labels = item["metadata"]["labels"]
        assert labels["training.kubeflow.org/job-name"] == "train"
        scheduled = next(c for c in item["status"]["conditions"] if c["type"] == "PodScheduled")
        ended = item["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
        assert _seconds(ended) - _seconds(scheduled["lastTransitionTime"]) == 7200


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


async def test_a_rollout_scales_like_a_deployment(kube: Client):
    await install(kube, "rollouts")
    body = {**deployment("web", replicas=2), "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    await kube.create(ROLLOUTS, body)
    await eventually(lambda: _count(kube, 2))
    code, scale = await kube.merge(ROLLOUTS + "/web/scale", {"spec": {"replicas": 3}})
    assert (code, scale["spec"]["replicas"]) == (200, 3)
    await eventually(lambda: _count(kube, 3))


async def test_a_job_completes_and_a_stateful_set_counts(cluster: Sandbox, kube: Client):
    template = {
        "metadata": {"annotations": {"sandbox.bizrq/run-seconds": "60"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]},
    }
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    await kube.create(
        jobs,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": {"completions": 3, "parallelism": 2, "template": template},
        },
    )

    async def active() -> bool:
        return (await kube.get(jobs + "/j"))["status"].get("ready") == 2

    await eventually(active)
    cluster.clock.advance(61)

    async def one_left() -> bool:
        status = (await kube.get(jobs + "/j"))["status"]
        return status.get("succeeded") == 2 and status.get("ready") == 1

    await eventually(one_left)
    cluster.clock.advance(61)

    async def complete() -> bool:
        status = (await kube.get(jobs + "/j"))["status"]
        return any(c["type"] == "Complete" for c in status.get("conditions", ()))

    await eventually(complete)

    sets = "/apis/apps/v1/namespaces/default/statefulsets"
    await kube.create(sets, {**deployment("db", replicas=2), "kind": "StatefulSet"})

    async def names() -> bool:
        found = await pods(kube, labelSelector="app=db", fieldSelector="status.phase=Running")
        return [item["metadata"]["name"] for item in found] == ["db-0", "db-1"]

    await eventually(names)


async def test_an_object_whose_owner_never_was_is_collected(kube: Client):
    body = config_map("a")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none", "uid": "no"}
    body["metadata"]["ownerReferences"] = [owner]
    await kube.create(CONFIG_MAPS, body)

    async def gone() -> bool:
        code, _ = await kube.send("GET", CONFIG_MAPS + "/a")
        return code == 404

    await eventually(gone)
