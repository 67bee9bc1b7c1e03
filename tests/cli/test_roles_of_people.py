"""The roles for people give what docs/rights.md says, and no more, on the API servers that there are."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import crds
from bizrq.api import guards
from bizrq.cli import rbac
from bizrq.cli.rbac import ADMIN, FINANCE, GROUP_LEAD, VIEWER
from bizrq.kube.client import AlreadyExists, KubeClient, Resource
from bizrq.settings import load
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from bizrq.store.overlaps import OVERLAPS
from bizrq.store.payers import PAYERS
from tests.docs.test_docs import page
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Object, bound

PEOPLE = (VIEWER, GROUP_LEAD, FINANCE, ADMIN)
AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-"
WRITING = ("create", "update", "patch", "delete", "deletecollection")


def roles() -> dict[str, Object]:
    return {
        manifest.document["metadata"]["name"]: manifest.document
        for manifest in rbac.manifests(load(None).registry, "bizrq-system")
        if manifest.document["kind"] == "ClusterRole"
    }


def test_only_reading_is_aggregated_and_only_into_view() -> None:
    """Whoever has `edit` somewhere would change budgets otherwise."""
    for name, role in roles().items():
        aggregated = [key for key in role["metadata"].get("labels", {}) if key.startswith(AGGREGATED)]
        if name != VIEWER:
            assert not aggregated, name
            continue
        assert aggregated == [f"{AGGREGATED}view"]
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_nobody_is_bound_and_no_role_has_what_bizrq_alone_may() -> None:
    documents = [manifest.document for manifest in rbac.manifests(load(None).registry, "bizrq-system")]
    assert not [d for d in documents if d.get("roleRef", {}).get("name") in PEOPLE]
    for name in PEOPLE:
        verbs = {verb for rule in roles()[name]["rules"] for verb in rule["verbs"]}
        assert not verbs & {"*", "use", guards.MAINTAIN, "bind", "escalate", "impersonate"}, name
        assert not [r for rule in roles()[name]["rules"] for r in rule["resources"] if r == "*" or "/" in r], name


def test_the_page_names_every_role_that_people_get() -> None:
    section = page("docs/rights.md").partition("## Who needs what")[2].partition("\n## ")[0]
    table = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    named = set(re.findall(r"`(bizrq-[a-z-]+)`", table))
    assert named == {*PEOPLE, guards.RESTORE_ROLE, rbac.METRICS_READER}
    assert set(re.findall(r"--clusterrole=([a-z-]+)", table)) == set(PEOPLE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bound_people(client: KubeClient) -> AsyncIterator[KubeClient]:
    """A cluster with the roles, each bound to a user of its name."""
    await has_kinds(client, crds.load())
    made = [(CLUSTER_ROLES, roles()[name]) for name in PEOPLE]
    made += [(CLUSTER_ROLE_BINDINGS, bound(name, name)) for name in PEOPLE]
    stored: list[tuple[Resource, str]] = []
    for resource, document in made:
        with contextlib.suppress(AlreadyExists):  # What another test has installed.
            await client.create(resource, document)
            stored.append((resource, document["metadata"]["name"]))
    yield client
    for resource, name in stored:
        await client.delete(resource, name)


READ = [(verb, kind, "", True) for verb in ("get", "list", "watch") for kind in rbac.OURS]
RECORDS = (CARD_HOURS, STATEMENTS, PAYERS, OVERLAPS)
#: By role: verb, kind, name, and whether it may. Nobody writes records, whatever they are.
MAY: dict[str, list[tuple[str, Resource, str, bool]]] = {
    VIEWER: [
        *((verb, kind, "", False) for verb in WRITING for kind in rbac.OURS),
        ("grant", GROUPS, "ai", False),
    ],
    GROUP_LEAD: [
        *((verb, GROUPS, "nlp", True) for verb in ("create", "update", "patch", "delete")),
        *((verb, CORRECTIONS, "c", False) for verb in WRITING),
        ("grant", GROUPS, "ai", False),
        ("grant", GROUPS, "*", False),
    ],
    FINANCE: [
        ("create", CORRECTIONS, "", True),
        *((verb, CORRECTIONS, "c", False) for verb in ("update", "patch", "delete")),
        *((verb, GROUPS, "nlp", False) for verb in WRITING),
        ("grant", GROUPS, "*", False),
    ],
    ADMIN: [
        *((verb, GROUPS, "nlp", True) for verb in ("create", "update", "patch", "delete")),
        *((verb, CORRECTIONS, "c", True) for verb in ("create", "delete")),
        ("update", CORRECTIONS, "c", False),
        ("grant", GROUPS, "*", True),
        ("deletecollection", GROUPS, "", False),
    ],
}


@pytest.mark.parametrize("role", PEOPLE)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_role_gives_what_it_is_for(bound_people: KubeClient, role: str) -> None:
    never = [(verb, kind, "x", False) for verb in (*WRITING, "maintain") for kind in RECORDS]
    never += [(verb, GROUPS, "nlp", False) for verb in ("use", "maintain")]
    wanted = {row[:3]: row[3] for row in (*READ, *never, *MAY[role])}

    async def wrong() -> list[Any]:
        return [key for key, yes in wanted.items() if await _may(bound_people, role, *key) is not yes]

    async def right() -> bool:
        return not await wrong()

    # The API server reads roles by a watch of its own.
    await eventually(right, 30, "the rights of the role")


async def _may(client: KubeClient, user: str, verb: str, kind: Resource, name: str) -> bool:
    attributes = {"group": kind.group, "resource": kind.plural, "verb": verb, "name": name}
    spec = {"user": user, "resourceAttributes": attributes}
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    return (await client.create(ACCESS_REVIEWS, review))["status"]["allowed"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_role_binding_to_view_shows_no_group_and_a_cluster_role_binding_all(
    bound_people: KubeClient, cluster: Cluster
) -> None:
    """Kubernetes' own controller adds the rules of our role to `view`."""
    if not cluster.is_real:
        pytest.skip("on the sandbox no controller aggregates roles")
    everywhere = bound("view", "vic")
    await bound_people.create(CLUSTER_ROLE_BINDINGS, everywhere)
    local = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
    here = {**bound("edit", "liv"), "kind": "RoleBinding"}
    here["metadata"] = {**here["metadata"], "namespace": "default"}
    await bound_people.create(local, here)

    async def vic_reads() -> bool:
        return await _may(bound_people, "vic", "list", GROUPS, "")

    try:
        await eventually(vic_reads, 60, "view has the rules of bizrq-viewer")
        assert not await _may(bound_people, "vic", "update", GROUPS, "nlp")
        assert not await _may(bound_people, "liv", "get", GROUPS, "nlp")
    finally:
        await bound_people.delete(CLUSTER_ROLE_BINDINGS, everywhere["metadata"]["name"])
        await bound_people.delete(local, here["metadata"]["name"], "default")
