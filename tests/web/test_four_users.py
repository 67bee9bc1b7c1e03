"""On a real API server, with tokens of four users: pages have what kubectl with the same token reads, and no more.

Everything that is stored has a word of its own, so that a page tells by the words which objects were read for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography.fernet import Fernet

import crds
from bizrq.api.group import API_GROUP
from bizrq.kube.client import ApiError, Forbidden, KubeClient, NotFound, Resource
from bizrq.kube.config import Endpoint, StaticCredentials, from_kubeconfig
from bizrq.store.groups import GROUPS
from bizrq.store.hours import STATEMENTS
from tests.support import accounts, audit, objects, records
from tests.support.cluster import has_kinds
from tests.support.objects import DEPLOYMENTS, NAMESPACES, Object
from tests.web.conftest import Answer, Browser, Pages, serving_at
from tests.web.test_edit import to_apply

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TREE = {"corp": "", "ai": "corp", "nlp": "ai", "vision": "ai"}
#: Where the workloads of nlp are. The lead may read those of the first.
OPEN, CLOSED = "default", "closed"
USER = "system:serviceaccount:default:web-"
PATHS = (
    *("/", "/tree", "/tree?view=table", "/tree?view=icicle", "/hours", "/hours?period=all", "/hours?view=statements"),
    *("/hours?view=audit", "/hours.csv?period=all", "/new", "/fit"),
    *(
        path.format(name)
        for name in TREE
        for path in (
            *("/groups/{}", "/groups/{}/edit", "/groups/{}/delete", "/new?parent={}", "/hours/{}?period=all"),
            *("/hours/{}?view=statements", "/hours/{}/correct", "/hours/{}/bill.csv?period=all&by=workload"),
        )
    ),
)
_RULES = """\
  - level: Metadata
