"""Four people use every verb with their own rights: it works, or it names the right that is missing.

A developer has `edit` in a namespace. A lead may read the groups of one subtree, as `bizrq allow --read` gives it. An
administrator of bizrq has `bizrq-admin` and `view`. Finance reads with `bizrq-viewer`. Nothing that a person is told
differs from what the administrator of the cluster is told, unless it says that it is unknown.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.builtin import builtin_catalog
from bizrq.cli import grants
from bizrq.cli.rbac import ADMIN, VIEWER, manifests
from bizrq.figures.changes.ceilings import change_ceilings, parse_ceilings
from bizrq.kube.client import KubeClient
from bizrq.settings import load
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq, CommandResult, until_interrupted
from tests.e2e.conftest import station_on
from tests.support.cluster import Cluster, Real, eventually, has_kinds, sweep
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    bound,
    deployment,
    group,
)
from tests.support.oracle import settled
from tests.support.tenant import ROLE_BINDINGS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

DEVELOPER, LEAD, PAT, FAY, CLUSTER_ADMIN = "dev", "lead", "pat", "fay", ""
#: What the lead may read, by name.
SUBTREE = ["four-ai", "four-nlp"]
GPU = "requests.nvidia.com/gpu"


class People:
    def __init__(self, bizrq: Bizrq, folder: Path) -> None:
        self._bizrq = bizrq
        self.client = bizrq.client
        self.kubeconfig = bizrq.kubeconfig
        self.folder = folder

    async def __call__(self, who: str, words: str) -> CommandResult:
        files = {"FILE": "job.yaml", "CONFIG": "config.yaml", "FOLDER": "plan"}
        given = [str(self.folder / files[word]) if word in files else word for word in words.split()]
        # usage asks no cluster, and so takes no user.
        return await self._bizrq(*given, *(["--as", who] if who and given[0] != "usage" else []))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def people(real_cluster: Real, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[People]:
    """corp > ai > nlp, each with hours; a Deployment of nlp runs in `team`."""
    folder = tmp_path_factory.mktemp("four")
    cluster = Cluster(real_cluster.version, real_cluster.kubeconfig)
    found = yaml.safe_load(Path(cluster.kubeconfig).read_text("utf-8"))
    for context in found["contexts"]:
        context["context"]["namespace"] = "four-team"
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(found), "utf-8")
    small, large = (deployment(name, "four-nlp", size, namespace="four-team") for name, size in (("s", 1), ("l", 99)))
    (folder / "job.yaml").write_text(yaml.safe_dump_all([small, large]), "utf-8")
    (folder / "config.yaml").write_text("{}", "utf-8")
    (folder / "plan").mkdir()
    planned = [
        group("four-plan", "four-nlp", cpu="2", hours="0"),
        deployment("p", "four-plan", 1, namespace="four-team"),
    ]
    (folder / "plan" / "all.yaml").write_text(yaml.safe_dump_all(planned), "utf-8")
    wanted = {VIEWER, ADMIN}
    ours = (manifest.document for manifest in manifests(load(None).registry, "bizrq-system"))
    roles = [each for each in ours if each["kind"] == "ClusterRole" and each["metadata"]["name"] in wanted]
    roles += [grants.role(name, grants.Right.READ) for name in SUBTREE]
    reads = [grants.binding(name, grants.subject(LEAD), grants.Right.READ) for name in SUBTREE]
    bindings = [*reads, bound(ADMIN, PAT), bound("view", PAT), bound(VIEWER, FAY)]
    async with station_on(cluster), KubeClient.from_kubeconfig(path) as client:
        await has_kinds(client, crds.stand_ins())
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "four-team"}})
        for role in roles:
            await client.create(CLUSTER_ROLES, role)
        for each in bindings:
            await client.create(CLUSTER_ROLE_BINDINGS, each)
        edit: Object = {**bound("edit", DEVELOPER), "kind": "RoleBinding"}
        edit["metadata"] = {**edit["metadata"], "namespace": "four-team"}
        await client.create(ROLE_BINDINGS, edit)
        await client.create(GROUPS, group("four-corp", cpu="40", hours="1000"))
        await client.create(GROUPS, group("four-ai", "four-corp", cpu="20", hours="500"))
        await client.create(GROUPS, group("four-nlp", "four-ai", cpu="8", hours="100"))
        await client.create(DEPLOYMENTS, deployment("web", "four-nlp", 2, namespace="four-team"))
        await settled(client, ["four-corp", "four-ai", "four-nlp"])
        found = People(Bizrq(path, client), folder)

        async def ready() -> bool:
            records = await found(LEAD, "report four-nlp --hours")
            return records.code == 4 and "Deployment four-team/web" in (await found(PAT, "describe four-nlp")).plain

        await eventually(ready, 60, "the records and the rights are there")
        yield found
        for each in bindings:
            await client.delete(CLUSTER_ROLE_BINDINGS, each["metadata"]["name"])
        for role in roles:
            await client.delete(CLUSTER_ROLES, role["metadata"]["name"])
        await sweep(client)


#: The exit code of each verb for developer, lead, bizrq's administrator, and finance.
VERBS: dict[str, tuple[int, int, int, int]] = {
    "status": (4, 4, 0, 4),
    "tree": (3, 3, 0, 0),
    "tree four-nlp": (3, 4, 0, 0),
    "get": (3, 3, 0, 0),
    "get four-nlp": (3, 0, 0, 0),
    "describe four-nlp": (3, 4, 4, 4),
    "report": (3, 3, 0, 0),
    "report four-nlp": (3, 4, 0, 0),
    "report --hours": (3, 3, 0, 0),
    "report four-nlp --hours": (3, 4, 0, 0),
    "report four-nlp --by workload": (3, 4, 0, 0),
    "report four-nlp --period all": (3, 3, 0, 0),
    "report four-nlp --html -": (3, 3, 0, 0),
    "forecast": (3, 3, 0, 0),
    "forecast four-nlp": (3, 4, 0, 0),
    "audit": (3, 3, 0, 0),
    "audit four-nlp": (3, 3, 0, 0),
    "correct four-nlp requests.nvidia.com/gpu=-1 --reason x --dry-run": (3, 3, 0, 3),
    "set four-nlp limits.cpu=+1 --dry-run": (3, 3, 0, 3),
    "create four-new limits.cpu=1 cash/requests.nvidia.com/gpu=0 --parent four-ai --dry-run": (3, 3, 0, 3),
    "allow ann four-nlp --dry-run": (3, 3, 3, 3),
    "fit -f FILE --config CONFIG": (4, 4, 1, 4),
    "explain four-nlp": (3, 4, 4, 4),
    "explain deployment/web": (4, 3, 4, 3),
    "explain -f FILE --config CONFIG": (4, 4, 0, 4),
    "get -l team=x": (3, 3, 0, 0),
    "allow --read ann four-nlp --dry-run": (3, 3, 3, 3),
    "fit -f FOLDER --config CONFIG": (4, 4, 0, 4),
    "usage -f FILE --config CONFIG": (0, 0, 0, 0),
    "doctor": (4, 4, 4, 4),
    "doctor --pre": (1, 1, 1, 1),
    "pause --yes --reason x": (3, 3, 3, 3),
    "resume --timeout 0": (3, 3, 3, 3),
    "install --no-wait": (3, 3, 3, 3),
    "uninstall": (3, 3, 3, 3),
    "allow ann four-nlp": (3, 3, 3, 3),
    "install --dry-run -o name": (0, 0, 0, 0),
    "uninstall --dry-run": (0, 0, 0, 0),
    "uninstall --crd": (2, 2, 2, 2),
    "uninstall --crd --dry-run": (4, 4, 0, 0),
}
_WHO = (DEVELOPER, LEAD, PAT, FAY)
_RIGHT = re.compile(r'cannot (get|list|create|watch|patch|delete) resource "[a-z./]+"')


@pytest.mark.parametrize("words", VERBS)
@pytest.mark.parametrize("who", _WHO)
async def test_a_verb_works_or_names_the_right_that_is_missing(people: People, who: str, words: str) -> None:
    result = await people(who, words)
    said = f"{who} {words}: {result.code}\n{result.out}\n{result.err}"
    assert result.code == VERBS[words][_WHO.index(who)], said
    assert "Traceback" not in result.err, said
    if result.code == 3:
        assert result.out == "", said
        assert _RIGHT.search(result.err), said
        assert result.err.count("\n") == 1, said
    if result.code == 4:
        assert re.search("may not (read|list)|[Uu]nknown", result.plain + result.err), said
    if result.code == 2:
        assert (result.out, result.err.count("\n")) == ("", 1), said
    if result.code in (0, 1):
        assert result.out, said
        assert "forbidden" not in result.out + result.err, said


@pytest.mark.parametrize(("who", "status", "words"), [
    (DEVELOPER, 404, "There is no group four-nlp that you may read."),
    (LEAD, 200, "limits.cpu"),
    (PAT, 200, "limits.cpu"),
    (FAY, 200, "limits.cpu"),
])  # fmt: skip
async def test_the_web_ui_shows_a_person_what_they_may_read(people: People, who: str, status: int, words: str) -> None:
    bizrq = Path(sys.executable).with_name("bizrq")
    process = await asyncio.create_subprocess_exec(
        *(bizrq, "web", "--kubeconfig", people.kubeconfig, "--as", who),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with until_interrupted(process) as out:
        address = (await out.readline()).decode().removeprefix("web: ").strip()
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            async with session.get(address) as entered:
                page = await entered.text()
                assert "Traceback" not in page
            async with session.get(f"{address.partition('?')[0]}groups/four-nlp") as answer:
                page = await answer.text()
    assert (answer.status, words in page) == (status, True), page


#: What a moment changes.
VOLATILE = ("resourceVersion", "lastReconcileTime", "counted", "lastTransitionTime", "exhausted")


def differences(told: Any, true: Any, at: str = "") -> list[str]:
    """Return where an answer says something else than the true one; null, a missing key and `unread` say nothing."""
    if told is None or at.rpartition(".")[2] in ("unread", *VOLATILE):
        return []
    if isinstance(told, dict) and isinstance(true, dict):
        return [text for key in told for text in differences(told[key], true.get(key, "no such key"), f"{at}.{key}")]
    if isinstance(told, list) and isinstance(true, list):
        # What may not be read is missing; nothing else is there.
        return [f"{at}[]: {one!r} is not true" for one in told if all(differences(one, other) for other in true)]
    return [] if told == true else [f"{at}: {told!r} is not {true!r}"]


FACTS = [
    "tree four-nlp",
    "tree four-ai",
    "get four-nlp",
    "describe four-nlp",
    "report four-nlp",
    "report four-nlp --hours",
    "forecast four-nlp",
    "forecast four-ai",
    "audit four-nlp",
    "explain four-nlp",
]


@pytest.mark.parametrize("words", FACTS)
@pytest.mark.parametrize("who", _WHO)
async def test_nothing_that_somebody_is_told_is_false(people: People, who: str, words: str) -> None:
    true, told = (await people(CLUSTER_ADMIN, f"{words} -o json"), await people(who, f"{words} -o json"))
    if told.code == 3:
        assert told.out == ""
        return
    found, wanted = json.loads(told.out), json.loads(true.out)
    assert differences(found, wanted) == []
    assert told.code == 4 or found is None or type(found) is dict or len(found) == len(wanted)


@pytest.mark.parametrize("verb", ["fit", "explain"])
@pytest.mark.parametrize("who", _WHO)
async def test_somebody_is_told_that_a_workload_fits_or_not_only_if_it_does(
    people: People, who: str, verb: str
) -> None:
    words = f"{verb} -f FILE --config CONFIG -o json"
    true, told = (json.loads(result.out) for result in [await people(CLUSTER_ADMIN, words), await people(who, words)])
    assert [each["fits"] for each in true] == [True, False]
    for one, other in zip(told, true, strict=True):
        assert one["fits"] in (None, other["fits"])
        assert (one["fits"] is None) == bool(one.get("unread")), one


async def test_ceilings_are_set_and_a_refusal_is_shown_as_it_is(people: People) -> None:
    """Children have their parent's budget; the webhooks decide, in a dry run too."""
    more = await people(PAT, "set four-nlp limits.cpu=+4")
    assert (more.code, more.out) == (0, "four-nlp limits.cpu: 8 -> 12, used 2\n")
    for extra in ("", " --dry-run"):
        refused = await people(PAT, f"set four-nlp limits.cpu=1k{extra}")
        assert (refused.code, refused.out) == (3, "")
        assert "limits.cpu" in refused.err, refused.err
        assert "four-ai" in refused.err, refused.err
    less = await people(PAT, "set four-nlp limits.cpu=-4 cash/requests.nvidia.com/gpu=100")
    assert less.out.splitlines()[0] == "four-nlp limits.cpu: 12 -> 8, used 2"
    # Changes by an amount that meet are all kept.
    one = parse_ceilings(["limits.cpu=+1"], relative=True)
    changes = (change_ceilings(people.client, "four-corp", one, builtin_catalog(), dry_run=False) for _ in range(3))
    await asyncio.gather(*changes)
    assert (await people.client.get(GROUPS, "four-corp"))["spec"]["hard"]["limits.cpu"] == "43"
    made = await people(
        PAT, "create four-new limits.cpu=1 cash/requests.nvidia.com/gpu=0 --parent four-ai --contact #four"
    )
    assert (made.code, made.out) == (0, "bizgroupresourcequota.quota.biz.group/four-new created\n")
    stored = await people.client.get(GROUPS, "four-new")
    hard = {"limits.cpu": "1", "cash/requests.nvidia.com/gpu": "0"}
    assert stored["spec"] == {"parentBizGroup": "four-ai", "contact": "#four", "hard": hard}
    await people.client.delete(GROUPS, "four-new")
