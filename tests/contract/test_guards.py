"""What bizrq alone writes: who is kept from it, and what each account of bizrq is kept to (bizrq.api.guards).

The rows hold on the sandbox, which has no RBAC of its own, and on a real API server, where RBAC comes first.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
import pytest_asyncio

import crds
from bizrq.api import group as wire
from bizrq.api import guards
from bizrq.builtin import builtin_registry
from bizrq.cli import rbac
from bizrq.cli.manifests_of_bizrq import policy_objects, resource_of
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import AlreadyExists, Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.payers import PAYERS
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import NAMESPACES, Object, bound, correction, group
from tests.support.records import W1, W2, record, statement

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM = "bizrq-guarded"
NAME = "guarded"
WEBHOOKS, CONTROLLER, CERTS = (
    rbac.user_of(account, SYSTEM) for account in (rbac.WEBHOOKS, rbac.CONTROLLER, rbac.CERTS)
)
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
#: Users with the groups that they are in: pat may do all that RBAC knows verbs for, rita may restore.
USERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("root", ("system:masters",)),
    "cluster-admin": ("carla", ()),
    "person": ("pat", ()),
    "restorer": ("rita", ()),
    "webhooks": (WEBHOOKS, ("system:serviceaccounts",)),
    "controller": (CONTROLLER, ("system:serviceaccounts",)),
    "certs": (CERTS, ("system:serviceaccounts",)),
    "collector": (COLLECTOR, ("system:serviceaccounts",)),
}
EVERY_VERB = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]

Write = Callable[[KubeClient], Awaitable[object]]


@dataclass(frozen=True)
class Guarded:
    """A cluster with the guards; `users` are clients of the users of these names."""

    admin: KubeClient
    users: Mapping[str, KubeClient]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(cluster: Cluster, client: KubeClient) -> AsyncIterator[Guarded]:
    await has_kinds(client, crds.load())
    objects = [
        *(each.document for each in rbac.manifests(builtin_registry(), SYSTEM)),
        *policy_objects(SYSTEM, settings({})),
    ]
    everything = [{"apiGroups": [wire.API_GROUP], "resources": ["*"], "verbs": EVERY_VERB}]
    person = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "guarded-all"}}
    given = [
        {**person, "rules": everything},
        bound("guarded-all", "pat"),
        bound("guarded-all", COLLECTOR),
        {
            **person,
            "metadata": {"name": "guarded-admin"},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
        },
        bound("guarded-admin", "carla"),
        bound(guards.RESTORE_ROLE, "rita"),
    ]
    async with contextlib.AsyncExitStack() as stack:
        for obj in [*objects, *given]:
            resource = resource_of(obj)
            if resource is not NAMESPACES:
                # Another test of this cluster may have left one of that name, for accounts of another namespace.
                await _remove(client, obj)
                stack.push_async_callback(_remove, client, obj)
            with contextlib.suppress(AlreadyExists):
                await client.create(resource, obj)
        await _store(client)
        users = {}
        for name, (user, groups) in USERS.items():
            who = Overrides(impersonated=user, groups=("system:authenticated", *groups))
            users[name] = await stack.enter_async_context(KubeClient(from_kubeconfig(cluster.kubeconfig, None, who)))
        found = Guarded(client, users)
        await eventually(lambda: _all_apply(found), 60, "every guard applies")
        yield found
        for resource in (PAYERS, CARD_HOURS, STATEMENTS, CORRECTIONS, GROUPS, REGISTRATIONS):
            with contextlib.suppress(NotFound):
                await client.delete(resource, names_of()[resource])


async def _store(client: KubeClient) -> None:
    """One object of each of our kinds, with a status, and a registration that asks nobody."""
    made = await client.create(GROUPS, group(NAME, cpu="10"))
    hours = record(NAME, {})
    await client.create(CARD_HOURS, {key: value for key, value in hours.items() if key != "status"})
    await client.create(STATEMENTS, statement(NAME, W1, W2))
    await client.create(CORRECTIONS, correction(NAME, NAME, {"requests.nvidia.com/gpu": "-1"}))
    await client.create(PAYERS, payers(made["metadata"]["uid"]))
    await client.create(REGISTRATIONS, registration())


def payers(uid: str, name: str = NAME) -> Object:
    owner = {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "name": name, "uid": uid}
    metadata = {"name": name, "ownerReferences": [owner]}
    return {"apiVersion": PAYERS.api_version, "kind": PAYERS.kind, "metadata": metadata}


def registration() -> Object:
    """A registration under the one name that bizrq-certs may patch, of webhooks that match nothing."""
    rules = [
        {"apiGroups": ["nobody.example.com"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"]}
    ]
    webhooks = [
        {
            "name": f"{name}.guarded.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:1/{name}"},
            "rules": rules,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
        for name in ("one", "two")
    ]
    return {
        "apiVersion": REGISTRATIONS.api_version,
        "kind": REGISTRATIONS.kind,
        "metadata": {"name": "bizrq"},
        "webhooks": webhooks,
    }


def names_of() -> dict[Resource, str]:
    named = dict.fromkeys((PAYERS, CARD_HOURS, CORRECTIONS, GROUPS), NAME)
    return {**named, STATEMENTS: statement(NAME, W1, W2)["metadata"]["name"], REGISTRATIONS: "bizrq"}


async def _remove(client: KubeClient, obj: Object) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


async def _all_apply(found: Guarded) -> bool:
    probes = [
        ("person", guards.STATUS, status_of(GROUPS)),
        ("person", guards.RECORDS, deleted(STATEMENTS)),
        ("controller", guards.GROUPS, changed(GROUPS, {"metadata": {"labels": {"a": "b"}}})),
        ("certs", guards.REGISTRATION, changed(REGISTRATIONS, {"metadata": {"labels": {"a": "b"}}})),
    ]
    return all([policy in await answer(found, who, write) for who, policy, write in probes])


async def answer(guarded: Guarded, who: str, write: Write) -> str:
    """The refusal of a write, "" where it is allowed."""
    try:
        await write(guarded.users[who])
    except Forbidden as error:
        return error.message
    return ""


def status_of(resource: Resource) -> Write:
    """A patch of the status of the kind's object that changes it."""
    fields: dict[Resource, Object] = {
        GROUPS: {"used": {"limits.cpu": "1"}},
        CARD_HOURS: {"watermark": W1},
        PAYERS: {"payers": []},
        CORRECTIONS: {"conditions": []},
    }
    body = {"status": fields[resource]}
    return lambda client: client.patch(resource, names_of()[resource], body, subresource="status", dry_run=True)


