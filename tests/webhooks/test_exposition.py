"""A scrape is written in slices: neither many groups nor long names hold up the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import certs.main
import controller.metrics
import webhooks.app
from bizrq import process
from bizrq.exposition import SLICE, GroupCounter, GroupFamily, render, slices
from tests.support.cluster import _free_ports
from tests.support.scraped import families

GROUPS, RESOURCES = 10_000, 8


def filled(name: str = "bizrq_group_used", groups: int = GROUPS) -> GroupFamily:
    family = GroupFamily(name, "What is used", by="resource")
    for number in range(groups):
        family.set(f"group-{number}", {f"limits.cpu.M{n}": number + n / 8 for n in range(RESOURCES)})
    return family


async def test_between_two_slices_of_a_large_scrape_the_loop_has_a_turn() -> None:
    """No slice joins more than its bytes and one group's lines, however many groups there are."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    many = [filled(), filled("bizrq_group_hard")]
    longest = max(len(chunk) for family in many for chunk in family.snapshot())
    task = asyncio.create_task(others())
    sizes, before = list[int](), 0
    async for piece in render(many):
        # The registry of the process comes first; it does not grow with the groups.
        if sizes:
            assert len(piece) <= SLICE + longest
        assert turns > before or not sizes
        before = turns
        sizes.append(len(piece))
    task.cancel()
    assert sum(sizes[1:]) == sum(len(chunk) for family in many for chunk in family.snapshot())
    assert len(sizes) > 100


async def test_what_the_registry_renders_at_once_does_not_grow_with_the_groups() -> None:
    """A label `group` there would render every group in one go."""
    assert {module.__name__ for module in (certs.main, controller.metrics, webhooks.app)}
    labels = {label for each in REGISTRY._collector_to_names for label in getattr(each, "_labelnames", ())}
    assert "webhook" in labels
    assert not labels & {"group", "namespace", "user"}


def test_slices_lose_nothing_and_keep_the_order() -> None:
    chunks = [b"a" * (SLICE - 1), b"b", b"c" * (3 * SLICE), b"", b"d"]
    assert b"".join(slices(chunks)) == b"".join(chunks)
    assert [piece[:1] for piece in slices(chunks)] == [b"a", b"c", b"d"]
    assert list(slices([])) == []


async def test_a_scrape_shows_one_moment() -> None:
    """What changes while it is written comes with the next one."""
    family = filled(groups=2000)
    pieces = []
    async for piece in render([family]):
        pieces.append(piece)
        family.clear()
        family.set("late", {"limits.cpu": 1})
    text = b"".join(pieces).decode()
    assert text.count("bizrq_group_used{") == 2000 * RESOURCES
    assert "late" not in text


async def test_a_scrapers_parser_reads_what_is_written() -> None:
    used, drift = GroupFamily("t_used", "Used", by="resource"), GroupCounter("t_drift_total", "Drift")
    odd = 'li"mits\\.cpu\n'
    used.set("nlp", {odd: 2**60, "cash/requests.nvidia.com/gpu": float("inf"), "limits.cpu": 0.001})
    used.set("vision", {"limits.cpu": 1})
    used.set("vision", {})
    drift.inc("nlp")
    drift.inc("nlp")
    drift.inc("gone")
    drift.forget("gone")
    drift.inc("gone")
    found = {family.name: family for family in await families([used, drift])}
    assert (found["t_used"].type, found["t_drift"].type) == ("gauge", "counter")
    assert {(s.labels["group"], s.labels["resource"]): s.value for s in found["t_used"].samples} == {
        ("nlp", odd): 2.0**60,
        ("nlp", "cash/requests.nvidia.com/gpu"): float("inf"),
        ("nlp", "limits.cpu"): 0.001,
    }
    assert {s.labels["group"]: s.value for s in found["t_drift"].samples} == {"nlp": 2, "gone": 1}
    drift.clear()
    drift.inc("nlp")
    [counted] = [f for f in await families([drift]) if f.name == "t_drift"]
    assert [s.value for s in counted.samples] == [1]


class One(Collector):
    def collect(self) -> Any:
        family = GaugeMetricFamily("t_measured", "Measured at the scrape", labels=["resource"])
        family.add_metric(["pods"], 3)
        yield family


async def test_the_port_serves_registry_collectors_and_groups_in_one_answer() -> None:
    family = filled()
    [port] = _free_ports(1)
    listener = await process.serve_metrics("127.0.0.1", port, lambda: "", None, [family], [One()])
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/metrics") as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
                found = {f.name: f for f in text_string_to_metric_families(await answer.text())}
            assert len(found["bizrq_group_used"].samples) == GROUPS * RESOURCES
            assert [s.value for s in found["t_measured"].samples] == [3]
            assert "bizrq_connections_cut" in found
            async with session.head("/metrics") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            async with session.get("/healthz") as answer:
                assert await answer.text() == "ok", "the connection goes on after both"
    finally:
        await listener.cleanup()


async def test_a_scraper_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a hundred of them would fill the port for good."""
    monkeypatch.setattr(process, "SCRAPE", 0.2)
    [port] = _free_ports(1)
    listener = await process.serve_metrics("127.0.0.1", port, lambda: "", None, [filled() for _ in range(4)])
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
        while not listener.connections:  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.01)
        while listener.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.close()
    finally:
        await listener.cleanup()
