"""The registration: which namespaces its entries select, and which writes their match conditions send."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bizrq.settings import settings
from bizrq.workloads.labels import LABEL
from bizrq.workloads.scope import NAME_LABEL
from sandbox import cel
from tests.support.objects import Object, namespace
from webhooks import registration

SELECTOR = {
    "matchLabels": {"quota": "on"},
    "matchExpressions": [
        {"key": "stage", "operator": "In", "values": ["a", "b"]},
        {"key": "stage", "operator": "NotIn", "values": ["b"]},
        {"key": "owner", "operator": "Exists"},
        {"key": "example.com/old", "operator": "DoesNotExist"},
    ],
}
GIVEN = {"managedNamespaces": SELECTOR, "exemptNamespaces": ["spared"]}
INSIDE = {"quota": "on", "stage": "a", "owner": "x"}
#: Each misses one expression.
OUTSIDE: tuple[dict[str, str], ...] = (
    {},
    {**INSIDE, "quota": "off"},
    {**INSIDE, "stage": "b"},
    {"quota": "on", "stage": "a"},
    {**INSIDE, "example.com/old": ""},
)
UNSELECTED = {"groups", "corrections", "namespaces"}


def entries(given: Any = None) -> dict[str, Object]:
    """The entries by the first part of their name."""
    made = registration.configuration(settings(given or {}), lambda path: {"url": path}, namespace="here")
    return {each["name"].partition(".")[0]: each for each in made["webhooks"]}


def sends(entry: Object, new: Object | None, old: Object | None) -> bool:
    """True where all match conditions of an entry hold for a write."""
    operation = "CREATE" if old is None else "DELETE" if new is None else "UPDATE"
    values = {
        "object": new,
        "oldObject": old,
        "request": {"operation": operation, "userInfo": {"username": "ann", "groups": []}},
    }
    return all(
        cel.compile_expression(each["expression"], tuple(values)).true(values) for each in entry["matchConditions"]
    )


def test_every_entry_but_three_selects_the_managed_namespaces() -> None:
    for given, exempt, managed in (
        ({}, ["here", "kube-system"], []),
        (
            GIVEN,
            ["here", "kube-system", "spared"],
            [{"key": "quota", "operator": "In", "values": ["on"]}, *SELECTOR["matchExpressions"]],
        ),
    ):
        wanted = [{"key": NAME_LABEL, "operator": "NotIn", "values": exempt}, *managed]
        for name, entry in entries(given).items():
            selected = entry.get("namespaceSelector", {}).get("matchExpressions", [])
            assert all(each in selected for each in wanted) is (name not in UNSELECTED), name
            assert bool(selected) is (name not in UNSELECTED), name


@pytest.mark.parametrize("before", [INSIDE, *OUTSIDE], ids=str)
@pytest.mark.parametrize("after", [INSIDE, *OUTSIDE], ids=str)
@pytest.mark.parametrize("groups", list(itertools.product(("", "nlp"), repeat=2)), ids=str)
def test_a_namespace_is_sent_where_it_comes_in_or_leaves_or_its_default_changes_within(
    before: dict[str, str], after: dict[str, str], groups: tuple[str, str]
) -> None:
    old, new = (
        namespace("team", **labels, **({LABEL: group} if group else {}))
        for labels, group in zip((before, after), groups, strict=True)
    )
    was, is_ = before == INSIDE, after == INSIDE
    assert sends(entries(GIVEN)["namespaces"], new, old) is (was != is_ or (is_ and groups[0] != groups[1]))
    assert sends(entries()["namespaces"], new, old) is (groups[0] != groups[1])


@pytest.mark.parametrize(
    ("name", "labels", "is_sent"),
    [
        ("team", {**INSIDE, LABEL: "nlp"}, True),
        ("team", INSIDE, False),
        ("team", {LABEL: "nlp"}, False),
        ("spared", {**INSIDE, LABEL: "nlp"}, False),
        ("kube-system", {**INSIDE, LABEL: "nlp"}, False),
        ("here", {**INSIDE, LABEL: "nlp"}, False),
    ],
)
def test_a_new_namespace_is_sent_where_it_is_managed_and_has_a_default(
    name: str, labels: dict[str, str], is_sent: bool
) -> None:
    assert sends(entries(GIVEN)["namespaces"], namespace(name, **labels), None) is is_sent


def test_a_namespace_without_labels_is_sent_when_it_leaves() -> None:
    old, new = namespace("team", **INSIDE), namespace("team")
    del new["metadata"]["labels"]
    assert sends(entries(GIVEN)["namespaces"], new, old)
    assert not sends(entries(GIVEN)["namespaces"], new, new)
