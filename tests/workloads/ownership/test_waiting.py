"""The controllers that wait for a pod which is being deleted."""

from __future__ import annotations

import pytest

from bizrq.workloads.ownership.waiting import awaits, current_version, ordinal_of


def owner(api_version, kind, **spec):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


SET = owner("apps/v1", "StatefulSet", replicas=3)
ROWS = [
    ("an ordinal in range", SET, "web-2", False, True),
    ("one out of range", SET, "web-3", False, False),
    ("replicas by default 1", owner("apps/v1", "StatefulSet"), "web-0", False, True),
    ("a range that starts later", owner("apps/v1", "StatefulSet", replicas=2, ordinals={"start": 5}), "web-6", False,
     True),
    ("below that range", owner("apps/v1", "StatefulSet", replicas=2, ordinals={"start": 5}), "web-4", False, False),
    ("another set's name", SET, "webs-0", False, False),
    ("replicas that are none", owner("apps/v1", "StatefulSet", replicas="3"), "web-0", False, False),
    ("a DaemonSet", owner("apps/v1", "DaemonSet"), "web-x", False, True),
    ("a DaemonSet with surge",
     owner("apps/v1", "DaemonSet", updateStrategy={"rollingUpdate": {"maxSurge": 1}}), "web-x", False, False),
    ("a DaemonSet with surge in percent",
     owner("apps/v1", "DaemonSet", updateStrategy={"rollingUpdate": {"maxSurge": "5%"}}), "web-x", False, False),
    ("the old version under Recreate", owner("apps/v1", "Deployment", strategy={"type": "Recreate"}), "web-1", True,
     True),
    ("the new version under Recreate", owner("apps/v1", "Deployment", strategy={"type": "Recreate"}), "web-1", False,
     False),
    ("a Deployment that rolls", owner("apps/v1", "Deployment"), "web-1", True, False),
    ("a Job that replaces failed pods only", owner("batch/v1", "Job", podReplacementPolicy="Failed"), "web-1", False,
     True),
    ("any other Job", owner("batch/v1", "Job"), "web-1", False, False),
    ("a kind nobody knows", owner("example.com/v1", "Widget"), "web-0", False, False),
    ("no kind", {}, "web-0", False, False),
]  # fmt: skip


@pytest.mark.parametrize(("made_by", "name", "is_old", "awaited"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_who_waits(made_by, name, is_old, awaited):
    assert awaits(made_by, is_old=is_old)(name) is awaited


def test_ordinals():
    assert ordinal_of("web-0-12", "web-0") == 12
    assert ordinal_of("web-0x1", "web") is None
    assert ordinal_of("web-", "web") is None


def test_the_current_version_is_the_oldest_of_that_template():
    def replicaset(uid, image, created, name=""):
        template = {"metadata": {"labels": {"app": "web", "pod-template-hash": uid}}, "spec": {"image": image}}
        metadata = {"uid": uid, "name": name or uid, "creationTimestamp": created}
        return {"metadata": metadata, "spec": {"template": template}}

    deployment = {"spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"image": "two"}}}}
    made = [replicaset("a", "one", "1"), replicaset("c", "two", "3"), replicaset("b", "two", "2")]
    assert current_version(deployment, made) == "b"
    assert current_version(deployment, [*made, replicaset("d", "two", "2", "a-first-name")]) == "d"
    assert current_version(deployment, made[:1]) is None
