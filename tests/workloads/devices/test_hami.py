"""Parts of cards, as HAMi shares them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.builtin import shared_devices
from bizrq.units import names, quantity
from bizrq.workloads.config import GpuModel
from tests.support.catalog import CATALOG
from tests.support.workload_language import CONFIG, cost, count, deployment, refusal, served_by_hami, template

HAMI = replace(CONFIG, hami=served_by_hami(), gpu_models={"A100": GpuModel((), 40960), "T4": GpuModel((), 15360)})
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
    ("none of the memory is all of it", part("1", mem="0"), "1 40960 0 1"),
    ("none of the cores", part("1", cores="0"), "1 40960 0 1"),
    ("no percentage is all of it", part("1", percent="0"), "1 40960 0 1"),
    ("a percentage wins where it says the whole card", part("1", mem="4096", percent="100"), "1 4096 100 1"),
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


def test_pods_of_a_namespace_that_hami_leaves_alone_have_none_either():
    def namespace(labels: dict[str, str]) -> dict:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}}

    obj = deployment(2, part(mem="3000"))
    assert count(obj, namespace({}), config=HAMI).resources["requests.nvidia.com/gpu"] == quantity.parse(2)
    resources = count(obj, namespace({"hami.io/webhook": "ignore"}), config=HAMI).resources
    assert {name for name in resources if "/" in name} == {"count/deployments.apps", f"requests.{MEM}"}


def test_nothing_of_this_happens_unless_it_is_enabled():
    resources = count(deployment(1, part(mem="3000"))).resources
    assert "requests.nvidia.com/gpu" not in resources
    assert not [name for name in resources if name.startswith("cards.")]


EVERYBODY = tuple(sorted({device.vendor for device in shared_devices()}))
ALL = replace(
    CONFIG,
    hami=served_by_hami(*EVERYBODY),
    gpu_models={"DCU": GpuModel((), 32768), "MLU": GpuModel((), 24576), "C500": GpuModel((), 65536)},
)
NPU, B3 = "huawei.com/Ascend910C", "huawei.com/Ascend910B3"
SOFT = {"huawei.com/vnpu-mode": "hami-core"}

# A request for a vendor's device, and its further cost: r. is requests., l. limits., c. cards.
OF_VENDORS = [
    ("a 910C alone is a module of two", f"{NPU}=/1", "", f"r.{NPU}=2 l.{NPU}=2 c.{NPU}=2 l.{NPU}-memory=131072"),
    ("a module is a module", f"{NPU}=/2", "", f"r.{NPU}=2 c.{NPU}=2"),
    ("two modules are four", f"{NPU}=/4", "", f"r.{NPU}=4 l.{NPU}=4 c.{NPU}=4"),
    ("memory of an Ascend is rounded up to a template", f"{B3}=/1 {B3}-memory=/10000", "",
     f"r.{B3}=1 r.{B3}-memory=16384 l.{B3}-memory=16384 c.{B3}=250m"),
    ("to the next", f"{B3}=/1 {B3}-memory=/16385", "", f"r.{B3}-memory=32768 c.{B3}=500m"),
    ("and past them to the card", f"{B3}=/1 {B3}-memory=/40000", "", f"r.{B3}-memory=65536 c.{B3}=1"),
    ("all of several", f"{B3}=/2", "", f"r.{B3}=2 r.{B3}-memory=65536 l.{B3}-memory=131072 c.{B3}=2"),
    ("several with all their memory", f"{B3}=/2 {B3}-memory=/65536", "", f"l.{B3}-memory=131072 c.{B3}=2"),
    ("a little less than a 310P has", "huawei.com/Ascend310P=/1 huawei.com/Ascend310P-memory=/24000", "",
     "r.huawei.com/Ascend310P-memory=21527 c.huawei.com/Ascend310P=1"),
    ("an MLU comes with all its cores", "cambricon.com/vmlu=/2 cambricon.com/mlu.smlu.vmemory=/24", "MLU",
     "l.cambricon.com/mlu.smlu.vmemory=48 l.cambricon.com/mlu.smlu.vcore=200 c.cambricon.com/vmlu=2 "
     "r.cambricon.com/mlu.smlu.vmemory=24 r.cambricon.com/mlu.smlu.vcore=0"),
    ("unless it says how many", "cambricon.com/vmlu=/1 cambricon.com/mlu.smlu.vmemory=/24 "
     "cambricon.com/mlu.smlu.vcore=/10", "MLU", "c.cambricon.com/vmlu=250m l.cambricon.com/mlu.smlu.vcore=10"),
    ("under its older names too", "cambricon.com/vmlu=/1 cambricon.com/mlu370.smlu.vmemory=/24 "
     "cambricon.com/mlu370.smlu.vcore=/10", "MLU",
     "c.cambricon.com/vmlu=250m l.cambricon.com/mlu370.smlu.vcore=10 l.cambricon.com/mlu.smlu.vcore=0"),
    ("a DCU comes with all its cores", "hygon.com/dcunum=/1 hygon.com/dcumem=/8192", "DCU",
     "l.hygon.com/dcumem=8192 l.hygon.com/dcucores=100 c.hygon.com/dcunum=1"),
    ("unless it says how many", "hygon.com/dcunum=/2 hygon.com/dcumem=/8192 hygon.com/dcucores=/50", "DCU",
     "l.hygon.com/dcumem=16384 l.hygon.com/dcucores=100 c.hygon.com/dcunum=1"),
    ("several of Iluvatar have all their cores", "iluvatar.ai/BI-V150-vgpu=/2", "",
     "r.iluvatar.ai/BI-V150.vCore=200 l.iluvatar.ai/BI-V150.vCore=200 c.iluvatar.ai/BI-V150-vgpu=2"),
    ("one has those it asks for", "iluvatar.ai/MR-V100-vgpu=/1 iluvatar.ai/MR-V100.vCore=/30 "
     "iluvatar.ai/MR-V100.vMem=/32", "DCU",
     "r.iluvatar.ai/MR-V100.vCore=30 l.iluvatar.ai/MR-V100.vMem=32 c.iluvatar.ai/MR-V100-vgpu=300m"),
    ("a Metax card is whole", "metax-tech.com/gpu=/3", "", "c.metax-tech.com/gpu=3"),
    ("its parts count GiB", "metax-tech.com/sgpu=/2 metax-tech.com/vmemory=/16 metax-tech.com/vcore=/10", "C500",
     "l.metax-tech.com/vmemory=32 l.metax-tech.com/vcore=20 c.metax-tech.com/sgpu=500m"),
    ("or bytes, with a suffix", "metax-tech.com/sgpu=/1 metax-tech.com/vmemory=/16Gi metax-tech.com/vcore=/10", "C500",
     "l.metax-tech.com/vmemory=16 c.metax-tech.com/sgpu=250m"),
    ("and come with all cores", "metax-tech.com/sgpu=/1 metax-tech.com/vmemory=/16", "C500",
     "l.metax-tech.com/vcore=100 c.metax-tech.com/sgpu=1"),
    ("several of Mthreads are whole, as a total", "mthreads.com/vgpu=/2 mthreads.com/sgpu-memory=/8", "",
     "r.mthreads.com/sgpu-memory=192 l.mthreads.com/sgpu-memory=192 r.mthreads.com/sgpu-core=32 "
     "l.mthreads.com/sgpu-core=32 c.mthreads.com/vgpu=2"),
    ("one without memory too", "mthreads.com/vgpu=/1", "",
     "l.mthreads.com/sgpu-memory=96 r.mthreads.com/sgpu-core=16 c.mthreads.com/vgpu=1"),
    ("one with memory is a part", "mthreads.com/vgpu=/1 mthreads.com/sgpu-memory=/32 mthreads.com/sgpu-core=/8", "",
     "r.mthreads.com/sgpu-memory=32 l.mthreads.com/sgpu-core=8 c.mthreads.com/vgpu=500m"),
    ("a GCU is whole", "enflame.com/gcu=/2", "", "c.enflame.com/gcu=2"),
    ("a profile's size is no number of devices", "enflame.com/drs-gcu=/3", "",
     "r.enflame.com/drs-gcu=3 l.enflame.com/drs-gcu=3 c.enflame.com/drs-gcu=1"),
    ("its cores are a share", "enflame.com/gcu-core=/25", "", "c.enflame.com/drs-gcu=250m r.enflame.com/gcu-core=25"),
    ("an XPU is whole", "kunlunxin.com/xpu=/1", "", "c.kunlunxin.com/xpu=1"),
    ("memory of a virtual one is rounded up", "kunlunxin.com/vxpu=/1 kunlunxin.com/vxpu-memory=/1000", "",
     "r.kunlunxin.com/vxpu-memory=24576 l.kunlunxin.com/vxpu-memory=24576 c.kunlunxin.com/vxpu=250m"),
    ("to the card at most", "kunlunxin.com/vxpu=/1 kunlunxin.com/vxpu-memory=/50000", "",
     "r.kunlunxin.com/vxpu-memory=98304 c.kunlunxin.com/vxpu=1"),
    ("and all of it where it says nothing", "kunlunxin.com/vxpu=/2", "",
     "r.kunlunxin.com/vxpu-memory=0 l.kunlunxin.com/vxpu-memory=196608 c.kunlunxin.com/vxpu=2"),
    ("a Neuron core is half a device", "aws.amazon.com/neuroncore=/1", "",
     "c.aws.amazon.com/neuron=500m c.aws.amazon.com/neuroncore=0 r.aws.amazon.com/neuroncore=1"),
    ("four are two devices", "aws.amazon.com/neuroncore=/4", "", "c.aws.amazon.com/neuron=2"),
    ("a Neuron device is whole", "aws.amazon.com/neuron=/2", "", "c.aws.amazon.com/neuron=2"),
    ("an AMD card comes with all cores", "amd.com/gpu=/2 amd.com/gpumem=/8192", "DCU",
     "l.amd.com/gpumem=16384 l.amd.com/gpucores=200 c.amd.com/gpu=2"),
    ("unless it says how many", "amd.com/gpu=/1 amd.com/gpumem=/8192 amd.com/gpucores=/20", "DCU",
     "c.amd.com/gpu=250m"),
    ("a Vastai card is whole", "vastaitech.com/va=/1", "", "c.vastaitech.com/va=1"),
    ("a Biren card is whole", "birentech.com/gpu=/8", "", "c.birentech.com/gpu=8"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "model", "expected"), [r[1:] for r in OF_VENDORS], ids=[r[0] for r in OF_VENDORS])
def test_of_other_vendors(pod, model, expected):
    resources = count(deployment(3, pod, **({"gpu": model} if model else {})), config=ALL).resources
    for word in expected.split():
        name, _, amount = word.rpartition("=")
        scope, _, device = name.partition(".")
        name = f"{ {'r': 'requests', 'l': 'limits', 'c': 'cards'}[scope] }.{device}"
        assert resources.get(name, 0) == 3 * quantity.parse(amount), name
        if model and amount != "0" and scope == "c":
            assert resources[f"{name}.{model}"] == resources[name]


def test_a_soft_split_of_an_ascend_is_not_rounded():
    pod = template(f"{B3}=/2 {B3}-memory=/6554 {B3}-core=/5")
    pod["metadata"] = {"annotations": SOFT}
    resources = count(deployment(1, pod), config=ALL).resources
    wanted = {f"limits.{B3}-memory": 13108, f"limits.{B3}-core": 10}
    assert {name: resources[name] // quantity.NANO for name in wanted} == wanted
    assert quantity.parse("200m") <= resources[f"cards.{B3}"] < quantity.parse("201m")


def test_vendors_that_hami_does_not_serve_here_are_plain_devices():
    resources = count(deployment(1, f"{NPU}=/1 hygon.com/dcunum=/1"), config=HAMI).resources
    assert resources[f"requests.{NPU}"] == quantity.NANO
    assert "limits.hygon.com/dcucores" not in resources


def test_every_name_of_the_table_may_stand_in_hard():
    for device in shared_devices():
        for name in (device.count, *device.parts):
            assert names.normalize(f"limits.{name}", CATALOG) == f"limits.{name}"
        assert names.normalize(device.cards, CATALOG) == device.cards


OF_VENDORS_REFUSED = [
    ("an odd number of 910C", f"{NPU}=/3", "comes in pairs"),
    ("parts of several Ascends", f"{B3}=/2 {B3}-memory=/16384", "parts can be had of one device only"),
    ("more than an Ascend has", f"{B3}=/1 {B3}-memory=/70000", "is more than a card has (65536 MiB)"),
    ("cores of an Ascend without the soft split", f"{B3}=/1 {B3}-core=/5", "needs the annotation huawei.com/vnpu-mode"),
    ("memory in bytes", "cambricon.com/vmlu=/1 cambricon.com/mlu.smlu.vmemory=/3Gi", "counts 256 MiB each"),
    ("memory that Mthreads does not cut", "mthreads.com/vgpu=/1 mthreads.com/sgpu-memory=/5", "must be one of 2, 4, 8"),
    ("more cores than a GCU has", "enflame.com/gcu-core=/101", "must be from 1 to 100"),
    ("no cores of an AMD card", "amd.com/gpu=/1 amd.com/gpucores=/0", "must be from 1 to 100"),
    ("an odd number of Neuron cores", "aws.amazon.com/neuroncore=/3", "must be 1 or a multiple of 2"),
]


@pytest.mark.parametrize(
    ("pod", "words"), [row[1:] for row in OF_VENDORS_REFUSED], ids=[row[0] for row in OF_VENDORS_REFUSED]
)
def test_of_other_vendors_is_refused(pod, words):
    assert words in refusal(deployment(1, pod), config=ALL)


MIG_MODE = {"nvidia.com/vgpu-mode": "mig"}


@pytest.mark.parametrize(("memory", "sevenths"), [("4096", 1), ("8192", 2), ("30000", 7)])
def test_in_mig_mode_memory_is_rounded_up_to_a_slice(memory, sevenths):
    pod = template(part("1", mem=memory, cores="5"))
    pod["metadata"] = {"annotations": MIG_MODE}
    cards = count(deployment(1, pod, gpu="A100"), config=HAMI).resources["cards.nvidia.com/gpu"]
    assert cards == -(-sevenths * quantity.NANO // 7)


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
