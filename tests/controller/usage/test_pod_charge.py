"""What a workload is charged for its pods (docs/ownership.md), on a cluster in memory with a clock."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.units.quantity import NANO
from bizrq.units.times import format_timestamp
from controller.usage.workload_usage import overlap_message
from tests.controller.usage.test_excess import Memory, pod, replica_set
from tests.support.objects import Object, deployment, template

GRACE = 30


@pytest.fixture
def memory() -> Memory:
    return Memory()


def at(memory: Memory, seconds: float) -> str:
    """Return the time `seconds` from now."""
    return format_timestamp(memory.now + round(seconds * 1000))


def run(memory: Memory, name: str, owner: Object, cpu: Any = "1", *, age: float = 3600, **spec: Any) -> Object:
    """Store a pod of this owner that is bound and has run for `age` seconds."""
    made = pod(name, cpu)
    made["spec"] = {**made["spec"], "nodeName": "n", **spec}
    return memory.put(made, owner, creationTimestamp=at(memory, -age))


def deleted(memory: Memory, made: Object, grace: int = GRACE, *, ago: float = 0) -> Object:
    """Delete a pod that ends within its grace."""
    going = {"deletionTimestamp": at(memory, grace - ago), "deletionGracePeriodSeconds": grace}
    return memory.put({**made, "metadata": {**made["metadata"], **going}})


def observed(memory: Memory, obj: Object, generation: int = 1, **spec: Any) -> Object:
    """Store another spec of an object, which its controller has observed."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    stored = {**obj, "metadata": metadata, "spec": {**obj["spec"], **spec}}
    return memory.put({**stored, "status": {"observedGeneration": generation}}, generation=generation)


def web_with(memory: Memory, pods: int = 5, **spec: Any) -> tuple[Object, Object]:
    """Return a Deployment of five cores and its ReplicaSet, with so many of its pods."""
    web = memory.put(deployment("web", "nlp", 5))
    web = observed(memory, web, **spec)
    below = memory.put(replica_set("web-1", 5), web)
    for number in range(pods):
        run(memory, f"web-1-{number}", below)
    return web, below


def stateful_set(memory: Memory) -> tuple[Object, list[Object]]:
    made = memory.put({**deployment("db", "nlp", 5), "kind": "StatefulSet"})
    return made, [run(memory, f"db-{number}", made) for number in range(5)]


def test_a_settled_workload_is_charged_its_demand(memory: Memory) -> None:
    web, _ = web_with(memory)
    found = memory.cost(web)
    assert (memory.charge(web), found.excess, found.overlap, found.again) == (5, {}, None, None)


def test_surge_is_free_for_ten_minutes(memory: Memory) -> None:
    web, _ = web_with(memory)
    newer = memory.put(replica_set("web-2", 2), web)
    for name in "ab":
        run(memory, name, newer, age=60)
    assert memory.charge(web) == 5
    assert memory.cost(web).again == memory.now + 9 * 60_000
    memory.wait(9 * 60)
    found = memory.cost(web)
    assert memory.charge(web) == 7
    assert found.overlap is not None
    assert overlap_message(found.overlap) == (
        f"pods 2 that a rollout has had for more than ten minutes since {at(memory, 0)}"
    )
    assert not memory.finding(web)


def test_pods_of_one_version_are_not_free(memory: Memory) -> None:
    web, below = web_with(memory)
    run(memory, "forged", below, age=1)
    assert memory.charge(web) == 6
    assert "asks for more than it does: limits.cpu=1" in memory.finding(web)


def test_surge_that_counts_as_demand_is_not_free() -> None:
    memory = Memory({"surge": "count"})
    web, _ = web_with(memory)
    newer = memory.put(replica_set("web-2", 3), web)
    for name in "abc":
        run(memory, name, newer, age=60)
    # A quarter of five, rounded up.
    assert memory.cost(web).resources["pods"] == 7 * NANO
    assert memory.charge(web) == 8