def changed(resource: Resource, body: Object) -> Write:
    return lambda client: client.patch(resource, names_of()[resource], body, dry_run=True)


def deleted(resource: Resource) -> Write:
    options = b'{"dryRun": ["All"]}'
    return lambda client: client.request("DELETE", resource.path(name=names_of()[resource]), body=options)


def created(resource: Resource) -> Write:
    forged = {
        CARD_HOURS: {**record("forged", {}), "status": {}},
        STATEMENTS: statement("forged", W1, W2),
        PAYERS: payers("4711", "forged"),
    }
    return lambda client: client.create(resource, forged[resource], dry_run=True)


RECORDS = (CARD_HOURS, STATEMENTS, PAYERS)
NOTE = {"metadata": {"annotations": {"note": "by hand"}}}


@pytest.mark.parametrize(
    ("who", "kinds"),
    [
        ("admin", {GROUPS, CARD_HOURS, PAYERS, CORRECTIONS}),
        ("cluster-admin", {GROUPS, CARD_HOURS, PAYERS, CORRECTIONS}),
        ("restorer", {GROUPS, CARD_HOURS, PAYERS, CORRECTIONS}),
        ("person", set()),
        ("collector", set()),
    ],
)
async def test_a_status_is_written_by_those_who_maintain_it(guarded: Guarded, who: str, kinds: set[Resource]) -> None:
    for resource in (GROUPS, CARD_HOURS, PAYERS, CORRECTIONS):
        refused = await answer(guarded, who, status_of(resource))
        assert (resource in kinds) is not bool(refused), (who, resource.kind, refused)
        assert not refused or f"ValidatingAdmissionPolicy '{guards.STATUS}'" in refused


async def test_the_processes_write_the_status_that_is_theirs(guarded: Guarded) -> None:
    stored = await guarded.admin.get(GROUPS, NAME)
    body = orjson.dumps({**stored, "status": {"used": {"limits.cpu": "1"}}})
    path = GROUPS.path(name=NAME, subresource="status")

    async def replaced(client: KubeClient) -> object:
        return await client.request("PUT", path, body=body, params={"dryRun": "All"})

    for who in ("webhooks", "controller"):
        assert not await answer(guarded, who, replaced), who
    assert not await answer(guarded, "controller", status_of(CORRECTIONS))
    assert guards.STATUS in await answer(guarded, "person", replaced)
    assert await answer(guarded, "certs", replaced)
    for who, resource in (("webhooks", CARD_HOURS), ("webhooks", PAYERS), ("certs", PAYERS)):
        assert await answer(guarded, who, status_of(resource)), (who, resource.kind)


