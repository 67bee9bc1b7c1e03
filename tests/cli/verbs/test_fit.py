"""The output of `bizrq fit` and `bizrq explain -f`; tests/webhooks/test_fit.py compares them with admission."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq, written
from tests.support.objects import (
    CLAIMS,
    CRONJOBS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    ROLLOUTS,
    claim,
    cronjob,
    deployment,
    device_class,
    elastic,
    group,
    inference_service,
    node,
    rollout,
    scaled_job,
    sharing,
    tfjob,
)
from tests.webhooks.conftest import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIT = """\
fits Deployment default/first, in vision, up to 12 replicas
no   Deployment default/second, in vision
     limits.cpu: asks for 3 more, 2 of 20 left: 1 short
     replicas: asks for 3, 2 would fit
     its parent ai has limits.cpu 30 left; to raise vision (needs grant on ai):
       bizrq set vision limits.cpu=21
     its sibling nlp has limits.cpu 2 left
no   Deployment default/chat, in nlp
     limits.cpu: asks for 5 more, 2 of 10 left: 3 short
     replicas: has 4, asks for 9, 6 would fit
     its parent ai has limits.cpu 30 left; to raise nlp (needs grant on ai):
       bizrq set nlp limits.cpu=13
fits Deployment default/less, in vision, up to 2 replicas
no   Deployment default/lost, in nobody
     quota nobody does not exist: create the group, or correct the label
