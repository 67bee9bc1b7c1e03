"""Plain numbers: a unit for every resource, and no fraction."""

from __future__ import annotations

import pytest

from bizrq.units import base, quantity


@pytest.mark.parametrize(
    ("resource", "amount", "unit", "used", "left"),
    [
        ("limits.cpu", "1500m", "millicores", 1_500, 1_500),
        ("requests.cpu.A4", "100u", "millicores", 1, 0),
        ("limits.memory", "1Ki", "bytes", 1_024, 1_024),
        ("hugepages-2Mi", "2Mi", "bytes", 2 * 2**20, 2 * 2**20),
        ("requests.nvidia.com/gpu", "1k", "count", 1_000, 1_000),
        ("requests.example.com/cpu", "1", "count", 1, 1),
        ("pods", "3", "count", 3, 3),
        ("cash/requests.nvidia.com/gpu", "500m", "seconds", 1_800, 1_800),
        ("cash/limits.cpu", "1m", "core-seconds", 4, 3),
        ("cash/limits.memory", "1Gi", "MiB-seconds", 1_024 * 3_600, 1_024 * 3_600),
    ],
)
def test_what_is_used_is_rounded_up_and_what_is_left_down(
    resource: str, amount: str, unit: str, used: int, left: int
) -> None:
    nano = quantity.parse(amount)
    assert (base.unit_of(resource), base.rounded_up(resource, nano), base.rounded_down(resource, nano)) == (
        unit,
        used,
        left,
    )
    assert base.rounded_down(resource, -nano) == -used


def test_spent_hours_are_seconds() -> None:
    hour = quantity.NANO * 3_600_000
    assert (base.seconds_unit("limits.cpu"), base.seconds("limits.cpu", hour + 1)) == ("core-seconds", 3_601)
    assert base.seconds("limits.memory", hour * 2**30) == 1_024 * 3_600
