"""This file alone decides what the text of a quantity means, and which text a number gets.

It knows numbers and suffixes, and of resources only which are counted in bytes; no objects, groups or limits.

The grammar, the canonical form and the rounding are those of Kubernetes' `resource.Quantity`
(k8s.io/apimachinery, pkg/api/resource: quantity.go, suffix.go, amount.go). On purpose different: beyond
2**63 - 1 whole units in magnitude is refused, not capped or carried on, before any large number is built.
"""

import math
import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

NANO: Final = 10**9
"""Nano-units in one unit: 1 core, 1 byte and 1 card are each 10**9."""

MAX: Final = (2**63 - 1) * NANO
"""The largest magnitude that is parsed, in nano-units."""

# Nobody needs more, and Python's int() may be configured to refuse 641 digits (sys.set_int_max_str_digits).
_MAX_TEXT = 512

_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
# What `canonical` writes: a whole number and a suffix, or beyond the suffixes a power of ten.
_SUM = re.compile(r"([0-9]{1,60})(?:([numkMGTPE]|[KMGTPE]i)|e([0-9]{1,2}))?", re.ASCII)
_EXPONENT = re.compile(r"[eE]([-+]?)0*([0-9]+)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_OF = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_OF = ("", *_BINARY)


class QuantityError(ValueError):
    """No quantity. The message is one line: what was given (cut short), what is wrong, what to write."""


class Format(Enum):
    """How a quantity was written, and so how it is shown; the values are Kubernetes' names."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def parse(value: object) -> int:
    """Return the nano-units of a quantity of JSON or YAML: a str, an int or a float.

    Digits below nano round away from zero. Negative quantities parse; the caller refuses them.
    Raises QuantityError for anything else, for bool and None too.
    """
    return parse_with_format(value)[0]


def parse_with_format(value: object) -> tuple[int, Format]:
    """Return the nano-units of a quantity and the format that Kubernetes would show it in. Raises QuantityError."""
    if isinstance(value, str):
        return _parse(value)
    if isinstance(value, int) and not isinstance(value, bool):
        # Compared as a number: Python refuses to turn an int of more than 4,300 digits into text.
        if not -(2**63) < value < 2**63:
            raise _too_large("an integer")
        return value * NANO, Format.DECIMAL_SI
    if isinstance(value, float):
        if not math.isfinite(value):
            raise QuantityError(f"{value} is not a quantity: {_WRITE}")
        # The shortest text that reads back as this float: most likely what the author of the JSON wrote.
        return _parse(repr(value))
    name = "null" if value is None else type(value).__name__
    raise QuantityError(f"a {name} is not a quantity: {_WRITE}")


_WRITE = "write a number with at most one suffix, like 2, 500m, 1.5, 4Gi or 1e3"


def _parse(text: str) -> tuple[int, Format]:
    if len(text) > _MAX_TEXT:
        raise QuantityError(f"{_echo(text)} has {len(text)} characters: {_WRITE}")
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        raise QuantityError(f"{_echo(text)} is not a quantity: {_WRITE}")
    sign, whole, fraction, suffix = match[1], match[2].lstrip("0"), match[3] or "", match[4]
    power, binary, fmt = _suffix(text, suffix)
    if not whole and not fraction and not match[2]:
        # No digit at all. Kubernetes reads "+", ".", "k" and even "Ki" as 0, as long as its 64-bit path takes
        # them; on its other path the same is an error (ParseQuantity: precision and scale).
        if power < -9 or binary > 40:
            raise QuantityError(f"{_echo(text)} has no digits: {_WRITE}")
        return 0, fmt
    if not whole and not fraction.strip("0"):
        return 0, fmt

    # nano = digits * 10**shift * 2**binary, and counting digits settles both ends of the range.
    digits = (whole + fraction).lstrip("0")
    shift = 9 + power - len(fraction)
    if len(digits) + shift > 28:
        raise _too_large(_echo(text))
    if len(fraction) - power >= 2**31:
        # Kubernetes reads the exponent into 32 bits, where it wraps: 1e-4294967296 would run as 1 and count as 1n.
        raise QuantityError(f"{_echo(text)} has an exponent out of range: {_WRITE}")
    if len(digits) + shift < -20:
        # Less than 10**-20 nano-units, times at most 2**60 < 10**19: something, and below nano.
        nano = 1
    elif shift >= 0:
        nano = (int(digits) * 10**shift) << binary
    else:
        nano = -(-(int(digits) << binary) // 10**-shift)
    if nano > MAX:
        raise _too_large(_echo(text))
    if fmt is Format.BINARY_SI and nano < NANO:
        # As Kubernetes: less than one unit is never shown in powers of 1024.
        fmt = Format.DECIMAL_SI
    return (-nano if sign == "-" else nano), fmt


def _suffix(text: str, suffix: str) -> tuple[int, int, Format]:
    """Return the power of 10, the power of 2 and the format of a suffix."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], 0, Format.DECIMAL_SI
    if suffix in _BINARY:
        return 0, _BINARY[suffix], Format.BINARY_SI
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise QuantityError(
            f"{_echo(text)} has an unknown suffix: write n u m k M G T P E, Ki Mi Gi Ti Pi Ei or e and digits"
        )
    power = int(exponent[2]) if len(exponent[2]) <= 19 else 2**63
    if power - (exponent[1] == "-") >= 2**63:
        raise QuantityError(f"{_echo(text)} has an exponent out of range: {_WRITE}")
    return (-power if exponent[1] == "-" else power), 0, Format.DECIMAL_EXPONENT


def canonical(nano: int, fmt: Format = Format.DECIMAL_SI) -> str:
    """Kubernetes' text of this amount in this format: no fraction, the largest suffix that loses nothing.

    In BinarySI what is under 1024 units or has a fraction is shown in DecimalSI. Every amount has a text, a
    sum beyond MAX too (1e21, 1024Ei), though parse refuses it.
    """
    if nano == 0:
        return "0"
    if fmt is Format.BINARY_SI and abs(nano) >= 1024 * NANO and nano % NANO == 0:
        units, power = nano // NANO, 0
        while units % 1024 == 0 and power < 6:
            units, power = units // 1024, power + 1
        return f"{units}{_BINARY_OF[power]}"
    mantissa, exponent = nano, -9
    while mantissa % 1000 == 0:
        mantissa, exponent = mantissa // 1000, exponent + 3
    if fmt is Format.DECIMAL_EXPONENT or exponent > 18:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_OF[exponent]}"