fits Deployment default/free, charged to no group"""


def manifests(folder: Path) -> Path:
    return written(
        folder,
        deployment("first", "vision", 10),
        deployment("second", "vision", 3),
        deployment("chat", "nlp", 9),
        deployment("less", "vision", 2),
        deployment("lost", "nobody"),
        deployment("free", None),
    )


@pytest.mark.parametrize("width", [80, 160, None])
async def test_fit_lists_missing_amounts_and_groups_that_have_them_left(
    bizrq: Bizrq, tmp_path: Path, width: int | None
) -> None:
    """Manifests are checked in order: what the first takes is not left for the second."""
    result = await bizrq("fit", "-f", manifests(tmp_path), width=width)
    assert (result.code, result.plain, result.err) == (1, FIT, "")


async def test_the_json_of_fit(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("fit", "-f", manifests(tmp_path), "-o", "json")
    first, second, *_ = json.loads(result.out)
    assert first == {
        "kind": "Deployment", "namespace": "default", "name": "first", "group": "vision", "fits": True,
        "reason": None, "message": None, "violations": [], "maxReplicas": 12, "couldHelp": [], "warnings": [],
        "unread": [], "later": [],
        "resources": {
            "limits.cpu": {
                "unit": "millicores", "hard": 20_000, "taken": 8_000, "left": 12_000, "asks": 10_000, "had": 0
            }
        },
    }  # fmt: skip
    assert second["violations"] == [
        {
            "resource": "limits.cpu", "unit": "millicores", "requested": 3_000, "used": 18_000, "hard": 20_000,
            "left": 2_000, "short": 1_000,
        }
    ]  # fmt: skip
    assert second["reason"] == "QuotaExceeded"
    left = {"limits.cpu": {"unit": "millicores", "amount": 30_000}}
    assert second["couldHelp"][0] == {"group": "ai", "relation": "parent", "left": left}
    assert (result.code, second["fits"], second["maxReplicas"]) == (1, False, 2)
    assert second["message"].startswith("exceeded quota: vision, requested: limits.cpu=3,")


async def test_everything_that_fits_is_exit_0_and_scaling_down_always_fits(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("fit", "-f", written(tmp_path, deployment("chat", "nlp", 3)))
    assert (result.code, result.plain) == (0, "fits Deployment default/chat, in nlp")


async def test_omitted_replicas_are_those_of_the_stored_object(bizrq: Bizrq, tmp_path: Path) -> None:
    """`kubectl apply` keeps them too, so that an autoscaler can decide."""
    chat = deployment("chat", "nlp", 1, cpu="2")
    del chat["spec"]["replicas"]
    [answer] = json.loads((await bizrq("fit", "-f", written(tmp_path, chat), "-o", "json")).out)
    [violation] = answer["violations"]
    assert (violation["requested"], violation["used"], violation["hard"]) == (4_000, 8_000, 10_000)


async def test_groups_in_the_file_are_admitted_first_and_then_charged(bizrq: Bizrq, tmp_path: Path) -> None:
    """They are treated as stored and counted before the workloads."""
    hours = {"hours": "0", "gpu": "0"}
    path = written(
        tmp_path,
        group("speech", "ai", cpu="25", **hours),
        group("music", "ai", cpu="6", **hours),
        deployment("talk", "speech", 20),
        deployment("more", "speech", 6),
    )
    result = await bizrq("fit", "-f", path)
    assert result.plain.splitlines()[:3] == [
        "fits BizGroupResourceQuota speech, in ai",
        "no   BizGroupResourceQuota music, in ai",
        "     limits.cpu: asks for 6 more, 5 of 60 left: 1 short",
    ]
    assert "fits Deployment default/talk, in speech, up to 25 replicas" in result.plain
    assert "no   Deployment default/more, in speech" in result.plain


async def test_pods_that_are_ending_are_named_before_who_could_help(bizrq: Bizrq, tmp_path: Path) -> None:
    """Whoever waits for them needs nothing from anybody."""
    ending = ["deployments.apps/default/chat limits.cpu=5 ending=5 until=2026-11-22T10:05:30Z"]
    await bizrq.client.patch(GROUPS, "nlp", {"status": {"ending": ending}}, subresource="status")
    try:
        result = await bizrq("fit", "-f", written(tmp_path, deployment("more", "nlp", 5)))
    finally:
        await bizrq.client.patch(GROUPS, "nlp", {"status": {"ending": None}}, subresource="status")
    _, short, named, *_ = result.plain.splitlines()
    assert short.strip() == "limits.cpu: asks for 5 more, 2 of 10 left: 3 short"
    assert (
        " ".join(result.plain.split()).count(
            "5 pods of deployments.apps/default/chat are ending (limits.cpu=5) until 10:05:30; "
            "the same request passes once they have gone"
        )
        == 1
    ), result.plain
    assert named.strip().startswith("5 pods of deployments.apps/default/chat are ending")


async def test_the_namespace_flag_applies_to_manifests_without_a_namespace(bizrq: Bizrq, tmp_path: Path) -> None:
    """The namespace's default group pays for a workload without a label."""
    labels = {"biz.group.resource.quota": "vision"}
    metadata = {"name": "team-v", "labels": labels}
    await bizrq.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    web = deployment("web", None, 13)
    del web["metadata"]["namespace"]
    result = await bizrq("fit", "-f", written(tmp_path, web), "-n", "team-v")
    assert result.plain.startswith("no   Deployment team-v/web, in vision\n     limits.cpu: asks for 13 more, 12 of 20")


EXPLAIN = """\
Deployment default/chat
  It is charged to nlp.
  RESOURCE       ASKS  HAD  LEFT  HARD
  limits.cpu        9    4     2    10
  limits.cpu.A4     0    4    -1     3
  It does not fit:
    limits.cpu: asks for 5 more, 2 of 10 left: 3 short
    replicas: has 4, asks for 9, 6 would fit
    its parent ai has limits.cpu 30 left; to raise nlp (needs grant on ai):
      bizrq set nlp limits.cpu=13
    its sibling vision has limits.cpu 12 left"""


