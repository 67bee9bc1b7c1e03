"""`bizrq fit` on objects that are not charged themselves: it says what admission says of the write, word for word."""

from __future__ import annotations

import asyncio
import copy

import pytest

from bizrq.figures.simulate.dry_run import DryRun, DryRunOutcome, read_groups
from bizrq.kube.client import KubeClient, Resource
from bizrq.settings import load, settings
from bizrq.store.hours import CORRECTIONS
from bizrq.workloads.labels import LABEL
from tests.support.objects import (
    CLAIM_TEMPLATES,
    CLAIMS,
    CRDS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    NAMESPACES,
    POD_TEMPLATES,
    ROLLOUTS,
    Object,
    claim,
    claim_template,
    claiming,
    correction,
    deployment,
    device_class,
    namespace,
    pod_template,
    referring,
    rollout,
    sharing,
    template,
)
from tests.webhooks.conftest import Api, Hooks, changed, decided

SETTINGS = load(None)
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")

ADMIN: Object = {"username": "kubernetes-admin", "groups": ["system:masters"]}


async def dry_run(client: KubeClient, *documents: Object) -> list[DryRunOutcome]:
    clock = asyncio.get_running_loop().time
    return await DryRun(client, SETTINGS, await read_groups(client), list(documents), clock=clock).outcomes()


async def agreed(
    api: Api, hooks: Hooks, path: str, resource: Resource, document: Object, old: Object | None = None
) -> DryRunOutcome:
    """The one outcome, once it is what the webhook says of the write."""
    [outcome] = await dry_run(api.client, document)
    new = changed(document, lambda d: d["metadata"].update(uid="u-1" if old is None else old["metadata"]["uid"]))
    operation = "CREATE" if old is None else "UPDATE"
    response = await hooks.review(path, operation, new, old, resource=resource, user=ADMIN)
    told = "" if outcome.fits else getattr(outcome.verdict, "message", "")
    assert told == decided(response)
    assert list(outcome.warnings) == response.get("warnings", [])
    return outcome


@pytest.mark.parametrize(("devices", "fits"), [(2, True), (3, False)])
async def test_a_claim_template_that_is_created_again(api: Api, hooks: Hooks, devices: int, fits: bool) -> None:
    await api.client.create(DEVICE_CLASSES, device_class("gpu"))
    await api.group("nlp", gpu="4", cpu="9", used={"cpu": "2"})
    await api.client.create(ROLLOUTS, claiming(rollout("web", "nlp", 2), "cards"))
    outcome = await agreed(api, hooks, "references", CLAIM_TEMPLATES, claim_template("cards", devices))
    assert (outcome.fits, outcome.is_chargeable) == (fits, False)


@pytest.mark.parametrize(("cpu", "fits"), [("2", True), ("5", False)])
async def test_a_larger_pod_template_that_a_rollout_refers_to(api: Api, hooks: Hooks, cpu: str, fits: bool) -> None:
    await api.group("nlp", cpu="9", used={"cpu": "2"})
    shape = await api.client.create(POD_TEMPLATES, pod_template("shape"))
    await api.client.create(ROLLOUTS, referring("web", "nlp", shape, 2))
    larger = changed(shape, lambda d: d.update(template=template(cpu)))
    outcome = await agreed(api, hooks, "references", POD_TEMPLATES, larger, shape)
    assert outcome.fits is fits
    [another] = await dry_run(api.client, pod_template("another"))
    assert (another.fits, another.group, another.is_chargeable) == (True, None, False)


async def test_claims_are_their_groups_and_no_other_may_name_them(api: Api, hooks: Hooks) -> None:
    await api.client.create(DEVICE_CLASSES, device_class("gpu"))
    await api.group("nlp", gpu="4")
    await api.group("vision", cpu="9")

    def of(group: str, count: int) -> Object:
        return changed(claim("cards", count), lambda d: d["metadata"].update(labels={LABEL: group}))

    outcome = await agreed(api, hooks, "claims", CLAIMS, of("nlp", 4))
    assert (outcome.fits, outcome.group) == (True, "nlp")
    assert not (await agreed(api, hooks, "claims", CLAIMS, of("nlp", 5))).fits
    await api.client.create(DEPLOYMENTS, sharing(deployment("web", "vision", 1), "cards"))
    outcome = await agreed(api, hooks, "claims", CLAIMS, of("nlp", 1))
    assert "is charged to group nlp, not to vision" in str(outcome.verdict)


