"""Children of what pays: their labels, their owners, and what becomes of those that leave or are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bizrq.quota.reservation import Reservation
from bizrq.quota.verdict import Granted, Verdict
from bizrq.store.groups import GROUPS
from bizrq.units.slot import Slot
from bizrq.workloads.labels import LABEL, MODEL_LABELS
from bizrq.workloads.ownership.memory import Memory, leaving_parts, payer_line
from tests.support.objects import (
    DEPLOYMENTS,
    NAMESPACES,
    OF_KIND,
    PODS,
    REPLICASETS,
    TFJOBS,
    Object,
    deployment,
    namespace,
    template,
    tfjob,
)
from tests.support.proxy import Proxy
from tests.support.tenant import REPLICATION_CONTROLLERS, STATEFULSETS
from tests.webhooks.charging.test_owner_trust import (
    COLLECTOR,
    OPERATOR,
    REPLICASET_CONTROLLER,
    owned_by,
    released,
    replica_set,
)
from tests.webhooks.conftest import Api, Hooks, changed, message, stored

ONE = 1_000_000_000


def pod(name: str, owner: Object | None = None, /, cpu: str = "1", **labels: str) -> Object:
    metadata: Object = {"name": name, "namespace": "default", "labels": {"app": "x", **labels}}
    if owner is not None:
        metadata["ownerReferences"] = [owned_by(owner)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template(cpu)["spec"]}


def labelled(obj: Object, **labels: str | None) -> Object:
    def change(new: Object) -> None:
        merged = {**new["metadata"].get("labels", {}), **labels}
        new["metadata"]["labels"] = {key: value for key, value in merged.items() if value is not None}

    return changed(obj, change)


async def web(api: Api, replicas: int = 2) -> tuple[Object, Object]:
    """A stored Deployment and its ReplicaSet."""
    owner = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", replicas))
    return owner, await api.client.create(REPLICASETS, replica_set(owner, "web-1", replicas))


async def leaving(hooks: Hooks, old: Object, new: Object, user: Object | None = None) -> Object:
    resource = OF_KIND[old["kind"]]
    return await hooks.review("children", "UPDATE", new, old, user=user, resource=resource)


def remembers(hooks: Hooks, uid: str, group: str = "nlp") -> None:
    """Have the webhooks know that the group paid for what is left."""
    line = payer_line(uid, Memory(group, "Deployment/default/web", 1_700_000_000_000, 1_700_000_001_000))
    hooks.webhooks.payers.replace(uid, group, [line])


# Labels.


@pytest.mark.parametrize("group", ["vision", "nosuch"])
async def test_a_persons_change_of_a_childs_label_is_refused(api: Api, hooks: Hooks, group: str) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    await api.group("vision", cpu="9")
    _, below = await web(api)
    for old in (stored(pod("p", below)), stored(pod("q", below, **{LABEL: "nlp"})), below):
        response = await hooks.update(old, labelled(old, **{LABEL: group}), user={"username": "ann"})
        assert "is charged to quota nlp, which pays for Deployment/default/web" in message(response)
        assert f"its label {LABEL} cannot change to {group}" in message(response)
        assert response["status"]["code"] == 403
    assert await api.entries("vision") == []


async def test_a_childs_label_may_go_stay_or_name_the_group_that_pays(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    strange = stored(pod("p", below, **{LABEL: "nosuch"}))
    for new in (labelled(strange, **{LABEL: None}), labelled(strange, tier="a"), labelled(strange, **{LABEL: "nlp"})):
        assert (await hooks.update(strange, new))["allowed"]


async def test_a_controller_may_change_any_label(api: Api, hooks: Hooks) -> None:
    _, below = await web(api)
    old = stored(pod("p", below))
    assert (await hooks.update(old, labelled(old, **{LABEL: "vision"}), user=REPLICASET_CONTROLLER))["allowed"]


async def test_the_label_of_a_new_child_is_ignored_with_a_warning(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    response = await hooks.create(pod("p", below, **{LABEL: "nosuch"}), user=REPLICASET_CONTROLLER)
    assert response["allowed"]
    assert response["warnings"] == [
        f"Pod default/p: its label {LABEL}=nosuch is ignored: Deployment default/web pays for it in nlp"
    ]
    assert "warnings" not in await hooks.create(pod("q", below, **{LABEL: "nlp"}), user=REPLICASET_CONTROLLER)


async def test_what_is_left_keeps_the_group_that_paid(api: Api, hooks: Hooks) -> None:
    """A label of another group is refused, its removal is not; growth by /scale is charged to the group that paid."""
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = stored(deployment("web", "nlp", 2))
    left = await api.client.create(REPLICASETS, labelled(released(replica_set(owner, "web-1", 2)), **{LABEL: None}))
    remembers(hooks, left["metadata"]["uid"])
    refused = message(await hooks.update(left, labelled(left, **{LABEL: "nosuch"})))
    assert "is charged to quota nlp, which paid for Deployment/default/web until that released it" in refused
    assert (await scaled(hooks, left, 4))["allowed"]
    [entry] = await api.entries("nlp")
    assert (str(entry.slot), entry.extra["limits.cpu"]) == ("replicasets.apps/default/web-1", 2 * ONE)
    assert "exceeded quota: nlp, requested: limits.cpu=3" in message(await scaled(hooks, left, 5))
    grown = changed(left, lambda o: o["spec"].update(replicas=9))
    assert "exceeded quota: nlp, requested: limits.cpu=7" in message(await hooks.update(left, grown))


async def test_what_is_left_may_change_while_it_is_deleted_but_not_grow(api: Api, hooks: Hooks) -> None:
    """Its pods may take a day to stop, and are resized until then."""
    await api.group("nlp", cpu="2", used={"cpu": "1"})
    dying = changed(stored(pod("p")), lambda o: o["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    remembers(hooks, dying["metadata"]["uid"])
    assert (await hooks.update(dying, labelled(dying, tier="a", **{LABEL: "nlp"})))["allowed"]
    assert (await hooks.update(dying, sized(dying, "500m")))["allowed"]
    assert await api.entries("nlp") == []
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await hooks.update(dying, sized(dying, "3")))
    assert (await hooks.update(dying, sized(dying, "2")))["allowed"]
    assert [str(entry.slot) for entry in await api.entries("nlp")] == ["pods/default/p"]


async def test_a_pod_that_stayed_grows_in_the_group_that_it_stayed_with(api: Api, hooks: Hooks) -> None:
    """Its owner of another group has adopted it, and does not pay for it."""
    await api.group("nlp", cpu="2", used={"cpu": "1"})
    await api.group("vision", cpu="9", used={"cpu": "2"})
    owner = await api.client.create(REPLICASETS, {**deployment("r", "vision", 2), "kind": "ReplicaSet"})
    left = stored(pod("p"))
    remembers(hooks, left["metadata"]["uid"])
    adopted = changed(left, lambda o: o["metadata"].update(ownerReferences=[owned_by(owner)]))
    assert (await hooks.update(left, adopted, user=REPLICASET_CONTROLLER))["allowed"]
    assert (await hooks.update(adopted, labelled(adopted, tier="a")))["allowed"]
    assert await api.entries("nlp") == []
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await hooks.update(adopted, sized(adopted, "3")))
    assert (await hooks.update(adopted, sized(adopted, "2")))["allowed"]
    assert [str(entry.slot) for entry in await api.entries("nlp")] == ["pods/default/p"]
    assert await api.entries("vision") == []


def sized(obj: Object, cpu: str) -> Object:
    return changed(obj, lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(cpu=cpu))


async def scaled(hooks: Hooks, obj: Object, replicas: int) -> Object:
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": replicas}}
    resource = OF_KIND[obj["kind"]]
    return await hooks.review("scale", "UPDATE", scale, scale, resource=resource, sub_resource="scale")


async def test_pods_that_name_another_group_have_to_fit_there_before_their_owner_names_none(
    api: Api, hooks: Hooks
) -> None:
    """Their label was ignored when they came: nobody has admitted them to that group."""
    await api.group("nlp", cpu="9", used={"cpu": "4"})
    await api.group("vision", cpu="2")
    owner = await api.client.create(TFJOBS, tfjob("train", "nlp", 4, gpu=0))
    for name, label in (("a", "vision"), ("b", "vision"), ("c", "nlp"), ("d", "nosuch")):
        await api.client.create(PODS, pod(name, owner, **{LABEL: label}))
    without = labelled(owner, **{LABEL: None})
    assert (await hooks.update(owner, without))["allowed"]
    [entry] = await api.entries("vision")
    assert (str(entry.slot), entry.extra["limits.cpu"]) == ("tfjobs.kubeflow.org/default/train", 2 * ONE)
    await api.client.create(PODS, pod("e", owner, **{LABEL: "vision"}))
    refused = message(await hooks.update(owner, without))
    assert "exceeded quota: vision, requested: limits.cpu=3, used: limits.cpu=2" in refused
    assert "charged for what TFJob default/train made that names the group itself" in refused
    assert (await hooks.update(owner, labelled(owner, **{LABEL: "nlp", "tier": "a"})))["allowed"]


async def test_pods_that_a_workload_has_beyond_what_it_asks_for_have_to_fit_when_it_gets_its_first_label(
    api: Api, hooks: Hooks
) -> None:
    """No group was charged for them. From then on one is."""
    await api.group("nlp", cpu="4")
    owner = await api.client.create(DEPLOYMENTS, deployment("web", None, 2))
    below = {**deployment("web-1", None, 2), "kind": "ReplicaSet"}
    below["metadata"]["ownerReferences"] = [owned_by(owner)]
    below = await api.client.create(REPLICASETS, below)
    labels = labelled(owner, **{LABEL: "nlp"})
    for name in ("a", "b", "c", "d", "e"):
        made = pod(name, below)
        made["spec"] |= {"nodeName": "n", "terminationGracePeriodSeconds": 3600}
        await api.client.create(PODS, made)
    for name in ("d", "e"):
        refused = message(await hooks.update(owner, labels))
        assert "exceeded quota: nlp, requested: limits.cpu=5" in refused
        await api.client.delete(PODS, name, "default")
    assert "exceeded quota: nlp, requested: limits.cpu=5" in message(await hooks.update(owner, labels))
    await api.client.request("DELETE", PODS.path("default", "e"), body=b'{"gracePeriodSeconds": 0}')
    assert (await hooks.update(owner, labels))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.extra["limits.cpu"] == 4 * ONE


async def test_pods_are_not_read_where_a_workload_never_named_a_group(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    owner = await api.client.create(TFJOBS, labelled(tfjob("train", "nlp", 4, gpu=0), **{LABEL: None}))
    seen: list[str] = []

    async def note(line: str) -> None:
        seen.append(line)

    proxy.before.append(note)
    assert (await hooks.update(owner, labelled(owner, tier="a", **{LABEL + "/cpu-type": "A4"})))["allowed"]
    assert not [line for line in seen if "/pods" in line]


# Owners.


@pytest.mark.parametrize("version", ["apps/v1", "apps/v9"])
async def test_an_owner_that_does_not_exist_pays_for_nothing(api: Api, hooks: Hooks, version: str) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    invented = changed(below, lambda o: o["metadata"].update(uid="invented"))
    forged = changed(
        pod("p", invented, **{LABEL: "nlp"}), lambda o: o["metadata"]["ownerReferences"][0].update(apiVersion=version)
    )
    assert "exceeded quota: nlp, requested: limits.cpu=1" in message(await hooks.create(forged))


async def test_any_version_of_the_owners_group_is_its_own(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    made = changed(pod("p", below), lambda o: o["metadata"]["ownerReferences"][0].update(apiVersion="apps/v9"))
    assert (await hooks.create(made))["allowed"]


async def test_a_pod_that_its_owner_would_not_keep_pays_for_itself(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    other = labelled(pod("p", below, **{LABEL: "nlp"}), app="y")
    assert "exceeded quota: nlp, requested: limits.cpu=1" in message(await hooks.create(other))


async def replication_controller(api: Api, group: str | None = "nlp", replicas: int = 2) -> Object:
    made = {**deployment("rc", group, replicas), "apiVersion": "v1", "kind": "ReplicationController"}
    made["spec"]["selector"] = {"app": "x"}
    return await api.client.create(REPLICATION_CONTROLLERS, made)


def selecting(obj: Object, app: str) -> Object:
    def change(new: Object) -> None:
        new["spec"]["selector"] = {"app": app}
        new["spec"]["template"]["metadata"] = {"labels": {"app": app}}

    return changed(obj, change)


async def reselected(hooks: Hooks, old: Object, new: Object) -> Object:
    return await hooks.review("workloads", "UPDATE", new, old, resource=REPLICATION_CONTROLLERS)


async def test_another_selector_has_to_fit_beside_what_may_be_made_for_the_last(api: Api, hooks: Hooks) -> None:
    """Its two pods are not there yet. Its controller may make them by what it has seen."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    old = await replication_controller(api)
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await reselected(hooks, old, selecting(old, "y")))
    await api.count("nlp", cpu="1")
    assert (await reselected(hooks, old, selecting(old, "y")))["allowed"]
    [promise] = await api.entries("nlp")
    assert (promise.amount["limits.cpu"], promise.base["limits.cpu"]) == (4 * ONE, 2 * ONE)


