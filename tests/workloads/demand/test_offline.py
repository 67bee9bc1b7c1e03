"""The rows of `bizrq usage`."""

from __future__ import annotations

from dataclasses import replace

from bizrq.workloads.labels import LABEL
from tests.support.workload_language import CONFIG, deployment, rollout, template, tfjob, usage, workload
from tests.workloads.devices.test_dra import CLASSES, SHARED, claim, exactly, using


def named(obj: dict, name: str, **metadata) -> dict:
    return {**obj, "metadata": {**obj["metadata"], "name": name, **metadata}}


def scale(name: str, spec: dict | None = None, namespace: str = "team-a") -> dict:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec or {}}


def test_a_row_is_what_the_command_prints():
    [row] = usage([named(deployment(2, "cpu=/1500m mem=1Gi", cpu="A4"), "web")])
    assert row.as_json() == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "namespace": "team-a",
        "name": "web",
        "group": "nlp",
        "usage": {
            "count/deployments.apps": "1",
            "limits.cpu": "3",
            "limits.cpu.A4": "3",
            "pods": "2",
            "requests.cpu": "3",
            "requests.cpu.A4": "3",
            "requests.memory": "2Gi",
        },
    }


def test_an_object_that_is_malformed_has_an_error_in_place_of_usage():
    [row] = usage([named(rollout(-1, "cpu=1"), "bad")])
    assert row.as_json() == {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Rollout",
        "namespace": "team-a",
        "name": "bad",
        "group": "nlp",
        "error": "spec.replicas: must not be negative, but is -1",
    }


def test_a_job_without_labels_has_those_of_its_pod_template():
    """The API server stores it so; the Job pays for its pods, which are not charged again."""
    obj = workload("batch/v1", "Job", {"template": {**template("cpu=1"), "metadata": {"labels": {LABEL: "nlp"}}}})
    del obj["metadata"]["labels"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "w", "uid": "uid-w", "controller": True}
    pod = workload("v1", "Pod", template("cpu=1")["spec"])
    job, made = usage([obj, named(pod, "w-1", ownerReferences=[reference])])
    assert (job.group, (job.usage or {}).get("requests.cpu")) == ("nlp", "1")
    assert made.usage == {}
    obj["metadata"]["labels"] = {"app": "w"}
    job, made = usage([obj, named(pod, "w-1", ownerReferences=[reference])])
    assert job.group is None
    assert (made.usage or {}).get("requests.cpu") == "1"


def test_unlabelled_workloads_have_rows_too_and_a_missing_namespace_is_default():
    obj = deployment(1, "cpu=1", group=None)
    del obj["metadata"]["namespace"]
    [row] = usage([obj])
    assert (row.namespace, row.group) == ("default", None)
    assert row.usage


def test_rows_stand_in_the_order_of_the_documents_and_others_are_context():
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    documents = [
        named(deployment(1, ""), "b"),
        config_map,
        None,
        "text",
        named(tfjob(), "a"),
        named(rollout(1, ""), "c"),
    ]
    assert [row.name for row in usage(documents)] == ["b", "a", "c"]


def test_a_list_is_its_items():
    documents = [
        {"apiVersion": "v1", "kind": "List", "items": [named(deployment(1, ""), "a"), named(rollout(1, ""), "b")]}
    ]
    assert [row.name for row in usage(documents)] == ["a", "b"]


def test_a_scale_is_applied_to_its_parent():
    rows = usage([named(deployment(2, "cpu=1"), "web"), scale("web", {"replicas": 5}), scale("web")])
    assert [(row.kind, row.name, row.group) for row in rows] == [
        ("Deployment", "web", "nlp"), ("Scale", "web", "nlp"), ("Scale", "web", "nlp"),
    ]  # fmt: skip
    assert [(row.usage or {}).get("requests.cpu", "0") for row in rows] == ["2", "5", "0"]


def test_a_scale_may_stand_before_its_parent():
    assert (usage([scale("web", {"replicas": 5}), named(deployment(2, "cpu=1"), "web")])[0].usage or {})["pods"] == "5"


