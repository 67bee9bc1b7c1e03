"""What the pages show."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from bizrq.quota.allowance import Line
from bizrq.store.groups import GROUPS
from tests.support import objects
from tests.support.language import entry, res
from tests.support.objects import DEPLOYMENTS, group
from tests.web.conftest import Browser, Pages, World

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=y>\u202e\x1b[31m"


@pytest.fixture
async def browser(world: World, pages: Pages) -> Browser:
    memory = "requests.memory"
    await world.group("corp", cpu=100, used={"cpu": 70, memory: "10Gi"}, **{memory: "1Ti"})
    await world.group("ai", "corp", cpu=60, used={"cpu": 57}, **{memory: "100Gi"})
    await world.group("nlp", "ai", cpu=20, used={"cpu": 25}, **{memory: "50Gi"})
    await world.group("vision", "ai", cpu=30, used={"cpu": 3}, **{memory: "50Gi"})
    return await pages.signed_in(world.box.token)


class Elements(HTMLParser):
    """The elements of a page, by tag; it fails on one that is not closed."""

    VOID = ("meta", "link", "input", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.labels += [given["for"] or ""] if "for" in given else []
        assert not any(name.startswith("on") for name in given)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_overview_has_what_is_over_quota_first_and_then_the_scarcest(browser: Browser):
    words = (await browser.get("/")).words
    assert "1 over quota" in words
    order = [words.index(part) for part in ("Over quota", "25 of 20 taken", "57 of 60", "70 of 100", "3 of 30")]
    assert order == sorted(order)
    assert "-5 left" in words


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ("", ["corp", "ai", "nlp", "vision"], []),
        ("?q=LP", ["corp", "ai", "nlp"], ["vision"]),
        ("?scarce=1", ["corp", "ai", "nlp"], ["vision"]),
        ("?scarce=1&resource=requests.memory", [], ["corp", "ai", "nlp", "vision"]),
        ("?resource=requests.memory", ["corp", "ai", "nlp", "vision"], []),
        ("?top=ai", ["ai", "nlp", "vision"], ["corp"]),
        ("?top=absent", [], ["corp"]),
        ("?view=table&q=vision", ["vision"], ["nlp"]),
        ("?view=icicle&q=vision", ["corp", "ai", "vision"], ["nlp"]),
        ("?view=icicle&top=absent", [], ["corp"]),
        ("?q=nothing", [], ["corp"]),
    ],
)
async def test_the_tree_has_the_groups_that_are_asked_for_and_those_above_them(browser, query, there, absent):
    page = await browser.get(f"/tree{query}")
    assert page.status == 200
    for name in there:
        assert f'href="/groups/{name}"' in page.text, name
    for name in absent:
        assert f'href="/groups/{name}"' not in page.text, name
    if not there:
        assert "Show all groups" in page.words


async def test_a_group_is_shown_below_a_parent_that_has_no_ceiling_for_the_resource(world: World, browser: Browser):
    await world.group("free", **{"requests.memory": "1Gi"})
    await world.group("caged", "free", cpu=1, **{"requests.memory": "1Gi"})
    for query in ("?resource=limits.cpu", "?view=icicle&resource=limits.cpu", "?view=table&resource=limits.cpu"):
        await browser.reads(f"/tree{query}", "caged")


async def test_the_tree_marks_what_was_searched_for_and_orders_by_percent(browser: Browser):
    assert "v<mark>isi</mark>on" in (await browser.get("/tree?q=isi")).text
    text = (await browser.get("/tree?sort=percent")).text
    assert text.index("/groups/nlp") < text.index("/groups/vision")


async def test_the_table_has_every_amount(browser: Browser):
    words = (await browser.get("/tree?view=table&q=nlp&resource=limits.cpu")).words
    assert "nlp limits.cpu 20 25 25 0 0 -5 125%" in words


async def test_the_page_of_a_group_has_its_path_resources_relatives_children_and_workloads(
    world: World, browser: Browser
):
    await world.admin.create(DEPLOYMENTS, objects.deployment("web", "nlp", 3, cpu="2"))
    await world.admin.create(DEPLOYMENTS, objects.deployment("big", "nlp", 4, cpu="3"))
    await world.admin.patch(GROUPS, "nlp", {"spec": {"owner": "Lena", "contact": "#nlp"}})
    words = (await browser.get("/groups/nlp")).words
    assert "corp ai nlp nlp over quota" in words
    assert "125% 20 25 25 0 0 -5" in words
    assert "3 left vision 27" in words
    assert words.index("big Deployment default limits.cpu=12") < words.index("web Deployment default limits.cpu=6")
    above = (await browser.get("/groups/ai")).words
    assert "Children child taken % of its scarcest resource nlp over quota 125% 25 of 20 limits.cpu" in above
    assert "This group is a root" in (await browser.get("/groups/corp")).words


async def test_the_page_of_a_group_shows_what_processes_hold_ahead_apart_from_what_is_reserved(
    world: World, browser: Browser
):
    assert "held ahead" not in (await browser.get("/groups/vision")).words.lower()
    stored = await world.admin.get(GROUPS, "vision")
    held = Line("bizrq-webhooks-journal-1", 7, 1, res("cpu=4"))
    stored["status"]["reservations"] = [entry("web", "cpu=2").line, held.entry.line]
    await world.admin.replace(GROUPS, stored, subresource="status")
    words = (await browser.get("/groups/vision")).words
    assert "granted reserved left held ahead limits.cpu 17% 30 3 3 0 2 25 4" in words
    assert "Held ahead is the part of what is left that webhook processes admit by" in words
    assert "vision limits.cpu 30 3 3 0 2 25 17%" in (await browser.get("/tree?view=table&q=vision")).words


async def test_a_group_is_opened_by_its_name(browser: Browser):
    assert (await browser.get("/groups?name=nlp")).url.path == "/groups/nlp"
    assert (await browser.get("/groups?name=")).status == 404
    for name in ("..%2f..%2fapi", "%00", "a%20b", "%3Cb%3E", "x" * 300, "%ff"):
        assert (await browser.get(f"/groups/{name}")).status == 404, name


async def test_a_group_without_ceilings_or_counts_is_no_error(world: World, browser: Browser):
    await world.admin.create(GROUPS, objects.group("fresh", cpu=1))
    await world.admin.create(GROUPS, objects.group("free"))
    assert "not counted yet" in (await browser.get("/groups/fresh")).words
    assert "has no ceilings" in (await browser.get("/groups/free")).words
    for path in ("/", "/tree", "/tree?view=table"):
        assert (await browser.get(path)).status == 200


async def test_one_group_that_cannot_be_read_is_named_and_hides_no_other(world: World, browser: Browser):
    stored = await world.admin.get(GROUPS, "vision")
    stored["status"]["used"] = {"limits.cpu": "many"}
    await world.admin.replace(GROUPS, stored, subresource="status")
    for path in ("/", "/tree"):
        page = await browser.get(path)
        assert page.status == 200
        assert "group vision: status:" in page.words
        assert "/groups/nlp" in page.text
    assert (await browser.get("/groups/vision")).status == 422


async def test_groups_whose_parents_form_a_cycle_are_shown_once(world: World, browser: Browser):
    for name, parent in (("x", "y"), ("y", "x"), ("z", "y")):
        await world.admin.create(GROUPS, group(name, parent))
    assert (await browser.get("/tree?view=icicle")).status == 200
    for query in ("", "?top=y", "?top=z", "?q=z"):
        page = await browser.get(f"/tree{query}")
        assert page.status == 200
        for name in ("x", "y", "z") if query != "?top=z" else ("z",):
            assert page.text.count(f'href="/groups/{name}"') == 1, (query, name)


async def test_hostile_text_becomes_no_element(world: World, browser: Browser):
    before = {path: Elements((await browser.get(path)).text).found for path in ("/", "/groups/ai")}
    stored = await world.admin.get(GROUPS, "ai")
    stored["status"]["conditions"] = [
        {
            "type": kind,
            "status": "True",
            "reason": "X",
            "message": HOSTILE,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("CashLow", "Odd")
    ]
    stored["status"]["ending"] = [HOSTILE]
    await world.admin.replace(GROUPS, stored, subresource="status")
    await world.admin.patch(GROUPS, "ai", {"spec": {"owner": "<b>x</b>", "contact": '"><script src=//e>'}})
    await browser.reads("/groups/ai", "alert(1)")
    for path, known in before.items():
        text = (await browser.get(path)).text
        found = Elements(text).found
        assert found.count("script") == known.count("script") == 3
        assert "img" not in found
        assert "b" not in found
        assert "\u202e" not in text
        assert "\x1b" not in text


async def test_what_an_address_or_a_parent_says_is_shown_without_the_characters_that_a_browser_obeys(
    world: World, browser: Browser
):
    odd = "x\u202ey"
    orphan = objects.group("orphan", cpu=1)
    await world.admin.create(GROUPS, {**orphan, "spec": {**orphan["spec"], "parentBizGroup": odd}})
    for path in (f"/groups/{quote(odd)}", "/groups/orphan", "/groups/orphan/delete"):
        text = (await browser.get(path)).text
        assert "x\ufffdy" in text, path
        assert odd not in text, path
    title = (await browser.get(f"/new?parent={quote(odd)}")).text.partition("</title>")[0]
    assert odd not in title


async def test_a_group_with_a_ceiling_that_this_version_does_not_know_is_no_error_of_ours(
    world: World, browser: Browser
):
    strange = objects.group("strange", "ai", cpu=1)
    strange["spec"]["hard"]["vendor.example/card"] = "1"
    await world.admin.create(GROUPS, strange)
    await browser.reads("/tree", "strange")
    for path in ("/groups/strange", "/groups/strange/edit", "/groups/strange/delete"):
        answer = await browser.get(path)
        assert answer.status in (200, 422), path
        assert "vendor.example/card" in answer.words, path


def places(text: str) -> dict[str, tuple[float, float, int]]:
    """Where an icicle has each group: its left edge and its width in percent, and its level."""
    found = re.findall(r'id="cell-([a-z]+)".*?<svg x="([0-9.]+)%" y="([0-9]+)" width="([0-9.]+)%"', text)
    return {name: (float(x), float(width), int(y) // 40) for name, x, y, width in found}


async def test_an_icicle_is_as_wide_as_what_groups_hold_and_has_its_numbers_in_a_table(world: World, browser: Browser):
    await world.group("lab", cpu=60, used={"cpu": 6})
    await world.group("bare", **{"requests.memory": "1Gi"})
    stored = await world.admin.get(GROUPS, "ai")
    stored["status"]["selfUsed"] = {"limits.cpu": "2", "requests.memory": "0"}
    await world.admin.replace(GROUPS, stored, subresource="status")
    page = await browser.reads("/tree?view=icicle&resource=limits.cpu", "lab")
    found = places(page.text)
    corp = 100 * 100 / 160
    assert found["corp"] == pytest.approx((0, corp, 0), abs=0.001)
    assert found["lab"] == pytest.approx((corp, 100 - corp, 0), abs=0.001)
    # All of corp's 70 used cores are its own here, and its child is right of them: 130 do not fit into 100.
    assert found["ai"] == pytest.approx((corp * 70 / 130, corp * 60 / 130, 1), abs=0.001)
    wide = corp * 60 / 130
    # What ai uses itself comes first. Its child nlp takes 25, and so it holds more than its ceiling of 20.
    assert found["nlp"] == pytest.approx((corp * 70 / 130 + wide * 2 / 60, wide * 25 / 60, 2), abs=0.001)
    assert "nlp over quota ai 20 25 0 0 -5 125%" in page.words
    assert "Groups without a ceiling for it are not drawn: 1." in page.words
    assert 'href="/tree?resource=limits.cpu&amp;view=icicle&amp;top=ai"' in page.text
    assert 'aria-label="nlp: 25 of 20 taken, 125%"' in page.text
    below = await browser.get("/tree?view=icicle&resource=limits.cpu&top=ai")
    assert places(below.text)["ai"] == (0, 100, 0)
    assert "corp" not in places(below.text)
    assert "Up to corp" in below.words


async def test_an_icicle_is_of_the_resource_that_most_groups_have(world: World, browser: Browser):
    await world.group("other", **{"requests.memory": "1Gi"})
    page = await browser.reads("/tree?view=icicle", "other")
    assert "what it holds of requests.memory" in page.words
    assert '<option value="requests.memory" selected="">' in page.text


async def test_an_icicle_of_many_levels_and_narrow_groups_says_what_is_not_drawn(world: World, browser: Browser):
    for number in range(15):
        await world.group(f"deep{number}", f"deep{number - 1}" if number else "", cpu=1000)
    await world.group("narrow", "deep0", cpu="1m")
    page = await browser.reads("/tree?view=icicle&resource=limits.cpu", "deep14")
    assert 'id="cell-deep11"' in page.text
    assert 'id="cell-deep12"' not in page.text
    assert "of the groups are too narrow or too deep to be drawn" in page.words
    assert 'href="/groups/narrow"' in page.text


@pytest.mark.parametrize(
    "path",
    ["/", "/tree", "/tree?view=table", "/tree?view=icicle", "/tree?view=icicle&top=ai", "/groups/ai", "/groups/nlp"],
)
async def test_every_page_is_well_formed_and_names_each_id_once(browser: Browser, path: str):
    text = (await browser.get(path)).text
    page = Elements(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labels) <= set(page.ids)
    assert page.found.count("h1") == 1
    assert 'lang="en"' in text
    assert 'href="#main"' in text


async def test_a_part_of_a_page_is_asked_for_again_alone(browser: Browser):
    whole = await browser.get("/tree")
    part = await browser.get("/tree", **{"HX-Request": "true"})
    assert part.text.startswith('<div id="live"')
    assert part.text in whole.text
    assert 'hx-trigger="sse:changed"' in part.text
