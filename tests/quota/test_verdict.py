"""The text and the HTTP code of a refusal."""

from __future__ import annotations

import pytest

from bizrq.quota.verdict import Denied, Reason, Violation, exceeded, name_ending, unspecified
from tests.support.language import name, res


def violation(resource: str, requested: str, used: str, hard: str) -> Violation:
    full = name(resource)
    amounts = [res(f"{resource}={text}")[full] for text in (requested, used, hard)]
    return Violation(full, *amounts)


def test_a_refusal_says_requested_used_limited_left_and_what_would_fit() -> None:
    verdict = exceeded("nlp", [violation("cpu.A4", "4", "4", "4"), violation("cpu", "4", "8", "10")], 0)
    assert verdict.message == (
        "exceeded quota: nlp, requested: limits.cpu=4,limits.cpu.A4=4, used: limits.cpu=8,limits.cpu.A4=4, "
        "limited: limits.cpu=10,limits.cpu.A4=4; left: limits.cpu=2,limits.cpu.A4=0; fits: 0 more replicas"
    )
    assert [each.resource for each in verdict.violations] == ["limits.cpu", "limits.cpu.A4"]


@pytest.mark.parametrize(
    ("fits", "end"),
    [(None, "left: pods=1"), (0, "fits: 0 more replicas"), (1, "fits: 1 more replica"), (2, "fits: 2 more replicas")],
)
def test_headroom_is_in_replicas_and_omitted_where_unknown(fits: int | None, end: str) -> None:
    assert exceeded("nlp", [violation("pods", "3", "4", "5")], fits).message.endswith(f"; {end}")


@pytest.mark.parametrize(
    ("resource", "hard", "text"),
    [
        ("cpu", "1500m", "limits.cpu=1500m"),
        ("mem", "1Gi", "limits.memory=1Gi"),
        ("mem", "1500M", "limits.memory=1500000000"),
        ("cash/mem", "2Ti", "cash/limits.memory=2Ti"),
        ("mem.DDR5", "4Gi", "limits.memory.DDR5=4Gi"),
        ("gpu", "1k", "requests.nvidia.com/gpu=1k"),
        ("requests.nvidia.com/gpumem", "1Ki", "requests.nvidia.com/gpumem=1024"),
    ],
)
def test_amounts_are_formatted_as_in_kubectl(resource: str, hard: str, text: str) -> None:
    assert f"limited: {text};" in exceeded("nlp", [violation(resource, "1", "1", hard)], None).message


def test_left_is_never_below_zero() -> None:
    assert violation("cpu", "1", "12", "10").left == 0
    assert exceeded("nlp", [violation("cpu", "1", "12", "10")], None).message.endswith("left: limits.cpu=0")


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (["cash/cpu"], Reason.CASH),
        (["cash/cpu", "cash/gpu"], Reason.CASH),
        (["cash/cpu", "cpu"], Reason.EXCEEDED),
        (["cpu"], Reason.EXCEEDED),
    ],
)
def test_the_reason_is_cash_exhausted_only_if_hours_alone_are_exceeded(resources: list[str], reason: Reason) -> None:
    assert exceeded("nlp", [violation(each, "1", "1", "1") for each in resources], None).reason is reason


ENDING = [
    "deployments/team-a/web limits.cpu=5 pods=5 until=2026-11-22T10:05:30Z",
    "pods/team-a/x pods=1 limits.cpu=1 until=2026-11-22T10:05:31Z",
    "pods/team-a/y limits.memory=1Gi until=2026-11-22T10:05:31Z",
    "not a line",
]


def test_a_refusal_names_the_ending_pods_that_have_what_is_missing() -> None:
    refused = exceeded("nlp", [violation("limits.cpu", "11", "6", "10")], None)
    assert name_ending(refused, ENDING).message == (
        f"{refused.message}; 5 pods of deployments/team-a/web are ending (limits.cpu=5) until 10:05:30; "
        "1 pod of pods/team-a/x is ending (limits.cpu=1) until 10:05:31"
    )
    named = name_ending(refused, ENDING)
    assert named.message == f"{refused.message}; {named.ending}"
    assert name_ending(refused, [*ENDING, "pods/a/z limits.cpu=x"]).message.endswith("; and pods of 1 more")
    for lines in ([], ENDING[2:], [""], ["limits.cpu"]):
        assert name_ending(refused, lines) is refused


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        ("ending=1 since=2026-11-22T10:04:30Z", "1 pod of d/a/web is ending (limits.cpu=2) since 2026-11-22T10:04:30Z"),
        ("beyond=2", "2 pods of d/a/web are of a rollout that takes more than ten minutes (limits.cpu=2)"),
        ("older=4", "4 pods of d/a/web are of an older version that asks for more (limits.cpu=2)"),
        (
            "ending=3 older=1",
            "3 pods of d/a/web are ending and 1 of an older version that asks for more (limits.cpu=2)",
        ),
    ],
)
def test_a_refusal_says_why_pods_run_besides_those_that_are_asked_for(words: str, clause: str) -> None:
    refused = exceeded("nlp", [violation("limits.cpu", "5", "9", "10")], None)
    assert name_ending(refused, [f"d/a/web limits.cpu=2 {words}"]).message == f"{refused.message}; {clause}"


