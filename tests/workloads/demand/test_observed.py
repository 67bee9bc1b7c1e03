"""What running pods use, and what of that the workload does not declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bizrq.units.quantity import NANO
from bizrq.units.resources import nonzero
from bizrq.units.slot import Slot
from bizrq.units.times import parse_timestamp
from bizrq.workloads.config import GpuModel
from bizrq.workloads.demand.observed import (
    NOTHING_UNREQUESTED,
    NodeContext,
    declared_usage,
    is_counted_pod,
    pod_usage,
    unrequested_usage,
)
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.labels import MODEL_LABELS
from bizrq.workloads.lookup import DocumentLookup
from tests.support.workload_language import CONFIG, Object, cost, served_by_hami, template
from tests.workloads.devices.test_dra import CLASSES, DEVICES, GPU, IMPLICIT, claim_template, devices, exactly, first

KNOWN = replace(
    CONFIG,
    gpu_models={
        "A100": GpuModel(("NVIDIA-A100-SXM4-40GB", "NVIDIA A100"), 0),
        "T4": GpuModel(("Tesla-T4", "Tesla T4")),
    },
)
UID = "uid-p"
A100, T4 = ({"nvidia.com/gpu.product": product} for product in ("NVIDIA-A100-SXM4-40GB", "Tesla-T4"))


def pod(text: str = "", name: str = "p", node: str = "", status: Object | None = None, **spec: Any) -> Object:
    found = template(text, **spec, **({"nodeName": node} if node else {}))
    metadata = {"name": name, "namespace": "team-a", "uid": UID}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": "Running", **(status or {})},
            **found}  # fmt: skip


def claim(name: str, *requests: Object, results: list[Object] | None = None, **metadata: Any) -> Object:
    allocation = {"allocation": {"devices": {"results": results}}} if results is not None else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team-a", **metadata},
            "spec": {"devices": {"requests": [*requests]}}, "status": allocation}  # fmt: skip


def result(device: str = "gpu-0", request: str = "r", pool: str = "n1", **more: Any) -> Object:
    return {"request": request, "driver": "gpu.nvidia.com", "pool": pool, "device": device, **more}


def held(generation: int, pool: str = "n1", **devices: Any) -> Object:
    """Return a ResourceSlice of devices by name: the model of each, or its whole entry."""
    told = [
        {"name": n, **(d if isinstance(d, dict) else {"attributes": {"productName": {"string": d}}})}
        for n, d in devices.items()
    ]
    return {"spec": {"driver": "gpu.nvidia.com", "pool": {"name": pool, "generation": generation}, "devices": told}}


def place(*slices: Object, **nodes: dict[str, str]) -> NodeContext:
    def of(driver: str, pool: str) -> list[Object]:
        return [s for s in slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == (driver, pool)]

    known = {name: {"metadata": {"name": name, "labels": labels}} for name, labels in nodes.items()}
    return NodeContext(known.get, of)


def around(*related: Object, config=KNOWN, gpu: str = "") -> ClaimContext:
    labels = {"biz.group.resource.quota": "nlp", **({MODEL_LABELS["gpu"]: gpu} if gpu else {})}
    return ClaimContext(labels, "team-a", DocumentLookup([*related, *CLASSES]), config)


def uses(
    given: Object, *owned: Object, at: NodeContext | None = None, of: ClaimContext | None = None
) -> dict[str, int]:
    return nonzero(pod_usage(given, owned, of or around(*owned), at or place()).resources)


def more(given: Object, *owned: Object, at: NodeContext | None = None, of: ClaimContext | None = None):
    of = of or around(*owned)
    return unrequested_usage([(given, declared_usage(given, of), pod_usage(given, owned, of, at or place()), 1)], of)


@pytest.mark.parametrize(
    ("status", "deleted", "counts"),
    [
        ("Pending", None, True),
        ("Running", None, True),
        ("Succeeded", None, False),
        ("Failed", None, False),
        ("Running", "2026-01-01T10:00:00Z", True),
        ("Running", "2026-01-01T09:59:20Z", False),
    ],
)
def test_a_pod_counts_until_it_is_over_or_past_its_grace(status, deleted, counts):
    given = pod("gpu=/1", status={"phase": status})
    if deleted:
        given["metadata"] |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
    assert is_counted_pod(given, parse_timestamp("2026-01-01T10:00:00Z")) is counts


# The model of classic cards.


def test_a_node_tells_the_model_of_its_cards():
    given = pod("gpu=/2", node="n1")
    assert uses(given, at=place(n1=T4)) == cost(
        "gpu=2 limits.nvidia.com/gpu=2 requests.nvidia.com/gpu.T4=2 limits.nvidia.com/gpu.T4=2 pods=1"
    )


def test_another_model_than_the_declared_is_charged_besides_it():
    found = more(pod("gpu=/2", node="n1"), at=place(n1=T4), of=around(gpu="A100"))
    assert found.resources == cost("requests.nvidia.com/gpu.T4=2 limits.nvidia.com/gpu.T4=2")
    assert found.findings == (
        "declares A100, but pod p runs on T4: charged for both; label it biz.group.resource.quota/gpu-type: T4",
    )


def test_a_model_that_nobody_declared_is_charged():
    found = more(pod("gpu=/1", node="n1"), at=place(n1=T4))
    assert found.resources == cost("requests.nvidia.com/gpu.T4=1 limits.nvidia.com/gpu.T4=1")
    assert "declares no model, but pod p runs on T4" in found.findings[0]


NOTHING_BEYOND = [
    ("the declared model", pod("gpu=/2", node="n1"), place(n1=A100)),
    ("a node that says nothing", pod("gpu=/2", node="n1"), place(n1={"zone": "a"})),
    ("a node that nobody knows", pod("gpu=/2", node="n2"), place(n1=T4)),
    ("a model that the configuration does not know", pod("gpu=/2", node="n1"),
     place(n1={"nvidia.com/gpu.product": "H900"})),
    ("a pod that waits", pod("gpu=/2"), place(n1=T4)),
    ("a pod without cards on another model's node", pod("cpu=4 rdma/hca=/1", node="n1"), place(n1=T4)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "at"), [row[1:] for row in NOTHING_BEYOND], ids=[row[0] for row in NOTHING_BEYOND])
def test_nothing_is_charged_besides_for(given, at):
    assert more(given, at=at, of=around(gpu="A100")) == NOTHING_UNREQUESTED


def test_several_pods_are_one_finding():
    of, at = around(gpu="A100"), place(n1=T4, n2=A100)
    pods = [pod("gpu=/1", name=name, node=node) for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2"))]
    found = unrequested_usage([(p, declared_usage(p, of), pod_usage(p, [], of, at), 1) for p in pods], of)
    assert found.resources["requests.nvidia.com/gpu.T4"] == 2 * NANO
    assert len(found.findings) == 1
    assert "2 pods (a and others) run on T4" in found.findings[0]


def test_a_roles_own_model_is_what_its_pods_declare():
    given = pod("gpu=/1", node="n1")
    given["metadata"]["labels"] = {MODEL_LABELS["gpu"]: "T4"}
    assert more(given, at=place(n1=T4), of=around(gpu="A100")) == NOTHING_UNREQUESTED


def test_a_node_of_another_model_than_a_selector_asks_for_is_no_contradiction():
    given = pod("gpu=/1", node="n1", nodeSelector={"cloud.google.com/gke-accelerator": "Tesla-T4"})
    assert more(given, at=place(n1=A100)).resources["requests.nvidia.com/gpu.A100"] == NANO


# Claims.


ENTRY = {"name": "g", "resourceClaimTemplateName": "t"}
MADE = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "p-g"}]}
ONE_OF = first(("a100.example.com", 1), ("t4.example.com", 2))


def test_an_allocated_claim_is_what_it_got():
    got = claim("p-g", ONE_OF, results=[result("gpu-0", "r/t4.example.com"), result("gpu-1", "r/t4.example.com")])
    expected = devices("t4.example.com", 2, "nvidia.com/gpu", "T4")
    assert uses(pod(resourceClaims=[ENTRY], status=MADE), got) == cost(f"{expected} pods=1")


def test_a_claim_that_got_nothing_yet_is_the_most_that_it_may_get():
    given = pod(resourceClaims=[ENTRY], status=MADE)
    assert uses(given, claim("p-g", exactly(count=3))) == cost(devices(GPU, 3, "nvidia.com/gpu") + " pods=1")


def test_a_claim_that_is_not_made_yet_is_as_its_template_says():
    given, of = pod(resourceClaims=[ENTRY]), around(claim_template(exactly(count=3)))
    assert uses(given, of=of) == cost(devices(GPU, 3, "nvidia.com/gpu") + " pods=1")


def test_a_claim_is_found_by_its_owner_before_the_status_names_it():
    got = claim("p-g", exactly(), results=[result()], annotations={"resource.kubernetes.io/pod-claim-name": "g"})
    assert uses(pod(resourceClaims=[ENTRY]), got) == cost(devices(GPU, 1, "nvidia.com/gpu") + " pods=1")


def test_a_pod_that_needs_no_claim_has_none():
    none = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": None}]}
    of = around(claim_template(exactly(count=3)))
    assert uses(pod(resourceClaims=[ENTRY], status=none), of=of) == cost("pods=1")


def test_administrators_look_on_for_free():
    got = claim("p-g", exactly(adminAccess=True), results=[result(adminAccess=True), result("gpu-1")])
    given = pod(resourceClaims=[ENTRY], status=MADE)
    assert uses(given, got)["requests.nvidia.com/gpu"] == NANO
    counted = around(got, config=replace(KNOWN, count_admin_access=True))
    assert uses(given, got, of=counted)["requests.nvidia.com/gpu"] == 2 * NANO


def test_the_newest_generation_of_a_pool_tells_the_model():
    at = place(
        held(1, **{"gpu-0": "NVIDIA A100"}), held(3, **{"gpu-0": "Tesla T4"}), held(2, **{"gpu-0": "NVIDIA A100"})
    )
    given, got = pod(resourceClaims=[ENTRY], status=MADE), claim("p-g", exactly(), results=[result()])
    assert uses(given, got, at=at) == cost(devices(GPU, 1, "nvidia.com/gpu", "T4") + " pods=1")


def test_an_old_generation_does_not_tell_what_the_new_one_left_out():
    at = place(held(1, **{"gpu-0": "Tesla T4"}), held(2, **{"gpu-1": "NVIDIA A100"}))
    given, got = pod(resourceClaims=[ENTRY], status=MADE), claim("p-g", exactly(), results=[result()])
    assert "requests.nvidia.com/gpu.T4" not in uses(given, got, at=at)


def test_a_device_of_another_model_than_declared_is_charged_besides():
    at = place(held(1, **{"gpu-0": "Tesla T4"}))
    given, got = pod(resourceClaims=[ENTRY], status=MADE), claim("p-g", exactly(), results=[result()])
    found = more(given, got, at=at, of=around(got, claim_template(exactly()), gpu="A100"))
    assert found.resources == cost("requests.nvidia.com/gpu.T4=1 limits.nvidia.com/gpu.T4=1")
    assert "declares A100, but pod p runs on T4" in found.findings[0]


def test_claims_that_are_larger_than_their_template_is_now_are_charged():
    given = pod(resourceClaims=[ENTRY], status=MADE)
    got = claim("p-g", exactly(count=4), results=[result(f"gpu-{n}") for n in range(4)])
    found = more(given, got, of=around(got, claim_template(exactly())))
    assert found.resources == cost(devices(GPU, 3, "nvidia.com/gpu"))
    assert found.findings == ("pod p runs with more devices than its templates and claims ask for now",)


def test_claims_whose_template_is_gone_are_charged():
    given, got = pod(resourceClaims=[ENTRY], status=MADE), claim("p-g", exactly(), results=[result()])
    assert more(given, got).resources == cost(devices(GPU, 1, "nvidia.com/gpu"))


SHARED = {"name": "g", "resourceClaimName": "s"}


def test_a_shared_claim_is_told_apart():
    got = claim("s", exactly(count=2), results=[result("gpu-0"), result("gpu-1")])
    found = pod_usage(pod(resourceClaims=[SHARED]), [], around(got), place())
    assert found.resources == cost("pods=1")
    assert found.shared == {
        Slot("resourceclaims.resource.k8s.io", "team-a", "s"): cost(devices(GPU, 2, "nvidia.com/gpu"))
    }


def test_a_shared_claim_on_another_model_is_charged_once():
    got = claim("s", exactly(), results=[result()])
    of, at = around(got, gpu="A100"), place(held(1, **{"gpu-0": "Tesla T4"}))
    pods = [pod(name=name, resourceClaims=[SHARED]) for name in "abc"]
    found = unrequested_usage([(p, declared_usage(p, of), pod_usage(p, [], of, at), 1) for p in pods], of)
    assert found.resources == {}
    assert found.shared == {
        Slot("resourceclaims.resource.k8s.io", "team-a", "s"): cost(devices(GPU, 1, "nvidia.com/gpu", "T4"))
    }
    assert "3 pods" in found.findings[0]


# Claims that the scheduler makes for what containers ask for.


def marked(name: str, n: int, **more: Any) -> Object:
    results = [result(f"gpu-{i}") for i in range(n)]
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    return claim(name, exactly(count=n), results=results, annotations=annotations, **more)


NAMED = {"extendedResourceClaimStatus": {"resourceClaimName": "x"}}
CLASSIC = f"{GPU}.{DEVICES}=2 requests.{IMPLICIT}/{GPU}=2 gpu=2 limits.nvidia.com/gpu=2 pods=1"


def test_what_serves_a_classic_request_is_not_counted_again():
    assert uses(pod("gpu=/2", status=NAMED), marked("x", 2)) == cost(CLASSIC)


def test_nor_what_serves_an_implicit_name():
    assert uses(pod(f"{IMPLICIT}/{GPU}=/2", status=NAMED), marked("x", 2)) == cost(CLASSIC)


def test_a_forged_one_is_counted_in_full():
    forged = marked("forged", 8)
    assert uses(pod("gpu=/2", status=NAMED), marked("x", 2), forged)["requests.nvidia.com/gpu"] == 10 * NANO


def test_before_the_status_names_one_it_is_the_oldest():
    old = marked("x", 2, creationTimestamp="2026-01-01T10:00:00Z")
    forged = marked("a", 2, creationTimestamp="2026-01-01T10:00:01Z")
    assert uses(pod("gpu=/2"), forged, old)["requests.nvidia.com/gpu"] == 4 * NANO


def test_it_serves_no_more_than_what_was_asked_for():
    assert uses(pod("gpu=/2", status=NAMED), marked("x", 8))["requests.nvidia.com/gpu"] == 8 * NANO


# Parts of cards.


HAMI = replace(
    KNOWN,
    hami=served_by_hami(),
    gpu_models={"A100": GpuModel(("NVIDIA A100",), 40960), "T4": GpuModel(("Tesla T4",), 15360)},
)
ALLOCATED = "hami.io/vgpu-devices-allocated"
GIVEN = [
    ("two devices", "gpu=/2", "GPU-a,NVIDIA,8192,30:GPU-b,NVIDIA,8192,30:;", (16384, 60, 600)),
    ("containers add", "gpu=/1 | gpu=/1", "GPU-a,NVIDIA,8192,20:;GPU-b,NVIDIA,4096,30:;", (12288, 50, 500)),
    ("init steps come first, and do not", "init gpu=/1 | gpu=/1",
     "GPU-a,NVIDIA,20480,20:;GPU-b,NVIDIA,4096,30:;", (20480, 30, 500)),
    ("some HAMi versions have no places for init steps", "init cpu=1 | gpu=/1",
     "GPU-b,NVIDIA,4096,30:;", (4096, 30, 300)),
    ("containers without devices", "cpu=1 | gpu=/1", ";GPU-b,NVIDIA,4096,30:;", (4096, 30, 300)),
    ("what is not HAMi's is as if nothing were", "gpu=/1", "GPU-b,NVIDIA,lots,30:;", (40960, 100, 1000)),
    ("nor too many", "gpu=/1", "a,b,1,1:;a,b,1,1:;a,b,1,1:;", (40960, 100, 1000)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "annotation", "expected"), [row[1:] for row in GIVEN], ids=[row[0] for row in GIVEN])
def test_what_hami_gave_a_pod_counts(text, annotation, expected):
    given = pod(text, node="n1")
    given["metadata"]["annotations"] = {ALLOCATED: annotation}
    found = uses(given, of=around(config=HAMI, gpu="A100"))
    names = ("limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores")
    assert tuple(found[name] // NANO for name in names) == expected[:2]
    assert found["cards.nvidia.com/gpu"] == found["cards.nvidia.com/gpu.A100"] == expected[2] * NANO // 1000


def test_a_node_registers_which_card_is_which():
    given = pod("gpu=/1", node="n1")
    given["metadata"]["annotations"] = {ALLOCATED: "GPU-b,NVIDIA,4096,30:;"}
    register = "GPU-a,10,40960,100,NVIDIA-NVIDIA A100,0,true:GPU-b,10,15360,100,NVIDIA-Tesla T4,0,true:"
    node = {"metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": register}}}
    found = more(given, at=replace(place(), node={"n1": node}.get), of=around(config=HAMI, gpu="A100"))
    assert found.resources["requests.nvidia.com/gpu.T4"] == NANO


def test_the_node_tells_the_memory_of_a_card_that_the_configuration_does_not_know():
    given = pod("gpu=/1", node="n1")
    given["metadata"]["annotations"] = {ALLOCATED: "GPU-b,NVIDIA,4096,5:;"}
    of = around(config=replace(CONFIG, hami=served_by_hami()))
    assert uses(given, at=place(n1={"nvidia.com/gpu.memory": "16384"}), of=of)["cards.nvidia.com/gpu"] == NANO // 4


# Cards by what was allocated of a device.


SIZED = replace(KNOWN, gpu_models={"A100": GpuModel((), 40960)})


def test_shared_capacity_is_a_part_of_a_card():
    at = place(held(1, **{"gpu-0": {"capacity": {"memory": {"value": "40Gi"}, "cores": {"value": "100"}}}}))
    got = claim("p-g", exactly(), results=[result(consumedCapacity={"memory": "10Gi", "cores": "30"})])
    given = pod(resourceClaims=[ENTRY], status=MADE)
    found = uses(given, got, at=at, of=around(got, config=SIZED))
    assert found["cards.nvidia.com/gpu"] == 300_000_000
    assert found["requests.nvidia.com/gpu"] == NANO


def test_a_partition_is_the_counters_that_it_uses():
    counters = {"name": "card", "counters": {"memory": {"value": "40Gi"}, "slices": {"value": "7"}}}
    device = {
        "consumesCounters": [
            {"counterSet": "card", "counters": {"memory": {"value": "20Gi"}, "slices": {"value": "3"}}}
        ]
    }
    shared = {"spec": {**held(1)["spec"], "sharedCounters": [counters]}}
    got = claim("p-g", exactly(), results=[result("mig-0")])
    found = uses(pod(resourceClaims=[ENTRY], status=MADE), got, at=place(held(1, **{"mig-0": device}), shared),
                 of=around(got, config=SIZED))  # fmt: skip
    assert found["cards.nvidia.com/gpu"] == NANO // 2
