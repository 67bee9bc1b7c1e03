"""The remembered payers that admission reads: those that are gone, and what may be let go."""

from __future__ import annotations

from typing import Any

from bizrq.store.payers import KnownPayers, kept_lines, without_others
from bizrq.workloads.ownership.memory import Memory, payer_line

T = 1_700_000_000_000
WEB = "Deployment/team-a/web"
STANDS = payer_line("d", Memory("nlp", WEB, T))
GONE = payer_line("r", Memory("nlp", WEB, T, T + 1))


def record(*lines: object) -> dict[str, Any]:
    metadata = {"name": "nlp", "uid": "u", "resourceVersion": "7", "managedFields": []}
    return {"apiVersion": "v1", "kind": "BizGroupPayers", "metadata": metadata, "status": {"payers": [*lines]}}


def known(*lines: str) -> KnownPayers:
    found = KnownPayers()
    found.replace("nlp", (), lines)
    return found


MAKER = payer_line("m", Memory("nlp", WEB, T + 3))
ALONE = payer_line("j", Memory("nlp", "Job/team-a/train", T))


def test_a_payer_that_stands_is_kept_with_what_it_may_let_go() -> None:
    """A ReplicaSet is remembered in the place of its Deployment; a Job makes pods alone."""
    assert kept_lines(record(STANDS, MAKER, ALONE)) == [STANDS, MAKER]
    assert known(STANDS, MAKER).get("m") == Memory("nlp", WEB, T + 3)


def test_payers_that_stand_alone_are_left_out() -> None:
    kept = without_others(record(ALONE, GONE))
    assert kept["status"] == {"payers": [GONE]}
    assert kept["metadata"] == {"name": "nlp", "uid": "u", "resourceVersion": "7"}
    assert kept_lines(None) == kept_lines({"metadata": {}}) == []


def test_a_line_comes_and_goes_with_its_record() -> None:
    found = known(GONE)
    assert found.get("r") == Memory("nlp", WEB, T, T + 1)
    assert found.get("d") is None
    found.replace("nlp", [GONE], [])
    assert found.get("r") is None


def test_of_two_groups_that_remember_one_uid_the_last_one_paid() -> None:
    found = known(GONE)
    later = payer_line("r", Memory("vision", WEB, T + 5, T + 9))
    found.replace("vision", (), [later])
    assert found.get("r") == Memory("vision", WEB, T + 5, T + 9)
    found.replace("vision", [later], ())
    assert found.get("r") == Memory("nlp", WEB, T, T + 1)


def test_a_line_that_cannot_be_read_remembers_nobody_and_harms_no_other() -> None:
    found = known("v1 x gone=yesterday", GONE)
    assert found.get("x") is None
    assert found.get("r") is not None
    found.replace("nlp", ["v1 x gone=yesterday"], [])


def test_a_changed_line_replaces_the_one_of_its_uid() -> None:
    found = known(GONE)
    later = payer_line("r", Memory("nlp", WEB, T, T + 2))
    found.replace("nlp", [GONE], [later])
    assert found.get("r") == Memory("nlp", WEB, T, T + 2)