def test_a_refusal_says_that_the_request_passes_only_if_it_fits_without_those_pods() -> None:
    passes = "; the same request passes once they have gone"
    for cpu, found in (("5", True), ("6", False)):
        refused = exceeded("nlp", [violation("limits.cpu", cpu, "9", "10")], None)
        lines = ["d/a/web limits.cpu=3 ending=3", "d/a/api limits.cpu=1 ending=1"]
        assert name_ending(refused, lines).message.endswith(passes) is found
    both = exceeded("nlp", [violation("limits.cpu", "1", "1", "1"), violation("pods", "1", "1", "1")], None)
    assert not name_ending(both, ["d/a/web limits.cpu=1 ending=1"]).message.endswith(passes)


def test_unstated_resources_are_listed_with_their_containers_once_and_sorted() -> None:
    verdict = unspecified("nlp", {"limits.memory": ["c"], "limits.cpu": ["d", "c", "d"]})
    assert verdict.message == "failed quota: nlp: must specify limits.cpu for: c,d; limits.memory for: c"
    assert verdict.reason is Reason.UNSPECIFIED


def test_every_reason_has_its_http_code() -> None:
    """429 if a retry may succeed, 409 if the name is taken, 422 if the object itself is wrong, else 403."""
    codes = {reason: Denied(reason, "").code for reason in Reason}
    assert {reason for reason, code in codes.items() if code == 409} == {Reason.TAKEN}
    assert {reason for reason, code in codes.items() if code == 429} == {
        Reason.PARENT_NOT_RECONCILED,
        Reason.BUSY,
        Reason.FULL,
        Reason.TIMEOUT,
    }
    assert {reason for reason, code in codes.items() if code == 422} == {
        Reason.MALFORMED,
        Reason.BAD_NAME,
        Reason.BAD_HARD,
        Reason.BAD_SELECTOR,
        Reason.BAD_CASH,
        Reason.BAD_CORRECTION,
        Reason.IMMUTABLE,
    }
    assert {reason for reason, code in codes.items() if code == 403} == {
        Reason.IN_USE,
        Reason.REQUIRED,
        Reason.PAID_BY_OWNER,
        Reason.MAY_NOT_MANAGE,
        Reason.CHARGED_HERE,
        Reason.NO_GROUP,
        Reason.DELETING,
        Reason.NAMESPACE,
        Reason.MAY_NOT_USE,
        Reason.NOT_RECONCILED,
        Reason.PAYERS,
        Reason.UNSPECIFIED,
        Reason.UNKNOWN_MODEL,
        Reason.UNBOUNDED,
        Reason.CASH,
        Reason.EXCEEDED,
        Reason.MAY_NOT_GRANT,
        Reason.PARENT,
        Reason.MISSING_NAMES,
        Reason.NOT_EMPTY,
    }
    assert set(codes.values()) == {403, 409, 422, 429}


def test_reasons_are_stable_and_in_the_order_of_checks() -> None:
    """Metrics and alerts depend on them."""
    assert [str(reason) for reason in Reason] == [
        "Malformed",
        "PaidByOwner",
        "GroupRequired",
        "NoSuchGroup",
        "GroupDeleting",
        "NamespaceNotSelected",
        "MayNotUse",
        "NotReconciled",
        "ParentNotReconciled",
        "PayersUnknown",
        "MustSpecify",
        "UnknownModel",
        "UnboundedRun",
        "AnotherChangeUnderWay",
        "CashExhausted",
        "QuotaExceeded",
        "TooManyReservations",
        "OutOfTime",
        "AlreadyExists",
        "InUse",
        "BadHard",
        "MayNotGrant",
        "BadSelector",
        "BadCash",
        "BadName",
        "Immutable",
        "BadParent",
        "MissingNames",
        "NotEmpty",
        "BadCorrection",
        "MayNotManage",
        "WorkloadsCharged",
    ]
