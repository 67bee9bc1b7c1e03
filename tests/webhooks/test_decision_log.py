"""Who asks later why a request was refused finds a line, and its group and reason in the API server's audit log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from bizrq.api import review
from bizrq.probe import group_probe, workload_probe
from bizrq.quota.verdict import Denied, Figures, Granted, Reason
from bizrq.workloads.labels import LABEL
from tests.support.objects import Object, deployment, group
from tests.webhooks.conftest import Api, Hooks, changed, decided, stored
from tests.webhooks.test_app import a_review
from webhooks import decision_log

ALICE = {"username": "alice", "groups": ["system:authenticated"]}


async def test_a_refusal_is_one_line_that_says_who_what_and_why(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2")
    with capture_logs() as lines:
        refused = await hooks.create(deployment("web", "nlp", 3), user=ALICE)
    assert refused["auditAnnotations"] == {"group": "nlp", "reason": "QuotaExceeded"}
    [line] = [line for line in lines if line["event"] == "refused"]
    assert 0 < line.pop("ms") < 60_000
    assert line == {
        "event": "refused",
        "log_level": "info",
        "webhook": "workloads",
        "uid": refused["uid"],
        "user": "alice",
        "operation": "CREATE",
        "object": "deployments.apps/default/web",
        "group": "nlp",
        "reason": "QuotaExceeded",
        "message": decided(refused),
    }


async def test_what_is_allowed_has_its_group_in_the_audit_log_and_no_line(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2")
    with capture_logs() as lines:
        allowed = await hooks.create(deployment("web", "nlp", 1), user=ALICE)
        assert "auditAnnotations" not in await hooks.create(deployment("web", None, 1), user=ALICE)
    assert (allowed["allowed"], allowed["auditAnnotations"]) == (True, {"group": "nlp"})
    assert [line for line in lines if line["event"] != "refused"] == lines


@pytest.mark.parametrize(
    ("new", "old", "about"),
    [
        (deployment("web", "new"), deployment("web", "old"), "new"),
        (deployment("web", None), deployment("web", "old"), "old"),
        (None, deployment("web", "old"), "old"),
        (deployment("web", "no name"), deployment("web", "old"), "old"),
        (deployment("web", None), None, ""),
        (group("web", cpu="1"), None, "web"),
    ],
    ids=["the new label", "a label that goes", "a deletion", "no name", "none", "a group"],
)
def test_the_group_is_the_one_that_the_object_names_or_is(new: Object | None, old: Object | None, about: str) -> None:
    request = decoded(new, old)
    assert decision_log.audited(request, Granted()) == ({"group": about} if about else {})


def test_the_group_of_a_refusal_is_the_one_that_has_no_room() -> None:
    verdict = Denied(Reason.EXCEEDED, "exceeded quota: corp", figures=Figures("corp", "hidden"))
    assert decision_log.refusal(decoded(deployment("web", "nlp"), None), verdict)["group"] == "corp"


def test_a_forged_review_makes_no_long_line() -> None:
    """Whoever reaches the port may send names of megabytes, and characters that a terminal obeys."""
    long = "x\x1b[31m\n" * 100_000
    obj = changed(stored(deployment("web", "nlp")), lambda o: o["metadata"]["labels"].update(other=long))
    request = decoded(obj, None, uid=long, name=long, namespace=long, user={"username": long})
    line = decision_log.refusal(request, Denied(Reason.MALFORMED, long))
    assert len(json.dumps(line)) < 5 * decision_log.NAME + decision_log.MESSAGE + 2_000
    assert all(value.isprintable() for value in line.values())


def decoded(new: Object | None, old: Object | None, **of: Any) -> review.Request:
    about = new or old
    assert about is not None
    found = a_review(about)["request"]
    if user := of.pop("user", None):
        found["userInfo"] = user
    body = {**found, "object": new, "oldObject": old, "kind": {"kind": about["kind"]}, **of}
    return review.decode(json.dumps({"request": body}).encode())


async def test_the_probe_of_every_command_is_no_line_in_the_log(api: Api, hooks: Hooks) -> None:
    with capture_logs() as lines:
        for obj in (group_probe(), workload_probe("default")):
            assert not (await hooks.create(obj, dry_run=True))["allowed"]
    assert [line for line in lines if line["log_level"] != "debug"] == []


async def test_nothing_else_is_taken_for_a_probe(api: Api, hooks: Hooks) -> None:
    """The same objects outside of a dry run, by another name, with another label, or refused for another reason."""
    asked, web = group_probe(), workload_probe("default")
    others = [
        changed(asked, lambda o: o["metadata"].update(name="mine")),
        changed(asked, lambda o: o["spec"]["hard"].update({"limits.cpux": "1"})),
        changed(web, lambda o: o["metadata"].update(name="mine")),
        changed(web, lambda o: o["metadata"].update(labels={LABEL: "nobody"})),
        changed(web, lambda o: o["spec"].update(replicas=-1)),
    ]
    with capture_logs() as lines:
        for obj in others:
            assert not (await hooks.create(obj, dry_run=True))["allowed"]
        for obj in (asked, web):
            assert not (await hooks.create(obj))["allowed"]
        assert not (await hooks.update(stored(web), changed(stored(web), lambda o: o["spec"].update(replicas=3))))[
            "allowed"
        ]
    assert [line["log_level"] for line in lines if line["event"] == "refused"] == ["info"] * 8
