"""Who may charge a group from where, and who may hand out a budget: a row is a case, the API server's RBAC is real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from aiohttp import web

from bizrq.api import group as wire
from bizrq.builtin import builtin_registry
from bizrq.cli import grants
from bizrq.cli.installation.configuration import configuration
from bizrq.kube.client import KubeClient, Resource
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Reason
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from bizrq.workloads.lookup import DocumentLookup
from tests.support.cluster import eventually
from tests.support.language import update
from tests.support.objects import (
    CLAIMS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    OF_KIND,
    ROLLOUTS,
    Object,
    bound,
    claim,
    cluster_role,
    deployment,
    device_class,
    group,
    namespace,
    pod_template,
    referring,
    template,
    tfjob,
)
from tests.support.proxy import Proxy
from tests.webhooks.conftest import Api, Hooks, changed, message, serving, stored
from tests.workloads.test_owners import family
from webhooks.charging.authorization import is_new_in_group, namespace_not_selected

ALICE: Object = {"username": "alice", "uid": "42", "groups": ["ml", "system:authenticated"], "extra": {"k": ["v"]}}
BOB: Object = {"username": "bob", "groups": ["system:authenticated"]}
ADMIN: Object = {"username": "root", "groups": ["system:masters"]}
JOBS = Resource("batch", "v1", "jobs", "Job")
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
SELECTOR = {"matchLabels": {"team": "nlp"}}


@pytest.fixture
async def asking(through: KubeClient) -> AsyncIterator[Hooks]:
    """Webhooks that ask for both rights."""
    async with serving(through, rights={"use": True, "grant": True}) as hooks:
        yield hooks


async def may(api: Api, user: str, verb: str, *names: str, kind: str = "User") -> None:
    """Give a verb on groups of these names, on all where none is given."""
    role = cluster_role(
        f"{user}-{verb}-{'-'.join(names).replace('*', 'roots') or 'all'}", verb, names=list(names) or None
    )
    await api.client.create(CLUSTER_ROLES, role)
    await api.client.create(CLUSTER_ROLE_BINDINGS, bound(role["metadata"]["name"], user, kind))


async def picked(api: Api, name: str, selector: Object | None, **hard: Any) -> None:
    """A counted group with this selector."""
    await api.client.create(
        GROUPS, changed(group(name, **hard), lambda o: o["spec"].update(namespaceSelector=selector))
    )
    await api.count(name)


def replicas(number: int) -> Any:
    return lambda obj: obj["spec"].update(replicas=number)


def labelled(of: str) -> Any:
    return lambda obj: obj["metadata"].update(labels={LABEL: of})


def hard(**amounts: Any) -> Any:
    return lambda obj: obj["spec"].update(hard=group("x", **amounts)["spec"]["hard"])


# From where.


async def test_a_namespace_that_the_selector_does_not_pick_brings_nothing_in(
    api: Api, hooks: Hooks, proxy: Proxy
) -> None:
    await picked(api, "nlp", SELECTOR, cpu="10")
    await api.client.create(NAMESPACES, namespace("theirs", team="vision"))
    response = await hooks.create(deployment("web", "nlp", namespace="theirs"))
    assert message(response) == (
        "namespace theirs may not charge quota nlp: its spec.namespaceSelector picks namespaces with team=nlp; "
        "use another namespace or group, or have the namespace labelled so"
    )
    assert response["status"]["code"] == 403
    dry = await hooks.create(deployment("web", "nlp", namespace="theirs"), dry_run=True)
    assert message(dry) == message(response)
    assert proxy.sent("PUT") == 0
    await api.client.create(NAMESPACES, namespace("ours", team="nlp"))
    assert (await hooks.create(deployment("web", "nlp", namespace="ours")))["allowed"]


@pytest.mark.parametrize(
    ("case", "old", "change", "allowed"),
    [
        ("grows", deployment("web", "nlp", 2), replicas(3), False),
        ("shrinks", deployment("web", "nlp", 2), replicas(1), True),
        ("stays", deployment("web", "nlp", 2), lambda o: o["metadata"].update(annotations={"a": "b"}), True),
        ("comes from elsewhere", deployment("web", "other", 2), labelled("nlp"), False),
        ("leaves", deployment("web", "nlp", 2), labelled("other"), True),
        ("loses its label", deployment("web", "nlp", 2), lambda o: o["metadata"].pop("labels"), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_stands_in_a_namespace_that_is_not_picked_may_do_all_but_grow(
    api: Api, hooks: Hooks, case: str, old: Object, change: Any, allowed: bool
) -> None:
    await picked(api, "nlp", SELECTOR, cpu="10")
    await api.group("other", cpu="10")
    old = stored(old)
    response = await hooks.update(old, changed(old, change))
    assert response["allowed"] is allowed, (case, response)
    if not allowed:
        assert "namespace default may not charge quota nlp" in message(response)


async def test_what_costs_nothing_is_asked_nothing(api: Api, asking: Hooks, proxy: Proxy) -> None:
    """Any user may label a job that has ended, in any namespace."""
    await picked(api, "nlp", SELECTOR, cpu="10")
    old = stored(tfjob("train", "other"))
    old["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    assert (await asking.update(old, changed(old, labelled("nlp")), user=BOB))["allowed"]
    assert proxy.sent("POST") == 0


async def test_a_namespace_that_was_labelled_a_moment_ago_may_charge_at_once(api: Api, hooks: Hooks) -> None:
    """A refusal is decided on a fresh read of both, never on a watched version."""
    await picked(api, "nlp", SELECTOR, cpu="10")
    await api.client.create(NAMESPACES, namespace("team"))
    assert not (await hooks.create(deployment("web", "nlp", namespace="team")))["allowed"]
    await api.client.patch(NAMESPACES, "team", {"metadata": {"labels": {"team": "nlp"}}})
    assert (await hooks.create(deployment("web", "nlp", namespace="team")))["allowed"]
    await api.client.patch(GROUPS, "nlp", {"spec": {"namespaceSelector": {"matchLabels": {"team": "ai"}}}})
    await api.client.patch(GROUPS, "nlp", {"spec": {"namespaceSelector": None}})
    assert (await hooks.create(deployment("more", "nlp", namespace="default")))["allowed"]


async def test_a_namespace_that_cannot_be_read_is_no_yes(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    await picked(api, "nlp", SELECTOR, cpu="10")

    async def forbidden(line: str) -> web.Response | None:
        return web.Response(status=403, text="no") if line == "GET /api/v1/namespaces/default" else None

    proxy.before.append(forbidden)
    response = await hooks.create(deployment("web", "nlp"))
    assert response["status"]["code"] == 429
    assert "namespace default could not be read, try again" in message(response)


async def test_a_selector_that_is_none_is_refused_where_it_is_new(api: Api, hooks: Hooks) -> None:
    """One that was stored before the CRD refused it blocks no other edit, and selects no namespace."""
    await picked(api, "nlp", SELECTOR, cpu="10")
    old = await api.client.get(GROUPS, "nlp")
    bad = {"matchExpressions": [{"key": "team", "operator": "Maybe"}]}
    broken = changed(old, lambda o: o["spec"].update(namespaceSelector=bad))
    refused = await hooks.update(old, broken)
    assert message(refused) == (
        "group nlp: spec.namespaceSelector: matchExpressions[0].operator: 'Maybe' is none of In, NotIn, Exists, "
        "DoesNotExist"
    )
    assert refused["status"]["code"] == 422
    assert (await hooks.update(broken, changed(broken, hard(cpu="9"))))["allowed"]
    unread = namespace_not_selected(wire.from_dict(broken), "default", {"team": "nlp"})
    assert unread is not None
    assert unread.reason is Reason.NOT_RECONCILED
    assert unread.message.startswith("quota nlp cannot be read: spec.namespaceSelector: matchExpressions[0].operator: ")


async def test_what_a_workload_refers_to_does_not_let_it_grow_either(api: Api, hooks: Hooks) -> None:
    """A Rollout of a namespace that the group has closed itself to, and the template that it refers to."""
    await picked(api, "nlp", SELECTOR, cpu="10")
    await api.client.create(NAMESPACES, namespace("theirs", team="vision"))
    shape = await api.client.create(OF_KIND["PodTemplate"], pod_template("shape", namespace="theirs"))
    await api.client.create(ROLLOUTS, referring("web", "nlp", shape, 2, namespace="theirs"))
    larger = changed(shape, lambda o: o.update(template=template("2")))
    refused = message(await hooks.review("references", "UPDATE", larger, shape))
    assert refused.startswith("namespace theirs may not charge quota nlp: ")


# The right to use.


@pytest.mark.parametrize(
    ("case", "given", "user", "allowed"),
    [
        ("nobody gave alice anything", [], ALICE, False),
        ("alice may use it", [("alice", "use", "nlp")], ALICE, True),
        ("alice may use another", [("alice", "use", "vision")], ALICE, False),
        ("alice may use all", [("alice", "use")], ALICE, True),
        ("alice may do everything", [("alice", "*")], ALICE, True),
        ("alice may only update it", [("alice", "update", "nlp")], ALICE, False),
        ("a name has no wildcard", [("alice", "use", "*")], ALICE, False),
        ("bob may use it", [("bob", "use", "nlp")], ALICE, False),
        ("a group of hers may", [("ml", "use", "nlp", "Group")], ALICE, True),
        ("a group of hers may, not of his", [("ml", "use", "nlp", "Group")], BOB, False),
        ("an administrator may all", [], ADMIN, True),
        ("a review that does not say who asks", [("alice", "use")], {"username": ""}, False),
    ],
)  # fmt: skip
async def test_who_creates_a_workload_in_a_group_has_to_have_use_on_it(
    api: Api, asking: Hooks, proxy: Proxy, case: str, given: list[tuple[str, ...]], user: Object, allowed: bool
) -> None:
    await api.group("nlp", cpu="10")
    for who, verb, *rest in given:
        await may(api, who, verb, *rest[:1], kind=rest[1] if len(rest) > 1 else "User")
    for dry_run in (True, False):
        response = await asking.create(deployment("web", "nlp"), user=user, dry_run=dry_run)
        assert response["allowed"] is allowed, (case, response)
    if not allowed:
        assert "may not charge quota nlp: creating a workload in it or moving one there needs the verb use" in message(
            response
        )
        assert response["status"]["code"] == 403
        assert proxy.sent("PUT") == 0


async def test_the_review_says_all_that_is_known_of_who_asks(api: Api, asking: Hooks, box: Any) -> None:
    """Other authorizers than RBAC may need all of it."""
    seen: list[Any] = []

    async def read(request: web.Request) -> None:
        if request.path.endswith("/subjectaccessreviews"):
            seen.append((await request.json())["spec"])

    box.faults.append(read)
    await api.group("nlp", cpu="10")
    await may(api, "alice", "use", "nlp")
    assert (await asking.create(deployment("web", "nlp"), user=ALICE))["allowed"]
    assert seen == [
        {
            "user": "alice",
            "uid": "42",
            "groups": ["ml", "system:authenticated"],
            "extra": {"k": ["v"]},
            "resourceAttributes": {
                "group": "quota.biz.group",
                "resource": "bizgroupresourcequotas",
                "name": "nlp",
                "verb": "use",
            },
        }
    ]


async def test_only_what_comes_into_a_group_needs_use(api: Api, asking: Hooks, proxy: Proxy) -> None:
    """Scaling, a new image, leaving: a user who may edit the workload may do these."""
    await api.group("nlp", cpu="10")
    await api.group("vision", cpu="10")
    old = stored(deployment("web", "nlp", 2))
    for change in (replicas(3), replicas(1), lambda o: o["metadata"].pop("labels")):
        assert (await asking.update(old, changed(old, change), user=BOB))["allowed"]
    assert proxy.sent("POST") == 0
    assert "bob may not charge quota vision" in message(
        await asking.update(old, changed(old, labelled("vision")), user=BOB)
    )
    await may(api, "bob", "use", "vision")
    assert (await asking.update(old, changed(old, labelled("vision")), user=BOB))["allowed"]


def charge(demand: str = "cpu=1", before: str = "") -> Charge:
    return update("web", before, demand)


@pytest.mark.parametrize(
    ("case", "stood", "becomes", "new_here"),
    [
        ("a bare create", "", "Job:nlp", True),
        ("a Job of the group's CronJob", "", "CronJob:nlp > Job:nlp", False),
        ("a Job of another group's CronJob", "", "CronJob:ai > Job:nlp", True),
        ("a Job of a CronJob without a group", "", "CronJob > Job:nlp", True),
        ("a ReplicaSet of a Deployment without a group", "", "Deployment > ReplicaSet:nlp", True),
        ("made by no kind that makes such", "", "TFJob:nlp > Job:nlp", True),
        ("a move", "Job:ai", "Job:nlp", True),
        ("a move of a child of the group's", "CronJob:nlp > Job:ai", "Job:nlp", False),
        ("a move to under an owner that it did not have", "Job:ai", "CronJob:nlp > Job:nlp", True),
        ("left alone by its owner in the same group", "Deployment:nlp > ReplicaSet:nlp", "ReplicaSet:nlp", False),
        ("left alone by an owner in another group", "Deployment:ai > ReplicaSet:nlp", "ReplicaSet:nlp", True),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) and value else "",
)  # fmt: skip
def test_what_joins_a_group(case: str, stood: str, becomes: str, new_here: bool) -> None:
    before, after = family(stood) if stood else [], family(becomes)
    around = DocumentLookup([*before, *after])
    old = before[-1] if before else None
    assert is_new_in_group("nlp", charge(), after[-1], old, builtin_registry(), around) is new_here
    assert not is_new_in_group("nlp", charge(demand=""), after[-1], old, builtin_registry(), around)
    assert not is_new_in_group(
        "nlp", charge(before="cpu=1", demand="cpu=2"), after[-1], old, builtin_registry(), around
    )


async def test_what_a_workload_of_the_group_makes_came_in_with_it(api: Api, asking: Hooks, proxy: Proxy) -> None:
    """A CronJob's Jobs pay for themselves, and are made by a controller that has no rights on groups."""
    await api.group("nlp", cpu="10")
    controller = {
        "username": "system:serviceaccount:kube-system:cronjob-controller",
        "groups": ["system:authenticated"],
    }
    jobs: dict[str, Object] = {}
    for of in ("nlp", "ai", None):
        above = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": f"of-{of}".lower(), "namespace": "default", "labels": {LABEL: of} if of else {}},
            "spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": template()}}},
        }
        above["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
        uid = (await api.client.create(CRON_JOBS, above))["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": above["metadata"]["name"], "uid": uid}
        jobs[str(of)] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "j",
                "namespace": "default",
                "labels": {LABEL: "nlp"},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": above["spec"]["jobTemplate"]["spec"],
        }
    proxy.requests.clear()
    assert (await asking.create(jobs["nlp"], user=controller, resource=JOBS))["allowed"]
    assert proxy.sent("POST") == 0
    for of in ("ai", "None"):
        assert "cronjob-controller may not charge quota nlp" in message(
            await asking.create(jobs[of], user=controller, resource=JOBS)
        )