def daemonset(memory: Memory, **rolling: Any) -> tuple[Object, list[Object]]:
    """Return a DaemonSet on five nodes of one core each, and its pods."""
    made = deployment("ds", "nlp", 5)
    spec = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}
    made = memory.put({**made, "kind": "DaemonSet", "spec": {**made["spec"], **spec}})
    stored = memory.put({**made, "status": {"desiredNumberScheduled": 5, "observedGeneration": 1}}, generation=1)
    return stored, [of_version(memory, stored, f"old-{number}", "1", 3600) for number in range(5)]


def of_version(memory: Memory, owner: Object, name: str, version: str, age: float) -> Object:
    made = run(memory, name, owner, age=age)
    labels = {**made["metadata"]["labels"], "controller-revision-hash": version}
    return memory.put({**made, "metadata": {**made["metadata"], "labels": labels}})


def test_the_surge_of_a_daemonset_is_free_for_ten_minutes(memory: Memory) -> None:
    """As that of a Deployment. Pods that are not available get a second one on every node."""
    ds, _ = daemonset(memory, maxSurge=1, maxUnavailable=0)
    for number in range(5):
        of_version(memory, ds, f"new-{number}", "2", 60)
    assert memory.charge(ds) == 5
    memory.wait(9 * 60)
    found = memory.cost(ds)
    assert memory.charge(ds) == 10
    assert found.overlap is not None
    assert found.overlap.beyond == 5
    assert not memory.finding(ds)


def test_pods_of_one_version_of_a_daemonset_are_not_free(memory: Memory) -> None:
    ds, _ = daemonset(memory, maxSurge=1, maxUnavailable=0)
    of_version(memory, ds, "forged", "1", 60)
    assert memory.charge(ds) == 6


@pytest.mark.parametrize("rolling", [{}, {"maxUnavailable": 2}, {"maxSurge": 0}, {"maxSurge": -1}, {"maxSurge": []}])
def test_a_daemonset_without_a_readable_surge_has_no_free_pods(memory: Memory, rolling: Object) -> None:
    """Those on nodes that it left may take a day to end, and others run already where it went."""
    ds, _ = daemonset(memory, **rolling)
    of_version(memory, ds, "new", "2", 60)
    assert memory.charge(ds) == 6


def test_the_surge_of_a_daemonset_that_counts_as_demand_is_not_free() -> None:
    memory = Memory({"surge": "count"})
    ds, _ = daemonset(memory, maxSurge=2, maxUnavailable=0)
    assert memory.charge(ds) == 7
    for number in range(3):
        of_version(memory, ds, f"new-{number}", "2", 60)
    assert memory.charge(ds) == 8


def test_scaled_to_nothing_and_back_counts_both(memory: Memory) -> None:
    web, below = web_with(memory, 0)
    for number in range(5):
        deleted(memory, run(memory, f"old-{number}", below), 86400)
        run(memory, f"new-{number}", below, age=1)
    assert memory.charge(web) == 10
    found = memory.cost(web).overlap
    assert found is not None
    assert (found.ending, found.amounts["limits.cpu"]) == (5, 5 * NANO)
    assert found.since == memory.now
    # The grace counts twice, as natively: it is in the deletionTimestamp already.
    assert memory.cost(web).again == found.until == memory.now + 2 * 86_400_000
    memory.wait(2 * 86400)
    assert memory.charge(web) == 5


def test_a_template_shrunk_to_nothing_counts_what_runs(memory: Memory) -> None:
    web, _ = web_with(memory, 4)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    web = observed(memory, web, 2, template=template("1m"), paused=True, strategy=strategy)
    newer = memory.put(replica_set("web-2", 1, "1m"), web)
    deleted(memory, run(memory, "old", memory.put(replica_set("web-1", 4), web)))
    # One pod of 1m is missing.
    assert memory.charge(web) == 5.001
    run(memory, "new", newer, "1m", age=1)
    assert memory.charge(web) == 5.001


