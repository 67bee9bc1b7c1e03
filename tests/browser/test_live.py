"""An open page while others change groups: what people do in it survives, and how soon it shows the change."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from bizrq.store.groups import GROUPS
from tests.browser.conftest import People, Person
from tests.web.conftest import World
from web.live import PACE

pytestmark = pytest.mark.browser(driver="playwright")

#: How often the time until a page shows a change is measured.
ROUNDS = 20


async def live(person: Person, text: str) -> None:
    """Wait until the part of the page that follows changes has a text."""
    await person.page.locator("#live").get_by_text(text).first.wait_for()


async def test_the_focus_and_the_scroll_survive_a_change(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token, viewport={"width": 900, "height": 400})
    await person.open("/groups/ai")
    link = person.page.locator("#live table a", has_text="over").first
    await link.focus()
    await person.run("() => window.scrollTo(0, 300)")
    await person.run("() => { document.querySelector('#live').dataset.old = 'yes'; }")
    await world.admin.patch(GROUPS, "ai", {"spec": {"contact": "#changed"}})
    await live(person, "#changed")
    assert await person.run("() => document.querySelector('#live').dataset.old") is None
    assert await person.run("() => document.activeElement.textContent") == "over"
    assert await person.run("() => window.scrollY") == 300
    await person.page.keyboard.press("Enter")
    await person.page.get_by_role("heading", name="over").wait_for()


async def test_a_wide_table_stays_where_it_was_scrolled(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token)
    await person.open("/groups/team")
    # The pages' own widths do not have to scroll here, so its place is made narrow. The policy allows this of a script.
    narrow = """() => { const sheet = new CSSStyleSheet();
      sheet.replaceSync(".scroll { width: 120px; } .scroll table { width: 900px; }");
      document.adoptedStyleSheets = [sheet];
      document.querySelector(".scroll").scrollLeft = 50; }"""
    await person.run(narrow)
    await world.admin.patch(GROUPS, "team", {"spec": {"contact": "#changed"}})
    await live(person, "#changed")
    assert await person.run("() => document.querySelector('.scroll').scrollLeft") == 50


async def test_a_half_typed_form_survives_a_change(world: World, people: People) -> None:
    """The field is in the part that is replaced: who may not list groups opens them by name."""
    token = await world.user("lena", "get", "watch", names=["team"])
    person = await people.sign_in(token)
    box = person.page.get_by_label("Group", exact=True)
    await box.press_sequentially("nlp-x")
    await box.press("ArrowLeft")
    for used in (5, 6, 7):
        await world.count("team", cpu=used)
        await live(person, f"{used} of 10")
        await box.press_sequentially("y")
    assert await box.input_value() == "nlp-yyyx"
    assert await person.run("() => document.activeElement.id") == "name"


async def test_what_is_chosen_survives_a_change(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token)
    await person.open("/hours/ai")
    await person.page.get_by_label("workload", exact=True).check()
    await person.page.get_by_label("group", exact=True).uncheck()
    await person.page.get_by_label("Resource").select_option("requests.nvidia.com/gpu")
    await person.run("() => { document.querySelector('#live').dataset.old = 'yes'; }")
    await world.count("nlp", hours=17)
    await person.page.locator("#live:not([data-old])").wait_for()
    assert await person.page.get_by_label("workload", exact=True).is_checked()
    assert not await person.page.get_by_label("group", exact=True).is_checked()
    assert await person.page.get_by_label("Resource").input_value() == "requests.nvidia.com/gpu"


async def test_a_form_of_a_change_survives_what_others_do(world: World, people: People) -> None:
    person = await people.sign_in(world.box.token)
    await person.open("/groups/team/edit")
    box = person.page.get_by_label("limits.cpu", exact=True)
    await box.fill("1")
    await world.admin.patch(GROUPS, "team", {"spec": {"contact": "#elsewhere"}})
    await asyncio.sleep(2 * PACE)
    await box.press_sequentially("5")
    assert await box.input_value() == "15"
    await person.page.get_by_role("button", name="Preview").click()
    await person.page.get_by_text("The group was changed meanwhile").wait_for()
    assert "contact: none → #elsewhere" in await person.page.locator("main").inner_text()
    assert await box.input_value() == "15"


async def test_an_open_page_shows_a_change_soon(world: World, people: People) -> None:
    """Prints the times. The bound is for busy machines; a quiet one takes less than the goal of a second."""
    person = await people.sign_in(world.box.token)
    await person.open("/groups/team")
    times: list[float] = []
    for number in range(ROUNDS):
        # At most one update a second: a change right after another one waits for it.
        await asyncio.sleep(1.2 * PACE)
        contact = f"#room-{number}"
        began = time.perf_counter()
        await world.admin.patch(GROUPS, "team", {"spec": {"contact": contact}})
        await live(person, contact)
        times.append(time.perf_counter() - began)
    p95 = sorted(times)[math.ceil(0.95 * ROUNDS) - 1]
    print(f"\nshown after: median {sorted(times)[ROUNDS // 2]:.3f} s, p95 {p95:.3f} s, most {max(times):.3f} s")
    assert p95 < 10