async def test_what_leaves_its_owner_stays_in_the_group_that_paid(api: Api, asking: Hooks) -> None:
    """Its own label decides nothing, so that nobody needs a right on the group that it names."""
    await api.group("nlp", cpu="10")
    await api.group("ai", cpu="10")
    deployed = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 2))
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": deployed["metadata"]["uid"]}
    for of in ("ai", "nlp"):
        made = stored(deployment(f"web-{of}", of, 2))
        made["kind"] = "ReplicaSet"
        made["metadata"]["labels"]["app"] = "x"
        made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        assert (await asking.create(made, user=BOB, resource=REPLICA_SETS))["allowed"]
        alone = changed(made, lambda o: o["metadata"].pop("ownerReferences"))
        response = await asking.review("workloads", "UPDATE", alone, made, user=BOB, resource=REPLICA_SETS)
        assert response["allowed"], response
        assert f"replicasets.apps/default/web-{of}" in {str(entry.slot) for entry in await api.entries("nlp")}
    assert await api.entries("ai") == []


async def test_a_workload_without_a_label_uses_the_default_of_its_namespace(api: Api, asking: Hooks) -> None:
    await api.group("nlp", cpu="10")
    await api.client.create(NAMESPACES, namespace("team", **{LABEL: "nlp"}))
    bare = deployment("web", None, namespace="team")

    async def known() -> bool:
        return not (await asking.create(bare, user=BOB))["allowed"]

    await eventually(known, what="the webhooks know the namespace's default")
    assert "bob may not charge quota nlp" in message(await asking.create(bare, user=BOB))
    await may(api, "bob", "use", "nlp")
    assert (await asking.create(bare, user=BOB))["allowed"]


