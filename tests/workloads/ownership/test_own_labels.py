"""Selectors that name a label which the controller itself sets."""

from __future__ import annotations

import pytest

from bizrq.workloads.kinds.declaration import DEPLOYMENT, JOB, REPLICA_SET, STATEFUL_SET, GroupKind
from bizrq.workloads.ownership.own_labels import check_selector
from bizrq.workloads.validation import Malformed

HASH = "pod-template-hash"


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "x", HASH: "y"}},
        {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": HASH, "operator": "DoesNotExist"}]},
    ],
)
def test_nothing_would_match(selector: dict[str, object]):
    with pytest.raises(Malformed, match=f"spec.selector: {HASH} is set by the controller itself"):
        check_selector({"spec": {"selector": selector}}, DEPLOYMENT)


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        ({"matchLabels": {"app": "x", HASH: "y"}}, REPLICA_SET),
        ({"matchLabels": {"app": "x", HASH: "y"}}, STATEFUL_SET),
        ({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}, DEPLOYMENT),
        ({"matchLabels": {"app": "x"}, "matchExpressions": [{"key": [HASH]}, None, 1]}, DEPLOYMENT),
        ({}, JOB),
        ({"app": "x"}, JOB),
    ],
)
def test_what_its_controller_does_not_set_may_be_named(selector: dict[str, object], kind: GroupKind):
    check_selector({"spec": {"selector": selector}}, kind)
