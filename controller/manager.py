"""The controller process: watch, lead, reconcile groups, stop.

This file alone builds the controller's parts and decides when workers run. `reconcile` decides what one look does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from prometheus_client.registry import Collector

from bizrq import process
from bizrq.kube.client import ApiError, Conflict, KubeClient, Unreachable
from bizrq.kube.events import EventRecorder
from bizrq.kube.informer import log_absent, not_synced
from bizrq.kube.lease import run_as_leader
from bizrq.metrics import WatchAges
from bizrq.settings import Settings
from bizrq.workloads.demand import counting
from controller import metrics
from controller.enforcement import EnforcementWatch
from controller.hours.corrections import CorrectionTracker
from controller.hours.page_writer import PageWriter
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record import RecordReconciler
from controller.hours.record_store import RecordStore
from controller.hours.retention import StatementRetention
from controller.hours.tree_calendar import TreeCalendar
from controller.overlap import OverlapList
from controller.queue import QueueState, WorkQueue
from controller.reconcile import Reconciler
from controller.registration import RegistrationKeeper
from controller.usage.allowances import Allowances
from controller.usage.claim_payers import ClaimPayers
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import UNHURRIED, Cluster, now_ms

log = structlog.get_logger(__name__)

LEASE = "bizrq-controller"
#: How often a group is counted at once whose status another process wrote meanwhile. After that others go first.
_ATTEMPTS = 4
#: With allowances so many times as many groups are counted at a time: a count saves many writes then, and its own write
#: waits among the requests of a busy API server. Without, a count is no more urgent than they are.
_WITH_ALLOWANCES = 4


class Controller:
    """Keeps the status of every group up to date while it leads."""

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
        registers: bool = False,
        webhook_url: str = "",
        now: Callable[[], int] = now_ms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_statements` is a number of periods, 0 for all. Intervals are in seconds.

        With `registers` the leader keeps the registration of the webhooks, at `webhook_url` or by their Service.

        `now` returns the cluster's time in milliseconds since 1970. `clock` returns the controller's own time in
        seconds, by which reservations expire.
        """
        self._client = client
        self._workers = workers
        self._namespace = namespace
        self._identity = identity
        self.queue = WorkQueue()
        config, catalog = settings.counting, settings.catalog
        registry = settings.around(namespace).registry
        self.cluster = Cluster(client, registry, self._enqueue, counting.counted_annotations(config), now)
        self._recorder = EventRecorder(client, "bizrq-controller")
        self._keeper = (
            RegistrationKeeper(client, settings, self._recorder, namespace=namespace, webhook_url=webhook_url)
            if registers
            else None
        )
        observed = ObservedUsage(self.cluster, config)
        record_store = RecordStore(client, lambda group: self.queue.add(group, UNHURRIED))
        corrections = CorrectionTracker(client, self.queue.add, catalog=catalog, now=now)
        self.cluster.informers.count_from(record_store.informer)
        self.cluster.informers.count_from(corrections.informer)
        claim_payers = ClaimPayers(self.cluster.informers, self._enqueue)
        collector = IntervalCollector(self.cluster, observed, claim_payers, record_store, self._enqueue, now, catalog)
        self.cluster.subscribe(collector)
        record_reconciler = RecordReconciler(
            self.cluster,
            collector,
            record_store,
            TreeCalendar(self.cluster.groups, record_store, self.queue.add, catalog=catalog, now=now),
            PageWriter(record_store, identity=identity, cash_interval=cash_interval),
            corrections,
            StatementRetention(client, keep_statements),
            self.queue.add,
        )
        self._overlaps = OverlapList(client, now)
        self.cluster.unfinished.subscribe(self._overlaps.reject_late)
        self._overlaps.subscribe(lambda group: self._enqueue(group, 0.0))
        self._enforcement = EnforcementWatch(
            client,
            lambda: [group.name for group in self.cluster.groups.values()],
            self.queue.add,
            namespace=namespace,
        )
        self._allowances = Allowances(self.cluster, namespace, self.queue.add, now, clock)
        self._reconciler = Reconciler(
            self.cluster,
            record_reconciler,
            record_store,
            observed,
            claim_payers,
            self._recorder,
            self._overlaps,
            self._enforcement,
            self._allowances,
            config,
            catalog=catalog,
            recount_interval=recount_interval,
            now=now,
            clock=clock,
        )
        self.leading = asyncio.Event()
        metrics.LEADER.labels(LEASE).set(0)

    def _enqueue(self, name: str, after: float) -> None:
        """Make a group due in which something changed."""
        self.queue.add(name, self._allowances.due_after(name, after))

    def collectors(self) -> list[Collector]:
        """Return the metrics that are measured at a scrape."""
        return [QueueState(self.queue, self.leading.is_set), self.watch_ages]

    @property
    def watch_ages(self) -> WatchAges:
        return WatchAges(lambda: self.cluster.informers.all)

    @property
    def unready(self) -> str:
        """Return which informers have not synced yet; "" when the controller is ready to lead."""
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
        """Reconcile every group once, then those that the queue brings, until leadership ends."""
        metrics.LEADER.labels(LEASE).set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._keeper is not None:
                    tasks.create_task(self._keeper.run(), name="registration")
                tasks.create_task(self._lead(), name="count")
        finally:
            metrics.LEADER.labels(LEASE).set(0)
            # Another process counts from now on, and what this one knew grows old.
            for family in metrics.OF_GROUPS:
                family.clear()

    async def _lead(self) -> None:
        for informer in self.cluster.informers.all:
            await informer.synced.wait()
        log_absent(self.cluster.informers.all)
        process.quiet_collector()
        await self.cluster.see_pods()
        self.cluster.releases.settle()
        self.cluster.releases.find_unseen_ends()
        self.cluster.releases.find_unseen_versions()
        await self.cluster.unfinished.find_unseen()
        self._reconciler.find_unseen()
        await self._enforcement.look()
        for group in self.cluster.groups.values():
            self.queue.add(group.name)
        log.info("counting", groups=len(self.cluster.groups.values()))
        self.queue.begin()
        self.leading.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._overlaps.run(), name="overlaps")
                tasks.create_task(self._enforcement.run(), name="enforcement")
                tasks.create_task(self._allowances.run(), name="allowances")
                for number in range(_WITH_ALLOWANCES * self._workers):
                    is_more = number >= self._workers
                    worker = self._worker(self._allowances.in_use if is_more else None)
                    tasks.create_task(worker, name=f"worker {number}")
        finally:
            self.leading.clear()

    async def _worker(self, only_while: asyncio.Event | None = None) -> None:
        """Count one group after the other, where an event is given only while that is set."""
        while True:
            if only_while is not None:
                await only_while.wait()
            await self._count(await self.queue.get())

    async def _count(self, name: str) -> None:
        """Reconcile one group, and make it due again."""
        failed, again = True, None
        try:
            again = await self._reconcile(name)
            failed = False
        except (ApiError, Unreachable) as error:
            metrics.RECONCILES.labels("failed").inc()
            log.warning("group not reconciled, retrying", group=name, error=str(error))
        except Exception:
            metrics.RECONCILES.labels("error").inc()
            log.exception("group not reconciled, retrying", group=name)
        finally:
            self.queue.done(name, failed=failed)
        if again is not None:
            self.queue.add(name, again)
        elif not failed:
            self.queue.forget(name)

    async def _reconcile(self, name: str) -> float | None:
        """Reconcile a group, again where it was written meanwhile: a busy group's reservations have to be dropped."""
        for _ in range(_ATTEMPTS):
            try:
                again = await self._reconciler.reconcile(name)
            except Conflict:
                metrics.RECONCILES.labels("conflict").inc()
            else:
                metrics.RECONCILES.labels("done").inc()
                return again
        return 0.0
