"""What holds on every page in a real browser: nothing foreign, any width, dark, the keyboard, accessibility."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import axe
from tests.browser.conftest import ADDRESSES, People, Person
from tests.cli.conftest import Bizrq
from tests.web.conftest import World

pytestmark = pytest.mark.browser(driver="playwright")

_REACHABLE = """() => {
  const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")];
  const seen = all.filter(each => each.checkVisibility({ visibilityProperty: true }));
  seen.forEach((each, number) => { each.dataset.number = number; });
  return seen.length;
}"""
_FOCUSED = """() => {
  const at = document.activeElement;
  return [at.dataset.number ?? null, getComputedStyle(at).outlineStyle];
}"""


async def each_page(person: Person):
    """Open one page after the other, last that of an answer."""
    for path in ADDRESSES:
        await person.open(path)
        yield path
    await person.check_manifests()
    yield "an answer"


async def test_no_request_leaves_the_origin_and_no_policy_is_violated(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token)
    async for path in each_page(person):
        assert await person.run("() => violations") == [], path
    assert (person.left, person.complaints) == ([], [])


@pytest.mark.parametrize("scripts", [True, False])
async def test_no_page_scrolls_sideways_on_a_small_phone(world: World, people: People, scripts: bool) -> None:
    person = await people.sign_in(world.box.token, viewport={"width": 320, "height": 700}, java_script_enabled=scripts)
    async for path in each_page(person):
        assert await person.run("() => document.documentElement.scrollWidth") <= 320, path


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
async def test_a_page_is_dark_where_people_want_that(world: World, people: People, scheme: str, is_dark: bool) -> None:
    person = await people.sign_in(world.box.token, color_scheme=scheme)
    async for path in each_page(person):
        paper, ink = await person.run(
            """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]
            .map(each => each.match(/[0-9]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"""
        )
        assert (paper < ink) == is_dark, path
        assert abs(paper - ink) > 400, path


async def test_the_keyboard_alone_reaches_everything_and_shows_where_it_is(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token)
    async for path in each_page(person):
        count = await person.run(_REACHABLE)
        await person.run("() => { document.activeElement.blur(); window.getSelection().removeAllRanges(); }")
        reached: set[str] = set()
        # Some fields, such as that of a date, take several steps.
        for _ in range(count + 20):
            await person.page.keyboard.press("Tab")
            number, outline = await person.run(_FOCUSED)
            if number is not None:
                assert outline != "none", (path, number)
                reached.add(number)
            if len(reached) == count:
                break
        assert len(reached) == count, (path, {str(n) for n in range(count)} - reached)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(world: World, people: People, scheme: str) -> None:
    try:
        script = axe.script()
    except axe.NotHere as error:
        pytest.skip(str(error))
    person = await people.sign_in(world.box.token, color_scheme=scheme)
    found: list[tuple[str, str, str]] = []
    async for path in each_page(person):
        await person.run(script)
        for each in (await person.run("() => axe.run()"))["violations"]:
            found += [(path, each["id"], node["html"][:200]) for node in each["nodes"]]
    assert found == []


# Stories


@pytest.mark.parametrize("scripts", [True, False])
async def test_finance_downloads_the_bill_of_the_last_period(
    world: World, people: People, tmp_path: Path, scripts: bool
) -> None:
    person = await people.sign_in(world.box.token, java_script_enabled=scripts)
    page = person.page
    await page.get_by_role("link", name="Hours").click()
    await page.get_by_role("link", name="Last").click()
    await page.get_by_label("workload").check()
    await page.get_by_role("button", name="Show").click()
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="Download as CSV").click()
    file = tmp_path / "bill.csv"
    await (await waiting.value).save_as(file)
    bizrq = Bizrq(world.box.write_kubeconfig(tmp_path / "cli"), world.admin)
    printed = await bizrq("report", "--period", "last", "--by", "group", "--by", "workload", "-o", "csv")
    assert file.read_text() == printed.out
    assert "tfjobs.kubeflow.org/team-a/train" in printed.out


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_lead_sees_what_does_not_fit_and_who_has_room(world: World, people: People, scripts: bool) -> None:
    person = await people.sign_in(world.box.token, java_script_enabled=scripts)
    await person.check_manifests("a: [1\nb: 2")
    assert await person.page.get_by_label("Manifests").input_value() == "a: [1\nb: 2"
    assert "line 2" in await person.page.locator(".wrong").inner_text()
    await person.check_manifests()
    words = await person.page.locator("main").inner_text()
    assert "1 of 3 fits, 2 do not." in words
    assert "limits.cpu: asks for 9 more, 4 of 10 left: 5 short" in words
    assert "its parent ai does not limit it" in words
