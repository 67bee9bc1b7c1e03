"""The registration: which namespaces its entries select, and which writes their match conditions send."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from bizrq import registration
from bizrq.settings import settings
from bizrq.workloads.demand import counting
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.scope import NAME_LABEL
from bizrq.workloads.validation import Malformed
from sandbox import cel
from tests.support.objects import (
    SELECTOR,
    Object,
    claim,
    claim_template,
    deployment,
    device_class,
    namespace,
    pod_template,
    referring,
)
from tests.webhooks.conftest import changed

GIVEN = {"managedNamespaces": SELECTOR, "exemptNamespaces": ["spared"]}
INSIDE = {"quota": "on", "stage": "a", "owner": "x"}
#: Each misses one expression.
OUTSIDE: tuple[dict[str, str], ...] = (
    {},
    {**INSIDE, "quota": "off"},
    {**INSIDE, "stage": "b"},
    {"quota": "on", "stage": "a"},
    {**INSIDE, "example.com/old": ""},
)
UNSELECTED = {"groups", "corrections", "namespaces"}


def entries(given: Any = None) -> dict[str, Object]:
    """The entries by the first part of their name."""
    made = registration.configuration(settings(given or {}), lambda path: {"url": path}, namespace="here")
    return {each["name"].partition(".")[0]: each for each in made["webhooks"]}


def sends(entry: Object, new: Object | None, old: Object | None, user: str = "ann") -> bool:
    """True where all match conditions of an entry hold for a write."""
    operation = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
    values = {
        "object": new,
        "oldObject": old,
        "request": {"operation": operation, "userInfo": {"username": user, "groups": []}},
    }
    return all(
        cel.compile_expression(each["expression"], tuple(values)).true(values) for each in entry["matchConditions"]
    )


def test_every_entry_but_three_selects_the_managed_namespaces() -> None:
    for given, exempt, managed in (
        ({}, ["here", "kube-system"], []),
        (
            GIVEN,
            ["here", "kube-system", "spared"],
            [{"key": "quota", "operator": "In", "values": ["on"]}, *SELECTOR["matchExpressions"]],
        ),
    ):
        wanted = [{"key": NAME_LABEL, "operator": "NotIn", "values": exempt}, *managed]
        for name, entry in entries(given).items():
            selected = entry.get("namespaceSelector", {}).get("matchExpressions", [])
            assert all(each in selected for each in wanted) is (name not in UNSELECTED), name
            assert bool(selected) is (name not in UNSELECTED), name


@pytest.mark.parametrize("before", [INSIDE, *OUTSIDE], ids=str)
@pytest.mark.parametrize("after", [INSIDE, *OUTSIDE], ids=str)
@pytest.mark.parametrize("groups", list(itertools.product(("", "nlp"), repeat=2)), ids=str)
def test_a_namespace_is_sent_where_it_comes_in_or_leaves_or_its_default_changes_within(
    before: dict[str, str], after: dict[str, str], groups: tuple[str, str]
) -> None:
    old, new = (
        namespace("team", **labels, **({LABEL: group} if group else {}))
        for labels, group in zip((before, after), groups, strict=True)
    )
    was, is_ = before == INSIDE, after == INSIDE
    assert sends(entries(GIVEN)["namespaces"], new, old) is (was != is_ or (is_ and groups[0] != groups[1]))
    assert sends(entries()["namespaces"], new, old) is (groups[0] != groups[1])


@pytest.mark.parametrize(
    ("name", "labels", "is_sent"),
    [
        ("team", {**INSIDE, LABEL: "nlp"}, True),
        ("team", INSIDE, False),
        ("team", {LABEL: "nlp"}, False),
        ("spared", {**INSIDE, LABEL: "nlp"}, False),
        ("kube-system", {**INSIDE, LABEL: "nlp"}, False),
        ("here", {**INSIDE, LABEL: "nlp"}, False),
    ],
)
def test_a_new_namespace_is_sent_where_it_is_managed_and_has_a_default(
    name: str, labels: dict[str, str], is_sent: bool
) -> None:
    assert sends(entries(GIVEN)["namespaces"], namespace(name, **labels), None) is is_sent


def test_a_namespace_without_labels_is_sent_when_it_leaves() -> None:
    old, new = namespace("team", **INSIDE), namespace("team")
    del new["metadata"]["labels"]
    assert sends(entries(GIVEN)["namespaces"], new, old)
    assert not sends(entries(GIVEN)["namespaces"], new, new)


# Pods that ask for devices by annotations.


def of_pod(*path: str, value: str | None = None) -> Object:
    return {"kind": "Pod", **mutated(TEMPLATE, ("metadata", *path), value)} if path else {"kind": "Pod", **TEMPLATE}


@pytest.mark.parametrize(
    ("path", "is_sent"),
    [
        (("annotations", "gpu-fraction"), True),
        (("annotations", "gpu-fraction-times"), True),
        (("annotations", "nvidia.com/use-gputype"), True),
        (("annotations", "hami.io/vgpu-devices-allocated"), False),
        (("annotations", "checksum/config"), False),
        (("labels", "hami.io/webhook"), True),
        (("labels", "app"), False),
    ],
)
def test_a_pod_is_sent_that_comes_to_ask_for_other_devices(path: tuple[str, ...], is_sent: bool) -> None:
    """And not what HAMi notes of what it gave the pod. Of other kinds what counts is in their templates."""
    names = ("workloads-filtered", "defaulted-filtered", "required-filtered", "annotated")
    for before, after in ((of_pod(), of_pod(*path, value="9")), (of_pod(*path, value="9"), of_pod())):
        assert [sends(entries(KNOBS)[name], after, before) for name in names] == [is_sent] * 4
        assert [sends(entries()[name], after, before) for name in names] == [False] * 4
        others = [{**each, "kind": "Deployment"} for each in (after, before)]
        assert not any(sends(entries(KNOBS)[name], *others) for name in names[:3])
    only = {"countsAs": KNOBS["countsAs"]}
    is_fraction = path[1].startswith("gpu-fraction")
    models = entries({"gpuModels": {"A100": {}}})["annotated"]
    assert not sends(models, of_pod(*path, value="9"), of_pod())
    given = {**of_pod(), "spec": {"nodeSelector": {"nvidia.com/gpu.product": "A100"}}}
    assert sends(models, given, {**given, "spec": {"affinity": {}}})
    assert not sends(models, given, given)
    assert not sends(entries()["annotated"], given, of_pod())
    assert sends(entries()["annotated"], of_pod("labels", "biz.group.resource.quota/gpu-type", value="A"), of_pod())
    assert sends(entries(only)["annotated"], of_pod(*path, value="9"), of_pod()) is is_fraction


# Claims.


@pytest.mark.parametrize(
    ("owner", "before", "is_sent", "is_sent_of_kubernetes"),
    [
        ("Pod", None, True, False),
        ("PodGroup", None, True, True),
        ("", None, True, True),
        ("Pod", "", True, False),
        ("PodGroup", "", True, False),
        ("", "Pod", True, True),
        ("Pod", "Pod", False, False),
        ("", "", False, False),
    ],
)
def test_a_claim_is_sent_that_comes_to_be_a_pods_or_is_one_no_more(
    owner: str, before: str | None, is_sent: bool, is_sent_of_kubernetes: bool
) -> None:
    new, old = (
        None if kind is None else changed(claim("c"), lambda o, kind=kind: o["metadata"].update(owners(kind)))
        for kind in (owner, before)
    )
    entry = entries()["claims"]
    assert sends(entry, new, old) is is_sent
    for name in ("system:serviceaccount:kube-system:resource-claim-controller", "system:kube-controller-manager"):
        assert sends(entry, new, old, name) is is_sent_of_kubernetes


def owners(kind: str) -> Object:
    reference = {"apiVersion": "v1", "kind": kind, "name": "p", "uid": "u", "controller": True}
    return {"ownerReferences": [reference]} if kind else {}


# What workloads refer to.

KNOBS: Any = {
    "hami": {"enabled": True},
    "gpuModels": {"A100": {"aliases": ["NVIDIA-A100"], "memoryMiB": 40960}, "T4": {"memoryMiB": 15360}},
    "countsAs": [
        {"annotation": "gpu-fraction", "times": "gpu-fraction-times", "card": "nvidia.com/gpu"},
        {"resource": "volcano.sh/vgpu-number", "card": "nvidia.com/gpu"},
    ],
}
NODES = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["T4", "A100"]}]}
    ]
}
#: Every field of a container and of a PodSpec that may be in a template (kubernetes core/v1 types.go), most of them.
CONTAINER: Object = {
    "name": "c",
    "image": "example.com/a:1",
    "imagePullPolicy": "Always",
    "command": ["run"],
    "args": ["a"],
    "workingDir": "/a",
    "env": [{"name": "A", "value": "b"}],
    "envFrom": [{"configMapRef": {"name": "a"}}],
    "ports": [{"name": "a", "containerPort": 80, "hostPort": 80}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "livenessProbe": {"httpGet": {"path": "/a", "port": 80}, "periodSeconds": 5},
    "readinessProbe": {"tcpSocket": {"port": 80}},
    "startupProbe": {"tcpSocket": {"port": 80}},
    "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": "1"}},
    "securityContext": {"privileged": False, "runAsUser": 5},
    "stdin": False,
    "tty": False,
    "terminationMessagePath": "/a",
}
TEMPLATE: Object = {
    "metadata": {
        "labels": {"app": "x", LABEL + "/cpu-type": "A4", "hami.io/webhook": "a", "example.com/version": "1"},
        "annotations": {
            "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
            "checksum/config": "a",
            "gpu-fraction": "1",
            "gpu-fraction-times": "2",
            "nvidia.com/use-gputype": "A100",
            "nvidia.com/nouse-gputype": "T",
        },
    },
    "spec": {
        "containers": [CONTAINER, {"name": "d", "image": "b", "resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [
            {"name": "i", "image": "c", "resources": {"limits": {"cpu": "5"}}},
            {"name": "j", "image": "d", "resources": {"limits": {"cpu": "4"}}, "restartPolicy": "Always"},
        ],
        "volumes": [{"name": "v", "configMap": {"name": "a"}}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NODES}},
        "nodeSelector": {"disk": "a"},
        "nodeName": "n",
        "overhead": {"cpu": "1"},
        "resources": {"limits": {"memory": "1"}},
        "runtimeClassName": "kata",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "a",
        "hostNetwork": False,
        "hostPID": False,
        "dnsPolicy": "ClusterFirst",
        "priorityClassName": "a",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
        "imagePullSecrets": [{"name": "a"}],
        "enableServiceLinks": True,
        "preemptionPolicy": "Never",
        "resourceClaims": [{"name": "r", "resourceClaimTemplateName": "two"}],
    },
}
#: Where a change keeps what counting reads: what a rollout changes every day.
FREE = [
    "spec.containers.0.image",
    "spec.containers.0.command.0",
    "spec.containers.0.args.0",
    "spec.containers.0.env.0.value",
    "spec.containers.0.envFrom",
    "spec.containers.0.livenessProbe",
    "spec.containers.0.readinessProbe",
    "spec.containers.0.lifecycle",
    "spec.containers.0.volumeMounts",
    "spec.containers.0.ports",
    "spec.initContainers.0.image",
    "spec.volumes",
    "spec.serviceAccountName",
    "spec.imagePullSecrets",
    "spec.terminationGracePeriodSeconds",
    "spec.topologySpreadConstraints",
    "spec.priorityClassName",
    "spec.dnsPolicy",
    "metadata.annotations.kubectl.kubernetes.io/restartedAt",
    "metadata.annotations.checksum/config",
    "metadata.labels.example.com/version",
]


def bare(**spec: Any) -> Object:
    """A template whose model and overhead follow from these fields of its spec alone."""
    containers = [{"name": "c", "image": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers, **spec}}


#: Each has what another one hides.
TEMPLATES = {
    "full": TEMPLATE,
    "runtime class": bare(runtimeClassName="kata"),
    "node selector": bare(nodeSelector={"nvidia.com/gpu.product": "A100"}),
    "affinity": bare(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["T4"]}]}
                    ]
                }
            }
        }
    ),
    "pod group": bare(
        schedulingGroup={"podGroupName": "g"},
        resourceClaims=[{"name": "r", "resourceClaimTemplateName": "two"}],
    ),
}


def mutations(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each place in a value below the root with another value of its type, and with None for its removal."""
    if path:
        yield path, None
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from mutations(inner, (*path, key))
    elif isinstance(value, list):
        yield path, [*value, *([value[0]] if value else [])]
        for index, inner in enumerate(value):
            yield from mutations(inner, (*path, index))
    elif isinstance(value, bool):
        yield path, not value
    else:
        yield path, value + 1 if isinstance(value, int) else f"{value}1"


