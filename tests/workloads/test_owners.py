"""The payer of an object that another object made."""

from __future__ import annotations

import pytest

from bizrq.builtin import builtin_registry
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.ownership.payers import owner_that_pays
from tests.support.workload_language import Object, costs, count, deployment, template

POD = template("cpu=1")
KINDS = {
    "Deployment": "apps/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "Pod": "v1", "Job": "batch/v1",
    "CronJob": "batch/v1", "TFJob": "kubeflow.org/v1", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "Widget": "example.com/v1",
}  # fmt: skip


def family(text: str) -> list[Object]:
    """Return objects from the owner down, `Deployment:ai > ReplicaSet > Pod:nlp`; the labels are after the colons."""
    made: list[Object] = []
    for index, word in enumerate(text.split(" > ")):
        kind, _, group = word.partition(":")
        # A StatefulSet keeps what has its name and an ordinal.
        name = f"{made[-1]['metadata']['name']}-0" if made and made[-1]["kind"] == "StatefulSet" else f"o{index}"
        metadata: Object = {"name": name, "namespace": "team-a", "uid": f"uid-{index}"}
        if group:
            metadata["labels"] = {LABEL: group}
        if made:
            above = made[-1]
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "Widget", "name": "nobody", "uid": "x"},
                {
                    "apiVersion": above["apiVersion"],
                    "kind": above["kind"],
                    "name": above["metadata"]["name"],
                    "uid": above["metadata"]["uid"],
                    "controller": True,
                },
            ]
        spec = POD["spec"] if kind == "Pod" else {"template": POD}
        made.append({"apiVersion": KINDS[kind], "kind": kind, "metadata": metadata, "spec": spec})
    return made


PAID = [
    ("the Deployment pays for its pods", "Deployment:nlp > ReplicaSet > Pod"),
    ("whatever the template's label says", "Deployment:nlp > ReplicaSet:vision > Pod:vision"),
    ("a ReplicaSet that is labelled itself", "Deployment > ReplicaSet:nlp > Pod:nlp"),
    ("a job's pods", "TFJob:nlp > Pod"),
    ("a Job that a CronJob makes pays for its pods", "CronJob:nlp > Job:nlp > Pod:nlp"),
    ("what a leader's pod owns", "LeaderWorkerSet:nlp > StatefulSet:nlp > Pod:nlp > StatefulSet:nlp"),
    ("workers below their leader's pod",
     "LeaderWorkerSet:nlp > StatefulSet:nlp > Pod:nlp > StatefulSet:nlp > Pod:nlp"),
]  # fmt: skip


@pytest.mark.parametrize("text", [row[1] for row in PAID], ids=[row[0] for row in PAID])
def test_somebody_above_pays(text):
    objects = family(text)
    assert count(objects[-1], *objects).resources == {}


UNPAID = [
    ("nobody above is labelled", "Deployment > ReplicaSet > Pod:nlp"),
    ("a CronJob pays for nothing", "CronJob:nlp > Job:nlp"),
    ("kinds that are not known stop the walk", "Widget:nlp > Deployment:nlp"),
    ("no such kind makes that", "TFJob:nlp > Deployment:nlp"),
    ("a pod is no reason to be exempt", "Pod:nlp > StatefulSet:nlp"),
    (
        "nor is whoever made the pod",
        "Deployment:nlp > ReplicaSet > Pod > StatefulSet:nlp",
    ),
]


@pytest.mark.parametrize("text", [row[1] for row in UNPAID], ids=[row[0] for row in UNPAID])
def test_it_pays_for_itself(text):
    objects = family(text)
    assert count(objects[-1], *objects).resources


def test_a_reference_to_another_uid_exempts_nothing():
    owner, child = family("Deployment:nlp > ReplicaSet:nlp")
    owner["metadata"]["uid"] = "another"
    assert costs(count(child, owner), "cpu=1 pods=1")
    del owner["metadata"]["uid"], child["metadata"]["ownerReferences"][1]["uid"]
    assert costs(count(child, owner), "cpu=1 pods=1")


def test_an_owner_in_another_namespace_exempts_nothing():
    owner, child = family("Deployment:nlp > ReplicaSet:nlp")
    owner["metadata"]["namespace"] = "team-b"
    assert costs(count(child, owner), "cpu=1 pods=1")


def test_a_reference_that_is_no_controller_exempts_nothing():
    owner, child = family("Deployment:nlp > ReplicaSet:nlp")
    child["metadata"]["ownerReferences"][1]["controller"] = False
    assert costs(count(child, owner), "cpu=1 pods=1")


def test_an_owner_of_a_kind_that_is_not_charged_does_not_pay():
    objects = family("StatefulSet:nlp > Pod:nlp")
    assert count(objects[-1], *objects).resources == {}
    assert count(
        objects[-1], *objects, registry=builtin_registry().with_charged(["deployments.apps", "pods"])
    ).resources


SELECTED = {"selector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(("labels", "is_paid"), [({"app": "web"}, True), ({"app": "other"}, False), ({}, False)])
def test_an_owner_pays_for_what_its_selector_matches(labels, is_paid):
    owner, child = family("ReplicaSet:nlp > Pod:vision")
    owner["spec"] |= SELECTED
    child["metadata"]["labels"] = {**child["metadata"]["labels"], **labels}
    assert (count(child, owner).resources == {}) is is_paid


def test_a_circle_of_owners_ends():
    first, second = family("ReplicaSet > Pod")
    second["kind"], second["apiVersion"] = "ReplicaSet", "apps/v1"
    first["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o1", "uid": "uid-1", "controller": True}
    ]
    assert owner_that_pays(first, builtin_registry(), DocumentLookup([first, second])) is None


@pytest.mark.parametrize("references", ["x", [None], [{"controller": True}], [{"controller": True, "kind": ["x"]}]])
def test_references_that_are_none_exempt_nothing(references):
    obj = deployment(1, "cpu=1")
    obj["metadata"]["ownerReferences"] = references
    assert costs(count(obj), "cpu=1 pods=1")
