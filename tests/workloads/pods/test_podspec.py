"""The cost of one pod: Kubernetes' own arithmetic, applied to templates."""

from __future__ import annotations

import pytest

from tests.support.workload_language import cost, costs, count, deployment, refusal, rollout, template, workload

SUMS = [
    ("a container costs what it requests", "cpu=1 mem=1Gi", "cpu=1 mem=1Gi"),
    ("a limit without a request is the request too", "cpu=/2", "cpu=2 limits.cpu=2"),
    ("a request keeps its own value beside a limit", "cpu=1/2", "cpu=1 limits.cpu=2"),
    ("containers add up", "cpu=1 | cpu=2/3", "cpu=3 limits.cpu=3"),
    ("an init step counts where it needs more", "init cpu=5 mem=1Gi | cpu=2 mem=3Gi", "cpu=5 mem=3Gi"),
    ("init steps do not add up", "init cpu=3 | init cpu=4 | cpu=1", "cpu=4"),
    ("a sidecar runs beside the containers", "sidecar cpu=1 | cpu=2", "cpu=3"),
    ("a sidecar before an init step runs beside it", "sidecar cpu=1 | init cpu=3 | cpu=2", "cpu=4"),
    ("a sidecar after an init step does not", "init cpu=3 | sidecar cpu=1 | cpu=2", "cpu=3"),
    ("sidecars on both sides", "sidecar cpu=1 | init cpu=4 | sidecar cpu=2 | cpu=1", "cpu=5"),
    ("a pod's own request replaces the sum", "pod: cpu=6 | cpu=1 | cpu=1", "cpu=6"),
    ("a pod's own limit defaults to its request", "pod: mem=/8Gi | cpu=1", "cpu=1 mem=8Gi limits.memory=8Gi"),
    ("unless containers request it", "pod: cpu=/4 | cpu=1 | cpu=500m", "cpu=1500m limits.cpu=4"),
    ("every amount is rounded up to milli", "cpu=100u | cpu=1n", "cpu=2m"),
    ("memory has fractions too", "mem=1500m", "mem=1500m"),
    ("devices need only a limit", "gpu=/2", "gpu=2 limits.nvidia.com/gpu=2"),
    ("whole devices may be written in milli", "gpu=/2000m", "gpu=2 limits.nvidia.com/gpu=2"),
    ("huge pages", "hugepages-2Mi=/512Mi", "requests.hugepages-2Mi=512Mi limits.hugepages-2Mi=512Mi"),
    ("disk", "disk=1Gi/2Gi", "disk=1Gi limits.ephemeral-storage=2Gi"),
    ("no name is derived from another", "nvidia.com/mig-1g.5gb=/2",
     "requests.nvidia.com/mig-1g.5gb=2 limits.nvidia.com/mig-1g.5gb=2"),
    ("nothing asked costs a pod", "", ""),
    ("zero is nothing", "cpu=0/0", ""),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in SUMS], ids=[row[0] for row in SUMS])
def test_a_pod_costs(pod, expected):
    assert costs(count(rollout(1, pod)), f"{expected} pods=1")


@pytest.mark.parametrize("pod", [row[1] for row in SUMS], ids=[row[0] for row in SUMS])
def test_three_pods_cost_three_times_one(pod):
    one, three = count(deployment(1, pod)), count(deployment(3, pod))
    assert three.resources == {n: a * (1 if n.startswith("count/") else 3) for n, a in one.resources.items()}
    assert three.roles[0].per_pod == one.roles[0].per_pod


NUMBERS = [(2, "cpu=2"), (0.5, "cpu=500m"), ("1e-1", "cpu=100m"), ("0.1", "cpu=100m"), ("1k", "cpu=1000")]


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_quantities_of_custom_resources_come_as_they_were_written(value, expected):
    obj = rollout(1, "")
    obj["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": value}}
    assert costs(count(obj), f"{expected} pods=1")


def test_overhead_of_the_template_adds_to_requests_and_to_stated_limits():
    pod = template("cpu=1/2 mem=1Gi", overhead={"cpu": "250m", "memory": "64Mi"})
    assert costs(count(rollout(2, pod)), "cpu=2500m limits.cpu=4500m mem=2176Mi pods=2")


