"""The controller's life: watch, lead, look at groups, stop.

This file alone decides who works when. What a look does is `reconcile`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from bizrq import process
from bizrq.kube.client import ApiError, Conflict, KubeClient, Unreachable
from bizrq.kube.events import EventRecorder
from bizrq.kube.informer import not_synced
from bizrq.kube.lease import run_as_leader
from bizrq.settings import Settings
from bizrq.workloads.devices import hami
from controller import metrics
from controller.hours.corrections import CorrectionTracker
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record import RecordReconciler
from controller.hours.record_store import RecordStore
from controller.hours.retention import StatementRetention
from controller.queue import WorkQueue
from controller.reconcile import Reconciler
from controller.usage.claim_payers import ClaimPayers
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import UNHURRIED, Cluster, now_ms

log = structlog.get_logger(__name__)

LEASE = "bizrq-controller"


class Controller:
    """Keeps the status of every group true while it leads."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        *,
        recount_interval: float = 300.0,
        cash_interval: float = 60.0,
        workers: int = 5,
        keep_statements: int = 0,
        namespace: str = "bizrq-system",
        identity: str,
        now: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_statements` is of how many periods, 0 for all. `now` tells the cluster's time in milliseconds, `clock`
        our own, by which promises expire, in seconds.
        """
        self._client = client
        self._workers = workers
        self._namespace = namespace
        self._identity = identity
        self.queue = WorkQueue()
        config, catalog = settings.counting, settings.catalog
        of_counts_as = (key for way in config.counts_as for key in (way.annotation, way.times) if key)
        annotations = [*hami.counted_annotations(config), *of_counts_as]
        self.cluster = Cluster(client, settings.registry, self.queue.add, annotations)
        self._recorder = EventRecorder(client, "bizrq-controller")
        evidence = ObservedUsage(self.cluster, config)
        books = RecordStore(client, lambda group: self.queue.add(group, UNHURRIED))
        corrections = CorrectionTracker(client, self.queue.add, catalog=catalog, now=now)
        self.cluster.informers.count_from(books.informer)
        self.cluster.informers.count_from(corrections.informer)
        claim_payers = ClaimPayers(self.cluster.informers)
        collector = IntervalCollector(self.cluster, evidence, claim_payers, books, self.queue.add, now, catalog)
        self.cluster.subscribe(collector)
        hours = RecordReconciler(
            self.cluster,
            collector,
            books,
            corrections,
            StatementRetention(client, keep_statements),
            self.queue.add,
            identity=identity,
            catalog=catalog,
            cash_interval=cash_interval,
            now=now,
        )
        self._reconciler = Reconciler(
            self.cluster,
            hours,
            books,
            evidence,
            claim_payers,
            self._recorder,
            config,
            catalog=catalog,
            recount_interval=recount_interval,
            now=now,
            clock=clock,
        )
        self.leading = asyncio.Event()

    @property
    def unready(self) -> str:
        """Why it could not lead: which of its caches are not yet what the API server has. "" where it could."""
        return not_synced(self.cluster.informers.all)

    async def run(self) -> None:
        """Watch, and work while the Lease is held, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cluster.informers.run(), name="watch")
                tasks.create_task(
                    run_as_leader(
                        self._client,
                        namespace=self._namespace,
                        name=LEASE,
                        identity=self._identity,
                        on_lead=self._work,
                    ),
                    name="lead",
                )
        finally:
            await self._recorder.close()

    async def _work(self) -> None:
        """Look at every group once, then at whatever the queue brings, until leadership ends."""
        for informer in self.cluster.informers.all:
            await informer.synced.wait()
        process.quiet_collector()
        for group in self.cluster.groups.values():
            self.queue.add(group.name)
        log.info("counting", groups=len(self.cluster.groups.values()))
        metrics.LEADER.set(1)
        self.leading.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    tasks.create_task(self._worker(), name=f"worker {number}")
        finally:
            self.leading.clear()
            metrics.LEADER.set(0)

    async def _worker(self) -> None:
        while True:
            name = await self.queue.get()
            failed, again = True, None
            began = time.monotonic()
            try:
                again = await self._reconciler.reconcile(name)
                failed = False
                metrics.RECONCILES.labels("done").inc()
            except Conflict:
                # Somebody wrote the group in between: look again, at the newer version, as soon as the pace allows. To
                # wait longer each time would leave a busy group's reservations standing.
                failed, again = False, 0.0
                metrics.RECONCILES.labels("conflict").inc()
            except (ApiError, Unreachable) as error:
                metrics.RECONCILES.labels("failed").inc()
                log.warning("group not reconciled, again later", group=name, error=str(error))
            except Exception:
                metrics.RECONCILES.labels("error").inc()
                log.exception("group not reconciled, again later", group=name)
            finally:
                self.queue.done(name, failed=failed)
                metrics.RECONCILE_SECONDS.observe(time.monotonic() - began)
                metrics.QUEUE_DEPTH.set(len(self.queue))
            if again is not None:
                self.queue.add(name, again)
            elif not failed:
                self.queue.forget(name)
