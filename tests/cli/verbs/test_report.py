"""Bills: what `bizrq report` prints of records and statements, for people, spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.api import hours as wire
from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.support.answering import answering
from tests.support.cluster import has_kinds
from tests.support.objects import group
from tests.support.records import GPU, HOUR, NOW, W1, W2, W3, record, runs, spent, statement, stored

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRAIN, SERVE = "tfjobs.kubeflow.org/team-a/train", "deployments.apps/team-a/serve"
#: Names are what their owners like them to be.
HOSTILE = "jobs.batch/team-b/<script>alert('x')//\x1b[31m</script>"
OPEN = {"start": W2, "end": W3}
CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d, Europe/Berlin")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """Run commands on corp > ai > nlp vision with weeks in Berlin; nlp's record has two pages; `old` is deleted."""
    path = tmp_path_factory.mktemp("bills") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, crds.load())
        corp = group("corp", hours="1k")
        corp["spec"]["cash"] = {"period": "weekly", "timeZone": "Europe/Berlin"}
        for made in (
            corp,
            group("ai", "corp", hours="500"),
            group("nlp", "ai", hours="100"),
            group("vision", "ai", hours="50"),
        ):
            await client.create(GROUPS, made)
        settled = [spent(TRAIN, "gpu=10 gpu.A100=4"), spent(HOSTILE, "gpu=3")]
        running = [
            # Since before the week began: 60 hours of it lie in this one.
            runs(SERVE, "gpu=500m gpu.T4=500m mem=1Gi", a="2026-11-01T00:00:00Z", b="2026-11-18T10:00:00Z"),
        ]
        corrections = [
            {"uid": "c", "amounts": {"requests.nvidia.com/gpu": str(-2 * HOUR * 10**9)}, "by": "ann", "reason": "down"}
        ]
        await stored(
            client,
            record("ai", {"open": {**OPEN, "settled": [spent(TRAIN, "gpu=1")]}}),
            record("nlp", {"open": {**OPEN, "settled": settled}, "running": running, "pages": 2}),
            record("nlp", {"open": {**OPEN, "settled": [wire.settled_line(TRAIN, {"requests.nvidia.com/gpu": 1})]}}, 1),
            record(
                "vision",
                {
                    "open": {**OPEN, "settled": [], "corrections": corrections},
                    "closing": [{"start": W1, "end": W2, "settled": [spent("jobs.batch/team-c/x", "gpu=7")]}],
                },
            ),
            statement("nlp", W1, W2, spent(TRAIN, "gpu=20 gpu.A100=20"), spent(SERVE, "gpu=5")),
            statement("old", "2026-11-01T23:00:00.000Z", W1, spent("jobs.batch/team-c/y", "gpu=9")),
        )
        async with answering(client, path.parent):
            yield Bizrq(path, client)


GROUP = """\
all groups, 2026-11-16 to 2026-11-23, Europe/Berlin, counted up to
2026-11-18T12:00
GROUP   RESOURCE                  HOURS  SUBTREE    BUDGET  % OF BUDGET
ai      requests.nvidia.com/gpu   1.000   42.501   500.000           9%
corp    requests.nvidia.com/gpu   0.000   42.501  1000.000           4%
nlp     requests.nvidia.com/gpu  43.501   43.501   100.000          44%
vision  requests.nvidia.com/gpu  -2.000   -2.000    50.000          -4%
TOTAL   requests.nvidia.com/gpu  42.501"""


async def test_hours_by_group_include_the_subtree(bizrq: Bizrq) -> None:
    result = await bizrq("report", "--hours", "-r", "cash/requests.nvidia.com/gpu", width=80)
    assert (result.code, result.plain, result.err) == (0, GROUP, "")
    assert (await bizrq("report", "ai", "--by", "group", "-r", GPU)).plain.splitlines()[2].split() == [
        "ai", GPU, "1.000", "42.501", "500.000", "9%", "2%",
    ]  # fmt: skip


