"""All objects of bizrq are lost and restored from a backup, by a person with the role for it (docs/operations.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from bizrq.api import guards
from bizrq.api.group import FINALIZER
from bizrq.builtin import builtin_registry
from bizrq.cli import rbac
from bizrq.cli.manifests_of_bizrq import policy_objects, resource_of
from bizrq.kube.client import AlreadyExists, Forbidden, KubeClient, NotFound
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.payers import PAYERS
from bizrq.workloads.labels import LABEL
from bizrq.workloads.ownership import pages
from controller.watch import payer_pages, remembered
from tests.cli.conftest import Bizrq
from tests.docs.test_docs import ROOT, script
from tests.support.cluster import Cluster, eventually
from tests.support.objects import DEPLOYMENTS, PODS, Object, bound, cluster_role, correction, deployment, group
from tests.support.serving import SYSTEM, Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "requests.nvidia.com/gpu"
HOURS = f"cash/{GPU}"
KINDS = (GROUPS, CORRECTIONS, CARD_HOURS, STATEMENTS, PAYERS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parts]:
    """A cluster with the rights and the guards of bizrq; nothing runs yet."""
    given = [
        *(each.document for each in rbac.manifests(builtin_registry(), SYSTEM)),
        *policy_objects(SYSTEM, settings({})),
    ]
    everybody = cluster_role("restore-all", "get", "list", "create", "update", "patch", "delete")
    everybody["rules"][0]["resources"] = ["*"]
    given += [everybody, bound("restore-all", "pat"), bound(guards.RESTORE_ROLE, "rita")]
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(Parts(cluster, tmp_path_factory.mktemp("restore"), gpuResources=[]))
        for obj in given:
            with contextlib.suppress(AlreadyExists):
                await made.client.create(resource_of(obj), obj)
            if obj["kind"] != "Namespace":
                stack.push_async_callback(_remove, made.client, obj)
        yield made


async def _remove(client: KubeClient, obj: Object) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


async def guarded(client: KubeClient) -> bool:
    """Return True once this user can write neither a record nor a status."""
    probes = (
        client.patch(CARD_HOURS, "lost", {"metadata": {"labels": {"a": "b"}}}, dry_run=True),
        client.patch(CARD_HOURS, "lost", {"status": {"count": 7}}, subresource="status", dry_run=True),
    )
    answers = await asyncio.gather(*probes, return_exceptions=True)
    return all(name in str(each) for name, each in zip((guards.RECORDS, guards.STATUS), answers, strict=True))


async def a_pod_ran(client: KubeClient, hours: int) -> None:
    """A pod with one card, which ended a minute ago."""
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    limits = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    container = {"name": "c", "image": "x", "resources": limits}
    metadata = {"name": "ran", "namespace": "default", "labels": {LABEL: "lost"}}
    # No scheduler binds it: the cluster's kubelet would run it from now on, which is after its end.
    gated = {"schedulingGates": [{"name": "example.org/never"}]}
    spec = {"containers": [container], "restartPolicy": "Never", **gated}
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": f"{end - timedelta(hours=hours):%FT%TZ}",
    }
    ended = {"name": "c", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    status = {
        "phase": "Succeeded",
        "conditions": [scheduled],
        "containerStatuses": [{**ended, "state": {"terminated": {"exitCode": 0, "finishedAt": f"{end:%FT%TZ}"}}}],
    }
    await client.patch(PODS, "ran", {"status": status}, namespace="default", subresource="status")


async def spent(client: KubeClient) -> str:
    return ((await client.get(GROUPS, "lost")).get("status") or {}).get("used", {}).get(HOURS, "")


async def test_what_was_lost_is_restored_and_counts_once(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line of the record of payers for the group's status, one for the first page, and the rest for others.
    for module, name in ((remembered, "ROOM"), (pages, "MAX_LINES"), (payer_pages, "MAX_LINES")):
        monkeypatch.setattr(module, name, 1)
    client, restoring = parts.client, script(ROOT / "deploy/restore.py")
    await client.create(GROUPS, group("root", **{GPU: "8", HOURS: "100"}))
    await client.create(GROUPS, group("lost", "root", **{GPU: "4", HOURS: "50"}))
    controller = await parts.controller(recount_interval=0.5)

    async def has_record() -> bool:
        """Return True once hours are recorded: a pod that ended before that is none of the group's."""
        return await spent(client) == "0"

    await eventually(has_record, 60, "the record begins")
    for name in ("web", "api", "db"):
        await client.create(DEPLOYMENTS, deployment(name, "lost"))
    await a_pod_ran(client, 3)
    await client.create(CORRECTIONS, correction("credit", "lost", {GPU: "-1"}, by="pat"))

    found: Object = {}

    async def is_counted() -> bool:
        found["applied"] = (await client.get(CORRECTIONS, "credit")).get("status", {}).get("applied")
        found["status"] = status = (await client.get(GROUPS, "lost")).get("status", {})
        found["pages"] = stored = {record["metadata"]["name"] for record in (await client.list(PAYERS))[0]}
        found["records"] = [record.get("status") for record in (await client.list(CARD_HOURS))[0]]
        has_pages = "lost" in stored and len(stored) >= 2 and status.get("payersPages", 0) == len(stored)
        return bool(found["applied"]) and has_pages and not status.get("payersProblem") and await spent(client) == "2"

    await eventually(is_counted, 60, lambda: f"the hours are spent and corrected: {found}")
    backup = tmp_path / "backup.yaml"
    items = [item for kind in KINDS for item in (await client.list(kind))[0]]
    backup.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    before = {(item["kind"], item["metadata"]["name"]) for item in items}
    assert {kind for kind, _ in before} >= {"BizGroupCardHours", "BizGroupCorrection", "BizGroupPayers"}

    async with KubeClient(_as(parts, "pat")) as pat:
        await eventually(lambda: guarded(pat), 60, "the guards apply")

    # Everything of bizrq is lost; the workloads are not.
    controller.cancel()
    await asyncio.gather(controller, return_exceptions=True)
    for name in ("lost", "root"):
        await client.patch(GROUPS, name, {"metadata": {"finalizers": None}})
    for kind in KINDS:
        for item in (await client.list(kind))[0]:
            with contextlib.suppress(NotFound):
                await client.delete(kind, item["metadata"]["name"])

    # Not everybody may restore it; the groups alone may be made by whoever writes groups.
    async with KubeClient(_as(parts, "pat")) as pat:
        with pytest.raises(Forbidden, match=f"{guards.RECORDS}|{guards.STATUS}"):
            _ = [line async for line in restoring.restore(pat, restoring.items_of(backup.read_text()))]
    async with KubeClient(_as(parts, "rita")) as rita:
        lines = [line async for line in restoring.restore(rita, restoring.items_of(backup.read_text()))]
        assert "bizgroupcardhours.quota.biz.group lost created" in lines
        again = [line async for line in restoring.restore(rita, restoring.items_of(backup.read_text()))]
        assert {line.split()[-1] for line in again} == {"kept"}
    uid = (await client.get(GROUPS, "lost"))["metadata"]["uid"]
    assert (await client.get(CARD_HOURS, "lost"))["spec"]["uid"] == uid
    assert (await client.get(PAYERS, "lost"))["metadata"]["ownerReferences"][0]["uid"] == uid

    await parts.controller(recount_interval=0.5)
    await eventually(is_counted, 60, lambda: f"the hours count again: {found}")
    # Neither the pod nor the correction is counted twice by what comes after.
    generation = (await client.get(CARD_HOURS, "lost"))["metadata"]["resourceVersion"]
    await client.create(CORRECTIONS, correction("later", "lost", {GPU: "1"}, by="pat"))

    async def is_corrected_once_more() -> bool:
        return await spent(client) == "3"

    await eventually(is_corrected_once_more, 60, "a later correction counts")
    assert (await client.get(CARD_HOURS, "lost"))["metadata"]["resourceVersion"] != generation
    assert FINALIZER in (await client.get(GROUPS, "lost"))["metadata"]["finalizers"]
    audited = await Bizrq(parts.cluster.kubeconfig, client)("audit", "-o", "json")
    assert '"equal": true' in audited.out, audited


def _as(parts: Parts, user: str):
    who = Overrides(impersonated=user, groups=("system:authenticated",))
    return from_kubeconfig(parts.cluster.kubeconfig, None, who)
