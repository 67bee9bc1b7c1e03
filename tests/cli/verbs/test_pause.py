"""`bizrq pause` and `resume`, with all processes dead and with a leader."""

from __future__ import annotations

from typing import Any

import pytest

import crds
from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import ApiError, KubeClient, NotFound
from bizrq.settings import load
from bizrq.store import pause
from tests.cli.conftest import Bizrq
from tests.cli.test_pager import on_a_terminal
from tests.support.cluster import Cluster, eventually, has_kinds
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    Object,
    bound,
    cluster_role,
    deployment,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HERE = ("-n", "default")


@pytest.fixture
def run(cluster: Cluster, client: KubeClient) -> Bizrq:
    return Bizrq(cluster.kubeconfig, client)


async def register(client: KubeClient, **more: Any) -> None:
    made = registration.configuration(load(None), lambda path: {"url": f"https://127.0.0.1:1{path}"}, namespace="x")
    webhooks = [{**each, "clientConfig": {**each["clientConfig"], **more}} for each in made["webhooks"]]
    await client.create(REGISTRATIONS, {**made, "webhooks": webhooks})


async def registered(client: KubeClient) -> Object | None:
    try:
        return await client.get(REGISTRATIONS, registration.NAME)
    except NotFound:
        return None


async def test_a_pause_admits_everything_though_all_processes_are_dead(run: Bizrq, client: KubeClient) -> None:
    """Says why it was, and how it ends."""
    await has_kinds(client, crds.load())
    await register(client)

    async def is_refused() -> bool:
        try:
            await client.create(DEPLOYMENTS, deployment("web", "nlp"), dry_run=True)
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    async def is_admitted() -> bool:
        return not await is_refused()

    await eventually(is_refused, 60, "the registration is in force")
    result = await run("pause", *HERE, "--yes", "--reason", " etcd is slow ")
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("paused since 2")
    assert first.endswith(": etcd is slow")
    assert second == "nothing is checked until bizrq resume"
    assert await registered(client) is None
    await eventually(is_admitted, 60, "nobody is asked")
    marker = await pause.read(client, "default")
    assert marker is not None
    assert str(marker) == first

    # No controller has told the groups.
    status = await run("status", *HERE)
    said = f"quota is not enforced: {first}; nothing is refused until bizrq resume"
    assert (status.code, status.plain.splitlines()[0]) == (1, f"PROBLEM   {said}")

    again = await run("pause", *HERE, "--yes", "--reason", "another")
    assert (again.code, again.out.splitlines()) == (0, ["no webhooks were registered", first, second])

    ended = await run("resume", *HERE, "--timeout", "0")
    assert (ended.code, ended.out, ended.err) == (0, "resumed\n", "")
    assert await pause.read(client, "default") is None


async def test_resume_says_what_is_missing(run: Bizrq, client: KubeClient) -> None:
    await pause.begin(client, "default", "", "")
    alone = await run("resume", *HERE, "--timeout", "1")
    assert (alone.code, alone.out) == (3, "resumed\n")
    assert alone.err.startswith("bizrq: nothing is checked yet: the webhooks are not registered; no controller leads: ")
    code, seen = await on_a_terminal(run, "bizrq resume -n default --timeout 1", 40)
    assert (code, seen.splitlines()[1]) == (3, "waiting up to 1 s until the webhooks are registered")
    await register(client)
    untrusted = await run("resume", *HERE, "--timeout", "1")
    assert (untrusted.code, untrusted.out) == (3, "bizrq was not paused\n")
    assert "bizrq-certs has not written the caBundle" in untrusted.err
    await client.delete(REGISTRATIONS, registration.NAME)
    await register(client, caBundle="Y2E=")
    done = await run("resume", *HERE)
    assert (done.code, done.out) == (0, "bizrq was not paused\nthe webhooks are registered\n")
    await client.delete(REGISTRATIONS, registration.NAME)


async def test_nobody_to_ask_and_a_namespace_that_is_not_there_change_nothing(run: Bizrq, client: KubeClient) -> None:
    await register(client)
    asked = await run("pause", *HERE)
    assert (asked.code, asked.out, asked.err) == (
        2,
        "",
        "bizrq: cannot ask for confirmation without a terminal: pass --yes\n",
    )
    nowhere = await run("pause", "-n", "nowhere", "--yes")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "there is no namespace nowhere: pass --namespace" in nowhere.err
    assert await registered(client)
    await client.delete(REGISTRATIONS, registration.NAME)


async def test_a_pause_takes_the_two_rights_that_the_page_names(
    run: Bizrq, client: KubeClient, cluster: Cluster, unique: str
) -> None:
    if not cluster.is_real:
        pytest.skip("on the sandbox everybody may do everything")
    person = f"{unique}-person"
    await register(client)
    no_marker = await run("pause", *HERE, "--yes", "--as", person)
    assert (no_marker.code, no_marker.out) == (3, "")
    assert "the marker cannot be written: " in no_marker.err
    assert "scale deployment/bizrq-controller --replicas=0" in no_marker.err
    marking = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]}
    deleting = {"apiGroups": [REGISTRATIONS.group], "resources": [REGISTRATIONS.plural], "verbs": ["delete"]}
    await client.create(CLUSTER_ROLES, {**cluster_role(person, "get"), "rules": [marking]})
    await client.create(CLUSTER_ROLE_BINDINGS, bound(person, person))
    while "the marker cannot be written" in (result := await run("pause", *HERE, "--yes", "--as", person)).err:
        assert await registered(client)
    assert (result.code, result.out) == (3, "")
    assert "the webhooks are still registered: " in result.err
    await client.patch(CLUSTER_ROLES, person, {"rules": [marking, deleting]})
    while (result := await run("pause", *HERE, "--yes", "--as", person)).code == 3:
        assert "still registered" in result.err
    assert f" by {person}" in result.out
    assert await registered(client) is None
    await pause.end(client, "default")