async def test_explain_names_the_payer_of_a_manifest_or_why_there_is_none(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("explain", "-f", written(tmp_path, deployment("chat", "nlp", 9)), width=80)
    assert (result.code, result.plain, result.err) == (0, EXPLAIN, "")
    result = await bizrq("explain", "-f", "-", stdin=manifests(tmp_path).read_text())
    assert (
        "Neither it nor its namespace has the label biz.group.resource.quota, so no group is charged." in result.plain
    )


async def test_warnings_are_below_their_manifest_and_in_the_json(bizrq: Bizrq, tmp_path: Path) -> None:
    path = written(tmp_path, deployment("web", "vision", namespace="nowhere"))
    for width in (60, None):
        result = await bizrq("fit", "-f", path, width=width)
        assert result.plain.splitlines()[1:] == ["     warning: there is no namespace nowhere: create it first"]
    [item] = json.loads((await bizrq("fit", "-f", path, "-o", "json")).out)
    assert item["warnings"] == ["there is no namespace nowhere: create it first"]
    assert "  warning: there is no namespace nowhere" in (await bizrq("explain", "-f", path)).out


async def test_an_unreadable_manifest_is_one_line(bizrq: Bizrq, tmp_path: Path, nowhere: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    deep = tmp_path / "deep.yaml"
    deep.write_text("[" * 100_000)
    good = written(tmp_path, deployment("web", "nlp"))
    for arguments, code, expected in (
        (["-f", tmp_path / "none.yaml"], 2, "none.yaml: No such file or directory"),
        (["-f", bad], 2, "bad.yaml: not YAML: "),
        (["-f", deep], 2, "deep.yaml: nested more than 100 levels deep"),
        (["-f", good, "--config", bad], 2, "bad.yaml: not YAML: "),
        (["-f", good, "--config", deep], 2, "deep.yaml: nested more than 100 levels deep"),
        (["-f", good, "--kubeconfig", nowhere], 3, "http://127.0.0.1:1"),
        (["-f", good, "--context", "other"], 2, "other"),
    ):
        for verb in ("fit", "explain"):
            result = await bizrq(verb, *arguments)
            assert (result.code, result.out) == (code, ""), result
            assert result.err.startswith("bizrq: ")
            assert expected in result.err
            assert result.err.count("\n") == 1
    assert (await bizrq("explain")).err == "bizrq: name a group or a workload (KIND/NAME), or pass manifests with -f\n"
    assert (await bizrq("fit")).code == 2


async def test_a_folder_stands_for_its_manifests(bizrq: Bizrq, tmp_path: Path) -> None:
    written(tmp_path, deployment("less", "vision"))
    assert (await bizrq("fit", "-f", tmp_path)).plain == "fits Deployment default/less, in vision, up to 12 replicas"
    (tmp_path / "manifests.yaml").unlink()
    assert "no .json, .yaml, .yml files in this folder" in (await bizrq("fit", "-f", tmp_path)).err


async def test_the_user_of_the_command_needs_the_right_to_charge(bizrq: Bizrq, tmp_path: Path) -> None:
    """The right depends on `namespaceSelector`, and on the verb `use` if the configuration requires it."""
    only = group("picky", "ai", cpu="5", hours="0", gpu="0")
    only["spec"]["namespaceSelector"] = {"matchLabels": {"team": "picky"}}
    config = tmp_path / "config"
    config.write_text("rights: {use: true}")
    path = written(tmp_path, only, deployment("web", "picky"), deployment("web2", "vision"))
    result = await bizrq("fit", "-f", path, "--config", config)
    assert "namespace default may not charge quota picky" in result.plain
    assert "fits Deployment default/web2, in vision" in result.plain


async def test_a_change_of_a_referenced_deployment_is_charged_to_its_rollout(bizrq: Bizrq, tmp_path: Path) -> None:
    """The Deployment itself is not charged; the Rollout that refers to it pays."""
    shape = deployment("shape", None, 0)
    await bizrq.client.create(DEPLOYMENTS, shape)
    user = rollout("user", "vision", 4)
    del user["spec"]["template"]
    user["spec"]["workloadRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shape"}
    await bizrq.client.create(ROLLOUTS, user)
    result = await bizrq("fit", "-f", written(tmp_path, deployment("shape", None, 0, cpu="8")))
    assert result.code == 1, result
    assert result.plain.splitlines()[:3] == [
        "no   Deployment default/shape, in vision",
        "     the charge is for Rollout default/user, which refers to Deployment shape",
        "     limits.cpu: asks for 28 more, 12 of 20 left: 16 short",
    ]


async def test_a_shared_claim_is_charged_once(bizrq: Bizrq, tmp_path: Path) -> None:
    """The first workload pays, the second needs nothing, and one of another group is rejected."""
    await Api(bizrq.client).group("lab", "corp", cpu="9", gpu="4")
    await bizrq.client.create(DEVICE_CLASSES, device_class("gpu"))
    await bizrq.client.create(CLAIMS, claim("cards", 4))
    users = [sharing(deployment(name, "lab", 1), "cards") for name in ("a", "b")]
    result = await bizrq("fit", "-f", written(tmp_path, *users))
    assert result.plain.splitlines() == [
        "fits Deployment default/a, in lab, up to 9 replicas",
        "fits Deployment default/b, in lab, up to 8 replicas",
    ]
    for user in users:
        await bizrq.client.create(DEPLOYMENTS, user)
    result = await bizrq("fit", "-f", written(tmp_path, sharing(deployment("c", "vision", 1), "cards")))
    assert "ResourceClaim 'cards' is charged to group lab, not to vision" in result.plain
    [page] = json.loads((await bizrq("describe", "lab", "-o", "json")).out)
    expected = {each["name"]: each["usage"].get("requests.nvidia.com/gpu") for each in page["workloads"]}
    assert expected == {"a": None, "b": None, "cards": {"unit": "count", "amount": 4}}


async def test_fit_and_explain_decide_safe_mode_as_admission_does(bizrq: Bizrq, tmp_path: Path) -> None:
    made = group("prudent", gpu="8", hours="100")
    made["spec"]["cash"] = {"mode": "safe", "maxRunTime": "2d"}
    await bizrq.client.create(GROUPS, made)
    await Api(bizrq.client).count("prudent", hours="10")
    stored = await bizrq.client.get(GROUPS, "prudent")
    hours = "cash/requests.nvidia.com/gpu"
    stored["status"]["cash"] = {"liens": {hours: "30"}, "periodEnd": "2026-11-23T00:00:00+01:00"}
    await bizrq.client.replace(GROUPS, stored, subresource="status")
    job = tfjob("train", "prudent", 4)
    job["spec"]["runPolicy"] = {"activeDeadlineSeconds": 20 * 3600}
    try:
        result = await bizrq("fit", "-f", written(tmp_path, job))
        assert result.out.splitlines()[:3] == [
            "no   TFJob default/train, in prudent",
            f"     {hours}: asks for 80 more, 60 of 100 left: 20 short",
            "     replicas: asks for 4, 3 would fit",
        ]
        result = await bizrq("fit", "-f", written(tmp_path, job), "-o", "json")
        [found] = json.loads(result.out)
        [violation] = found["violations"]
        assert [violation[key] for key in ("resource", "unit", "requested", "used", "hard")] == [
            hours, "seconds", 80 * 3_600, 40 * 3_600, 100 * 3_600
        ]  # fmt: skip
        assert found["message"].endswith("; next grant 2026-11-23T00:00:00+01:00")
        result = await bizrq("explain", "-f", written(tmp_path, job), width=120)
        assert next(line.split() for line in result.plain.splitlines() if hours in line) == [
            hours,
            "80",
            "0",
            "60",
            "100",
        ]
        job["spec"]["runPolicy"] = {"activeDeadlineSeconds": 72 * 3600}
        result = await bizrq("fit", "-f", written(tmp_path, job))
        assert "set spec.runPolicy.activeDeadlineSeconds to 172800 or less" in result.out
    finally:
        await bizrq.client.delete(GROUPS, "prudent")


async def test_fit_of_a_group_that_others_write_sends_nothing_to_the_cluster(bizrq: Bizrq, tmp_path: Path) -> None:
    """Admission writes a hold to a group with reservations before an edit; a dry run must not."""
    before = await bizrq.client.get(GROUPS, "nlp")
    assert before["status"]["reservations"]
    edited = group("nlp", "ai", cpu="12", gpu="4", hours="100", **{"limits.cpu.A4": "3"})
    assert (await bizrq("fit", "-f", written(tmp_path, edited))).code == 0
    assert await bizrq.client.get(GROUPS, "nlp") == before


async def test_fit_charges_a_daemonset_for_the_nodes_of_the_cluster(bizrq: Bizrq, tmp_path: Path) -> None:
    """Admission lists the nodes. Without them a dry run would report that any DaemonSet fits."""
    for number in range(3):
        await bizrq.client.create(NODES, node(f"n{number}"))
    made = deployment("agent", "nlp", cpu="4")
    del made["spec"]["replicas"]
    try:
        result = await bizrq("fit", "-f", written(tmp_path, {**made, "kind": "DaemonSet"}))
        assert result.code == 1
        assert "limits.cpu: asks for 12 more" in result.out
    finally:
        for number in range(3):
            await bizrq.client.delete(NODES, f"n{number}")


# What an object makes or grows to later.


async def test_a_cron_job_fits_only_if_its_jobs_do(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("fit", "-f", written(tmp_path, cronjob("nightly", "vision", cpu=50)))
    assert (result.code, result.err) == (1, "")
    assert result.plain.startswith("no   CronJob default/nightly, in vision\n"), result.plain
    assert (
        "each Job of CronJob default/nightly would be refused now:\n     limits.cpu: asks for 50 more, " in result.plain
    )
    result = await bizrq("fit", "-f", written(tmp_path, cronjob("nightly", "vision", cpu=2)))
    assert (result.code, result.plain) == (0, "fits CronJob default/nightly, in vision")
    # Its Jobs run later, and take nothing from what follows.
    both = written(tmp_path, cronjob("nightly", "vision", cpu=12), deployment("web", "vision", 12))
    assert (await bizrq("fit", "-f", both)).code == 0


async def test_a_scaled_job_fits_only_if_its_jobs_do_and_is_sure_only_if_all_do(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("fit", "-f", written(tmp_path, scaled_job("queue", "vision", cpu=50, maxReplicaCount=2)))
    assert result.code == 1
    assert "each Job of ScaledJob default/queue would be refused now:\n     limits.cpu: asks for 50" in result.plain
    many = written(tmp_path, scaled_job("queue", "vision", cpu=2, maxReplicaCount=40))
    result = await bizrq("fit", "-f", many)
    assert (result.code, "(40 Jobs) would be refused now" in " ".join(result.plain.split())) == (0, True), result
    assert (await bizrq("fit", "-f", many, "--strict")).code == 1
    assert "(40 Jobs) would be refused now" in " ".join((await bizrq("explain", "-f", many)).plain.split())
    few = written(tmp_path, scaled_job("queue", "vision", cpu=2, maxReplicaCount=4))
    assert (await bizrq("fit", "-f", few, "--strict")).code == 0


async def test_the_deployments_of_an_inference_service_are_judged(bizrq: Bizrq, tmp_path: Path) -> None:
    result = await bizrq("fit", "-f", written(tmp_path, inference_service("chat", "vision", cpu=4, least=4)))
    assert result.code == 1
    assert "Deployment chat-predictor of InferenceService default/chat would be refused now:" in result.plain
    result = await bizrq("fit", "-f", written(tmp_path, inference_service("chat", "vision", cpu=4, least=2, most=9)))
    assert result.code == 0
    assert result.plain.startswith("fits InferenceService default/chat\n     warning: Deployment chat-predictor of ")
    assert "in its largest state (9 replicas) would be refused now: limits.cpu: asks for 36 more, 12 of" in " ".join(
        result.plain.split()
    )


async def test_the_largest_state_of_an_elastic_job_is_a_warning(bizrq: Bizrq, tmp_path: Path) -> None:
    path = written(tmp_path, elastic("train", "vision", 2, 40))
    result = await bizrq("fit", "-f", path)
    assert (result.code, result.plain.splitlines()[0][:4]) == (0, "fits")
    assert "in its largest state (spec.elasticPolicy.maxReplicas 40) would be refused now: " in " ".join(
        result.plain.split()
    )
    [found] = json.loads((await bizrq("fit", "-f", path, "-o", "json")).out)
    [largest] = found["later"]
    assert (found["fits"], largest["fits"], largest["largest"], largest["reason"]) == (
        True, False, True, "QuotaExceeded"
    )  # fmt: skip
    assert largest["violations"][0]["requested"] == 40_000


async def test_explain_judges_the_jobs_of_a_stored_cron_job(bizrq: Bizrq) -> None:
    await bizrq.client.create(CRONJOBS, cronjob("nightly", "vision", cpu=50))
    try:
        result = await bizrq("explain", "cronjob/nightly")
        assert (result.code, result.err) == (0, "")
        assert "each Job of CronJob default/nightly would be refused now:\n  limits.cpu: asks for 50" in result.plain
        [judged] = json.loads((await bizrq("explain", "cronjob/nightly", "-o", "json")).out)["later"]
        assert (judged["kind"], judged["fits"], judged["largest"]) == ("Job", False, False)
    finally:
        await bizrq.client.delete(CRONJOBS, "nightly", "default")


# A tree and its workloads together.


async def test_a_folder_of_a_tree_and_its_workloads_is_decided_as_if_applied_in_order(
    bizrq: Bizrq, tmp_path: Path
) -> None:
    """Safe hours need a count of what running workloads may still cost; a new group has none."""
    safe = group("labs", cpu="10", gpu="5", hours="50")
    safe["spec"]["cash"] = {"mode": "safe", "period": "monthly", "maxRunTime": "2h"}
    child = group("lab-a", "labs", cpu="5", gpu="2", hours="20")
    child["spec"]["cash"] = {"mode": "safe", "maxRunTime": "2h"}
    folder = tmp_path / "folder"
    folder.mkdir()
    files = {
        "1-tree.yaml": [safe, child],
        "2-jobs.yaml": [tfjob("first", "lab-a", 1), deployment("web", "lab-a", 3)],
        "3-more.yaml": [tfjob("second", "lab-a", 1), tfjob("third", "lab-a", 1)],
    }
    for name, documents in files.items():
        (folder / name).write_text(yaml.safe_dump_all(documents))
    result = await bizrq("fit", "-f", str(folder))
    answers = [line for line in result.plain.splitlines() if not line.startswith(" ")]
    assert [line[:4] for line in answers] == ["fits", "fits", "fits", "fits", "fits", "no  "], result.plain
    assert (result.code, answers[-1]) == (1, "no   TFJob default/third, in lab-a")
    (folder / "3-more.yaml").unlink()
    assert (await bizrq("fit", "-f", str(folder), "--strict")).code == 0


async def test_a_group_that_comes_too_late_is_named(bizrq: Bizrq, tmp_path: Path) -> None:
    late = written(tmp_path, deployment("web", "late", 1), group("late", "ai", cpu="5", gpu="0", hours="0"))
    result = await bizrq("fit", "-f", late)
    assert result.code == 1
    said = "group late is in these files, but comes later: kubectl applies files in this order"
    assert said in " ".join(result.plain.split())
    refused = written(tmp_path, group("big", "ai", cpu="500", gpu="0", hours="0"), deployment("web", "big", 1))
    assert "group big is in these files, but is refused above" in (await bizrq("fit", "-f", refused)).plain


async def test_strict_fails_for_whatever_is_not_sure(bizrq: Bizrq, tmp_path: Path) -> None:
    """A warning, a largest state that does not fit, and a name that no recount has counted yet."""
    named = group("nlp", "ai", cpu="10", gpu="4", hours="100", pods="50", **{"limits.cpu.A4": "4"})
    cases = {
        "PyTorchJob default/train": [elastic("train", "vision", 2, 40)],
        "Deployment nowhere/web": [deployment("web", "vision", 1, namespace="nowhere")],
        "Deployment default/web": [named, deployment("web", "nlp", 1)],
    }
    for what, documents in cases.items():
        unsure = written(tmp_path, *documents)
        assert (await bizrq("fit", "-f", unsure)).code == 0
        result = await bizrq("fit", "-f", unsure, "--strict")
        assert (result.code, result.err) == (1, f"bizrq: --strict: not sure of {what}: see above\n"), result.plain
    assert "what nlp uses of pods is not counted yet: it is taken for 0" in " ".join(result.plain.split())
    # What fits for sure, and what does not fit, is as without.
    assert (await bizrq("fit", "-f", written(tmp_path, deployment("web", "vision", 1)), "--strict")).code == 0
    result = await bizrq("fit", "-f", written(tmp_path, deployment("web", "vision", 99)), "--strict")
    assert (result.code, result.err) == (1, "")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("biz.group.resource.qouta", "biz.group.resource.quota"),
        ("biz.group.resource.quota/cpu-typ", "biz.group.resource.quota/cpu-type"),
    ],
)
async def test_a_key_like_ours_that_nothing_reads_is_a_warning(
    bizrq: Bizrq, tmp_path: Path, key: str, meant: str
) -> None:
    """In the labels of the object, of a template in it, and of a Namespace."""
    own, inner = deployment("typo", "vision", 1), deployment("typo", "vision", 1)
    own["metadata"]["labels"][key] = "vision"
    inner["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})[key] = "vision"
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "typo", "labels": {key: "vision"}}}
    said = f"bizrq reads no label {key}, so it has no effect, did you mean {meant}?"
    for obj in (own, inner, space, scaled_job("typo", None, x={"metadata": {"labels": {key: "x"}}})):
        path = written(tmp_path, obj)
        assert (await bizrq("fit", "-f", path)).code == 0
        result = await bizrq("fit", "-f", path, "--strict")
        assert (result.code, said in " ".join(result.plain.split())) == (1, True), result
    for verb in ("explain", "usage"):
        result = await bizrq(verb, "-f", written(tmp_path, own))
        assert said in " ".join(result.plain.split()), result
    await bizrq.client.create(DEPLOYMENTS, own)
    try:
        assert said in " ".join((await bizrq("explain", "deployment/typo")).plain.split())
        # What is stored is told no more.
        assert (await bizrq("fit", "-f", written(tmp_path, own), "--strict")).code == 0
    finally:
        await bizrq.client.delete(DEPLOYMENTS, "typo", "default")
    config = tmp_path / "config.yaml"
    for mode, code in (("deny", 1), ("ignore", 0)):
        config.write_text(f"unknownLabels: {mode}")
        assert (await bizrq("fit", "-f", written(tmp_path, own), "--strict", "--config", config)).code == code


async def test_no_number_of_hours_is_suggested_where_they_are_spent_as_they_run(bizrq: Bizrq, tmp_path: Path) -> None:
    """A violation of such hours has an amount of cards: it says nothing of how long they run."""
    result = await bizrq("fit", "-f", written(tmp_path, tfjob("train", "vision", 2)), width=160)
    assert result.code == 1
    hours = "cash/requests.nvidia.com/gpu"
    assert f"{hours}: 16 of 16 hours are used, so nothing new may start" in result.plain
    raised = f"to raise vision (needs grant on ai; for HOURS write more than is used: {hours} 16):"
    assert raised in " ".join(result.plain.split())
    assert f"bizrq set vision {hours}=HOURS" in result.plain