async def test_another_selector_that_matches_the_template_lets_nothing_go_once_it_is_observed(
    api: Api, hooks: Hooks
) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    made = await replication_controller(api)
    old = changed(made, lambda o: o["spec"]["template"].update(metadata={"labels": {"app": "x", "v": "1"}}))
    new = changed(old, lambda o: o["spec"]["selector"].update(v="1"))
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await reselected(hooks, old, new))
    seen = {"observedGeneration": old["metadata"]["generation"]}
    old, new = (changed(each, lambda o: o.update(status=seen)) for each in (old, new))
    assert (await reselected(hooks, old, new))["allowed"]


async def test_nobody_adds_to_what_another_selector_drops(api: Api, hooks: Hooks) -> None:
    """The group of the owner would pay for it. Where none does, it is nobody's."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    owner = await replication_controller(api)
    other = labelled(pod("p", owner), app="y")
    response = await hooks.create(other, user={"username": "ann"})
    assert "the selector of ReplicationController rc does not match the labels of this object" in message(response)
    assert response["status"]["code"] == 422
    assert (await hooks.create(other, user=REPLICASET_CONTROLLER))["allowed"]
    bare = stored(labelled(pod("q"), app="y"))
    adopted = changed(bare, lambda o: o["metadata"].update(ownerReferences=other["metadata"]["ownerReferences"]))
    assert "does not match" in message(await hooks.update(bare, adopted, user={"username": "ann"}))
    own = stored(labelled(other, **{LABEL: "vision"}))
    assert "does not match" in message(
        await hooks.update(own, labelled(own, **{LABEL: None}), user={"username": "ann"})
    )
    assert (await hooks.create(labelled(other, **{LABEL: "nlp"}), user={"username": "ann"}))["allowed"]


async def test_below_an_owner_of_no_group_anything_goes(api: Api, hooks: Hooks) -> None:
    owner = await replication_controller(api, None)
    assert (await hooks.create(labelled(pod("p", owner), app="y"), user={"username": "ann"}))["allowed"]


async def test_an_invented_owner_is_no_way_round_a_default(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="1")
    made = await api.client.create(NAMESPACES, namespace("team", **{LABEL: "nlp"}))
    await hooks.webhooks.resolver.informers[-1].catch_up(int(made["metadata"]["resourceVersion"]), 5)
    owner = stored(deployment("gone", None, 9, namespace="team"))
    forged = changed(replica_set(owner, "rs", 2), lambda o: o["metadata"].update(namespace="team", labels={"app": "x"}))
    assert "exceeded quota: nlp, requested: limits.cpu=2" in message(await hooks.create(forged))


REFERENCES: list[Any] = ["x", ["x"], [{"kind": "Pod"}], [{"apiVersion": "v1", "kind": 7, "name": "x", "uid": "u"}]]


@pytest.mark.parametrize("references", REFERENCES)
async def test_owner_references_that_cannot_be_read_are_refused(api: Api, hooks: Hooks, references: Any) -> None:
    bad = changed(pod("p", **{LABEL: "nlp"}), lambda o: o["metadata"].update(ownerReferences=references))
    response = await hooks.create(bad)
    assert "metadata.ownerReferences" in message(response)
    assert response["status"]["code"] == 422


# Leaving.


async def test_what_leaves_its_owner_has_to_fit(api: Api, hooks: Hooks) -> None:
    """By its labels or by its reference; the owner makes another in its place."""
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    owner, below = await web(api)
    first, second = stored(pod("p", below)), stored(pod("q", below, **{LABEL: "nosuch"}))
    assert (await leaving(hooks, first, labelled(first, app="mine")))["allowed"]
    [entry] = await api.entries("nlp")
    assert (str(entry.slot), entry.uid, entry.extra["limits.cpu"]) == ("pods/default/p", "uid-of-p", ONE)
    for new in (labelled(second, app=None), labelled(second, app="mine"), released(second)):
        response = message(await leaving(hooks, second, new))
        assert "exceeded quota: nlp, requested: limits.cpu=1" in response
        assert "what leaves Deployment/default/web, which makes another in its place" in response
    assert "requested: limits.cpu=2" in message(await leaving(hooks, below, labelled(below, app="mine")))
    assert owner["metadata"]["uid"]


async def test_a_release_by_a_controller_is_charged_where_it_can_be(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="3", used={"cpu": "2"})
    _, below = await web(api)
    first, second = (stored(labelled(pod(name, below), app="mine")) for name in "pq")
    # It is kept no more: the person who changed the label was charged.
    remembers(hooks, below["metadata"]["uid"])
    for old in (first, second):
        assert (await leaving(hooks, old, released(old), REPLICASET_CONTROLLER))["allowed"]
    third = stored(pod("r", below))
    assert (await leaving(hooks, third, released(third), REPLICASET_CONTROLLER))["allowed"]
    added = {entry.slot.name: entry.extra["limits.cpu"] for entry in await api.entries("nlp")}
    assert added == {"p": 0, "q": 0, "r": ONE}
    fourth = stored(pod("s", below))
    assert (await leaving(hooks, fourth, released(fourth), REPLICASET_CONTROLLER))["allowed"]
    grown = changed(released(fourth), lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(cpu="9"))
    assert "exceeded quota" in message(await leaving(hooks, fourth, grown, REPLICASET_CONTROLLER))


async def test_what_an_owner_leaves_that_is_being_deleted_is_no_growth(api: Api, hooks: Hooks) -> None:
    """Nobody makes another in its place."""
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    dying = changed(deployment("web", "nlp", 2), lambda o: o["metadata"].update(finalizers=["orphan"]))
    owner = await api.client.create(DEPLOYMENTS, dying)
    below = stored(replica_set(owner, "web-1", 2))
    await api.client.delete(DEPLOYMENTS, "web", "default")
    assert (await leaving(hooks, below, released(below), COLLECTOR))["allowed"]
    assert await api.entries("nlp") == []
    grown = changed(released(below), lambda o: o["spec"].update(replicas=12))
    assert "exceeded quota: nlp, requested: limits.cpu=10" in message(await leaving(hooks, below, grown))


async def held(api: Api) -> Object:
    """A Deployment that is being deleted, until somebody takes its finalizer."""

    def change(new: Object) -> None:
        new["metadata"]["finalizers"] = ["example.org/held"]
        new["metadata"]["labels"][MODEL_LABELS["cpu"]] = "genoa"

    await api.client.create(DEPLOYMENTS, changed(deployment("web", "nlp", 2), change))
    await api.client.delete(DEPLOYMENTS, "web", "default")
    return await api.client.get(DEPLOYMENTS, "web", "default")


async def test_what_leaves_says_who_paid_before_it_is_gone(api: Api, hooks: Hooks) -> None:
    """No controller sees it, and no line of its payer was stored."""
    await api.group("nlp", used={"cpu": "2", "limits.cpu.genoa": "2"}, **{"cpu": "4", "limits.cpu.genoa": "4"})
    owner = await held(api)
    below = stored(labelled(replica_set(owner, "web-1", 2), **{LABEL: None}))
    assert (await leaving(hooks, below, released(below), COLLECTOR))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.uid, set(entry.extra.values())) == (below["metadata"]["uid"], {0})
    assert entry.others == ("left=Deployment/default/web", "models=cpu:genoa")
    await api.client.patch(DEPLOYMENTS, "web", {"metadata": {"finalizers": None}}, namespace="default")
    left = await api.client.create(REPLICASETS, labelled(released(replica_set(owner, "web-1", 2)), **{LABEL: None}))
    entry = replace(entry, uid=left["metadata"]["uid"])
    await api.count("nlp", entry, **{"cpu": "2", "limits.cpu.genoa": "2"})
    more = [changed(left, lambda o, replicas=replicas: o["spec"].update(replicas=replicas)) for replicas in (9, 4)]
    assert "limits.cpu.genoa=7" in message(await hooks.update(left, more[0]))
    assert (await hooks.update(left, more[1]))["allowed"]


async def test_what_leaves_is_let_go_where_it_cannot_be_counted(api: Api, hooks: Hooks) -> None:
    """The garbage collector would try again for ever. The recount counts it at its largest."""
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = await held(api)
    below = stored(changed(replica_set(owner, "web-1", 2), lambda o: o["spec"].update(replicas="many")))
    assert (await leaving(hooks, below, released(below), COLLECTOR))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.others == ("left=Deployment/default/web", "models=cpu:genoa")
    refused = changed(released(below), lambda o: o["spec"].update(replicas="more"))
    assert "spec.replicas" in message(await leaving(hooks, below, refused))


async def test_what_an_owner_had_made_that_is_gone_is_its_groups(api: Api, hooks: Hooks) -> None:
    """Nobody has counted the owner, or seen it go, and another owner keeps what it made."""
    await api.group("nlp", cpu="4")
    owner = stored(deployment("web", "nlp", 2))
    slot = Slot("deployments.apps", "default", "web")
    promise = Reservation(slot, owner["metadata"]["uid"], None, 2_000_000_000_000, {"limits.cpu": 2 * ONE})
    await api.count("nlp", promise)
    below = stored(labelled(replica_set(owner, "web-1", 2), **{LABEL: None}))
    grown = changed(below, lambda o: o["spec"].update(replicas=9))
    assert "exceeded quota: nlp, requested: limits.cpu=7" in message(await hooks.update(below, grown))
    assert (await leaving(hooks, below, released(below), COLLECTOR))["allowed"]
    assert [entry.others for entry in await api.entries("nlp")] == [(), ("left=Deployment/default/web",)]
    # As a count stores it.
    await api.count("nlp")
    hooks.webhooks.payers.replace("p", "nlp", [payer_line(promise.uid, Memory("nlp", "Deployment/default/web", 1))])
    assert "exceeded quota: nlp, requested: limits.cpu=7" in message(await hooks.update(below, grown))


@pytest.mark.parametrize("name", ["ghost", "web"])
async def test_what_names_another_groups_owner_itself_is_not_that_groups(api: Api, hooks: Hooks, name: str) -> None:
    """By its uid and another name, or by all of it once that is gone: anybody may write that."""
    await api.group("nlp", cpu="9")
    await api.group("vision", cpu="4", used={"cpu": "2"})
    owner = changed(stored(deployment("web", "nlp", 2)), lambda o: o["metadata"].update(name=name))
    hooks.webhooks.payers.replace("p", "nlp", [payer_line("uid-of-web", Memory("nlp", "Deployment/default/web", 1))])
    mine = stored(labelled(replica_set(owner, "mine", 2), **{LABEL: "vision"}))
    grown = changed(mine, lambda o: o["spec"].update(replicas=9))
    assert "exceeded quota: vision, requested: limits.cpu=7" in message(await hooks.update(mine, grown))
    assert (await leaving(hooks, mine, released(mine), COLLECTOR))["allowed"]
    assert await api.entries("nlp") == []


async def test_who_paid_is_read_where_the_watch_of_groups_is_behind(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """The other webhook has stored the reservation of what left a moment ago."""
    await api.group("nlp", cpu="4", used={"cpu": "2"})
    owner = await held(api)
    proxy.freeze(GROUPS.path())
    made = labelled(released(replica_set(owner, "web-1", 2)), **{LABEL: None})
    uid = (await api.client.create(REPLICASETS, made))["metadata"]["uid"]
    slot = Slot("replicasets.apps", "default", "web-1")
    entry = Reservation(slot, uid, 7, 2_000_000_000_000, {}, others=leaving_parts("Deployment/default/web", ()))
    await api.count("nlp", entry, cpu="2")
    left = await api.client.patch(REPLICASETS, "web-1", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    grown = changed(left, lambda o: o["spec"].update(replicas=9))
    assert "exceeded quota: nlp, requested: limits.cpu=7" in message(await hooks.update(left, grown))
    proxy.thaw(GROUPS.path())


async def test_no_groups_are_read_for_what_no_owner_makes(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """An autoscaler may scale a Deployment of no group at any time. A StatefulSet may be what an operator's made."""
    await api.group("nlp", cpu="4")
    proxy.freeze(GROUPS.path())
    listed: list[str] = []

    async def note(line: str) -> None:
        if line == f"GET {GROUPS.path()}":
            listed.append(line)

    proxy.before.append(note)
    for kind, lists in ((DEPLOYMENTS, 0), (STATEFULSETS, 1)):
        made = await api.client.create(kind, {**deployment("web", None, 2), "kind": kind.kind})
        grown = changed(made, lambda o: o["spec"].update(replicas=9))
        assert (await hooks.update(made, grown, resource=kind))["allowed"]
        assert len(listed) == lists
    proxy.thaw(GROUPS.path())


