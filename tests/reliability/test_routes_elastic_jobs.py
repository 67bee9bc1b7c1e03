"""A route through an indexed Job whose completions shrink below indexes that have succeeded."""

from __future__ import annotations

import pytest

from tests.reliability.routes import attempt, for_a_while, has_running, of_kind, web
from tests.support.cluster import Cluster
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS
from tests.support.tenant import JOBS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")

INDEX = "batch.kubernetes.io/job-completion-index"
#: So many indexes of the Job succeed, and as many run on.
HALF = 4


async def test_an_indexed_job_shrinks_below_the_indexes_that_succeeded(
    cluster: Cluster, tenant: Tenant, live: LivePods
) -> None:
    """They count no more, so that what is left of it runs: its controller says so only after the write."""
    if not cluster.is_real:
        pytest.skip("the sandbox's Jobs have no indexes")
    made = of_kind(JOBS, web(tenant, 2 * HALF, cpu="500m"))
    made["spec"] |= {"completionMode": "Indexed", "completions": 2 * HALF}
    await tenant.create(JOBS, made)
    for pod in await tenant.running(2 * HALF):
        if int(pod["metadata"]["annotations"][INDEX]) >= HALF:
            done = {"status": {"phase": "Succeeded"}}
            name = pod["metadata"]["name"]
            await tenant.admin.patch(PODS, name, done, namespace=tenant.name, subresource="status")

    async def counted() -> bool:
        return (await tenant.admin.get(JOBS, "web", tenant.name))["status"].get("succeeded") == HALF

    assert await for_a_while(counted, 20)
    await tenant.patch(JOBS, "web", {"spec": {"suspend": True}})
    await tenant.running(0)
    await tenant.uses("0")
    await tenant.create(DEPLOYMENTS, web(tenant, 4, name="more", app="more"))
    await tenant.running(4)
    change = {"suspend": False, "completions": HALF, "parallelism": HALF}
    await attempt(tenant.patch(JOBS, "web", {"spec": change}))
    await for_a_while(lambda: has_running(tenant, 4 + HALF), 8)
    await live.settled()
