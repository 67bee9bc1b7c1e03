"""`bizrq status`: whether quota is enforced, who counts, and what is unknown, each with its exit code."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq.api.group import Condition, GroupObject, GroupStatus, ObjectMeta
from bizrq.figures.state import glance, probe
from bizrq.figures.state.enforcement import Admission
from bizrq.figures.state.glance import Glance, Leader
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient
from bizrq.kube.lease import LEASES
from bizrq.store import processes
from bizrq.store.groups import GROUPS
from bizrq.units.times import format_timestamp
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.cli.verbs.test_doctor import changed, installation
from tests.support.cluster import Real, eventually, has_kinds
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CRDS, NAMESPACES, Object, bound, group
from tests.support.tenant import ROLE_BINDINGS

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGISTRATION = "ValidatingWebhookConfiguration"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def healthy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """An installation on the sandbox, with a group that is counted."""
    path = tmp_path_factory.mktemp("status") / "kubeconfig"
    async with Sandbox() as box, installation(path, box) as bizrq:
        await bizrq.client.create(GROUPS, group("nlp", cpu="10"))

        async def is_well() -> bool:
            return (await bizrq("status")).code == 0

        await eventually(is_well, 60, "a healthy installation")
        yield bizrq


async def test_a_healthy_installation_is_well(healthy: Bizrq) -> None:
    async def is_stated() -> bool:
        [group] = (await healthy.client.list(GROUPS))[0]
        conditions = (group.get("status") or {}).get("conditions") or []
        return any((each["type"], each["status"]) == ("Enforced", "True") for each in conditions)

    await eventually(is_stated, 60, "the group says that quota is enforced")
    result = await healthy("status")
    assert (result.code, result.err) == (0, "")
    lines = result.ageless.splitlines()
    assert lines[0] == "healthy   quota is enforced, and the counts are current"
    assert lines[1].startswith("versions  bizrq 0.1.0, Kubernetes v1.")
    assert lines[1].endswith(", webhooks bizrq:1, controller bizrq:1")
    assert lines[2] == "webhooks  registered, and answer"
    assert lines[4].startswith("watches   ")
    assert lines[5] == "counts    the last recount was AGO ago, the oldest AGO ago (nlp)"
    assert lines[6] == "groups    1 group, 1 ready, 0 over quota, 0 with exhausted hours"
    found = json.loads((await healthy("status", "-o", "json")).out)
    assert (found["state"], found["problems"], found["notices"], found["unknown"]) == ("healthy", [], [], [])
    assert found["webhooks"] == {"registered": True, "answer": True, "enforcedByGroups": True}
    assert found["versions"]["controller"] == "bizrq:1"
    assert found["counts"]["groups"] == 1
    assert found["groups"] == {"notReady": [], "overQuota": [], "hoursExhausted": []}


async def test_a_registration_that_is_gone_is_said_first(healthy: Bizrq) -> None:
    async with changed(healthy.client, REGISTRATION, "bizrq", None):
        result = await healthy("status")
        found = json.loads((await healthy("status", "-o", "json")).out)
    assert result.code == 1
    said = "quota is not enforced: the webhooks are not registered, so nothing is refused"
    assert result.plain.splitlines()[0] == f"PROBLEM   {said}"
    assert found["problems"] == [{"reason": "NotEnforced", "message": said}]
    assert found["state"] == "unhealthy"


async def test_webhooks_that_do_not_answer_are_said_first(healthy: Bizrq) -> None:
    stored = await healthy.client.get(REGISTRATIONS, "bizrq")
    webhooks = [
        {**w, "clientConfig": {**w["clientConfig"], "url": "https://127.0.0.1:1/x"}} for w in stored["webhooks"]
    ]
    async with changed(healthy.client, REGISTRATION, "bizrq", {"webhooks": webhooks}):
        result = await healthy("status")
    assert result.code == 1
    assert result.plain.startswith("PROBLEM   the webhooks do not answer: ")


async def test_a_definition_that_takes_a_name_of_kubernetes_is_a_notice(healthy: Bizrq) -> None:
    """As older versions had it: `kubectl get quota` meant theirs."""
    name = "bizgroupresourcequotas.quota.biz.group"
    stored = await healthy.client.get(CRDS, name)
    names = {"spec": {"names": {**stored["spec"]["names"], "categories": ["quota"]}}}
    await healthy.client.patch(CRDS, name, names)
    try:
        result = await healthy("status")
    finally:
        await healthy.client.patch(CRDS, name, {"spec": {"names": stored["spec"]["names"]}})
    assert result.code == 0
    assert "notice    kubectl get quota also means bizgroupresourcequotas: apply the CRDs" in result.plain


async def test_a_narrow_terminal_wraps_between_words(healthy: Bizrq) -> None:
    result = await healthy("status", width=60)
    assert max(map(len, result.plain.splitlines())) <= 60
    assert "  " + " " * 8 in result.plain


async def test_a_cluster_without_bizrq_is_no_state(tmp_path: Path) -> None:
    async with Sandbox() as box:
        path = box.write_kubeconfig(tmp_path / "bare")
        async with KubeClient.from_kubeconfig(path) as client:
            result = await Bizrq(path, client)("status")
    assert result.code == 3
    assert "bizrq is not installed in the cluster" in result.err


NOW = 1_800_000_000_000
WELL = Admission(True, True)


def counted(name: str, *conditions: tuple[str, str], ago: float = 60, interval: int = 300) -> GroupObject:
    """A group that was counted so many seconds ago."""
    found = [Condition(kind, status, "", "", "") for kind, status in conditions or [("Ready", "True")]]
    at = format_timestamp(NOW - int(ago * 1000))
    return GroupObject(
        ObjectMeta(name), status=GroupStatus(conditions=found, last_reconcile_time=at, recount_seconds=interval)
    )


def seen(*groups: GroupObject, admission: Admission = WELL, **more: Any) -> Glance:
    leader = more.pop("leader", Leader("bizrq-controller-1", NOW - 1000))
    clashing = more.pop("clashing", ())
    known = None if more.pop("unreadable", False) else groups
    return Glance("0.1.0", "v1.36.2", {}, admission, leader, known, clashing, NOW, **more)


READY, NOT_ENFORCED = ("Ready", "True"), ("Enforced", "False")
ROWS = [
    ("all is well", seen(counted("nlp")), [], [], 0),
    ("no group is there", seen(), [], [], 0),
    ("no registration", seen(admission=Admission(False)), ["NotEnforced"], [], 0),
    (
        "a registration that nobody asks",
        seen(admission=Admission(True, False, probe.ACCEPTED)),
        ["NotEnforced"],
        [],
        0,
    ),
    ("no answer", seen(admission=Admission(True, False, "refused")), ["WebhooksDoNotAnswer"], [], 0),
    (
        "a group says so",
        seen(counted("nlp", READY, ("Enforced", "False")), admission=Admission()),
        ["NotEnforced"],
        [],
        0,
    ),
    (
        "the newest of the groups says the contrary",
        seen(
            counted("old", READY, ("Enforced", "False"), ago=100),
            counted("new", READY, ("Enforced", "True")),
            admission=Admission(None, None, "may not"),
        ),
        [],
        [],
        1,
    ),
    ("nobody knows", seen(counted("nlp"), admission=Admission()), [], [], 1),
    ("groups cannot be read", seen(unreadable=True), [], [], 1),
    ("as late as it may be", seen(counted("nlp", ago=630)), [], [], 0),
    ("too late", seen(counted("nlp", ago=631)), ["CountsStale"], [], 0),
    ("late for a short interval", seen(counted("nlp", ago=60, interval=10)), ["CountsStale"], [], 0),
    ("a long interval", seen(counted("nlp", ago=5000, interval=3600)), [], [], 0),
    ("the default of an older controller", seen(counted("nlp", ago=700, interval=0)), ["CountsStale"], [], 0),
    ("nobody leads", seen(leader=Leader("", None)), ["NoLeader"], [], 0),
    ("a leader that is gone", seen(leader=Leader("c", NOW - 120_000)), ["NoLeader"], [], 0),
    ("a leader that nobody may see", seen(leader=None), [], [], 0),
    ("a group that cannot be counted", seen(counted("nlp", ("Ready", "False"))), ["GroupsNotReady"], [], 0),
    ("a group that is new", seen(counted("nlp", ("OverQuota", "False"))), ["GroupsNotReady"], [], 0),
    ("over quota", seen(counted("nlp", READY, ("OverQuota", "True"))), [], ["OverQuota"], 0),
    ("no hours", seen(counted("nlp", READY, ("CashExhausted", "True"))), [], ["HoursExhausted"], 0),
    ("old definitions", seen(clashing=("bizgrouppayers",)), [], ["OldDefinitions"], 0),
]


@pytest.mark.parametrize(("glimpse", "problems", "notices", "unknown"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
async def test_what_is_wrong_what_is_worth_knowing_and_what_is_unknown(
    glimpse: Glance, problems: list[str], notices: list[str], unknown: int
) -> None:
    found = glance.report(glimpse)
    assert [each.reason for each in found.problems] == problems
    assert [each.reason for each in found.notices] == notices
    assert len(found.unknown) == unknown, found.unknown
    assert glance.lines(glimpse)


async def test_the_age_of_the_oldest_watch_is_shown(tmp_path: Path) -> None:
    """Each process tells it with its Lease. A process whose Lease is old is gone; older versions tell nothing."""
    path = tmp_path / "kubeconfig"
    async with Sandbox(controllers=False) as box, KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client:
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bizrq-system"}})
        await has_kinds(client, crds.load())
        assert (await glance.look(client, "bizrq-system")).watch is None
        for name, kind, ago, age in (("a", "pods", 3, 20), ("b", "nodes", 3, 70), ("c", "jobs.batch", 300, 900)):
            info = processes.ProcessInfo(f"bizrq-{name}", name, "0.1.0", ())
            lease = processes.lease_of(info, "bizrq-system")
            lease["metadata"]["annotations"]["bizrq.quota.biz.group/watch"] = f"{kind} {age}.0"
            renewed = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            await client.create(LEASES, {**lease, "spec": {**lease["spec"], "renewTime": renewed}})
        seen = await glance.look(client, "bizrq-system")
    assert seen.watch is not None
    assert (seen.watch.process, seen.watch.resource) == ("bizrq-b", "nodes")
    age = glance.as_json(seen, glance.report(seen), "healthy")["oldestWatch"]["age"]
    assert age >= 73
    # They are no Deployments here.
    assert seen.running == {"bizrq-a": "0.1.0", "bizrq-b": "0.1.0"}
    [text] = [text for head, text in glance.lines(seen) if head == "watches"]
    assert re.fullmatch(r"oldest: nodes, last event or bookmark \d+[sm] ago, in bizrq-b", text)


async def test_versions_of_processes_that_are_no_deployments_are_those_of_their_leases() -> None:
    elsewhere = replace(seen(), images={}, running={"bizrq-webhooks": "0.0.9 and 0.1.0", "bizrq-controller": "0.1.0"})
    [text] = [text for head, text in glance.lines(elsewhere) if head == "versions"]
    assert text.endswith(", webhooks 0.0.9 and 0.1.0, controller 0.1.0")
    versions = glance.as_json(elsewhere, glance.report(elsewhere), "healthy")["versions"]
    assert (versions["webhooks"], versions["controller"], versions["up"]) == ("0.0.9 and 0.1.0", "0.1.0", None)


async def test_stale_groups_are_counted_and_the_oldest_is_named_first() -> None:
    groups = [counted(f"g{number}", ago=1000 * number) for number in range(1, 8)]
    [found] = glance.report(seen(*groups, counted("new"))).problems
    said = "the counts of 7 of 8 groups are stale: g7, g6, g5, g4, g3 and 2 more; the oldest was recounted 116m ago"
    assert found.message == said


@pytest.mark.real
async def test_a_reader_is_told_what_they_may_not_read(real_cluster: Real) -> None:
    """With RBAC: a viewer, a developer with `edit` in a namespace, and somebody who may read nothing."""
    async with installation(real_cluster.kubeconfig) as bizrq:
        client, made = bizrq.client, list[tuple[Any, str, str | None]]()
        roles: list[Object] = [bound("bizrq-viewer", "vic"), bound("bizrq-viewer", "dee")]
        try:
            await client.create(GROUPS, group("nlp", cpu="10"))
            made.append((GROUPS, "nlp", None))
            # A name of its own: without its controller a namespace that is deleted stays for the next test.
            await client.create(
                NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dees-team"}}
            )
            made.append((NAMESPACES, "dees-team", None))
            for each in roles:
                await client.create(CLUSTER_ROLE_BINDINGS, each)
                made.append((CLUSTER_ROLE_BINDINGS, each["metadata"]["name"], None))
            edit = {**bound("edit", "dee"), "kind": "RoleBinding"}
            edit["metadata"] = {**edit["metadata"], "namespace": "dees-team"}
            await client.create(ROLE_BINDINGS, edit)
            team = _with_namespace(real_cluster.kubeconfig, "dees-team")

            async def is_settled() -> bool:
                dee = await bizrq("status", "--as", "dee", "--kubeconfig", team)
                vic = await bizrq("status", "--as", "vic")
                said[:] = [dee, vic]
                return (dee.code, vic.code) == (0, 4)

            said: list[Any] = []
            await eventually(is_settled, 90, lambda: said)
            dee, vic = said
            assert dee.plain.splitlines()[0].startswith("healthy ")
            assert "webhooks unknown, controller unknown" in dee.plain
            assert "leader    unknown" in dee.plain
            assert vic.plain.startswith("unknown   whether the webhooks answer: ")
            assert "webhooks  registered; whether they answer is unknown" in vic.plain
            found = json.loads((await bizrq("status", "--as", "vic", "-o", "json")).out)
            assert found["unread"] == ["Deployments in bizrq-system", "Leases in bizrq-system"]
            assert found["webhooks"] == {"registered": None, "answer": None, "enforcedByGroups": True}
            nobody = await bizrq("status", "--as", "nobody-in-particular")
            assert nobody.code == 4
            assert "unknown   groups, their counts and conditions: you may not list groups" in nobody.plain
        finally:
            for resource, name, namespace in reversed(made):
                await client.delete(resource, name, namespace)
            gone = await bizrq("uninstall", "-n", "bizrq-system")
            assert gone.code == 0, gone.err


def _with_namespace(kubeconfig: Path, namespace: str) -> Path:
    """Write the kubeconfig again with this namespace in its context."""
    import yaml

    found = yaml.safe_load(kubeconfig.read_text("utf-8"))
    for context in found["contexts"]:
        context["context"]["namespace"] = namespace
    path = kubeconfig.with_name(f"kubeconfig-{namespace}")
    path.write_text(yaml.safe_dump(found), "utf-8")
    return path
