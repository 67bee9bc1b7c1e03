"""Change, create and delete groups by forms, as a browser without JavaScript does."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web

from bizrq.kube.client import NotFound
from bizrq.store.groups import GROUPS
from tests.support import objects
from tests.web.conftest import Answer, Browser, Pages, World, serving

EDIT = "/groups/nlp/edit"


@pytest.fixture
async def browser(world: World, pages: Pages) -> Browser:
    await world.group("ai", cpu=60, used={"cpu": 20})
    await world.group("nlp", "ai", cpu=20, used={"cpu": 15})
    await world.group("chat", "nlp", cpu=5)
    return await pages.signed_in(world.box.token)


async def generation(world: World, name: str = "nlp") -> int:
    return (await world.admin.get(GROUPS, name))["metadata"]["generation"]


async def hard(world: World, name: str = "nlp") -> dict[str, Any]:
    return (await world.admin.get(GROUPS, name))["spec"]["hard"]


async def preview(browser: Browser, cpu: str, **more: str) -> Answer:
    form = await browser.get(EDIT)
    fields = {"base": form.field("base"), "hard:limits.cpu": cpu, "owner": "", "contact": "", **more}
    return await browser.post(EDIT, {**fields, "step": "preview"})


def to_apply(page: Answer) -> dict[str, str]:
    """The fields of the form that applies what the page previews."""
    form = next(form for form in page.text.split("<form")[1:] if 'value="apply"' in form)
    pairs = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    import html

    return {html.unescape(name): html.unescape(value) for name, value in pairs} | {"step": "apply"}


async def test_a_preview_changes_nothing_and_shows_before_and_after(world: World, browser: Browser):
    page = await preview(browser, "-8", contact="#nlp")
    assert page.status == 200
    assert "The API server would accept this" in page.words
    assert "limits.cpu 20 → 12 15 5 → -3 over quota: growth is refused" in page.words
    assert "limits.cpu 60 40 → 45" in page.words
    assert "chat 0 of 5" in page.words
    assert '"path": "/metadata/generation", "value": 1' in page.words
    assert await hard(world) == {"limits.cpu": 20}


async def test_the_request_that_was_previewed_is_the_one_that_is_applied(world: World, browser: Browser):
    sent: list[tuple[str, str]] = []

    async def note(request: web.Request) -> None:
        if request.method == "PATCH":
            sent.append((request.query_string, await request.text()))

    world.box.faults.append(note)
    page = await preview(browser, "+5", contact="#nlp")
    answer = await browser.post(EDIT, to_apply(page))
    assert (answer.status, answer.url.path_qs) == (200, "/groups/nlp?done=changed")
    assert "The group is changed" in answer.words
    assert await hard(world) == {"limits.cpu": "25"}
    (before, body), (after, again) = sent
    assert body == again
    assert before == after + "&dryRun=All"
    assert "resourceVersion" not in body


async def test_the_same_form_applied_twice_is_said_and_done_once(world: World, browser: Browser):
    page = await preview(browser, "+5")
    await browser.post(EDIT, to_apply(page))
    again = await browser.post(EDIT, to_apply(page))
    assert "was applied already" in again.words
    assert await hard(world) == {"limits.cpu": "25"}
    assert await generation(world) == 2


async def test_two_people_lose_nothing(world: World, browser: Browser):
    page = await preview(browser, "+5", contact="#mine")
    await world.admin.patch(GROUPS, "nlp", {"spec": {"hard": {"limits.cpu": "30"}, "owner": "Ada"}})
    second = await browser.post(EDIT, to_apply(page))
    assert "The group was changed meanwhile: limits.cpu: 20 → 30; owner: none → Ada" in second.words
    assert "limits.cpu 30 → 35" in second.words
    assert await hard(world) == {"limits.cpu": "30"}
    await browser.post(EDIT, to_apply(second))
    stored = await world.admin.get(GROUPS, "nlp")
    assert stored["spec"]["hard"] == {"limits.cpu": "35"}
    assert stored["spec"]["contact"] == "#mine"


async def test_two_people_who_change_a_ceiling_by_amounts_all_the_time_lose_nothing(
    world: World, pages: Pages, browser: Browser
):
    """Also where both mean the same change: it is not taken for a form that was sent twice."""
    other = await pages.signed_in(world.box.token)
    previews = 0

    async def raise_it(who: Browser, times: int) -> None:
        nonlocal previews
        for _ in range(times):
            page = await preview(who, "+1")
            while "The group is changed" not in page.words:
                assert "The API server would accept this" in page.words, page.words
                previews += 1
                page = await who.post(EDIT, to_apply(page))

    await asyncio.gather(raise_it(browser, 15), raise_it(other, 15))
    assert await hard(world) == {"limits.cpu": "50"}
    assert await generation(world) == 31
    assert previews > 30


async def test_another_replica_asks_before_it_does_a_relative_change_again(
    world: World, pages: Pages, browser: Browser
):
    """It cannot know that the form was sent twice; an amount that is there already is no question."""
    for typed, said in (("+5", "The group was changed meanwhile: limits.cpu: 20 → 25"), ("30", "was applied already")):
        page = await preview(browser, typed)
        await browser.post(EDIT, to_apply(page))
        async with serving(world) as replica:
            twin = replica.browser()
            twin.session.cookie_jar.update_cookies({each.key: each.value for each in browser.session.cookie_jar})
            assert said in (await twin.post(EDIT, to_apply(page) | {"form-token": page.field("form-token")})).words
    assert await hard(world) == {"limits.cpu": "30"}


async def test_a_status_that_changes_all_the_time_stops_no_edit(world: World, browser: Browser):
    page = await preview(browser, "22")
    await world.count("nlp", cpu=3)
    await browser.post(EDIT, to_apply(page))
    assert await hard(world) == {"limits.cpu": "22"}


async def test_a_refusal_is_beside_its_field_and_the_rest_is_as_typed(world: World, browser: Browser):
    async def refuse(request: web.Request) -> web.Response | None:
        if request.method != "PATCH":
            return None
        text = 'admission webhook "x" denied the request: exceeded quota: ai, requested: limits.cpu=80'
        text += "; run: kubectl bizrq explain ai; ask: #ai"
        return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden", "message": text}, status=403)

    world.box.faults.append(refuse)
    page = await preview(browser, "100", contact="#kept")
    assert page.status == 403
    assert 'id="wrong:limits.cpu"' in page.text
    assert "limits.cpu=80; see what is left, and who has room ; ask: #ai" in page.words
    assert '<a href="/groups/ai">see what is left' in page.text
    assert "kubectl bizrq" not in page.text
    assert "See which relatives have room" in page.words
    assert page.field("hard:limits.cpu") == "100"
    assert page.field("contact") == "#kept"
    assert 'value="apply"' not in page.text


async def test_warnings_of_the_api_server_are_shown(world: World, browser: Browser):
    async def warn(request: web.Request) -> web.Response | None:
        if request.method != "PATCH":
            return None
        stored = await world.admin.get(GROUPS, "nlp")
        return web.json_response(stored, headers={"Warning": '299 - "it is \\"low\\" then"'})

    world.box.faults.append(warn)
    assert 'Warning: it is "low" then' in (await preview(browser, "12")).words


async def test_a_bad_amount_is_said_beside_its_field(browser: Browser):
    page = await preview(browser, "ten")
    assert (page.status, "is not a quantity" in page.words) == (422, True)
    assert page.field("hard:limits.cpu") == "ten"
    assert "Nothing is changed yet" in (await preview(browser, "20")).words
    answer = await browser.post(EDIT, {"base": "{", "hard:limits.cpu": "1", "step": "preview"})
    assert answer.status == 400


async def test_a_ceiling_for_another_resource_is_added_and_one_is_taken_away(world: World, browser: Browser):
    page = await preview(browser, "", **{"more-name-0": "limits.memory", "more-amount-0": "1Gi"})
    assert "limits.memory no ceiling → 1Gi" in page.words
    assert "limits.cpu 20 → no ceiling" in page.words
    await browser.post(EDIT, to_apply(page))
    assert await hard(world) == {"limits.memory": "1Gi"}


async def test_another_manager_is_named_and_wants_a_second_confirmation(world: World, browser: Browser):
    stored = await world.admin.get(GROUPS, "nlp")
    stored["metadata"]["managedFields"] = [{"manager": "argocd-controller", "fieldsV1": {"f:spec": {}}}]

    async def managed(request: web.Request) -> web.Response | None:
        is_read = request.method == "GET" and request.path.endswith("/nlp") and not request.query
        return web.json_response(stored) if is_read else None

    world.box.faults.append(managed)
    page = await preview(browser, "22")
    assert "Argo CD (argocd-controller) keeps this group" in page.words
    assert "kind: BizGroupResourceQuota" in page.words
    assert 'limits.cpu: "22"' in page.words.replace("'", '"')
    fields = to_apply(page)
    again = await browser.post(EDIT, fields)
    assert "Argo CD (argocd-controller) keeps this group" in again.words
    world.box.faults.remove(managed)
    assert await generation(world, "nlp") == 1
    world.box.faults.append(managed)
    answer = await browser.post(EDIT, {**fields, "confirm": "yes"}, follow=False)
    assert answer.headers["Location"] == "/groups/nlp?done=changed"
    world.box.faults.remove(managed)
    assert await hard(world) == {"limits.cpu": "22"}


async def test_who_may_not_change_a_group_is_told_which_permission_is_missing(world: World, pages: Pages):
    await world.group("nlp", cpu=20)
    reader = await pages.signed_in(await world.user("rita", "get", "list", "watch"))
    for path, verb in ((EDIT, "patch"), ("/groups/nlp/delete", "delete"), ("/new?parent=nlp", "create")):
        page = await reader.get(path)
        assert page.status == 200
        assert f"{verb} bizgroupresourcequotas.quota.biz.group" in page.words
        assert "is missing" in page.words
        assert "<button" not in page.text.split("<main")[1]
    answer = await reader.post(EDIT, {"hard:limits.cpu": "1", "step": "preview"})
    assert (answer.status, "cannot patch resource" in answer.words) == (403, True)
    lead = await pages.signed_in(await world.user("lena", "get", "watch", names=["other"]))
    assert (await lead.get(EDIT)).status == 404


async def test_a_group_is_created_after_its_preview_and_only_once(world: World, browser: Browser):
    form = await browser.get("/new?parent=nlp")
    assert form.field("parent") == "nlp"
    fields = {"name": "speech", "parent": "nlp", "hard:limits.cpu": "3", "owner": "Ada", "contact": ""}
    page = await browser.post("/new", {**fields, "step": "preview"})
    assert (page.status, "would create this" in page.words) == (200, True)
    assert "limits.cpu 20 5 → 2" in page.words
    with pytest.raises(NotFound):
        await world.admin.get(GROUPS, "speech")
    created = await browser.post("/new", to_apply(page))
    assert (created.status, created.url.path_qs) == (200, "/groups/speech?done=created")
    assert (await world.admin.get(GROUPS, "speech"))["spec"] == {
        "parentBizGroup": "nlp",
        "hard": {"limits.cpu": "3"},
        "owner": "Ada",
    }
    assert "was created already" in (await browser.post("/new", to_apply(page))).words
    taken = await browser.post("/new", {**fields, "hard:limits.cpu": "4", "step": "preview"})
    assert (taken.status, "already exists" in taken.words) == (409, True)
    assert taken.field("hard:limits.cpu") == "4"


async def test_a_group_without_a_good_name_is_not_created(browser: Browser):
    await browser.get("/new")
    for name in ("", "Not Good", "../x"):
        page = await browser.post("/new", {"name": name, "hard:limits.cpu": "1", "step": "preview"})
        assert page.status == 422, name
        assert page.field("hard:limits.cpu") == "1"


async def test_a_group_is_deleted_after_its_preview_and_a_second_time_is_no_error(world: World, browser: Browser):
    page = await browser.get("/groups/chat/delete")
    assert "The API server would delete it" in page.words
    assert "limits.cpu 20 5 → 10" in page.words
    assert await hard(world, "chat")
    assert (await browser.get("/groups/nlp/delete")).status == 200
    await browser.get("/groups/chat/delete")
    fields = {"uid": page.field("uid")}
    answer = await browser.post("/groups/chat/delete", fields)
    assert (answer.status, "The group is deleted" in answer.words) == (200, True)
    with pytest.raises(NotFound):
        await world.admin.get(GROUPS, "chat")
    await world.admin.create(GROUPS, objects.group("chat", "nlp", cpu=1))
    await browser.get("/")
    assert (await browser.post("/groups/chat/delete", fields)).status == 200
    assert await hard(world, "chat") == {"limits.cpu": 1}


async def test_a_deletion_gives_the_parent_back_what_is_not_spent(world: World, browser: Browser):
    cards = "requests.nvidia.com/gpu"
    await world.group("ml", used={f"cash/{cards}": "80", cards: 4}, **{f"cash/{cards}": "100", cards: 8})
    await world.group("train", "ml", used={f"cash/{cards}": "30"}, **{f"cash/{cards}": "60", cards: 4})
    page = await browser.reads("/groups/train/delete", "Its parent")
    assert f"{cards} 8 4 → 8" in page.words
    assert f"cash/{cards} 100 20 → 50" in page.words


async def test_a_group_that_must_stay_says_why_and_offers_no_deletion(world: World, browser: Browser):
    async def refuse(request: web.Request) -> web.Response | None:
        if request.method != "DELETE":
            return None
        text = 'admission webhook "x" denied the request: group nlp has children: chat; delete them first'
        return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden", "message": text}, status=403)

    world.box.faults.append(refuse)
    page = await browser.get("/groups/nlp/delete")
    assert "It cannot be deleted: group nlp has children: chat; delete them first" in page.words
    assert 'name="uid"' not in page.text
