"""Devices by claim: dynamic resource allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.workloads.config import DeviceClassMapping
from tests.support.workload_language import CONFIG, Object, cost, costs, count, deployment, refusal, template, tfjob

GPU, DEVICES = "gpu.nvidia.com", "deviceclass.resource.k8s.io/devices"
IMPLICIT = "deviceclass.resource.kubernetes.io"


def device_class(name: str, resource: str = "", model: str = "") -> Object:
    labels = {"biz.group.resource.quota/gpu-type": model} if model else {}
    spec = {"extendedResourceName": resource} if resource else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name, "labels": labels},
            "spec": spec}  # fmt: skip


CLASSES = [
    device_class(GPU, "nvidia.com/gpu"),
    device_class("nic.example.com"),
    device_class("a100.example.com", "nvidia.com/gpu", "A100"),
    device_class("t4.example.com", "nvidia.com/gpu", "T4"),
    device_class("v100.example.com", model="V100"),
]


def exactly(name: str = GPU, **more) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": name, **more}}


def first(*alternatives: tuple[str, int]) -> Object:
    return {"name": "r", "firstAvailable": [{"name": n, "deviceClassName": n, "count": c} for n, c in alternatives]}


def claim_template(*requests: Object, name: str = "t") -> Object:
    spec = {"spec": {"devices": {"requests": [*requests]}}}
    metadata = {"name": name, "namespace": "team-a"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}


def claim(*requests: Object, group: str = "") -> Object:
    labels = {"biz.group.resource.quota": group} if group else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "s", "namespace": "team-a", "labels": labels},
            "spec": {"devices": {"requests": [*requests]}}}  # fmt: skip


def using(replicas: int, *entries: Object, **labels) -> Object:
    entries = entries or ({"name": "g", "resourceClaimTemplateName": "t"},)
    return deployment(replicas, template("", resourceClaims=[*entries]), **labels)


def devices(name: str, n: int, resource: str = "", model: str = "") -> str:
    text = f"{name}.{DEVICES}={n} requests.{IMPLICIT}/{name}={n}"
    if resource:
        text += f" requests.{resource}={n} limits.{resource}={n}"
    if model:
        text += f" requests.{resource}.{model}={n} limits.{resource}.{model}={n}"
    return text


COUNTED = [
    ("one device unless it says more", [exactly()], devices(GPU, 3, "nvidia.com/gpu")),
    ("as many as it says, for each pod", [exactly(count=2)], devices(GPU, 6, "nvidia.com/gpu")),
    ("all is 32", [exactly(allocationMode="All")], devices(GPU, 96, "nvidia.com/gpu")),
    ("requests of a claim add up", [exactly(), exactly(count=3)], devices(GPU, 12, "nvidia.com/gpu")),
    ("a class that stands for nothing else", [exactly("nic.example.com")], devices("nic.example.com", 3)),
    ("capacity is not counted", [exactly(capacity={"requests": {"m": 1}})], devices(GPU, 3, "nvidia.com/gpu")),
    ("administrators look on for free", [exactly(adminAccess=True)], ""),
    ("a mode that is not known allocates nothing", [exactly(allocationMode="Some")], ""),
    ("as older versions wrote it", [{"deviceClassName": GPU, "count": 2}], devices(GPU, 6, "nvidia.com/gpu")),
    ("of alternatives the most of each name", [first(("a100.example.com", 1), ("t4.example.com", 2))],
     f"a100.example.com.{DEVICES}=3 requests.{IMPLICIT}/a100.example.com=3 "
     f"t4.example.com.{DEVICES}=6 requests.{IMPLICIT}/t4.example.com=6 "
     "gpu=6 limits.nvidia.com/gpu=6 requests.nvidia.com/gpu.A100=3 limits.nvidia.com/gpu.A100=3 "
     "requests.nvidia.com/gpu.T4=6 limits.nvidia.com/gpu.T4=6"),
    ("no requests cost nothing", [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "expected"), [row[1:] for row in COUNTED], ids=[row[0] for row in COUNTED])
def test_the_claims_of_three_pods_cost(requests, expected):
    assert costs(count(using(3), claim_template(*requests), *CLASSES), f"{expected} pods=3")


def test_a_label_contradicts_alternatives_only_where_none_of_them_is_of_its_model():
    """The other alternatives are charged, too: one of them may be allocated."""
    demand = count(using(1, gpu="T4"), claim_template(first(("a100.example.com", 1), ("t4.example.com", 2))), *CLASSES)
    models = {name: amount for name, amount in demand.resources.items() if name.startswith("requests.nvidia.com/gpu")}
    assert models == cost("gpu=2 requests.nvidia.com/gpu.A100=1 requests.nvidia.com/gpu.T4=2")


def test_every_entry_is_a_claim_of_its_own_used_or_not():
    obj = using(1, *({"name": n, "resourceClaimTemplateName": "t"} for n in "ab"))
    assert costs(count(obj, claim_template(exactly()), *CLASSES), devices(GPU, 2, "nvidia.com/gpu") + " pods=1")


def test_claims_and_classic_requests_share_one_name():
    obj = deployment(
        2, template("gpu=/2", resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}]), gpu="A100"
    )
    demand = count(obj, claim_template(exactly()), *CLASSES)
    expected = f"{GPU}.{DEVICES}=2 requests.{IMPLICIT}/{GPU}=2 gpu=6 limits.nvidia.com/gpu=6"
    assert costs(demand, f"{expected} requests.nvidia.com/gpu.A100=6 limits.nvidia.com/gpu.A100=6 pods=2")


SHARED = {"name": "g", "resourceClaimName": "s"}


def test_a_shared_claim_costs_once_however_many_pods_and_entries_use_it():
    demand = count(using(5, SHARED, {**SHARED, "name": "h"}), claim(exactly(count=4)), *CLASSES)
    assert costs(demand, devices(GPU, 4, "nvidia.com/gpu") + " pods=5")
    assert "requests.nvidia.com/gpu" not in demand.roles[0].per_pod


def test_a_shared_claim_of_another_group_is_refused():
    own = count(using(1, SHARED), claim(exactly(), group="nlp"), *CLASSES)
    assert costs(own, devices(GPU, 1, "nvidia.com/gpu") + " pods=1")
    words = "ResourceClaim 's' is charged to group vision, not to nlp"
    assert words in refusal(using(1, SHARED), claim(exactly(), group="vision"), *CLASSES)


def pod_group(*claims: Object) -> Object:
    metadata = {"name": "pg", "namespace": "team-a"}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": metadata,
            "spec": {"resourceClaims": [*claims]}}  # fmt: skip


def test_pods_of_a_pod_group_share_the_claims_that_it_names_as_they_do():
    """The whole entry must be equal; each pod has its own claim for what the PodGroup does not name."""
    own = {"name": "g", "resourceClaimTemplateName": "t"}
    member = using(3, own, {**own, "name": "h"})
    member["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "pg"}
    context = [claim_template(exactly(count=2)), *CLASSES]
    demand = count(member, pod_group(own, {**own, "name": "h", "resourceClaimTemplateName": "u"}), *context)
    assert [str(place) for place in demand.shared] == ["podgroups.scheduling.k8s.io/team-a/pg.g"]
    assert costs(demand, devices(GPU, 8, "nvidia.com/gpu") + " pods=3")
    assert costs(count(member, *context), devices(GPU, 12, "nvidia.com/gpu") + " pods=3")


def test_roles_that_share_a_claim_are_charged_the_larger_of_what_each_makes_of_it():
    """One is of model A100, the other of T4, and both use the same devices."""
    job = tfjob(PS=(1, template("", resourceClaims=[SHARED])), Worker=(2, template("", resourceClaims=[SHARED])))
    for role, model in (("PS", "A100"), ("Worker", "T4")):
        metadata = {"labels": {"biz.group.resource.quota/gpu-type": model}}
        job["spec"]["tfReplicaSpecs"][role]["template"]["metadata"] = metadata
    both = " ".join(f"{kind}.nvidia.com/gpu.{model}=4" for kind in ("requests", "limits") for model in ("A100", "T4"))
    expected = devices(GPU, 4, "nvidia.com/gpu")
    assert costs(count(job, claim(exactly(count=4)), *CLASSES), f"{expected} {both} pods=3")


def test_a_class_may_be_mapped_by_configuration():
    config = replace(CONFIG, device_class_mappings={"big.example.com": DeviceClassMapping("nvidia.com/gpu", "A100")})
    demand = count(using(1), claim_template(exactly("big.example.com")), config=config)
    expected = devices("big.example.com", 1, "nvidia.com/gpu", "A100")
    models = f"big.example.com.{DEVICES}.A100=1 requests.{IMPLICIT}/big.example.com.A100=1"
    assert costs(demand, f"{expected} {models} pods=1")


def test_administrators_are_counted_where_somebody_says_so():
    config = replace(CONFIG, count_admin_access=True)
    demand = count(using(1), claim_template(exactly(adminAccess=True)), *CLASSES, config=config)
    assert demand.resources["requests.nvidia.com/gpu"]


def test_the_implicit_name_of_a_class_costs_its_devices():
    demand = count(deployment(2, f"{IMPLICIT}/{GPU}=/2"), *CLASSES)
    assert costs(demand, devices(GPU, 4, "nvidia.com/gpu") + " pods=2")


REFUSED = [
    ("no such template", using(1), [], "[0].resourceClaimTemplateName: ResourceClaimTemplate 't' was not found"),
    ("no such claim", using(1, SHARED), [], "resourceClaims[0].resourceClaimName: ResourceClaim 's' was not found"),
    ("no such class", using(1), [claim_template(exactly("x.com"))], "DeviceClass 'x.com' was not found"),
    ("no class", using(1), [claim_template({"name": "r", "exactly": {}})], "DeviceClass '' was not found"),
    ("neither of two", using(1, {"name": "g"}), [], "needs either resourceClaimTemplateName or resourceClaimName"),
    ("both of two", using(1, {**SHARED, "resourceClaimTemplateName": "t"}), [], "needs either"),
    ("no list", deployment(1, template("", resourceClaims="x")), [], "resourceClaims: must be a list"),
    ("a count below nothing", using(1), [claim_template(exactly(count=-8))], "exactly.count: must not be negative"),
    ("a label that the class contradicts", using(1, gpu="T4"), [claim_template(exactly("a100.example.com"))],
     "devices of class 'a100.example.com' are 'A100'"),
    ("a label that a class contradicts of which no name has a model", using(1, gpu="T4"),
     [claim_template(exactly("v100.example.com"))], "devices of class 'v100.example.com' are 'V100'"),
    ("a label that all alternatives contradict", using(1, gpu="V100"),
     [claim_template(first(("a100.example.com", 1), ("t4.example.com", 1)))],
     "spec.spec.devices.requests[0].firstAvailable[0].deviceClassName: devices of class 'a100.example.com' are 'A100', "
     "devices of class 't4.example.com' are 'T4'"),
    ("half a device by its implicit name", deployment(1, f"{IMPLICIT}/{GPU}=/500m"), [], "must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "related", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_claims_are_refused_for(obj, related, words):
    assert words in refusal(obj, *related, *CLASSES)
