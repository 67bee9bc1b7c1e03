"""Which stays the meter is told: ends that the watch says once, moves, changes of cost, and who leads.

A cluster in memory whose stores the test fills, and a clock that it sets; the API server is never asked.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from bizrq.kube.client import KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials
from bizrq.quota.cash import HOUR, Meter, hours, spent, total
from bizrq.quota.ledger import timestamp
from bizrq.settings import settings
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from controller.cluster import Cluster
from controller.evidence import Evidence
from controller.meter import Stays
from controller.pods import Shapes, trimmed
from tests.language import res
from tests.objects import Object, tfjob

T = 1_700_000_000_000
HARD = res("cash/gpu=1k")
MODELS = {"gpuModels": {"A100": {"aliases": ["NVIDIA-A100-SXM4-80GB"]}}}


class Desk:
    """A controller's memory of one job and its pods. Times are hours after T."""

    def __init__(self) -> None:
        self.now = T
        self.enqueued: list[str] = []
        found = settings(MODELS)
        client = KubeClient(Endpoint("http://127.0.0.1:1", StaticCredentials({})))
        self.cluster = Cluster(client, found.registry, lambda _group, _after: None)
        evidence = Evidence(self.cluster, found.counting)
        self.stays = Stays(self.cluster, evidence, lambda group, _after: self.enqueued.append(group), lambda: self.now)
        self._shapes = Shapes()
        self._jobs = self.cluster.workloads["tfjobs.kubeflow.org"].store
        self.job = tfjob("train", "nlp")
        self.job["metadata"] |= {"uid": "job", "resourceVersion": "1"}
        self._jobs.put(self.job)
        self.stays.begin()

    def at(self, hour: float) -> None:
        self.now = T + int(hour * HOUR)

    def pod(self, uid: str, since: float, end: float | None = None, gpu: int = 1, **spec: Any) -> None:
        """A pod of the job as the watch brings it, first or changed."""
        old = self.cluster.pod(uid)
        new = trimmed(
            _pod(uid, T + int(since * HOUR), None if end is None else T + int(end * HOUR), gpu, spec), self._shapes
        )
        self.cluster.pods.store.put(new)
        self.stays.on_pod(old, new)

    def gone(self, uid: str) -> None:
        old = self.cluster.pod(uid)
        assert old is not None
        self.cluster.pods.store.remove(old)
        self.stays.on_pod(old, None)

    def relabel(self, **labels: str | None) -> None:
        """Change the job's labels: `group`, or a model by what it is of; None takes one away."""
        old, self.job = self.job, copy.deepcopy(self.job)
        for what, value in labels.items():
            label = LABEL if what == "group" else MODEL_LABELS[what]
            self.job["metadata"]["labels"].pop(label, None)
            if value is not None:
                self.job["metadata"]["labels"][label] = value
        self._jobs.put(self.job)
        self.cluster.workload_changed(old, self.job)

    def look(self, meter: Meter, group: str = "nlp", hard: dict[str, int] = HARD) -> tuple[Meter, Callable[[], None]]:
        return self.stays.advance(meter, group, hard)

    def stored(self, meter: Meter, group: str = "nlp", hard: dict[str, int] = HARD) -> Meter:
        """A look whose write succeeds."""
        moved, stored = self.look(meter, group, hard)
        stored()
        return moved