def test_a_stateful_set_waits_for_its_pod(memory: Memory) -> None:
    db, pods = stateful_set(memory)
    deleted(memory, pods[0], 86400)
    assert memory.charge(db) == 5


def test_a_stateful_set_does_not_wait_for_a_pod_out_of_its_range(memory: Memory) -> None:
    db, pods = stateful_set(memory)
    db = memory.put({**db, "spec": {**db["spec"], "replicas": 4}})
    deleted(memory, pods[4])
    assert memory.charge(db) == 5


def test_a_pod_on_a_lost_node_is_over_past_its_grace(memory: Memory) -> None:
    db, pods = stateful_set(memory)
    deleted(memory, pods[0], ago=3 * GRACE)
    assert memory.charge(db) == 5
    web, below = web_with(memory)
    deleted(memory, run(memory, "lost", below), ago=3 * GRACE)
    assert memory.charge(web) == 5


def test_three_delete_loops_count_three_times(memory: Memory) -> None:
    web, below = web_with(memory)
    for number in range(15):
        deleted(memory, run(memory, f"old-{number}", below))
    assert memory.charge(web) == 20


def test_under_recreate_the_old_version_is_awaited(memory: Memory) -> None:
    web, below = web_with(memory, 0, strategy={"type": "Recreate"})
    web = observed(memory, web, 2, template=template("2"))
    for number in range(5):
        deleted(memory, run(memory, f"old-{number}", below))
    memory.put(replica_set("web-2", 0, "2"), web)
    # Its ReplicaSet makes others as long as it asks for some: while the Deployment is paused, for ever.
    assert memory.charge(web) == 15
    below = memory.put({**below, "spec": {**below["spec"], "replicas": 0}}, web)
    assert memory.charge(web) == 10
    # One of the present version has another pod in its place.
    web = observed(memory, web, 3, template=template("1"))
    assert memory.charge(web) == 10


def test_a_workload_that_is_being_deleted_makes_no_other_pods(memory: Memory) -> None:
    web, below = web_with(memory, 0)
    for number in range(5):
        deleted(memory, run(memory, f"old-{number}", below))
    web = memory.put({**web, "metadata": {**web["metadata"], "deletionTimestamp": at(memory, 0)}})
    # Its ReplicaSet goes on as long as nobody deletes it.
    assert memory.charge(web) == 10
    memory.put({**below, "metadata": {**below["metadata"], "deletionTimestamp": at(memory, 0)}})
    assert memory.charge(web) == 5


SUSPENDED: Object = {"conditions": [{"type": "Suspended", "status": "True"}]}


def job(
    memory: Memory, parallelism: int = 5, *, suspend: bool = False, status: Object | None = None, **spec: Any
) -> Object:
    spec = {"parallelism": parallelism, "suspend": suspend, "template": template(), **spec}
    made = {**deployment("train", "nlp"), "apiVersion": "batch/v1", "kind": "Job", "spec": spec, "status": status or {}}
    # Each call is another spec.
    return memory.put(made, generation=memory.revision)


def says(memory: Memory, job: Object, status: Object) -> Object:
    """The Job once its controller has written its status."""
    return memory.put({**job, "status": status}, generation=job["metadata"]["generation"])


def test_a_job_that_is_suspended_and_resumed_counts_the_pods_of_before(memory: Memory) -> None:
    train = job(memory, status={"active": 5})
    pods = [run(memory, f"old-{number}", train) for number in range(5)]
    assert memory.charge(train) == 5
    train = job(memory, suspend=True, status={"active": 5})
    assert memory.charge(train) == 5
    memory.drop(memory.put({**pods[0], "status": {"phase": "Succeeded"}}))
    assert memory.charge(train) == 5, "its controller may not have seen that yet"
    assert memory.cost(train).again == memory.now + 60_000
    for each in pods[1:]:
        deleted(memory, each, 86400)
    memory.wait(3)
    assert memory.charge(train) == 5
    train = says(memory, train, SUSPENDED)
    assert memory.charge(train) == 4
    assert memory.charge(job(memory, status=SUSPENDED)) == 9


