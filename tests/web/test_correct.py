"""Correct hours by a form, as a browser without JavaScript does."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from bizrq.store.hours import CORRECTIONS
from tests.support import objects
from tests.support.objects import Object
from tests.support.records import GPU
from tests.web.conftest import Answer, Browser, Pages, World
from tests.web.test_edit import to_apply

FORM = "/hours/nlp/correct"
A100 = f"{GPU}.A100"


async def some_groups(world: World) -> None:
    """A group that has spent 30 of its 100 hours; ai has given it more than it holds itself."""
    await world.group("ai", used={"hours": 100}, hours=500, cpu=9)
    await world.group("nlp", "ai", used={"hours": 30}, hours=100, cpu=4)


@pytest.fixture
async def browser(world: World, pages: Pages) -> Browser:
    await some_groups(world)
    return await pages.signed_in(world.box.token)


async def specs(world: World) -> list[Object]:
    return [each["spec"] for each in (await world.admin.list(CORRECTIONS))[0]]


async def preview(browser: Browser, hours: str, reason: str = "node-7 was down", **more: str) -> Answer:
    await browser.get(FORM)
    return await browser.post(FORM, {f"hours:{GPU}": hours, "reason": reason, "step": "preview", **more})


def refusing(world: World, text: str) -> None:
    async def refuse(request: web.Request) -> web.Response | None:
        if request.method != "POST" or CORRECTIONS.plural not in request.path:
            return None
        said = f'admission webhook "x" denied the request: {text}'
        return web.json_response({"kind": "Status", "code": 422, "reason": "Invalid", "message": said}, status=422)

    world.box.faults.append(refuse)


async def test_the_form_has_a_field_for_each_budget(browser: Browser):
    page = await browser.get(FORM)
    assert page.status == 200
    assert page.field(f"hours:{GPU}") == ""
    assert f"{GPU} 30 70" in page.words
    assert "limits.cpu" not in page.words
    assert f'href="{FORM}"' in (await browser.get("/hours/nlp")).text


@pytest.mark.parametrize(("hours", "then"), [("-12.5", "30 → 17500m 70 → 82500m"), ("+80", "30 → 110 70 → -10")])
async def test_a_preview_makes_nothing_and_shows_before_and_after(
    world: World, browser: Browser, hours: str, then: str
):
    page = await preview(browser, hours)
    assert (page.status, "The API server would accept this" in page.words) == (200, True)
    assert f"{GPU} {hours} 100 {then}" in page.words
    assert ("hours spent" in page.words) is (hours == "+80")
    of_parent = "400 → 390 " if hours == "+80" else "500 400 "
    assert of_parent in page.words.partition("Its parent, before and after")[2]
    assert "Reason: node-7 was down" in page.words
    assert await specs(world) == []


async def test_a_credit_of_more_than_was_spent_is_shown_as_0(browser: Browser):
    assert f"{GPU} -40 100 30 → 0 70 → 100" in (await preview(browser, "-40")).words


async def test_the_request_that_was_previewed_is_the_one_that_is_applied_and_done_once(world: World, browser: Browser):
    sent: list[tuple[str, str]] = []

    async def note(request: web.Request) -> None:
        if request.method == "POST" and CORRECTIONS.plural in request.path:
            sent.append((request.query_string, await request.text()))

    world.box.faults.append(note)
    fields = to_apply(await preview(browser, "-12.5"))
    answer = await browser.post(FORM, fields)
    assert (answer.status, answer.url.path_qs) == (200, "/hours/nlp?done=corrected")
    assert "The correction is made" in answer.words
    (before, body), (after, again) = sent
    assert body == again
    assert before == after + "&dryRun=All"
    made = [{"group": "nlp", "hours": {GPU: "-12.5"}, "reason": "node-7 was down", "by": "kubernetes-admin"}]
    assert await specs(world) == made
    await browser.get(FORM)
    twice = await browser.post(FORM, fields)
    assert "was made already; nothing was done again" in twice.words
    assert await specs(world) == made
    other = await browser.post(FORM, {**fields, f"hours:{GPU}": "5"})
    assert (other.status, "To make this one, too, preview it" in other.words) == (409, True)
    assert await specs(world) == made


async def test_the_name_of_a_correction_is_of_its_group_whatever_the_form_says(world: World, browser: Browser):
    for name in ("", "../x", "ai-0123456789abcdef", "nlp-xyz", "nlp-" + "0" * 300):
        page = await preview(browser, "1", step="apply", correction=name)
        assert "The API server would accept this" in page.words, name
    assert await specs(world) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hours": "many"}, "'many' is not a quantity"),
        ({"hours": "0"}, "the amount must not be 0"),
        ({"hours": ""}, "Write some hours."),
        ({"hours": "1", "reason": "  "}, "Say why."),
        ({"hours": "1", "hours:requests.nvidia.com/gpux": "1"}, "did you mean"),
        ({"hours": "1", f"hours:cash/{GPU}": "1"}, f"{GPU} is given twice"),
    ],
)
async def test_bad_input_is_said_beside_its_field_and_the_rest_is_as_typed(
    world: World, browser: Browser, fields: dict[str, Any], why: str
):
    page = await preview(browser, **{"hours": "", "reason": "kept", **fields})
    assert (page.status, why in page.words) == (422, True), page.words
    assert page.field(f"hours:{GPU}") == fields["hours"]
    assert page.field("reason") == fields.get("reason", "kept")
    assert 'value="apply"' not in page.text


@pytest.mark.parametrize(
    ("text", "beside"),
    [
        (f"correction c: spec.hours: {GPU}.A100 is part of {GPU}: give that, too", f"wrong:{GPU}"),
        ("correction c: spec.reason: say why", "wrong:spec.reason"),
        ("quota nlp is being deleted", ""),
    ],
)
async def test_a_refusal_is_beside_its_field(world: World, browser: Browser, text: str, beside: str):
    refusing(world, text)
    page = await preview(browser, "3")
    assert page.status == 422
    assert text in page.words
    assert beside == "" or f'id="{beside}"' in page.text
    assert (page.field(f"hours:{GPU}"), page.field("reason")) == ("3", "node-7 was down")


async def test_who_may_not_correct_sees_the_missing_permission(world: World, pages: Pages):
    await some_groups(world)
    browser = await pages.signed_in(await world.user("rita", "get", "list", "watch"))
    page = await browser.get(FORM)
    assert "create bizgroupcorrections.quota.biz.group is missing" in page.words
    assert "hours:" not in page.text
    refused = await preview(browser, "1")
    assert (refused.status, 'cannot create resource "bizgroupcorrections"' in refused.words) == (403, True)


async def test_a_lead_of_one_group_corrects_it_and_sees_nothing_of_its_parent(world: World, pages: Pages):
    await some_groups(world)
    token = await world.user("lena", "get", "watch", names=["nlp"])
    role = objects.cluster_role("corrects", "create")
    role["rules"][0]["resources"] = [CORRECTIONS.plural]
    await world.admin.create(objects.CLUSTER_ROLES, role)
    await world.admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound("corrects", "lena"))
    browser = await pages.signed_in(token)
    page = await preview(browser, "-1")
    assert "ai is not visible to you" in page.words
    fields = to_apply(page)
    assert "The correction is made" in (await browser.post(FORM, fields)).words
    await browser.get(FORM)
    assert "was made already" in (await browser.post(FORM, fields)).words
    assert [spec["by"] for spec in await specs(world)] == ["lena"]
    for path in ("/hours/ai/correct", "/hours/absent/correct"):
        assert (await browser.get(path)).status == 404


async def test_a_group_without_budgets_has_no_form(world: World, browser: Browser):
    await world.group("free", cpu=1)
    page = await browser.reads("/hours/free/correct", "This group has no budget of hours")
    assert "hours:" not in page.text
    page = await browser.post("/hours/free/correct", {f"hours:{GPU}": "1", "reason": "x", "step": "preview"})
    assert f"{GPU} +1 no budget" in page.words
