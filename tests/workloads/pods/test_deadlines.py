"""How long a workload runs at most."""

from __future__ import annotations

import pytest

from bizrq.settings import settings
from bizrq.workloads.pods.roles import max_run_time, max_run_time_left, run_started_at


@pytest.mark.parametrize(
    ("manager", "bound"),
    [(None, 60_000), ("", 60_000), ("kubernetes.io/job-controller", 60_000), ("example.com/mine", None), ([7], None)],
)
def test_a_deadline_counts_where_the_controller_that_keeps_it_manages_the_object(
    manager: object, bound: int | None
) -> None:
    job = {"spec": {"activeDeadlineSeconds": 60, **({} if manager is None else {"managedBy": manager})}}
    adapter = settings(None).registry.by_kind("batch", "Job")
    assert adapter is not None
    assert max_run_time(job, adapter) == bound


@pytest.mark.parametrize(
    ("retries", "failed", "most", "left"),
    [
        (None, None, 60_000, 60_000),
        (0, None, 60_000, 60_000),
        (2, None, 180_000, 180_000),
        (2, 1, 180_000, 120_000),
        (2, 9, 180_000, 60_000),
        (2, -1, 180_000, 180_000),
        (2, "1", 180_000, 180_000),
        (-1, 0, None, None),
        (1.5, 0, None, None),
        ("2", 0, None, None),
        (True, 0, None, None),
    ],
)
def test_each_retry_of_a_ray_job_lasts_as_long(
    retries: object, failed: object, most: int | None, left: int | None
) -> None:
    spec = {"activeDeadlineSeconds": 60, "managedBy": "ray.io/kuberay-operator", "backoffLimit": retries}
    job = {"spec": spec, "status": {"failed": failed}}
    adapter = settings(None).registry.by_kind("ray.io", "RayJob")
    assert adapter is not None
    assert max_run_time(job, adapter) == most
    assert max_run_time_left(job, adapter) == left


@pytest.mark.parametrize(
    ("phase", "since"), [("Running", "2026-11-27T00:00:00Z"), ("Retrying", None), ("Suspended", None), ("New", None)]
)
def test_a_ray_job_between_two_runs_has_not_begun(phase: str, since: str | None) -> None:
    job = {"spec": {}, "status": {"startTime": "2026-11-27T00:00:00Z", "jobDeploymentStatus": phase}}
    adapter = settings(None).registry.by_kind("ray.io", "RayJob")
    assert adapter is not None
    assert run_started_at(job, adapter) == since