def test_overhead_is_that_of_the_runtime_class_where_the_template_has_none():
    kata = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "kata"},
        "overhead": {"podFixed": {"cpu": "250m"}},
    }
    pod = template("cpu=1", runtimeClassName="kata")
    assert costs(count(rollout(1, pod), kata), "cpu=1250m pods=1")
    assert costs(count(rollout(1, pod)), "cpu=1 pods=1")


def limit_range(namespace: str = "team-a", **item) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "lr", "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **item}]},
    }


RANGES = [
    ("a default limit is a default request", "", {"default": {"cpu": "2"}}, "cpu=2 limits.cpu=2"),
    ("a default request of its own", "", {"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}},
     "cpu=1 limits.cpu=2"),
    ("what a container states stays", "cpu=/4", {"default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}},
     "cpu=4 limits.cpu=4"),
    ("the largest allowed is the default limit", "", {"max": {"cpu": "3"}}, "cpu=3 limits.cpu=3"),
    ("the smallest allowed is the default request", "", {"min": {"cpu": "100m"}}, "cpu=100m"),
    ("other types say nothing", "", {"type": "Pod", "default": {"cpu": "2"}}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "item", "expected"), [r[1:] for r in RANGES], ids=[r[0] for r in RANGES])
def test_limit_ranges_of_the_namespace_fill_in(pod, item, expected):
    assert costs(count(rollout(1, pod), limit_range(**item)), f"{expected} pods=1")
    assert costs(count(rollout(1, ""), limit_range("team-b", **item)), "pods=1")


UNSTATED = [
    ("nothing stated", "", {"requests.cpu", "limits.cpu", "requests.memory", "limits.memory"}),
    ("a limit states the request", "cpu=/1 mem=/1Gi", set()),
    ("requests state no limits", "cpu=1 mem=1Gi", {"limits.cpu", "limits.memory"}),
    ("zero is stated", "cpu=0/0 mem=0/0", set()),
    ("the pod states it for all", "pod: cpu=/4 mem=/1Gi | |", set()),
    ("the pod states some of it", "pod: cpu=1 |", {"limits.cpu", "requests.memory", "limits.memory"}),
]


@pytest.mark.parametrize(("pod", "expected"), [r[1:] for r in UNSTATED], ids=[r[0] for r in UNSTATED])
def test_what_containers_do_not_state_is_told(pod, expected):
    assert set(count(deployment(1, pod)).missing) == expected


def test_every_container_that_does_not_state_it_is_named():
    demand = count(deployment(1, "init mem=1Gi | cpu=1 | sidecar | mem=1"))
    assert demand.missing["requests.cpu"] == ("c3", "c0", "c2")
    assert demand.missing["requests.memory"] == ("c1", "c2")


def test_no_pods_leave_nothing_unstated():
    assert count(deployment(0, "")).missing == {}


def test_a_default_of_the_namespace_is_stated():
    demand = count(deployment(1, ""), limit_range(default={"cpu": "1", "memory": "1Gi"}))
    assert demand.missing == {}


REFUSED = [
    ("half a device", "gpu=/500m", "resources.limits.nvidia.com/gpu: must be a whole number"),
    ("a device without a limit", "gpu=1", "resources.requests.nvidia.com/gpu: needs an equal limit"),
    ("a device with another limit", "gpu=1/4", "requests.nvidia.com/gpu: is 1, but the limit is 4"),
    ("huge pages with another limit", "hugepages-2Mi=2Mi/4Mi", "is 2Mi, but the limit is 4Mi"),
    ("negative cpu", "cpu=-1", "resources.requests.cpu: must not be negative, but is '-1'"),
    ("a negative device that lowers the sum", "gpu=/8 | gpu=/-8", "containers[1].resources.limits.nvidia.com/gpu"),
    ("a device of the whole pod", "pod: gpu=/1 |", "spec.template.spec.resources.limits.nvidia.com/gpu: a pod"),
    (
        "huge pages of the whole pod",
        "pod: hugepages-2Mi=2Mi/4Mi |",
        "hugepages-2Mi: must be equal to the limit",
    ),
    ("disk of the whole pod", "pod: disk=1Gi |", "a pod as a whole can state cpu, memory and hugepages only"),
    ("a name without a domain", "gpus=/1", "no container can ask for this"),
    ("a slip of the pen", "cpus=/1", "did you mean cpu?"),
    ("a name of a quota", "requests.nvidia.com/gpu=/1", "no container can ask for this"),
    ("no quantity", "cpu=abc", "resources.requests.cpu: 'abc'"),
    ("a huge quantity", "cpu=1e30", "beyond 9223372036854775807"),
]


@pytest.mark.parametrize(("pod", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_pod_is_refused_for(pod, words):
    assert words in refusal(rollout(1, pod))


def test_a_role_tells_what_one_more_pod_costs():
    [role] = count(deployment(3, "cpu=/2 gpu=/1", cpu="A4")).roles
    assert (role.name, role.replicas) == ("main", 3)
    assert role.per_pod == cost(
        "cpu=2 limits.cpu=2 gpu=1 limits.nvidia.com/gpu=1 pods=1 requests.cpu.A4=2 limits.cpu.A4=2"
    )


def running(spec_cpu: str, has: str = "", allocated: str = "", reason: str = "") -> dict:
    status: dict = {"phase": "Running", "containerStatuses": [{"name": "c0"}]}
    if has:
        status["containerStatuses"][0]["resources"] = {"requests": {"cpu": has}}
    if allocated:
        status["containerStatuses"][0]["allocatedResources"] = {"cpu": allocated}
    if reason:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return {**workload("v1", "Pod", template(f"cpu={spec_cpu}")["spec"]), "status": status}


def running_as_a_whole(spec_cpu: str, has: str, allocated: str, reason: str = "") -> dict:
    """The pod as a whole states its cpu, and its status shows what it has of that."""
    of_container = running(spec_cpu, "1", "1", reason)
    of_container["spec"]["resources"] = {"requests": {"cpu": spec_cpu}}
    of_container["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    of_container["status"] |= {"resources": {"requests": {"cpu": has, "memory": "1Gi"}}}
    of_container["status"] |= {"allocatedResources": {"cpu": allocated}}
    return of_container


RESIZED = [
    ("growing as a whole", running_as_a_whole("4", has="2", allocated="2"), "cpu=4"),
    ("shrinking as a whole", running_as_a_whole("2", has="4", allocated="2"), "cpu=4"),
    ("promised more as a whole", running_as_a_whole("2", has="2", allocated="3"), "cpu=3"),
    ("asking as a whole for what is infeasible", running_as_a_whole("64", "4", "4", "Infeasible"), "cpu=4"),
    ("nothing told", running("2"), "cpu=2"),
    ("growing", running("4", has="2", allocated="2"), "cpu=4"),
    ("shrinking", running("2", has="4", allocated="2"), "cpu=4"),
    ("promised more than it has yet", running("2", has="2", allocated="3"), "cpu=3"),
    ("asking for what the node cannot give", running("64", has="4", allocated="4", reason="Infeasible"), "cpu=4"),
    ("asking for what it may get later", running("64", has="4", allocated="4", reason="Deferred"), "cpu=64"),
]


def test_what_was_infeasible_says_nothing_of_a_later_resize():
    pod = running("64", has="4", allocated="4", reason="Infeasible")
    [condition] = pod["status"]["conditions"]
    for generation, observed, expected in ((3, 3, "cpu=4"), (3, 2, "cpu=64"), (3, None, "cpu=64")):
        pod["metadata"]["generation"] = generation
        condition["observedGeneration"] = observed
        assert costs(count(pod), f"{expected} pods=1")


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in RESIZED], ids=[row[0] for row in RESIZED])
def test_a_pod_that_was_resized_costs_the_most_that_it_may_hold(pod, expected):
    assert costs(count(pod), f"{expected} pods=1")
