"""`bizrq explain KIND/NAME`: who pays for a stored workload, its cost, and whether one more replica would fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bizrq.store.groups import GROUPS
from bizrq.store.reference_resolver import NODES
from tests.cli.conftest import Bizrq, written
from tests.support.objects import (
    DEPLOYMENTS,
    PODS,
    REPLICASETS,
    ROLLOUTS,
    TFJOBS,
    deployment,
    group,
    rollout,
    template,
    tfjob,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = """\
Deployment default/chat
  It is charged to nlp.
  RESOURCE       COSTS  LEFT  HARD
  limits.cpu         4     2    10
  limits.cpu.A4      4    -1     3
  One more replica does not fit:
    limits.cpu.A4: asks for 1 more, 0 of 3 left: 2 short
    replicas: has 4, asks for 5, 4 would fit
    its parent ai does not limit it; to raise nlp (needs grant on ai):
      bizrq set nlp limits.cpu.A4=5"""


@pytest.mark.parametrize(
    "words", ["deployment/chat", "Deployment chat", "deploy/chat", "deployments.apps chat", "deploy chat -n default"]
)
async def test_a_workload_is_named_as_in_kubectl(bizrq: Bizrq, words: str) -> None:
    result = await bizrq("explain", *words.split(), width=100)
    assert (result.code, result.plain, result.err) == (0, CHAT, "")


async def test_one_more_replica_is_checked_and_a_workload_without_replicas_shows_its_cost(bizrq: Bizrq) -> None:
    search = (await bizrq("explain", "deploy/search")).plain.splitlines()
    assert search[-1] == "  One more replica fits, up to 4 replicas."
    await bizrq.client.create(TFJOBS, tfjob("train", "vision", 2))
    assert (await bizrq("explain", "tfjob/train")).plain.splitlines() == [
        "TFJob default/train",
        "  It is charged to vision.",
        "  RESOURCE                 COSTS  LEFT  HARD",
        "  limits.cpu                   2    12    20",
        "  requests.nvidia.com/gpu      2     4    12",
    ]


async def test_an_owned_object_names_the_object_that_pays(bizrq: Bizrq) -> None:
    chat = await bizrq.client.get(DEPLOYMENTS, "chat", "default")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat", "uid": chat["metadata"]["uid"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "made", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]},
        "spec": template("1")["spec"],
    }
    # Whose kind a Deployment does not make itself is trusted no more than any other.
    await bizrq.client.create(PODS, pod)
    result = await bizrq("explain", "pod/made")
    assert "so no group is charged" in result.out
    replica_set = {**pod, "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {**pod["metadata"], "name": "rs"}}
    replica_set["metadata"]["labels"] = {"app": "x"}
    replica_set["spec"] = {"selector": {"matchLabels": {"app": "x"}}, "template": template("1")}
    replica_set["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    await bizrq.client.create(REPLICASETS, replica_set)
    result = await bizrq("explain", "rs/rs")
    assert (
        result.plain.splitlines()[1]
        == "  Its owner Deployment default/chat is charged for it, in nlp: explain the owner instead."
    )


async def test_an_object_that_is_not_charged_or_not_countable_says_why(bizrq: Bizrq) -> None:
    lost, free = deployment("lost", "nobody"), deployment("free", None)
    for obj in (lost, free):
        await bizrq.client.create(DEPLOYMENTS, obj)
    await bizrq.client.create(ROLLOUTS, rollout("wrong", "vision", cpu="abc"))
    for name, expected in (
        ("deploy/lost", "It names the group nobody, which does not exist"),
        ("deploy/free", "so no group is charged"),
        ("rollout/wrong", "It cannot be counted"),
    ):
        result = await bizrq("explain", name)
        assert (result.code, expected in result.out) == (0, True), result


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("deploy/none", "there is no Deployment none in namespace default"),
        ("deploy/chat -n elsewhere", "there is no Deployment chat in namespace elsewhere"),
        ("deploy", "deploy is a kind: name the workload too, as in deployment/NAME"),
        ("pods", "pods is a kind: name the workload too, as in pod/NAME"),
        ("deploymint/chat", "deploymint is not a counted kind; the nearest of 26: deployment"),
        ("nlp vision", "nlp is a group: explain takes one at a time, or one workload as KIND/NAME"),
        ("a b c", "a b c: name one group, or one workload as KIND/NAME"),
        ("deploy/", "deploy/: name one group, or one workload as KIND/NAME"),
        ("nlp -f x", "name a group or a workload"),
    ],
)
async def test_a_bad_name_is_exit_2_in_one_line(bizrq: Bizrq, words: str, expected: str) -> None:
    result = await bizrq("explain", *words.split())
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert expected in result.err


async def test_a_group_may_be_named_with_its_kind(bizrq: Bizrq) -> None:
    plain = await bizrq("explain", "ai")
    for words in (["bizrq/ai"], ["bizrq", "ai"], ["bizgroupresourcequota.quota.biz.group/ai"]):
        assert (await bizrq("explain", *words)).out == plain.out


async def test_the_json_of_explain_has_every_figure_and_a_stable_reason(bizrq: Bizrq) -> None:
    chat = json.loads((await bizrq("explain", "deploy/chat", "-o", "json")).out)
    assert (chat["group"], chat["reason"], chat["oneMore"]["reason"]) == ("nlp", "Charged", "QuotaExceeded")
    assert chat["resources"]["limits.cpu.A4"] == {
        "unit": "millicores", "hard": 3_000, "taken": 4_000, "left": -1_000, "costs": 4_000
    }  # fmt: skip
    nlp = json.loads((await bizrq("explain", "nlp", "-o", "json")).out)
    assert nlp["path"] == ["corp", "ai", "nlp"]
    assert {name: each["reason"] for name, each in nlp["resources"].items()} == {
        "limits.cpu": "Left", "limits.cpu.A4": "OverQuota", "requests.nvidia.com/gpu": "Left",
        "cash/requests.nvidia.com/gpu": "Left",
    }  # fmt: skip
    chat_in = {"kind": "Deployment", "namespace": "default", "name": "chat", "unit": "millicores", "amount": 4_000}
    assert chat_in in nlp["resources"]["limits.cpu"]["workloads"]
    ai = json.loads((await bizrq("explain", "ai", "-o", "json")).out)
    assert ai["resources"]["limits.cpu"]["children"]["vision"]["left"] == 12_000
    assert ai["resources"]["requests.nvidia.com/gpu"]["reason"] == "NothingLeft"
    ocr = json.loads((await bizrq("explain", "ocr", "-o", "json")).out)
    assert {each["reason"] for each in ocr["resources"].values()} == {"NotCounted"}


@pytest.mark.parametrize("words", ["fit", "explain", "usage"])
async def test_a_mistyped_model_is_named_with_what_was_meant(bizrq: Bizrq, tmp_path: Path, words: str) -> None:
    typo = deployment("typo", "nlp", 1)
    typo["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": "A4x"}
    path = written(tmp_path, group("nlp", "ai", cpu="10", gpu="4", hours="100", **{"limits.cpu.A4": "3"}), typo)
    result = await bizrq(words, "-f", path)
    assert (result.code, "did you mean A4?" in " ".join(result.out.split())) == (0, True), result
    typo["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": "A4"}
    assert "did you mean" not in (await bizrq(words, "-f", written(tmp_path, typo))).out


@pytest.mark.parametrize("words", ["fit", "explain"])
async def test_the_model_of_a_node_is_known_and_no_node_stops_the_answer(
    bizrq: Bizrq, tmp_path: Path, words: str
) -> None:
    """The nodes are listed for a model that no ceiling has, whether it is mistyped or not."""
    typo = deployment("typo", "nlp", 1)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"cpu": "A5"}}}
    await bizrq.client.create(NODES, node)
    try:
        for model, is_known in (("A4x", False), ("A5", True)):
            typo["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": model}
            result = await bizrq(words, "-f", written(tmp_path, typo))
            said = "is no model of any ceiling, node or gpuModels" in " ".join(result.out.split())
            assert (result.code, result.err, said) == (0, "", not is_known), result
    finally:
        await bizrq.client.delete(NODES, "n1")


async def test_the_model_of_a_stored_workload_is_checked_and_a_refusal_is_configured(
    bizrq: Bizrq, tmp_path: Path
) -> None:
    typo = deployment("typo", "nlp", 1)
    typo["metadata"]["labels"] |= {"biz.group.resource.quota/cpu-type": "A4x"}
    await bizrq.client.create(DEPLOYMENTS, typo)
    try:
        assert "did you mean A4?" in " ".join((await bizrq("explain", "deploy/typo")).out.split())
    finally:
        await bizrq.client.delete(DEPLOYMENTS, "typo", "default")
    config = tmp_path / "config.yaml"
    config.write_text("unknownModels: deny")
    result = await bizrq("fit", "-f", written(tmp_path, typo), "--config", config, "-o", "json")
    [refused] = json.loads(result.out)
    assert (result.code, refused["reason"]) == (1, "UnknownModel")


async def test_a_workload_that_is_scaled_to_0_names_its_pods_that_are_ending(bizrq: Bizrq) -> None:
    """They are charged until they have ended, though it asks for nothing."""
    await bizrq.client.create(DEPLOYMENTS, deployment("done", "vision", 0))
    ending = [
        "deployments.apps/default/done limits.cpu=3 ending=3 until=2026-11-22T10:05:30Z",
        "deployments.apps/default/other limits.cpu=5 ending=5 until=2026-11-22T10:05:30Z",
    ]
    await bizrq.client.patch(GROUPS, "vision", {"status": {"ending": ending}}, subresource="status")
    hard = (await bizrq.client.get(GROUPS, "vision"))["spec"]["hard"]
    try:
        result = await bizrq("explain", "deploy/done", width=120)
        as_json = json.loads((await bizrq("explain", "deploy/done", "-o", "json")).out)
        await bizrq.client.patch(GROUPS, "vision", {"spec": {"hard": {"limits.cpu": "1"}}})
        over = await bizrq("explain", "deploy/done", width=120)
        over_as_json = json.loads((await bizrq("explain", "deploy/done", "-o", "json")).out)
    finally:
        await bizrq.client.patch(GROUPS, "vision", {"spec": {"hard": hard}})
        await bizrq.client.patch(GROUPS, "vision", {"status": {"ending": None}}, subresource="status")
    said = "3 pods of deployments.apps/default/done are ending (limits.cpu=3) until 10:05:30"
    assert result.plain.splitlines()[:4] == [
        "Deployment default/done",
        "  It is charged to vision.",
        "  It asks for no resource that vision limits.",
        f"  Besides that, {said}.",
    ]
    assert (as_json["ending"], as_json["newPodsRejectedFor"]) == ([said], [])
    rejected = "  New pods of it are rejected until vision is within its quota of limits.cpu."
    assert over.plain.splitlines()[:5] == [*result.plain.splitlines()[:4], rejected]
    assert over_as_json["newPodsRejectedFor"] == ["limits.cpu"]
    assert "It uses no resource that vision limits." in (await bizrq("explain", "deploy/done")).plain
    await bizrq.client.delete(DEPLOYMENTS, "done", "default")
