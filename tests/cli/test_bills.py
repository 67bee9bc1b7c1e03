"""Bills of hours: what `bizrq report` says of records and statements, to people, spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.api import hours as wire
from bizrq.api.group import API_VERSION
from bizrq.kube.client import KubeClient
from bizrq.kube.groups import GROUPS
from bizrq.kube.hours import CARD_HOURS, STATEMENTS
from bizrq.quota.ledger import milliseconds
from bizrq.quota.resources import text_of, total
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.cluster import has_kinds
from tests.language import res
from tests.objects import Object, group

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Mondays, by the wall clock of Berlin.
W1, W2, W3 = "2026-11-08T23:00:00.000Z", "2026-11-15T23:00:00.000Z", "2026-11-22T23:00:00.000Z"
NOW = "2026-11-18T11:00:00.000Z"
HOUR = 3_600_000


def spent(workload: str, amounts: str) -> str:
    """A line of so many hours of each."""
    return wire.settled_line(workload, {name: n * HOUR for name, n in res(amounts).items()})


def runs(workload: str, cost: str, **since: str) -> str:
    return wire.running_line(workload, text_of(res(cost)), {uid: milliseconds(at) for uid, at in since.items()})


def record(of: str, status: Object, page: int = 0) -> Object:
    name = of if not page else f"{of}.{page}.uid"
    return {
        "apiVersion": API_VERSION,
        "kind": wire.CARD_HOURS,
        "metadata": {"name": name, "labels": {wire.GROUP_LABEL: of}},
        "spec": {"group": of, "uid": f"uid-of-{of}", **({"page": page} if page else {})},
        "status": {"watermark": NOW, **status},
    }


def statement(of: str, start: str, end: str, *settled: str, **more: object) -> Object:
    amounts = total(wire.settled(line)[1] for line in settled)
    return {
        "apiVersion": API_VERSION,
        "kind": wire.STATEMENT,
        "metadata": {"name": f"{of}.{start[:10].replace('-', '')}.uid", "labels": {wire.GROUP_LABEL: of}},
        "spec": {
            "group": of,
            "uid": f"uid-of-{of}",
            "start": start,
            "end": end,
            "total": wire.amounts_text(amounts),
            "settled": list(settled),
            **more,
        },
    }


TRAIN, SERVE = "tfjobs.kubeflow.org/team-a/train", "deployments.apps/team-a/serve"
OPEN = {"start": W2, "end": W3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    """corp > ai > nlp vision, a week at a time in Berlin; nlp's record has two pages; `old` is gone."""
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
        settled = [spent(TRAIN, "gpu=10 gpu.A100=4"), spent("others/team-b/", "gpu=3")]
        running = [
            # Since before the week began: 60 hours of it lie in this one.
            runs(SERVE, "gpu=500m gpu.T4=500m mem=1Gi", a="2026-11-01T00:00:00Z", b="2026-11-18T10:00:00Z"),
        ]
        corrections = [
            {"uid": "c", "amounts": {"requests.nvidia.com/gpu": str(-2 * HOUR * 10**9)}, "by": "ann", "reason": "down"}
        ]
        for made in (
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
        ):
            await client.create(CARD_HOURS, {key: value for key, value in made.items() if key != "status"})
            there = await client.get(CARD_HOURS, made["metadata"]["name"])
            await client.replace(CARD_HOURS, {**there, "status": made["status"]}, subresource="status")
        for made in (
            statement("nlp", W1, W2, spent(TRAIN, "gpu=20 gpu.A100=20"), spent(SERVE, "gpu=5")),
            statement("old", "2026-11-01T23:00:00.000Z", W1, spent("jobs.batch/team-c/y", "gpu=9")),
        ):
            await client.create(STATEMENTS, made)
        yield Bizrq(path, client)


GROUP = """\
all groups, 2026-11-16 to 2026-11-23, Europe/Berlin, counted up to
2026-11-18T12:00
GROUP   RESOURCE                  HOURS  SUBTREE  PERCENT
ai      requests.nvidia.com/gpu   1.000   42.501       2%
corp    requests.nvidia.com/gpu   0.000   42.501       0%
nlp     requests.nvidia.com/gpu  43.501   43.501     102%
vision  requests.nvidia.com/gpu  -2.000   -2.000      -5%
TOTAL   requests.nvidia.com/gpu  42.501"""


async def test_hours_by_group_have_what_each_spent_and_what_is_below(bizrq: Bizrq) -> None:
    said = await bizrq("report", "--hours", "-r", "cash/requests.nvidia.com/gpu", width=80)
    print(said.plain, said.err)
    assert said.plain == GROUP
