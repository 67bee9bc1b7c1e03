"""R18: who may charge which group from where, and who may hand out whose budget: as documented, and nothing else.

People come to the API server as themselves, with ordinary rights on workloads and groups; what bizrq asks for is added.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass

import pytest
import pytest_asyncio

from bizrq.api import selector
from bizrq.kube.client import AlreadyExists, ApiError, Forbidden, KubeClient
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from bizrq.workloads.labels import LABEL
from tests.support.cluster import Cluster, eventually
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    bound,
    cluster_role,
    deployment,
    group,
    namespace,
)
from tests.support.oracle import settled
from tests.support.proxy import Proxy
from tests.support.serving import Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Group: (selector, namespaces that it picks).
PICKS: Mapping[str, tuple[Object | None, set[str]]] = {
    "open": (None, {"r18-nlp", "r18-vision", "r18-free"}),
    "nlp": ({"matchLabels": {"team": "nlp"}}, {"r18-nlp"}),
    "vision": (
        {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["nlp"]}]},
        {"r18-vision", "r18-free"},
    ),
    "named": (
        {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["r18-free"]}]},
        {"r18-free"},
    ),
}
TEAMS = {"r18-nlp": "nlp", "r18-vision": "vision", "r18-free": None}
#: User: (group of users, groups that they may use).
PEOPLE: Mapping[str, tuple[str, set[str]]] = {
    "ann": ("staff", {"open", "nlp"}),
    "bea": ("ml", {"vision", "named"}),
    "cid": ("staff", set()),
    "root": ("system:masters", set(PICKS)),
}


@dataclass(frozen=True)
class World:
    admin: KubeClient
    people: Mapping[str, KubeClient]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("people")
    async with contextlib.AsyncExitStack() as stack:
        parts = await stack.enter_async_context(Parts(cluster, folder, rights={"use": True, "grant": True}))
        await parts.webhooks(2)
        await parts.controller(recount_interval=0.5)
        await parts.register()
        admin = parts.client
        people = {}
        for name, (of, _) in PEOPLE.items():
            headers = {"Impersonate-User": name, "Impersonate-Group": of}
            proxy = await stack.enter_async_context(Proxy(cluster.kubeconfig, headers))
            config = proxy.write_kubeconfig(folder / name)
            people[name] = await stack.enter_async_context(KubeClient.from_kubeconfig(config))
        await _rights(admin)
        for name, team in TEAMS.items():
            with contextlib.suppress(AlreadyExists):
                await admin.create(NAMESPACES, namespace(name, **({"team": team} if team else {})))
        for name, (wanted, _) in PICKS.items():
            made = group(name, cpu="1000")
            if wanted is not None:
                made["spec"]["namespaceSelector"] = wanted
            await admin.create(GROUPS, made)
        await settled(admin, list(PICKS), 60)
        yield World(admin, people)


async def _rights(admin: KubeClient) -> None:
    """Everybody may edit workloads and groups; some may use, and ann may grant below `open`, bea the roots."""
    everything = cluster_role("r18-edit", "*")
    everything["rules"] = [
        {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["*"]},
        {
            "apiGroups": ["quota.biz.group"],
            "resources": ["bizgroupresourcequotas"],
            "verbs": ["get", "create", "update", "patch", "delete"],
        },
    ]
    given = [
        (everything, "system:authenticated", "Group"),
        (cluster_role("r18-ann", "use", names=["open", "nlp"]), "ann", "User"),
        (cluster_role("r18-ml", "use", names=["vision", "named"]), "ml", "Group"),
        (cluster_role("r18-open", "grant", names=["open"]), "ann", "User"),
        (cluster_role("r18-roots", "grant", names=["*"]), "bea", "User"),
    ]
    for role, subject, kind in given:
        for resource, obj in (
            (CLUSTER_ROLES, role),
            (CLUSTER_ROLE_BINDINGS, bound(role["metadata"]["name"], subject, kind)),
        ):
            with contextlib.suppress(AlreadyExists):
                await admin.create(resource, obj)

    async def known() -> bool:
        """The API server reads roles by a watch of its own."""
        answers = []
        for user, groups, verb, name in (
            ("ann", [], "use", "nlp"),
            ("x", ["ml"], "use", "named"),
            ("ann", [], "grant", "open"),
            ("bea", [], "grant", "*"),
            ("cid", ["system:authenticated"], "create", ""),
        ):
            attributes = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "verb": verb, "name": name}
            spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
            answer = await admin.create(
                ACCESS_REVIEWS, {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
            )
            answers.append(answer["status"]["allowed"])
        return all(answers)

    await eventually(known, what="the API server knows the roles")


async def refused(request: Awaitable[object]) -> str:
    """Why a request was refused with 403, "" where it was not; any other answer is raised."""
    try:
        await request
    except Forbidden as error:
        return error.message
    return ""


def expected(user: str, of: str, where: str) -> str:
    """What a refusal says, "" where there is none."""
    if where not in PICKS[of][1]:
        return f"namespace {where} may not charge quota {of}"
    return "" if of in PEOPLE[user][1] else f"{user} may not charge quota {of}"


@pytest.mark.parametrize("user", PEOPLE)
async def test_creates_and_moves_are_as_the_matrix_says(world: World, user: str, unique: str) -> None:
    """Every user, namespace and group: by a create, a dry run of it, and a move from where one may be."""
    client = world.people[user]
    for number, (where, of) in enumerate(itertools.product(TEAMS, PICKS)):
        words = expected(user, of, where)
        made = deployment(f"{unique}-{number}", of, 0, namespace=where)
        for dry_run in (True, False):
            answer = await refused(client.create(DEPLOYMENTS, made, dry_run=dry_run))
            assert words in answer, (user, where, of)
            assert bool(words) is bool(answer), (user, where, of, answer)
        free = await client.create(DEPLOYMENTS, deployment(f"{unique}-{number}-m", None, 0, namespace=where))
        name = free["metadata"]["name"]
        answer = await refused(client.patch(DEPLOYMENTS, name, {"metadata": {"labels": {LABEL: of}}}, namespace=where))
        assert words in answer, (user, where, of)
        assert bool(words) is bool(answer), (user, where, of, answer)
        for leftover in (name, f"{unique}-{number}"):
            with contextlib.suppress(ApiError):
                await world.admin.delete(DEPLOYMENTS, leftover, where)


async def test_selectors_pick_what_the_api_server_lists_by_them(world: World) -> None:
    for name, (wanted, names) in PICKS.items():
        if wanted is not None:
            listed, _ = await world.admin.list(NAMESPACES, label_selector=selector.format_selector(wanted))
            assert {found["metadata"]["name"] for found in listed} & set(TEAMS) == names, name


async def test_what_stands_is_not_touched(world: World, unique: str) -> None:
    """Whoever may edit a workload may scale it; from a namespace that is picked no more nothing grows."""
    await world.admin.create(NAMESPACES, namespace(unique, team="nlp"))
    await world.people["ann"].create(DEPLOYMENTS, deployment("web", "nlp", 2, namespace=unique))
    cid = world.people["cid"]
    scale = {"namespace": unique, "subresource": "scale"}
    assert not await refused(cid.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3}}, **scale))
    await world.admin.patch(NAMESPACES, unique, {"metadata": {"labels": {"team": "vision"}}})

    async def barred() -> bool:
        answer = await refused(cid.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}}, **scale, dry_run=True))
        return f"namespace {unique} may not charge quota nlp" in answer

    # The label may still stand in the webhooks' watch: it allows by what it knows, for a moment.
    await eventually(barred)
    assert not await refused(cid.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3, "paused": True}}, namespace=unique))
    assert not await refused(cid.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, **scale))
    assert not await refused(cid.delete(DEPLOYMENTS, "web", unique))


async def test_a_team_runs_its_own_subtree_and_nothing_else(world: World, unique: str) -> None:
    """ann may grant `open`, so all below it; bea may grant roots, so everything; cid nothing."""
    ann, bea, cid = (world.people[name] for name in ("ann", "bea", "cid"))
    top, below, root = f"{unique}-top", f"{unique}-below", f"{unique}-root"
    assert "cid may not create group" in await refused(cid.create(GROUPS, group(top, "open", cpu="10")))
    assert not await refused(ann.create(GROUPS, group(top, "open", cpu="10")))
    assert "cid may not create group" in await refused(cid.create(GROUPS, group(below, top, cpu="1")))
    assert not await refused(ann.create(GROUPS, group(below, top, cpu="1")))
    assert "ann may not create group" in await refused(ann.create(GROUPS, group(root, cpu="1")))
    assert "ann may not create group" in await refused(ann.create(GROUPS, group(root, "nlp", cpu="1")))
    assert not await refused(bea.create(GROUPS, group(root, cpu="1")))

    def to(amount: str) -> Object:
        return {"spec": {"hard": {"limits.cpu": amount}}}

    assert "cid may not raise group" in await refused(cid.patch(GROUPS, below, to("2")))
    assert not await refused(ann.patch(GROUPS, below, to("2")))
    assert not await refused(cid.patch(GROUPS, below, to("1")))
    assert "ann may not raise group open" in await refused(ann.patch(GROUPS, "open", to("1001")))
    assert not await refused(ann.patch(GROUPS, "open", to("999")))
    assert not await refused(bea.patch(GROUPS, "open", to("1000")))
    for name in (below, top, root):
        assert f"cid may not delete group {name}" in await refused(cid.delete(GROUPS, name))
    assert "ann may not delete group" in await refused(ann.delete(GROUPS, root))
    assert not await refused(bea.delete(GROUPS, root))
    assert not await refused(ann.delete(GROUPS, below))

    async def empty() -> bool:
        return not await refused(ann.delete(GROUPS, top))

    # The deletion below is seen by the controller first.
    await eventually(empty)
