"""Which names `hard` accepts, their other spellings, and the messages for other names."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bizrq.units import names
from bizrq.units.names import (
    InvalidHard,
    UnknownResource,
    base_and_model,
    is_model_base,
    model_name,
    normalize,
    parse_hard,
)
from bizrq.units.quantity import NANO
from tests.support.catalog import CATALOG

A_CLASS = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
IMPLICIT = "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com"

#: What configuration may add: a GPU of an unlisted vendor, its shared form, a listed vendor's new card, two classes.
CONFIGURED = CATALOG.extended(
    kinds=["pods", "widgets.example.com"],
    gpu_resources=["example.com/npu", "example.com/npu.shared", "huawei.com/Ascend910"],
    device_classes={"gpu.nvidia.com": "nvidia.com/gpu", "nic.example.com": "rdma/hca"},
)


@pytest.mark.parametrize(
    "name",
    [
        "requests.cpu",
        "limits.memory",
        "requests.ephemeral-storage",
        "requests.hugepages-2Mi",
        "limits.hugepages-1Gi",
        "pods",
        "count/pods",
        "count/deployments.apps",
        "count/tfjobs.kubeflow.org",
        "count/jobs.batch.volcano.sh",
        # a model after cpu, memory, GPU names and cards; dots are part of a model
        "limits.cpu.A4",
        "limits.cpu.A40",
        "requests.memory.DDR5-4800",
        "requests.nvidia.com/gpu.A100",
        "limits.nvidia.com/gpu.A100-80G",
        "requests.nvidia.com/gpu.NVIDIA-A100.v2_x",
        "limits.nvidia.com/gpumem.A100",
        "cards.nvidia.com/gpu.T4",
        # devices of listed vendors that look like others' models
        "requests.nvidia.com/gpu",
        "requests.nvidia.com/gpumem",
        "requests.nvidia.com/gpu.shared",
        "requests.nvidia.com/gpu.shared.T4",
        "requests.nvidia.com/mig-1g.5gb",
        "requests.nvidia.com/mig-1g.5gb.shared",
        "requests.nvidia.com/mig-1g.10gb.me",
        "requests.nvidia.com/mig-1c.3g.20gb",
        "requests.nvidia.com/mig-1g.5gb.A100",
        "requests.iluvatar.ai/BI-V150.vMem",
        "requests.iluvatar.ai/BI-V150-vgpu.BI-V150",
        "limits.huawei.com/Ascend910B4-1-memory",
        "requests.tencent.com/vcuda-core",
        "cards.nvidia.com/gpu",
        # of other vendors the whole string is one resource, whatever it looks like
        "requests.rdma/hca_shared_devices_a",
        "limits.myway5.com/cola",
        "requests.example.com/npu.v2",
        "cards.example.com/npu",
        # DRA devices by class
        A_CLASS,
        IMPLICIT,
        # hours of any but count/
        "cash/limits.cpu",
        "cash/limits.cpu.A4",
        "cash/requests.nvidia.com/gpu",
        "cash/cards.nvidia.com/gpu",
        "cash/pods",
        f"cash/{A_CLASS}",
    ],
)
def test_a_known_name_is_canonical(name: str) -> None:
    """docs/resources.md lists the same names."""
    assert normalize(name, CATALOG) == name


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("cpu", "requests.cpu"),
        ("memory", "requests.memory"),
        ("ephemeral-storage", "requests.ephemeral-storage"),
        ("hugepages-2Mi", "requests.hugepages-2Mi"),
        ("cash/cpu", "cash/requests.cpu"),
    ],
)
def test_names_that_kubernetes_reads_as_requests_are_read_as_requests(given: str, read: str) -> None:
    """In a ResourceQuota `cpu` is requests.cpu."""
    assert normalize(given, CATALOG) == read


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        # one step from right
        ("nvidia.com/gpu", "write requests.nvidia.com/gpu or limits.nvidia.com/gpu"),
        ("myway5.com/cola", "write requests.myway5.com/cola or limits.myway5.com/cola"),
        ("cpu.A4", "write requests.cpu.A4 or limits.cpu.A4"),
        ("cash/nvidia.com/gpu", "write cash/requests.nvidia.com/gpu or cash/limits.nvidia.com/gpu"),
        ("request.cpu", "write requests.cpu"),
        ("limit.nvidia.com/gpu", "write limits.nvidia.com/gpu"),
        ("card.nvidia.com/gpu", "write cards.nvidia.com/gpu"),
        (f"requests.{A_CLASS}", f"write {A_CLASS}"),
        (IMPLICIT.replace("requests.", "limits.", 1), f"write {IMPLICIT}"),
        (IMPLICIT.removeprefix("requests."), f"write {IMPLICIT}"),
        ("cash/cash/pods", "write cash/ once"),
        ("cash/count/pods", "count/ takes no cash/"),
        # the nearest of a listed vendor
        ("requests.nvidia.com/gpux", "did you mean requests.nvidia.com/gpu?"),
        ("requests.nvidia.com/GPU", "did you mean requests.nvidia.com/gpu?"),
        ("requests.NVIDIA.com/gpu", "did you mean requests.nvidia.com/gpu?"),
        ("requests.nvidia.com/gpux.A100", "did you mean requests.nvidia.com/gpu?"),
        ("limits.nvidia.com/gpu-mem", "did you mean limits.nvidia.com/gpumem?"),
        ("requests.nvidia.com/mig-9g.5gb", "did you mean requests.nvidia.com/mig-1g.5gb?"),
        ("requests.huawei.com/Ascend910", "did you mean requests.huawei.com/Ascend910A?"),
        ("requests.iluvatar.ai/BI-V150", "did you mean requests.iluvatar.ai/BI-V150-vgpu?"),
        ("cash/requests.amd.com/gpus", "did you mean cash/requests.amd.com/gpu?"),
        ("requests.birentech.com/" + "z" * 40, "the nearest is requests.birentech.com/gpu"),
        # the nearest of all
        ("requests.cup", "did you mean requests.cpu?"),
        ("limits.mem", "did you mean limits.memory?"),
        ("pod", "did you mean pods?"),
        ("gpu", "did you mean requests.nvidia.com/gpu?"),
        ("requests.gpu", "did you mean requests.nvidia.com/gpu?"),
        ("requests.storage", "did you mean requests.ephemeral-storage?"),
        ("services", "write a name like limits.cpu, requests.nvidia.com/gpu or pods"),
        ("cash/services", "write a name like cash/limits.cpu, cash/requests.nvidia.com/gpu or cash/pods"),
        ("", "write a name like "),
        # kinds that nothing counts
        ("count/deployments", "did you mean count/deployments.apps?"),
        ("count/deployment.apps", "did you mean count/deployments.apps?"),
        ("count/jobs", "did you mean count/jobs.batch?"),
        ("count/tfjobs", "did you mean count/tfjobs.kubeflow.org?"),
        ("count/configmaps", "did you mean count/cronjobs.batch?"),
        ("count/Pods", "did you mean count/pods?"),
        ("counts/pods", "did you mean count/pods?"),
        # models where there are none, or that are none
        ("requests.ephemeral-storage.A4", "requests.ephemeral-storage takes no model"),
        ("requests.hugepages-2Mi.A100", "requests.hugepages-2Mi takes no model"),
        ("pods.A4", "pods takes no model"),
        (f"{A_CLASS}.A100", f"{A_CLASS} takes no model, unless deviceClassMappings maps its class to a GPU"),
        ("limits.cpu.", "'' is not a model of limits.cpu: write a label value"),
        ("limits.cpu.-A4", "-A4 is not a model of limits.cpu: write a label value"),
        ("limits.cpu." + "A" * 64, "is not a model of limits.cpu: write a label value"),
        # no devices
        ("hugepages-2048Ki", "like requests.hugepages-2Mi or "),
        ("requests.hugepages-3Mi", "like requests.hugepages-2Mi or "),
        ("requests.hugepages-", "like requests.hugepages-2Mi or "),
        ("cards.nvidia.com/gpumem", "write limits.nvidia.com/gpumem"),
        ("cards.cpu", "did you mean cards.nvidia.com/gpu?"),
        ("requests.kubernetes.io/x", "like requests.example.com/npu"),
        ("requests.x.kubernetes.io/x", "like requests.example.com/npu"),
        ("requests.requests.example.com/x", "like requests.example.com/npu"),
        ("requests.example.com/", "like requests.example.com/npu"),
        ("requests./x", "like requests.example.com/npu"),
        ("requests.Example.com/x", "like requests.example.com/npu"),
        ("requests.example.com/a/b", "like requests.example.com/npu"),
        ("requests.example.com/-x", "like requests.example.com/npu"),
        ("limits.example.com/" + "x" * 64, "like limits.example.com/npu"),
    ],
)
def test_an_unknown_name_is_rejected_with_a_suggestion(name: str, advice: str) -> None:
    """The message names the nearest valid name, or the missing step."""
    with pytest.raises(UnknownResource) as caught:
        normalize(name, CATALOG)
    assert "unknown resource name: " in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "count/widgets.example.com",
        "requests.example.com/npu.A2",
        "requests.example.com/npu.shared",
        "requests.example.com/npu.shared.A2",
        "cards.example.com/npu.A2",
        "requests.huawei.com/Ascend910",
        "requests.huawei.com/Ascend910.B",
        f"{A_CLASS}.A100",
        f"{IMPLICIT}.A100",
    ],
)
def test_configuration_adds_names(name: str) -> None:
    """`gpuResources`, `adapters` and `deviceClassMappings` add names."""
    assert normalize(name, CONFIGURED) == name


def test_a_device_class_that_is_no_gpu_has_no_models() -> None:
    """Only classes that are mapped to the name of a GPU have models."""
    assert not is_model_base("nic.example.com.deviceclass.resource.k8s.io/devices", CONFIGURED)
    with pytest.raises(UnknownResource, match="takes no model"):
        normalize("nic.example.com.deviceclass.resource.k8s.io/devices.A100", CONFIGURED)


def test_a_kind_that_is_not_charged_cannot_be_limited() -> None:
    """Only the given kinds can be limited."""
    with pytest.raises(UnknownResource, match=r"did you mean count/widgets\.example\.com\?"):
        normalize("count/gadgets.example.com", CONFIGURED)
    with pytest.raises(UnknownResource):
        normalize("count/deployments.apps", CONFIGURED)


@pytest.mark.parametrize(
    "more",
    [
        {"kinds": ["Deployment"]},
        {"kinds": ["deployments/apps"]},
        {"gpu_resources": ["gpu"]},
        {"gpu_resources": ["requests.nvidia.com/gpu"]},
        {"gpu_resources": ["nvidia.com/x y"]},
        {"device_classes": {"GPU": "nvidia.com/gpu"}},
    ],
)
def test_configuration_with_invalid_names_is_rejected(more: dict) -> None:
    """The message says what to write."""
    with pytest.raises(UnknownResource, match=": write "):
        CATALOG.extended(**more)


@pytest.mark.parametrize(
    ("base", "takes"),
    [
        ("requests.cpu", True),
        ("limits.memory", True),
        ("requests.nvidia.com/gpu", True),
        ("limits.nvidia.com/gpumem", True),
        ("requests.nvidia.com/mig-3g.20gb", True),
        ("requests.nvidia.com/gpu.shared", True),
        ("requests.vastaitech.com/va", True),
        ("cards.nvidia.com/gpu", True),
        ("cash/requests.cpu", True),
        ("requests.ephemeral-storage", False),
        ("requests.hugepages-2Mi", False),
        ("requests.rdma/hca_shared_devices_a", False),
        ("requests.example.com/npu", False),
        ("cards.nvidia.com/gpumem", False),
        ("requests.nvidia.com/gpu.A100", False),
        ("pods", False),
        ("count/pods", False),
        ("cpu", False),
        (A_CLASS, False),
        (IMPLICIT, False),
    ],
)
def test_models_are_for_cpu_memory_gpus_and_cards(base: str, takes: bool) -> None:
    """Network cards, pages and pods have no models, and a name has at most one model."""
    assert is_model_base(base, CATALOG) is takes


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("requests.example.com/npu.A2", ("requests.example.com/npu", "A2")),
        ("cash/limits.example.com/npu.A2", ("cash/limits.example.com/npu", "A2")),
        ("cards.example.com/npu.A2", ("cards.example.com/npu", "A2")),
        ("requests.example.com/npu.shared", None),
        ("requests.example.com/npu.shared.A2", ("requests.example.com/npu.shared", "A2")),
        ("requests.example.com/other.A2", None),
        ("requests.nvidia.com/mig-1g.5gb", None),
        (A_CLASS, None),
        ("count/widgets.example.com", None),
    ],
)
def test_a_configured_base_has_models_and_without_configuration_the_name_is_a_resource(
    name: str, split: tuple[str, str] | None
) -> None:
    assert base_and_model(name, CONFIGURED) == split
    assert base_and_model(name, CATALOG) is None


def test_the_name_of_a_model_is_its_base_and_the_model() -> None:
    """A4 is not A40, and neither is split again."""
    assert model_name("limits.cpu", "A4", CATALOG) == "limits.cpu.A4"
    assert model_name("requests.nvidia.com/gpu", "A100-80G.v2", CATALOG) == "requests.nvidia.com/gpu.A100-80G.v2"
    assert model_name("requests.nvidia.com/mig-1g.5gb", "A100", CATALOG) == "requests.nvidia.com/mig-1g.5gb.A100"
    assert model_name("requests.example.com/npu", "A2", CONFIGURED) == "requests.example.com/npu.A2"


@pytest.mark.parametrize(
    ("base", "model"),
    [
        ("requests.nvidia.com/gpu", "shared"),
        ("cash/limits.nvidia.com/gpu", "shared"),
        ("requests.nvidia.com/gpu", "shared.T4"),
        ("requests.nvidia.com/mig-1g.10gb", "me"),
        ("requests.nvidia.com/mig-1g.10gb", "shared.A100"),
        ("requests.example.com/npu", "shared"),
    ],
)
def test_a_model_that_makes_the_name_of_another_resource_is_rejected(base: str, model: str) -> None:
    """Otherwise a label could charge another resource, or hide in it."""
    with pytest.raises(UnknownResource, match="is another resource's name"):
        model_name(base, model, CONFIGURED)


@pytest.mark.parametrize("model", ["", "-", "A100-", ".A100", "A 100", "A/100", "A" * 64, "\uff21", "A\n"])
def test_a_model_is_a_label_value(model: str) -> None:
    """At most 63 characters, alphanumeric at both ends."""
    with pytest.raises(UnknownResource, match="not a model: write a label value"):
        model_name("limits.cpu", model, CATALOG)


def test_hours_have_their_own_names() -> None:
    """The name of hours converts to the metered name and back."""
    assert names.cash_name("limits.cpu") == "cash/limits.cpu"
    assert names.is_cash("cash/limits.cpu")
    assert not names.is_cash("limits.cpu")
    assert names.metered_resource("cash/limits.cpu") == names.metered_resource("limits.cpu") == "limits.cpu"


def test_a_hard_is_read_by_canonical_name() -> None:
    """Amounts are in nano-units, sorted, from texts and integers."""
    hard = {
        "pods": 5,
        "cpu": "500m",
        "limits.memory": "1Gi",
        "cash/limits.cpu": "10k",
        "requests.nvidia.com/gpu": "2e0",
    }
    assert list(parse_hard(hard, CATALOG).items()) == [
        ("cash/limits.cpu", 10_000 * NANO),
        ("limits.memory", 2**30 * NANO),
        ("pods", 5 * NANO),
        ("requests.cpu", NANO // 2),
        ("requests.nvidia.com/gpu", 2 * NANO),
    ]
    assert parse_hard({}, CATALOG) == {}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("limits.cpu", "-1", "limits.cpu: must be greater than or equal to 0"),
        ("limits.cpu", -1, "limits.cpu: must be greater than or equal to 0"),
        ("limits.cpu", "-1n", "limits.cpu: must be greater than or equal to 0"),
        ("limits.cpu", "lots", "limits.cpu: 'lots' is not a quantity: write a number"),
        ("limits.cpu", "10E", "limits.cpu: '10E' is beyond 9223372036854775807"),
        ("limits.cpu", "1" + "0" * 32, "limits.cpu: has 33 characters: write a quantity of at most 32"),
        ("limits.cpu", 0.5, "limits.cpu: must be a string or an integer"),
        ("limits.cpu", True, "limits.cpu: must be a string or an integer"),
        ("limits.cpu", None, "limits.cpu: must be a string or an integer"),
        ("limits.cpu", ["1"], "limits.cpu: must be a string or an integer"),
        ("pods", "500m", "pods: must be an integer"),
        ("pods", "1n", "pods: must be an integer"),
        ("count/deployments.apps", "1.5", "count/deployments.apps: must be an integer"),
        ("requests.nvidia.com/gpu", "0.5", "requests.nvidia.com/gpu: must be an integer"),
        ("limits.nvidia.com/gpu.A100", "0.5", "limits.nvidia.com/gpu.A100: must be an integer"),
        (A_CLASS, "0.5", f"{A_CLASS}: must be an integer"),
        ("requests.nvidia.com/gpux", "1", "requests.nvidia.com/gpux: unknown resource name: did you mean"),
    ],
)
def test_a_bad_amount_or_name_is_rejected(name: str, value: object, problem: str) -> None:
    """The message has the name, and Kubernetes' own words where it has any."""
    with pytest.raises(InvalidHard) as caught:
        parse_hard({"requests.memory": "1Gi", name: value}, CATALOG)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("name", "value", "units"),
    [
        ("pods", "1000m", 1),
        ("requests.nvidia.com/gpu", "2k", 2000),
        ("cash/requests.nvidia.com/gpu", "0.5", 0.5),
        ("cash/pods", "0.5", 0.5),
        ("cards.nvidia.com/gpu", "0.5", 0.5),
        ("cards.nvidia.com/gpu.A100", "1500m", 1.5),
        ("limits.cpu", 0, 0),
    ],
)
def test_whole_units_have_several_spellings_and_hours_and_cards_may_be_fractions(
    name: str, value: object, units: float
) -> None:
    """1000m pods are one pod; half a card is a fair share of one."""
    assert parse_hard({name: value}, CATALOG) == {name: int(units * NANO)}


