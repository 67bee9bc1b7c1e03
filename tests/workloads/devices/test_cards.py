"""Cards: the part of a card that a request takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.units import quantity
from bizrq.units.quantity import NANO
from bizrq.workloads.config import CountsAs, GpuModel
from tests.support.workload_language import CONFIG, count, deployment, refusal, template
from tests.workloads.devices.test_dra import CLASSES, claim_template, exactly, using

SIZES = replace(
    CONFIG,
    gpu_models={"A100": GpuModel((), 40960), "A30": GpuModel((), 24576), "H100": GpuModel((), 81920)},
)
CARDS = "cards.nvidia.com/gpu"


def thousandths(resources, name=CARDS) -> int:
    return -(-resources.get(name, 0) * 1000 // NANO)


PARTS = [
    ("a whole card", "nvidia.com/gpu=/2", "A100", 2000),
    ("a shared one, of which nobody knows how many there are", "nvidia.com/gpu.shared=/2", "A100", 2000),
    ("a seventh, though it has an eighth of the memory", "nvidia.com/mig-1g.5gb=/1", "A100", 143),
    ("half the memory, though it has three sevenths", "nvidia.com/mig-3g.20gb=/1", "A100", 500),
    ("all of it", "nvidia.com/mig-7g.40gb=/1", "A100", 1000),
    ("more memory with as much to compute", "nvidia.com/mig-1g.20gb=/1", "H100", 250),
    ("a card of four slices", "nvidia.com/mig-1g.6gb=/2", "A30", 500),
    ("one with media extensions", "nvidia.com/mig-1g.5gb.me=/1", "A100", 143),
    ("a slice of who knows what", "nvidia.com/mig-1g.5gb=/1", "", 1000),
    ("cards and slices", "nvidia.com/gpu=/1 nvidia.com/mig-3g.20gb=/1", "A100", 1500),
    ("parts that are counted by the piece are no cards", "nvidia.com/gpumem=/4096", "A100", 0),
    ("nor is what takes no model", "rdma/hca=/1", "A100", 0),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "model", "expected"), [r[1:] for r in PARTS], ids=[r[0] for r in PARTS])
def test_a_pod_takes(pod, model, expected):
    resources = count(deployment(1, pod, **({"gpu": model} if model else {})), config=SIZES).resources
    assert thousandths(resources) == expected
    if model:
        assert resources.get(f"{CARDS}.{model}", 0) == resources.get(CARDS, 0)


def test_slices_add_nothing_to_whole_cards():
    assert "requests.nvidia.com/gpu" not in count(deployment(2, "nvidia.com/mig-1g.5gb=/2"), config=SIZES).resources


def test_cards_of_other_vendors_count_too():
    resources = count(deployment(2, "amd.com/gpu=/3 aws.amazon.com/neuroncore=/3"), config=SIZES).resources
    assert thousandths(resources, "cards.amd.com/gpu") == 6000
    assert thousandths(resources, "cards.aws.amazon.com/neuron") == 3000


def test_a_claim_of_some_memory_is_a_part_of_a_card():
    part = exactly(capacity={"requests": {"memory": "10Gi"}}, count=2)
    resources = count(using(3, gpu="A100"), claim_template(part), *CLASSES, config=SIZES).resources
    assert thousandths(resources) == 1500
    assert resources["requests.nvidia.com/gpu"] == 6 * NANO


@pytest.mark.parametrize("capacity", [{"cores": "1"}, {"memory": "nonsense"}, {"memory": "1Ti"}])
def test_a_claim_of_what_nobody_knows_is_the_whole_card(capacity):
    part = exactly(capacity={"requests": capacity})
    assert thousandths(count(using(1, gpu="A100"), claim_template(part), *CLASSES, config=SIZES).resources) == 1000


def counts_as(*ways: CountsAs):
    return replace(SIZES, counts_as=ways)


FRACTION = CountsAs("nvidia.com/gpu", annotation="gpu-fraction", times="gpu-fraction-num-devices")
WAYS = [
    ("half a card by annotation", FRACTION, "", {"gpu-fraction": "0.5"}, 500, 1),
    ("of each of three", FRACTION, "", {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}, 1500, 2),
    ("no annotation", FRACTION, "", {}, 0, 0),
    ("memory by annotation", CountsAs("nvidia.com/gpu", "MiB", annotation="gpu-memory"), "",
     {"gpu-memory": "10240"}, 250, 1),
    ("a virtual card by name", CountsAs("nvidia.com/gpu", resource="volcano.sh/vgpu-number"),
     "volcano.sh/vgpu-number=/2", {}, 2000, 2),
    ("hundredths of a card", CountsAs("nvidia.com/gpu", "percent", resource="tencent.com/vcuda-core"),
     "tencent.com/vcuda-core=/150", {}, 1500, 2),
    ("blocks of memory", CountsAs("nvidia.com/gpu", "256MiB", resource="tencent.com/vcuda-memory"),
     "tencent.com/vcuda-memory=/40", {}, 250, 1),
    ("memory by name", CountsAs("nvidia.com/gpu", "GiB", resource="aliyun.com/gpu-mem"),
     "aliyun.com/gpu-mem=/20", {}, 500, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("way", "pod", "annotations", "cards", "whole"), [row[1:] for row in WAYS], ids=[row[0] for row in WAYS]
)
def test_what_the_configuration_says_counts_as_cards(way, pod, annotations, cards, whole):
    pod = {**template(pod), "metadata": {"annotations": annotations}}
    resources = count(deployment(1, pod, gpu="A100"), config=counts_as(way)).resources
    assert thousandths(resources) == cards
    for name in ("requests.nvidia.com/gpu", "limits.nvidia.com/gpu", "requests.nvidia.com/gpu.A100"):
        assert resources.get(name, 0) == whole * NANO


def test_whole_devices_are_rounded_up_per_pod():
    pod = {**template(""), "metadata": {"annotations": {"gpu-fraction": "0.25"}}}
    resources = count(deployment(4, pod), config=counts_as(FRACTION)).resources
    assert resources["requests.nvidia.com/gpu"] == 4 * NANO
    assert resources[CARDS] == NANO


@pytest.mark.parametrize("value", ["-1", "half", 0.5, "1e99999999"])
def test_an_annotation_that_is_no_amount_is_refused(value):
    pod = {**template(""), "metadata": {"annotations": {"gpu-fraction": value}}}
    assert "metadata.annotations.gpu-fraction" in refusal(deployment(1, pod), config=counts_as(FRACTION))


def test_nothing_of_this_is_counted_by_default():
    resources = count(deployment(1, "nvidia.com/gpu=/1 volcano.sh/vgpu-number=/1")).resources
    assert not [name for name in resources if name.startswith("cards.")]
    assert resources["requests.nvidia.com/gpu"] == quantity.parse(1)
