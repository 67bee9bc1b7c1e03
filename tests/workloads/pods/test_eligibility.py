"""On which nodes a DaemonSet's pods run; the rows follow Kubernetes' own tests of its controller.

Sources: kubernetes pkg/controller/daemon/daemon_controller_test.go, TestNodeShouldRunDaemonPod;
component-helpers scheduling/corev1/nodeaffinity/nodeaffinity_test.go.
"""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.workloads.pods.eligibility import eligible_nodes, placement
from bizrq.workloads.validation import Malformed

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node(name: str = "n1", *taints: str, **labels: str) -> dict[str, Any]:
    """A node; a taint is `key=value:Effect`."""
    found = []
    for taint in taints:
        pair, _, effect = taint.rpartition(":")
        key, _, value = pair.partition("=")
        found.append({"key": key, "effect": effect, **({"value": value} if value else {})})
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": found}}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def fields(operator: str, *values: str, key: str = "metadata.name") -> dict[str, Any]:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}


def tolerating(**toleration: str) -> dict[str, Any]:
    return {"tolerations": [toleration]}


ROWS = [
    ("any node", {}, node(), True),
    ("the node that it names", {"nodeName": "n1"}, node(), True),
    ("no other than the node that it names", {"nodeName": "n2"}, node(), False),
    ("a node with its labels", {"nodeSelector": {"disk": "ssd"}}, node(disk="ssd", zone="a"), True),
    ("no node with another value", {"nodeSelector": {"disk": "ssd"}}, node(disk="hdd"), False),
    ("no node that lacks one of its labels", {"nodeSelector": {"disk": "ssd", "zone": "a"}}, node(disk="ssd"), False),
    ("any node for an empty selector", {"nodeSelector": {}}, node(), True),
    ("a node that a term names", affinity(labels("zone", "In", "a", "b")), node(zone="b"), True),
    ("no node of another zone", affinity(labels("zone", "In", "a", "b")), node(zone="c"), False),
    ("no node without a zone", affinity(labels("zone", "In", "a")), node(), False),
    ("a node that lacks the label of a NotIn", affinity(labels("zone", "NotIn", "a")), node(), True),
    ("no node of a NotIn", affinity(labels("zone", "NotIn", "a")), node(zone="a"), False),
    ("a node that has a label", affinity(labels("zone", "Exists")), node(zone=""), True),
    ("no node that lacks it", affinity(labels("zone", "Exists")), node(), False),
    ("a node that lacks a label", affinity(labels("zone", "DoesNotExist")), node(), True),
    ("no node that has it", affinity(labels("zone", "DoesNotExist")), node(zone="a"), False),
    ("a node above a number", affinity(labels("cards", "Gt", "3")), node(cards="4"), True),
    ("no node at a number", affinity(labels("cards", "Gt", "3")), node(cards="3"), False),
    ("a node below a number", affinity(labels("cards", "Lt", "3")), node(cards="2"), True),
    ("no node for a bound that no label can have", affinity(labels("cards", "Gt", "-3")), node(cards="2"), False),
    ("no node whose label is no number", affinity(labels("cards", "Gt", "3")), node(cards="4a"), False),
    ("no node for a bound that is no number", affinity(labels("cards", "Gt", "x")), node(cards="4"), False),
    ("no node for a number of more than 64 bits", affinity(labels("c", "Lt", str(2**63))), node(c="1"), False),
    ("no node for two bounds", affinity(labels("cards", "Gt", "3", "4")), node(cards="9"), False),
    ("no node for In without a value", affinity(labels("zone", "In")), node(zone="a"), False),
    ("no node for Exists with a value", affinity(labels("zone", "Exists", "a")), node(zone="a"), False),
    ("no node for an operator that is none", affinity(labels("zone", "Is", "a")), node(zone="a"), False),
    ("no node for a term with a value that no label can have",
     affinity(labels("zone", "NotIn", "a b")), node(zone="c"), False),
    ("a node of any term", affinity(labels("zone", "In", "a"), labels("disk", "Exists")), node(disk="x"), True),
    ("a node of a term beside one that cannot be read",
     affinity(labels("zone", "Is", "a"), labels("zone", "In", "a")), node(zone="a"), True),
    ("no node for no term", affinity(), node(), False),
    ("no node for an empty term", affinity({}), node(), False),
    ("a node of a term beside an empty one", affinity({}, labels("zone", "Exists")), node(zone="a"), True),
    ("all rules of a term", affinity({**labels("zone", "In", "a"), **fields("In", "n1")}), node(zone="a"), True),
    ("not one rule of a term", affinity({**labels("zone", "In", "a"), **fields("In", "n2")}), node(zone="a"), False),
    ("a node by its name", affinity(fields("In", "n1")), node(), True),
    ("no node of another name", affinity(fields("In", "n2")), node(), False),
    ("a node that is not named", affinity(fields("NotIn", "n2")), node(), True),
    ("no node that is named not to be", affinity(fields("NotIn", "n1")), node(), False),
    ("no node for two names", affinity(fields("In", "n1", "n2")), node(), False),
    ("no node for another operator on fields", affinity(fields("Exists")), node(), False),
    ("no node for a field that nodes do not have", affinity(fields("In", "n1", key="metadata.uid")), node(), False),
    ("selector and affinity both", {"nodeSelector": {"disk": "ssd"}, **affinity(labels("zone", "In", "a"))},
     node(disk="ssd", zone="b"), False),
    ("what it prefers decides nothing",
     {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
         {"weight": 1, "preference": labels("zone", "In", "a")}]}}}, node(), True),
    ("pods that it avoids decide nothing", {"affinity": {"podAntiAffinity": {}}}, node(), True),
    ("no tainted node", {}, node("n1", "gpu=yes:NoSchedule"), False),
    ("no node that ends pods", {}, node("n1", "gpu=yes:NoExecute"), False),
    ("a node that pods had better avoid", {}, node("n1", "gpu=yes:PreferNoSchedule"), True),
    ("a node whose taint it tolerates", tolerating(key="gpu", value="yes", effect="NoSchedule"),
     node("n1", "gpu=yes:NoSchedule"), True),
    ("no node of another value", tolerating(key="gpu", value="no"), node("n1", "gpu=yes:NoSchedule"), False),
    ("a node of any value", tolerating(key="gpu", operator="Exists"), node("n1", "gpu=yes:NoSchedule"), True),
    ("a node of any taint", tolerating(operator="Exists"), node("n1", "a=b:NoSchedule", "c=d:NoExecute"), True),
    ("no node of another effect", tolerating(operator="Exists", effect="NoSchedule"),
     node("n1", "gpu=yes:NoExecute"), False),
    ("no node with one more taint", tolerating(key="gpu", operator="Exists"),
     node("n1", "gpu=yes:NoSchedule", "old=x:NoSchedule"), False),
    ("a taint without a value", tolerating(key="gpu"), node("n1", "gpu:NoSchedule"), True),
    ("no operator that is none", tolerating(key="gpu", operator="Is"), node("n1", "gpu:NoSchedule"), False),
    ("a taint above a number", tolerating(key="sla", operator="Gt", value="7"), node("n1", "sla=9:NoExecute"), True),
    ("no taint at a number", tolerating(key="sla", operator="Gt", value="7"), node("n1", "sla=7:NoExecute"), False),
    ("a taint below a number", tolerating(key="sla", operator="Lt", value="9"), node("n1", "sla=7:NoExecute"), True),
    ("no taint that is no number", tolerating(key="sla", operator="Lt", value="9"), node("n1", "sla=x:NoExecute"), 0),
    *((f"a node that is {state}", {}, node("n1", f"node.kubernetes.io/{state}:{effect}"), True)
      for state, effect in (("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
                            ("unschedulable", "NoSchedule"), ("network-unavailable", "NoSchedule"),
                            ("out-of-service", "NoExecute"))),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "on", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_pod_of_a_daemonset_runs_on(spec: dict[str, Any], on: dict[str, Any], expected: bool) -> None:
    assert len(eligible_nodes(spec, "spec", [on])) == expected


def test_nodes_are_counted_one_by_one() -> None:
    nodes = [node("a", disk="ssd"), node("b"), node("c", disk="ssd"), node("d", "x=y:NoSchedule", disk="ssd")]
    assert len(eligible_nodes({"nodeSelector": {"disk": "ssd"}}, "spec", nodes)) == 2
    assert eligible_nodes({}, "spec", []) == []


def test_nodes_that_differ_in_what_the_template_looks_at_are_told_apart() -> None:
    """Others are not compared again."""
    nodes = [node(f"n{n}", *(["x=y:NoSchedule"] if n % 3 == 0 else []), disk="ab"[n % 2]) for n in range(12)]
    of_disk = labels("disk", "In", "a", "z")
    assert eligible_nodes(affinity(of_disk), "spec", nodes) == ["n2", "n4", "n8", "n10"]
    by_name = {**of_disk, **fields("In", "n4")}
    assert eligible_nodes(affinity(by_name), "spec", nodes) == ["n4"]
    tolerant = {**affinity(of_disk), "tolerations": [{"key": "x", "operator": "Exists"}]}
    assert len(eligible_nodes(tolerant, "spec", nodes)) == 6


LARGE = [
    ("of many terms", affinity(*[labels("a", "Exists")] * 5_001)),
    ("of many values", affinity(labels("a", "In", *(f"v{n}" for n in range(5_001))))),
    ("of many tolerations", {**affinity(labels("a", "Exists")), "tolerations": [{"key": "x"}] * 5_001}),
    ("of many labels", affinity(*(labels(f"a{n}", "Exists") for n in range(200)))),
    ("of many names", affinity(*(fields("In", "none") for n in range(200)))),
]


@pytest.mark.parametrize("spec", [row[1] for row in LARGE], ids=[row[0] for row in LARGE])
def test_a_template_that_takes_too_long_to_compare_runs_on_all_nodes(spec: dict[str, Any]) -> None:
    assert len(eligible_nodes(spec, "spec", [node(f"n{n}") for n in range(600)])) == 600


def test_what_else_a_pod_says_does_not_place_it() -> None:
    assert placement({"nodeSelector": {"a": "b"}, "hostNetwork": True}, "") == placement(
        {"nodeSelector": {"a": "b"}}, ""
    )
    assert placement({"nodeSelector": {"a": "b"}}, "") != placement({}, "")
    assert placement(affinity(), "") != placement({}, "")


MALFORMED = [
    ({"nodeSelector": ["x"]}, "spec.nodeSelector"),
    ({"affinity": "x"}, "spec.affinity"),
    ({"affinity": {"nodeAffinity": []}}, "spec.affinity.nodeAffinity"),
    (affinity("x"), f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]"),  # type: ignore[arg-type]
    (affinity({"matchFields": {}}), f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchFields"),
    (affinity({"matchExpressions": [{"key": "a", "operator": "In", "values": 4}]}),
     f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values"),
    ({"tolerations": [7]}, "spec.tolerations[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "path"), MALFORMED, ids=[path for _, path in MALFORMED])
def test_what_is_of_another_form_is_refused(spec: dict[str, Any], path: str) -> None:
    """With its place: files are not read by an API server first."""
    with pytest.raises(Malformed) as error:
        eligible_nodes(spec, "spec", [node()])
    assert str(error.value).startswith(f"{path}: ")
