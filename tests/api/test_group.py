"""How a stored group is read and written, and the errors for an unreadable one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.api import group as wire
from bizrq.api.group import GroupUnreadable
from bizrq.hours.budget import DEFAULT_TERMS, BudgetTerms
from bizrq.hours.periods import parse_schedule
from bizrq.quota.reservation import Reservation
from tests.support.catalog import CATALOG
from tests.support.language import entry, res

LINE = "v1 deployments.apps/team-a/web uid=u-web until=2023-11-14T22:13:20.000Z limits.cpu=4"
STORED: dict[str, Any] = {
    "apiVersion": "quota.biz.group/v1alpha1",
    "kind": "BizGroupResourceQuota",
    "metadata": {
        "name": "nlp",
        "uid": "8f3c",
        "resourceVersion": "812",
        "generation": 3,
        "creationTimestamp": "2023-11-14T22:13:20Z",
        "finalizers": ["quota.biz.group/spent-hours"],
        "labels": {"team": "a"},
    },
    "spec": {"parentBizGroup": "ai", "hard": {"cpu": "10", "limits.cpu": "20", "pods": 5}},
    "status": {
        "hard": {"cpu": "10", "limits.cpu": "20", "pods": 5},
        "used": {"limits.cpu": "6", "pods": "2", "requests.cpu": "3"},
        "selfUsed": {"limits.cpu": "6", "pods": "2", "requests.cpu": "3"},
        "reservations": [LINE],
        "countedAt": {"deployments.apps": "811"},
        "lastReconcileTime": "2023-11-14T22:13:20.000Z",
        "observedGeneration": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Reconciled",
                "message": "",
                "lastTransitionTime": "2023-11-14T22:13:20.000Z",
                "observedGeneration": 3,
            }
        ],
        "cash": {
            "periodStart": "2023-11-13T00:00:00.000Z",
            "periodEnd": "2023-11-20T00:00:00.000Z",
            "carried": {"cash/limits.cpu": "5"},
            "liens": {"cash/limits.cpu": "1500m"},
        },
    },
}


def group(**parts: Any) -> wire.GroupObject:
    """Return a group with this spec and status."""
    return wire.from_dict({"metadata": {"name": "nlp"}, **parts})


def test_a_stored_group_is_unchanged_after_it_was_read_and_written() -> None:
    read = wire.decode(json.dumps(STORED).encode())
    assert json.loads(wire.encode(read)) == STORED
    assert wire.from_dict(STORED) == read


def test_empty_fields_are_omitted_and_the_kind_is_always_written() -> None:
    """The API server rejects an object without a kind, and omits the kind in some lists."""
    assert json.loads(wire.encode(group())) == {
        "apiVersion": "quota.biz.group/v1alpha1",
        "kind": "BizGroupResourceQuota",
        "metadata": {"name": "nlp"},
        "spec": {},
        "status": {},
    }


def test_a_group_names_its_parent() -> None:
    read = wire.from_dict(STORED)
    assert (read.name, read.parent, read.resource_version) == ("nlp", "ai", 812)
    assert (
        group().parent == group(spec={"parentBizGroup": ""}).parent == group(spec={"parentBizGroup": None}).parent == ""
    )


def test_an_account_has_canonical_names_usage_and_reservations() -> None:
    account = wire.account_of(wire.from_dict(STORED), CATALOG)
    assert account.group == "nlp"
    assert account.hard == res("requests.cpu=10 cpu=20 pods=5")
    assert account.used == res("requests.cpu=3 cpu=6 pods=2")
    assert account.reservations == [entry("web", "cpu=4")]
    assert account.taken("limits.cpu") == 10 * 10**9


def test_usage_that_is_not_counted_is_unknown() -> None:
    assert wire.account_of(group(spec={"hard": {"cpu": "1"}}), CATALOG).unknown_names() == ["requests.cpu"]
    assert wire.account_of(group(spec={"hard": {"cpu": "1"}}, status={"used": {}}), CATALOG).unknown_names() == [
        "requests.cpu"
    ]
    assert (
        wire.account_of(
            group(spec={"hard": {"cpu": "1"}}, status={"used": {"requests.cpu": 0}}), CATALOG
        ).unknown_names()
        == []
    )


def test_a_tree_node_says_whether_its_group_is_being_deleted() -> None:
    read = wire.group_state(wire.from_dict(STORED), CATALOG)
    assert (read.name, read.parent, read.deleting) == ("nlp", "ai", False)
    assert read.used == res("requests.cpu=3 cpu=6 pods=2")
    deleted = {**STORED, "metadata": {**STORED["metadata"], "deletionTimestamp": "2023-11-14T22:13:20Z"}}
    assert wire.group_state(wire.from_dict(deleted), CATALOG).deleting


def test_what_a_child_holds_is_read_from_one_version() -> None:
    lowered = {**STORED, "spec": {"parentBizGroup": "ai", "hard": {"cpu": "10", "limits.cpu": "7", "pods": 1}}}
    assert wire.held_of_parent(wire.from_dict(lowered), CATALOG) == res("requests.cpu=10 cpu=10 pods=2")


def test_admission_writes_only_reservations_sorted() -> None:
    read = wire.from_dict(STORED)
    entries = [entry("jobs.batch/a/x", "cpu=1"), entry("jobs.batch.volcano.sh/a/x", "cpu=1"), entry("web", "cpu=4")]
    written = json.loads(wire.with_reservations(read, entries))
    assert written["status"].pop("reservations") == sorted(map(str, entries))
    assert written["metadata"] == STORED["metadata"]
    assert written["spec"] == STORED["spec"]
    assert written["status"] == {key: value for key, value in STORED["status"].items() if key != "reservations"}
    assert json.loads(wire.with_reservations(read, []))["status"].get("reservations", []) == []


def test_reservations_are_unchanged_after_they_were_written_and_read() -> None:
    entries = [entry("api", "cpu=1", "cpu=500m", rv=7), entry("group nlp", ""), entry("web", "mem=1Gi", awaits="a/b/c")]
    written = wire.decode(wire.with_reservations(group(), entries))
    assert sorted(map(str, wire.reservations_of(written))) == sorted(map(str, entries))


def test_a_status_is_written_sorted_by_name() -> None:
    assert list(wire.format_amounts(res("mem=2Gi cpu=1500m pods=3"))) == ["limits.cpu", "limits.memory", "pods"]
    assert wire.format_amounts(res("mem=2Gi cpu=1500m")) == {"limits.cpu": "1500m", "limits.memory": "2Gi"}


UNREADABLE = [
    ("no object", b"[]", "not a BizGroupResourceQuota"),
    ("no JSON", b"{", "not a BizGroupResourceQuota"),
    ("no metadata", b"{}", "not a BizGroupResourceQuota"),
    ("text that is no UTF-8", b'{"metadata":{"name":"\xff"}}', "not a BizGroupResourceQuota"),
    ("objects without end", b'{"metadata":{},"x":' + b'{"a":' * 100_000, "not a BizGroupResourceQuota"),
    ("a hard that is a list", b'{"metadata":{},"spec":{"hard":[]}}', "not a BizGroupResourceQuota"),
    ("an amount that is true", b'{"metadata":{},"spec":{"hard":{"cpu":true}}}', "not a BizGroupResourceQuota"),
    ("an amount that is a fraction", b'{"metadata":{},"spec":{"hard":{"cpu":1.5}}}', "not a BizGroupResourceQuota"),
]


@pytest.mark.parametrize(("why", "sent", "expected"), UNREADABLE, ids=[row[0] for row in UNREADABLE])
def test_bytes_that_are_no_group_are_rejected(why: str, sent: bytes, expected: str) -> None:
    with pytest.raises(GroupUnreadable, match=expected):
        wire.decode(sent)


def test_a_group_is_counted_once_every_name_of_its_hard_is_published() -> None:
    hard = {"hard": {"cpu": "1", "pods": "1"}}
    assert not wire.is_counted(group(spec=hard), CATALOG)
    assert not wire.is_counted(group(spec=hard, status={"used": {"requests.cpu": "0"}}), CATALOG)
    assert wire.is_counted(group(spec=hard, status={"used": {"requests.cpu": "0", "pods": "0", "gone": "1"}}), CATALOG)


SAYS = [
    ("a name that hard may not have", {"spec": {"hard": {"cpus": "1"}}}, "group nlp: spec.hard: cpus: "),
    ("an amount that is none", {"spec": {"hard": {"cpu": "one"}}}, "group nlp: spec.hard: cpu: "),
    ("an amount below 0", {"spec": {"hard": {"cpu": "-1"}}}, "group nlp: spec.hard: cpu: "),
    ("both spellings", {"spec": {"hard": {"cpu": "1", "requests.cpu": "1"}}}, "group nlp: spec.hard: "),
    ("a used that is none", {"status": {"used": {"cpu": "x"}}}, "group nlp: status: "),
    (
        "a reservation that is none",
        {"status": {"used": {}, "reservations": ["v9 x"]}},
        "group nlp: status.reservations: ",
    ),
]


@pytest.mark.parametrize(("why", "parts", "expected"), SAYS, ids=[row[0] for row in SAYS])
def test_an_unreadable_group_names_the_field(why: str, parts: dict[str, Any], expected: str) -> None:
    with pytest.raises(GroupUnreadable) as found:
        wire.account_of(group(**parts), CATALOG)
    assert str(found.value).startswith(expected)


UIDS = st.uuids().map(str)


def test_sums_beyond_the_largest_quantity_stay_readable() -> None:
    """Ten pods of 1400 PiB for an hour: our own status must not make the group unreadable."""
    spent = {"cash/limits.memory": 9600 * 2**50 * 10**9}
    status = wire.GroupStatus(used=wire.format_amounts(spent))
    assert status.used == {"cash/limits.memory": "9600Pi"}
    read = wire.decode(wire.encode(wire.GroupObject(wire.ObjectMeta("nlp"), status=status)))
    assert wire.parse_amounts(read, read.status.used) == spent
    assert wire.account_of(read, CATALOG).used == spent


@given(
    st.lists(st.builds(entry, st.sampled_from("abc"), st.sampled_from(["cpu=1", "", "mem=3Gi"]), of=UIDS), max_size=4)
)
def test_any_reservations_read_back_in_any_order(entries: list[Reservation]) -> None:
    one = wire.with_reservations(group(), entries)
    assert one == wire.with_reservations(group(), entries[::-1])
    assert sorted(map(str, wire.reservations_of(wire.decode(one)))) == sorted(map(str, entries))


def granted(**cash: Any) -> wire.GroupObject:
    return wire.from_dict({**STORED, "spec": {**STORED["spec"], "cash": cash}})


def test_the_terms_of_hours_are_read() -> None:
    assert wire.terms_of(wire.from_dict(STORED), CATALOG) == DEFAULT_TERMS
    said = granted(
        period="weekly",
        timeZone="Europe/Berlin",
        anchor="2026-01-05T09:00",
        rollover={"fraction": "50%", "cap": {"cpu": "1.5", "nvidia.com/gpu": 1}},
        mode="safe",
        maxRunTime="12h",
        thresholds=[90],
    )
    with pytest.raises(GroupUnreadable, match=r"^group nlp: spec\.cash\.rollover\.cap: cash/nvidia\.com/gpu: unknown"):
        wire.terms_of(said, CATALOG)
    assert said.spec.cash is not None
    assert said.spec.cash.rollover is not None
    said.spec.cash.rollover.cap = {"cpu": "1.5", "requests.nvidia.com/gpu": "0.5"}
    assert wire.terms_of(said, CATALOG) == BudgetTerms(
        parse_schedule("weekly", "Europe/Berlin", "2026-01-05T09:00"),
        rollover=50,
        cap=res("cash/requests.cpu=1.5 cash/gpu=500m"),
        safe=True,
        max_run_time=12 * 3_600_000,
        thresholds=(90,),
    )
    assert wire.from_dict(msgspec.to_builtins(said)) == said


@pytest.mark.parametrize(
    ("cash", "message"),
    [
        ({"timeZone": "UTC"}, "timeZone: there is no period"),
        ({"period": "daily", "timeZone": "Berlin"}, "timeZone: 'Berlin' is no time zone: did you mean Europe/Berlin?"),
        ({"mode": "s"}, "mode: 's' is none of open, safe"),
        ({"rollover": {"cap": {"count/pods": "1"}}}, "rollover.cap: cash/count/pods: unknown resource name"),
    ],
    ids=str,
)
def test_invalid_terms_of_hours_name_their_field(cash: dict[str, Any], message: str) -> None:
    with pytest.raises(GroupUnreadable) as error:
        wire.terms_of(granted(**cash), CATALOG)
    assert str(error.value).startswith(f"group nlp: spec.cash.{message}")


def test_a_line_for_people_has_the_amounts_of_some_names_and_a_bounded_length() -> None:
    line = "pods/a/p limits.cpu=1 example.com/x=2 ending=1 since=S until=U"
    assert wire.within(line, {"limits.cpu"}) == "pods/a/p limits.cpu=1 ending=1 since=S until=U"
    many = {f"example.com/{number}": 1 for number in range(1_000)}
    long = " ".join(["pods/a/p", *(f"{name}=1" for name in many), "ending=1", "until=U"])
    cut = wire.within(long, many)
    assert wire.MAX_LINE - 30 < len(cut) <= wire.MAX_LINE
    assert cut.startswith("pods/a/p example.com/0=1 ")
    assert cut.endswith(" ending=1 until=U")
