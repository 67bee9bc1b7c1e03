"""What a person who bills asks for, of a running bizrq: pods over a period's boundary, and then every verb that tells.

Pods are made by hand with the timestamps that a kubelet would write, on the sandbox and on a real API server; only the
controller's clock is moved, since nobody waits for a week to end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq.kube.client import Forbidden, KubeClient, NotFound
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, STATEMENTS
from controller.watch.cluster import now_ms
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq, CommandResult
from tests.e2e.conftest import station_on
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import PODS, TFJOBS, Object, group, tfjob
from tests.support.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "requests.nvidia.com/gpu"
HOUR = 3_600_000
#: One card, for a minute, in the unit of records.
MINUTE = 10**9 * HOUR // 60


@dataclass
class Week:
    """A running bizrq whose clock can be moved, and a person at the command line."""

    bizrq: Bizrq
    #: When the open week ends, to the minute.
    end: datetime
    cluster: Cluster
    ahead: timedelta = timedelta()

    @property
    def client(self) -> KubeClient:
        return self.bizrq.client

    def now(self) -> datetime:
        if self.cluster.box is not None:
            return self.cluster.box.clock.now()
        return datetime.now(UTC) + self.ahead

    def comes(self, when: datetime) -> None:
        """Move the controller's clock forward."""
        length = when - self.now()
        if self.cluster.box is not None:
            self.cluster.box.clock.advance(length.total_seconds())
        self.ahead += length

    async def says(self, *words: object) -> Any:
        said = await self.bizrq(*words, "-o", "json")
        assert said.code == 0, said
        return json.loads(said.out)

    async def pod(self, job: Object, number: int, since: datetime) -> str:
        """A pod of the job, as its operator makes it, bound at this time."""
        metadata, role = job["metadata"], job["spec"]["tfReplicaSpecs"]["Worker"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name']}-{number}",
                "namespace": metadata["namespace"],
                "ownerReferences": [{**owner, "controller": True}],
            },
            # Only this test says when it runs, no scheduler.
            "spec": {**role["template"]["spec"], "schedulingGates": [{"name": "example.org/never"}]},
        }
        name = (await self.client.create(PODS, made))["metadata"]["name"]
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(since)}
        await self._status(name, {"phase": "Running", "conditions": [condition]})
        return name

    async def ends(self, name: str, at: datetime) -> None:
        terminated = {"exitCode": 0, "finishedAt": rfc3339(at)}
        status = {"name": "c", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        await self._status(
            name, {"phase": "Succeeded", "containerStatuses": [{**status, "state": {"terminated": terminated}}]}
        )

    async def leave(self, name: str) -> None:
        """Delete a group with its workloads, if it is there."""
        for resource in (TFJOBS, PODS):
            for each in (await self.client.list(resource, "default"))[0]:
                with suppress(NotFound):
                    await self.client.delete(resource, each["metadata"]["name"], "default")

        async def deleted() -> bool:
            """A group with workloads is not deleted; it has them until they are seen to be gone."""
            try:
                await self.client.delete(GROUPS, name)
            except NotFound:
                return True
            except Forbidden as error:
                if "has workloads" not in error.message:
                    raise
                return False
            return True

        await eventually(deleted, 60, f"{name} can be deleted")

        async def gone() -> bool:
            return name not in {each["metadata"]["name"] for each in (await self.client.list(GROUPS))[0]}

        await eventually(gone, 60, f"{name} is gone")

    async def _status(self, name: str, status: Object) -> None:
        await self.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")


def rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def week(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Week]:
    """bizrq on a cluster where nobody makes or ends pods; a tree whose week ends in about an hour."""
    async with AsyncExitStack() as stack:
        if not cluster.is_real:
            box = await stack.enter_async_context(Sandbox(controllers=False))
            cluster = Cluster("sandbox", box.write_kubeconfig(tmp_path_factory.mktemp("week") / "kubeconfig"), box)
        client = await stack.enter_async_context(KubeClient.from_kubeconfig(cluster.kubeconfig))
        await has_kinds(client, crds.stand_ins())
        end = (datetime.now(UTC) + timedelta(hours=1)).replace(second=0, microsecond=0)
        found = Week(Bizrq(cluster.kubeconfig, client), end, cluster)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("bizrq.cli.standalone.now_ms", lambda: now_ms() + found.ahead // timedelta(milliseconds=1))
        await stack.enter_async_context(station_on(cluster, cash_interval=1.0))
        corp = group("corp", hours="100")
        corp["spec"]["cash"] = {"period": "weekly", "anchor": end.strftime("%Y-%m-%dT%H:%M")}
        await client.create(GROUPS, corp)
        await client.create(GROUPS, group("nlp", "corp", hours="10", **{f"cash/{GPU}.A100": "10"}))
        yield found
        # What has spent hours is let go by the controller.
        for name in ("nlp", "corp"):
            await found.leave(name)


async def test_a_week_of_two_pods_is_billed_to_the_second(week: Week, tmp_path: Path) -> None:
    """One began two hours before the boundary, the other 90 minutes; they end 15 and 20 minutes after it."""
    minutes, end = timedelta(minutes=1), week.end
    made = tfjob("train", "nlp", 2)
    made["metadata"]["labels"]["biz.group.resource.quota/gpu-type"] = "A100"
    job = await week.client.create(TFJOBS, made)
    pods = [await week.pod(job, 0, end - 120 * minutes), await week.pod(job, 1, end - 90 * minutes)]

    async def running() -> bool:
        try:
            return (await week.client.get(CARD_HOURS, "nlp")).get("status", {}).get("count") == 2
        except NotFound:
            return False

    await eventually(running, 60, "both run")

    # At this burn of two cards nothing but the boundary ends it: about 5 of 10 hours are left, for more than an hour.
    [foreseen] = await week.says("forecast", "nlp", "-r", GPU + ".A100")
    assert foreseen["burnPerHour"] == 7_200
    assert (foreseen["exhausted"], foreseen["until"]) == (None, rfc3339(end).replace("Z", ".000Z"))
    assert [each["workload"] for each in foreseen["workloads"]] == ["tfjobs.kubeflow.org/default/train"]

    week.comes(end + 30 * minutes)
    await week.ends(pods[0], end + 15 * minutes)
    await week.ends(pods[1], end + 20 * minutes)

    async def closed() -> bool:
        return bool((await week.client.list(STATEMENTS, label_selector="quota.biz.group/group=nlp"))[0])

    await eventually(closed, 60, "the week is closed")
    await eventually(lambda: _is(week, "current", 35), 60, "both ends are known")

    [row] = await week.says("report", "nlp", "--period", "last", "--by", "workload", "--by", "model")
    assert (row["workload"], row["resource"], row["model"]) == ("tfjobs.kubeflow.org/default/train", GPU, "A100")
    assert (int(row["exactNanoMs"]), row["seconds"]) == (210 * MINUTE, 12_600)
    assert row["to"] == rfc3339(end).replace("Z", ".000Z")
    [row] = await week.says("report", "nlp", "--hours")
    assert (row["from"], row["to"]) == tuple(rfc3339(at).replace("Z", ".000Z") for at in (end, end + timedelta(days=7)))
    by_period = await week.says("report", "--period", "all", "--by", "period")
    assert [int(each["exactNanoMs"]) for each in by_period] == [210 * MINUTE, 35 * MINUTE]
    # A parent's own workloads spent nothing; what is below it is told beside.
    of_corp = (await week.says("report", "corp", "--period", "last"))[0]
    assert (of_corp["group"], of_corp["exactNanoMs"], of_corp["subtreeSeconds"]) == ("corp", "0", 12_600)

    audited = await week.says("audit")
    assert audited["equal"], audited
    assert {each["kind"] for each in audited["checked"]} == {"statement", "record", "group"}

    file = tmp_path / "hours.html"
    assert (await week.bizrq("report", "--period", "last", "--html", file)).code == 0
    for told in ("3.500", "0.584", "tfjobs.kubeflow.org/default/train", "A100"):
        assert f">{told}<" in file.read_text("utf-8"), told


async def _is(week: Week, period: str, minutes: int) -> bool:
    rows = await week.says("report", "nlp", "--period", period, "--by", "workload", "-r", GPU)
    return [int(row["exactNanoMs"]) for row in rows] == [minutes * MINUTE]


async def test_a_correction_is_a_line_with_who_and_why(week: Week) -> None:
    words = ["correct", "nlp", f"{GPU}=-0.25", f"{GPU}.A100=-0.25", "--reason", "the power failed"]
    assert (await week.bizrq(*words)).code == 0

    async def applied() -> bool:
        rows = await week.says("report", "nlp", "--hours", "-r", GPU)
        return [int(row["exactNanoMs"]) for row in rows] == [20 * MINUTE]

    await eventually(applied, 60, "it is a line")
    audited = await week.says("audit", "nlp")
    [line] = [each for each in audited["remarks"] if each["what"] == "correction"]
    assert audited["equal"], audited
    assert (line["why"], line["seconds"]) == ("the power failed", {GPU: -900, f"{GPU}.A100": -900})
    assert line["who"]
    assert [each["lines"] for each in audited["checked"] if each["kind"] == "correction"] == [1]
    # Of hours that are not metered, or for a group that is none, nobody is credited.
    said: CommandResult = await week.bizrq("correct", "nlp", "limits.cpu=1", "--reason", "x")
    assert (said.code, "has no hours of limits.cpu" in said.err) == (2, True), said
    said = await week.bizrq("correct", "npl", f"{GPU}=1", "--reason", "x")
    assert (said.code, "npl does not exist" in said.err) == (3, True), said


async def test_who_has_no_right_to_correct_is_told_which(week: Week, tmp_path: Path) -> None:
    if not week.cluster.is_real:
        pytest.skip("the sandbox does not authorize")
    async with Proxy(week.bizrq.kubeconfig, {"Impersonate-User": "bob"}) as proxy:
        path = proxy.write_kubeconfig(tmp_path / "bob")
        said = await week.bizrq("correct", "nlp", f"{GPU}=-1", "--reason", "x", "--kubeconfig", path)
    assert (said.code, said.out) == (3, "")
    assert 'User "bob" cannot create resource' in said.err
    assert said.err.endswith("correcting hours requires the verb create on bizgroupcorrections.quota.biz.group\n")


def without_budgets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a group may spend goes with the group."""
    return [{key: row[key] for key in row if key not in ("budgetSeconds", "percentOfBudget")} for row in rows]


async def test_what_a_group_has_spent_is_billed_after_it_is_gone(week: Week) -> None:
    """To the same workloads, in the same periods and once, though its parent has the hours of the open week by now."""
    every = ["report", "--period", "all", *(word for by in ("period", "group", "workload") for word in ("--by", by))]
    current = ["report", "corp", "--by", "group", "-r", GPU]
    before, of_week = await week.says(*every), await week.says(*current)
    assert {row["group"] for row in of_week} == {"corp", "nlp"}
    await week.leave("nlp")
    assert without_budgets(await week.says(*every)) == without_budgets(before)
    assert without_budgets(await week.says(*current)) == without_budgets(of_week)
    audited = await week.says("audit")
    assert audited["equal"], audited
    assert [each["who"] for each in audited["remarks"] if each["what"] == "inherited"] == ["nlp"]