async def test_a_label_that_no_selector_uses_changes_without_a_read(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """As in the election of a leader: after the first look at an owner none is needed."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    _, below = await web(api)
    seen: list[str] = []

    async def note(line: str) -> None:
        if "?watch" not in line and "&watch" not in line:
            seen.append(line)

    master = stored(pod("p", below, role="master"))
    assert (await leaving(hooks, master, labelled(master, role="replica"), OPERATOR))["allowed"]
    proxy.before.append(note)
    for number in range(5):
        old = stored(pod(f"p{number}", below, role="master"))
        assert (await leaving(hooks, old, labelled(old, role="replica"), OPERATOR))["allowed"]
    assert seen == []
    assert await api.entries("nlp") == []


# Adoption.


async def test_a_workload_that_is_created_again_adopts_what_it_left(api: Api, hooks: Hooks) -> None:
    """A StatefulSet's volumes are resized so, in a group that is full. Names and groups of others do not count."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    await left_pods(api, hooks)
    assert (await hooks.create(stateful("db", 2), resource=STATEFULSETS))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.extra["limits.cpu"] == 0
    assert "exceeded quota: nlp" in message(await hooks.create(stateful("other", 3), resource=STATEFULSETS))
    await api.count("nlp", cpu="2")
    assert "exceeded quota: nlp" in message(await hooks.create(stateful("db", 3), resource=STATEFULSETS))


async def test_a_workload_adopts_what_it_left_under_the_models_of_before(api: Api, hooks: Hooks) -> None:
    """`used` counts what is left under the labels of the workload that is gone."""
    hard = {"limits.cpu.A4": "2", "limits.cpu.T4": "1"}
    await api.group("nlp", cpu="2", used={"cpu": "2", "limits.cpu.A4": "2"}, **hard)
    await left_pods(api, hooks, models=(("cpu", "A4"),))
    as_before, other = stateful("db", 2), stateful("db", 2)
    as_before["metadata"]["labels"][MODEL_LABELS["cpu"]] = "A4"
    other["metadata"]["labels"][MODEL_LABELS["cpu"]] = "T4"
    assert "limits.cpu.T4=2" in message(await hooks.create(other, resource=STATEFULSETS))
    assert (await hooks.create(as_before, resource=STATEFULSETS))["allowed"]
    [entry] = await api.entries("nlp")
    assert entry.extra["limits.cpu.A4"] == 0


async def test_what_is_left_grows_under_the_models_of_the_payer_that_left_it(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "2", "limits.cpu.A4": "2"}, **{"limits.cpu.A4": "3"})
    left = stored({**deployment("web-1", None, 2), "kind": "ReplicaSet"})
    uid, memory = left["metadata"]["uid"], Memory("nlp", "Deployment/default/web", 1, 2, (("cpu", "A4"),))
    hooks.webhooks.payers.replace(uid, "nlp", [payer_line(uid, memory)])
    for replicas, fits in ((3, True), (4, False)):
        grown = changed(left, lambda o, replicas=replicas: o["spec"].update(replicas=replicas))
        answer = await hooks.update(left, grown, resource=REPLICASETS)
        assert answer["allowed"] is fits
    assert "exceeded quota: nlp, requested: limits.cpu.A4=2" in message(answer)


