"""Every verb works with the rights that it needs and no more, and names what it could not read."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.api.hours import page_name
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS
from tests.cli.conftest import Bizrq, CommandResult, until_interrupted, written
from tests.support.answering import answering
from tests.support.cluster import Real, eventually, has_kinds
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    NAMESPACES,
    Object,
    bound,
    cluster_role,
    deployment,
    group,
)
from tests.support.records import record, stored
from tests.support.tenant import ROLE_BINDINGS
from tests.webhooks.conftest import Api

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real]

#: `edit` in the namespace `team` and nothing else; the same and `get` on nlp; nothing at all.
EDITOR, READER, NOBODY = "ed", "rea", "nobody-in-particular"
#: `get`, `list` and `watch` on nlp alone, as `bizrq allow --read` gives it.
WATCHER = "wat"
OUTSIDE = "workloads outside namespace team"


class People:
    """Run a verb as somebody, in the namespace `team`."""

    def __init__(self, bizrq: Bizrq) -> None:
        self._bizrq = bizrq
        self.client = bizrq.client
        self.kubeconfig = bizrq.kubeconfig

    async def __call__(self, who: str, *words: object) -> CommandResult:
        return await self._bizrq(*words, "--as", who)

    async def start(self, who: str, *words: str) -> asyncio.subprocess.Process:
        """Start a verb as a process of its own, for one that ends by a signal."""
        flags = ["--as", who, "--kubeconfig", str(self._bizrq.kubeconfig)]
        program = Path(sys.executable).with_name("bizrq")
        return await asyncio.create_subprocess_exec(program, *words, *flags, stdout=asyncio.subprocess.PIPE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def people(real_cluster: Real, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[People]:
    """ai > nlp, and ai > cv; nlp has nothing left. A Deployment of nlp runs in `team`, another one elsewhere."""
    folder = tmp_path_factory.mktemp("people")
    found = yaml.safe_load(real_cluster.kubeconfig.read_text("utf-8"))
    for context in found["contexts"]:
        context["context"]["namespace"] = "team"
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(found), "utf-8")
    async with KubeClient.from_kubeconfig(path) as client:
        await has_kinds(client, crds.load())
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        api = Api(client)
        await api.group("ai", cpu="20", used={"cpu": "10"})
        asked = group("nlp", "ai", cpu="4")
        asked["spec"] |= {"owner": "Ann", "contact": "#nlp-quota"}
        await client.create(GROUPS, asked)
        await api.count("nlp", cpu="4")
        await api.group("cv", "ai", cpu="6")
        for namespace, name in (("team", "web"), ("default", "far")):
            await client.create(DEPLOYMENTS, _in(namespace, deployment(name, "nlp", 2)))
        by_name = cluster_role("watches-nlp", "get", "list", "watch", names=["nlp", "cv"])
        roles: list[Object] = [cluster_role("reads-nlp", "get", names=["nlp"]), by_name]
        for each in roles:
            await client.create(CLUSTER_ROLES, each)
        await client.create(CLUSTER_ROLE_BINDINGS, bound("reads-nlp", READER))
        await client.create(CLUSTER_ROLE_BINDINGS, bound("watches-nlp", WATCHER))
        for who in (EDITOR, READER):
            edit = {**bound("edit", who), "kind": "RoleBinding"}
            edit["metadata"] = {**edit["metadata"], "namespace": "team"}
            await client.create(ROLE_BINDINGS, edit)
        async with answering(client, folder):
            found = People(Bizrq(path, client))

            async def counts() -> bool:
                # Kubernetes' own controller adds the rules of `view` to `edit`.
                return "Deployment team/web" in (await found(READER, "describe", "nlp")).plain

            await eventually(counts, 60, "the rights count")
            yield found
        from bizrq.kube.admission import REGISTRATIONS

        await client.delete(REGISTRATIONS, "bizrq")
        # Other modules have groups and people of these names on the same server.
        for namespace, name in (("team", "web"), ("default", "far")):
            await client.delete(DEPLOYMENTS, name, namespace)
        for each in ("reads-nlp", "watches-nlp"):
            await client.delete(CLUSTER_ROLES, each)
        for each, who in (("reads-nlp", READER), ("watches-nlp", WATCHER)):
            await client.delete(CLUSTER_ROLE_BINDINGS, bound(each, who)["metadata"]["name"])
        for who in (EDITOR, READER):
            await client.delete(ROLE_BINDINGS, bound("edit", who)["metadata"]["name"], "team")
        await client.delete(NAMESPACES, "team")
        for name in ("nlp", "cv", "ai"):
            await client.delete(GROUPS, name)


def _in(namespace: str, obj: Object) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


async def test_one_group_is_read_with_get_on_it_alone(people: People) -> None:
    result = await people(READER, "get", "nlp", "-o", "wide")
    assert (result.code, result.err) == (0, "")
    assert result.plain.splitlines()[1].split()[:2] == ["nlp", "ai"]
    assert "Ann, #nlp-quota" in result.plain
    assert json.loads((await people(READER, "get", "nlp", "-o", "json")).out)["metadata"]["name"] == "nlp"


async def test_one_group_is_watched_by_whoever_may_watch_it_alone(people: People) -> None:
    assert (await people(WATCHER, "get")).code == 3
    process = await people.start(WATCHER, "get", "nlp", "--watch", "-o", "name")
    async with until_interrupted(process) as out:
        assert await out.readline() == b"bizgroupresourcequota.quota.biz.group/nlp\n"
        await people.client.patch(GROUPS, "cv", {"metadata": {"labels": {"seen": "no"}}})
        await people.client.patch(GROUPS, "nlp", {"metadata": {"labels": {"seen": "yes"}}})
        assert await out.readline() == b"bizgroupresourcequota.quota.biz.group/nlp\n"


async def test_several_groups_are_watched_by_whoever_may_watch_them_alone(people: People) -> None:
    lines = [f"bizgroupresourcequota.quota.biz.group/{name}\n".encode() for name in ("cv", "nlp")]
    process = await people.start(WATCHER, "get", "nlp", "cv", "--watch", "-o", "name")
    async with until_interrupted(process) as out:
        assert [await out.readline() for _ in lines] == lines
        await people.client.patch(GROUPS, "cv", {"metadata": {"labels": {"seen": "yes"}}})
        assert [await out.readline() for _ in lines] == lines
    refused = await people(WATCHER, "get", "nlp", "ai", "--watch", "-o", "name")
    assert (refused.code, refused.out, refused.err.count("\n")) == (3, "", 1)
    assert '"ai" is forbidden: User "wat" cannot list resource "bizgroupresourcequotas"' in refused.err
    assert refused.err.endswith("; ask an administrator to run: bizrq allow --read USER ai\n")


async def test_of_several_groups_those_are_shown_that_may_be_read(people: People) -> None:
    result = await people(READER, "get", "nlp", "cv", "-o", "name")
    assert result.out == "bizgroupresourcequota.quota.biz.group/nlp\n"
    assert (result.code, result.err) == (4, "bizrq: you may not read group cv: it is not shown\n")


@pytest.mark.parametrize("verb", ["get nlp", "tree nlp", "describe nlp", "explain nlp", "report nlp"])
async def test_without_a_right_the_verb_names_the_right_that_is_missing(people: People, verb: str) -> None:
    result = await people(EDITOR, *verb.split())
    assert (result.code, result.out) == (3, "")
    assert result.err.count("\n") == 1
    assert 'bizgroupresourcequotas.quota.biz.group "nlp" is forbidden: User "ed" cannot get' in result.err
    assert result.err.endswith("; ask an administrator to run: bizrq allow --read USER nlp\n")


@pytest.mark.parametrize("verb", ["get", "tree", "report"])
async def test_a_list_that_may_not_be_read_says_what_to_do(people: People, verb: str) -> None:
    result = await people(READER, verb)
    assert (result.code, result.out) == (3, "")
    assert result.err.endswith("; name a group that you may read, or ask for the role bizrq-viewer\n")


@pytest.mark.parametrize("verb", ["tree", "report"])
async def test_a_subtree_shows_the_group_and_says_that_what_is_below_is_unknown(people: People, verb: str) -> None:
    result = await people(READER, verb, "nlp")
    assert result.code == 4
    assert "nlp" in result.plain
    said = "you may not read the list of groups: whether there are groups below nlp is unknown"
    assert result.err == f"bizrq: {said}\n"
    if verb == "tree":
        [found] = json.loads((await people(READER, "tree", "nlp", "-o", "json")).out)
        assert found["children"] is None, "unknown is not none"


async def test_describe_never_says_none_of_what_it_could_not_read(people: People) -> None:
    result = await people(READER, "describe", "nlp")
    assert result.code == 4
    assert "Group:      … > ai > nlp" in result.plain
    assert "Children:\n  unknown: you may not list groups" in result.plain
    assert "Contact:    Ann, #nlp-quota" in result.plain
    assert "Deployment team/web: " in result.plain
    assert "default/far" not in result.plain
    assert f"others unknown: you may not read {OUTSIDE}, " in result.plain
    assert "unknown: you may not read events in namespace default" in result.plain
    assert ": none" not in result.plain
    [found] = json.loads((await people(READER, "describe", "nlp", "-o", "json")).out)
    assert (found["children"], found["events"]) == (None, None)
    assert OUTSIDE in found["unread"]


async def test_explain_says_whom_to_ask_and_what_is_unknown(people: People) -> None:
    result = await people(READER, "explain", "nlp")
    assert result.code == 4
    assert result.plain.startswith("… > ai > nlp\n")
    assert "Deployment team/web" in result.plain
    assert "some that you may not read" in result.plain
    assert "what its parent ai has left is unknown: you may not read it; ask who manages it" in result.plain


async def test_a_workload_is_explained_with_the_rights_of_its_namespace(people: People) -> None:
    known = await people(READER, "explain", "deployment/web")
    assert "It is charged to nlp." in known.plain
    unknown = await people(EDITOR, "explain", "deployment/web")
    assert unknown.code == 4
    assert "It is charged to nlp, which you may not read: what that has left is unknown." in unknown.plain
    assert "does not exist" not in unknown.plain


async def test_fit_answers_with_get_on_the_group_and_is_unknown_without_it(people: People, tmp_path: Path) -> None:
    """The configuration of the installation is unknown to both, and so is which rights are asked for."""
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    one, many = _in("team", deployment("small", "nlp", 1, cpu="0")), _in("team", deployment("large", "nlp", 9))
    gone = _in("team", deployment("lost", "none-of-this-name", 1))
    path = written(tmp_path, many)
    known = await people(READER, "fit", "-f", path, "--config", config)
    assert (known.code, known.err) == (1, "")
    assert known.plain.startswith("no   Deployment team/large, in nlp")
    unknown = await people(EDITOR, "fit", "-f", path, "--config", config, "-o", "json")
    [answer] = json.loads(unknown.out)
    assert (unknown.code, answer["fits"], answer["unread"]) == (4, None, ["group nlp"])
    # That the group does not exist is no answer: it may.
    assert (answer["reason"], answer["message"]) == (None, None)
    for verb in ("fit", "explain"):
        said = (await people(EDITOR, verb, "-f", path, "--config", config)).plain
        assert "it depends on group nlp, which you may not read" in said, said
        assert "without that" not in said, said
        assert "does not exist" not in said, said
    assert (await people(READER, "fit", "-f", written(tmp_path, one), "--config", config)).code == 0
    # Whether a group exists that they may not read is unknown, too.
    assert (await people(READER, "fit", "-f", written(tmp_path, gone), "--config", config)).code == 4
    child = await people(READER, "fit", "-f", written(tmp_path, group("new", "cv", cpu="1")), "--config", config)
    assert (child.code, "unknown" in child.plain) == (4, True)


async def test_somebody_without_any_right_is_told_nothing_false(people: People, tmp_path: Path) -> None:
    path = written(tmp_path, _in("team", deployment("web", "nlp", 1)))
    result = await people(NOBODY, "fit", "-f", path)
    assert result.code == 4
    assert result.plain.startswith("unknown Deployment team/web")
    assert "fits" not in result.plain


async def test_no_ceiling_is_denied_where_not_all_groups_may_be_read(people: People, tmp_path: Path) -> None:
    new, stored = (_in("team", deployment(name, "nlp", 1)) for name in ("new", "stored"))
    for each in (new, stored):
        each["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": "A4"}
    path = written(tmp_path, new)
    await people.client.create(DEPLOYMENTS, stored)
    try:
        for who in (EDITOR, READER):
            for words in (["fit", "-f", path], ["explain", "-f", path], ["explain", "deployment/stored"]):
                said = " ".join((await people(who, *words)).plain.split())
                assert "no ceiling limits it" not in said, said
                assert "whether a ceiling limits 'A4' is unknown: not all groups are read" in said, (who, words, said)
    finally:
        await people.client.delete(DEPLOYMENTS, "stored", "team")


async def test_who_reads_a_group_that_was_made_anew_is_told_to_ask_again(people: People) -> None:
    """The role of bizrq allow names the pages of the record that the group had."""
    client, refused = people.client, "; ask an administrator to run: bizrq allow --read USER cv\n"
    admin = Bizrq(people.kubeconfig, client)
    assert (await admin("allow", "--read", "rob", "cv")).code == 0
    await stored(client, record("cv", {"pages": 2}))

    async def told() -> bool:
        result = await people("rob", "report", "cv", "--hours")
        return (result.code, result.err.endswith(refused)) == (3, True)

    await eventually(told, what="the second page may not be read")
    page = record("cv", {}, page=1)
    page["metadata"]["name"] = page_name("cv", "uid-of-cv", 1)
    await stored(client, page)
    assert (await admin("allow", "--read", "rob", "cv")).code == 0

    async def read() -> bool:
        result = await people("rob", "report", "cv", "--hours")
        return "No hours that you may read" in result.out and "ask an administrator" not in result.err

    await eventually(read, what="the new pages may be read")
    for name in ("cv", page["metadata"]["name"]):
        await client.delete(CARD_HOURS, name)
    for resource, made in ((CLUSTER_ROLES, "bizrq-read-cv"), (CLUSTER_ROLE_BINDINGS, None)):
        stale, _ = await client.list(resource, label_selector="quota.biz.group/group=cv")
        for each in stale:
            assert made in (None, each["metadata"]["name"])
            await client.delete(resource, each["metadata"]["name"])
