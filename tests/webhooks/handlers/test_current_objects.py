"""Growth that depends on a LimitRange, a RuntimeClass or a namespace's default, while the watches are behind."""

from __future__ import annotations

import asyncio
from typing import Any

from bizrq.kube.client import Resource
from bizrq.units.quantity import NANO
from bizrq.workloads.labels import LABEL
from tests.support.cluster import eventually
from tests.support.faults import refused
from tests.support.objects import DEPLOYMENTS, NAMESPACES, Object, deployment
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message, stored
from tests.webhooks.handlers.test_workloads import replicas

LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)


def defaults(cpu: str) -> Object:
    limits = [{"type": "Container", "default": {"cpu": cpu}}]
    metadata = {"name": "lr", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}


def runtime_class(cpu: str) -> Object:
    made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}
    return {**made, "overhead": {"podFixed": {"cpu": cpu}}}


def unstated(obj: Object) -> None:
    for container in obj["spec"]["template"]["spec"]["containers"]:
        container.pop("resources")


def scale_of(obj: Object, number: int) -> tuple[Object, Object]:
    """The new Scale and the old one."""
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    old = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata}
    return {**old, "spec": {"replicas": number}}, {**old, "spec": {"replicas": obj["spec"].get("replicas", 0)}}


def reads(proxy: Proxy) -> int:
    """The reads of all kinds that are watched."""
    paths = [of.path() for of in (LIMIT_RANGES, RUNTIME_CLASSES, NAMESPACES)]
    paths.append(LIMIT_RANGES.path("default"))
    return sum(proxy.sent("GET", path) for path in paths)


async def seen(hooks: Hooks, name: str) -> None:
    """Wait until a watch has shown the object of this name."""

    async def shown() -> bool:
        stores = [informer.store for informer in hooks.webhooks.resolver.informers]
        return any(obj["metadata"]["name"] == name for store in stores for obj in store.values())

    await eventually(shown, 30, f"the watch shows {name}")


async def test_a_new_limit_range_is_known_before_its_defaults_are_granted(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="10")
    await api.client.create(LIMIT_RANGES, defaults("1"))
    await seen(hooks, "lr")
    proxy.freeze(LIMIT_RANGES.path())
    await api.client.patch(LIMIT_RANGES, "lr", {"spec": defaults("8")["spec"]}, namespace="default")
    web = changed(deployment("web", "nlp", 2), unstated)
    assert "requested: limits.cpu=16," in message(await hooks.create(web))
    assert (await hooks.create(changed(web, replicas(1))))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] == 8 * NANO


async def test_a_limit_range_that_nobody_has_seen_is_looked_for(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """Without it, a container that states no limit would be refused for that."""
    await api.group("nlp", cpu="10")
    proxy.freeze(LIMIT_RANGES.path())
    web = changed(deployment("web", "nlp", 2), unstated)
    assert "must specify limits.cpu" in message(await hooks.create(web))
    await api.client.create(LIMIT_RANGES, defaults("3"))
    assert (await hooks.create(web))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] == 6 * NANO


async def test_a_change_that_seems_to_shrink_is_decided_on_the_limit_range_of_now(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="10", used={"cpu": "4"})
    proxy.freeze(LIMIT_RANGES.path())
    await api.client.create(LIMIT_RANGES, defaults("8"))
    web = stored(deployment("web", "nlp", 2, cpu="2"))
    assert "requested: limits.cpu=12," in message(await hooks.update(web, changed(web, unstated)))


async def test_a_runtime_class_that_changed_a_moment_ago_is_read(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    group = await api.group("nlp", cpu="10")
    assert group
    await api.client.create(RUNTIME_CLASSES, runtime_class("1"))
    await seen(hooks, "kata")
    proxy.freeze(RUNTIME_CLASSES.path())
    await api.client.patch(RUNTIME_CLASSES, "kata", {"overhead": {"podFixed": {"cpu": "9"}}})
    web = changed(deployment("web", "nlp", 1), lambda o: o["spec"]["template"]["spec"].update(runtimeClassName="kata"))
    assert (await hooks.create(web))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.amount["limits.cpu"] == 10 * NANO
    await api.client.delete(RUNTIME_CLASSES, "kata")
    assert (await hooks.create(changed(web, replicas(0))))["allowed"]


async def test_a_scale_of_an_unlabelled_object_is_decided_on_the_default_of_now(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="10")
    await api.client.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {}}}
    )
    idle = await api.client.create(DEPLOYMENTS, deployment("web", None, 0, namespace="team"))
    await seen(hooks, "team")
    how: Any = {"resource": DEPLOYMENTS, "sub_resource": "scale"}
    assert (await hooks.review("scale", "UPDATE", *scale_of(idle, 50), **how))["allowed"]
    proxy.freeze(NAMESPACES.path())
    await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": {LABEL: "nlp"}}})
    assert "requested: limits.cpu=50," in message(await hooks.review("scale", "UPDATE", *scale_of(idle, 50), **how))


