"""The pages of hours: the same figures and the same file as the command, and what may not be read is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bizrq.store.hours import CARD_HOURS, STATEMENTS
from tests.cli.conftest import Bizrq
from tests.support import objects
from tests.support.records import NOW, W1, W2, record, runs, spent, statement, stored
from tests.web.conftest import Answer, Browser, Pages, World

TRAIN, CHAT = "tfjobs.kubeflow.org/team-a/train", "deployments.apps/team-a/chat"
FORMS = (
    "",
    "?period=last",
    "?period=all&by=period",
    "?by=workload",
    "?by=group&by=workload&by=model&period=all",
    "?by=namespace&resource=requests.nvidia.com/gpu",
    "?period=2026-11-09",
)


async def some_hours(world: World) -> None:
    """Two levels with hours of two periods; vision has no budget and no record."""
    weekly = {"cash": {"period": "weekly", "timeZone": "Europe/Berlin"}}
    await world.group("corp", hours=1000)
    await world.group("ai", "corp", hours=500)
    await world.group("nlp", "ai", hours=100)
    await world.group("vision", "ai", cpu=5)
    there = await world.admin.get(objects.GROUPS, "corp")
    await world.admin.replace(objects.GROUPS, {**there, "spec": {**there["spec"], **weekly}})
    line = {"start": W2, "settled": [spent(TRAIN, "gpu=10 gpu.A100=10")]}
    running = [runs(CHAT, "gpu=2", a=NOW)]
    await stored(
        world.admin,
        record("nlp", {"open": line, "running": running, "periods": []}),
        record("ai", {"open": {"start": W2, "settled": [spent("pods/team-b/probe", "gpu=3")]}}),
        statement("nlp", W1, W2, spent(TRAIN, "gpu=40"), spent(CHAT, "gpu=2")),
        statement("ai", W1, W2, spent("pods/team-b/<b>probe", "gpu=5")),
    )


@pytest.fixture
async def browser(world: World, pages: Pages) -> Browser:
    await some_hours(world)
    return await pages.signed_in(world.box.token)


async def reader(world: World, pages: Pages, *allowed: tuple[str, list[str] | None], groups: Any = None) -> str:
    """The token of a user who may read groups, and these kinds of hours, all or those of some names."""
    token = (
        await world.user("lea", "get", "list", "watch")
        if groups is None
        else await world.user("lea", "get", "watch", names=groups)
    )
    for number, (plural, names) in enumerate(allowed):
        role = objects.cluster_role(f"hours-{number}", "get", *([] if names else ["list"]), names=names)
        role["rules"][0]["resources"] = [plural]
        await world.admin.create(objects.CLUSTER_ROLES, role)
        await world.admin.create(objects.CLUSTER_ROLE_BINDINGS, objects.bound(f"hours-{number}", "lea"))
    return token


def command(world: World, folder: Path, token: str = "") -> Bizrq:
    path = world.box.write_kubeconfig(folder / "cli")
    if token:
        path.write_text(path.read_text().replace(world.box.token, token))
    return Bizrq(path, world.admin)


def flags(query: str) -> list[str]:
    """The flags of `bizrq report` that an address is for."""
    pairs = [pair.split("=", 1) for pair in query.removeprefix("?").split("&") if pair]
    return ["--hours", "-o", "csv", *(word for name, value in pairs for word in (f"--{name}", value))]


@pytest.mark.parametrize("top", ["", "ai", "nlp"])
async def test_the_file_is_byte_for_byte_what_the_command_prints(
    world: World, browser: Browser, tmp_path: Path, top: str
):
    bizrq = command(world, tmp_path)
    for query in FORMS:
        answer = await browser.get(f"/hours/{top}/bill.csv{query}" if top else f"/hours.csv{query}")
        printed = await bizrq("report", *([top] if top else []), *flags(query))
        assert (answer.status, printed.code) == (200, 0), (query, printed.err)
        assert answer.text == printed.out
        assert len(answer.text.splitlines()) > 1
        assert answer.headers["Content-Type"].startswith("text/csv")
        assert "attachment" in answer.headers["Content-Disposition"]
        assert "incomplete" not in answer.headers["Content-Disposition"]


async def test_a_bill_has_the_rows_of_the_command(world: World, browser: Browser, tmp_path: Path):
    bizrq = command(world, tmp_path)
    for query in FORMS:
        words = (await browser.get(f"/hours/ai{query}")).words
        printed = await bizrq("report", "ai", *[word for word in flags(query) if word not in ("-o", "csv")], width=400)
        lines = [line for line in printed.plain.splitlines()[2:] if line.strip()]
        assert lines
        for line in lines:
            cells = [cell for cell in re.split(r"\s{2,}", line.strip()) if cell != "TOTAL"]
            assert all(cell in words for cell in cells), (query, line, words)


async def test_the_links_of_a_bill_keep_what_was_chosen(browser: Browser):
    page = await browser.get("/hours/ai?by=group&by=workload&period=last&resource=requests.nvidia.com/gpu")
    assert page.status == 200
    assert 'href="/hours/ai/bill.csv?period=last&amp;by=group&amp;by=workload&amp;resource=' in page.text
    assert page.text.count('checked=""') == 2
    assert "Hours of ai" in page.words
    page = await browser.get("/hours/ai?period=current&at=2026-11-10")
    assert "42.000" in page.words
    assert 'value="2026-11-10"' in page.text


async def test_a_budget_is_drawn_from_its_start_to_the_end_of_its_period(browser: Browser):
    page = await browser.get("/hours/nlp?view=burn-down")
    assert page.status == 200
    assert "nlp, requests.nvidia.com/gpu: what is left of 100.000 hours" in page.words
    assert "90.000 left now, counted up to 2026-11-18T12:00; exhausted: 2026-11-20T09:00, in 45 h" in page.words
    assert "start 2026-11-16" in page.words
    assert ">now</text>" in page.text
    assert "end 2026-11-23" in page.words
    assert "Records have no figures by day" in page.words
    assert page.text.count("<circle") == 3
    assert "Over periods" in page.words
    assert '<polyline class="line past"' in page.text
    assert "42.000" in page.words


async def test_statements_are_listed_with_their_hours_and_their_bills(browser: Browser):
    page = await browser.get("/hours/ai?view=statements")
    assert page.status == 200
    assert "nlp.20261108.uid nlp 2026-11-09 2026-11-16 requests.nvidia.com/gpu 42.000 2 0" in page.words
    assert 'href="/hours/nlp?period=2026-11-09"' in page.text
    bill = await browser.get("/hours/nlp?period=2026-11-09")
    assert "42.000" in bill.words


async def test_an_audit_says_what_matches_and_what_differs(world: World, browser: Browser):
    page = await browser.get("/hours/nlp?view=audit")
    assert page.status == 200
    assert "statement/nlp.20261108.uid nlp 2026-11-08T23:00:00.000Z 2 equal" in page.words
    there = await world.admin.get(STATEMENTS, "nlp.20261108.uid")
    there["spec"]["total"] = {"requests.nvidia.com/gpu": "1"}
    await world.admin.delete(STATEMENTS, "nlp.20261108.uid")
    await world.admin.create(
        STATEMENTS, {**there, "metadata": {"name": there["metadata"]["name"], "labels": there["metadata"]["labels"]}}
    )
    page = await browser.get("/hours/nlp?view=audit")
    assert "do not match their lines" in page.words
    assert "its lines come to 42.000" in page.words


async def test_names_and_reasons_of_others_stay_text(world: World, browser: Browser):
    for query in ("?period=all&by=workload", "?view=statements", "?view=audit", "?view=burn-down"):
        text = (await browser.get(f"/hours{query}")).text
        assert "<b>" not in text


async def test_without_hours_a_page_says_what_to_do(world: World, pages: Pages):
    await world.group("corp", cpu=10)
    browser = await pages.signed_in(world.box.token)
    for query, said in (
        ("", "budget of hours. To set one, run for example: bizrq set "),
        ("?view=burn-down", "No budget of hours is set."),
        ("?view=statements", "No period is closed yet."),
        ("?view=audit", "there is nothing to check"),
    ):
        for path in ("/hours", "/hours/corp"):
            page = await browser.get(path + query)
            assert (page.status, said in page.words) == (200, True), (query, page.words)


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/hours/absent", 404, "There is no group absent that you may read."),
        ("/hours/absent/bill.csv", 404, "There is no group absent that you may read."),
        ("/hours?view=other", 404, "There is no such view of hours."),
        ("/hours?by=colour", 404, "There is no such view of hours."),
        ("/hours?period=soon", 422, "soon: expected current, last, all, or a date"),
        ("/hours.csv?period=soon", 422, "soon: expected current, last, all, or a date"),
        ("/hours?period=2020-01-01", 422, "no hours are recorded for 2020-01-01"),
        ("/hours?resource=limits.cpu", 422, "no hours of limits.cpu are recorded"),
    ],
)
async def test_what_is_not_there_is_said_in_a_line(browser: Browser, path: str, status: int, why: str):
    answer = await browser.get(path)
    assert (answer.status, why in answer.words) == (status, True), answer.words


# Fewer rights


def unseen(answer: Answer) -> bool:
    return "not visible to you" in answer.words


async def test_who_may_read_groups_and_no_hours_sees_that_they_are_not_visible(world: World, pages: Pages):
    await some_hours(world)
    browser = await pages.signed_in(await reader(world, pages))
    for path in ("/hours", "/hours/ai", "/hours/ai?view=burn-down", "/hours/ai?view=statements", "/hours?view=audit"):
        answer = await browser.get(path)
        assert (answer.status, unseen(answer)) == (200, True), path
        assert "0.000" not in answer.words
        assert "13.000" not in answer.words
    assert 'href="/hours/nlp"' in (await browser.get("/hours")).text
    assert (await browser.get("/hours.csv")).status == 403
    assert (await browser.get("/hours/ai/bill.csv")).status == 403


async def test_statements_that_may_not_be_read_are_missing_from_past_periods_only(world: World, pages: Pages):
    await some_hours(world)
    browser = await pages.signed_in(await reader(world, pages, (CARD_HOURS.plural, None)))
    assert "13.000" in (await browser.get("/hours/ai")).words
    past = await browser.get("/hours/ai?period=last")
    assert "Statements are not visible to you" in past.words
    assert 'href="/hours/ai"' in past.text
    ahead = await browser.get("/hours/ai?view=burn-down")
    assert "Statements are not visible to you" in ahead.words
    assert "what is left of" in ahead.words


async def test_a_sum_without_a_record_that_may_not_be_read_says_so(world: World, pages: Pages, tmp_path: Path):
    await some_hours(world)
    token = await reader(world, pages, (CARD_HOURS.plural, ["ai"]))
    browser = await pages.signed_in(token)
    answer = await browser.get("/hours/ai")
    assert answer.status == 200
    assert "not visible to you: the record of nlp" in answer.words
    assert "is in no sum on this page" in answer.words
    assert "3.000" in answer.words
    assert "10.000" not in answer.words
    file = await browser.get("/hours/ai/bill.csv")
    printed = await command(world, tmp_path, token)("report", "ai", "--hours", "-o", "csv")
    assert (file.text, printed.code) == (printed.out, 4)
    assert "incomplete" in file.headers["Content-Disposition"]
    ahead = await browser.get("/hours/ai?view=burn-down")
    assert unseen(ahead)
    assert "unknown" in ahead.words


async def test_who_may_read_one_group_reads_its_hours_by_name(world: World, pages: Pages, tmp_path: Path):
    await some_hours(world)
    token = await reader(world, pages, (CARD_HOURS.plural, ["nlp"]), groups=["nlp"])
    browser = await pages.signed_in(token)
    answer = await browser.get("/hours")
    assert (answer.status, unseen(answer)) == (200, True)
    assert 'href="/hours/nlp"' in answer.text
    assert 'href="/hours/ai"' not in answer.text
    assert "10.000" in (await browser.get("/hours/nlp")).words
    printed = await command(world, tmp_path, token)("report", "nlp", "--hours", "-o", "csv")
    assert (await browser.get("/hours/nlp/bill.csv")).text == printed.out
    for path in ("/hours/ai", "/hours/ai/bill.csv", "/hours/absent"):
        there, absent = await browser.get(path), await browser.get(path.replace("ai", "absent"))
        assert there.status == absent.status == 404
        assert there.words.replace("group ai", "group absent") == absent.words
