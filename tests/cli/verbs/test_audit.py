"""`bizrq audit` on matching records and statements, and on each kind of mismatch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import crds
from bizrq.api import hours as wire
from bizrq.api.group import API_VERSION
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from bizrq.units.times import parse_timestamp
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.support.answering import answering
from tests.support.cluster import has_kinds
from tests.support.language import res
from tests.support.objects import Object, group
from tests.support.records import GPU, HOUR, NOW, W1, W2, W3, record, runs, spent, statement, stored

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEB, CHILD = "deployments.apps/team-a/web", "bizgroupresourcequotas.quota.biz.group//ocr"
ONE = 10**9 * HOUR
OPEN = {"start": W2, "end": W3}
CREDIT = {"uid": "c", "amounts": {GPU: str(-ONE)}, "at": NOW, "by": "ann", "reason": "the power\x1b[2J failed"}
#: Two cards, for half an hour that nobody saw.
LIVED, SEEN = "2026-11-10T00:00:00.000Z", "2026-11-10T00:30:00.000Z"
GONE = wire.inferred_line(wire.InferredLine(WEB, "uid-1", str(parse_timestamp(W1)), LIVED, SEEN, res("gpu=2")))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """Run commands on a cluster that has the CRDs and no objects."""
    path = tmp_path_factory.mktemp("audit") / "kubeconfig"
    async with (
        Sandbox(controllers=False, bookmark_seconds=0.2) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, crds.load())
        async with answering(client, path.parent):
            yield Bizrq(path, client)


async def has_group(bizrq: Bizrq, name: str, spent_hours: str) -> None:
    made = await bizrq.client.create(GROUPS, group(name, hours="100"))
    made["status"] = {"selfUsed": {f"cash/{GPU}": spent_hours}}
    await bizrq.client.replace(GROUPS, made, subresource="status")


RIGHT = f"""\
OBJECT                        GROUP  FROM                      LINES  RESULT
statement/right.20261108.uid  right  2026-11-08T23:00:00.000Z      2  equal
record/right                  right  2026-11-15T23:00:00.000Z      4  equal
group/right                   right  2026-11-15T23:00:00.000Z      1  equal

