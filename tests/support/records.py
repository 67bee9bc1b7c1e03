"""Records and statements of hours as the controller writes them, for tests that put them where it would."""

from __future__ import annotations

from bizrq.api import hours as wire
from bizrq.api.group import API_VERSION
from bizrq.kube.client import KubeClient
from bizrq.store.hours import CARD_HOURS, STATEMENTS
from bizrq.units.resources import text_of, total
from bizrq.units.times import milliseconds
from tests.support.language import res
from tests.support.objects import Object

#: Mondays, by the wall clock of Berlin.
W1, W2, W3 = "2026-11-08T23:00:00.000Z", "2026-11-15T23:00:00.000Z", "2026-11-22T23:00:00.000Z"
GPU = "requests.nvidia.com/gpu"
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


async def stored(client: KubeClient, *made: Object) -> None:
    """Write records with their status, and statements."""
    for each in made:
        if each["kind"] == wire.STATEMENT:
            await client.create(STATEMENTS, each)
            continue
        there = await client.create(CARD_HOURS, {key: value for key, value in each.items() if key != "status"})
        await client.replace(CARD_HOURS, {**there, "status": each["status"]}, subresource="status")