WORKLOAD = f"""\
nlp and its subgroups, 2026-11-16 to 2026-11-23, Europe/Berlin, counted up to 2026-11-18T12:00
WORKLOAD                                                RESOURCE                  HOURS  % OF TOTAL
deployments.apps/team-a/serve                           limits.memory            61.000     100%
deployments.apps/team-a/serve                           requests.nvidia.com/gpu  30.500      70%
tfjobs.kubeflow.org/team-a/train                        requests.nvidia.com/gpu  10.001      23%
{HOSTILE.replace(chr(27), chr(0xFFFD))}  requests.nvidia.com/gpu   3.000       7%
TOTAL                                                   requests.nvidia.com/gpu  43.501
Hours of memory are GiB-hours."""


async def test_hours_by_workload_are_exact_and_rounded_up_only_for_display(bizrq: Bizrq) -> None:
    """Running pods count from the start of the period up to the watermark; each page has its own lines."""
    result = await bizrq("report", "nlp", "--by", "workload", width=160)
    assert (re.sub(" +", " ", result.plain), result.err) == (re.sub(" +", " ", WORKLOAD), "")
    rows = json.loads((await bizrq("report", "nlp", "--by", "workload", "-r", GPU, "-o", "json")).out)
    assert [row["exactNanoMs"] for row in rows] == [
        str(n * 10**9 * HOUR // 10 + over) for n, over in ((305, 0), (100, 1), (30, 0))
    ]
    assert rows[0] == {
        "workload": SERVE, "resource": GPU, "unit": "seconds", "seconds": 109_800, "percentOfTotal": 70,
        "from": W2, "to": W3, "exactNanoMs": "109800000000000000",
    }  # fmt: skip
    assert yaml.safe_load((await bizrq("report", "nlp", "--by", "workload", "-r", GPU, "-o", "yaml")).out) == rows


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--by namespace", "team-a,149401 team-b,10800 ,-7200"),
        ("--by model", ",28801 A100,14400 T4,109800"),
        ("--by period", "2026-11-16,153001"),
        ("--by period --period all", "2026-11-02,32400 2026-11-09,115200 2026-11-16,153001"),
        ("--by group --period last", "ai,0 corp,0 nlp,90000 old,32400 vision,25200"),
        ("--by group --period 2026-11-09", "ai,0 corp,0 nlp,90000 vision,25200"),
        ("--by group --period 2026-11-12T08:30", "ai,0 corp,0 nlp,90000 vision,25200"),
        ("--by group --by model --period 2026-11-09", "nlp,A100,72000 nlp,,18000 vision,,25200"),
    ],
)
async def test_hours_are_grouped_as_requested(bizrq: Bizrq, line: str, expected: str) -> None:
    result = await bizrq("report", *line.split(), "-r", GPU, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    by = [word for flag, word in zip(line.split(), line.split()[1:], strict=False) if flag == "--by"]
    order = [name for name in ("period", "group", "namespace", "workload", "model") if name in by]
    found = [",".join([*(row[name] for name in order), row["seconds"]]) for row in rows]
    assert sorted(found) == sorted(expected.split(" "))
    assert (result.code, {row["unit"] for row in rows}) == (0, {"seconds"})
    # Somebody who bills a period by what may still change wants to know.
    assert ("is not closed yet" in result.err) == ("all" in line or "last" in line or "-09" in line or "-12" in line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--period soon", "expected current, last, all, or a date or time"),
        ("--period 2025-01-01", "periods begin: 2026-11-02, 2026-11-09, 2026-11-16"),
        ("--by month", "--by: write period, group, namespace, workload or model, not month"),
        ("--hours --over 3", "--over does not apply to used hours"),
        ("--html - --by group", "remove --by"),
        ("--html /no/such/folder/x.html", "--html /no/such/folder/x.html: No such file or directory"),
        ("--hours -r limits.cpu", "no hours of limits.cpu are recorded; there are: limits.memory,"),
        ("--price gpu", "--price gpu: write RESOURCE=AMOUNT, such as requests.nvidia.com/gpu=2.5"),
        ("--price nvidia.com/gpu=2,5", "a decimal point"),
        ("--price requests.nvidia.com/gpu=-1", "write RESOURCE=AMOUNT"),
        ("--price requests.nvidia.com/gpu=1e9", "write RESOURCE=AMOUNT"),
        ("--price requests.nvidia.com/gpu=٣", "write RESOURCE=AMOUNT"),
        ("--price requests.nvidia.com/gpu=nan", "write RESOURCE=AMOUNT"),
        ("--price requests.nvidia.com/gpu=" + "9" * 5000, "at most 12 digits"),
        ("--price limits.cp=1", "--price limits.cp=1: "),
        ("--price requests.nvidia.com/gpu=1 --price cash/requests.nvidia.com/gpu=2", "has a price already"),
        ("--price requests.nvidia.com/gpu=1 --currency euro", "three capital letters, such as EUR"),
        ("--price requests.nvidia.com/gpu=1 --over 3", "--over does not apply to used hours"),
        ("--hours --currency EUR", "--currency needs a --price"),
        ("npl --hours", "there is no group npl; there are: ai, corp, nlp, vision"),
    ],
)
async def test_a_bill_that_cannot_be_made_is_one_line(bizrq: Bizrq, line: str, expected: str) -> None:
    result = await bizrq("report", *line.split())
    assert (result.code, result.out) == (2, "")
    assert expected in " ".join(result.err.split())