def parse_sum(value: object) -> int:
    """Return the nano-units of a quantity that `text` wrote; a sum may be larger than one quantity may be.

    Raises QuantityError.
    """
    match = _SUM.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return parse(value)
    digits, suffix, exponent = match.groups()
    if suffix in _BINARY:
        return int(digits) * NANO << _BINARY[suffix]
    return int(digits) * 10 ** ((int(exponent) if exponent else _DECIMAL[suffix or ""]) + 9)


def round_up_milli(nano: int) -> int:
    """Return the next whole milli away from zero, as Kubernetes rounds requests (SetDefaults_ResourceList)."""
    milli = NANO // 1000
    return -(-nano // milli) * milli if nano > 0 else nano // milli * milli


@lru_cache(maxsize=16_384)
def text(resource: str, nano: int) -> str:
    """Return the text of an amount of a resource: powers of 1024 for bytes, else of 1000."""
    return canonical(nano, Format.BINARY_SI if in_bytes(resource) else Format.DECIMAL_SI)


def texts(amounts: Mapping[str, int]) -> str:
    """Return amounts by resource as one text, in the order of their names, or "nothing"."""
    return ", ".join(f"{name}={text(name, amount)}" for name, amount in sorted(amounts.items())) or "nothing"


def in_bytes(resource: str) -> bool:
    """Return True where this resource, or the resource of these hours, is counted in bytes."""
    name = resource.removeprefix("cash/")
    if name.startswith(("requests.", "limits.")):
        name = name.partition(".")[2]
    # Only for show, so that a model after memory is taken on sight; a vendor's name has a slash.
    return "/" not in name and (name in ("memory", "ephemeral-storage") or name.startswith(("memory.", "hugepages-")))


def _too_large(what: str) -> QuantityError:
    return QuantityError(f"{what} is beyond 9223372036854775807 in magnitude: write a smaller quantity")


def _echo(text: str) -> str:
    """Hostile text in quotes, in ASCII and at most 48 characters: fit for one line of a message."""
    quoted = ascii(text if len(text) <= 32 else text[:32] + "...")
    return quoted if len(quoted) <= 48 else quoted[:44] + "...'"
