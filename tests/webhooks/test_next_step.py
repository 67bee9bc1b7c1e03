"""How a refusal ends: with the command that explains it and whom to ask, where the group lacks quota."""

from __future__ import annotations

from typing import Any

import pytest

from bizrq.api import group as wire
from bizrq.api.group import MAX_CONTACT
from bizrq.api.review import GroupVersionKind, GroupVersionResource, Request
from bizrq.builtin import builtin_registry
from bizrq.quota.verdict import Denied, Figures, Reason
from bizrq.store.groups import GROUPS
from tests.support.objects import (
    CLUSTER_ROLE_BINDINGS,
    DEPLOYMENTS,
    OF_KIND,
    Object,
    deployment,
    group,
    pod_template,
    referring,
    template,
)
from tests.webhooks.charging.test_owner_trust import owned_by
from tests.webhooks.conftest import READING, RUN_FILE, Api, Hooks, changed, message, run, stored
from webhooks.next_step import LACKING, with_next_step

REGISTRY = builtin_registry()
LACKS = Denied(Reason.EXCEEDED, "no", figures=Figures("nlp", "hidden"))
ANN: Object = {"username": "ann", "groups": ["system:authenticated"]}
ROOT: Object = {"username": "root", "groups": ["system:masters"]}
CONTROLLER: Object = {"username": "system:serviceaccount:kube-system:replicaset-controller"}


def a_request(operation: str = "UPDATE", **more: Any) -> Request:
    of = {"kind": GroupVersionKind("apps", "v1", "Deployment"), "resource": _resource("apps", "deployments")}
    return Request(**{"uid": "u", "operation": operation, "name": "web", "namespace": "team", **of, **more})


def _resource(group: str, plural: str) -> GroupVersionResource:
    return GroupVersionResource(group, "v1", plural)


def owned(api_version: str, kind: str, name: object) -> Object:
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "1", "controller": True}
    return {"metadata": {"ownerReferences": [reference]}}


def ending(request: Request, denied: Denied = LACKS, *, group: str = "nlp", contact: str = "") -> str:
    return with_next_step(request, denied, group, contact, REGISTRY).message.removeprefix(denied.message)


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (a_request(), "deployment/web -n team"),
        (
            a_request(kind=GroupVersionKind("autoscaling", "v1", "Scale"), sub_resource="scale"),
            "deployment/web -n team",
        ),
        (a_request(resource=_resource("ray.io", "rayclusters")), "raycluster/web -n team"),
        (a_request(resource=_resource("", "pods"), sub_resource="resize"), "pod/web -n team"),
        (a_request(resource=_resource("batch", "jobs")), "job/web -n team"),
        (a_request(resource=_resource("batch.volcano.sh", "jobs")), "jobs.batch.volcano.sh/web -n team"),
        (a_request("CREATE", object={"metadata": {}}), "-f FILE -n team"),
        (a_request("CREATE", object=owned("batch/v1", "CronJob", "nightly")), "cronjob/nightly -n team"),
        (a_request("CREATE", object=owned("argoproj.io/v1alpha1", "Workflow", "w")), "nlp"),
        (a_request(resource=_resource("resource.k8s.io", "resourceclaims")), "nlp"),
        (a_request(kind=GroupVersionKind(wire.API_GROUP, "v1alpha1", wire.KIND), namespace=""), "nlp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_command_explains_what_was_refused(request_: Request, command: str) -> None:
    assert ending(request_) == run(command)


def test_what_another_objects_write_costs_is_explained_by_the_group() -> None:
    charged_for_another = Denied(LACKS.reason, "no", on_behalf_of="Rollout team/web", figures=LACKS.figures)
    assert ending(a_request(), charged_for_another) == run("nlp")


def test_explain_finds_every_kind_by_the_word_of_the_command() -> None:
    for adapter in REGISTRY.adapters:
        assert REGISTRY.named(REGISTRY.word_for(adapter)) is adapter


@pytest.mark.parametrize("name", ["$(reboot)", "a b", "web;reboot", "-f", "", "x" * 254, "ü", "web\n", 5, None])
def test_nothing_that_a_shell_obeys_gets_into_the_command(name: Any) -> None:
    """A name in an ownerReference is anybody's text."""
    assert ending(a_request("CREATE", object=owned("apps/v1", "ReplicaSet", name))) == run("nlp")
    if isinstance(name, str):
        assert ending(a_request(name=name)) == run("nlp")
        assert ending(a_request(namespace=name)) == run("nlp")
        assert ending(a_request(namespace=name), group=name) == ""


@pytest.mark.parametrize("reason", sorted({*Reason} - LACKING))
def test_any_other_refusal_says_itself_what_to_do(reason: Reason) -> None:
    other = Denied(reason, "no", figures=LACKS.figures)
    assert with_next_step(a_request(), other, "nlp", "Ann", REGISTRY) is other


def test_who_may_not_see_the_group_reads_whom_to_ask_and_no_command_that_fails() -> None:
    hidden = LACKS.without_figures()
    assert ending(a_request(), hidden, contact="Ann") == run("deployment/web -n team") + "; ask: Ann"
    of_claim = a_request(resource=_resource("resource.k8s.io", "resourceclaims"))
    assert ending(of_claim, hidden, contact="Ann") == "; ask: Ann"
    assert ending(of_claim, hidden) == ""


# Through the port.


async def test_a_refusal_ends_with_the_command_and_whom_to_ask(api: Api, hooks: Hooks) -> None:
    await api.client.create(GROUPS, contacted("nlp", owner="ml-platform", contact="#ml-quota"))
    await api.count("nlp")
    web = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1))
    grown = changed(web, lambda o: o["spec"].update(replicas=14))
    refused = await hooks.update(web, grown)
    assert message(refused) == (
        "exceeded quota: nlp, requested: limits.cpu=13, used: limits.cpu=0, limited: limits.cpu=10; "
        "left: limits.cpu=10; fits: 10 more replicas; run: kubectl bizrq explain deployment/web -n default; "
        "ask: ml-platform, #ml-quota"
    )
    assert refused["status"]["details"]["causes"][0]["reason"] == "QuotaExceeded"
    assert message(await hooks.create(group("child", "nlp", cpu=11))).endswith(
        "; run: kubectl bizrq explain nlp; ask: ml-platform, #ml-quota"
    )
    assert message(await hooks.create(deployment("web", "nlp", -1))).endswith("must not be negative, but is -1")


