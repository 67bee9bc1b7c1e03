"""The names at which a model is charged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.units.quantity import NANO
from bizrq.workloads.config import GpuModel
from tests.support.workload_language import CONFIG, costs, count, deployment, refusal, template, tfjob

KNOWN = replace(
    CONFIG,
    gpu_models={
        "A100": GpuModel(("NVIDIA-A100-SXM4-40GB", "nvidia-tesla-a100"), 40960),
        "A100-80G": GpuModel(("NVIDIA-A100-SXM4-80GB",), 81920),
        "T4": GpuModel(("Tesla-T4", "nvidia-tesla-t4"), 15360),
    },
)
GPU = "gpu=/2"
BASE = "gpu=2 limits.nvidia.com/gpu=2"
#: Where the configuration says how large cards are.
CARDS = "cards.nvidia.com/gpu=2"

LABELS = [
    ("a CPU model is charged at cpu only", "cpu=1/2 mem=1Gi", {"cpu": "A4"},
     "cpu=1 limits.cpu=2 requests.cpu.A4=1 limits.cpu.A4=2 mem=1Gi"),
    ("a memory model at memory only", "cpu=1 mem=1Gi", {"memory": "DDR5"},
     "cpu=1 mem=1Gi requests.memory.DDR5=1Gi"),
    ("a GPU model at cards", "cpu=1 gpu=/2", {"gpu": "A100"},
     f"cpu=1 {BASE} requests.nvidia.com/gpu.A100=2 limits.nvidia.com/gpu.A100=2"),
    ("models may have dots", "cpu=1", {"cpu": "v2.1"}, "cpu=1 requests.cpu.v2.1=1"),
    ("slices of cards have models", "nvidia.com/mig-1g.5gb=/1", {"gpu": "A100"},
     "requests.nvidia.com/mig-1g.5gb=1 limits.nvidia.com/mig-1g.5gb=1 "
     "requests.nvidia.com/mig-1g.5gb.A100=1 limits.nvidia.com/mig-1g.5gb.A100=1"),
    ("other devices have none", "rdma/hca=/1 x.com/gpu=/1", {"gpu": "A100"},
     "requests.rdma/hca=1 limits.rdma/hca=1 requests.x.com/gpu=1 limits.x.com/gpu=1"),
    ("disk and huge pages have none", "disk=1Gi", {"memory": "DDR5", "cpu": "A4"}, "disk=1Gi"),
    ("an empty label is none", "cpu=1", {"cpu": ""}, "cpu=1"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "labels", "expected"), [r[1:] for r in LABELS], ids=[r[0] for r in LABELS])
def test_a_label_says_the_model(pod, labels, expected):
    assert costs(count(deployment(1, pod, **labels)), f"{expected} pods=1")


def test_devices_that_are_configured_have_models():
    config = replace(CONFIG, gpu_resources=("x.com/gpu",))
    demand = count(deployment(1, "x.com/gpu=/1", gpu="X1"), config=config)
    assert demand.resources["requests.x.com/gpu.X1"]


def test_a_model_whose_name_is_another_resource_is_refused():
    assert "is another resource's name" in refusal(deployment(1, GPU, gpu="shared"))


def constrained(**fields) -> dict:
    return template(GPU, **fields)


def affinity(*terms: list[tuple[str, str, list[str]]]) -> dict:
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in term]} for term in terms
                ]
            }
        }
    }


PRODUCT, GKE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"

PROVED = [
    ("a node selector proves it", {"nodeSelector": {PRODUCT: "Tesla-T4"}}, {"T4"}),
    ("in any case, shared or not", {"nodeSelector": {PRODUCT: "tesla-t4-SHARED"}}, {"T4"}),
    ("or cut into slices", {"nodeSelector": {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}}, {"A100"}),
    ("a name that nobody knows proves nothing", {"nodeSelector": {PRODUCT: "H900"}}, set()),
    ("other labels prove nothing", {"nodeSelector": {"zone": "Tesla-T4"}}, set()),
    ("required affinity proves it", {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4"])])}, {"T4"}),
    ("several are all possible", {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4", "nvidia-tesla-a100"])])},
     {"A100", "T4"}),
    ("terms are alternatives", {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4"])],
                                                     [(PRODUCT, "In", ["NVIDIA-A100-SXM4-40GB"])])}, {"A100", "T4"}),
    ("a term without a model leaves all open", {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4"])], [])}, set()),
    ("expressions all hold", {"affinity": affinity([
        (GKE, "In", ["nvidia-tesla-t4", "nvidia-tesla-a100"]), (GKE, "NotIn", ["nvidia-tesla-t4"])])}, {"A100"}),
    ("a selector narrows affinity", {"nodeSelector": {PRODUCT: "Tesla-T4"}, "affinity": affinity(
        [(GKE, "In", ["nvidia-tesla-t4", "nvidia-tesla-a100"])])}, {"T4"}),
    ("several values that are one model", {"affinity": affinity(
        [(PRODUCT, "In", ["Tesla-T4", "Tesla-T4-SHARED"])])}, {"T4"}),
    ("any value proves nothing", {"affinity": affinity([(PRODUCT, "Exists", [])])}, set()),
    ("one of two terms for each of two models, of which one is excluded", {"affinity": affinity(
        [(GKE, "In", ["nvidia-tesla-t4", "nvidia-tesla-a100"]), (PRODUCT, "NotIn", ["Tesla-T4"])],
        [(PRODUCT, "In", ["NVIDIA-A100-SXM4-80GB"])])}, {"A100", "A100-80G"}),
    ("preferences prove nothing", {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [
            {"key": PRODUCT, "operator": "In", "values": ["Tesla-T4"]}]}}]}}}, set()),
    ("nothing is left where constraints exclude each other", {"nodeSelector": {PRODUCT: "Tesla-T4"},
     "affinity": affinity([(GKE, "In", ["nvidia-tesla-a100"])])}, set()),
    ("an exclusion alone proves nothing", {"affinity": affinity([(GKE, "NotIn", ["nvidia-tesla-t4"])])}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "models"), [row[1:] for row in PROVED], ids=[row[0] for row in PROVED])
def test_without_a_label_constraints_say_the_models(fields, models):
    named = " ".join(f"{scope}.nvidia.com/gpu.{m}=2" for m in models for scope in ("requests", "limits", "cards"))
    assert costs(count(deployment(1, constrained(**fields)), config=KNOWN), f"{BASE} {CARDS} {named} pods=1")


CONTRADICTED = [
    ("a selector", {"nodeSelector": {PRODUCT: "NVIDIA-A100-SXM4-80GB"}}, "asks for nodes with A100-80G"),
    ("affinity", {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4"])])}, "asks for nodes with T4"),
    ("an exclusion", {"affinity": affinity([(PRODUCT, "NotIn", ["NVIDIA-A100-SXM4-40GB"])])}, "asks for nodes without"),
]


@pytest.mark.parametrize(("fields", "words"), [row[1:] for row in CONTRADICTED], ids=[row[0] for row in CONTRADICTED])
def test_a_label_that_constraints_contradict_is_refused(fields, words):
    assert words in refusal(deployment(1, constrained(**fields), gpu="A100"), config=KNOWN)


def test_a_label_that_constraints_allow_is_taken():
    fields = {"affinity": affinity([(GKE, "In", ["nvidia-tesla-t4", "nvidia-tesla-a100"])])}
    demand = count(deployment(1, constrained(**fields), gpu="T4"), config=KNOWN)
    models = " ".join(f"{scope}.nvidia.com/gpu.T4=2" for scope in ("requests", "limits", "cards"))
    assert costs(demand, f"{BASE} {CARDS} {models} pods=1")


MODEL = "biz.group.resource.quota/gpu-type"


def test_a_role_may_have_a_model_of_its_own():
    worker = {**template(GPU), "metadata": {"labels": {MODEL: "A100"}}}
    job = tfjob({"gpu": "T4"}, Worker=(2, worker), Evaluator=(1, GPU))
    resources = count(job, config=KNOWN).resources
    models = {
        name.rpartition(".")[2]: resources[name] // NANO for name in resources if "requests.nvidia.com/gpu." in name
    }
    assert models == {"A100": 4, "T4": 2}


def test_a_role_may_have_a_model_where_the_workload_has_none():
    pod = {**template("cpu=1"), "metadata": {"labels": {"biz.group.resource.quota/cpu-type": "A4"}}}
    assert costs(count(deployment(2, pod)), "cpu=2 requests.cpu.A4=2 pods=2")


def test_an_empty_label_of_a_role_is_none():
    pod = {**template(GPU), "metadata": {"labels": {MODEL: ""}}}
    assert count(deployment(1, pod, gpu="T4")).resources["requests.nvidia.com/gpu.T4"]


def test_the_model_of_a_role_may_not_contradict_its_constraints():
    pod = {**template(GPU, nodeSelector={PRODUCT: "Tesla-T4"}), "metadata": {"labels": {MODEL: "A100"}}}
    assert "contradicts" in refusal(deployment(1, pod), config=KNOWN)


def test_cards_of_no_model_are_named_where_models_are_strict():
    """The message names the role that asks for them; devices without models are not in it."""
    strict = replace(KNOWN, strict_models=True)
    pod = f"{GPU} rdma/hca=/1 cpu=1"
    names = ("cards.nvidia.com/gpu", "limits.nvidia.com/gpu", "requests.nvidia.com/gpu")
    assert count(deployment(1, pod), config=strict).unmodelled == dict.fromkeys(names, ("main",))
    for none in (count(deployment(1, pod)), count(deployment(0, pod), config=strict),
                 count(deployment(1, pod, gpu="T4"), config=strict)):  # fmt: skip
        assert none.unmodelled == {}


def test_strict_models_are_those_of_the_configuration():
    strict = replace(KNOWN, strict_models=True)
    assert count(deployment(1, GPU, gpu="T4"), config=strict).resources["requests.nvidia.com/gpu.T4"]
    assert "'a100' is not a known model, did you mean A100?" in refusal(deployment(1, GPU, gpu="a100"), config=strict)
