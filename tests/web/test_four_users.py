"""On a real API server, with tokens of four users: pages have what kubectl with the same token reads, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from cryptography.fernet import Fernet

import crds
from bizrq.kube.client import Forbidden, KubeClient
from bizrq.kube.config import Endpoint, StaticCredentials, from_kubeconfig
from bizrq.store.groups import GROUPS
from tests.support import objects
from tests.support.cluster import Real, has_kinds, sweep
from tests.web.conftest import Browser, Pages, serving_at
from tests.web.test_edit import to_apply

pytestmark = pytest.mark.real
NAMES = ("corp", "ai", "nlp", "vision")
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"


@pytest.fixture
async def admin(real_cluster: Real) -> AsyncIterator[KubeClient]:
    async with KubeClient.from_kubeconfig(real_cluster.kubeconfig) as admin:
        await has_kinds(admin, crds.load())
        await sweep(admin)
        for name, parent in zip(NAMES, ("", "corp", "ai", "ai"), strict=True):
            await admin.create(GROUPS, objects.group(name, parent, cpu="10"))
        yield admin
        await sweep(admin)


@pytest.fixture
async def pages(real_cluster: Real, tmp_path: Path) -> AsyncIterator[Pages]:
    (tmp_path / "current").write_bytes(Fernet.generate_key())
    known = from_kubeconfig(real_cluster.kubeconfig)
    async with serving_at(Endpoint(known.server, StaticCredentials({}), known.ca), tmp_path) as pages:
        yield pages


async def token(admin: KubeClient, name: str, *verbs: str, names: list[str] | None = None) -> str:
    """Return a token of a service account with these verbs on groups."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await admin.request("POST", ACCOUNTS, body=orjson.dumps(account))
    if verbs:
        await admin.create(objects.CLUSTER_ROLES, objects.cluster_role(f"web-{name}", *verbs, names=names))
        binding = objects.bound(f"web-{name}", name)
        binding["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
        await admin.create(objects.CLUSTER_ROLE_BINDINGS, binding)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await admin.request("POST", f"{ACCOUNTS}/{name}/token", body=orjson.dumps(review))
    return orjson.loads(answer)["status"]["token"]


async def readable(pages: Pages, token: str) -> set[str]:
    """The groups that the API server lets the bearer of the token read."""
    endpoint = pages.web.visitors._endpoint
    found: set[str] = set()
    async with KubeClient(Endpoint(endpoint.server, StaticCredentials({"token": token}), endpoint.ca)) as client:
        for name in NAMES:
            try:
                await client.get(GROUPS, name)
            except Forbidden:
                continue
            found.add(name)
    return found


async def shown(browser: Browser) -> set[str]:
    """The groups that pages link to, whose own pages can be opened."""
    text = "".join([(await browser.get(path)).text for path in ("/", "/tree", "/tree?view=table")])
    linked = {name for name in NAMES if f'href="/groups/{name}"' in text}
    opened = {name for name in NAMES if (await browser.get(f"/groups/{name}")).status == 200}
    assert linked == opened
    return opened


async def test_pages_have_what_the_same_token_reads_and_writes_end_as_they_would(admin: KubeClient, pages: Pages):
    users = {
        "web-admin": await token(admin, "web-admin", "*"),
        "web-lead": await token(admin, "web-lead", "get", "list", "watch", "patch", names=["nlp"]),
        "web-reader": await token(admin, "web-reader", "get", "list", "watch"),
        "web-nobody": await token(admin, "web-nobody"),
    }
    browsers: dict[str, Browser] = {}
    for name, bearer in users.items():
        browsers[name] = await pages.signed_in(bearer)
        assert f"system:serviceaccount:default:{name}" in (await browsers[name].get("/")).words
        assert await shown(browsers[name]) == await readable(pages, bearer), name
    for name, status, amount in (("web-reader", 403, "10"), ("web-lead", 200, "12"), ("web-admin", 200, "14")):
        form = await browsers[name].get("/groups/nlp/edit")
        if name == "web-reader":
            assert "patch bizgroupresourcequotas.quota.biz.group nlp is missing" in form.words
        fields = {"hard:limits.cpu": "+2", "owner": "", "contact": "", "step": "preview"}
        page = await browsers[name].post("/groups/nlp/edit", fields)
        assert page.status == status, page.words
        if status == 200:
            await browsers[name].post("/groups/nlp/edit", to_apply(page))
        stored = await admin.get(GROUPS, "nlp")
        assert str(stored["spec"]["hard"]["limits.cpu"]) == amount
    assert (await browsers["web-nobody"].get("/groups/nlp/edit")).status == 404
    managers = {entry["manager"] for entry in stored["metadata"]["managedFields"]}
    assert "bizrq-web" in managers