def test_all_problems_are_reported_at_once_in_order() -> None:
    """One bad name rejects all of `hard`."""
    with pytest.raises(InvalidHard) as caught:
        parse_hard(
            {"pods": "x", "limits.cpu": "1", "cpu": "1", "requests.cpu": "2", "Limits.cpu": "3", "limits.memory": -1},
            CATALOG,
        )
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [
        "Limits.cpu",
        "limits.memory",
        "pods",
        "requests.cpu",
    ]
    assert str(caught.value) == "; ".join(caught.value.problems)
    assert "requests.cpu: is also given as cpu: write only requests.cpu" in str(caught.value)


def test_256_names_are_allowed_and_no_more() -> None:
    """The count is checked before any name."""
    hard = {f"requests.example.com/r{index}": 1 for index in range(256)}
    assert len(parse_hard(hard, CATALOG)) == 256
    with pytest.raises(InvalidHard, match="has 257 names: at most 256"):
        parse_hard({**hard, "???": 1}, CATALOG)


@pytest.mark.parametrize("hard", [None, [], "limits.cpu", 3, [("limits.cpu", "1")]])
def test_a_hard_is_a_map(hard: object) -> None:
    """Any other type is rejected."""
    with pytest.raises(InvalidHard, match="must be a map"):
        parse_hard(hard, CATALOG)


