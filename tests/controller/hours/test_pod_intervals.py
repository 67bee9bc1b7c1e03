"""The intervals that a record takes over: ends that the watch says once, moves, changes of cost, former leaders.

A cluster in memory whose stores the test fills, and a clock that it sets; the API server is never asked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bizrq.api import hours as wire
from bizrq.api.group import ObjectMeta
from bizrq.hours.metering import HOUR, RecordPage, advance, period_total, to_hours
from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.settings import settings
from bizrq.units.names import is_cash, metered_resource
from bizrq.units.quantity import NANO
from bizrq.units.times import format_timestamp
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from controller.hours.metered_names import MAX_MODELS
from controller.hours.pod_intervals import IntervalCollector
from controller.hours.record_store import RecordStore
from controller.usage.claim_payers import ClaimPayers
from controller.usage.observed_usage import ObservedUsage
from controller.watch.cluster import Cluster
from controller.watch.pods import SharedParts, trimmed_pod
from tests.support.catalog import CATALOG
from tests.support.language import res
from tests.support.objects import Object, tfjob

T = 1_700_000_000_000
GPU = "requests.nvidia.com/gpu"
HARD = res("cash/gpu=1k")
MODELS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100-SXM4-80GB"]}}}


class Desk:
    """A collector, one job and its pods. Times are hours after T."""

    def __init__(self) -> None:
        self.now = T
        self.revision = 1
        self._written = 0
        self.enqueued: list[str] = []
        found = settings(MODELS)
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, found.registry, lambda _group, _after: None)
        self._evidence = ObservedUsage(self.cluster, found.counting)
        self.books = RecordStore(client, lambda _group: None)
        self.stays = self.memory()
        self._shapes = SharedParts()
        self._jobs = self.cluster.informers.workloads["tfjobs.kubeflow.org"].store
        self.job = tfjob("train", "nlp")
        self.job["metadata"] |= {"uid": "job", "resourceVersion": "1"}
        self._jobs.put(self.job)

    def memory(self) -> IntervalCollector:
        """Return the collector of a controller that has just started, subscribed to changes from now on."""
        collector = IntervalCollector(
            self.cluster,
            self._evidence,
            ClaimPayers(self.cluster.informers, lambda _group, _after: None),
            self.books,
            lambda group, _after: self.enqueued.append(group),
            lambda: self.now,
            catalog=CATALOG,
        )
        self.cluster.subscribe(collector)
        return collector

    def at(self, hour: float) -> None:
        self.now = T + int(hour * HOUR)

    def pod(self, uid: str, since: float, end: float | None = None, gpu: int = 1, **spec: Any) -> None:
        """Deliver a new or changed pod of the job."""
        old, revision = self.cluster.informers.pod(uid), self._next()
        new = trimmed_pod(
            _pod(uid, T + int(since * HOUR), None if end is None else T + int(end * HOUR), gpu, revision, spec),
            self._shapes,
        )
        self.cluster.informers.pods.store.put(new)
        self.stays.on_pod(old, new)

    def gone(self, uid: str, *, seen: bool = True, **metadata: Any) -> None:
        """Deliver a deletion with the pod's last state; if not `seen`, as a list that lacks the pod."""
        old = self.cluster.informers.pod(uid)
        assert old is not None
        self.cluster.informers.pods.store.remove(old)
        rest = {"metadata": metadata, "status": {}} if metadata else old.rest
        revision = self._next()
        self.stays.on_pod(msgspec.structs.replace(old, revision=revision if seen else old.revision, rest=rest), None)

    def _next(self) -> int:
        self.revision += 1
        self.cluster.informers.pods.store.resource_version = self.revision
        return self.revision

    def relabel(self, **labels: str | None) -> None:
        """Change the job's labels: `group`, or the model of a resource. None removes a label."""
        old, self.job = self.job, copy.deepcopy(self.job)
        for what, value in labels.items():
            label = LABEL if what == "group" else MODEL_LABELS[what]
            self.job["metadata"]["labels"].pop(label, None)
            if value is not None:
                self.job["metadata"]["labels"][label] = value
        self._jobs.put(self.job)
        self.cluster.workload_changed(old, self.job)

    async def look(
        self, page: RecordPage, group: str = "nlp", hard: dict[str, int] = HARD
    ) -> tuple[RecordPage, Callable[[], None]]:
        """Advance the group's record. Returns the page, and a function to call once it is stored."""
        self._learn(page, group)
        sheets = self.books.of(group)
        tracked = {metered_resource(name) for name in hard if is_cash(name)}
        found = await self.stays.collect(group, tracked, sheets)
        moved = advance(page, found.intervals, found.at, holds=lambda uid: self.stays.is_awaited(uid, group))

        def stored() -> None:
            self.stays.mark_stored(group, found)
            self._learn(moved, group, found.seen)

        return moved, stored

    async def stored(self, page: RecordPage, group: str = "nlp", hard: dict[str, int] = HARD) -> RecordPage:
        """Advance the group's record with a successful write."""
        moved, stored = await self.look(page, group, hard)
        stored()
        return moved

    def _learn(self, page: RecordPage, group: str, seen: dict[str, int] | None = None) -> None:
        """Store a page of the group's record."""
        self._written += 1
        before = next(iter(self.books.of(group)), None)
        status = wire.status_of(page)
        kept = (before.seen if before else None) if seen is None else seen
        status.seen = {kind: str(revision) for kind, revision in (kept or {}).items()}
        metadata = ObjectMeta(name=group, uid=group, resource_version=str(self._written))
        self.books.on_change(None, wire.to_json(wire.CardHours(metadata, wire.CardHoursSpec(group, group), status)))


