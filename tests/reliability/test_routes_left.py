"""Routes through what an operator's workload has left: it is edited, while its group has nothing free.

The namespace has no default group, and what is left names no group itself. In each a tenant with the role `edit` and a
group of four cores tries to run more. The oracle counts the pods.
"""

from __future__ import annotations

import pytest

from bizrq.kube.client import Resource
from bizrq.workloads.labels import LABEL
from tests.e2e.rows import JOBSETS
from tests.reliability.routes import attempt, for_a_while, gone, has_running, may_operate, of_kind, owned, web
from tests.support.live_pods import LivePods
from tests.support.objects import LEADER_WORKER_SETS, Object
from tests.support.tenant import JOBS, STATEFULSETS, Tenant

pytestmark = pytest.mark.asyncio(loop_scope="module")


def job_set(tenant: Tenant) -> tuple[Object, Object]:
    """A JobSet and its Job of four pods."""
    job = of_kind(JOBS, web(tenant, 4, label=None, slow=True))
    job["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    return {"replicatedJobs": [{"name": "j", "template": {"spec": job["spec"]}}]}, job


def leaders(tenant: Tenant) -> tuple[Object, Object]:
    """A LeaderWorkerSet of four leaders without workers, and their StatefulSet."""
    made = of_kind(STATEFULSETS, web(tenant, 4, label=None, slow=True))
    template = {"size": 1, "workerTemplate": made["spec"]["template"]}
    return {"replicas": 4, "leaderWorkerTemplate": template}, made


@pytest.mark.parametrize("above", [JOBSETS, LEADER_WORKER_SETS], ids=lambda each: each.kind)
@pytest.mark.parametrize("again", [False, True], ids=["at once", "later"])
async def test_what_an_operators_workload_has_left_is_edited(
    tenant: Tenant, live: LivePods, above: Resource, again: bool
) -> None:
    await may_operate(tenant, above)
    spec, child = job_set(tenant) if above is JOBSETS else leaders(tenant)
    below = JOBS if above is JOBSETS else STATEFULSETS
    metadata = {"name": "own", "namespace": tenant.name, "labels": {LABEL: tenant.name}}
    made = {"apiVersion": above.api_version, "kind": above.kind, "metadata": metadata, "spec": spec}
    uid = (await tenant.create(above, made))["metadata"]["uid"]
    await tenant.create(below, owned(child, above.kind, "own", uid, above.api_version))
    await tenant.running(4)
    await tenant.delete(above, "own", "Orphan")
    await gone(tenant, above, "own")
    if again:
        await live.settled()
    grown = {"parallelism": 40, "completions": 40} if above is JOBSETS else {"replicas": 40}
    await attempt(tenant.patch(below, "web", {"spec": grown}))
    await for_a_while(lambda: has_running(tenant, 40), 4)
    await live.settled()
