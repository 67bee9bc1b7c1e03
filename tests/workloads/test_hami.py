"""Parts of cards, as HAMi shares them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.quota import quantity
from bizrq.workloads.config import DEFAULT, GpuModel, Hami
from tests.workloads.language import cost, count, deployment, refusal, template

HAMI = replace(DEFAULT, hami=Hami(enabled=True), gpu_models={"A100": GpuModel((), 40960), "T4": GpuModel((), 15360)})
MEM, PERCENT, CORES = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"


def part(gpu: str = "", mem: str = "", cores: str = "", percent: str = "") -> str:
    given = {"nvidia.com/gpu": gpu, MEM: mem, CORES: cores, PERCENT: percent}
    return " ".join(f"{name}=/{value}" for name, value in given.items() if value)


# What a container of an A100 of 40960 MiB takes: devices, HAMi's memory and cores, cards.
PARTS = [
    ("a whole card", part("1"), "1 40960 100 1"),
    ("two whole cards", part("2"), "2 81920 200 2"),
    ("memory and cores are per device", part("2", mem="8192", cores="30"), "2 16384 60 600m"),
    ("memory alone reserves no cores", part("1", mem="20480"), "1 20480 0 500m"),
    ("a slot is the least", part("1", mem="100", cores="1"), "1 100 1 100m"),
    ("memory without a number of devices is one", part(mem="4096"), "1 4096 0 100m"),
    ("cores alone come with all the memory", part("1", cores="30"), "1 40960 30 1"),
    ("a percentage of the memory", part("2", percent="50", cores="30"), "2 40960 60 1"),
    ("all of the memory is the whole card", part("1", percent="100"), "1 40960 100 1"),
    ("memory wins over a percentage", part("1", mem="4096", percent="50", cores="5"), "1 4096 5 100m"),
    ("more cores than there are", part("1", mem="4096", cores="150"), "1 4096 100 1"),
    ("sidecars add", f"sidecar {part('1', mem='8192', cores='20')} | {part('1', mem='8192', cores='20')}",
     "2 16384 40 400m"),
    ("init steps do not", f"init {part('1', mem='16384', cores='20')} | {part('1', mem='8192', cores='30')}",
     "1 16384 30 400m"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in PARTS], ids=[row[0] for row in PARTS])
def test_a_part_of_a_card_takes(pod, expected):
    resources = count(deployment(3, pod, gpu="A100"), config=HAMI).resources
    names = ("requests.nvidia.com/gpu", f"limits.{MEM}", f"limits.{CORES}", "cards.nvidia.com/gpu")
    for name, one in zip(names, expected.split(), strict=True):
        assert resources.get(name, 0) == 3 * quantity.parse(one), name
        assert resources.get(f"{name}.A100", 0) == resources.get(name, 0)


def test_requests_stay_what_kubernetes_sums_up():
    resources = count(deployment(3, part("2", mem="8192", cores="30")), config=HAMI).resources
    wanted = cost(f"requests.{MEM}=24576 requests.{CORES}=90 limits.nvidia.com/gpu=6")
    assert {name: resources[name] for name in wanted} == wanted


def test_memory_of_an_unknown_card_is_the_whole_card():
    assert count(deployment(1, part("1", mem="100")), config=HAMI).resources["cards.nvidia.com/gpu"] == quantity.NANO


def test_pods_that_hami_leaves_alone_have_no_totals():
    for pod in (
        template(part(mem="3000"), schedulerName="volcano"),
        {**template(part(mem="3000")), "metadata": {"labels": {"hami.io/webhook": "ignore"}}},
    ):
        resources = count(deployment(2, pod), config=HAMI).resources
        assert resources[f"requests.{MEM}"] == quantity.parse(6000)
        assert not {f"limits.{MEM}", "requests.nvidia.com/gpu", "cards.nvidia.com/gpu"} & set(resources)


def test_nothing_of_this_happens_unless_it_is_enabled():
    resources = count(deployment(1, part(mem="3000"))).resources
    assert "requests.nvidia.com/gpu" not in resources
    assert not [name for name in resources if name.startswith("cards.")]


ASCEND = replace(DEFAULT, hami=Hami(enabled=True, vendors=("ascend",)))
NPU = "huawei.com/Ascend910C"


@pytest.mark.parametrize(("asked", "given"), [("1", 2), ("2", 2), ("4", 4)])
def test_an_ascend_910c_comes_in_pairs(asked, given):
    resources = count(deployment(3, f"{NPU}=/{asked}"), config=ASCEND).resources
    assert resources[f"requests.{NPU}"] == resources[f"limits.{NPU}"] == 3 * given * quantity.NANO


def test_an_odd_number_of_them_is_refused():
    assert "comes in pairs" in refusal(deployment(1, f"{NPU}=/3"), config=ASCEND)


PRIVILEGED = template(part("1"))
PRIVILEGED["spec"]["containers"][0]["securityContext"] = {"privileged": True}

REFUSED = [
    ("a percentage of more than all", part("1", percent="101"), "gpumem-percentage: must be at most 100"),
    ("memory in bytes", part("1", mem="3Gi"), "gpumem: counts MiB"),
    ("more memory than a card has", part("1", mem="50000"), "is more than a card of this model has (40960 MiB)"),
    ("a privileged container", PRIVILEGED, "securityContext.privileged: a privileged container cannot have"),
]


@pytest.mark.parametrize(("pod", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_part_of_a_card_is_refused_for(pod, words):
    assert words in refusal(deployment(1, pod, gpu="A100"), config=HAMI)


@pytest.mark.parametrize(("annotations", "models"), [
    ({"nvidia.com/use-gputype": "a100"}, {"A100"}),
    ({"nvidia.com/use-gputype": "A100,T4", "nvidia.com/nouse-gputype": "T4"}, {"A100"}),
    ({"nvidia.com/use-gputype": "H900"}, set()),
])  # fmt: skip
def test_annotations_of_hami_say_the_model(annotations, models):
    pod = {**template(part("1")), "metadata": {"annotations": annotations}}
    resources = count(deployment(1, pod), config=HAMI).resources
    assert {name.rpartition(".")[2] for name in resources if name.startswith("requests.nvidia.com/gpu.")} == models