def _pod(uid: str, since: int, end: int | None, gpu: int, spec: Object) -> Object:
    status: Object = {
        "phase": "Succeeded" if end else "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(since)}],
    }
    if end:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": timestamp(end)}}}]
    return {
        "metadata": {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
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
    lost, _ = desk.look(Meter())
    again, stored = desk.look(Meter())
    assert spent(lost) == spent(again) == res("cash/gpu=2")
    stored()
    assert spent(desk.stored(Meter())) == {}


async def test_a_write_whose_reply_was_lost_settles_nothing_twice_and_finished_empties_itself(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.pod("b", since=0, end=1)
    desk.at(2)
    desk.gone("a")
    desk.gone("b")
    meter, _ = desk.look(Meter())
    assert meter.finished == {"a", "b"}
    again, _ = desk.look(meter)
    assert again == meter
    meter, stored = desk.look(again)
    assert spent(meter) == res("cash/gpu=3")
    assert meter.finished == {"a", "b"}
    stored()
    meter = desk.stored(meter)
    assert (spent(meter), meter.finished) == (res("cash/gpu=3"), frozenset())


async def test_who_begins_to_lead_forgets_what_ended_before_but_not_when(desk: Desk) -> None:
    """The one who led then has settled what came and went; what it still had as running ended when the watch said."""
    desk.pod("a", since=0)
    desk.at(1)
    led = desk.stored(Meter())
    desk.pod("b", since=1)
    desk.at(3)
    desk.gone("a")
    desk.gone("b")
    desk.stays.begin()
    desk.at(9)
    meter, _ = desk.look(led)
    assert spent(meter) == res("cash/gpu=3")
    assert meter.running == {}


async def test_who_does_not_lead_remembers_no_stays(desk: Desk) -> None:
    desk.stays.end()
    desk.pod("a", since=0)
    desk.at(2)
    desk.gone("a")
    assert spent(desk.stored(Meter())) == {}


async def test_what_ended_in_a_group_that_does_not_meter_is_forgotten(desk: Desk) -> None:
    """It would pile up, and be charged to the first hours that the group is ever given."""
    desk.pod("a", since=0)
    desk.at(2)
    desk.gone("a")
    assert desk.stored(Meter(), hard=res("gpu=8")) == Meter()
    assert spent(desk.stored(Meter())) == {}


async def test_a_pod_that_vanished_unseen_is_told_to_the_log(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    meter = desk.stored(Meter())
    [pod] = desk.cluster.pods.store.all_kept()
    desk.cluster.pods.store.remove(pod)
    desk.at(5)
    with capture_logs() as logs:
        assert spent(desk.stored(meter)) == res("cash/gpu=1")
    assert [(log["event"], log["group"], log["pod"]) for log in logs] == [
        ("pod vanished unseen: charged up to the last look", "nlp", "a")
    ]


async def test_a_pod_whose_end_was_seen_is_nothing_for_the_log(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    meter = desk.stored(Meter())
    desk.gone("a")
    with capture_logs() as logs:
        desk.stored(meter)
    assert logs == []


# -- Moves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0.0, 0.25], ids=["looked at once", "looked at later"])
async def test_a_move_of_the_label_splits_the_hours_at_the_move(desk: Desk, late: float) -> None:
    """One hour for the one, two for the other: not a millisecond is both's or nobody's."""
    desk.pod("a", since=0)
    desk.at(0.5)
    before = desk.stored(Meter())
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(1 + late)
    left = desk.stored(before)
    came = desk.stored(Meter(), "vision")
    assert total(left) == {"requests.nvidia.com/gpu": 10**9 * HOUR}
    desk.at(3)
    desk.gone("a")
    assert desk.stored(left).settled == left.settled
    assert hours(total(desk.stored(came, "vision"))) == res("cash/gpu=2")


async def test_a_move_that_was_looked_at_after_the_pod_had_gone_begins_at_the_move(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(3)
    desk.gone("a")
    assert spent(desk.stored(Meter(), "vision")) == res("cash/gpu=2")


async def test_a_pod_that_moved_and_went_before_anybody_looked_is_charged_to_each_for_its_own_part(desk: Desk) -> None:
    desk.pod("a", since=0)
    before = desk.stored(Meter())
    desk.at(1)
    desk.relabel(group="vision")
    desk.at(1.1)
    desk.gone("a")
    assert spent(desk.stored(before)) == res("cash/gpu=1")
    assert spent(desk.stored(Meter(), "vision")) == res("cash/gpu=100m")


async def test_a_pod_that_moved_away_and_back_ends_when_it_ends(desk: Desk) -> None:
    desk.pod("a", since=0)
    meter = desk.stored(Meter())
    desk.at(1)
    desk.relabel(group="vision")
    desk.relabel(group="nlp")
    meter = desk.stored(meter)
    desk.at(3)
    desk.gone("a")
    desk.stays.begin()
    assert spent(desk.stored(meter)) == res("cash/gpu=3")


async def test_a_pod_that_begins_after_the_move_counts_from_its_own_beginning(desk: Desk) -> None:
    desk.at(1)
    desk.relabel(group="vision")
    desk.pod("a", since=2)
    desk.at(4)
    assert spent(desk.stored(Meter(), "vision")) == res("cash/gpu=2")


async def test_taking_the_label_away_ends_the_hours_and_giving_it_begins_them(desk: Desk) -> None:
    desk.pod("a", since=0)
    meter = desk.stored(Meter())
    desk.at(1)
    desk.relabel(group=None)
    meter = desk.stored(meter)
    desk.at(5)
    desk.relabel(group="nlp")
    meter = desk.stored(meter)
    desk.at(7)
    assert spent(desk.stored(meter)) == res("cash/gpu=3")


async def test_a_pod_that_had_ended_before_the_move_is_not_charged_again(desk: Desk) -> None:
    desk.pod("a", since=0, end=1)
    desk.at(2)
    left = desk.stored(Meter())
    desk.relabel(group="vision")
    came = desk.stored(Meter(), "vision")
    assert spent(desk.stored(left)) == res("cash/gpu=1")
    assert spent(came) == res("cash/gpu=0")


# -- Changes of cost ---------------------------------------------------------------------------------------------------

OF_A100 = res("cash/gpu=1k cash/gpu.A100=1k")


async def test_another_model_label_counts_from_the_look_that_finds_it(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    meter = desk.stored(Meter(), hard=OF_A100)
    desk.relabel(gpu="A100")
    meter = desk.stored(meter, hard=OF_A100)
    desk.at(3)
    assert spent(desk.stored(meter, hard=OF_A100)) == res("cash/gpu=3 cash/gpu.A100=2")


async def test_a_resize_counts_from_the_look_that_finds_it(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    meter = desk.stored(Meter())
    desk.pod("a", since=0, gpu=4)
    meter = desk.stored(meter)
    desk.at(2)
    assert spent(desk.stored(meter)) == res("cash/gpu=5")


async def test_a_cash_name_that_is_added_counts_from_then_on(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(1)
    meter = desk.stored(Meter())
    wider = HARD | res("cash/pods=1k")
    meter = desk.stored(meter, hard=wider)
    desk.at(3)
    assert spent(desk.stored(meter, hard=wider)) == res("cash/gpu=3 cash/pods=2")


async def test_a_group_that_meters_for_the_first_time_counts_what_runs_from_its_beginning(desk: Desk) -> None:
    desk.pod("a", since=0)
    desk.at(2)
    assert spent(desk.stored(Meter())) == res("cash/gpu=2")


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
async def test_a_model_that_node_constraints_prove_is_metered(desk: Desk, constraint: Object) -> None:
    desk.pod("a", since=0, **constraint)
    desk.at(2)
    assert spent(desk.stored(Meter(), hard=OF_A100)) == res("cash/gpu=2 cash/gpu.A100=2")