@pytest.mark.parametrize(
    ("before", "spec", "status", "seconds"),
    [
        ({}, {"suspend": True}, {}, 60),
        ({}, {"parallelism": 2}, {}, 60),
        ({"active": 5}, {"suspend": True}, {"active": 5}, 60),
        ({"active": 5}, {"parallelism": 2}, {"active": 5}, 60),
        ({"active": 2}, {"parallelism": 2}, {"active": 2}, 3),
        ({}, {"parallelism": 2, "managedBy": "example.com/other"}, {}, 3),
    ],
)
def test_a_job_counts_until_its_controller_says_more_or_long_enough(
    memory: Memory, before: Object, spec: Object, status: Object, seconds: int
) -> None:
    """Its controller makes pods in lots, and writes the status after that."""
    assert memory.charge(job(memory, status=before)) == 5
    train = job(memory, status=status, **spec)
    assert memory.charge(train) == 5
    memory.wait(seconds - 1)
    assert memory.charge(train) == 5
    assert memory.cost(train).again == memory.now + 1000
    memory.wait(1)
    assert memory.charge(train) < 5


def test_a_job_that_is_resumed_and_suspended_at_once_counts_until_its_controller_says_more(memory: Memory) -> None:
    """The condition is that of the first suspension: its controller may be making pods meanwhile."""
    assert memory.charge(job(memory, suspend=True, status=SUSPENDED)) == 0
    assert memory.charge(job(memory, status=SUSPENDED)) == 5
    train = job(memory, suspend=True, status=SUSPENDED)
    assert memory.charge(train) == 5
    memory.wait(59)
    assert memory.charge(train) == 5
    assert memory.charge(says(memory, train, {**SUSPENDED, "terminating": 1})) == 0


def test_a_job_that_has_acted_on_more_since_counts_no_longer_than_others(memory: Memory) -> None:
    assert memory.charge(job(memory, 2, status={"active": 2})) == 2
    train = job(memory, status={"active": 2})
    assert memory.charge(train) == 5
    assert memory.charge(says(memory, train, {"active": 3, "succeeded": 2})) == 5
    train = job(memory, 3, status={"active": 3, "succeeded": 2})
    assert memory.charge(train) == 5
    memory.wait(3)
    assert memory.charge(train) == 3


def test_a_job_may_wait_for_its_pods(memory: Memory) -> None:
    train = job(memory, podReplacementPolicy="Failed")
    deleted(memory, run(memory, "old", train), 86400)
    assert memory.charge(train) == 5


def test_a_demand_that_fell_counts_until_it_is_observed(memory: Memory) -> None:
    web, below = web_with(memory)
    assert memory.charge(web) == 5
    lagging = memory.put({**web, "spec": {**web["spec"], "replicas": 2}}, generation=2, resourceVersion="90")
    found = memory.cost(lagging)
    assert (found.resources["limits.cpu"], found.excess["limits.cpu"]) == (2 * NANO, 3 * NANO)
    assert not memory.finding(lagging)
    memory.wait(3600)
    assert memory.charge(lagging) == 5
    web = observed(memory, web, 2, replicas=2)
    memory.put({**replica_set("web-1", 2), "status": {"observedGeneration": 1}}, web, generation=2)
    assert memory.charge(web) == 5, "the ReplicaSet's controller lags"
    memory.put({**replica_set("web-1", 2), "status": {"observedGeneration": 2}}, web, generation=2)
    for number in range(3):
        memory.drop(memory.put({**run(memory, f"web-1-{number}", below), "status": {"phase": "Succeeded"}}))
    assert memory.charge(web) == 2


