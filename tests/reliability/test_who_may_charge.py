"""R18: who may do what to which group from where: every user, namespace, group and verb, and nothing else.

People come to the API server as themselves, with ordinary rights of RBAC on everything of bizrq; what bizrq and its
policies ask for is added. What is expected follows from the tables below alone, and asks none of our code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio

from bizrq.api.group import FINALIZER
from bizrq.builtin import builtin_registry
from bizrq.cli import grants, rbac
from bizrq.cli.manifests_of_bizrq import policy_objects, resource_of
from bizrq.kube.client import AlreadyExists, ApiError, Forbidden, KubeClient, NotFound
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.kube.events import EVENTS
from bizrq.settings import settings
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.payers import PAYERS
from bizrq.workloads.labels import LABEL
from tests.support.cluster import Cluster, eventually
from tests.support.objects import (
    CLAIMS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NAMESPACES,
    Object,
    bound,
    claim,
    cluster_role,
    correction,
    deployment,
    device_class,
    group,
    namespace,
)
from tests.support.oracle import settled
from tests.support.records import W1, W2, statement
from tests.support.serving import SYSTEM, Parts

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "requests.nvidia.com/gpu"
#: Group: its parent.
PARENTS = {
    "r18-corp": "",
    "r18-ai": "r18-corp",
    "r18-nlp": "r18-ai",
    "r18-tts": "r18-ai",
    "r18-cv": "r18-corp",
    "r18-lab": "",
}
#: Group: (selector, namespaces that it picks).
PICKS: Mapping[str, tuple[Object | None, set[str]]] = {
    "r18-corp": (None, {"r18-a", "r18-b", "r18-c"}),
    "r18-ai": ({}, {"r18-a", "r18-b", "r18-c"}),
    "r18-nlp": ({"matchLabels": {"team": "nlp"}}, {"r18-a"}),
    "r18-tts": ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["nlp"]}]}, {"r18-b", "r18-c"}),
    "r18-cv": (
        {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["r18-c"]}]},
        {"r18-c"},
    ),
    "r18-lab": ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {"r18-a", "r18-b"}),
}
#: Group: its cores.
CORES = {"r18-corp": 1000, "r18-ai": 500, "r18-nlp": 100, "r18-tts": 100, "r18-cv": 100, "r18-lab": 1000}
TEAMS = {"r18-a": "nlp", "r18-b": "cv", "r18-c": None}


@dataclass(frozen=True)
class Person:
    """A user with the groups that it is in, and the groups of bizrq on which it has each right; "*" is above the roots.

    `is_admin` has every right.
    """

    user: str
    groups: tuple[str, ...] = ()
    use: frozenset[str] = frozenset()
    grant: frozenset[str] = frozenset()
    get: frozenset[str] = frozenset()
    is_admin: bool = False


def names(*found: str) -> frozenset[str]:
    return frozenset(found)


PEOPLE = {
    # Leads ai, and charges two groups.
    "ann": Person("ann", use=names("r18-corp", "r18-nlp"), grant=names("r18-ai")),
    # By a group of users: manages the roots, and so everything.
    "bea": Person("bea", ("ml",), use=names("r18-cv", "r18-lab"), grant=names("*")),
    # May read figures, and nothing else.
    "cid": Person("cid", get=names("r18-tts", "r18-lab")),
    # No right at all.
    "dan": Person("dan", ("staff",)),
    # A pipeline, by the namespace that it runs in; leads a leaf, below which there is nothing.
    "robot": Person(
        "system:serviceaccount:r18-a:robot",
        ("system:serviceaccounts", "system:serviceaccounts:r18-a"),
        use=names("r18-tts", "r18-lab"),
        grant=names("r18-cv"),
    ),
    "root": Person("root", ("system:masters",), is_admin=True),
}


# What is expected, by the tables alone.


def above(name: str) -> list[str]:
    """The groups whose lead manages this one: its ancestors, and what is above the roots."""
    found: list[str] = []
    while PARENTS[name]:
        name = PARENTS[name]
        found.append(name)
    return [*found, "*"]


def manages(who: Person, name: str) -> bool:
    return who.is_admin or any(each in who.grant for each in above(name))


def leads(who: Person, name: str) -> bool:
    """May make groups below this one."""
    return name in who.grant or manages(who, name)


def uses(who: Person, name: str) -> bool:
    return who.is_admin or name in who.use


def sees(who: Person, name: str) -> bool:
    return uses(who, name) or name in who.get


def enters(who: Person, where: str, of: str) -> str:
    """What refuses a new workload, "" where nothing does."""
    if where not in PICKS[of][1]:
        return f"namespace {where} may not charge quota {of}"
    return "" if uses(who, of) else f"{who.user} may not charge quota {of}"


def changes(verb: str) -> Callable[[Person, str], str]:
    return lambda who, of: "" if manages(who, of) else f"{who.user} may not {verb} group {of}"


def maintains(who: Person, of: str) -> str:
    return "" if who.is_admin else "ValidatingAdmissionPolicy 'bizrq-"


# What is tried. All are dry runs, which get the same answer as the request itself.


async def create(client: KubeClient, where: str, of: str) -> object:
    return await client.create(DEPLOYMENTS, deployment("new", of, 1, namespace=where), dry_run=True)


async def move(client: KubeClient, where: str, of: str) -> object:
    return await client.patch(DEPLOYMENTS, "free", {"metadata": {"labels": {LABEL: of}}}, namespace=where, dry_run=True)


async def claim_devices(client: KubeClient, where: str, of: str) -> object:
    made = claim("new", 1, namespace=where)
    made["metadata"]["labels"] = {LABEL: of}
    return await client.create(CLAIMS, made, dry_run=True)


async def grow(client: KubeClient, where: str, of: str) -> object:
    return await _replicas(client, where, of, 2)


async def grow_by_scale(client: KubeClient, where: str, of: str) -> object:
    return await _replicas(client, where, of, 2, "scale")


async def shrink(client: KubeClient, where: str, of: str) -> object:
    return await _replicas(client, where, of, 0)


async def leave(client: KubeClient, where: str, of: str) -> object:
    body = {"metadata": {"labels": {LABEL: None}}}
    return await client.patch(DEPLOYMENTS, f"of-{of}", body, namespace=where, dry_run=True)


async def delete(client: KubeClient, where: str, of: str) -> object:
    return await client.request("DELETE", DEPLOYMENTS.path(where, f"of-{of}"), body=b'{"dryRun": ["All"]}')


async def make_default(client: KubeClient, where: str, of: str) -> object:
    """Of a namespace without workloads; which one, does not matter."""
    body = {"metadata": {"labels": {LABEL: of}}}
    return await client.patch(NAMESPACES, f"{where}-empty", body, dry_run=True)


async def _replicas(client: KubeClient, where: str, of: str, count: int, sub: str | None = None) -> object:
    body = {"spec": {"replicas": count}}
    return await client.patch(DEPLOYMENTS, f"of-{of}", body, namespace=where, subresource=sub, dry_run=True)


def _in_picked(who: Person, where: str, of: str) -> str:
    return "" if where in PICKS[of][1] else f"namespace {where} may not charge quota {of}"


def _always(who: Person, where: str, of: str) -> str:
    return ""


def _by_use(who: Person, where: str, of: str) -> str:
    return "" if uses(who, of) else f"{who.user} may not charge quota {of}"


#: Verb: (what is tried, what refuses it).
WORKLOADS: Sequence[tuple[Callable[[KubeClient, str, str], Awaitable[object]], Callable[[Person, str, str], str]]] = (
    (create, enters),
    (move, enters),
    (claim_devices, enters),
    (grow, _in_picked),
    (grow_by_scale, _in_picked),
    (shrink, _always),
    (leave, _always),
    (delete, _always),
    (make_default, _by_use),
)


def patching(body: Object) -> Callable[[KubeClient, str], Awaitable[object]]:
    return lambda client, of: client.patch(GROUPS, of, body, dry_run=True)


def hard_of(of: str, change: int) -> Object:
    return {"spec": {"hard": {"limits.cpu": str(CORES[of] + change)}}}


async def lower(client: KubeClient, of: str) -> object:
    return await patching(hard_of(of, -1))(client, of)


async def higher(client: KubeClient, of: str) -> object:
    return await patching(hard_of(of, 1))(client, of)


async def make_child(client: KubeClient, of: str) -> object:
    made = group("r18-new", of, cpu="0", **{GPU: "0", f"cash/{GPU}": "0"})
    return await client.create(GROUPS, made, dry_run=True)


async def delete_group(client: KubeClient, of: str) -> object:
    return await client.request("DELETE", GROUPS.path(name=of), body=b'{"dryRun": ["All"]}')


async def delete_collection(client: KubeClient, of: str) -> object:
    """A review of each object, none of which has the name of the request."""
    params = {"fieldSelector": f"metadata.name={of}"}
    return await client.request("DELETE", GROUPS.path(), body=b'{"dryRun": ["All"]}', params=params)


async def delete_orphaning(client: KubeClient, of: str) -> object:
    body = b'{"dryRun": ["All"], "propagationPolicy": "Orphan"}'
    return await client.request("DELETE", GROUPS.path(name=of), body=body)


async def apply_by_force(client: KubeClient, of: str) -> object:
    """As the field manager of somebody else. The sandbox has no server-side apply: a merge patch there."""
    body = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "metadata": {"name": of}, **hard_of(of, 1)}
    params = {"fieldManager": "bizrq-controller", "force": "true", "dryRun": "All"}
    kind = "application/apply-patch+yaml"
    try:
        path = GROUPS.path(name=of)
        return await client.request("PATCH", path, body=json.dumps(body).encode(), params=params, content_type=kind)
    except ApiError as error:
        if error.status != 415:
            raise
        return await higher(client, of)


async def make_nameless_child(client: KubeClient, of: str) -> object:
    made = group("r18-new", of, cpu="0", **{GPU: "0", f"cash/{GPU}": "0"})
    made["metadata"] = {"generateName": "r18-new-"}
    return await client.create(GROUPS, made, dry_run=True)


def deleting(who: Person, of: str) -> str:
    """Each group has workloads, so that nobody deletes it."""
    return f"group {of} has " if manages(who, of) else f"{who.user} may not delete group {of}"


async def write_status(client: KubeClient, of: str) -> object:
    body = {"status": {"used": {"limits.cpu": "0"}}}
    return await client.patch(GROUPS, of, body, subresource="status", dry_run=True)


async def delete_record(client: KubeClient, of: str) -> object:
    return await client.request("DELETE", PAYERS.path(name=of), body=b'{"dryRun": ["All"]}')


async def edit_record(client: KubeClient, of: str) -> object:
    return await client.patch(CARD_HOURS, of, {"metadata": {"labels": {"a": "b"}}}, dry_run=True)


async def forge_record(client: KubeClient, of: str) -> object:
    return await client.patch(CARD_HOURS, of, {"status": {"watermark": W1}}, subresource="status", dry_run=True)


async def forge_statement(client: KubeClient, of: str) -> object:
    return await client.create(STATEMENTS, statement(of, W1, W2), dry_run=True)


def correcting(who: str) -> Callable[[KubeClient, str], Awaitable[object]]:
    async def correct(client: KubeClient, of: str) -> object:
        made = correction("r18", of, {GPU: "-1"}, by=PEOPLE[who].user)
        return await client.create(CORRECTIONS, made, dry_run=True)

    return correct


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "4711"}
#: Verb: (what is tried, what refuses it).
TREE: Mapping[str, tuple[Callable[[KubeClient, str], Awaitable[object]], Callable[[Person, str], str]]] = {
    "lower": (lower, changes("change")),
    "raise": (higher, changes("change")),
    "close": (patching({"spec": {"namespaceSelector": {"matchLabels": {"x": "y"}}}}), changes("change")),
    "open": (patching({"spec": {"namespaceSelector": {"matchExpressions": []}}}), changes("change")),
    "alert": (patching({"spec": {"cash": {"thresholds": [1]}}}), changes("change")),
    "hold": (patching({"metadata": {"finalizers": [FINALIZER, "example.com/mine"]}}), changes("change")),
    "release": (patching({"metadata": {"finalizers": None}}), maintains),
    "own": (patching({"metadata": {"ownerReferences": [OWNER]}}), changes("change")),
    "label": (patching({"metadata": {"labels": {"a": "b"}}}), lambda who, of: ""),
    "annotate": (patching({"metadata": {"annotations": {"a": "b"}}}), lambda who, of: ""),
    "child": (make_child, lambda who, of: "" if leads(who, of) else f"{who.user} may not create group r18-new"),
    "nameless child": (make_nameless_child, lambda who, of: "" if leads(who, of) else f"{who.user} may not create"),
    "apply": (apply_by_force, changes("change")),
    "delete": (delete_group, deleting),
    "delete all": (delete_collection, deleting),
    "delete orphaning": (delete_orphaning, deleting),
    "status": (write_status, maintains),
    "delete record": (delete_record, maintains),
    "edit record": (edit_record, maintains),
    "forge record": (forge_record, maintains),
    "forge statement": (forge_statement, maintains),
}


@dataclass(frozen=True)
class World:
    admin: KubeClient
    people: Mapping[str, KubeClient]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("people")
    async with contextlib.AsyncExitStack() as stack:
        parts = await stack.enter_async_context(
            Parts(
                cluster,
                folder,
                rights={"use": True, "grant": True},
                deviceClassMappings={"gpu": {"resource": "nvidia.com/gpu"}},
            )
        )
        await parts.webhooks(2)
        await parts.controller(recount_interval=parts.often)
        await parts.register()
        admin = parts.client
        rules = [each.document for each in rbac.manifests(builtin_registry(), SYSTEM)]
        for obj in [*rules, *policy_objects(SYSTEM, settings({})), *_given()]:
            with contextlib.suppress(AlreadyExists):
                await admin.create(resource_of(obj), obj)
            if obj["kind"] != "Namespace":
                stack.push_async_callback(_remove, admin, obj)
        people = {}
        for name, person in PEOPLE.items():
            who = Overrides(impersonated=person.user, groups=("system:authenticated", *person.groups))
            client = KubeClient(from_kubeconfig(cluster.kubeconfig, None, who))
            people[name] = await stack.enter_async_context(client)
        found = World(admin, people)
        await _stored(found)
        yield found
        for where, of in itertools.product(TEAMS, PARENTS):
            with contextlib.suppress(NotFound):
                await admin.delete(DEPLOYMENTS, f"of-{of}", where)


async def _remove(admin: KubeClient, obj: Object) -> None:
    with contextlib.suppress(NotFound):
        await admin.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


def _given() -> list[Object]:
    """Return the verbs of RBAC, for everybody, and the rights: as `bizrq allow` gives them, or by roles."""
    edits = {
        "apps": ["deployments", "deployments/scale"],
        "resource.k8s.io": ["resourceclaims"],
        "": ["namespaces"],
        "quota.biz.group": [
            *(kind.plural for kind in (GROUPS, CARD_HOURS, STATEMENTS, CORRECTIONS, PAYERS)),
            *(f"{kind.plural}/status" for kind in (GROUPS, CARD_HOURS)),
        ],
    }
    verbs = ["create", "update", "patch", "delete", "deletecollection"]
    everything = cluster_role("r18-edit")
    everything["rules"] = [{"apiGroups": [of], "resources": plurals, "verbs": verbs} for of, plurals in edits.items()]
    found = [everything, bound("r18-edit", "system:authenticated", "Group")]
    words = {"ann": "ann", "bea": "group:ml", "robot": "namespace:r18-a"}
    for name, person in PEOPLE.items():
        for of in sorted(person.use):
            found += [grants.role(of), grants.binding(of, grants.subject(words[name]))]
        for verb, given in (("grant", person.grant), ("get", person.get)):
            if given:
                role = cluster_role(f"r18-{name}-{verb}", verb, names=sorted(given))
                found += [role, bound(role["metadata"]["name"], person.user)]
    return found


async def _stored(world: World) -> None:
    """The tree, with a workload of each group in each namespace from before the groups picked any."""
    admin = world.admin
    for name, team in TEAMS.items():
        for each in (name, f"{name}-empty"):
            with contextlib.suppress(AlreadyExists):
                await admin.create(NAMESPACES, namespace(each, **({"team": team} if team else {})))
    with contextlib.suppress(AlreadyExists):
        await admin.create(DEVICE_CLASSES, device_class("gpu"))
    for name, parent in PARENTS.items():
        cards = str(CORES[name] // 10)
        made = group(name, parent, cpu=CORES[name], **{GPU: cards, f"cash/{GPU}": cards})
        await admin.create(GROUPS, made)
        await settled(admin, [name], 60)
    for where, of in itertools.product(TEAMS, PARENTS):
        await admin.create(DEPLOYMENTS, deployment(f"of-{of}", of, 1, namespace=where))
    for where in TEAMS:
        await admin.create(DEPLOYMENTS, deployment("free", None, 1, namespace=where))
    for name, (wanted, _) in PICKS.items():
        if wanted is not None:
            await admin.patch(GROUPS, name, {"spec": {"namespaceSelector": wanted}})
    await settled(admin, list(PARENTS), 60)
    for name in PARENTS:
        # The first page of its payers, which a larger group has.
        owner = {"apiVersion": GROUPS.api_version, "kind": GROUPS.kind, "name": name}
        owner["uid"] = (await admin.get(GROUPS, name))["metadata"]["uid"]
        page = {"apiVersion": PAYERS.api_version, "kind": PAYERS.kind}
        await admin.create(PAYERS, {**page, "metadata": {"name": name, "ownerReferences": [owner]}})

    async def known() -> bool:
        """The API server reads roles and policies by watches of its own, and the controller makes records."""
        for name, person in PEOPLE.items():
            for verb, given in (("use", person.use), ("grant", person.grant), ("get", person.get)):
                if not all([await _may(admin, person, verb, each) for each in given]):
                    return False
            if not person.is_admin and not await refused(write_status(world.people[name], "r18-lab")):
                return False
        records = {each["metadata"]["name"] for kind in (CARD_HOURS, PAYERS) for each in (await admin.list(kind))[0]}
        return set(PARENTS) <= records and bool(await refused(edit_record(world.people["dan"], "r18-lab")))

    await eventually(known, what="rights, policies and records are there")


async def _may(admin: KubeClient, person: Person, verb: str, name: str) -> bool:
    attributes = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "verb": verb, "name": name}
    spec = {"user": person.user, "groups": list(person.groups), "resourceAttributes": attributes}
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    return (await admin.create(ACCESS_REVIEWS, review))["status"]["allowed"]


async def refused(request: Awaitable[object]) -> str:
    """Why a request was refused with 403, "" where it was not; any other answer is raised."""
    try:
        await request
    except Forbidden as error:
        return error.message
    return ""


async def deviations(rows: Sequence[tuple[str, Awaitable[object], str]]) -> list[str]:
    """The rows (what, request, what refuses it) whose answer is another one, a few at a time."""
    busy = asyncio.Semaphore(6)

    async def judge(what: str, request: Awaitable[object], words: str) -> str:
        async with busy:
            answer = await refused(request)
        as_expected = words in answer if words else not answer
        return "" if as_expected else f"{what}: {answer or 'allowed'}, not {words or 'allowed'}"

    found = await asyncio.gather(*(judge(*row) for row in rows))
    return [each for each in found if each]


@pytest.mark.parametrize("name", PEOPLE)
async def test_every_verb_on_workloads_of_every_group_in_every_namespace(
    cluster: Cluster, world: World, name: str
) -> None:
    """On the sandbox in short: each user, verb and group in one of the namespaces in turn."""
    client, who = world.people[name], PEOPLE[name]
    rows = [
        (f"{name} {verb.__name__} {of} in {where}", verb(client, where, of), expected(who, where, of))
        for ((a, (verb, expected)), (b, where), (c, of)) in itertools.product(
            enumerate(WORKLOADS), enumerate(TEAMS), enumerate(PARENTS)
        )
        if cluster.is_real or (list(PEOPLE).index(name) + a + b + c) % 3 == 0
    ]
    assert len(rows) == 9 * 6 * (3 if cluster.is_real else 1)
    assert await deviations(rows) == []


@pytest.mark.parametrize("name", PEOPLE)
async def test_every_verb_on_every_group_and_on_its_records(world: World, name: str) -> None:
    client, who = world.people[name], PEOPLE[name]
    rows = [
        (f"{name} {verb} {of}", tried(client, of), expected(who, of))
        for (verb, (tried, expected)), of in itertools.product(TREE.items(), PARENTS)
    ]
    correct = correcting(name)
    rows += [(f"{name} correct {of}", correct(client, of), changes("correct")(who, of)) for of in PARENTS]
    root = client.create(GROUPS, group("r18-root", cpu="1"), dry_run=True)
    may_make_roots = who.is_admin or "*" in who.grant
    rows += [(f"{name} root", root, "" if may_make_roots else f"{who.user} may not create group r18-root")]
    assert await deviations(rows) == []


@pytest.mark.parametrize("name", PEOPLE)
async def test_figures_of_every_group_are_for_those_who_may_see_them(world: World, name: str) -> None:
    """In a refusal of a growth that needs no right: what is left is told, or whom to ask."""
    client, who = world.people[name], PEOPLE[name]
    for of in PARENTS:
        where = min(PICKS[of][1])
        answer = await refused(_replicas(client, where, of, 100_000))
        assert f"exceeded quota: {of}, requested: limits.cpu=99999" in answer, (name, of, answer)
        assert ("left: limits.cpu=" in answer) is sees(who, of), (name, of, answer)
        assert (f"ask who manages {of}" in answer) is not sees(who, of), (name, of, answer)


async def test_a_controller_is_told_no_figures_although_it_may_read_and_use_the_group(
    cluster: Cluster, world: World, unique: str
) -> None:
    """What it is refused stands in a condition and in events of the namespace, for whoever may read those."""
    if not cluster.is_real:
        pytest.skip("the sandbox's controllers write neither events nor the condition")
    admin, controller = world.admin, Person("system:serviceaccount:kube-system:deployment-controller")
    role = cluster_role(unique, "get", "use", names=["r18-lab"])
    for obj in (role, bound(unique, controller.user)):
        await admin.create(resource_of(obj), obj)
    await eventually(lambda: _may(admin, controller, "use", "r18-lab"), what="the right is known")
    made = deployment("r18-many", None, 100_000, namespace="r18-a")
    made["spec"]["template"]["metadata"].setdefault("labels", {})[LABEL] = "r18-lab"
    await admin.create(DEPLOYMENTS, made)

    async def told() -> list[str]:
        stored = await admin.get(DEPLOYMENTS, "r18-many", "r18-a")
        conditions = [each["message"] for each in stored.get("status", {}).get("conditions", [])]
        events = [each["message"] for each in (await admin.list(EVENTS, "r18-a"))[0]]
        asked = [[each for each in messages if "exceeded quota: r18-lab" in each] for messages in (conditions, events)]
        return [each for messages in asked for each in messages] if all(asked) else []

    try:
        for message in await eventually(told, what="the refusal is told"):
            assert "requested: limits.cpu=100k; what is left is shown to people" in message, message
            assert "ask who manages r18-lab" in message
    finally:
        await admin.delete(DEPLOYMENTS, "r18-many", "r18-a")
        for obj in (bound(unique, controller.user), role):
            await _remove(admin, obj)


async def test_a_dry_run_was_no_other_answer(world: World, unique: str) -> None:
    """A sample of the matrix is stored: each user in one namespace, each group."""
    for (number, name), of in itertools.product(enumerate(PEOPLE), PARENTS):
        where = list(TEAMS)[number % len(TEAMS)]
        words = enters(PEOPLE[name], where, of)
        made = deployment(f"{unique}-{number}", of, 1, namespace=where)
        answer = await refused(world.people[name].create(DEPLOYMENTS, made))
        assert (words in answer) if words else not answer, (name, where, of, answer)
        if not words:
            await world.admin.delete(DEPLOYMENTS, made["metadata"]["name"], where)


async def test_selectors_pick_what_the_api_server_lists_by_them(world: World) -> None:
    """The table of picked namespaces is right by another judge than ours: the API server's own selectors."""
    listing = {
        "r18-nlp": "team=nlp",
        "r18-tts": "team notin (nlp)",
        "r18-cv": "kubernetes.io/metadata.name in (r18-c)",
        "r18-lab": "team",
    }
    for name, words in listing.items():
        listed, _ = await world.admin.list(NAMESPACES, label_selector=words)
        assert {found["metadata"]["name"] for found in listed} & set(TEAMS) == PICKS[name][1], name


