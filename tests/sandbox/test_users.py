"""Users that a test adds: what the stored RBAC allows them, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import crds
from bizrq.kube.client import Forbidden, KubeClient, Resource, Unauthorized
from bizrq.store.groups import GROUPS
from sandbox.server import Sandbox
from tests.support import objects
from tests.support.cluster import has_kinds, write_kubeconfig

RULES = Resource("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", namespaced=False)


def as_user(box: Sandbox, path: Path, token: str) -> KubeClient:
    return KubeClient.from_kubeconfig(write_kubeconfig(path, {"server": box.url}, token))


async def rules_of(client: KubeClient) -> Any:
    review = {"apiVersion": RULES.api_version, "kind": RULES.kind, "spec": {"namespace": "default"}}
    return (await client.create(RULES, review))["status"]["resourceRules"]


async def test_a_user_may_do_what_rbac_allows_and_by_name_what_it_allows_by_name(tmp_path):
    async with Sandbox(controllers=False) as box:
        async with KubeClient.from_kubeconfig(box.write_kubeconfig(tmp_path / "admin")) as admin:
            await has_kinds(admin, crds.load())
            for name in ("nlp", "vision"):
                await admin.create(GROUPS, objects.group(name, cpu=1))
            role = objects.cluster_role("lead", "get", "watch")
            role["rules"][0]["resourceNames"] = ["nlp"]
            await admin.create(objects.CLUSTER_ROLES, role)
            await admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound("lead", "lena", "User"))
            assert (await rules_of(admin))[0]["verbs"] == ["*"]
        token = box.add_user("lena")
        async with as_user(box, tmp_path / "lena", token) as lena:
            assert (await lena.get(GROUPS, "nlp"))["metadata"]["name"] == "nlp"
            with pytest.raises(Forbidden, match='User "lena" cannot get resource "bizgroupresourcequotas"'):
                await lena.get(GROUPS, "vision")
            with pytest.raises(Forbidden, match="cannot list"):
                await lena.list(GROUPS)
            watch = lena.watch(
                GROUPS, resource_version="", field_selector="metadata.name=nlp", send_initial_events=True
            )
            assert (await anext(watch))[1]["metadata"]["name"] == "nlp"
            await watch.aclose()
            with pytest.raises(Forbidden, match="cannot watch"):
                await anext(lena.watch(GROUPS, resource_version=""))
            with pytest.raises(Forbidden, match="cannot patch"):
                await lena.patch(GROUPS, "nlp", {"spec": {"owner": "me"}})
            assert (await rules_of(lena))[0]["resourceNames"] == ["nlp"]
            box.remove_token(token)
            with pytest.raises(Unauthorized):
                await lena.get(GROUPS, "nlp")


async def test_only_those_who_may_do_everything_act_for_others(tmp_path):
    async with Sandbox(controllers=False) as box:
        path = write_kubeconfig(tmp_path / "lena", {"server": box.url}, box.add_user("lena"))
        from bizrq.kube.config import Overrides, from_kubeconfig

        endpoint = from_kubeconfig(path, None, Overrides(impersonated="root"))
        async with KubeClient(endpoint) as lena:
            with pytest.raises(Forbidden, match="cannot impersonate"):
                await rules_of(lena)
