"""How long a workload runs at most."""

from __future__ import annotations

import pytest

from bizrq.settings import settings
from bizrq.workloads.pods.roles import max_run_time


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
