"""Who pays for an object, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.builtin import builtin_registry
from bizrq.units.times import format_timestamp
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import DocumentLookup
from bizrq.workloads.ownership.memory import Memory
from bizrq.workloads.ownership.payers import ENDS, LATE, Paid, PayerReason, keeps, paid_by
from bizrq.workloads.selectors import selects

NOW = 1_700_000_000_000
APPS, BATCH = "apps/v1", "batch/v1"
VERSIONS = {
    "Deployment": APPS,
    "ReplicaSet": APPS,
    "StatefulSet": APPS,
    "Job": BATCH,
    "CronJob": BATCH,
    "Pod": "v1",
    "ReplicationController": "v1",
    "SparkApplication": "sparkoperator.k8s.io/v1beta2",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
GROUPS = {"nlp", "vision", "speech"}


def made(words: str, above=None):
    """`ReplicaSet web-1 uid=r label=nlp app=web selects=app=web below=Deployment/web/d`: an object of team-a."""
    kind, name, *rest = words.split()
    told = dict(word.split("=", 1) for word in rest)
    metadata = {"name": name, "namespace": "team-a", "uid": told.get("uid", name), "labels": {}}
    metadata["creationTimestamp"] = format_timestamp(NOW)
    if "app" in told:
        metadata["labels"]["app"] = told["app"]
    if "label" in told:
        metadata["labels"][LABEL] = told["label"]
    if "below" in told:
        owner_kind, owner, uid = told["below"].split("/")
        reference = {"apiVersion": VERSIONS[owner_kind], "kind": owner_kind, "name": owner, "uid": uid}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    spec = {}
    if "selects" in told:
        key, value = told["selects"].split("=")
        spec["selector"] = {"matchLabels": {key: value}}
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": spec}


def namespace(group=None):
    labels = {LABEL: group} if group else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": labels}}


WEB = "Deployment web uid=d label=nlp selects=app=web"
SET = "ReplicaSet web-1 uid=r app=web selects=app=web below=Deployment/web/d"
POD = "Pod web-1-x uid=p app=web below=ReplicaSet/web-1/r"
BELOW = "Pod more uid=m below=Pod/web-1-x/p"
SPARK, DRIVER = "SparkApplication pi uid=s label=nlp", "Pod driver uid=v below=SparkApplication/pi/s"
LEADERS, LEADER = "StatefulSet lws uid=l below=LeaderWorkerSet/lws/w", "Pod lws-0 uid=q below=StatefulSet/lws/l"
WORKERS = "StatefulSet lws-0 uid=t below=Pod/lws-0/q"
OF_LWS = Memory("nlp", "LeaderWorkerSet/team-a/lws", NOW - 5, NOW)
RC = "ReplicationController rc uid=c label=nlp selects=app=web"
DROPPED = "Pod rc-x uid=p app=old below=ReplicationController/rc/c"
GONE = Memory("nlp", "Deployment/team-a/web", NOW - 5, NOW)
LEFT = {"d": GONE, "r": GONE}
STANDS = replace(GONE, gone=None)
#: Gone so long ago that the objects of the table are none that it made.
LONG_GONE = replace(GONE, gone=NOW - LATE - 1)

#: subject, existing objects, the object, what is remembered, the namespace's default, who pays
ROWS = [
    ("the Deployment pays for its pods", [WEB, SET], POD, {}, None, ("nlp", PayerReason.OWNER, "d")),
    ("a pod's own label decides nothing", [WEB, SET], f"{POD} label=vision", {}, None, ("nlp", PayerReason.OWNER, "d")),
    ("nor does one that names no group", [WEB, SET], f"{POD} label=nosuch", {}, None, ("nlp", PayerReason.OWNER, "d")),
    ("nor does a ReplicaSet's", [WEB, SET.replace("uid=r", "uid=r label=vision")], POD, {}, None,
     ("nlp", PayerReason.OWNER, "d")),
    ("a ReplicaSet below a Deployment that names no group",
     ["Deployment web uid=d selects=app=web", SET.replace("uid=r", "uid=r label=nlp")], POD, {}, None,
     ("nlp", PayerReason.OWNER, "r")),
    ("what names the uid of one that is gone, and another name, is not its",
     [], "ReplicaSet mine uid=m label=vision below=Deployment/ghost/d", LEFT, None, ("vision", PayerReason.LABEL, "m")),
    ("an owner with another uid is none", [WEB, SET.replace("uid=r", "uid=other")], f"{POD} label=vision", {}, None,
     ("vision", PayerReason.LABEL, "p")),
    ("an owner that would not keep it is none", [WEB, SET], "Pod web-1-x uid=p app=no below=ReplicaSet/web-1/r", {},
     "speech", ("speech", PayerReason.NAMESPACE, "p")),
    ("a selector that may have been another one", [RC], DROPPED, {}, "speech", ("nlp", PayerReason.LEFTOVER, "p")),
    ("what names another group below it", [RC], f"{DROPPED} label=vision", {}, None,
     ("vision", PayerReason.LABEL, "p")),
    ("such an owner of no group", ["ReplicationController rc uid=c selects=app=web"], DROPPED, {}, None, None),
    ("such an owner of the namespace's", ["ReplicationController rc uid=c selects=app=web"], DROPPED, {}, "nlp",
     ("nlp", PayerReason.LEFTOVER, "p")),
    ("a Deployment pays for nothing below its pods", [WEB, SET, POD], BELOW, {}, None, None),
    ("what names a group there pays for itself", [WEB, SET, POD], f"{BELOW} label=vision", {}, None,
     ("vision", PayerReason.LABEL, "m")),
    ("a driver's executors", [SPARK, DRIVER], "Pod executor uid=e below=Pod/driver/v", {}, None,
     ("nlp", PayerReason.OWNER, "s")),
    ("the workers of a leader", ["LeaderWorkerSet lws uid=w label=nlp", LEADERS, LEADER], WORKERS, {}, None,
     ("nlp", PayerReason.OWNER, "w")),
    ("those that are left are left by themselves", [LEADERS, LEADER], WORKERS,
     {"w": OF_LWS, "l": OF_LWS, "q": OF_LWS, "t": OF_LWS}, None, ("nlp", PayerReason.LEFTOVER, "l")),
    ("the same where the leader alone is left", [LEADER.partition(" below=")[0]], WORKERS, {"q": OF_LWS, "t": OF_LWS},
     None, ("nlp", PayerReason.LEFTOVER, "t")),
    ("what is made below a pod that is left is not", ["Pod web-1-x uid=p app=web"], BELOW,
     {"p": replace(GONE, gone=NOW - 1000)}, None, None),
    ("a workload pays for itself", [], WEB, {}, None, ("nlp", PayerReason.LABEL, "d")),
    ("a workload without a label: its namespace", [], "Deployment web uid=d", {}, "nlp",
     ("nlp", PayerReason.NAMESPACE, "d")),
    ("pods below it too", ["Deployment web uid=d selects=app=web", SET], POD, {}, "nlp",
     ("nlp", PayerReason.OWNER, "d")),
    ("nobody", [], "Pod x uid=p", {}, None, None),
    ("a label that names no group", [], "Pod x uid=p label=nosuch", {}, None, None),
    ("then the namespace", [], "Pod x uid=p label=nosuch", {}, "nlp", ("nlp", PayerReason.NAMESPACE, "p")),
    ("its Deployment and ReplicaSet are gone", [], POD, LEFT, None, ("nlp", PayerReason.LEFTOVER, "p")),
    ("its ReplicaSet is left", [SET], POD, LEFT, None, ("nlp", PayerReason.LEFTOVER, "r")),
    ("the ReplicaSet that is left itself", [], SET, LEFT, None, ("nlp", PayerReason.LEFTOVER, "r")),
    ("a label on what is left decides nothing", [], f"{POD} label=vision", LEFT, "speech",
     ("nlp", PayerReason.LEFTOVER, "p")),
    ("let go, and nobody has recorded that", [WEB], SET.partition(" below=")[0], {"d": STANDS, "r": STANDS}, None,
     ("nlp", PayerReason.LEFTOVER, "r")),
    ("let go by a change of its labels, and nobody has recorded that", [WEB],
     SET.replace("app=web selects", "app=no selects"),
     {"d": STANDS, "r": STANDS}, None, ("nlp", PayerReason.LEFTOVER, "r")),
    ("let go by a change of its labels", [WEB, SET], "Pod web-1-x uid=p app=no below=ReplicaSet/web-1/r",
     {"d": STANDS, "r": STANDS, "p": GONE}, None, ("nlp", PayerReason.LEFTOVER, "p")),
    ("never kept by an owner that stands", [WEB, SET], "Pod web-1-x uid=p app=no below=ReplicaSet/web-1/r",
     {"d": STANDS, "r": STANDS}, None, None),
    ("made below an owner that went long before", [], f"{POD} label=vision", {"d": LONG_GONE, "r": LONG_GONE}, None,
     ("vision", PayerReason.LABEL, "p")),
    ("what its controller made long after", [], POD, {"d": LONG_GONE, "r": LONG_GONE}, "speech",
     ("nlp", PayerReason.LEFTOVER, "p")),
    ("what names its group and was made long after", [], f"{POD} label=nlp", {"d": LONG_GONE, "r": LONG_GONE}, None,
     ("nlp", PayerReason.LABEL, "p")),
    ("what a pod that went would have made", [], BELOW, {"p": LONG_GONE}, None, None),
    ("an owner that is not seen yet, or no longer", [], f"{POD} label=vision", {"d": STANDS, "r": STANDS}, None,
     ("vision", PayerReason.LABEL, "p")),
    ("let go and without a reference: remembered itself", [WEB, SET], "Pod web-1-x uid=p app=no label=vision",
     {**LEFT, "p": LEFT["d"]}, None, ("nlp", PayerReason.LEFTOVER, "p")),
    ("adopted: its owner pays again", [WEB, SET], POD, {**LEFT, "p": LEFT["d"]}, None, ("nlp", PayerReason.OWNER, "d")),
    ("stayed with the group that paid before", [WEB.replace("nlp", "vision"), SET], POD, {"p": GONE}, None,
     ("nlp", PayerReason.LEFTOVER, "p")),
    ("stayed, and its Deployment is left by another group", [SET], POD,
     {"d": replace(GONE, group="vision"), "r": replace(GONE, group="vision"), "p": GONE}, None,
     ("nlp", PayerReason.LEFTOVER, "p")),
    ("a ReplicaSet does not stay: it is adopted", [WEB.replace("nlp", "vision"), SET], SET, {"r": GONE}, None,
     ("vision", PayerReason.OWNER, "d")),
    ("remembered while it stands, for the pods that it makes", [WEB.replace("nlp", "vision"), SET], POD,
     {"p": replace(GONE, gone=None)}, None, ("vision", PayerReason.OWNER, "d")),
    ("its Deployment stands and names no group any more", ["Deployment web uid=d selects=app=web", SET], POD,
     {"d": GONE, "r": STANDS}, None, None),
    ("nor is its ReplicaSet left then", ["Deployment web uid=d selects=app=web", SET], SET,
     {"d": GONE, "r": GONE}, None, None),
    ("but for a ReplicaSet that names a group itself",
     ["Deployment web uid=d selects=app=web", SET.replace("uid=r", "uid=r label=vision")], POD,
     {"d": GONE, "r": STANDS}, None, ("nlp", PayerReason.LEFTOVER, "r")),
    ("and for a pod that stayed", ["Deployment web uid=d selects=app=web", SET], f"{POD} label=vision",
     {"p": GONE}, "speech", ("nlp", PayerReason.LEFTOVER, "p")),
    ("what a ReplicaSet makes that such a Deployment has adopted", ["Deployment free uid=f selects=app=web",
     SET.replace("Deployment/web/d", "Deployment/free/f")], POD, {"r": GONE}, None, None),
    ("what is remembered and stands pays for itself", [], WEB.replace("nlp", "vision"), LEFT, None,
     ("vision", PayerReason.LABEL, "d")),
    ("a Job of a CronJob pays for itself", ["CronJob c uid=c label=nlp"],
     "Job c-1 uid=j label=vision below=CronJob/c/c", {}, None, ("vision", PayerReason.LABEL, "j")),
    ("a StatefulSet keeps its names", ["StatefulSet db uid=s label=nlp"],
     "Pod db-0 uid=p below=StatefulSet/db/s", {}, None, ("nlp", PayerReason.OWNER, "s")),
    ("and no others", ["StatefulSet db uid=s label=nlp"], "Pod db-zero uid=p below=StatefulSet/db/s", {}, None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stands", "words", "remembered", "default", "who"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_who_pays(stands, words, remembered, default, who):
    lookup = DocumentLookup([namespace(default), *(made(each) for each in stands)])
    found = paid_by(made(words), builtin_registry(), lookup, remembered, lambda group, _: group in GROUPS)
    assert (found and (found.group, found.reason, found.payer)) == who


def test_a_leftover_names_who_paid_and_since_when():
    found = paid_by(made(POD), builtin_registry(), DocumentLookup([namespace()]), LEFT, lambda *_: True)
    assert found == Paid("nlp", PayerReason.LEFTOVER, "p", "Deployment/team-a/web", NOW - 5)
    assert found.ends == ENDS[PayerReason.LEFTOVER]


def test_a_group_pays_only_in_the_namespaces_that_it_takes():
    lookup = DocumentLookup([namespace("vision"), made(WEB), made(SET)])
    found = paid_by(made(POD), builtin_registry(), lookup, {}, lambda group, _: group != "nlp")
    assert found is not None
    assert (found.group, found.reason) == ("vision", PayerReason.OWNER)


SELECTS = [
    ({"matchLabels": {"app": "web"}}, {"app": "web", "x": "y"}, True),
    ({"matchLabels": {"app": "web"}}, {"app": "no"}, False),
    ({"app": "web"}, {"app": "web"}, True),
    ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, {"app": "b"}, True),
    ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, {}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {}, False),
    ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["a"]}]}, {"app": "a"}, False),
    ({"matchExpressions": "none"}, {}, False),
    ({"matchLabels": ["app"]}, {}, False),
    ({"matchExpressions": [{"operator": "Exists"}]}, {}, False),
]


@pytest.mark.parametrize(("selector", "labels", "matches"), SELECTS)
def test_selectors(selector, labels, matches):
    assert selects(selector, labels) is matches


def test_an_owner_without_a_selector_keeps_what_it_made():
    assert keeps({"apiVersion": "kubeflow.org/v1", "kind": "TFJob"}, made("Pod x uid=p"))


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "x", "apps.kubernetes.io/pod-index": "0"}},
        {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "apps.kubernetes.io/pod-index", "operator": "In"}]},
    ],
)
def test_a_label_that_the_controller_itself_sets_matches(selector: dict[str, object]):
    """The watch of pods does not keep it."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {"selector": selector}}
    pod = {"kind": "Pod", "metadata": {"name": "db-0", "labels": {"app": "x"}}}
    assert keeps(owner, pod)
    assert not keeps(owner, {"kind": "Pod", "metadata": {"name": "db-0", "labels": {"app": "y"}}})
    assert not keeps({**owner, "kind": "ReplicaSet"}, pod)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    metadata=st.fixed_dictionaries(
        {}, optional={"labels": anything, "ownerReferences": anything, "uid": anything, "creationTimestamp": anything}
    ),
    selector=anything,
)
def test_nothing_that_somebody_wrote_raises(metadata, selector):
    owner = made(WEB)
    owner["spec"]["selector"] = selector
    child = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "namespace": "team-a", "name": "x"}}
    keeps(owner, child)
    paid_by(child, builtin_registry(), DocumentLookup([namespace(), owner]), LEFT, lambda *_: True)