@pytest.mark.parametrize(
    ("who", "may"),
    [("admin", True), ("cluster-admin", True), ("restorer", True), ("collector", True), ("person", False)],
)
async def test_records_are_made_changed_and_deleted_by_those_who_maintain_them(
    guarded: Guarded, who: str, may: bool
) -> None:
    for resource in RECORDS:
        for write in (created(resource), changed(resource, NOTE), deleted(resource)):
            refused = await answer(guarded, who, write)
            assert may is not bool(refused), (who, resource.kind, refused)
            assert may or f"ValidatingAdmissionPolicy '{guards.RECORDS}'" in refused
            assert may or "bind the ClusterRole bizrq-restore" in refused


async def test_nobody_deletes_all_records_at_once_who_may_not_delete_one(guarded: Guarded) -> None:
    for resource in RECORDS:

        async def delete_all(client: KubeClient, resource: Resource = resource) -> object:
            return await client.request("DELETE", resource.path(), body=b"{}")

        assert await answer(guarded, "person", delete_all)
        assert (await guarded.admin.list(resource))[0], resource.kind


async def test_the_controller_makes_and_deletes_records(guarded: Guarded) -> None:
    for resource in RECORDS:
        for write in (created(resource), deleted(resource)):
            assert not await answer(guarded, "controller", write), resource.kind
    for who in ("webhooks", "certs"):
        assert await answer(guarded, who, deleted(STATEMENTS))


async def test_people_write_groups_and_corrections_as_before(guarded: Guarded) -> None:
    writes = (
        changed(GROUPS, {"spec": {"hard": {"limits.cpu": "9"}}}),
        changed(GROUPS, NOTE),
        changed(CORRECTIONS, NOTE),
        deleted(CORRECTIONS),
        deleted(GROUPS),
    )
    for write in writes:
        assert not await answer(guarded, "person", write)