"""


def words(*texts: str) -> set[str]:
    """The words by which objects can be told apart, in texts."""
    return set(re.findall(r"(?:owner|work|job)-[a-z]+", " ".join(texts)))


@dataclass
class User:
    """A user with a token, once as kubectl has it and once in a browser."""

    name: str
    kubectl: KubeClient
    browser: Browser


@dataclass
class Four:
    """Four users before one API server, and the file of its audit log."""

    admin: KubeClient
    log: Path
    users: dict[str, User] = field(default_factory=dict)

    def __iter__(self):
        return iter(self.users.values())

    def __getitem__(self, name: str) -> User:
        return self.users[name]


async def token(admin: KubeClient, name: str, *roles: Object) -> str:
    """Return a token of a service account that is bound to these ClusterRoles."""
    for role in roles:
        await admin.create(objects.CLUSTER_ROLES, role)
    return await accounts.bearer(admin, f"web-{name}", *(role["metadata"]["name"] for role in roles))


def role(name: str, api_group: str, resources: Sequence[str], *verbs: str) -> Object:
    made = objects.cluster_role(name, *verbs)
    made["rules"][0] |= {"apiGroups": [api_group], "resources": list(resources)}
    return made


async def plant(admin: KubeClient) -> None:
    """Store groups with owners, a workload in each of two namespaces, and a statement of each group."""
    await has_kinds(admin, crds.load())
    await admin.create(NAMESPACES, objects.namespace(CLOSED))
    for name, parent in TREE.items():
        made = objects.group(name, parent, cpu="10", hours="100")
        made["spec"]["owner"] = f"owner-{name}"
        stored = await admin.create(GROUPS, made)
        hard = stored["spec"]["hard"]
        stored["status"] = {"hard": hard, "used": dict.fromkeys(hard, "0"), "selfUsed": dict.fromkeys(hard, "0")}
        await admin.replace(GROUPS, stored, subresource="status")
        line = records.spent(f"jobs.batch/default/job-{name}", "gpu=1")
        await records.stored(admin, records.statement(name, records.W1, records.W2, line))
    for where in (OPEN, CLOSED):
        await admin.create(DEPLOYMENTS, objects.deployment(f"work-{where}", "nlp", 1, namespace=where))


async def tokens(admin: KubeClient) -> dict[str, str]:
    """The four: all that bizrq has, a group and a namespace, all groups, nothing."""
    lead = await token(admin, "lead", objects.cluster_role("web-lead", "get", "list", "watch", "patch", names=["nlp"]))
    await admin.create(objects.CLUSTER_ROLES, role("web-work", "apps", ["deployments"], "get", "list"))
    of_lead = objects.bound("web-work", "lead") | {
        "kind": "RoleBinding",
        "subjects": [{"kind": "ServiceAccount", "name": "web-lead", "namespace": "default"}],
    }
    bindings = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
    await admin.create(bindings, {**of_lead, "metadata": {"name": "web-lead", "namespace": OPEN}})
    everything = [role("web-admin", API_GROUP, ["*"], "*"), role("web-admin-work", "apps", ["*"], "*")]
    return {
        "admin": await token(admin, "admin", *everything),
        "lead": lead,
        "reader": await token(admin, "reader", objects.cluster_role("web-reader", "get", "list", "watch")),
        "nobody": await token(admin, "nobody"),
    }


@asynccontextmanager
async def before(pages: Pages, server: Endpoint, bearers: Mapping[str, str]) -> AsyncIterator[dict[str, User]]:
    async with AsyncExitStack() as stack:
        users: dict[str, User] = {}
        for name, bearer in bearers.items():
            endpoint = Endpoint(server.server, StaticCredentials({"token": bearer}), server.ca)
            kubectl = await stack.enter_async_context(KubeClient(endpoint))
            users[name] = User(name, kubectl, await pages.signed_in(bearer))
        yield users


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Four]:
    folder = tmp_path_factory.mktemp("four")
    (folder / "current").write_bytes(Fernet.generate_key())
    real, log = audit.audited(folder, _RULES)
    await asyncio.to_thread(real.start)
    try:
        known = from_kubeconfig(real.kubeconfig)
        server = Endpoint(known.server, StaticCredentials({}), known.ca)
        async with KubeClient.from_kubeconfig(real.kubeconfig) as admin:
            await plant(admin)
            bearers = await tokens(admin)
            async with serving_at(server, folder) as pages, before(pages, server, bearers) as users:
                yield Four(admin, log, users)
    finally:
        await asyncio.to_thread(real.stop)


async def readable(client: KubeClient) -> tuple[set[str], set[str]]:
    """Return the groups that a user may read, and the words in all that they may read."""
    texts: list[str] = []
    groups: set[str] = set()
    for name in TREE:
        try:
            texts.append(str(await client.get(GROUPS, name)))
            groups.add(name)
        except Forbidden:
            continue
    for resource, namespace in ((STATEMENTS, None), (DEPLOYMENTS, OPEN), (DEPLOYMENTS, CLOSED)):
        try:
            listed, _ = await client.list(resource, namespace)
            texts.append(str(listed))
        except Forbidden:
            continue
    return groups, words(*texts)


async def test_pages_have_what_the_same_token_reads(four: Four) -> None:
    for user in four:
        assert f"{USER}{user.name}" in (await user.browser.get("/")).words
        groups, allowed = await readable(user.kubectl)
        read = [await user.browser.get(path) for path in PATHS]
        assert {page.status for page in read} <= {200, 403, 404}
        text = "".join(page.text for page in read)
        assert words(text) == allowed, user.name
        linked = {name for name in TREE if re.search(rf'href="/groups/{name}["?]', text)}
        opened = {name for name in TREE if (await user.browser.get(f"/groups/{name}")).status == 200}
        assert linked == opened == groups, user.name
        for where in (OPEN, CLOSED):
            # The page has the name that was asked for, whoever asks; the cost is the workload's.
            explained = await user.browser.get(f"/fit?what=deployment/work-{where}&namespace={where}")
            is_read = f"work-{where}" in allowed
            assert ("limits.cpu 1" in explained.words) == is_read, (user.name, explained.words)


async def typed(browser: Browser, path: str, fields: Mapping[str, str]) -> Answer:
    """Preview a form and apply it; return the page where that ends."""
    form = await browser.get(path)
    base = {"base": form.field("base")} if 'name="base"' in form.text else {}
    page = await browser.post(path, {**base, **fields, "step": "preview"})
    return await browser.post(path, to_apply(page)) if 'value="apply"' in page.text else page


async def said(request: Any) -> str:
    """What an API server says to a request: nothing where it is done."""
    try:
        await request
    except ApiError as error:
        return error.message
    return ""


async def test_writes_end_as_those_with_the_same_token(four: Four) -> None:
    """Changed, created and deleted: by kubectl with dry runs, and then on pages in earnest."""
    for user in four:
        for amount in ("11", "1x"):
            by_kubectl = await said(
                user.kubectl.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": amount}}}, dry_run=True)
            )
            before = (await four.admin.get(GROUPS, "nlp"))["spec"]
            page = await typed(user.browser, "/groups/nlp/edit", {"hard:limits.cpu": amount, "owner": "owner-nlp"})
            after = (await four.admin.get(GROUPS, "nlp"))["spec"]
            assert (after != before) == ("done=" in page.url.path_qs) == (not by_kubectl), (user.name, page.words)
            if user.name == "nobody":
                assert page.status == 404
            elif amount != "1x":
                assert by_kubectl in page.words, (user.name, by_kubectl)
            await four.admin.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": "10"}}})

        made = objects.group(f"new-{user.name}", "ai", cpu=1)
        by_kubectl = await said(user.kubectl.create(GROUPS, made, dry_run=True))
        page = await typed(
            user.browser, "/new", {"name": made["metadata"]["name"], "parent": "ai", "hard:limits.cpu": "1"}
        )
        assert by_kubectl in page.words, (user.name, by_kubectl)
        is_stored = await exists(four.admin, f"new-{user.name}")
        assert is_stored == ("done=" in page.url.path_qs) == (not by_kubectl)

        await four.admin.create(GROUPS, objects.group(f"old-{user.name}", "", cpu=1))
        path = f"/groups/old-{user.name}/delete"
        by_kubectl = await said(
            user.kubectl.request("DELETE", GROUPS.path(None, f"old-{user.name}"), params={"dryRun": "All"})
        )
        if user.name in ("admin", "reader"):
            await user.browser.reads(f"/groups/old-{user.name}", "old-")
        page = await user.browser.get(path)
        uid = (await four.admin.get(GROUPS, f"old-{user.name}"))["metadata"]["uid"]
        await user.browser.get("/new")
        page = await user.browser.post(path, {"uid": uid})
        assert await exists(four.admin, f"old-{user.name}") == bool(by_kubectl), user.name
        if user.name == "reader":
            assert by_kubectl in page.words


async def exists(client: KubeClient, name: str) -> bool:
    try:
        await client.get(GROUPS, name)
    except NotFound:
        return False
    return True


async def test_the_audit_log_names_nobody_but_who_looks_and_writes(four: Four) -> None:
    """Everybody looks at every page at once, and whoever may changes a group."""
    begun = len(audit.events(four.log))

    async def look(user: User) -> None:
        for path in PATHS:
            await user.browser.get(path)

    await asyncio.gather(*map(look, four))
    for name in ("lead", "admin"):
        page = await typed(four[name].browser, "/groups/nlp/edit", {"hard:limits.cpu": "+1", "owner": "owner-nlp"})
        assert "done=" in page.url.path_qs, page.words
    found = [each for each in audit.events(four.log, begun) if each["userAgent"].startswith("bizrq/")]
    assert {each["user"]["username"] for each in found} == {f"{USER}{user.name}" for user in four}
    assert not [each for each in found if "impersonatedUser" in each]
    written = [
        (each["user"]["username"].removeprefix(USER), "dryRun=All" in each["requestURI"])
        for each in found
        if each["verb"] == "patch"
    ]
    assert written == [("lead", True), ("lead", False), ("admin", True), ("admin", False)]
    # Whoever may list all groups has one watch of them for all; who reads for whom is in the log, too.
    assert {each["verb"] for each in found if each["user"]["username"] == f"{USER}nobody"} <= {"create", "get", "list"}
