"""What a form means, and which requests it becomes: pure."""

from __future__ import annotations

import pytest

from bizrq.builtin import builtin_catalog
from bizrq.kube.client import Forbidden, Invalid
from tests.support.objects import group
from web import changes
from web.changes import Base, Typed
from web.pages.ceilings import explained, refusal_of

CATALOG = builtin_catalog()
BASE = Base("u", 7, {"limits.cpu": "10", "requests.memory": "64Gi", "pods": 5}, "Lena", "#nlp")


def typed(**ceilings: str) -> Typed:
    names = {"cpu": "limits.cpu", "memory": "requests.memory", "pods": "pods", "gpu": "requests.nvidia.com/gpu"}
    whole = {"cpu": "10", "memory": "64Gi", "pods": "5", **ceilings}
    return Typed({names[name]: text for name, text in whole.items()}, "Lena", "#nlp")


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ({}, {}),
        ({"cpu": " 10 "}, {}),
        ({"cpu": "12"}, {"limits.cpu": "12"}),
        ({"cpu": "+2"}, {"limits.cpu": "12"}),
        ({"cpu": "- 500m"}, {"limits.cpu": "9500m"}),
        ({"memory": "-32Gi"}, {"requests.memory": "32Gi"}),
        ({"cpu": ""}, {"limits.cpu": None}),
        ({"gpu": "4"}, {"requests.nvidia.com/gpu": "4"}),
        ({"gpu": ""}, {}),
        ({"pods": "5"}, {}),
    ],
)
def test_an_amount_is_absolute_or_a_change_and_nothing_is_no_ceiling(given, after):
    plan = changes.plan(BASE, typed(**given), CATALOG)
    assert not plan.errors
    assert {name: plan.hard.get(name) for name in plan.changed} == after
    assert plan.is_empty is not bool(after)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cpu": "-11"}, "10 is less than 11: a ceiling is not below 0"),
        ({"cpu": "+-1"}, "a ceiling is not below 0"),
        ({"cpu": "ten"}, "is not a quantity"),
        ({"cpu": "<script>"}, "is not a quantity"),
        ({"gpu": "+1"}, "there is no ceiling to change by that"),
        ({"cpu": "9" * 40}, "write a smaller quantity"),
    ],
)
def test_what_is_no_amount_has_its_sentence(given, why):
    plan = changes.plan(BASE, typed(**given), CATALOG)
    assert len(plan.errors) == 1
    assert why in next(iter(plan.errors.values()))


def test_the_patch_tests_the_version_that_was_seen_and_writes_only_what_differs():
    plan = changes.plan(BASE, Typed({"limits.cpu": "12", "requests.memory": "", "a/b~c": "1"}, "", "#new"), CATALOG)
    assert plan.patch == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/generation", "value": 7},
        {"op": "add", "path": "/spec/hard/a~1b~0c", "value": "1"},
        {"op": "add", "path": "/spec/hard/limits.cpu", "value": "12"},
        {"op": "remove", "path": "/spec/hard/requests.memory"},
        {"op": "remove", "path": "/spec/owner"},
        {"op": "add", "path": "/spec/contact", "value": "#new"},
    ]
    first = changes.plan(Base("u", 1), Typed({"limits.cpu": "1"}), CATALOG)
    assert {"op": "add", "path": "/spec/hard", "value": {}} in first.patch


def test_what_somebody_else_changed_is_said():
    now = Base("u", 8, {"limits.cpu": "12", "pods": 5, "limits.memory": "1Gi"}, "", "#nlp")
    assert changes.differences(BASE, now) == [
        "limits.cpu: 10 → 12",
        "limits.memory: no ceiling → 1Gi",
        "requests.memory: 64Gi → no ceiling",
        "owner: Lena → none",
    ]
    assert changes.differences(BASE, Base("v", 1)) == ["the group was deleted and created again"]
    assert changes.differences(BASE, BASE) == ["another part of the group"]


def test_a_tool_that_keeps_the_spec_is_named_and_people_and_the_controller_are_not():
    stored = group("nlp", cpu=1)
    stored["metadata"]["managedFields"] = [
        {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {}}}
        for manager in ("argocd-controller", "kubectl-edit", "bizrq-web", "helm", "terraform", "kustomize-controller")
    ]
    stored["metadata"]["managedFields"] += [
        {"manager": "counter", "subresource": "status", "fieldsV1": {"f:spec": {}}},
        {"manager": "labeler", "fieldsV1": {"f:metadata": {}}},
    ]
    assert changes.other_managers(stored) == [
        "Argo CD (argocd-controller)",
        "Flux (kustomize-controller)",
        "Helm (helm)",
        "terraform",
    ]
    assert changes.other_managers(group("nlp", cpu=1)) == []


def test_a_refusal_stands_beside_the_ceilings_that_it_names():
    text = 'admission webhook "x" denied the request: exceeded quota: ai, requested: limits.cpu.A4=4; left: 0'
    found = refusal_of(Forbidden(403, "Forbidden", text), ["limits.cpu", "limits.cpu.A4", "pods", "a"])
    assert found.of == {"limits.cpu.A4": "exceeded quota: ai, requested: limits.cpu.A4=4; left: 0"}
    both = refusal_of(Forbidden(403, "", "no: limits.cpu=1,limits.cpu.A4=1"), ["limits.cpu", "limits.cpu.A4"])
    assert set(both.of or {}) == {"limits.cpu", "limits.cpu.A4"}
    assert refusal_of(Forbidden(403, "", "no children"), ["limits.cpu"]).of == {}


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("ai", "/groups/ai"),
        ("deployment/web -n team", "/fit?what=deployment%2Fweb&namespace=team"),
        ("-f FILE -n team", "/fit?namespace=team"),
        ("--help", ""),
        ("a/b", ""),
        ("", ""),
    ],
)
def test_a_command_that_explains_a_refusal_is_a_link_to_the_page_that_says_the_same(command: str, address: str):
    text = f"exceeded quota: ai; run: kubectl bizrq explain {command}; ask: <b>"
    found = explained(text)
    links = [each.get("href") for each in found if not isinstance(each, str)]
    assert links == ([address] if address else [])
    assert "".join(each if isinstance(each, str) else f"[{each.text}]" for each in found) == (
        "exceeded quota: ai; [see what is left, and who has room]; ask: <b>" if address else text
    )


def test_a_failed_test_of_a_patch_is_told_apart_from_a_bad_value():
    assert changes.is_outdated(Invalid(422, "Invalid", "the server rejected our request"))
    assert not changes.is_outdated(Invalid(422, "Invalid", "bad", {"causes": [{"field": "spec.hard"}]}))
    text = 'admission webhook "x" denied the request: group nlp: spec.hard: nonsense: unknown resource name'
    assert not changes.is_outdated(Invalid(422, "BadHard", text))
    assert not changes.is_outdated(Forbidden(403, "Forbidden", "no"))
