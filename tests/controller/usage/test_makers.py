"""Under which keys the API server finds what makes a workload's pods."""

from __future__ import annotations

from typing import Any

from controller.usage.makers import Makers
from tests.controller.usage.test_excess import Memory, pod, replica_set
from tests.support.objects import Object, deployment


def makers(memory: Memory) -> Makers:
    return Makers(memory.cluster, memory.settings.counting)


def keys(memory: Memory, obj: Object) -> list[str]:
    return list(makers(memory).keys(obj["metadata"]["uid"]))


def version(name: str, of: str, replicas: int) -> Object:
    made = replica_set(name, replicas)
    made["spec"]["template"]["metadata"] = {"labels": {"app": "x", "pod-template-hash": of}}
    return made


def below(kind: str, api_version: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_the_versions_of_a_deployment_share_a_key_and_others_have_their_uids():
    memory = Memory()
    web = memory.put(deployment("web", "nlp", 4))
    memory.put(version("web-1", "1", 0), web)
    memory.put(version("web-2", "2", 4), web)
    memory.put(version("web-3", "4", 1), web)
    memory.put(replica_set("by-hand", 2), web)
    memory.put(replica_set("idle", 0), web)
    assert keys(memory, web)[:2] == ["web", "default.web/pod-template-hash"]
    assert sorted(keys(memory, web)[2:]) == ["by-hand", "web-2", "web-3"]


def test_what_makes_pods_itself_has_its_kind_and_name_too():
    """Another may come in its place and adopt its pods."""
    memory = Memory()
    assert keys(memory, memory.put(replica_set("web", 4))) == ["web", "default/ReplicaSet/web"]


def test_an_empty_place_has_the_keys_of_what_may_come_there():
    memory = Memory()
    found = {place: list(makers(memory).keys_at(place)) for place in PLACES}
    assert found == PLACES
    memory.put(deployment("web", "nlp", 4))
    assert list(makers(memory).keys_at("Deployment/default/web")) == []


PLACES = {
    "Deployment/default/web": ["default.web/pod-template-hash"],
    "StatefulSet/default/web": ["default/StatefulSet/web"],
    # What it comes to be adopts nothing.
    "TrainJob/default/web": [],
    "Namespace/default/default": [],
    "Unknown/default/web": [],
}


def test_what_is_made_again_has_its_kind_and_name_and_what_is_between_its_uid():
    memory = Memory()
    top = memory.put(below("TrainJob", "trainer.kubeflow.org/v1alpha1", "top"))
    between = memory.put(below("JobSet", "jobset.x-k8s.io/v1alpha2", "between"), top)
    memory.put(below("Job", "batch/v1", "job-0"), between)
    assert keys(memory, top) == ["top", "between", "default/Job/job-0", "job-0"]


def test_a_pod_has_its_own_and_what_is_gone_none():
    memory = Memory()
    assert keys(memory, memory.put(pod("alone"))) == ["alone"]
    assert list(makers(memory).keys("gone")) == []


def test_of_larger_pods_the_versions_that_make_them():
    memory = Memory()
    web = memory.put(deployment("web", "nlp", 4, cpu="500m"))
    old = memory.put(replica_set("web-1", 1, "1"), web)
    memory.put(replica_set("web-2", 3, "500m"), web)
    assert makers(memory).keys_of_larger("web") == [old["metadata"]["uid"]]
    assert list(makers(memory).keys_of_larger("gone")) == []