def mutated(template: Object, path: tuple[Any, ...], value: Any) -> Object:
    made = copy.deepcopy(template)
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


MUTATIONS = list(mutations(TEMPLATE))
SHARED = {
    "apiVersion": "scheduling.k8s.io/v1alpha2",
    "kind": "PodGroup",
    "metadata": {"name": "g", "namespace": "default"},
    "spec": {"resourceClaims": [{"name": "r", "resourceClaimTemplateName": "two"}]},
}


def shaped(template: Object, kind: str = "Deployment") -> Object:
    if kind == "PodTemplate":
        return {**pod_template("shape"), "template": template}
    made = deployment("shape", None, 2)
    return {**made, "kind": kind, "spec": {**made["spec"], "template": template}}


def counted(template: Object) -> object:
    """What a Rollout that refers to a Deployment with this template asks for, or why that cannot be counted."""
    made = settings(KNOBS)
    web = referring("web", "nlp", shaped(template), 2)
    overhead = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}}
    others = (
        SHARED,
        device_class("gpu"),
        claim_template("two", 2),
        {**overhead, "overhead": {"podFixed": {"cpu": "3"}}},
    )
    adapter = made.registry.of(web)
    assert adapter is not None
    try:
        return counting.own_demand(web, adapter, DocumentLookup([shaped(template), *others]), made.counting)
    except Malformed as error:
        return str(error)


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_change_of_a_template_that_counting_sees_is_sent(name: str) -> None:
    """Every field of it is changed and removed in turn."""
    template = TEMPLATES[name]
    before, seen = counted(template), set[tuple[bool, bool]]()
    assert not isinstance(before, str), before
    entry = entries(KNOBS)["references"]
    [condition] = entry["matchConditions"]
    program = cel.compile_expression(condition["expression"], ("object", "oldObject", "request"))
    for path, value in mutations(template):
        after = mutated(template, path, value)
        for new, old in ((after, template), (template, after)):
            values = {"object": shaped(new), "oldObject": shaped(old), "request": {"operation": "UPDATE"}}
            is_sent = program.true(values)
            assert is_sent or counted(after) == before, (path, value)
            seen.add((is_sent, counted(after) != before))
    assert seen >= {(True, True), (False, False)}