async def test_everybody_reads_the_contact_and_who_may_see_the_group_its_command(api: Api, hooks: Hooks) -> None:
    await api.client.create(GROUPS, contacted("nlp", owner="Ann Smith", contact="ann@example.com"))
    await api.count("nlp")
    await api.client.delete(CLUSTER_ROLE_BINDINGS, READING["metadata"]["name"])
    web = await api.client.create(DEPLOYMENTS, deployment("web", "nlp", 1))
    shape = await api.client.create(OF_KIND["PodTemplate"], pod_template("shape"))
    await api.client.create(OF_KIND["Rollout"], referring("rolls", "nlp", shape, 1))
    grown = changed(web, lambda o: o["spec"].update(replicas=14))
    larger = changed(stored(shape), lambda o: o.update(template=template("14")))
    for user, sees in ((ANN, False), (CONTROLLER, False), (ROOT, True)):
        for answer, command in (
            (await hooks.create(deployment("new", "nlp", 13), user=user), RUN_FILE),
            (await hooks.update(web, grown, user=user), run("deployment/web -n default")),
            (await hooks.review("references", "UPDATE", larger, shape, user=user), run("nlp") if sees else ""),
        ):
            told = message(answer)
            assert told.endswith(f"{command}; ask: Ann Smith, ann@example.com"), told
            assert (run("nlp") in told) is (command == run("nlp")), told
            assert ("left: " in told) is sees, told


async def test_the_longest_contact_that_is_stored_is_one_printable_line(api: Api, hooks: Hooks) -> None:
    """The schema takes characters that change the writing direction."""
    longest = {"owner": "\u202e" * MAX_CONTACT, "contact": "y" * MAX_CONTACT}
    await api.client.create(GROUPS, contacted("nlp", **longest))
    await api.count("nlp")
    asked = message(await hooks.create(deployment("web", "nlp", 11))).partition("; ask: ")[2]
    assert asked == "\N{REPLACEMENT CHARACTER}" * MAX_CONTACT + ", " + longest["contact"]


async def test_a_controllers_refusal_names_the_owner_that_stands(api: Api, hooks: Hooks) -> None:
    """The event of a CronJob or of an operator then says what to run."""
    await api.group("nlp", cpu=1)
    owner = deployment("web", None, 1)
    owner["metadata"]["uid"] = "1"
    child = changed(deployment("web-1", "nlp", 2), lambda o: o.update(kind="ReplicaSet"))
    child["metadata"]["ownerReferences"] = [owned_by(owner)]
    told = message(await hooks.create(child, user=CONTROLLER))
    assert told.endswith(run("deployment/web -n default"))


def contacted(name: str, **whom: str) -> Object:
    made = group(name, cpu=10)
    made["spec"] |= whom
    return made