async def test_who_makes_a_group_the_default_of_a_namespace_has_to_have_use_on_it(api: Api, asking: Hooks) -> None:
    """Later workloads without a label are charged to the group; removing the default needs no right."""
    await api.group("nlp", cpu="9")
    plain, given = namespace("team"), namespace("team", **{LABEL: "nlp"})
    for old in (None, plain):
        how: Any = {"resource": NAMESPACES, "user": BOB}
        response = await asking.review("namespaces", "UPDATE" if old else "CREATE", given, old, **how)
        assert message(response).startswith("bob may not charge quota nlp: ")
        assert message(response).endswith("; ask an administrator to run: bizrq allow USER nlp")
    assert (await asking.review("namespaces", "UPDATE", plain, given, resource=NAMESPACES, user=BOB))["allowed"]
    await may(api, "bob", "use", "nlp")

    async def allowed() -> bool:
        return (await asking.review("namespaces", "UPDATE", given, plain, resource=NAMESPACES, user=BOB))["allowed"]

    await eventually(allowed)


async def test_who_makes_or_moves_a_claim_into_a_group_has_to_have_use_on_it(api: Api, asking: Hooks) -> None:
    """The rules are those of a workload; a claim that names no group needs no right."""
    await api.group("nlp", gpu="9")
    await api.client.create(OF_KIND["DeviceClass"], device_class("gpu"))
    plain = stored(claim("s", 2))
    mine = changed(plain, labelled("nlp"))
    for new, old, allowed in ((mine, None, False), (mine, plain, False), (plain, None, True), (plain, mine, True)):
        operation = "CREATE" if old is None else "UPDATE"
        response = await asking.review("claims", operation, new, old, resource=CLAIMS, user=BOB)
        assert response["allowed"] is allowed, response
        assert allowed or message(response).startswith("bob may not charge quota nlp: ")


