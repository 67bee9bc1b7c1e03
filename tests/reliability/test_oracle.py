"""The oracle notices: each law broken on purpose, at the revision where it breaks; and what is right passes."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.api import group as wire
from bizrq.builtin import builtin_registry
from bizrq.kube.client import Resource
from bizrq.quota.reservation import Reservation
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import NANO
from bizrq.units.slot import Slot
from bizrq.workloads.labels import LABEL
from tests.support import objects
from tests.support.objects import DEPLOYMENTS, PODS, Object, deployment
from tests.support.oracle import LISTED, WATCHED, Ending, Event, check, concerning

WEB = Slot("deployments.apps", "default", "web")


def stored(
    name: str, hard: str, used: str, own: str | None = None, parent: str = "", *, at: int = 0, promised: int = 0
) -> Object:
    """A group whose status was counted from the revision `at`."""
    obj = objects.group(name, parent, cpu=hard)
    entry = Reservation(WEB, "u-web", None, 0, {"limits.cpu": promised * NANO}, {})
    obj["metadata"].update(uid=f"u-{name}", resourceVersion="1")
    obj["status"] = {
        "used": {"limits.cpu": used},
        "selfUsed": {"limits.cpu": used if own is None else own},
        "reservations": [str(entry)] if promised else [],
        "countedAt": {wire.PLURAL + "." + wire.API_GROUP: str(at), "deployments.apps": str(at)},
        "lastReconcileTime": f"2026-01-01T00:00:{at:02}Z",
    }
    return obj


def web(replicas: int, group: str | None = "nlp", name: str = "web") -> Object:
    return deployment(name, group, replicas)


def events(*told: tuple[str, Resource, Object]) -> list[Event]:
    """These in order, at the revisions 1, 2, 3 …"""
    return [(number, what, kind, obj) for number, (what, kind, obj) in enumerate(told, 1)]


GOOD = (
    ("ADDED", GROUPS, stored("nlp", "4", "0")),
    ("MODIFIED", GROUPS, stored("nlp", "4", "0", promised=4)),
    ("ADDED", DEPLOYMENTS, web(4)),
    ("MODIFIED", GROUPS, stored("nlp", "4", "4", at=3)),
    ("MODIFIED", DEPLOYMENTS, web(1)),
    ("MODIFIED", GROUPS, stored("nlp", "4", "1", at=5)),
    ("DELETED", DEPLOYMENTS, web(1)),
    ("MODIFIED", GROUPS, stored("nlp", "4", "0", at=7)),
)


def test_a_promise_a_write_and_a_count_are_right() -> None:
    assert check(events(*GOOD)) == len(GOOD)


BAD: dict[str, tuple[str, list[tuple[str, Resource, Object]]]] = {
    "more is stored than hard": (
        "revision 2: I1 broken for nlp, limits.cpu: stored 5, hard 4",
        [("ADDED", GROUPS, stored("nlp", "4", "0", promised=4)), ("ADDED", DEPLOYMENTS, web(5))],
    ),
    "more is promised than hard": (
        "revision 1: I1 broken for nlp, limits.cpu: taken 5, hard 4",
        [("ADDED", GROUPS, stored("nlp", "4", "0", promised=5))],
    ),
    "stored without a promise": (
        "revision 2: I2 broken for nlp, limits.cpu: stored 1, taken 0",
        [("ADDED", GROUPS, stored("nlp", "4", "0")), ("ADDED", DEPLOYMENTS, web(1))],
    ),
    "a promise dropped before its object was counted": (
        "revision 4: I2 broken for nlp, limits.cpu: stored 4, taken 0",
        [*GOOD[:3], ("MODIFIED", GROUPS, stored("nlp", "4", "0"))],
    ),
    "grown after it was counted": (
        "revision 5: I2 broken for nlp, limits.cpu: stored 2, taken 1",
        [
            ("ADDED", GROUPS, stored("nlp", "4", "0", promised=1)),
            ("ADDED", DEPLOYMENTS, web(1)),
            ("MODIFIED", GROUPS, stored("nlp", "4", "1", at=2)),
            ("ADDED", DEPLOYMENTS, web(0, None, "other")),
            ("MODIFIED", DEPLOYMENTS, web(2)),
        ],
    ),
    "moved to a group that did not promise": (
        "revision 5: I2 broken for vision, limits.cpu: stored 4, taken 0",
        [*GOOD[:3], ("ADDED", GROUPS, stored("vision", "4", "0")), ("MODIFIED", DEPLOYMENTS, web(4, "vision"))],
    ),
    "a child that its parent never promised": (
        "revision 2: I2 broken for ai, limits.cpu: stored 3, taken 0",
        [("ADDED", GROUPS, stored("ai", "4", "0")), ("ADDED", GROUPS, stored("nlp", "3", "0", parent="ai"))],
    ),
    "a group gone under what is charged to it": (
        "revision 4: something is charged to nlp, which does not exist",
        [*GOOD[:3], ("DELETED", GROUPS, stored("nlp", "4", "0"))],
    ),
    "a child without its parent": (
        "revision 1: something is charged to ai, which does not exist",
        [("ADDED", GROUPS, stored("nlp", "3", "0", parent="ai"))],
    ),
    "a count that is not its snapshot's": (
        "revision 4: I3 broken for nlp, limits.cpu: self_used 3, snapshot 4",
        [*GOOD[:3], ("MODIFIED", GROUPS, stored("nlp", "4", "3", at=3, promised=4))],
    ),
    "used that is not its parts": (
        "revision 4: I3 broken for nlp, limits.cpu: children 1, low 0, high 0",
        [*GOOD[:3], ("MODIFIED", GROUPS, stored("nlp", "5", "5", own="4", at=3))],
    ),
}


@pytest.mark.parametrize(("message", "told"), BAD.values(), ids=BAD)
def test_a_broken_law_is_told_with_its_revision(message: str, told: list[tuple[str, Resource, Object]]) -> None:
    with pytest.raises(AssertionError) as broken:
        check(events(*told))
    assert str(broken.value) == message


def test_only_the_groups_that_a_person_lowered_are_excused_and_only_of_hard() -> None:
    lowered = [*GOOD[:4], ("MODIFIED", GROUPS, stored("nlp", "2", "4", at=3))]
    assert check(events(*lowered), lowered={"nlp"}) == 5
    with pytest.raises(AssertionError, match="revision 5: I1 broken for nlp"):
        check(events(*lowered))
    more = events(*lowered, ("MODIFIED", DEPLOYMENTS, web(5)))
    with pytest.raises(AssertionError, match="revision 6: I2 broken for nlp"):
        check(more, lowered={"nlp"})


def test_what_was_there_before_the_recording_counts_too() -> None:
    before: list[Event] = [(9, LISTED, DEPLOYMENTS, web(4)), (9, LISTED, GROUPS, stored("nlp", "4", "4"))]
    assert check([*before, *[(10, "ADDED", DEPLOYMENTS, web(0, name="small"))]]) == 3
    with pytest.raises(AssertionError, match="revision 10: I1 broken for nlp"):
        check([*before, (10, "ADDED", DEPLOYMENTS, web(1, name="more"))])


@pytest.mark.parametrize("group", [None, "vision"])
def test_what_leaves_the_groups_that_are_judged_is_charged_to_them_no_more(group: str | None) -> None:
    left = events(
        *GOOD[:4], ("MODIFIED", DEPLOYMENTS, web(4, group)), ("MODIFIED", GROUPS, stored("nlp", "4", "0", at=5))
    )
    assert check(concerning(("nlp",), left)) == 6
    # That it comes back unpromised is seen.
    back = [*left, (7, "MODIFIED", DEPLOYMENTS, web(4))]
    with pytest.raises(AssertionError, match="revision 7: I2 broken for nlp"):
        check(concerning(("nlp",), back))


@pytest.mark.parametrize(
    ("gone", "phase", "counts"), [(True, "Running", True), (False, "Running", False), (True, "Succeeded", False)]
)
def test_a_pod_that_is_ending_counts_besides_for_the_group_of_its_topmost_owner(
    gone: bool, phase: str, counts: bool
) -> None:
    top = web(4)
    top["metadata"]["uid"] = "u-web"
    below: Object = {"metadata": {"uid": "u-pod", "name": "p"}, "spec": top["spec"]["template"]["spec"]}
    below["metadata"]["ownerReferences"] = [{"uid": "u-web", "controller": True}]
    below["status"] = {"phase": phase}
    if gone:
        below["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:03Z"
    group = stored("nlp", "5", "5", at=4)
    group["status"]["countedAt"]["pods"] = "3"
    told = events(
        ("ADDED", GROUPS, stored("nlp", "5", "0", promised=5)),
        ("ADDED", DEPLOYMENTS, top),
        ("MODIFIED", PODS, below),
        ("MODIFIED", GROUPS, group),
    )
    if counts:
        assert check(concerning(("nlp",), told), ending=Ending(told)) == 3
    else:
        with pytest.raises(AssertionError, match="revision 4: I3 broken for nlp"):
            check(concerning(("nlp",), told), ending=Ending(told))


@pytest.mark.parametrize("pods", [4, 5])
def test_what_was_deleted_counts_besides_until_its_pods_are_seen(pods: int) -> None:
    group = stored("nlp", "8", "7", at=6)
    group["status"]["countedAt"] |= {"pods": str(pods), "replicasets.apps": "6"}
    told = events(
        ("ADDED", GROUPS, stored("nlp", "8", "0", promised=4)),
        ("ADDED", DEPLOYMENTS, web(4)),
        ("MODIFIED", GROUPS, stored("nlp", "8", "4", at=2)),
        ("MODIFIED", GROUPS, stored("nlp", "8", "4", at=2, promised=3)),
        ("DELETED", DEPLOYMENTS, web(4)),
        ("ADDED", DEPLOYMENTS, web(3, name="other")),
        ("MODIFIED", GROUPS, group),
    )
    if pods < 5:
        assert check(told) == len(told)
    else:
        with pytest.raises(AssertionError, match="revision 7: I3 broken for nlp"):
            check(told)


@pytest.mark.parametrize("pods", [3, 4])
def test_pods_may_show_what_is_asked_for_before_the_watch_of_workloads_does(pods: int) -> None:
    group = stored("nlp", "8", "4", at=3)
    group["status"]["countedAt"] |= {"pods": str(pods)}
    told = events(
        ("ADDED", GROUPS, stored("nlp", "8", "0", promised=4)),
        ("ADDED", DEPLOYMENTS, web(3)),
        ("MODIFIED", GROUPS, stored("nlp", "8", "3", at=2, promised=4)),
        ("MODIFIED", DEPLOYMENTS, web(4)),
        ("MODIFIED", GROUPS, group),
    )
    if pods == 4:
        assert check(told) == len(told)
    else:
        with pytest.raises(AssertionError, match="revision 5: I3 broken for nlp"):
            check(told)


def test_groups_of_others_are_not_judged() -> None:
    others = events(
        *GOOD[:4], ("ADDED", DEPLOYMENTS, web(9, "nl", "more")), ("ADDED", DEPLOYMENTS, web(9, None, "most"))
    )
    assert len(concerning(("nlp",), others)) == 4
    assert len(concerning((), others)) == 6
    assert concerning(("nlp",), events(("ADDED", GROUPS, stored("nlp-a", "1", "0"))))


@pytest.mark.parametrize("kind", WATCHED[1:], ids=lambda kind: kind.key)
def test_every_charged_kind_is_watched_and_seen(kind: Resource) -> None:
    """An object of any of them that stands in a group which is not there is noticed."""
    obj: dict[str, Any] = {"metadata": {"name": "x", "namespace": "default", "labels": {LABEL: "nlp"}}, "spec": {}}
    with pytest.raises(AssertionError, match="revision 1: something is charged to nlp"):
        check([(1, "ADDED", kind, obj)])


def test_the_kinds_that_are_watched_are_those_that_are_charged() -> None:
    assert {kind.key for kind in WATCHED[1:]} == {adapter.resource for adapter in builtin_registry().charged}
