"""`bizrq set` and `bizrq create`: what they send, and what they say of it."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.builtin import builtin_catalog
from bizrq.figures.changes.ceilings import change_ceilings, parse_ceilings
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def hard(bizrq: Bizrq, name: str) -> dict[str, str]:
    return (await bizrq.client.get(GROUPS, name))["spec"]["hard"]


async def test_a_ceiling_is_set_raised_and_lowered(bizrq: Bizrq) -> None:
    before = await hard(bizrq, "nlp")
    steps = [
        ("limits.cpu=12", "nlp limits.cpu: 10 -> 12, used 6\n"),
        ("limits.cpu=+500m", "nlp limits.cpu: 12 -> 12500m, used 6\n"),
        ("limits.cpu=-2500m", "nlp limits.cpu: 12500m -> 10, used 6\n"),
        ("memory=1Gi", "nlp requests.memory: unlimited -> 1Gi, used ?\n"),
    ]
    for words, said in steps:
        result = await bizrq("set", "nlp", words)
        assert (result.code, result.out, result.err) == (0, said, "")
    assert await hard(bizrq, "nlp") == {**before, "requests.memory": "1Gi"}
    await bizrq.client.patch(GROUPS, "nlp", {"spec": {"hard": {"requests.memory": None}}})


async def test_a_dry_run_changes_nothing_and_less_than_is_used_is_a_warning(bizrq: Bizrq) -> None:
    before = await hard(bizrq, "nlp")
    result = await bizrq("set", "nlp", "cpu=2", "limits.cpu.A4=+1", "--dry-run")
    assert result.out.splitlines() == [
        "nlp limits.cpu: 10 -> 2, used 6 (dry run)",
        "nlp limits.cpu.A4: 3 -> 4, used 4 (dry run)",
    ]
    assert result.err == (
        "bizrq: group nlp is over its quota then: limits.cpu 2 (used 6); "
        "nothing that runs is stopped, growth is refused\n"
    )
    assert await hard(bizrq, "nlp") == before


async def test_changes_by_an_amount_that_meet_are_all_kept(bizrq: Bizrq) -> None:
    before = int((await hard(bizrq, "vision"))["limits.cpu"])
    more = parse_ceilings(["limits.cpu=+1"], relative=True)
    await asyncio.gather(
        *(change_ceilings(bizrq.client, "vision", more, builtin_catalog(), dry_run=False) for _ in range(3))
    )
    assert (await hard(bizrq, "vision"))["limits.cpu"] == str(before + 3)
    assert (await bizrq("set", "vision", "limits.cpu=-3")).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set nlp limits.cpu", "limits.cpu: write RESOURCE=AMOUNT, for example limits.cpu=10"),
        ("set nlp =4", "=4: write RESOURCE=AMOUNT"),
        ("set nlp limits.cpu=--4", "limits.cpu=--4: a ceiling is not below 0"),
        ("set nlp limits.cpu=-11", "nlp: limits.cpu: 10 is less than 11: a ceiling is not below 0"),
        ("set nlp limits.cpu=x", "limits.cpu=x: "),
        ("set nlp limits.cpu=1 limits.cpu=2", "limits.cpu=2: limits.cpu is given twice"),
        ("set nlp pods=+1", "nlp has no ceiling for pods: write pods=AMOUNT to set one"),
        ("set npl limits.cpu=1", "there is no group npl; there are: ai, corp, nlp, ocr, vision"),
        ("create new limits.cpu=+1x", "limits.cpu=+1x: "),
        ("create Bad_Name limits.cpu=1", "'Bad_Name': no group can have this name: write at most 63 "),
        ("create own limits.cpu=1 --parent own", 'BizGroupResourceQuota.quota.biz.group "own" is invalid: '),
        ("create new limits.cpu=-1", "limits.cpu=-1: a ceiling is not below 0"),
    ],
)
async def test_what_cannot_be_meant_is_one_line(bizrq: Bizrq, words: str, said: str) -> None:
    result = await bizrq(*words.split())
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"bizrq: {said}")


async def test_a_group_is_created_as_it_is_asked_for(bizrq: Bizrq) -> None:
    words = ["create", "speech", "limits.cpu=4", "cash/requests.nvidia.com/gpu=1k", "--parent", "ai", "--owner", "Ann"]
    tried = await bizrq(*words, "--dry-run")
    assert tried.out == "bizgroupresourcequota.quota.biz.group/speech would be created\n"
    assert (await bizrq("get", "speech")).code == 2
    assert (await bizrq(*words)).out == "bizgroupresourcequota.quota.biz.group/speech created\n"
    assert (await bizrq.client.get(GROUPS, "speech"))["spec"] == {
        "parentBizGroup": "ai",
        "owner": "Ann",
        "hard": {"limits.cpu": "4", "cash/requests.nvidia.com/gpu": "1k"},
    }
    again = await bizrq(*words)
    assert (again.code, "already exists" in again.err) == (3, True)
    await bizrq.client.delete(GROUPS, "speech")