async def test_what_stands_is_not_touched(world: World, unique: str) -> None:
    """Whoever may edit a workload may scale it; from a namespace that is picked no more nothing grows."""
    await world.admin.create(NAMESPACES, namespace(unique, team="nlp"))
    await world.people["ann"].create(DEPLOYMENTS, deployment("web", "r18-nlp", 2, namespace=unique))
    dan = world.people["dan"]
    scale: Object = {"namespace": unique, "subresource": "scale"}
    assert not await refused(dan.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3}}, **scale))
    await world.admin.patch(NAMESPACES, unique, {"metadata": {"labels": {"team": "vision"}}})

    async def barred() -> bool:
        answer = await refused(dan.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}}, **scale, dry_run=True))
        return f"namespace {unique} may not charge quota r18-nlp" in answer

    # The label may still stand in the webhooks' watch: it allows by what it knows, for a moment.
    await eventually(barred)
    assert not await refused(dan.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 3, "paused": True}}, namespace=unique))
    assert not await refused(dan.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, **scale))
    assert not await refused(dan.delete(DEPLOYMENTS, "web", unique))


async def test_a_lead_runs_the_groups_below_and_takes_nothing_from_others(world: World, unique: str) -> None:
    """What a lead with `grant` once did: remove another group's selector, charge it, and set budgets to 0."""
    ann, bea = world.people["ann"], world.people["bea"]
    made, below = f"{unique}-made", f"{unique}-below"
    zero = {"limits.cpu": "0", GPU: "0", f"cash/{GPU}": "0"}
    assert not await refused(ann.create(GROUPS, group(made, "r18-ai", cpu="10", **{GPU: "0", f"cash/{GPU}": "0"})))
    assert not await refused(ann.create(GROUPS, group(below, made, cpu="5", **{GPU: "0", f"cash/{GPU}": "0"})))
    assert not await refused(ann.patch(GROUPS, below, {"spec": {"hard": zero}}))
    others = [(name, {"hard": zero}) for name in ("r18-corp", "r18-ai", "r18-cv", "r18-lab")]
    others += [(name, {"namespaceSelector": None}) for name in ("r18-cv", "r18-lab")]
    for victim, spec in others:
        before = (await world.admin.get(GROUPS, victim))["spec"]
        assert f"ann may not change group {victim}" in await refused(ann.patch(GROUPS, victim, {"spec": spec}))
        assert (await world.admin.get(GROUPS, victim))["spec"] == before
    assert "ann may not charge quota r18-cv" in await refused(create(ann, "r18-c", "r18-cv"))

    async def has_hours() -> bool:
        return FINALIZER in ((await world.admin.get(GROUPS, below))["metadata"].get("finalizers") or [])

    await eventually(has_hours)
    await bea.patch(GROUPS, below, {"metadata": {"finalizers": [FINALIZER, "example.com/mine"]}})
    # Without ours the hours that are spent would be hers again.
    assert "bizrq-spent-hours" in await refused(ann.patch(GROUPS, below, {"metadata": {"finalizers": None}}))
    assert not await refused(ann.patch(GROUPS, below, {"metadata": {"finalizers": [FINALIZER]}}))
    assert not await refused(ann.delete(GROUPS, below))

    async def deleted() -> bool:
        return not await refused(ann.delete(GROUPS, made))

    # The deletion below is seen by the controller first.
    await eventually(deleted)


async def test_nobody_deletes_records_by_all_that_is_in_a_category(world: World) -> None:
    """As `kubectl delete bizgroup --all` asks: each object by its name, or all of a kind at once."""
    dan = world.people["dan"]
    for kind in (CARD_HOURS, PAYERS):
        for name in PARENTS:
            assert "bizrq-records" in await refused(dan.delete(kind, name))
        with contextlib.suppress(ApiError):
            await dan.request("DELETE", kind.path(), body=b"{}")
        assert set(PARENTS) <= {each["metadata"]["name"] for each in (await world.admin.list(kind))[0]}