def test_what_its_controller_never_acted_on_counts_for_longer(memory: Memory) -> None:
    """It may be busy, and go by what it saw before the demand fell. It will say once it has acted."""
    web = memory.put(deployment("web", "nlp", 5))
    assert memory.charge(web) == 5
    web = memory.put(deployment("web", "nlp", 2), generation=2)
    assert memory.charge(web) == 5
    assert memory.cost(web).again == memory.now + 60_000
    memory.wait(59)
    assert memory.charge(web) == 5
    memory.wait(1)
    assert memory.charge(web) == 2


def test_a_demand_that_fell_counts_until_the_pods_are_as_new(memory: Memory) -> None:
    web = memory.put(deployment("web", "nlp", 5))
    assert memory.charge(web) == 5
    informer, waited = memory.cluster.informers.pods, []
    informer.installed = True

    async def catch_up(revision: int, _timeout: float, *, lag: float | None = None) -> bool:
        waited.append(revision)
        return False

    informer.catch_up = catch_up  # type: ignore[method-assign]
    web = observed(memory, web, 2, replicas=2)
    assert memory.charge(web) == 5
    assert {*waited} == {int(web["metadata"]["resourceVersion"])}
    assert not memory.cost(web).settled
    informer.store.resource_version = 10**6
    assert memory.charge(web) == 2


def test_a_demand_that_fell_counts_until_the_pods_are_as_new_as_its_controllers_last_word(memory: Memory) -> None:
    """It may have made pods for the earlier demand until then."""
    web, below = web_with(memory, 0)
    assert memory.charge(web) == 5
    memory.cluster.informers.pods.installed = True

    async def catch_up(_revision: int, _timeout: float, *, lag: float | None = None) -> bool:
        return False

    memory.cluster.informers.pods.catch_up = catch_up  # type: ignore[method-assign]
    lagging = {**web, "spec": {**web["spec"], "replicas": 2}, "metadata": {**web["metadata"], "generation": 2}}
    web = memory.put(lagging)
    assert memory.charge(web) == 5
    memory.cluster.informers.pods.store.resource_version = int(web["metadata"]["resourceVersion"])
    assert memory.charge(web) == 5
    observed(memory, below, 2, replicas=2)
    web = memory.put({**web, "status": {"observedGeneration": 2}})
    assert memory.charge(web) == 5
    memory.cluster.informers.pods.store.resource_version = 10**6
    assert memory.charge(web) == 2


def test_what_a_controller_lags_behind_is_held_after_a_restart(memory: Memory) -> None:
    """Nothing says what was asked for before but what is below."""
    web = memory.put({**deployment("web", "nlp", 2), "status": {"observedGeneration": 1}}, generation=2)
    memory.put(replica_set("web-1", 5), web)
    assert memory.charge(web) >= 4


def test_a_pod_that_is_deleted_by_force_is_charged_for_its_grace(memory: Memory) -> None:
    web, below = web_with(memory)
    forced = run(memory, "forced", below, terminationGracePeriodSeconds=600)
    assert memory.charge(web) == 6
    memory.drop(forced)
    assert memory.charge(web) == 6
    assert memory.cost(web).again == memory.now + 600_000
    memory.wait(600)
    assert memory.charge(web) == 5


def test_a_pod_that_has_ended_or_has_no_node_leaves_nothing(memory: Memory) -> None:
    web, below = web_with(memory)
    ended = run(memory, "ended", below)
    memory.drop(memory.put({**ended, "status": {"phase": "Failed"}}))
    memory.drop(memory.put(pod("pending", phase="Pending"), below))
    assert memory.charge(web) == 5


