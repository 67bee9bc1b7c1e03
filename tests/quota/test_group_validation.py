"""The rules of the tree in the order of their checks, each with the text of its refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.quota.group_validation import (
    DELETE_RULES,
    SINGLE_GROUP_RULES,
    WRITE_RULES,
    Group,
    GroupDelete,
    GroupWrite,
    lowered_below,
    validate,
    validate_alone,
)
from bizrq.quota.verdict import Denied, Reason
from tests.support.language import res, tree

CORP = tree("corp > ai > nlp vision", "cpu=10")


def group(name: str, parent: str = "", hard: str = "cpu=10") -> Group:
    return Group(name, parent, res(hard))


def refused(change: GroupWrite | GroupDelete) -> Denied:
    verdict = validate(change)
    assert isinstance(verdict, Denied)
    return verdict


ALLOWED = [
    ("a root", GroupWrite(group("corp"))),
    ("a root without ceilings", GroupWrite(group("corp", hard=""))),
    ("a child that names what its parent names", GroupWrite(group("ai", "corp"), parent=CORP["corp"])),
    ("a child that names more", GroupWrite(group("ai", "corp", "cpu=1 gpu=1"), parent=CORP["corp"])),
    (
        "a child with more than its parent: what is left is the account's question",
        GroupWrite(group("ai", "corp", "cpu=99"), parent=CORP["corp"]),
    ),
    ("a name of 63 characters", GroupWrite(group("a" * 63))),
    ("a name with dots", GroupWrite(group("team.nlp-1"))),
    ("a larger hard", GroupWrite(group("nlp", "ai", "cpu=20"), CORP["nlp"], CORP["ai"])),
    ("a smaller hard", GroupWrite(group("nlp", "ai", "cpu=0"), CORP["nlp"], CORP["ai"])),
    (
        "a new name that all children have",
        GroupWrite(group("ai", "corp", "cpu=9 gpu=1"), CORP["ai"], CORP["corp"], [group("nlp", "ai", "cpu=1 gpu=1")]),
    ),
    (
        "a name less than the parent ever named",
        GroupWrite(group("nlp", "ai"), group("nlp", "ai", "cpu=10 gpu=1"), CORP["ai"]),
    ),
    (
        "a change of what lacks a name already",
        GroupWrite(group("nlp", "ai", "cpu=5"), group("nlp", "ai"), group("ai", "corp", "cpu=9 gpu=1")),
    ),
    (
        "a change under a parent that is being deleted",
        GroupWrite(group("nlp", "ai"), CORP["nlp"], replace(CORP["ai"], deleting=True)),
    ),
    ("a root that sets a schedule of hours", GroupWrite(replace(group("corp"), has_schedule=True))),
    (
        "a change of a child that already has a schedule",
        GroupWrite(
            replace(group("ai", "corp", "cpu=1"), has_schedule=True),
            replace(CORP["ai"], has_schedule=True),
            CORP["corp"],
        ),
    ),
    ("the deletion of a leaf", GroupDelete(CORP["nlp"])),
]


@pytest.mark.parametrize(("why", "change"), ALLOWED, ids=[row[0] for row in ALLOWED])
def test_a_group_write_is_admitted(why: str, change: GroupWrite | GroupDelete) -> None:
    assert validate(change) is None


BAD_NAME = "use at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends"
REFUSED = [
    (
        "a child that sets a schedule of hours",
        GroupWrite(replace(group("ai", "corp"), has_schedule=True), CORP["ai"], CORP["corp"]),
        Reason.BAD_CASH,
        "group ai: only a root sets spec.cash.period, timeZone and anchor, since a tree's hours are granted together: "
        "set them on the root above corp",
    ),
    (
        "a name that is no label value",
        GroupWrite(group("a" * 64)),
        Reason.BAD_NAME,
        f"group name '{'a' * 64}' cannot be a label's value: {BAD_NAME}",
    ),
    (
        "a name with capitals",
        GroupWrite(group("NLP")),
        Reason.BAD_NAME,
        f"group name 'NLP' cannot be a label's value: {BAD_NAME}",
    ),
    (
        "a name that ends in a dash",
        GroupWrite(group("nlp-")),
        Reason.BAD_NAME,
        f"group name 'nlp-' cannot be a label's value: {BAD_NAME}",
    ),
    ("no name", GroupWrite(group("")), Reason.BAD_NAME, f"group name '' cannot be a label's value: {BAD_NAME}"),
    (
        "a name of other letters",
        GroupWrite(group("ｎlp")),
        Reason.BAD_NAME,
        f"group name 'ｎlp' cannot be a label's value: {BAD_NAME}",
    ),
    (
        "another parent",
        GroupWrite(group("nlp", "corp"), CORP["nlp"], CORP["corp"]),
        Reason.IMMUTABLE,
        "group nlp: spec.parentBizGroup is immutable: it is ai, not corp; create a new group under the other parent "
        "and move the workloads' labels",
    ),
    (
        "a child that becomes a root",
        GroupWrite(group("nlp"), CORP["nlp"]),
        Reason.IMMUTABLE,
        'group nlp: spec.parentBizGroup is immutable: it is ai, not "" (a root); create a new group under the other '
        "parent and move the workloads' labels",
    ),
    (
        "a root that becomes a child",
        GroupWrite(group("corp", "other"), CORP["corp"], group("other")),
        Reason.IMMUTABLE,
        'group corp: spec.parentBizGroup is immutable: it is "" (a root), not other; create a new group under the '
        "other parent and move the workloads' labels",
    ),
    (
        "a group that is its own parent",
        GroupWrite(group("ai", "ai")),
        Reason.PARENT,
        "group ai cannot be its own parent",
    ),
    (
        "a name that its child does not have yet",
        GroupWrite(
            group("ai", "corp", "cpu=10 gpu=1 mem=1"),
            CORP["ai"],
            CORP["corp"],
            [CORP["nlp"], group("vision", "ai", "cpu=1 gpu=1 mem=1")],
        ),
        Reason.MISSING_NAMES,
        "group ai: its child nlp does not name limits.memory, requests.nvidia.com/gpu: "
        "names are added to children first",
    ),
    (
        "a name that several children do not have",
        GroupWrite(group("ai", "corp", "cpu=10 gpu=1"), CORP["ai"], CORP["corp"], [CORP["vision"], CORP["nlp"]]),
        Reason.MISSING_NAMES,
        "group ai: its child nlp (and 1 more) does not name requests.nvidia.com/gpu: names are added to children first",
    ),
    (
        "a parent that does not exist",
        GroupWrite(group("nlp", "ai")),
        Reason.PARENT,
        "group nlp: its parent ai does not exist: create the parent first",
    ),
    (
        "a parent that is being deleted",
        GroupWrite(group("nlp", "ai"), parent=replace(CORP["ai"], deleting=True)),
        Reason.PARENT,
        "group nlp: its parent ai is being deleted",
    ),
    (
        "a child that lacks names that its parent has",
        GroupWrite(group("nlp", "ai", "gpu=1"), parent=group("ai", hard="cpu=1 gpu=1 mem=1")),
        Reason.MISSING_NAMES,
        "group nlp: spec.hard must name every resource that its parent ai names; missing: limits.cpu, limits.memory",
    ),
    (
        "a child that gives up a name that its parent has",
        GroupWrite(group("nlp", "ai", ""), CORP["nlp"], CORP["ai"]),
        Reason.MISSING_NAMES,
        "group nlp: spec.hard must name every resource that its parent ai names; missing: limits.cpu",
    ),
    (
        "the deletion of a parent",
        GroupDelete(CORP["ai"], children=["vision", "nlp"]),
        Reason.NOT_EMPTY,
        "group ai has children: nlp, vision; delete them first",
    ),
    (
        "the deletion of a parent of many",
        GroupDelete(CORP["ai"], children=["d", "c", "b", "a"]),
        Reason.NOT_EMPTY,
        "group ai has children: a, b and 2 more; delete them first",
    ),
    (
        "the deletion of what is charged",
        GroupDelete(CORP["nlp"], workloads=["jobs.batch/t/b", "deployments.apps/t/a"]),
        Reason.NOT_EMPTY,
        "group nlp has workloads: deployments.apps/t/a, jobs.batch/t/b; delete them or move their label first",
    ),
    (
        "the deletion while pods run on",
        GroupDelete(CORP["nlp"], ending=["1 pod of pods/t/p is ending until 10:05:30"]),
        Reason.NOT_EMPTY,
        "group nlp is charged for pods: 1 pod of pods/t/p is ending until 10:05:30; try again after that",
    ),
]


@pytest.mark.parametrize(("why", "change", "reason", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_group_write_is_rejected(why: str, change: GroupWrite | GroupDelete, reason: Reason, message: str) -> None:
    verdict = refused(change)
    assert (verdict.reason, verdict.message) == (reason, message)


def test_rules_are_checked_in_order_and_the_first_violation_gives_the_reason() -> None:
    """Each change mends the first violation of the change before, and is rejected for the next."""
    old = group("corp.", "")
    named = replace(old, name="corp")
    other = group("ai", "other", "cpu=10 gpu=1")
    refusals = [
        refused(GroupWrite(group("Corp", "Corp"), old, selector_error="bad selector", cash_error="bad cash")),
        refused(GroupWrite(group("Corp", "Corp"), old, cash_error="bad cash")),
        refused(GroupWrite(group("Corp", "Corp"), old)),
        refused(GroupWrite(group("corp", "corp"), named)),
        refused(GroupWrite(group("corp", "corp"), replace(named, parent="corp"))),
        refused(GroupWrite(replace(other, has_schedule=True), group("ai", "other"), children=[group("nlp", "ai")])),
        refused(GroupWrite(other, group("ai", "other"), children=[group("nlp", "ai")])),
        refused(GroupWrite(other, group("ai", "other"))),
        refused(GroupWrite(other, parent=replace(group("other", hard="mem=1"), deleting=True))),
        refused(GroupWrite(other, parent=group("other", hard="mem=1"))),
    ]
    assert [each.reason for each in refusals] == [
        Reason.BAD_SELECTOR,
        Reason.BAD_CASH,
        Reason.BAD_NAME,
        Reason.IMMUTABLE,
        Reason.PARENT,
        Reason.BAD_CASH,
        Reason.MISSING_NAMES,
        Reason.PARENT,
        Reason.PARENT,
        Reason.MISSING_NAMES,
    ]
    assert len({each.message for each in refusals}) == len(WRITE_RULES)


def test_one_message_lists_all_violations_in_order() -> None:
    change = GroupWrite(group("Ai", "Ai"), CORP["ai"], selector_error="group Ai: spec.namespaceSelector: bad")
    alone = [rule(change) for rule in SINGLE_GROUP_RULES]
    broken = [each.message for each in alone if each is not None]
    assert len(broken) == 4
    assert validate_alone(change) == Denied(Reason.BAD_SELECTOR, "; ".join(broken))
    lacking = group("other", hard="mem=1")
    both = refused(GroupWrite(group("ai", "other", "cpu=1"), parent=replace(lacking, deleting=True)))
    assert both.reason is Reason.PARENT
    assert both.message == (
        "group ai: its parent other is being deleted; group ai: spec.hard must name every resource that its parent "
        "other names; missing: limits.memory"
    )


def test_children_are_named_before_workloads() -> None:
    assert "has children" in refused(GroupDelete(CORP["ai"], ["nlp"], ["jobs.batch/t/a"])).message
    assert len(DELETE_RULES) == 3


def test_rules_for_the_group_alone_need_no_parent() -> None:
    change = GroupWrite(group("nlp", "ai"))
    assert validate_alone(change) is None
    assert validate(change) is not None
    assert tuple(WRITE_RULES[: len(SINGLE_GROUP_RULES)]) == tuple(SINGLE_GROUP_RULES)


def test_a_long_hostile_name_is_truncated() -> None:
    assert len(refused(GroupWrite(group("x" * 10_000))).message) < 300


LOWERED = [
    ("one resource", "cpu=10", "cpu=12", "limits.cpu 10 (used 12)"),
    (
        "several, sorted",
        "mem=1Gi cpu=1",
        "mem=2Gi cpu=1500m",
        "limits.cpu 1 (used 1500m), limits.memory 1Gi (used 2Gi)",
    ),
    ("a name that is new and in use already", "gpu=0", "gpu=1", "requests.nvidia.com/gpu 0 (used 1)"),
]


@pytest.mark.parametrize(("why", "hard", "taken", "listed"), LOWERED, ids=[row[0] for row in LOWERED])
def test_a_hard_below_usage_is_a_warning(why: str, hard: str, taken: str, listed: str) -> None:
    assert lowered_below(group("nlp", hard=hard), res(taken)) == (
        f"group nlp is over its quota now: {listed}; nothing that runs is stopped, growth is refused"
    )


def test_a_hard_that_covers_usage_is_no_warning() -> None:
    assert lowered_below(group("nlp", hard="cpu=10"), res("cpu=10 gpu=5")) is None