def test_a_scale_needs_one_parent():
    web = named(deployment(2, "cpu=1"), "web")
    [row] = usage([scale("web")])
    assert (row.error, row.group) == ("nothing that can be scaled is named 'web' in namespace 'team-a'", None)
    [*_, row] = usage([web, scale("web", namespace="b")])
    assert row.error == "nothing that can be scaled is named 'web' in namespace 'b'"
    [*_, row] = usage([web, named(rollout(1, ""), "web"), scale("web")])
    assert row.error == "2 workloads that can be scaled are named 'web' in namespace 'team-a'"
    [*_, row] = usage([named(tfjob(), "web"), web, scale("web", {"replicas": 1})])
    assert (row.usage or {})["pods"] == "1"
    [*_, row] = usage([web, scale("web", {"replicas": -1})])
    assert row.error == "spec.replicas: must not be negative, but is -1"


def owned(obj: dict, owner: dict) -> dict:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def test_an_owned_child_costs_nothing():
    web = named(deployment(2, "cpu=1"), "web", uid="u")
    child = owned(
        named(workload("apps/v1", "ReplicaSet", {"replicas": 2, "template": template("cpu=1")}), "web-1"), web
    )
    rows = usage([child, web])
    assert rows[0].usage == {}
    assert (rows[1].usage or {})["pods"] == "2"
    stranger = named(deployment(2, "cpu=1"), "web", uid="another")
    assert (usage([child, stranger])[0].usage or {})["pods"] == "2"


def ended(**roles) -> dict:
    return {**tfjob(**roles), "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}


def pod(name: str, owner: dict, phase: str) -> dict:
    bare = workload("v1", "Pod", template("cpu=2 gpu=/1")["spec"], group=None)
    return {**owned(named(bare, name), owner), "status": {"phase": phase}}


def test_an_ended_job_costs_the_pods_that_it_still_holds():
    job = ended(Worker=(8, "cpu=2 gpu=/1"))
    job["metadata"]["labels"]["biz.group.resource.quota/gpu-type"] = "A100"
    documents = [job, pod("a", job, "Running"), pod("b", job, "Succeeded"), pod("c", job, "Pending")]
    row, *pods = usage(documents)
    assert row.usage == {
        "limits.nvidia.com/gpu": "2", "limits.nvidia.com/gpu.A100": "2", "pods": "2", "requests.cpu": "4",
        "requests.nvidia.com/gpu": "2", "requests.nvidia.com/gpu.A100": "2",
    }  # fmt: skip
    assert [p.usage for p in pods] == [{}, {}, {}]
    assert usage(documents, replace(CONFIG, terminal="release"))[0].usage == {}


def test_a_claim_that_workloads_share_is_told_with_the_first_of_them():
    """Its group pays once, though a Scale repeats the first workload; another group may not use it."""
    first, second, third = (named(using(1, SHARED, group=g), n) for n, g in (("a", "nlp"), ("b", "nlp"), ("c", "cv")))
    rows = usage([first, second, third, scale("a", {"replicas": 3}), claim(exactly(count=4)), *CLASSES])
    assert [(row.usage or {}).get("requests.nvidia.com/gpu") for row in rows] == ["4", None, None, "4"]
    assert rows[2].error == "ResourceClaim 's' is charged to group nlp, not to cv"


def test_a_claim_that_names_a_group_has_a_row_with_what_no_workload_tells_of_it():
    """Its place does not matter. A claim without a label is context, and so is one made for a pod."""
    mine = claim(exactly(count=4), group="nlp")
    [row] = usage([mine, *CLASSES])
    assert (row.kind, row.name, row.group) == ("ResourceClaim", "s", "nlp")
    assert (row.usage or {})["requests.nvidia.com/gpu"] == "4"
    first, second = usage([mine, using(2, SHARED), *CLASSES])
    assert (first.kind, first.usage) == ("ResourceClaim", {})
    assert (second.usage or {})["requests.nvidia.com/gpu"] == "4"
    assert not usage([claim(exactly()), *CLASSES])
    assert not usage([named(mine, "s", ownerReferences=[{"kind": "Pod", "name": "p", "uid": "u"}]), *CLASSES])
    [row] = usage([claim(exactly("nowhere.example.com"), group="nlp")])
    assert (row.group, "DeviceClass 'nowhere.example.com' was not found" in (row.error or "")) == ("nlp", True)


def test_a_name_yet_to_be_generated_is_shown_as_far_as_it_goes():
    obj = deployment(1, "")
    del obj["metadata"]["name"]
    obj["metadata"]["generateName"] = "web-"
    assert usage([obj])[0].name == "web-"