def test_in_a_namespace_that_goes_nothing_is_made_beside_the_pods_that_are_ending(memory: Memory) -> None:
    """Its pods go before what they are made for, which asks for them until then."""
    web, below = web_with(memory, 0)
    for number in range(5):
        deleted(memory, run(memory, f"web-1-{number}", below))
    assert memory.charge(web) == 10
    going = {"deletionTimestamp": at(memory, 0), "uid": "ns", "resourceVersion": "1"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", **going}}
    namespaces = memory.cluster.resolver.watching(("", "Namespace"))
    assert namespaces is not None
    namespaces.store.put(namespace)
    assert memory.charge(web) == 5
    assert memory.cost(web).overlap is None


def test_a_bare_pod_is_charged_while_it_is_live(memory: Memory) -> None:
    bare = memory.put({**pod("bare"), "spec": {**pod("bare")["spec"], "nodeName": "n"}})
    assert memory.charge(bare) == 1
    bare = deleted(memory, bare)
    assert memory.charge(bare) == 1
    assert memory.cost(bare).again == memory.now + 2 * GRACE * 1000
    memory.wait(2 * GRACE)
    assert memory.charge(bare) == 0


def test_a_grace_beyond_the_calendar_is_no_time_that_is_shown(memory: Memory) -> None:
    web, below = web_with(memory)
    memory.drop(run(memory, "forced", below, terminationGracePeriodSeconds=2**63 - 1))
    going = {"deletionTimestamp": at(memory, 5), "deletionGracePeriodSeconds": 2**63 - 1}
    memory.put(run(memory, "old", below), below, **going)
    assert memory.charge(web) == 7
    found = memory.cost(web).overlap
    assert found is not None
    # Only of the pod that is deleted by force is it known since when.
    assert (found.ending, found.since, found.until) == (2, memory.now, None)
    assert overlap_message(found) == f"pods 2 ending since {format_timestamp(memory.now)}"


def test_a_rollout_to_a_smaller_version_is_no_surplus(memory: Memory) -> None:
    web, _ = web_with(memory)
    web = observed(memory, web, 2, template=template("500m"))
    newer = memory.put(replica_set("web-2", 1, "500m"), web)
    run(memory, "new", newer, "500m", age=1)
    assert memory.charge(web) == 5
    found = memory.cost(web).overlap
    assert found is not None
    assert (found.ending, found.beyond, found.older) == (0, 0, 5)
    assert overlap_message(found) == "pods 5 of an older version that asks for more"


def test_replica_sets_of_a_surge_that_was_lowered_cost_what_their_pods_do(memory: Memory) -> None:
    """Kubernetes leaves the pods of a stuck rollout, although the Deployment would not make as many now."""
    web, _ = web_with(memory)
    newer = memory.put(replica_set("web-2", 5), web)
    assert memory.charge(web) == 8, "its surge is two"
    for number in range(5):
        run(memory, f"new-{number}", newer, age=60)
    assert memory.charge(web) == 5
    memory.wait(600)
    assert memory.charge(web) == 10


def test_what_a_replica_set_asks_for_counts_until_all_its_pods_are_there(memory: Memory) -> None:
    web, below = web_with(memory)
    memory.put({**below, "spec": {**below["spec"], "replicas": 9}}, web)
    for number in range(4):
        assert memory.charge(web) == 9
        run(memory, f"more-{number}", below)
    assert memory.charge(web) == 9


def test_a_job_frees_what_its_status_says(memory: Memory) -> None:
    train = job(memory, completions=5)
    pods = [run(memory, f"p-{number}", train) for number in range(5)]
    assert memory.charge(train) == 5
    for number, each in enumerate(pods):
        memory.put({**each, "status": {"phase": "Succeeded"}})
        train = memory.put({**train, "status": {"succeeded": number + 1}}, resourceVersion=str(100 + number))
        assert memory.charge(train) == 4 - number


def test_an_earlier_version_that_is_counted_late_changes_nothing(memory: Memory) -> None:
    """Another group counts it, which its workload has left meanwhile."""
    earlier = memory.put(deployment("web", "nlp", 1))
    later = memory.put(deployment("web", "vision", 3))
    assert memory.cost(later).resources["pods"] == 3 * NANO
    assert memory.cost(earlier).resources["pods"] == 3 * NANO
    # A store that was restored has it again.
    memory.put(deployment("web", "nlp", 1), resourceVersion=earlier["metadata"]["resourceVersion"])
    assert memory.cost(earlier).resources["pods"] == NANO