@pytest.mark.parametrize(
    "many",
    [
        lambda index: f"requests.nvidia.com/{'gpu' * 100}{index}",
        lambda index: f"count/{'deployments.apps' * 20}{index}",
        lambda index: f"requests.{'a.' * 190}{index}",
        lambda index: f"requests.{'a' * 380}-/{index}",
        lambda index: "\ud800" * 399 + chr(index),
        lambda index: "x" * 10**5 + str(index),
        lambda index: index,
    ],
    ids=["devices", "kinds", "dots", "no-vendor", "surrogates", "long", "integers"],
)
def test_256_hostile_names_are_rejected_fast_with_a_short_message(many) -> None:
    """It takes less than a tenth of a second of this thread's CPU, and truncates each name."""
    hard = {many(index): "1" for index in range(256)}
    spent = []
    for _ in range(3):
        before = time.thread_time()
        with pytest.raises(InvalidHard) as caught:
            parse_hard(hard, CATALOG)
        spent.append(time.thread_time() - before)
        assert len(caught.value.problems) == 256
        assert max(map(len, caught.value.problems)) < 400
        assert str(caught.value).isascii()
        assert "\n" not in str(caught.value)
    assert min(spent) < 0.1


_PIECES = """cash/ count/ requests. limits. cards. cpu memory pods nvidia.com/ gpu .shared .A100 mig-1g.5gb
    example.com/ npu hugepages- 2Mi gpu.nvidia.com .deviceclass.resource.k8s.io/devices deployments .apps . / - é"""