async def test_a_bill_says_what_share_of_its_budget_a_group_has_used(bizrq: Bizrq) -> None:
    """The budgets are those of the open period: what a past one had is not recorded."""
    for period, budget, share in (("current", 360_000, 44), ("last", None, None)):
        result = await bizrq("report", "nlp", "--by", "group", "--period", period, "-r", GPU, "-o", "json")
        [row] = json.loads(result.out)
        assert (row["budgetSeconds"], row["percentOfBudget"]) == (budget, share)
    unlimited = (await bizrq("report", "nlp", "--by", "group", "-r", "limits.memory")).plain.splitlines()
    assert unlimited[-2].split() == ["nlp", "limits.memory", "61.000", "61.000", "unlimited", "100%"]


async def test_csv_has_only_whole_numbers_that_every_spreadsheet_reads_alike(bizrq: Bizrq) -> None:
    """Where the comma is the decimal mark, 1064.000 is a million; 1k is a text."""
    for words in ("report --period all", "report --by model", "report", "forecast"):
        text = (await bizrq(*words.split(), "-o", "csv")).out
        numbers = {"hard", "used", "left", "budget", "percentOfHard", "percentOfTotal", "burnPerHour"}
        for row in csv.DictReader(io.StringIO(text)):
            plain = [value for head, value in row.items() if head in numbers or head.lower().endswith("seconds")]
            assert plain, words
            assert all(re.fullmatch(r"-?\d*", value) for value in plain), (words, row)


COSTS = f"""\
all groups, 2026-11-16 to 2026-11-23, Europe/Berlin, counted up to 2026-11-18T12:00
GROUP   RESOURCE                  HOURS  COST EUR  SUBTREE    BUDGET  % OF BUDGET  % OF TOTAL
ai      {GPU}   1.000      1.00   42.501   500.000           9%          2%
corp    {GPU}   0.000      0.00   42.501  1000.000           4%          0%
nlp     {GPU}  43.501     49.50   43.501   100.000          44%        102%
vision  {GPU}  -2.000     -2.00   -2.000    50.000          -4%         -5%
TOTAL   {GPU}  42.501     48.50
Total cost: 48.50 EUR
Prices of an hour: {GPU} 1 EUR, {GPU}.A100 2.5 EUR"""