@pytest.mark.parametrize("path", FREE)
@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "PodTemplate"])
def test_a_new_image_and_whatever_else_costs_nothing_is_not_sent(path: str, kind: str) -> None:
    changes = [(at, value) for at, value in MUTATIONS if ".".join(map(str, at)) == path]
    assert len(changes) >= 1
    for given in ({}, KNOBS):
        for at, value in changes:
            new, old = shaped(mutated(TEMPLATE, at, value), kind), shaped(TEMPLATE, kind)
            assert not sends(entries(given)["references"], new, old)
            assert not sends(entries(given)["references"], old, new)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "PodTemplate"])
def test_a_larger_template_is_sent_of_each_kind(kind: str) -> None:
    for path in (("spec", "containers", 1, "resources", "limits", "cpu"), ("spec", "initContainers")):
        value = None if path[-1] == "initContainers" else "9"
        assert sends(entries()["references"], shaped(mutated(TEMPLATE, path, value), kind), shaped(TEMPLATE, kind))


def test_annotations_are_compared_where_the_configuration_counts_them() -> None:
    new = shaped(mutated(TEMPLATE, ("metadata", "annotations", "gpu-fraction"), "9"))
    assert sends(entries(KNOBS)["references"], new, shaped(TEMPLATE))
    assert not sends(entries()["references"], new, shaped(TEMPLATE))
