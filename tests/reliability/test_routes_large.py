"""Objects whose reviews are large or have very much to count: what fails open is not admitted for that.

An API server writes "<" as six bytes in a review.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.reliability.routes import attempt, of_kind, owned, pod, used, web
from tests.support.cluster import Cluster, eventually
from tests.support.live_pods import LivePods
from tests.support.objects import DEPLOYMENTS, PODS, Object
from tests.support.tenant import JOBS, Tenant

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def escapes(cluster: Cluster) -> None:
    if not cluster.is_real:
        pytest.skip("the sandbox writes every character as it is")


async def below(tenant: Tenant) -> Object:
    """A Job of one core whose pods nobody makes or deletes."""
    job = of_kind(JOBS, web(tenant, 1, name="own"))
    job["spec"] |= {"managedBy": "example.com/nobody"}
    made = await tenant.create(JOBS, job)

    async def is_counted() -> bool:
        return await used(tenant.admin, tenant.name) == "1"

    await eventually(is_counted, what="the job is counted")
    return made


def large(tenant: Tenant, number: int, job: Object, size: int) -> Object:
    """A pod of ten cores below the Job, with so many characters."""
    child = pod(tenant, f"large{number}", label=None)
    child["metadata"]["labels"] = dict(job["spec"]["template"]["metadata"]["labels"])
    [container] = child["spec"]["containers"]
    container["resources"] = {part: {"cpu": "10"} for part in ("requests", "limits")}
    container["args"] = ["<" * size]
    return owned(child, "Job", "own", job["metadata"]["uid"], "batch/v1")


@pytest.mark.parametrize("size", [100, 1_400_000])
async def test_a_pod_of_any_size_below_a_job_has_to_fit(tenant: Tenant, live: LivePods, size: int) -> None:
    job = await below(tenant)
    for number in range(3):
        refused = await attempt(tenant.create(PODS, large(tenant, number, job, size)))
        assert refused is not None
        assert "exceeded quota" in str(refused)
    await live.settled()


async def test_large_ones_at_once_are_answered_one_after_the_other(tenant: Tenant, live: LivePods) -> None:
    """Together they are more than what a port holds."""
    job = await below(tenant)
    tries = (attempt(tenant.create(PODS, large(tenant, number, job, 1_340_000))) for number in range(16))
    refused = await asyncio.gather(*tries)
    assert None not in refused
    assert any("exceeded quota" in str(each) for each in refused)
    await live.settled()


async def test_pods_do_not_leave_because_their_review_is_too_large(tenant: Tenant, live: LivePods) -> None:
    """Such a change carries the pod twice."""
    await tenant.has_default()
    made = web(tenant, 4, label=None)
    made["spec"]["template"]["spec"]["containers"][0]["args"] = ["<" * 1_150_000]
    await tenant.create(DEPLOYMENTS, made)
    for found in await tenant.running(4):
        leaves = {"metadata": {"labels": {"app": "gone", "pod-template-hash": None}}}
        refused = await attempt(tenant.patch(PODS, found["metadata"]["name"], leaves))
        assert refused is not None
        assert "make the object smaller" in str(refused)
    await live.settled()


async def test_no_template_is_admitted_whose_pods_have_more_to_count_than_it(tenant: Tenant, live: LivePods) -> None:
    """The API server gives a pod a request for each limit."""
    made = web(tenant, 4, name="web", app="x", slow=True)
    [container] = made["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"] |= {f"a.b/c{number}": "0" for number in range(20_000)}
    refused = await attempt(tenant.create(DEPLOYMENTS, made))
    assert "no more than 25000 can be counted" in str(refused)
    container["resources"]["limits"] = {"cpu": "1", **{f"a.b/c{number}": "0" for number in range(12_000)}}
    await tenant.create(DEPLOYMENTS, made)
    await tenant.running(4)
    for _ in range(3):
        for found in await tenant.pods():
            await tenant.delete(PODS, found["metadata"]["name"])
        await asyncio.sleep(2)
    # As with small ones: what was deleted twice runs on, and is charged.
    await live.settled(over=4, ever=8)