def spent(page: RecordPage) -> dict[str, int]:
    return to_hours(period_total(page))


def _pod(uid: str, since: int, end: int | None, gpu: int, revision: int, spec: Object) -> Object:
    status: Object = {
        "phase": "Succeeded" if end else "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": format_timestamp(since)}],
    }
    if end:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": format_timestamp(end)}}}]
    return {
        "metadata": {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(revision),
            "ownerReferences": [
                {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "train", "uid": "job", "controller": True}
            ],
        },
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpu)}}}], **spec},
        "status": status,
    }


@pytest.fixture
async def desk() -> Desk:
    return Desk()


# -- Gone pods ---------------------------------------------------------------------------------------------------------


async def test_a_pod_that_came_and_went_between_two_looks_is_told_until_it_is_stored(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(2)
    desk.gone("a")
    assert desk.enqueued == ["nlp", "nlp"]
    lost, _ = await desk.look(RecordPage())
    again, stored = await desk.look(RecordPage())
    assert spent(lost) == spent(again) == res("cash/gpu=2")
    stored()
    assert spent(await desk.stored(RecordPage())) == {}


async def test_a_write_whose_reply_was_lost_settles_nothing_twice_and_finished_empties_itself(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.pod("b", since=0, end=1)
    desk.at(2)
    desk.gone("a")
    desk.gone("b")
    page, _ = await desk.look(RecordPage())
    assert page.finished == {"a", "b"}
    again, _ = await desk.look(page)
    assert again == page
    page, stored = await desk.look(again)
    assert spent(page) == res("cash/gpu=3")
    assert page.finished == {"a", "b"}
    stored()
    page = await desk.stored(page)
    assert (spent(page), page.finished) == (res("cash/gpu=3"), frozenset())


async def test_who_begins_to_lead_charges_what_came_and_went_after_the_record_and_nothing_that_it_knows(
    desk: Desk,
) -> None:
    """The record says which deletions the former leader had seen. All later ones are charged."""
    leader, standby = desk.stays, desk.memory()

    def comes_and_goes(uid: str, since: float, until: float) -> None:
        desk.at(since)
        desk.stays = leader
        desk.pod(uid, since)
        pod = desk.cluster.informers.pod(uid)
        standby.on_pod(None, pod)
        desk.at(until)
        desk.gone(uid)
        assert pod is not None
        standby.on_pod(msgspec.structs.replace(pod, revision=desk.revision), None)

    comes_and_goes("a", 0, 1)
    page = await desk.stored(await desk.stored(RecordPage()))
    assert (spent(page), page.finished) == (res("cash/gpu=1"), frozenset())
    comes_and_goes("b", 2, 4)
    desk.stays = standby
    assert spent(await desk.stored(page)) == res("cash/gpu=3")


async def test_what_ended_in_a_group_that_does_not_meter_is_forgotten(desk: Desk) -> None:
    """Otherwise ends would accumulate and be charged to the first hours that the group is granted."""
    desk.pod("a", since=0)
    desk.at(2)
    desk.gone("a")
    desk.stays.drop_group("nlp")
    assert spent(await desk.stored(RecordPage())) == {}


async def test_a_pod_that_vanished_unseen_is_charged_to_the_last_look_and_listed(desk: Desk) -> None:
    """If no controller ran, or a list lacks the pod after the watch broke, its end is unknown."""
    for uid in ("a", "b"):
        desk.pod(uid, since=0)
    desk.at(1)
    page = await desk.stored(RecordPage())
    vanished = desk.cluster.informers.pod("a")
    assert vanished is not None
    desk.cluster.informers.pods.store.remove(vanished)
    desk.gone("b", seen=False)
    desk.at(5)
    page = await desk.stored(page)
    assert spent(page) == res("cash/gpu=2")
    assert [(gone.uid, gone.charged_to, gone.seen_gone) for gone in page.inferred] == [
        ("a", T + HOUR, T + 5 * HOUR),
        ("b", T + HOUR, T + 5 * HOUR),
    ]


async def test_a_pod_whose_end_was_seen_is_not_listed(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    page = await desk.stored(RecordPage())
    desk.gone("a")
    assert (await desk.stored(page)).inferred == ()


@pytest.mark.parametrize(
    ("why", "asked", "grace", "seen", "charged"),
    [
        ("deleted at once, by a clock that is behind", 3, 0, 2.9, "3"),
        ("deleted at once, by a clock that is ahead", 3, 0, 3.2, "3"),
        ("gone within its grace", 3, 1800, 3.25, "3250m"),
        ("gone before it was asked to, by our clock", 3, 1800, 2.5, "3"),
        ("gone long after its grace, by our clock", 3, 1800, 9, "3500m"),
    ],
)
async def test_a_pod_that_is_deleted_ends_between_the_request_and_the_end_of_its_grace(
    desk: Desk, why: str, asked: float, grace: int, seen: float, charged: str
) -> None:
    """The API server's clock gives the bounds; the controller's clock decides only between them."""
    desk.pod("a", since=0)
    page = await desk.stored(RecordPage())
    desk.at(seen)
    deadline = format_timestamp(T + int(asked * HOUR) + grace * 1000)
    desk.gone("a", deletionTimestamp=deadline, deletionGracePeriodSeconds=grace)
    assert spent(await desk.stored(page)) == res(f"cash/gpu={charged}")


# -- Moves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 0.25], ids=["looked at once", "looked at later"])
async def test_a_move_of_the_label_splits_the_hours_at_the_move(desk: Desk, late: float) -> None:
    """One hour for one group, two for the other: every millisecond is charged to exactly one."""
    desk.pod("a", since=0)
    desk.at(0.5)
    before = await desk.stored(RecordPage())
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(1 + late)
    left = await desk.stored(before)
    came = await desk.stored(RecordPage(), "vision")
    assert period_total(left) == {"requests.nvidia.com/gpu": 10**9 * HOUR}
    desk.at(3)
    desk.gone("a")
    assert period_total(await desk.stored(left)) == period_total(left)
    assert to_hours(period_total(await desk.stored(came, "vision"))) == res("cash/gpu=2")


async def test_a_move_that_was_looked_at_after_the_pod_had_gone_begins_at_the_move(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(3)
    desk.gone("a")
    assert spent(await desk.stored(RecordPage(), "vision")) == res("cash/gpu=2")


async def test_a_pod_that_moved_and_went_before_anybody_looked_is_charged_to_each_for_its_own_part(desk: Desk) -> None:
    desk.pod("a", since=0)
    before = await desk.stored(RecordPage())
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(1.1)
    desk.gone("a")
    assert spent(await desk.stored(before)) == res("cash/gpu=1")
    assert spent(await desk.stored(RecordPage(), "vision")) == res("cash/gpu=100m")


async def test_a_pod_that_moved_away_and_back_ends_when_it_ends(desk: Desk) -> None:
    desk.pod("a", since=0)
    page = await desk.stored(RecordPage())
    desk.at(1)
    desk.relabel(group="vision")
    desk.relabel(group="nlp")
    page = await desk.stored(page)
    desk.at(3)
    desk.gone("a")
    assert spent(await desk.stored(page)) == res("cash/gpu=3")


async def test_a_pod_that_begins_after_the_move_counts_from_its_own_beginning(desk: Desk) -> None:
    desk.at(1)
    desk.relabel(group="vision")
    desk.pod("a", since=2)
    desk.at(4)
    assert spent(await desk.stored(RecordPage(), "vision")) == res("cash/gpu=2")


async def test_taking_the_label_away_ends_the_hours_and_giving_it_begins_them(desk: Desk) -> None:
    desk.pod("a", since=0)
    page = await desk.stored(RecordPage())
    desk.at(1)
    desk.relabel(group=None)
    page = await desk.stored(page)
    desk.at(5)
    desk.relabel(group="nlp")
    page = await desk.stored(page)
    desk.at(7)
    assert spent(await desk.stored(page)) == res("cash/gpu=3")


async def test_a_pod_that_had_ended_before_the_move_is_not_charged_again(desk: Desk) -> None:
    desk.pod("a", since=0, end=1)
    desk.at(2)
    left = await desk.stored(RecordPage())
    desk.relabel(group="vision")
    came = await desk.stored(RecordPage(), "vision")
    assert spent(await desk.stored(left)) == res("cash/gpu=1")
    assert spent(came) == {}


# -- Changes of cost ---------------------------------------------------------------------------------------------------

OF_A100 = res("cash/gpu=1k cash/gpu.A100=1k")


async def test_another_model_label_counts_from_the_look_that_finds_it(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    page = await desk.stored(RecordPage(), hard=OF_A100)
    desk.relabel(gpu="A100")
    page = await desk.stored(page, hard=OF_A100)
    desk.at(3)
    assert spent(await desk.stored(page, hard=OF_A100)) == res("cash/gpu=3 cash/gpu.A100=2")


async def test_a_record_has_a_hundred_models_and_of_all_others_the_hours_of_their_base(desk: Desk) -> None:
    desk.pod("a", since=0)
    page = RecordPage()
    for minute in range(110):
        desk.relabel(gpu=f"M{minute}")
        desk.at(minute / 60)
        page = await desk.stored(page)
    desk.at(2)
    page = await desk.stored(page)
    assert len(period_total(page)) == 1 + MAX_MODELS
    assert period_total(page)[GPU] == 2 * HOUR * NANO
    assert period_total(page)[f"{GPU}.M99"] == HOUR // 60 * NANO


async def test_a_resize_counts_from_the_look_that_finds_it(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    page = await desk.stored(RecordPage())
    desk.pod("a", since=0, gpu=4)
    page = await desk.stored(page)
    desk.at(2)
    assert spent(await desk.stored(page)) == res("cash/gpu=5")


async def test_a_cash_name_that_is_added_counts_from_then_on(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    page = await desk.stored(RecordPage())
    wider = HARD | res("cash/pods=1k")
    page = await desk.stored(page, hard=wider)
    desk.at(3)
    assert spent(await desk.stored(page, hard=wider)) == res("cash/gpu=3 cash/pods=2")


async def test_a_group_that_pages_for_the_first_time_counts_what_runs_from_its_beginning(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(2)
    assert spent(await desk.stored(RecordPage())) == res("cash/gpu=2")


@pytest.mark.parametrize(
    "constraint",
    [
        {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {
                                        "key": "nvidia.com/gpu.product",
                                        "operator": "In",
                                        "values": ["NVIDIA-A100-SXM4-80GB"],
                                    }
                                ]
                            }
                        ]
                    }
                }
            }
        },
    ],
    ids=["nodeSelector", "affinity"],
)
async def test_a_model_that_node_constraints_prove_is_pageed(desk: Desk, constraint: Object) -> None:
    desk.pod("a", since=0, **constraint)
    desk.at(2)
    assert spent(await desk.stored(RecordPage(), hard=OF_A100)) == res("cash/gpu=2 cash/gpu.A100=2")


def test_a_collection_that_ends_takes_no_changes_from_another(desk: Desk) -> None:
    """Their sets may be equal when the first one ends."""
    pods = desk.stays._pods  # pyright: ignore[reportPrivateUsage]
    with pods.tracking_changes() as changed:
        with pods.tracking_changes():
            pass
        desk.pod("a", 0)
        assert changed == {"a"}
