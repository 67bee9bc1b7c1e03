"""Reviews of DaemonSets: what they are charged for the nodes that they would run on, and nodes that nobody can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bizrq.kube.client import Resource
from bizrq.units.quantity import NANO
from bizrq.workloads.labels import LABEL
from tests.support.faults import Fault, refused, slow
from tests.support.objects import NODES, OF_KIND, Object, deployment
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored

DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
UNREADABLE = [refused(403, 10**6), refused(503, 10**6), slow(60, 10**6)]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OF_KIND, "DaemonSet", DAEMONSETS)


def daemonset(group: str | None, cpu: Any = "1", **pods: Any) -> Object:
    made = deployment("ds", group, cpu=cpu)
    del made["spec"]["replicas"]
    made["spec"]["template"]["spec"].update(pods)
    return {**made, "kind": "DaemonSet", "status": {"desiredNumberScheduled": 0}}


def pods(**spec: Any) -> Callable[[Object], None]:
    return lambda obj: obj["spec"]["template"]["spec"].update(spec)


def cpu(amount: str) -> Callable[[Object], None]:
    def change(obj: Object) -> None:
        obj["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = amount

    return change


async def nodes(api: Api, count: int, *taints: Object, **labels: str) -> None:
    for number in range(count):
        name = "-".join((*labels.values(), str(number), *(taint["key"].partition("/")[2] for taint in taints)))
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n-{name}", "labels": labels}}
        await api.client.create(NODES, {**node, "spec": {"taints": list(taints)}})


def unreadable(fault: Fault, proxy: Proxy) -> None:
    fault(proxy, "GET", NODES.path())


async def test_a_daemonset_is_charged_at_its_creation_for_the_nodes_it_would_run_on(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", pods="9")
    await nodes(api, 2)
    await nodes(api, 3, disk="ssd")
    assert message(await hooks.create(daemonset("nlp"))) == (
        "exceeded quota: nlp, requested: limits.cpu=5, used: limits.cpu=0, limited: limits.cpu=4; "
        "left: limits.cpu=4; fits: 4 more replicas; run: kubectl bizrq explain -f FILE -n default"
    )
    assert (await hooks.create(daemonset("nlp", nodeSelector={"disk": "ssd"})))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.amount["limits.cpu"], entry.amount["pods"]) == (3 * NANO, 3 * NANO)


async def test_nodes_count_whose_state_keeps_pods_away_for_now(api: Api, hooks: Hooks) -> None:
    """Other taints have to be tolerated."""
    await api.group("nlp", cpu="2")
    await nodes(api, 3, {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
    await nodes(api, 5, {"key": "example.com/gpu", "effect": "NoSchedule"})
    assert "requested: limits.cpu=3," in message(await hooks.create(daemonset("nlp")))
    refused = await hooks.create(daemonset("nlp", tolerations=[{"operator": "Exists"}]))
    assert "requested: limits.cpu=8," in message(refused)


async def test_more_nodes_are_growth_and_fewer_are_not(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="4", used={"cpu": "3"})
    await nodes(api, 3, disk="ssd")
    await nodes(api, 2)
    old = stored(daemonset("nlp", nodeSelector={"disk": "ssd"}))
    assert "requested: limits.cpu=2, used: limits.cpu=3" in message(
        await hooks.update(old, changed(old, pods(nodeSelector={})))
    )
    assert (await hooks.update(old, changed(old, pods(nodeSelector={"disk": "none"}))))["allowed"]
    assert await api.entries("nlp") == []


@pytest.mark.parametrize("fault", UNREADABLE, ids=["403", "503", "silence"])
async def test_nodes_that_cannot_be_read_refuse_growth(api: Api, hooks: Hooks, proxy: Proxy, fault: Fault) -> None:
    """They are not counted as none; the client is told to try again, and nothing is promised."""
    await api.group("nlp", cpu="100")
    await nodes(api, 3)
    unreadable(fault, proxy)
    old = stored(daemonset("nlp"))
    unlabelled = stored(daemonset(None))
    answers = [
        await hooks.create(daemonset("nlp"), timeout="2s"),
        await hooks.update(old, changed(old, cpu("2")), timeout="2s"),
        await hooks.update(old, changed(old, pods(nodeSelector={"disk": "ssd"})), timeout="2s"),
        await hooks.update(unlabelled, changed(unlabelled, lambda o: o["metadata"].update(labels={LABEL: "nlp"}))),
    ]
    for answer in answers:
        assert (answer["allowed"], answer["status"]["code"]) == (False, 429)
        assert "the nodes or what DaemonSet default/ds refers to could not be read, try again" in message(answer)
    assert await api.entries("nlp") == []


async def test_what_grows_on_no_node_needs_no_nodes(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """A new image, a smaller pod, a deletion: allowed although nobody can read the nodes."""
    await api.group("nlp", cpu="1", used={"cpu": "3"})
    unreadable(refused(403, 10**6), proxy)
    old = stored(daemonset("nlp", "2"))
    for change in (pods(hostNetwork=True), cpu("1"), lambda o: o["metadata"].update(finalizers=["x"])):
        assert (await hooks.update(old, changed(old, change)))["allowed"]


def surge(most: Any) -> Callable[[Object], None]:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": most, "maxUnavailable": 0}}
    return lambda obj: obj["spec"].update(updateStrategy=strategy)


async def test_surge_up_to_the_nodes_costs_nothing(api: Api, hooks: Hooks) -> None:
    """No node gets more than one pod in addition, so there is none beyond the nodes."""
    await api.group("nlp", cpu="3")
    await nodes(api, 3)
    assert (await hooks.create(changed(daemonset("nlp"), surge(200))))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] == 3 * NANO


async def test_with_the_policy_count_the_surge_is_charged_beside_the_nodes(api: Api, through: Any) -> None:
    await api.group("nlp", cpu="5")
    await nodes(api, 3)
    async with serving(through, surge="count") as hooks:
        refused = message(await hooks.create(changed(daemonset("nlp"), surge("100%"))))
        assert "requested: limits.cpu=6," in refused
        assert "3 of the 6 pods of main are surge" in refused
        assert (await hooks.create(changed(daemonset("nlp"), surge(2))))["allowed"]
        [entry] = await api.entries("nlp")
        assert entry.amount["limits.cpu"] == 5 * NANO


async def test_surge_that_is_charged_does_not_grow_while_nodes_cannot_be_read(
    api: Api, through: Any, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "3"})
    unreadable(refused(403, 10**6), proxy)
    async with serving(through, surge="count") as hooks:
        old = stored(changed(daemonset("nlp"), surge(1)))
        assert "the nodes or what" in message(await hooks.update(old, changed(old, surge(2)), timeout="2s"))
        assert (await hooks.update(old, changed(old, pods(hostNetwork=True))))["allowed"]
    async with serving(through) as hooks:
        assert (await hooks.update(old, changed(old, surge(2))))["allowed"]


async def test_a_surge_that_cannot_be_read_is_refused(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9")
    refused = await hooks.create(changed(daemonset("nlp"), surge("lots")))
    assert "spec.updateStrategy.rollingUpdate.maxSurge: must be a whole number or a percentage" in message(refused)
    assert refused["status"]["code"] == 422


def tolerating(*keys: str, **more: Any) -> Callable[[Object], None]:
    return pods(tolerations=[{"key": f"example.com/{key}", "operator": "Exists"} for key in keys], **more)


async def test_pods_that_stay_are_not_counted_twice(api: Api, hooks: Hooks) -> None:
    """The status counts those that run, on nodes that repel new ones, too."""
    await api.group("nlp", cpu="4", used={"cpu": "4"})
    await nodes(api, 2, {"key": "example.com/a", "effect": "NoSchedule"}, on="a")
    await nodes(api, 2, on="all")
    made = changed(daemonset("nlp"), tolerating("a"))
    old = stored(changed(made, lambda o: o["status"].update(desiredNumberScheduled=4)))
    assert (await hooks.update(old, changed(old, tolerating())))["allowed"]
    assert not await api.entries("nlp")


@pytest.mark.parametrize(
    ("effect", "change", "fits"),
    [
        ("NoSchedule", tolerating("b"), False),
        ("NoExecute", tolerating("b"), True),
        ("NoSchedule", tolerating("b", nodeSelector={"on": "b"}), True),
        ("NoSchedule", tolerating(), True),
    ],
    ids=["to others", "driven away", "to selected ones", "to none"],
)
async def test_pods_stay_on_nodes_that_only_repel_new_ones(
    api: Api, hooks: Hooks, effect: str, change: Callable[[Object], None], fits: bool
) -> None:
    """Those on two nodes stay beside those that come to two others; its controller deletes the rest."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    for key in ("a", "b"):
        await nodes(api, 2, {"key": f"example.com/{key}", "effect": effect}, on=key)
    old = stored(changed(daemonset("nlp"), tolerating("a")))
    answer = await hooks.update(old, changed(old, change))
    assert answer["allowed"] is fits
    if not fits:
        assert "requested: limits.cpu=2" in message(answer)
        assert "pods that run stay beside those that take their place" in message(answer)