async def test_prices_turn_hours_into_money(bizrq: Bizrq) -> None:
    """A model's hours cost its own price, the others that of their base; a correction gives money back."""
    prices = ["--price", f"{GPU}=1", "--price", f"cash/{GPU}.A100=2.5", "--currency", "EUR"]
    result = await bizrq("report", "--hours", "-r", GPU, *prices, width=160)
    assert (result.code, result.plain, result.err) == (0, COSTS, "")
    rows = json.loads((await bizrq("report", "--by", "model", "-r", GPU, *prices, "-o", "json")).out)
    assert [(row["model"], row["costMicros"], row["currency"]) for row in rows] == [
        ("T4", 30_500_000, "EUR"), ("", 8_000_000, "EUR"), ("A100", 10_000_000, "EUR"),
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((await bizrq("report", "nlp", *prices, "-r", GPU, "-o", "csv")).out)))
    assert [(row["group"], row["costMicros"], row["currency"]) for row in rows] == [("nlp", "49500000", "EUR")]
    page = _Page((await bizrq("report", "--html", "-", *prices)).out)
    for expected in ("Cost EUR", "48.50 EUR, without limits.memory", "49.50", "-2.00"):
        assert expected in page.texts, expected


async def test_what_has_no_price_has_no_known_cost(bizrq: Bizrq) -> None:
    result = await bizrq("report", "--price", f"{GPU}.A100=2.5", "--price", "limits.cpu=1", "--by", "model", "-r", GPU)
    assert [line.split()[-2] for line in result.plain.splitlines()[2:5]] == ["?", "?", "10.00"]
    assert "Total cost: unknown: some hours have no price" in result.plain
    assert result.err.splitlines() == [
        f"bizrq: no price for hours of {GPU}: what they cost is unknown",
        f"bizrq: no price for hours of {GPU}.T4: what they cost is unknown",
        "bizrq: there are no hours of limits.cpu: its price is not used",
    ]
    [row] = json.loads((await bizrq("report", "nlp", "--price", f"{GPU}.A100=1", "-r", GPU, "-o", "json")).out)
    assert (row["costMicros"], row["currency"]) == (None, None)
    # A price for a GiB-hour.
    memory = await bizrq("report", "nlp", "--price", "limits.memory=0.005", "-r", "limits.memory", "-o", "json")
    assert json.loads(memory.out)[0]["costMicros"] == 305_000


async def test_hours_say_first_what_is_wrong_with_enforcement(bizrq: Bizrq) -> None:
    """The registration goes for a moment; the page says so, too."""
    there = await bizrq.client.get(REGISTRATIONS, "bizrq")
    await bizrq.client.delete(REGISTRATIONS, "bizrq")
    said = "quota is not enforced: the webhooks are not registered, so nothing is refused"
    try:
        for words in ("forecast", "audit", "report --hours", "report --html -"):
            result = await bizrq(*words.split())
            assert (result.code, result.err.splitlines()[0]) == (0, f"bizrq: {said}"), words
        assert f'<p class="notice">{said}</p>' in result.out
    finally:
        await bizrq.client.create(REGISTRATIONS, {**there, "metadata": {"name": "bizrq"}})
    assert (await bizrq("audit")).err == ""


async def test_hours_that_are_not_counted_alike_say_which_are_the_oldest(bizrq: Bizrq) -> None:
    stored_page = await bizrq.client.get(CARD_HOURS, "ai")
    stored_page["status"]["watermark"] = "2026-11-18T10:30:00.000Z"
    written = await bizrq.client.replace(CARD_HOURS, stored_page, subresource="status")
    first = (await bizrq("report", "--hours")).plain.splitlines()[0]
    assert first.endswith("counted up to 2026-11-18T11:30 (ai; others later)")
    written["status"]["watermark"] = NOW
    await bizrq.client.replace(CARD_HOURS, written, subresource="status")


@pytest.mark.parametrize(
    ("words", "resources"),
    [
        ("report --hours -r nvidia.com/gpu", {GPU}),
        ("report --hours -r memory", {"limits.memory"}),
        ("report --hours -r cash/nvidia.com/gpu", {GPU}),
        ("forecast -r nvidia.com/gpu", {GPU}),
    ],
)
async def test_short_names_of_resources_mean_what_they_mean_elsewhere(
    bizrq: Bizrq, words: str, resources: set[str]
) -> None:
    assert {row["resource"] for row in json.loads((await bizrq(*words.split(), "-o", "json")).out)} == resources