async def test_a_refusal_for_a_group_that_is_not_there_says_so_first(api: Api, asking: Hooks) -> None:
    assert "quota nobody does not exist" in message(await asking.create(deployment("web", "nobody"), user=BOB))


async def test_a_right_that_cannot_be_asked_for_is_no_yes(api: Api, asking: Hooks, proxy: Proxy) -> None:
    await api.group("nlp", cpu="10")
    await may(api, "alice", "use")
    await may(api, "alice", "grant")

    async def failing(line: str) -> web.Response | None:
        return web.Response(status=500, text="no") if line.endswith("/subjectaccessreviews") else None

    proxy.before.append(failing)
    response = await asking.create(deployment("web", "nlp"), user=ALICE)
    assert response["status"]["code"] == 429
    assert "the right of alice to use quota nlp could not be checked, try again" in message(response)
    response = await asking.create(group("ai", "nlp", cpu="1"), user=ALICE)
    assert response["status"]["code"] == 429
    assert proxy.sent("PUT") == 0


async def test_a_slow_answer_about_a_right_is_not_waited_for_beyond_the_deadline(
    api: Api, asking: Hooks, proxy: Proxy
) -> None:
    await api.group("nlp", cpu="10")

    async def slow(line: str) -> None:
        if line.endswith("/subjectaccessreviews"):
            await asyncio.sleep(3)

    proxy.before.append(slow)
    for request in (deployment("web", "nlp"), group("ai", "nlp", cpu="1")):
        began = time.monotonic()
        response = await asking.create(request, user=ALICE, timeout="1s")
        assert time.monotonic() - began < 1.0
        assert response["status"]["code"] == 429, response


