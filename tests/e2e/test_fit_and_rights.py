"""`bizrq fit` of a person who lacks a right says what admission says, or that it cannot know."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bizrq.cli.grants import binding, role, subject
from bizrq.cli.manifests_of_bizrq import CONFIG
from bizrq.cli.rbac import WEBHOOKS
from bizrq.kube.client import ApiError, KubeClient, NotFound, Resource
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.settings import settings
from bizrq.store.access import ACCESS_REVIEWS
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq, CommandResult, written
from tests.e2e.conftest import station_on
from tests.support.cluster import Cluster, eventually
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    Object,
    bound,
    deployment,
    group,
    template,
)
from tests.support.oracle import settled

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM = "bizrq-system"
DENIED = "may not charge quota fit-nlp: creating a workload in it or moving one there needs the verb use on "
SEEN = ("fit-people", "fit-workers", "fit-limits", "fit-namespaces")
UNKNOWN = f"unknown: configmap {CONFIG} in namespace {SYSTEM} cannot be read"
NOWHERE = f"unknown: bizrq is not installed in namespace {SYSTEM}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(cluster: Cluster, client: KubeClient) -> AsyncIterator[Cluster]:
    """bizrq that asks for both rights; ann and bob may read what counts and write Deployments, and bob may charge."""
    given = [
        _role("fit-people", ("quota.biz.group", "bizgroupresourcequotas"), "get", "list", "create"),
        _role("fit-workers", ("apps", "deployments"), "get", "create", "patch"),
        # What the amounts depend on.
        _role("fit-limits", ("", "limitranges"), "list"),
        _role("fit-namespaces", ("", "namespaces"), "get", "list"),
        *(bound(name, user) for name in SEEN for user in ("ann", "bob")),
        role("fit-nlp"),
        binding("fit-nlp", subject("bob")),
    ]
    async with station_on(cluster, settings({"rights": {"use": True, "grant": True}})):
        for obj in given:
            await client.create(_kind(obj), obj)
        await client.create(GROUPS, group("fit-nlp", cpu="10"))
        await settled(client, ["fit-nlp"])
        await eventually(lambda: _may(client, "bob", "use"), what="the rights are known")
        yield cluster
        for obj in given:
            await client.delete(_kind(obj), obj["metadata"]["name"])


def _role(name: str, of: tuple[str, str], *verbs: str, names: tuple[str, ...] = ()) -> Object:
    rule: Object = {"apiGroups": [of[0]], "resources": [of[1]], "verbs": list(verbs)}
    if names:
        rule["resourceNames"] = list(names)
    api = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}


def _kind(obj: Object) -> Resource:
    return {"ClusterRole": CLUSTER_ROLES, "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS}[obj["kind"]]


async def _may(client: KubeClient, user: str, verb: str, plural: str = "", namespace: str = "", name: str = "") -> bool:
    about = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "name": "fit-nlp"}
    if plural:
        about = {"resource": plural, "namespace": namespace, "name": name}
    spec = {"user": user, "resourceAttributes": {**about, "verb": verb}}
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    return (await client.create(ACCESS_REVIEWS, review))["status"]["allowed"]


@contextlib.asynccontextmanager
async def installed(client: KubeClient, text: str | None) -> AsyncIterator[None]:
    """The objects of an installation with this configuration, None for one without; ann may read them."""
    reader = _role("fit-readers", ("", "configmaps"), "get", names=(CONFIG,))
    reading = bound("fit-readers", "ann")
    labels = {"app": WEBHOOKS}
    runs = deployment(WEBHOOKS, None, 0, namespace=SYSTEM)
    runs["spec"] |= {"selector": {"matchLabels": labels}}
    runs["spec"]["template"] = {**template(), "metadata": {"labels": labels}}
    made: list[tuple[Resource, str, str | None]] = []
    for resource, obj in ((CLUSTER_ROLES, reader), (CLUSTER_ROLE_BINDINGS, reading), (DEPLOYMENTS, runs)):
        await client.create(resource, obj)
        made.append((resource, obj["metadata"]["name"], obj["metadata"].get("namespace")))
    if text is not None:
        stored = {"metadata": {"name": CONFIG, "namespace": SYSTEM}, "data": {"config.yaml": text}}
        await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **stored})
        made.append((CONFIG_MAPS, CONFIG, SYSTEM))
    await eventually(lambda: _may(client, "ann", "get", "configmaps", SYSTEM, CONFIG), what="ann may read it")
    try:
        yield
    finally:
        for resource, name, where in made:
            with contextlib.suppress(NotFound):
                await client.delete(resource, name, where)

        async def forgotten() -> bool:
            return not await _may(client, "ann", "get", "configmaps", SYSTEM, CONFIG)

        await eventually(forgotten, what="ann may not read it any more")


async def fit(cluster: Cluster, client: KubeClient, path: Path, who: str, *objects: Object) -> CommandResult:
    flags = ("--as", who, "--as-group", "system:authenticated")
    return await Bizrq(cluster.kubeconfig, client)("fit", "-f", written(path, *objects), *flags)


async def refusal(cluster: Cluster, who: str, resource: Resource, obj: Object) -> str:
    """What the cluster says of the write itself."""
    as_who = from_kubeconfig(cluster.kubeconfig, None, Overrides(impersonated=who, groups=("system:authenticated",)))
    async with KubeClient(as_who) as client:
        try:
            await client.create(resource, obj, dry_run=True)
        except ApiError as error:
            return error.message
    return ""


async def test_where_the_configuration_is_unknown_a_missing_right_is_a_warning(
    asking: Cluster, client: KubeClient, tmp_path: Path
) -> None:
    web = deployment("web", "fit-nlp", 1)
    assert f"ann {DENIED}" in await refusal(asking, "ann", DEPLOYMENTS, web)
    result = await fit(asking, client, tmp_path, "ann", web)
    assert result.code == 4, result
    assert " ".join(result.plain.split()).startswith("unknown Deployment default/web, in fit-nlp")
    # In the sandbox whoever is impersonated may read everything.
    assert (UNKNOWN if asking.is_real else NOWHERE) in " ".join(result.plain.split())
    assert f"you {DENIED}" in " ".join(result.plain.split())
    assert await refusal(asking, "bob", DEPLOYMENTS, web) == ""
    result = await fit(asking, client, tmp_path, "bob", web)
    assert (result.code, "unknown" in result.plain) == (0, False), result


async def test_a_group_that_one_may_not_make_is_warned_of_too(
    asking: Cluster, client: KubeClient, tmp_path: Path
) -> None:
    made = group("fit-root", cpu="1")
    assert "ann may not create group fit-root" in await refusal(asking, "ann", GROUPS, made)
    told = " ".join((await fit(asking, client, tmp_path, "ann", made)).plain.split())
    assert (UNKNOWN if asking.is_real else NOWHERE) in told
    assert "you may not create group fit-root" in told


async def test_where_the_configuration_is_read_the_answer_is_that_of_admission(
    asking: Cluster, client: KubeClient, tmp_path: Path
) -> None:
    web = deployment("web", "fit-nlp", 1)
    async with installed(client, "rights: {use: true}"):
        result = await fit(asking, client, tmp_path, "ann", web)
        assert result.code == 1, result
        assert f"you {DENIED}" in " ".join(result.plain.split())
        assert "unknown" not in result.plain
        result = await fit(asking, client, tmp_path, "bob", web)
        assert result.code == 0, result


@pytest.mark.parametrize("text", ["rights: {use: false}", "surge: count", "", None])
async def test_where_no_right_is_asked_for_none_is_missed(
    asking: Cluster, client: KubeClient, tmp_path: Path, text: str | None
) -> None:
    """An installation without a configuration asks for none."""
    async with installed(client, text):
        result = await fit(asking, client, tmp_path, "ann", deployment("web", "fit-nlp", 1))
        assert (result.code, "right" in result.plain) == (0, False), result


async def test_a_configuration_of_a_newer_version_is_unknown(
    asking: Cluster, client: KubeClient, tmp_path: Path
) -> None:
    async with installed(client, "rights: {use: true, later: true}"):
        result = await fit(asking, client, tmp_path, "ann", deployment("web", "fit-nlp", 1))
        assert result.code == 4, result
        assert UNKNOWN in " ".join(result.plain.split())


async def test_a_configuration_that_is_nowhere_is_told_from_one_that_may_not_be_read(
    asking: Cluster, client: KubeClient, tmp_path: Path
) -> None:
    async with installed(client, None):
        await client.delete(DEPLOYMENTS, WEBHOOKS, SYSTEM)
        result = await fit(asking, client, tmp_path, "ann", deployment("web", "fit-nlp", 1))
    said = " ".join(result.plain.split())
    assert (result.code, result.err) == (4, "bizrq: pass the configuration that bizrq runs with as --config\n")
    assert f"the configuration of bizrq, which is not installed in {SYSTEM}; without that it is admitted" in said, said
    assert f"{NOWHERE}; it would say: you {DENIED}" in said, said
    assert "may not read" not in said, said
