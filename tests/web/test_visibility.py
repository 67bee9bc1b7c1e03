"""Who sees which groups: no page has what the same credentials may not read."""

from __future__ import annotations

import asyncio

import pytest

from bizrq.store.groups import GROUPS
from tests.support import objects
from tests.web.conftest import Pages, World
from web.reading.rights import Rules, rules_of
from web.reading.visitors import PROOF

TREE = "limits.cpu 10"


@pytest.fixture
async def tree(world: World) -> World:
    """corp > ai > nlp, vision."""
    await world.group("corp", cpu=100, used={"cpu": 77})
    await world.group("ai", "corp", cpu=66, used={"cpu": 55})
    await world.group("nlp", "ai", cpu=22, used={"cpu": 21})
    await world.group("vision", "ai", cpu=33, used={"cpu": 3})
    return world


def test_rules_that_name_groups_are_read_and_others_name_none():
    rule = {"apiGroups": ["quota.biz.group"], "resources": ["bizgroupresourcequotas"], "verbs": ["get", "watch"]}
    rules = [
        {**rule, "resourceNames": ["nlp"]},
        {**rule, "verbs": ["*"], "resourceNames": ["ai"]},
        {**rule, "verbs": ["use"], "resourceNames": ["usable"]},
        {**rule, "apiGroups": ["apps"], "resourceNames": ["other"]},
        {**rule, "resources": ["bizgroupresourcequotas/status"], "resourceNames": ["status"]},
        rule,
        {"verbs": ["get"]},
    ]
    assert rules_of(rules) == Rules(frozenset({"nlp", "ai"}), frozenset({"ai"}))


async def test_who_may_list_groups_sees_the_tree(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("ada", "get", "list", "watch"))
    page = await browser.get("/tree")
    assert page.status == 200
    for name in ("corp", "ai", "nlp", "vision"):
        assert f'href="/groups/{name}"' in page.text
    assert "not visible" not in page.words
    assert "21 of 22" in page.words


async def test_two_who_may_list_share_one_watch_of_groups(tree: World, pages: Pages):
    for name in ("ada", "bob"):
        await pages.signed_in(await tree.user(name, "get", "list", "watch"))
    assert tree.box.open_watches == 1


async def test_a_lead_sees_the_groups_that_rules_name_and_is_told_that_others_are_not_visible(
    tree: World, pages: Pages
):
    browser = await pages.signed_in(await tree.user("lena", "get", "list", "watch", names=["nlp"]))
    overview = await browser.get("/")
    assert "1 group that you may read" in overview.words
    assert "21 of 22 taken" in overview.words
    page = await browser.get("/groups/nlp")
    assert page.status == 200
    assert "ai (not visible to you)" in page.words
    for text in (overview.text, page.text, (await browser.get("/tree")).text):
        for hidden in ("vision", "corp", "77", "66", "55", "33"):
            assert f">{hidden}<" not in text
    for name in ("ai", "vision", "corp", "nothing"):
        answer = await browser.get(f"/groups/{name}")
        assert answer.status == 404
        assert f"There is no group {name} that you may read" in answer.words


async def test_a_group_that_does_not_exist_and_one_that_may_not_be_read_have_the_same_page(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("lena", "get", "watch", names=["nlp"]))
    hidden, missing = await browser.get("/groups/vision"), await browser.get("/groups/absent")
    assert hidden.status == missing.status == 404
    assert hidden.text.replace("vision", "absent") == missing.text


async def test_nobody_in_particular_sees_no_group_and_is_told_what_to_do(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("nina"))
    page = await browser.get("/")
    assert page.status == 200
    assert "No rule names a group that you may read" in page.words
    assert "bizrq allow USER GROUP --read" in page.words
    assert (await browser.get("/groups/nlp")).status == 404
    assert "There is no group that you may read" in (await browser.get("/tree")).words


async def test_a_right_that_is_given_or_taken_counts_within_a_minute(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("lena", "get", "watch", names=["nlp"]))
    await tree.admin.patch(
        objects.CLUSTER_ROLES,
        "role-lena",
        {"rules": [{**objects.cluster_role("x", "get", "watch", names=["vision"])["rules"][0]}]},
    )
    await asyncio.sleep(PROOF + 1)
    page = await browser.get("/")
    assert "vision" in page.words
    assert (await browser.get("/groups/nlp")).status == 404
    await tree.admin.delete(objects.CLUSTER_ROLES, "role-lena")
    await asyncio.sleep(PROOF + 1)
    assert "No rule names a group" in (await browser.get("/")).words


async def test_a_list_right_that_is_taken_away_takes_the_tree_away(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("ada", "get", "list", "watch"))
    assert "vision" in (await browser.get("/tree")).words
    await tree.admin.delete(objects.CLUSTER_ROLES, "role-ada")
    await asyncio.sleep(PROOF + 1)
    assert "vision" not in (await browser.get("/tree")).words
    assert pages.web.visitors.shared.store is None


async def test_the_store_lives_on_with_another_lender(tree: World, pages: Pages):
    first, second = await tree.user("ada", "get", "list", "watch"), await tree.user("bob", "get", "list", "watch")
    ada, bob = await pages.signed_in(first), await pages.signed_in(second)
    await ada.get("/")
    await ada.post("/sign-out", {})
    tree.box.remove_token(first)
    await tree.admin.create(GROUPS, objects.group("speech", "ai", cpu=1))
    await bob.reads("/tree", "speech")


async def test_a_group_is_followed_by_name(tree: World, pages: Pages):
    browser = await pages.signed_in(await tree.user("lena", "get", "watch", names=["nlp"]))
    await tree.count("nlp", cpu=5)
    await browser.reads("/", "5 of 22 taken")
    await tree.admin.delete(GROUPS, "nlp")
    await browser.reads("/", "0 groups")
    assert (await browser.get("/groups/nlp")).status == 404