async def test_no_right_is_asked_for_by_default(api: Api, hooks: Hooks, proxy: Proxy) -> None:
    """Off by default."""
    await api.group("nlp", cpu="10")
    assert (await hooks.create(deployment("web", "nlp"), user=BOB))["allowed"]
    assert (await hooks.create(group("ai", "nlp", cpu="1"), user=BOB))["allowed"]
    assert proxy.sent("POST") == 0


async def test_in_a_new_installation_nobody_charges_a_group_without_the_right(api: Api, through: KubeClient) -> None:
    """By default every namespace could charge every group without a selector, roots included."""
    await api.group("corp", cpu="10")
    async with serving(through, **yaml.safe_load(configuration(None, None))) as installed:
        assert "bob may not charge quota corp" in message(await installed.create(deployment("web", "corp"), user=BOB))
        made = grants.role("corp"), grants.binding("corp", grants.subject("bob"))
        for resource, obj in zip((CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS), made, strict=True):
            await api.client.create(resource, obj)
        assert (await installed.create(deployment("web", "corp"), user=BOB))["allowed"]
        # Whoever may write groups may write them: rights.grant is off.
        assert (await installed.create(group("ai", "corp", cpu="1"), user=BOB))["allowed"]


# The right to grant.


@pytest.mark.parametrize(
    ("case", "given", "child", "below", "root"),
    [
        ("nothing", None, False, False, False),
        ("grant on the parent", ["ai"], True, True, False),
        ("grant on the root above", ["corp"], True, True, False),
        ("grant on itself", ["nlp"], False, True, False),
        ("grant on a sibling", ["vision"], False, False, False),
        ("grant above the roots", ["*"], True, True, True),
        ("grant on all", [], True, True, True),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
async def test_who_hands_out_a_budget_has_to_have_grant_above_it(
    api: Api, asking: Hooks, case: str, given: list[str] | None, child: bool, below: bool, root: bool
) -> None:
    """The tree is corp > ai > nlp, vision: `child` are those under ai, `below` those under nlp."""
    await api.group("corp", cpu="100", used={"cpu": "60"})
    await api.group("ai", "corp", cpu="60", used={"cpu": "20"})
    for name in ("nlp", "vision"):
        await api.group(name, "ai", cpu="10")
    if given is not None:
        await may(api, "alice", "grant", *given)
    for parent, yes in (("ai", child), ("nlp", below), ("", root)):
        for dry_run in (True, False):
            response = await asking.create(group(f"new{parent}", parent, cpu="1"), user=ALICE, dry_run=dry_run)
            assert response["allowed"] is yes, (case, parent, response)
        assert yes or (response["status"]["code"] == 403 and "may not create group" in message(response))
    for name, yes in (("nlp", child), ("corp", root)):
        old = await api.client.get(GROUPS, name)
        more = str(int(old["spec"]["hard"]["limits.cpu"]) + 1)
        raised = await asking.update(old, changed(old, hard(cpu=more)), user=ALICE)
        assert raised["allowed"] is yes, (case, name, raised)
        assert yes or f"may not change group {name}" in message(raised)
        lowered = await asking.update(old, changed(old, hard(cpu="1")), user=ALICE)
        assert lowered["allowed"] is yes, (case, name, lowered)
    gone = await asking.delete(await api.client.get(GROUPS, "vision"), user=ALICE)
    assert gone["allowed"] is child, (case, gone)
    assert child or "may not delete group vision" in message(gone)


async def test_a_root_that_is_refused_says_what_would_help(api: Api, asking: Hooks) -> None:
    assert message(await asking.create(group("corp", cpu="1"), user=BOB)) == (
        "bob may not create group corp: it needs the verb grant on bizgroupresourcequotas.quota.biz.group '*', since "
        "it is a root, by a ClusterRole that is bound to them or to a group of theirs"
    )
    await api.group("corp", cpu="1")
    assert "needs the verb grant on bizgroupresourcequotas.quota.biz.group corp or on a group above it" in message(
        await asking.create(group("ai", "corp", cpu="1"), user=BOB)
    )


@pytest.mark.parametrize(
    ("what", "change", "free"),
    [
        ("lower it", hard(cpu="9"), False),
        ("lower it to nothing", hard(cpu="0"), False),
        ("add a name", hard(cpu="10", gpu="1"), False),
        ("pick namespaces", lambda o: o["spec"].update(namespaceSelector=SELECTOR), False),
        ("change when hours are low", lambda o: o["spec"].update(cash={"thresholds": [50]}), False),
        ("hold it by a finalizer", lambda o: o["metadata"].update(finalizers=["example.com/mine"]), False),
        ("release it", lambda o: o["metadata"].update(finalizers=[]), False),
        ("have it go with an owner", lambda o: o["metadata"].update(ownerReferences=[{"uid": "4711"}]), False),
        ("label it", lambda o: o["metadata"].update(labels={"a": "b"}), True),
        ("annotate it", lambda o: o["metadata"].update(annotations={"a": "b"}), True),
        ("write the same", lambda o: None, True),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
async def test_a_change_in_either_direction_needs_grant_above_the_group(
    api: Api, asking: Hooks, proxy: Proxy, what: str, change: Any, free: bool
) -> None:
    """alice leads `ai`: she may change what is below it, and neither `ai` itself nor its sibling."""
    await may(api, "alice", "grant", "ai")
    await api.group("corp", cpu="100", used={"cpu": "30"})
    await api.group("ai", "corp", cpu="10", used={"cpu": "10"})
    await api.group("cv", "corp", cpu="10")
    await api.group("nlp", "ai", cpu="10")
    held = {"metadata": {"finalizers": [wire.FINALIZER]}}
    for name in ("corp", "ai", "cv", "nlp"):
        old = await api.client.patch(GROUPS, name, held)
        response = await asking.update(old, changed(old, change), user=ALICE, dry_run=True)
        assert response["allowed"] is (free or name == "nlp"), (what, name, response)
        assert response["allowed"] or f"alice may not change group {name}" in message(response)
    assert proxy.sent("PUT") == 0
    assert free is (proxy.sent("POST") == 0)


async def test_lifting_a_ceiling_needs_grant_even_where_the_parent_holds_as_much_already(
    api: Api, asking: Hooks, proxy: Proxy
) -> None:
    """Lowered below what it uses, a group holds that of its parent; its ceiling is lower all the same."""
    await api.group("corp", cpu="100", used={"cpu": "50"})
    await api.group("ai", "corp", cpu="10", used={"cpu": "50"})
    old = await api.client.get(GROUPS, "ai")
    assert "bob may not change group ai" in message(await asking.update(old, changed(old, hard(cpu="20")), user=BOB))
    assert proxy.sent("PUT") == 0


async def test_to_repair_a_hard_that_cannot_be_read_is_to_create_it(api: Api, asking: Hooks) -> None:
    await api.client.create(GROUPS, group("corp", **{"requests.nvidia.com/gpux": "1"}))
    old = await api.client.get(GROUPS, "corp")
    assert "bob may not change group corp" in message(await asking.update(old, changed(old, hard(cpu="1")), user=BOB))