async def test_a_namespaces_default_group(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="9")
    assert (await agreed(api, hooks, "namespaces", NAMESPACES, namespace("fresh", **{LABEL: "nlp"}))).fits
    assert (await agreed(api, hooks, "namespaces", NAMESPACES, namespace("lost", **{LABEL: "nobody"}))).warnings
    stored = await api.client.create(NAMESPACES, namespace("busy"))
    await api.client.create(DEPLOYMENTS, deployment("web", None, namespace="busy"))
    labelled = changed(stored, lambda d: d["metadata"]["labels"].update({LABEL: "nlp"}))
    outcome = await agreed(api, hooks, "namespaces", NAMESPACES, labelled, stored)
    assert not outcome.fits
    # One that says nothing of groups is none of ours.
    assert await dry_run(api.client, namespace("other")) == []


def autoscaler(most: int) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {
        "apiVersion": AUTOSCALERS.api_version,
        "kind": AUTOSCALERS.kind,
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "maxReplicas": most},
    }


async def test_an_autoscaler_is_warned_of_beside_its_deployment_too(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="8")
    web = deployment("web", "nlp", 2)
    [_, before] = await dry_run(api.client, web, autoscaler(20))
    await api.client.create(DEPLOYMENTS, web)
    await api.count("nlp", cpu="2")
    after = await agreed(api, hooks, "autoscalers", AUTOSCALERS, autoscaler(20))
    assert list(before.warnings) == list(after.warnings) != []
    assert not (await agreed(api, hooks, "autoscalers", AUTOSCALERS, autoscaler(8))).warnings


@pytest.mark.parametrize(
    ("group", "resource", "by", "fits"),
    [
        ("nlp", "requests.nvidia.com/gpu", "kubernetes-admin", True),
        ("nlp", "requests.nvidia.com/gpu", "alice", False),
        ("nlp", "limits.cpu", "kubernetes-admin", False),
        ("nobody", "requests.nvidia.com/gpu", "kubernetes-admin", False),
    ],
)
async def test_a_correction_is_in_ones_own_name(
    api: Api, hooks: Hooks, group: str, resource: str, by: str, fits: bool
) -> None:
    await api.group("nlp", gpu="8", hours="9")
    made = correction("mend", group, {resource: "-1"}, by=by)
    assert (await agreed(api, hooks, "corrections", CORRECTIONS, made)).fits is fits


async def test_what_the_cluster_lacks_is_warned_of(api: Api) -> None:
    """The API server would refuse an unknown kind and a missing namespace before any review."""
    await api.group("nlp", cpu="8")
    await api.client.delete(CRDS, "jobsets.jobset.x-k8s.io")
    unknown = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "j"}, "spec": {}}
    away = copy.deepcopy(deployment("web", "nlp"))
    away["metadata"]["namespace"] = "nowhere"
    one, two = await dry_run(api.client, unknown, away)
    assert list(one.warnings) == ["the cluster knows no JobSet of jobset.x-k8s.io: install its CRD first"]
    assert list(two.warnings) == ["there is no namespace nowhere: create it first"]
    assert two.fits
    made, two = await dry_run(api.client, namespace("nowhere", **{LABEL: "nlp"}), away)
    assert (made.fits, list(two.warnings)) == (True, [])


async def test_what_is_written_in_a_namespace_that_is_not_managed(api: Api, hooks: Hooks) -> None:
    """It is charged to nobody, stored or not; and who takes a namespace out needs a right."""
    await api.group("nlp", cpu="1")
    for name, labels in (("in", {"quota": "on"}), ("out", {}), ("spared", {"quota": "on"})):
        await api.client.create(NAMESPACES, namespace(name, **labels))
    given = settings({"managedNamespaces": {"matchLabels": {"quota": "on"}}, "exemptNamespaces": ["spared"]})
    documents = [deployment("web", "nlp", 5, namespace=name) for name in ("in", "out", "spared", "kube-system")]
    clock = asyncio.get_running_loop().time

    async def outcomes(*asked: Object) -> list[DryRunOutcome]:
        return await DryRun(api.client, given, await read_groups(api.client), list(asked), clock=clock).outcomes()

    inside, *others = await outcomes(*documents)
    assert (inside.fits, inside.group) == (False, "nlp")
    for outcome in others:
        assert (outcome.fits, outcome.group) == (True, None)
        assert list(outcome.warnings) == [
            f"the label biz.group.resource.quota=nlp is ignored: bizrq does not manage namespace {outcome.namespace}"
        ]
    leaves = await api.client.get(NAMESPACES, "in")
    await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1, namespace="in"))
    [outcome] = await outcomes(changed(leaves, lambda d: d["metadata"]["labels"].update(quota="off")))
    assert outcome.fits, "an administrator may"
    assert await outcomes(changed(leaves, lambda d: d["metadata"]["labels"].update(other="x"))) == []
