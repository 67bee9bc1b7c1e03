"""What the record of hours costs the controller, without the network: CPU, size, and how long the loop is held up."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any

import msgspec

from bizrq.api import hours as wire
from bizrq.api.group import FINALIZER, GroupObject, GroupSpec, ObjectMeta
from bizrq.api.hours import CardHoursSpec
from bizrq.hours.metering import RecordPage
from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.process import quiet_collector
from bizrq.settings import load
from controller.hours.corrections import CorrectionTracker
from controller.hours.page_writer import PageWriter
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record import RecordReconciler
from controller.hours.record_store import RecordStore, StoredPage
from controller.hours.retention import StatementRetention
from controller.hours.tree_calendar import TreeCalendar
from controller.usage.claim_payers import ClaimPayers
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import SharedParts, trimmed_pod
from tests.bench.measure import longest_stall
from tests.support.catalog import CATALOG

GPU, A100 = "requests.nvidia.com/gpu", "requests.nvidia.com/gpu.A100"
HARD = {f"cash/{GPU}": 10**24}
NOW = 1_800_000_000_000
_LABELS = {"biz.group.resource.quota/gpu-type": "A100"}


class Drawer(RecordStore):
    """Records that are written to nowhere: all of the work but the request."""

    sizes: dict[str, int]

    async def write(self, stored_page: StoredPage, page: RecordPage, **shell: Any) -> StoredPage:
        after = replace(stored_page, page=page, revision=stored_page.revision + 1, **shell)
        self.sizes[stored_page.name] = len(msgspec.json.encode(wire.status_of(page)))
        return self._know(after)

    async def create(self, group: GroupObject, number: int, writer: str = "") -> StoredPage:
        name = f"{group.name}.{number}" if number else group.name
        return self._know(
            StoredPage(name, 1, CardHoursSpec(group.name, group.name, number), RecordPage(), writer=writer)
        )


class Office:
    """A controller's hours of groups in memory, each with one TFJob and as many pods."""

    def __init__(self, groups: int, pods: int) -> None:
        self.now = NOW
        settings = load(None)
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))  # never asked
        self.cluster = cluster_of(pods, groups)
        self.books = Drawer(client, lambda _group: None)
        self.books.sizes = {}
        evidence = ObservedUsage(self.cluster, settings.counting)
        payers = ClaimPayers(self.cluster.informers, lambda _group, _after: None)
        self.stays = IntervalCollector(
            self.cluster, evidence, payers, self.books, lambda _group, _after: None, lambda: self.now, catalog=CATALOG
        )
        corrections = CorrectionTracker(client, lambda _group, _after: None, now=lambda: self.now, catalog=CATALOG)
        self.hours = RecordReconciler(
            self.cluster,
            self.stays,
            self.books,
            TreeCalendar(
                self.cluster.groups, self.books, lambda _group, _after: None, catalog=CATALOG, now=lambda: self.now
            ),
            PageWriter(self.books, identity="bench"),
            corrections,
            StatementRetention(client, 0),
            lambda _group, _after: None,
        )
        metadata = [ObjectMeta(name=f"g{n}", uid=f"g{n}", finalizers=[FINALIZER]) for n in range(groups)]
        self.groups = [GroupObject(each, GroupSpec(hard={f"cash/{GPU}": "1M"})) for each in metadata]

    async def tick(self) -> float:
        """Move every record on by a minute; the CPU of it in seconds."""
        self.now += 60_000
        began = time.process_time()
        for group in self.groups:
            while not (await self.hours.reconcile(group, HARD)).is_done:
                pass
            await asyncio.sleep(0)
        return time.process_time() - began


def pods() -> list[str]:
    """B4: the pass over all pods that hours need, and how it grows."""
    return asyncio.run(_pass())


async def _pass() -> list[str]:
    rows, each, stall = [], {}, 0.0
    for count in (10_000, 30_000, 100_000):
        office = Office(1, count)
        await office.tick()
        quiet_collector()
        async with longest_stall() as longest:
            seconds = [await office.tick() for _ in range(3)]
        stall = max(stall, *longest)
        each[count] = min(seconds) / count * 1e6
        pages = office.hours.pages("g0")
        assert sum(len(since) for page in pages for since in page.running.values()) == count
        rows.append(f"{count}: {each[count]:.1f} µs a pod")
        del office
    exponent = 1 + math.log(each[100_000] / each[10_000]) / math.log(10)
    what = "a tick of one group's hours: pods, pages, texts of the record"
    return [f"| B4 | {what} | {', '.join(rows)}; exponent {exponent:.2f}; longest stall {stall * 1000:.0f} ms |"]


def many_groups() -> list[str]:
    """B11: a tick of 1,000 groups with 50,000 running pods."""
    return asyncio.run(_many_groups())


async def _many_groups() -> list[str]:
    office = Office(1000, 50_000)
    await office.tick()
    quiet_collector()
    async with longest_stall() as longest:
        seconds = min([await office.tick() for _ in range(3)])
    size = sum(office.books.sizes.values())
    figures = f"{seconds:.2f} s of CPU a minute, {size / 1e6:.1f} MB of records ({size / 50_000:.0f} B a pod)"
    what = "a tick of 1,000 groups with 50,000 running pods"
    return [f"| B11 | {what} | {figures}; longest stall {max(longest) * 1000:.0f} ms |"]


def cluster_of(pods: int, groups: int = 1) -> Cluster:
    """A cluster in memory with one TFJob a group, and so many pods of them all."""
    client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))  # never asked
    cluster = Cluster(client, load(None).registry, lambda _group, _after: None)
    fill(cluster, pods, groups)
    return cluster


def fill(cluster: Cluster, pods: int, groups: int = 1) -> None:
    """Put them into a cluster's caches."""
    for number in range(groups):
        labels = {"biz.group.resource.quota": f"g{number}", **_LABELS}
        metadata = {"namespace": "default", "uid": f"job-{number}", "resourceVersion": "1", "labels": labels}
        job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {**metadata, "name": f"j{number}"}}
        cluster.informers.workloads["tfjobs.kubeflow.org"].store.put({**job, "spec": {}})
    shapes = SharedParts()
    for number in range(pods):
        cluster.informers.pods.store.put(trimmed_pod(_pod(number, number % groups), shapes))


def _pod(number: int, job: int) -> dict[str, Any]:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": f"j{job}", "uid": f"job-{job}"}
    return {
        "metadata": {
            "name": f"p{number}",
            "namespace": "default",
            "uid": f"00000000-0000-0000-0000-{number:012d}",
            "resourceVersion": str(number + 1),
            "labels": {"app": "x"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "containerStatuses": [{"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
        },
    }
