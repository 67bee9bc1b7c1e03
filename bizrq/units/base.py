"""Plain numbers for programs and spreadsheets: whole numbers of one base unit for each resource.

This file alone decides which unit that is, and which way a fraction of it is rounded. It knows no objects.

A spreadsheet reads `1064.000` as a million where the comma is the decimal mark, and `1k` as text. Whole numbers are
read the same way everywhere.
"""

from __future__ import annotations

from typing import Any, Final

from bizrq.units import quantity

#: Milliseconds in a second: spent hours are nano-units x milliseconds.
_SECOND: Final = 1_000
_HOUR_SECONDS: Final = 3_600
_MIB: Final = 2**20


def unit_of(resource: str) -> str:
    """Return the unit of `rounded_up` and `rounded_down`: millicores, bytes, count, or seconds of a budget."""
    if resource.startswith("cash/"):
        return seconds_unit(resource)
    if quantity.in_bytes(resource):
        return "bytes"
    return "millicores" if _is_cpu(resource) else "count"


def seconds_unit(resource: str) -> str:
    """Return the unit of `seconds`: core-seconds, MiB-seconds, or seconds of one device."""
    if quantity.in_bytes(resource):
        return "MiB-seconds"
    return "core-seconds" if _is_cpu(resource) else "seconds"


def rounded_up(resource: str, nano: int) -> int:
    """Return an amount of nano-units in base units; a fraction counts as one, as for what is used."""
    times, parts = _ratio(resource)
    return -(-nano * times // parts)


def rounded_down(resource: str, nano: int) -> int:
    """Return an amount of nano-units in base units without the fraction, as for what is free."""
    times, parts = _ratio(resource)
    return nano * times // parts


def plain(resource: str, nano: int) -> dict[str, Any]:
    """Return an amount that is needed or used as JSON has it: a whole number and its unit."""
    return {"unit": unit_of(resource), "amount": rounded_up(resource, nano)}


def seconds(resource: str, amount: int) -> int:
    """Return nano-units x milliseconds in `seconds_unit`, rounded up."""
    return -(-amount // (quantity.NANO * _SECOND * (_MIB if quantity.in_bytes(resource) else 1)))


def _ratio(resource: str) -> tuple[int, int]:
    """Return what to multiply nano-units with, and what to divide them by."""
    if resource.startswith("cash/"):
        return _HOUR_SECONDS, quantity.NANO * (_MIB if quantity.in_bytes(resource) else 1)
    return 1, quantity.NANO // (1_000 if _is_cpu(resource) else 1)


def _is_cpu(resource: str) -> bool:
    name = resource.removeprefix("cash/")
    if name.startswith(("requests.", "limits.")):
        name = name.partition(".")[2]
    return name == "cpu" or name.startswith("cpu.")