async def test_no_hours_are_not_blamed_on_a_missing_budget(bizrq: Bizrq) -> None:
    await bizrq.client.create(GROUPS, group("idle", hours="5"))
    try:
        idle = (await bizrq("report", "idle", "--hours")).plain
        assert idle == "No hours are recorded for this period: nothing that costs hours has run."
    finally:
        await bizrq.client.delete(GROUPS, "idle")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report free --hours", "No hours are recorded: group free and the groups below it have no budget of hours."),
        ("forecast free", "Group free and the groups below it have no budget of hours."),
        (f"forecast free -r {GPU}", f"Group free and the groups below it have no budget of {GPU}."),
    ],
)
async def test_a_group_that_tracks_no_hours_is_told_how_to(bizrq: Bizrq, words: str, said: str) -> None:
    """Also where other groups have budgets."""
    await bizrq.client.create(GROUPS, group("free", cpu="5"))
    try:
        result = await bizrq(*words.split())
        remedy = "To set one, run for example: bizrq set free cash/requests.nvidia.com/gpu=1000"
        assert (result.code, " ".join(result.plain.split()), result.err) == (0, f"{said} {remedy}", "")
    finally:
        await bizrq.client.delete(GROUPS, "free")


async def test_where_no_group_tracks_hours_a_period_and_a_forecast_say_how_to(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with (
        Sandbox(controllers=False) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, crds.load())
        await client.create(GROUPS, group("free", cpu="5"))
        bizrq = Bizrq(path, client)
        ask = "run for example: bizrq set GROUP cash/requests.nvidia.com/gpu=1000"
        assert (await bizrq("forecast")).plain == f"No group has a budget of hours. To set one, {ask}"
        assert (await bizrq("report", "--hours")).plain == (
            f"No hours are recorded: no group has a budget of hours. To set one, {ask}"
        )
        past = await bizrq("report", "--period", "2020-01-01")
        said = "no hours are recorded for 2020-01-01; none are, for any period: bizrq forecast says why"
        assert (past.code, past.err.splitlines()[-1]) == (2, f"bizrq: {said}")


async def test_a_deleted_group_is_found_by_its_statements(bizrq: Bizrq) -> None:
    result = await bizrq("report", "old", "--period", "all", "-o", "name")
    assert (result.code, result.out) == (0, "bizgroupresourcequota.quota.biz.group/old\n")


class _Page(HTMLParser):
    """The elements of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        #: How many texts were before an element, and its tag.
        self.starts: list[tuple[int, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.starts.append((len(self.texts) - 1, tag))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "style")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


async def test_the_page_has_every_bill_and_no_script_or_link(bizrq: Bizrq, tmp_path: Path) -> None:
    file = tmp_path / "hours.html"
    result = await bizrq("report", "--html", file)
    text = file.read_text("utf-8")
    assert (result.code, result.out) == (0, f"wrote {file}: {len(text.encode()):,} bytes, open it in a browser\n")
    page = _Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)
    assert "url(" not in text
    assert "@import" not in text
    # A name is text, wherever it stands.
    assert (
        text.count("&lt;script&gt;alert") == page.texts.count(HOSTILE.replace("\x1b", "\N{REPLACEMENT CHARACTER}")) + 1
    )
    # Each chart has a title for who hears the page, and the same numbers in a table beside it.
    assert text.count('role="img" aria-label="') == page.tags.count("svg") == page.tags.count("figcaption") > 0
    for expected in ("43.501", "-2.000", "61.000", "By model", "A100", "2026-11-09 (not final)", "2026-11-16 (so far)"):
        assert expected in page.texts, expected
    again = (await bizrq("report", "--html", "-")).out
    assert CREATED.sub("", again) == CREATED.sub("", text)


async def test_a_page_in_a_file_is_named_with_its_size(bizrq: Bizrq, tmp_path: Path) -> None:
    file = tmp_path / "bill.html"
    result = await bizrq("report", "--html", file)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"wrote {file}: {file.stat().st_size:,} bytes, open it in a browser\n"
    missing = tmp_path / "none" / "bill.html"
    refused = await bizrq("report", "--html", missing)
    assert (refused.code, refused.err) == (2, f"bizrq: --html {missing}: No such file or directory\n")


async def test_the_page_begins_with_where_when_and_what_runs_out(bizrq: Bizrq) -> None:
    result = await bizrq("report", "--html", "-")
    page = _Page(result.out)
    head = page.texts[page.texts.index("Cluster") : page.texts.index("Forecast")]
    facts = dict(zip(head[::2], head[1::2], strict=False))
    assert facts["Cluster"] == "sandbox"
    assert CREATED.search(result.out)
    assert facts["Period"].endswith("Europe/Berlin; not over, so hours are those so far")
    heads = [page.texts[number + 1] for number, tag in page.starts if tag in ("h2", "h3")]
    assert heads[:4] == ["Forecast", "1 of 4 budgets is exhausted, or will be", f"{GPU}, in hours", "Forecast"]
    # What has a budget comes before what has none.
    assert heads.index(f"{GPU}, in hours") < heads.index("limits.memory, in GiB-hours")
    last = await bizrq("report", "--html", "-", "--period", "last")
    past = _Page(last.out)
    closing = "the period that began 2026-11-09 is not closed yet; pods that ended late may still be added"
    assert (last.err, closing in past.texts) == (f"bizrq: {closing}\n", True)
    assert "so far" not in " ".join(past.texts[: past.texts.index("Forecast")])


FORECAST = f"""\
GROUP   RESOURCE                   BUDGET   SPENT  GRANTED     LEFT  BURN/H  EXHAUSTED
corp    {GPU}  1000.000   0.000  500.000  500.000   1.000  not before 2026-11-23
ai      {GPU}   500.000   1.000  150.000  349.000   1.000  not before 2026-11-23
nlp     {GPU}   100.000  43.501    0.000   56.499   1.000  2026-11-20T20:30, in 56 h
vision  {GPU}    50.000   0.000    0.000   50.000   0.000  not before 2026-11-23
nlp: {GPU} is used by deployments.apps/team-a/serve 100%"""


async def test_a_forecast_shows_when_a_budget_is_exhausted_and_by_whom(bizrq: Bizrq) -> None:
    result = await bizrq("forecast", width=160)
    assert (result.code, result.plain, result.err) == (0, FORECAST, "")
    [row] = json.loads((await bizrq("forecast", "nlp", "-o", "json")).out)
    assert row == {
        "group": "nlp", "resource": GPU, "unit": "seconds", "budget": 360_000, "used": 156_601, "spent": 156_601,
        "granted": 0, "left": 203_399, "burnPerHour": 3_600, "subtreeBurnPerHour": 3_600, "counted": NOW, "until": W3,
        "exhausted": "2026-11-20T19:30:00.000Z",
        "workloads": [{"workload": SERVE, "percent": 100}],
    }  # fmt: skip
    assert yaml.safe_load((await bizrq("forecast", "nlp", "-o", "yaml")).out) == [row]
    assert (await bizrq("forecast", "-o", "name")).out == "bizgroupresourcequota.quota.biz.group/nlp\n"
    [row] = csv.DictReader(io.StringIO((await bizrq("forecast", "nlp", "-o", "csv")).out))
    assert row["workloads"] == f"{SERVE} 100%"
    result = await bizrq("forecast", "-r", "limits.cpu")
    assert (result.code, result.out) == (2, "")
    assert "no group has a ceiling for cash/limits.cpu" in result.err


@pytest.mark.parametrize(
    ("line", "seen"), [("forecast", "\x1b[33m"), ("audit", "\x1b[32m"), ("report --hours", "\x1b[1m")]
)
async def test_colours_are_printed_only_on_a_terminal_that_wants_them(bizrq: Bizrq, line: str, seen: str) -> None:
    for width in (80, 160):
        assert seen in (await bizrq(*line.split(), width=width)).out
    assert "\x1b[3" not in (await bizrq(*line.split(), width=80, NO_COLOR="1")).out
    assert "\x1b" not in (await bizrq(*line.split())).out
