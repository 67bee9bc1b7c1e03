"""The command line prints what the figures say: another program with the same client has the same, and no terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bizrq.builtin import builtin_catalog
from bizrq.figures.describe import describe_group, plain_description
from bizrq.figures.errors import UnknownGroup
from bizrq.figures.groups.source import GroupSource, check_known, read_groups
from bizrq.figures.groups.view import TreeView, report_row, report_rows, tree_view
from bizrq.figures.hours.bills import bill_csv, make_bill, read_books
from bizrq.figures.hours.records import select_lines
from bizrq.figures.simulate.budget_wording import of_group
from bizrq.figures.simulate.fit import fit
from bizrq.figures.simulate.wording import as_json
from bizrq.figures.tables import REPORT, csv_text
from bizrq.hours.bill import GroupBy
from bizrq.settings import load
from tests.cli.conftest import Bizrq
from tests.support.objects import deployment
from tests.support.records import W2, W3, record, spent, stored

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = load(None)


async def known(bizrq: Bizrq) -> tuple[GroupSource, TreeView]:
    source = await read_groups(bizrq.client)
    return source, tree_view(source.groups, SETTINGS.catalog)


async def test_a_description_and_a_report_are_what_the_command_prints(
    bizrq: Bizrq, capsys: pytest.CaptureFixture[str]
) -> None:
    source, tree = await known(bizrq)
    found = await describe_group(bizrq.client, SETTINGS, tree, source.groups, "nlp")
    assert [(each.name, each.text("limits.cpu")) for each in found.workloads.by_cost("limits.cpu")] == [
        ("chat", "4"),
        ("search", "2"),
    ]
    rows = [report_row(*each) for each in report_rows(tree, "ai", 80)]
    said = of_group(tree, "nlp", found.workloads)
    assert capsys.readouterr() == ("", "")
    assert [plain_description(found)] == json.loads((await bizrq("describe", "nlp", "-o", "json")).out)
    assert csv_text(REPORT, rows) == (await bizrq("report", "ai", "--over", 80, "-o", "csv")).out
    printed = (await bizrq("explain", "nlp")).out.splitlines()
    assert [line.strip() for line in printed[1:]] == [line.strip() for line in said]


async def test_a_bill_is_what_the_command_prints(bizrq: Bizrq) -> None:
    lines = {"start": W2, "end": W3, "settled": [spent("tfjobs.kubeflow.org/team-a/train\x1b", "gpu=10 mem=1Gi")]}
    await stored(bizrq.client, record("nlp", {"open": lines}))
    source = await read_groups(bizrq.client)
    books = await read_books(bizrq.client, source.groups, builtin_catalog(), "ai", statements=True)
    by = [GroupBy.GROUP, GroupBy.WORKLOAD]
    bill = make_bill(books, "ai", select_lines(books, "all"), by)
    words: list[Any] = ["report", "ai", "--by", "group", "--by", "workload", "--period", "all", "-o", "csv"]
    assert bill_csv(bill) == (await bizrq(*words)).out
    assert "train" in bill_csv(bill)


async def test_a_dry_run_is_what_the_command_prints(bizrq: Bizrq) -> None:
    source, _ = await known(bizrq)
    larger = deployment("chat", "nlp", 99)
    outcomes = await fit(bizrq.client, source.groups, [larger], "default")
    assert [each.fits for each in outcomes] == [False]
    printed = await bizrq("fit", "-f", "-", "-o", "json", stdin=json.dumps(larger))
    assert [as_json(each) for each in outcomes] == json.loads(printed.out)


async def test_an_unknown_group_is_named_as_the_command_names_it(bizrq: Bizrq) -> None:
    source, _ = await known(bizrq)
    with pytest.raises(UnknownGroup) as raised:
        check_known(["npl"], list(source.items))
    assert raised.value.name == "npl"
    assert f"bizrq: {raised.value}\n" in (await bizrq("tree", "npl")).err
