"""People change their levels in a real browser while bizrq decides and counts, with scripts and without.

Webhooks and controller are those of `bizrq up`: no answer of the API server is made up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bizrq.cli.standalone import Standalone, TargetCluster
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS
from tests.browser.conftest import People, Person, browsing
from tests.support import objects
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.records import GPU
from tests.web.conftest import Pages, World

pytestmark = pytest.mark.browser(driver="playwright")


@pytest.fixture
async def people(world: World, pages: Pages, tmp_path: Path) -> AsyncIterator[People]:
    """A tree that bizrq counts: of the 60 cores of ai, nlp holds 30, vision 20, and 10 are left."""
    where = TargetCluster(None, None, tmp_path / "bizrq")
    async with Standalone(settings({"rights": {"grant": True}}), where, sandbox=world.box), browsing(pages) as people:
        for name, parent, cpu in (("corp", "", 100), ("ai", "corp", 60), ("nlp", "ai", 30), ("vision", "ai", 20)):
            await world.admin.create(GROUPS, objects.group(name, parent, cpu=cpu))
        await world.admin.create(DEPLOYMENTS, deployment("chat", "nlp", 15))
        await world.admin.create(DEPLOYMENTS, deployment("detect", "vision", 4))
        await counted(world, ai=50, nlp=15, vision=4)
        yield people


async def counted(world: World, **used: int) -> None:
    """Wait until bizrq has counted so many cores of these groups, and holds no reservation."""

    async def is_counted() -> bool:
        for name, amount in used.items():
            status = (await world.admin.get(GROUPS, name)).get("status") or {}
            if (status.get("used") or {}).get("limits.cpu") != str(amount) or status.get("reservations"):
                return False
        return True

    await eventually(is_counted, 30)


async def lead(world: World) -> str:
    """The token of who may read and change groups, and grant what ai has."""
    grants = objects.cluster_role("grants-ai", "grant", names=["ai"])
    await world.admin.create(objects.CLUSTER_ROLES, grants)
    await world.admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound("grants-ai", "lena"))
    return await world.user("lena", "get", "list", "watch", "create", "patch", "delete")


async def finance(world: World) -> str:
    """The token of who may read groups and records, and correct hours of what is below lab."""
    reads = objects.cluster_role("reads-hours", "get", "list")
    reads["rules"][0]["resources"] = [CARD_HOURS.plural]
    corrects = objects.cluster_role("corrects-hours", "create", "get")
    corrects["rules"][0]["resources"] = [CORRECTIONS.plural]
    for role in (reads, corrects, objects.cluster_role("grants-lab", "grant", names=["lab"])):
        await world.admin.create(objects.CLUSTER_ROLES, role)
        await world.admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound(role["metadata"]["name"], "fay"))
    return await world.user("fay", "get", "list", "watch")


async def hard(world: World, name: str) -> str:
    return str((await world.admin.get(GROUPS, name))["spec"]["hard"]["limits.cpu"])


async def words(person: Person) -> str:
    return await person.page.locator("main").inner_text()


async def press(person: Person, button: str, says: str) -> None:
    """Press a button that sends a form, and wait for what the next page says."""
    await person.page.get_by_role("button", name=button, exact=True).click()
    await person.page.get_by_text(says).first.wait_for()


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_lead_creates_a_child_is_refused_sees_who_has_room_and_lowers_a_sibling(
    world: World, people: People, scripts: bool
) -> None:
    person = await people.sign_in(await lead(world), java_script_enabled=scripts)
    page = person.page

    await person.open("/groups/ai")
    await page.get_by_role("link", name="New child").click()
    await page.get_by_label("Name").fill("speech")
    await page.get_by_label("limits.cpu", exact=True).fill("5")
    await press(person, "Preview", "The API server would create this.")
    assert "10 → 5" in await words(person)
    await press(person, "Create", "The group is created.")
    await counted(world, ai=55)

    await page.get_by_role("link", name="Change").click()
    await page.get_by_label("limits.cpu", exact=True).fill("+3")
    await press(person, "Preview", "The API server would accept this.")
    await press(person, "Apply", "The group is changed.")
    assert await hard(world, "speech") == "8"
    await counted(world, ai=58)

    await page.get_by_role("link", name="Change").click()
    box = page.get_by_label("limits.cpu", exact=True)
    await box.fill("+10")
    await page.get_by_label("Contact").fill("#speech")
    await press(person, "Preview", "Not accepted")
    assert (await box.input_value(), await page.get_by_label("Contact").input_value()) == ("+10", "#speech")
    beside = page.locator(f"[id='{await box.get_attribute('aria-describedby')}']")
    assert "exceeded quota: ai, requested: limits.cpu=10" in await beside.inner_text()
    assert await hard(world, "speech") == "8"

    room = page.locator("#relatives")
    assert "2 left" in await room.inner_text()
    assert "vision 16" in await room.inner_text()
    await room.get_by_role("link", name="vision").click()
    await page.get_by_role("link", name="Change").click()
    await page.get_by_label("limits.cpu", exact=True).fill("-8")
    await press(person, "Preview", "The API server would accept this.")
    assert "2 → 10" in await words(person)
    await press(person, "Apply", "The group is changed.")
    assert await hard(world, "vision") == "12"
    await counted(world, ai=50)

    await person.open("/groups/speech/edit")
    await page.get_by_label("limits.cpu", exact=True).fill("+10")
    await press(person, "Preview", "The API server would accept this.")
    await press(person, "Apply", "The group is changed.")
    assert await hard(world, "speech") == "18"
    assert person.left == []


@pytest.mark.parametrize("scripts", [True, False])
async def test_an_admin_previews_a_lower_ceiling_sees_overquota_coming_and_applies(
    world: World, people: People, scripts: bool
) -> None:
    person = await people.sign_in(world.box.token, java_script_enabled=scripts)
    page = person.page
    await person.open("/groups/ai/edit")
    await page.get_by_label("limits.cpu", exact=True).fill("-20")
    await press(person, "Preview", "The API server would accept this.")
    said = await words(person)
    assert "60 → 40" in said
    assert "10 → -10" in said
    assert "over quota: growth is refused" in said
    assert "nlp" in said
    assert "15 of 30" in said
    assert await hard(world, "ai") == "60"
    await press(person, "Apply", "The group is changed.")
    assert await hard(world, "ai") == "40"

    async def is_over() -> bool:
        await person.open("/groups/ai")
        return "OverQuota:" in await words(person)

    await eventually(is_over, 30)
    await person.open("/")
    assert "1 over quota" in await words(person)


@pytest.mark.parametrize("scripts", [True, False])
async def test_finance_is_refused_says_why_and_corrects_hours(world: World, people: People, scripts: bool) -> None:
    for name, parent in (("lab", ""), ("team", "lab")):
        await world.admin.create(GROUPS, objects.group(name, parent, hours=100))
    person = await people.sign_in(await finance(world), java_script_enabled=scripts)
    page = person.page
    await person.open("/hours/lab/correct")
    await page.get_by_label(GPU, exact=True).fill("8")
    await press(person, "Preview", "Say why.")
    await page.get_by_label("Reason").fill("node-7 ran unseen")
    await press(person, "Preview", "grant on bizgroupresourcequotas.quota.biz.group '*'")

    await person.open("/hours/team")
    await page.get_by_role("link", name="Correct").click()
    await page.get_by_label(GPU, exact=True).fill("8")
    await page.get_by_label("Reason").fill("node-7 ran unseen")
    await press(person, "Preview", "The API server would accept this.")
    assert "100 → 92" in await words(person)
    await press(person, "Make the correction", "The correction is made.")

    async def is_billed() -> bool:
        await person.open("/hours/team?by=workload")
        return "corrections" in await words(person) and "8.000" in await words(person)

    await eventually(is_billed, 60)
    [made] = (await world.admin.list(CORRECTIONS))[0]
    assert made["spec"] == {"group": "team", "hours": {GPU: "8"}, "reason": "node-7 ran unseen", "by": "fay"}