@pytest.mark.parametrize(
    ("what", "body", "may"),
    [
        ("its finalizer", {"metadata": {"finalizers": [wire.FINALIZER]}}, True),
        ("another finalizer", {"metadata": {"finalizers": ["example.com/kept"]}}, False),
        ("both", {"metadata": {"finalizers": [wire.FINALIZER, "example.com/kept"]}}, False),
        ("a budget", {"spec": {"hard": {"limits.cpu": "11"}}}, False),
        ("a selector", {"spec": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, False),
        ("labels", {"metadata": {"labels": {"a": "b"}}}, False),
        ("annotations", NOTE, False),
        ("an owner", {"metadata": {"ownerReferences": payers("4711")["metadata"]["ownerReferences"]}}, False),
    ],
)
async def test_the_controller_changes_nothing_of_a_group_but_its_finalizer(
    guarded: Guarded, what: str, body: Object, may: bool
) -> None:
    refused = await answer(guarded, "controller", changed(GROUPS, body))
    assert may is not bool(refused), (what, refused)
    assert may or f"ValidatingAdmissionPolicy '{guards.GROUPS}'" in refused
    assert not await answer(guarded, "person", changed(GROUPS, body)), what


async def test_nobody_else_ends_a_group_without_what_it_has_spent(guarded: Guarded) -> None:
    """Who leads a group may delete those below it, and got their spent hours back without this finalizer."""
    everything = [wire.FINALIZER, "example.com/kept"]
    writes = [
        changed(GROUPS, {"metadata": {"finalizers": None}}),
        changed(GROUPS, {"metadata": {"finalizers": ["example.com/kept"]}}),
        changed(GROUPS, {"metadata": {"finalizers": [f"{wire.FINALIZER}-2"]}, "spec": {"hard": {"limits.cpu": "1"}}}),
    ]
    await guarded.admin.patch(GROUPS, NAME, {"metadata": {"finalizers": everything}})
    for write in writes:
        assert f"ValidatingAdmissionPolicy '{guards.SPENT}'" in await answer(guarded, "person", write)
        assert await answer(guarded, "certs", write)
    for who in ("controller", "restorer", "cluster-admin"):
        assert not await answer(guarded, who, changed(GROUPS, {"metadata": {"finalizers": ["example.com/kept"]}})), who
    others = changed(GROUPS, {"metadata": {"finalizers": [wire.FINALIZER]}})
    assert not await answer(guarded, "person", others), "those are people's own"
    await guarded.admin.patch(GROUPS, NAME, {"metadata": {"finalizers": None}})


async def test_the_controller_removes_no_finalizer_of_others(guarded: Guarded) -> None:
    await guarded.admin.patch(GROUPS, NAME, {"metadata": {"finalizers": [wire.FINALIZER, "example.com/kept"]}})
    only_its_own = changed(GROUPS, {"metadata": {"finalizers": ["example.com/kept"]}})
    assert not await answer(guarded, "controller", only_its_own)
    assert guards.GROUPS in await answer(guarded, "controller", changed(GROUPS, {"metadata": {"finalizers": None}}))
    await guarded.admin.patch(GROUPS, NAME, {"metadata": {"finalizers": None}})


def at(index: int, field: str, value: Any) -> list[Object]:
    return [{"op": "add", "path": f"/webhooks/{index}/{field}", "value": value}]


@pytest.mark.parametrize(
    ("what", "patch", "may"),
    [
        ("a caBundle", at(0, "clientConfig/caBundle", "Cg=="), True),
        ("the same failure policy", at(1, "failurePolicy", "Fail"), True),
        ("the failure policy", at(1, "failurePolicy", "Ignore"), False),
        ("the address", at(1, "clientConfig/url", "https://127.0.0.1:2/two"), False),
        ("the time-out", at(0, "timeoutSeconds", 1), False),
        ("a rule", at(0, "rules/0/operations", ["DELETE"]), False),
        ("a condition", at(0, "matchConditions", [{"name": "never", "expression": "false"}]), False),
        ("the selector of namespaces", at(0, "namespaceSelector", {"matchLabels": {"a": "b"}}), False),
        ("the selector of objects", at(0, "objectSelector", {"matchLabels": {"a": "b"}}), False),
        ("the match policy", at(0, "matchPolicy", "Exact"), False),
        ("side effects", at(0, "sideEffects", "NoneOnDryRun"), False),
        ("a webhook less", [{"op": "remove", "path": "/webhooks/1"}], False),
        ("no webhook", [{"op": "remove", "path": "/webhooks"}], False),
        ("another name", at(1, "name", "three.guarded.example.com"), False),
        (
            "an owner",
            [
                {
                    "op": "add",
                    "path": "/metadata/ownerReferences",
                    "value": payers("4711")["metadata"]["ownerReferences"],
                }
            ],
            False,
        ),
        ("a finalizer", [{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/kept"]}], False),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
async def test_certs_changes_nothing_of_a_registration_but_ca_bundles(
    guarded: Guarded, what: str, patch: list[Object], may: bool
) -> None:
    def write(client: KubeClient) -> Awaitable[object]:
        return client.patch(REGISTRATIONS, "bizrq", patch, content_type="application/json-patch+json", dry_run=True)

    refused = await answer(guarded, "certs", write)
    assert may is not bool(refused), (what, refused)
    assert may or f"ValidatingAdmissionPolicy '{guards.REGISTRATION}'" in refused
    assert not await answer(guarded, "admin", write), what


async def test_records_go_with_their_group(guarded: Guarded) -> None:
    """The garbage collector deletes the payers of a group that a person has deleted."""
    made = await guarded.admin.create(GROUPS, group("going", cpu="1"))
    await guarded.admin.create(PAYERS, payers(made["metadata"]["uid"], "going"))
    await guarded.users["person"].delete(GROUPS, "going")

    async def gone() -> bool:
        try:
            await guarded.admin.get(PAYERS, "going")
        except NotFound:
            return True
        return False

    await eventually(gone, 60, "the payers are collected")


async def test_every_kind_of_bizrq_may_be_maintained_and_restored() -> None:
    """A new kind that is not in these roles could be written by nobody."""
    roles = {
        each.document["metadata"]["name"]: each.document["rules"]
        for each in rbac.manifests(builtin_registry(), SYSTEM)
        if each.document["kind"] == "ClusterRole"
    }
    for role in (rbac.CONTROLLER, guards.RESTORE_ROLE):
        rules = [rule for rule in roles[role] if guards.MAINTAIN in rule["verbs"]]
        maintained = {plural for rule in rules for plural in rule["resources"]}
        assert maintained == {crd["spec"]["names"]["plural"] for crd in crds.load()}, role
    statuses = {
        f"{crd['spec']['names']['plural']}/status"
        for crd in crds.load()
        if any("status" in (version.get("subresources") or {}) for version in crd["spec"]["versions"])
    }
    restored = {each for rule in roles[guards.RESTORE_ROLE] for each in rule["resources"] if "/" in each}
    assert restored == statuses