async def test_a_default_that_changed_a_moment_ago_pays_for_the_growth(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="10")
    await api.group("vision", cpu="10")
    labels = {LABEL: "nlp"}
    await api.client.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
    )
    await seen(hooks, "team")
    proxy.freeze(NAMESPACES.path())
    await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": {LABEL: "vision"}}})
    assert (await hooks.create(deployment("web", None, 2, namespace="team")))["allowed"]
    assert await api.entries("nlp") == []
    assert len(await api.entries("vision")) == 1


async def test_the_watch_counts_again_once_it_is_ahead(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="100")
    proxy.freeze(LIMIT_RANGES.path())
    await api.client.create(LIMIT_RANGES, defaults("8"))
    web = changed(deployment("web", "nlp", 1), unstated)
    assert (await hooks.create(web))["allowed"]
    resolver = hooks.webhooks.resolver
    assert resolver.is_ahead
    await api.client.patch(LIMIT_RANGES, "lr", {"spec": defaults("2")["spec"]}, namespace="default")
    proxy.thaw(LIMIT_RANGES.path())

    async def caught_up() -> bool:
        [found] = resolver.watched_now(("", "LimitRange", "default", ""))
        return found["spec"] == defaults("2")["spec"]

    await eventually(caught_up, 30, "the watch shows the change")
    assert not resolver.is_ahead


async def test_what_states_everything_needs_no_read(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="10", **{"requests.cpu": "10", "pods": "10", "count/deployments.apps": "5"})
    await api.client.create(LIMIT_RANGES, defaults("8"))
    before = reads(proxy)
    web = deployment("web", "nlp", 2)
    assert (await hooks.create(web))["allowed"]
    kept = stored(web)
    assert (await hooks.update(kept, changed(kept, replicas(3))))["allowed"]
    assert (await hooks.update(kept, changed(kept, unstated)))["allowed"] is False
    assert reads(proxy) - before == 1


async def test_what_hard_does_not_name_needs_not_be_stated(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", pods="10")
    before = reads(proxy)
    assert (await hooks.create(changed(deployment("web", "nlp", 2), unstated)))["allowed"]
    assert reads(proxy) == before


async def test_those_who_ask_at_the_same_moment_share_a_read(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="1000")
    await api.client.create(LIMIT_RANGES, defaults("1"))
    await seen(hooks, "lr")

    def made(count: int) -> list[Object]:
        return [changed(deployment(f"web-{number}", "nlp", 1), unstated) for number in range(count)]

    before = reads(proxy)
    for obj in made(5):
        assert (await hooks.create(obj))["allowed"]
    assert reads(proxy) - before == 5
    before = reads(proxy)
    answers = await asyncio.gather(*(hooks.create(obj) for obj in made(50)))
    assert all(answer["allowed"] for answer in answers)
    # Two where all of them come before the first read ends.
    assert reads(proxy) - before <= 10


async def test_growth_waits_for_a_limit_range_that_cannot_be_read_and_nothing_else_does(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="10")
    refused(503, 10**6)(proxy, "GET", LIMIT_RANGES.path("default"))
    web = changed(deployment("web", "nlp", 2), unstated)
    denied = await hooks.create(web)
    assert "could not be read" in message(denied)
    assert denied["status"]["code"] == 429
    kept = stored(web)
    for change in (
        replicas(1),
        lambda o: o["spec"].update(paused=True),
        lambda o: o["spec"]["template"]["spec"]["containers"][0].update(image="b"),
    ):
        assert (await hooks.update(kept, changed(kept, change)))["allowed"]
    assert (await hooks.create(deployment("stated", "nlp", 2)))["allowed"]