pieces = st.sampled_from([*_PIECES.split(), "\n", " "])


@settings(max_examples=400)
@given(st.text(max_size=420) | st.lists(pieces, max_size=8).map("".join))
def test_any_name_is_rejected_or_has_one_canonical_form(name: str) -> None:
    """The canonical form of a canonical name is itself, and no other error is raised."""
    try:
        known = normalize(name, CONFIGURED)
    except UnknownResource:
        return
    assert normalize(known, CONFIGURED) == known


BASES = [
    base
    for scope in ("requests", "limits", "cards", "cash/requests")
    for device in (
        *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.shared"),
        *("example.com/npu", "example.com/npu.shared", "iluvatar.ai/BI-V150.vMem", "iluvatar.ai/BI-V150-vgpu"),
        *("huawei.com/Ascend910B4", "huawei.com/Ascend910B4-1", "cpu", "memory"),
    )
    if is_model_base(base := f"{scope}.{device}", CONFIGURED)
]
MODELS = ["A4", "A40", "shared", "shared.A100", "me", "me.all.x", "1", "vMem", "5gb", "x.y"]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(BASES), st.sampled_from(MODELS)), min_size=2, max_size=40, unique=True))
def test_names_of_models_are_valid_in_hard_and_unique(uses: list[tuple[str, str]]) -> None:
    """No two pairs of base and model have one name, and no pair has the name of a base."""
    emitted = {}
    for base, model in uses:
        try:
            name = model_name(base, model, CONFIGURED)
        except UnknownResource:
            continue
        assert normalize(name, CONFIGURED) == name
        assert not is_model_base(name, CONFIGURED)
        assert emitted.setdefault(name, (base, model)) == (base, model)