WHAT        GROUP  AT    WHO          HOURS         WHY
inferred    right  {SEEN}  {WEB} uid-1  {GPU} 1.000   \
ran at least until {LIVED}; the hours are the most that it can have run after that
correction  right  {NOW}  ann          {GPU} -1.000  the power�[2J failed
late        right  {W2}  {WEB}        {GPU} -0.500  belongs to the period from {W1}
inherited   right  {W2}  ocr          {GPU} 3.000   was deleted

all 3 match their lines"""


async def test_matching_records_are_listed_with_remarks_for_billing(bizrq: Bizrq) -> None:
    """Running pods count up to the watermark: half a card for 10 hours here. Carried hours are not the group's own."""
    await has_group(bizrq, "right", "6")
    late = wire.late_line(W1, WEB, {GPU: -ONE // 2})
    lines = {"settled": [spent(WEB, "gpu=1"), spent(CHILD, "gpu=3")], "late": [late], "corrections": [CREDIT]}
    closed = {"start": W1, "end": W2, "total": wire.format_amounts({GPU: 9 * ONE})}
    await stored(
        bizrq.client,
        statement("right", W1, W2, spent(WEB, "gpu=7"), spent("others//", "gpu=2"), inferred=[GONE]),
        record(
            "right",
            {
                "open": {**OPEN, **lines, "carried": {f"cash/{GPU}": "1500m"}},
                "periods": [closed],
                "running": [runs(WEB, "gpu=500m", a="2026-11-18T01:00:00Z")],
            },
        ),
    )
    result = await bizrq("audit", "right")
    assert [line.split() for line in result.plain.splitlines()] == [line.split() for line in RIGHT.splitlines()]
    assert (result.code, result.err) == (0, "")
    document = json.loads((await bizrq("audit", "right", "-o", "json")).out)
    assert document["equal"]
    assert [each["kind"] for each in document["checked"]] == ["statement", "record", "group"]
    assert document["remarks"][0]["seconds"] == {GPU: 3_600}


def of(name: str, **status: object) -> Object:
    return record(name, {"open": OPEN, **status})


@pytest.mark.parametrize(
    ("name", "objects", "difference"),
    [
        (
            "a",
            [statement("a", W1, W2, spent(WEB, "gpu=1"), total={GPU: str(ONE + 1)})],
            f"{GPU}: its lines come to 1.000 ({ONE}), its total says 1.001 ({ONE + 1})",
        ),
        (
            "b",
            [statement("b", W1, W2, spent(WEB, "gpu=1"), late=["- x y"])],
            "unreadable line: 'y' is no RESOURCE=AMOUNT",
        ),
        (
            "c",
            [
                statement("c", W1, W2, spent(WEB, "gpu=1")),
                of("c", periods=[{"start": W1, "end": W2, "total": {GPU: "5"}}]),
            ],
            f"{GPU}: it says 0.001 (5), the statement of {W1} says 1.000 ({ONE})",
        ),
        (
            "h",
            [statement("h", W1, W2, spent(WEB, "gpu=1"), spent=f"{GPU}=2h")],
            f"its text says {GPU}=2h, its lines come to {GPU}=1h",
        ),
        ("i", [of("i", spent=f"{GPU}=1h limits.cpu=0h")], f"its text says {GPU}=1h, its lines come to nothing"),
        ("d", [of("d", running=[runs(WEB, "gpu=1", u=W2), runs(WEB, "gpu=2", u=W2)])], "u is listed as running twice"),
        (
            "e",
            [of("e", running=[runs(WEB, "gpu=1", u=W2)], finished=["u"])],
            "u is listed both as running and as finished",
        ),
        ("f", [of("f", running=["x"])], "unreadable line: 'x' has no ' : '"),
        (
            "g",
            [record("g", {"open": {**OPEN, "settled": [spent(WEB, "gpu=3")]}})],
            f"cash/{GPU}: its status says 6, its record 3",
        ),
    ],
)
async def test_a_mismatch_is_reported_and_is_exit_1(
    bizrq: Bizrq, name: str, objects: list[Object], difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bizrq.figures.hours.audit.PAUSE", 0)
    if name == "g":
        await has_group(bizrq, name, "6")
    else:
        await bizrq.client.create(GROUPS, group(name, hours="100"))
    await stored(bizrq.client, *objects)
    result = await bizrq("audit", name)
    assert (result.code, result.err) == (1, "")
    assert any(line.endswith(difference) for line in result.plain.splitlines()), result.plain
    assert " 1 of " in f" {result.plain.splitlines()[-1]}"
    assert not json.loads((await bizrq("audit", name, "-o", "json")).out)["equal"]
    rows = csv.DictReader(io.StringIO((await bizrq("audit", name, "-o", "csv")).out))
    assert [row["result"] for row in rows if row["result"] != "equal"] == [difference]
    assert (await bizrq("audit", name, "-o", "name")).out == f"bizgroupresourcequota.quota.biz.group/{name}\n"
    # `bizrq report` on the same record names the problem, too.
    if difference.startswith("no line"):
        result = await bizrq("report", name, "--period", "all")
        assert (result.code, result.out) == (2, "")
        assert "run bizrq audit to find the line" in result.err


async def corrected(bizrq: Bizrq, of: str, hours: str, applied: str = NOW) -> str:
    """Create a correction, mark it as applied, and return its uid."""
    spec = {"group": of, "hours": {GPU: hours}, "reason": "x", "by": "ann"}
    metadata = {"generateName": f"{of}-"}
    made = {"apiVersion": API_VERSION, "kind": CORRECTIONS.kind, "metadata": metadata, "spec": spec}
    made = await bizrq.client.create(CORRECTIONS, made)
    if applied:
        made["status"] = {"applied": applied}
        await bizrq.client.replace(CORRECTIONS, made, subresource="status")
    return made["metadata"]["uid"]


async def test_a_correction_is_exactly_one_line_with_its_content(bizrq: Bizrq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bizrq.figures.hours.audit.PAUSE", 0)
    await bizrq.client.create(GROUPS, group("corrected", hours="100"))
    right, wrong, twice = [await corrected(bizrq, "corrected", hours) for hours in ("-1", "2", "3")]
    await corrected(bizrq, "corrected", "4", applied="")
    fields = {"by": "ann", "reason": "x"}
    line = {
        uid: {"uid": uid, "amounts": {GPU: str(n * ONE)}, **fields} for uid, n in ((right, -1), (wrong, 1), (twice, 3))
    }
    lines = [line[right], {**line[wrong], "by": "bob"}, line[twice]]
    await stored(
        bizrq.client,
        statement("corrected", W1, W2, corrections=[line[twice]], total={GPU: str(3 * ONE)}),
        of("corrected", open={**OPEN, "corrections": lines}),
    )
    ended = await bizrq("audit", "corrected", "-o", "json")
    document = json.loads(ended.out)
    found = [each["differences"] for each in document["checked"] if each["kind"] == "correction"]
    differs = f"{GPU}: its line says 1.000 ({ONE}), it says 2.000 ({2 * ONE})"
    assert (ended.code, sorted(found)) == (1, [[], ["appears in 2 lines"], [differs, "its line says bob: x"]])
    [waiting] = [each for each in document["remarks"] if each["what"] == "waiting"]
    assert (waiting["who"], waiting["seconds"]) == ("ann", {GPU: 4 * 3_600})


async def test_a_cluster_without_records_is_reported(bizrq: Bizrq) -> None:
    await bizrq.client.create(GROUPS, group("empty", hours="1"))
    assert (await bizrq("audit", "empty")).plain.splitlines() == [
        "No hours are recorded, so there is nothing to check.",
        "bizrq forecast shows the budgets, without which none are.",
    ]
