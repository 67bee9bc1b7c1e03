"""The remembered payers that admission reads: those that are gone, and what may be let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bizrq.api.group import GroupObject, GroupStatus, ObjectMeta
from bizrq.kube.client import KubeClient, NotFound
from bizrq.quota.reservation import LIFETIME, Reservation
from bizrq.settings import load
from bizrq.store.payers import KnownPayers, PayerStore, kept_lines, kinds_of_makers, read_payers, without_others
from bizrq.units.slot import Slot
from bizrq.workloads.ownership.memory import Memory, leaving_parts, payer_line

T = 1_700_000_000_000
WEB = "Deployment/team-a/web"
STANDS = payer_line("d", Memory("nlp", WEB, T))
GONE = payer_line("r", Memory("nlp", WEB, T, T + 1))
MAKER = payer_line("m", Memory("nlp", WEB, T + 3))
ALONE = payer_line("j", Memory("nlp", "Job/team-a/train", T))
ENDED = payer_line("k", Memory("nlp", "Job/team-a/other", T, T + 1))
MAKERS = kinds_of_makers(load(None).registry)


def page(*lines: object, name: str = "nlp", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": "u", "resourceVersion": "7", "managedFields": []}
    made = {"apiVersion": "v1", "kind": "BizGroupPayers", "metadata": metadata, "status": {"payers": [*lines]}}
    return {**made, "spec": spec} if spec else made


def known(*lines: str) -> KnownPayers:
    found = KnownPayers()
    found.replace("page nlp", "nlp", lines)
    return found


def test_kinds_that_make_more_than_pods_are_known() -> None:
    assert {"Deployment", "JobSet", "LeaderWorkerSet", "RayCluster", "SparkApplication"} <= MAKERS
    assert MAKERS.isdisjoint({"Job", "StatefulSet", "ReplicaSet", "TFJob", "PyTorchJob"})


def test_a_payer_that_stands_is_kept_with_what_it_may_let_go() -> None:
    """A ReplicaSet is remembered in the place of its Deployment, on any page; a Job makes pods alone."""
    assert kept_lines(page(STANDS, MAKER, ALONE, ENDED), MAKERS) == [STANDS, MAKER, ENDED]
    assert kept_lines(page(MAKER), MAKERS) == [MAKER]
    assert known(STANDS, MAKER).get("m") == Memory("nlp", WEB, T + 3)


def test_payers_that_stand_alone_are_left_out() -> None:
    kept = without_others(page(ALONE, GONE), MAKERS)
    assert kept["status"] == {"payers": [GONE]}
    assert kept["metadata"] == {"name": "nlp", "uid": "u", "resourceVersion": "7"}
    assert kept["spec"] == {"group": "nlp"}
    assert without_others(page(name="nlp.page", group="nlp", page=3), MAKERS)["spec"] == {"group": "nlp"}
    assert kept_lines(None, MAKERS) == kept_lines({"metadata": {}}, MAKERS) == []


def test_a_line_comes_and_goes_with_its_page() -> None:
    found = known(GONE)
    assert found.get("r") == Memory("nlp", WEB, T, T + 1)
    assert found.get("d") is None
    assert found.left_in("team-a")
    found.replace("page nlp", "nlp", [])
    assert found.get("r") is None
    assert not found.left_in("team-a")


def test_a_line_that_moves_from_a_status_to_a_page_is_known_throughout() -> None:
    found = KnownPayers()
    found.replace("status of nlp", "nlp", [GONE])
    found.replace("page nlp", "nlp", [GONE])
    found.replace("status of nlp", "nlp", [])
    assert found.get("r") == Memory("nlp", WEB, T, T + 1)
    assert found.left_in("team-a")
    found.replace("page nlp", "nlp", [])
    assert found.get("r") is None
    assert not found.left_in("team-a")


def test_of_two_lines_of_one_group_the_later_one_counts() -> None:
    stands = payer_line("r", Memory("nlp", WEB, T))
    for first, second in ((stands, GONE), (GONE, stands)):
        found = KnownPayers()
        found.replace("page nlp", "nlp", [first])
        found.replace("status of nlp", "nlp", [second])
        assert found.get("r") == Memory("nlp", WEB, T, T + 1)


def test_of_two_groups_that_remember_one_uid_the_last_one_paid() -> None:
    found = known(GONE)
    later = payer_line("r", Memory("vision", WEB, T + 5, T + 9))
    found.replace("page vision", "vision", [later])
    assert found.get("r") == Memory("vision", WEB, T + 5, T + 9)
    found.replace("page vision", "vision", ())
    assert found.get("r") == Memory("nlp", WEB, T, T + 1)


def test_a_line_that_cannot_be_read_remembers_nobody_and_harms_no_other() -> None:
    found = known("v1 x gone=yesterday", GONE)
    assert found.get("x") is None
    assert found.get("r") is not None
    found.replace("page nlp", "nlp", [GONE])
    assert found.get("r") is not None


def test_a_changed_line_replaces_the_one_of_its_uid() -> None:
    found = known(GONE)
    later = payer_line("r", Memory("nlp", WEB, T, T + 2))
    found.replace("page nlp", "nlp", [later])
    assert found.get("r") == Memory("nlp", WEB, T, T + 2)
    assert found.left_in("team-a")
    found.replace("page nlp", "nlp", [])
    assert not found.left_in("team-a")


def test_the_status_of_a_group_is_read_with_its_changes() -> None:
    store = PayerStore(KubeClient.__new__(KubeClient), load(None).registry)
    status = {"metadata": {"name": "nlp"}, "status": {"payers": [ALONE]}}
    store.on_group(None, status)
    assert store.get("j") == Memory("nlp", "Job/team-a/train", T), "all its lines are kept, they are few"
    store.on_group(status, None)
    assert store.get("j") is None


def test_a_reservation_says_who_paid_for_what_leaves_its_owner() -> None:
    """Until it is gone; the payer's models are part of it. Other reservations say nothing."""
    store = PayerStore(KubeClient.__new__(KubeClient), load(None).registry)
    other = Reservation(Slot("replicasets.apps", "team-a", "w"), "s", 7, T + LIFETIME, {})
    leaving = replace(other, uid="r", others=leaving_parts(WEB, (("cpu", "genoa"),)))
    status = {"metadata": {"name": "nlp"}, "status": {"reservations": [str(leaving), "v1 x left=", str(other)]}}
    store.on_group(None, status)
    assert store.get("r") == Memory("nlp", WEB, T, T, (("cpu", "genoa"),))
    assert store.get("s") is None
    assert store.left_in("team-a")
    store.on_group(status, {"metadata": {"name": "nlp"}, "status": {"payers": [GONE]}})
    assert store.get("r") == Memory("nlp", WEB, T, T + 1)


class Client:
    """Lists pages, or knows no such kind."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = list(pages)

    async def list(self, _: object) -> tuple[list[dict[str, Any]], str]:
        if not self._pages:
            raise NotFound(404, "NotFound", "no such kind")
        return self._pages, "7"


@pytest.mark.parametrize("pages", [[], [page(GONE), page(MAKER, name="nlp.more", group="nlp")]], ids=["old", "pages"])
async def test_the_command_line_reads_pages_and_statuses(pages: list[dict[str, Any]]) -> None:
    groups = [GroupObject(ObjectMeta(name="nlp"), status=GroupStatus(payers=[ALONE]))]
    client: Any = Client(*pages)
    found = await read_payers(client, load(None).registry, groups)
    assert found.get("j") is not None
    assert (found.get("m") is not None) == (found.get("r") is not None) == bool(pages)
    assert found.get("m") is None or found.get("m") == Memory("nlp", WEB, T + 3)