async def left_pods(api: Api, hooks: Hooks, cpu: str = "1", *, models: Sequence[tuple[str, str]] = ()) -> None:
    """Two pods that the StatefulSet `db` has left, in a group that is full of them."""
    left = Memory("nlp", "StatefulSet/default/db", 1, 2, tuple(models))
    for name in ("db-0", "db-1"):
        made = await api.client.create(PODS, pod(name, cpu=cpu))
        uid = made["metadata"]["uid"]
        hooks.webhooks.payers.replace(uid, "nlp", [payer_line(uid, left)])


def stateful(name: str, replicas: int, cpu: str = "1") -> Object:
    return {**deployment(name, "nlp", replicas, cpu=cpu), "kind": "StatefulSet"}


async def test_a_workload_of_another_kind_adopts_nothing_for_free(api: Api, hooks: Hooks) -> None:
    """Else two that select the same would both count it as theirs."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    await left_pods(api, hooks)
    other = {**stateful("db", 2), "kind": "ReplicaSet"}
    assert "exceeded quota: nlp" in message(await hooks.create(other, resource=REPLICASETS))
    assert (await hooks.create(stateful("db", 2), resource=STATEFULSETS))["allowed"]


async def test_a_pod_that_is_adopted_stands_for_one_of_the_new_pods(api: Api, hooks: Hooks) -> None:
    """It may be larger than they are: they come besides."""
    await api.group("nlp", cpu="8", used={"cpu": "8"})
    await left_pods(api, hooks, cpu="4")
    assert "exceeded quota: nlp" in message(await hooks.create(stateful("db", 8), resource=STATEFULSETS))
    assert (await hooks.create(stateful("db", 2), resource=STATEFULSETS))["allowed"]


async def test_what_is_gone_when_the_reservation_is_stored_was_not_adopted(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    await left_pods(api, hooks)
    reserve = hooks.webhooks.reserver.reserve

    async def late(*args: Any, **more: Any) -> Verdict:
        verdict = await reserve(*args, **more)
        if isinstance(verdict, Granted):
            for name in ("db-0", "db-1"):
                await api.client.patch(PODS, name, {"metadata": {"labels": {"app": "y"}}}, namespace="default")
        return verdict

    hooks.webhooks.reserver.reserve = late
    assert "exceeded quota: nlp" in message(await hooks.create(stateful("db", 2), resource=STATEFULSETS))


async def test_what_is_left_is_not_taken_from_the_workload_that_is_about_to_adopt_it(api: Api, hooks: Hooks) -> None:
    """It would make others, and its create was not charged for these."""
    await api.group("nlp", cpu="2", used={"cpu": "2"})
    await left_pods(api, hooks)
    left = await api.client.get(PODS, "db-0", "default")
    relabelled = changed(left, lambda o: o["metadata"].update(labels={"app": "y"}))
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "controller": True}
    owned = changed(left, lambda o: o["metadata"].update(ownerReferences=[settings]))
    noted = changed(left, lambda o: o["metadata"]["labels"].update(note="y"))

    async def answers() -> list[str]:
        found = [await hooks.review("children", "UPDATE", new, left) for new in (relabelled, owned, noted)]
        return ["" if each["allowed"] else message(each) for each in found]

    assert await answers() == ["", "", ""]
    db, busy = stateful("db", 2), "Pod default/db-0 is about to be adopted by statefulsets.apps/default/db: try again"
    assert (await hooks.create(db, resource=STATEFULSETS))["allowed"]
    assert await answers() == [busy] * 3
    await api.client.create(STATEFULSETS, db)
    await api.count("nlp", cpu="2")
    assert await api.entries("nlp") == []
    assert await answers() == [busy, busy, ""]
    await api.client.delete(STATEFULSETS, "db", "default")
    assert await answers() == ["", "", ""]


async def test_a_deployment_that_adopts_a_replicaset_with_a_label_of_its_own_has_to_fit_beside_it(
    api: Api, hooks: Hooks
) -> None:
    """Nobody left it, so anybody's Deployment might count it."""
    await api.group("nlp", cpu="7", used={"cpu": "5"})
    bare = labelled(released(replica_set(stored(deployment("web", "nlp", 5)), "web", 5)), **{LABEL: "nlp"})
    await api.client.create(REPLICASETS, bare)
    assert "exceeded quota: nlp, requested: limits.cpu=3" in message(await hooks.create(deployment("web", "nlp", 3)))
    assert (await hooks.create(deployment("web", "nlp", 2)))["allowed"]
    [entry] = await api.entries("nlp")
    assert (entry.amount["limits.cpu"], entry.extra["limits.cpu"]) == (2 * ONE, 2 * ONE)
