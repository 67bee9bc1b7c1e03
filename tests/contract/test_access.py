"""SubjectAccessReviews: what RBAC says of a subject, as admission asks it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml

from bizrq.kube.client import AlreadyExists, KubeClient
from bizrq.kube.config import Overrides, from_kubeconfig
from bizrq.metrics_access import TOKEN_REVIEWS
from bizrq.store.access import ACCESS_REVIEWS, SelfAccessReviewer
from tests.support.cluster import Cluster, eventually, refusal
from tests.support.objects import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Object, bound, cluster_role
from tests.support.tenant import ROLE_BINDINGS

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def asked(client: KubeClient, user: str, verb: str, name: str, *groups: str, **more: Any) -> bool:
    attributes = {"group": "quota.biz.group", "resource": "bizgroupresourcequotas", "verb": verb, "name": name, **more}
    spec = {"user": user, "groups": list(groups), "resourceAttributes": attributes}
    answer = await client.create(
        ACCESS_REVIEWS, {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
    )
    return answer["status"]["allowed"]


async def given(client: KubeClient, user: str, role: Object, kind: str = "User") -> None:
    for resource, obj in ((CLUSTER_ROLES, role), (CLUSTER_ROLE_BINDINGS, bound(role["metadata"]["name"], user, kind))):
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, obj)


@pytest.mark.parametrize(
    ("names", "verbs", "yes", "no"),
    [
        (["nlp"], ["use"], [("use", "nlp")], [("use", "vision"), ("use", ""), ("use", "*"), ("grant", "nlp")]),
        (None, ["use"], [("use", "nlp"), ("use", "*"), ("use", "")], [("grant", "nlp")]),
        (["nlp"], ["*"], [("use", "nlp"), ("grant", "nlp")], [("use", "vision")]),
        # A resource name is no pattern: this one is of nothing but itself.
        (["*"], ["grant"], [("grant", "*")], [("grant", "nlp"), ("use", "*")]),
    ],
)  # fmt: skip
async def test_a_role_allows_its_verbs_on_its_names(
    client: KubeClient,
    unique: str,
    names: list[str] | None,
    verbs: list[str],
    yes: list[tuple[str, str]],
    no: list[tuple[str, str]],
) -> None:
    user = f"user-{unique}"
    await given(client, user, cluster_role(unique, *verbs, names=names))

    async def known() -> bool:
        return await asked(client, user, *yes[0])

    await eventually(known, what="the API server knows the role")
    for verb, name in yes:
        assert await asked(client, user, verb, name)
    for verb, name in no:
        assert not await asked(client, user, verb, name), (verb, name)
        assert await asked(client, user, verb, name, "system:masters")
    assert not await asked(client, f"other-{user}", *yes[0])
    assert not await asked(client, user, *yes[0], group="apps")
    assert not await asked(client, user, *yes[0], resource="deployments")
    assert not await asked(client, user, *yes[0], subresource="status")


async def test_a_user_who_asks_about_itself_gets_the_same_answer(
    client: KubeClient, cluster: Cluster, unique: str
) -> None:
    user = f"user-{unique}"
    await given(client, user, cluster_role(unique, "use", names=["nlp"]))
    as_user = from_kubeconfig(cluster.kubeconfig, None, Overrides(impersonated=user, groups=("system:authenticated",)))
    async with KubeClient(as_user) as own:
        reviewer = SelfAccessReviewer(own)
        await eventually(lambda: reviewer.may(None, "use", "nlp", 10), what="the API server knows the role")
        assert not await reviewer.may(None, "use", "vision", 10)
        assert not await reviewer.may(None, "grant", "nlp", 10)
    assert await SelfAccessReviewer(client).may(None, "grant", "nlp", 10)


async def test_groups_and_service_accounts_are_subjects_and_a_role_binding_reaches_no_further_than_its_namespace(
    client: KubeClient, namespace: str, unique: str
) -> None:
    role = cluster_role(unique, "use")
    await given(client, f"team-{unique}", role, "Group")
    binding = bound(unique, f"in-{unique}")
    binding = {
        **binding,
        "kind": "RoleBinding",
        "metadata": {"name": unique, "namespace": namespace},
        "subjects": [*binding["subjects"], {"kind": "ServiceAccount", "name": "robot", "namespace": namespace}],
    }
    await client.create(ROLE_BINDINGS, binding)

    async def known() -> bool:
        of_team = await asked(client, "x", "use", "nlp", f"team-{unique}")
        return of_team and await asked(client, f"in-{unique}", "use", "nlp", namespace=namespace)

    await eventually(known, what="the API server knows the bindings")
    robot = f"system:serviceaccount:{namespace}:robot"
    assert await asked(client, robot, "use", "nlp", namespace=namespace)
    for user in (robot, f"in-{unique}"):
        assert not await asked(client, user, "use", "nlp")
        assert not await asked(client, user, "use", "nlp", namespace="default")
    assert not await asked(client, f"system:serviceaccount:default:robot-{unique}", "use", "nlp", namespace=namespace)


async def test_a_path_is_allowed_by_a_role_of_the_cluster_that_names_it(client: KubeClient, unique: str) -> None:
    user, other = f"user-{unique}", f"other-{unique}"
    for name, subject, paths in ((unique, user, ["/metrics", "/logs/*"]), (f"{unique}-2", other, ["*"])):
        role = cluster_role(name)
        role["rules"] = [{"nonResourceURLs": paths, "verbs": ["get"]}]
        await given(client, subject, role)

    async def allowed(subject: str, path: str, verb: str = "get") -> bool:
        spec = {"user": subject, "nonResourceAttributes": {"path": path, "verb": verb}}
        review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind, "spec": spec}
        return (await client.create(ACCESS_REVIEWS, review))["status"]["allowed"]

    await eventually(lambda: allowed(user, "/metrics"), what="the API server knows the role")
    await eventually(lambda: allowed(other, "/metrics"), what="the API server knows the other role")
    assert await allowed(user, "/logs/kubelet")
    assert await allowed(other, "/")
    for path in ("/metrics/", "/metricsx", "/", "/logs"):
        assert not await allowed(user, path), path
    assert not await allowed(user, "/metrics", "post")
    assert not await allowed(f"nobody-{unique}", "/metrics")
    # A right on a path is no right on an object.
    assert not await asked(client, other, "get", "nlp")


@pytest.mark.parametrize(
    "attributes",
    [{}, {"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}],
)
async def test_a_review_is_of_a_path_or_of_a_resource(client: KubeClient, attributes: Object) -> None:
    review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind}
    error = await refusal(client.create(ACCESS_REVIEWS, {**review, "spec": {"user": "x", **attributes}}))
    assert (error.status, error.reason) == (422, "Invalid")


async def test_a_token_review_knows_the_token_of_a_user_and_no_other(client: KubeClient, cluster: Cluster) -> None:
    [user] = yaml.safe_load(cluster.kubeconfig.read_text())["users"]
    token = user["user"]["token"]

    async def reviewed(text: str) -> Object:
        review = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": text}}
        return (await client.create(TOKEN_REVIEWS, review))["status"]

    status = await reviewed(token)
    assert status["authenticated"] is True
    assert status["user"]["username"]
    assert "system:masters" in status["user"]["groups"]
    for text in ("x", f"{token}x", token[:-1], "é"):
        status = await reviewed(text)
        assert status.get("authenticated", False) is False
        assert status.get("user") == {}
    assert (await refusal(reviewed(""))).status == 400


async def test_a_review_of_nobody_is_invalid(client: KubeClient) -> None:
    error = await refusal(asked(client, "", "use", "nlp"))
    assert (error.status, error.reason) == (422, "Invalid")
