"""Convert parts of cards to billionths of a card.

This file alone turns memory, cores and slices into whole-card equivalents (docs/counting.md, "Parts of cards"). It does
not know which workload asks. A card is full when its memory, its cores or its slots are, so the largest share counts. A
part of unknown size counts as the whole card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from bizrq.units import names, quantity
from bizrq.units.quantity import NANO, QuantityError
from bizrq.workloads.config import CountingConfig, CountsAs
from bizrq.workloads.validation import describe_value, malformed

#: The card that MIG slices and time-shared GPUs are parts of.
NVIDIA: Final = "nvidia.com/gpu"

_MIG = re.compile(r"nvidia\.com/mig-(?:[1-7]c\.)?([1-7])g\.([0-9]{1,3})gb(?:[^0-9].*)?", re.ASCII)
#: Devices that are an equal part of a card: the card, and its number of parts.
_PARTS_OF: Final[Mapping[str, tuple[str, int]]] = {"aws.amazon.com/neuroncore": ("aws.amazon.com/neuron", 2)}
#: MiB of an A30, which has four slices; every other card with MIG has seven.
_FOUR_SLICES = 24_576


def share(part: int, whole: int) -> int:
    """Return `part` of `whole` in billionths, rounded up and at most 1."""
    return min(-(-part * NANO // whole), NANO)


def card_memory(models: Sequence[str], config: CountingConfig) -> tuple[int, int] | None:
    """Return the least and the most MiB of a card of these models; None where the size of one is not known."""
    known = [config.gpu_models.get(name) for name in models]
    sizes = [model.memory_mib for model in known if model is not None and model.memory_mib]
    return (min(sizes), max(sizes)) if sizes and len(sizes) == len(models) else None


def cards_of_names(
    amounts: Mapping[str, int], memory: tuple[int, int] | None, catalog: names.Catalog
) -> dict[str, int]:
    """Return the cards that whole cards and slices come to, in nano-units by `cards.` name.

    `amounts` are in nano-units by the name that a container uses.
    """
    cards: dict[str, int] = {}
    for name, amount in amounts.items():
        if amount and "/" in name:
            found = _of_name(name, memory, catalog)
            if found is not None:
                card, part = found
                cards[card] = cards.get(card, 0) + amount // NANO * part
    return cards


@lru_cache(maxsize=4096)
def _of_name(name: str, memory: tuple[int, int] | None, catalog: names.Catalog) -> tuple[str, int] | None:
    slices = _MIG.fullmatch(name)
    if slices is not None:
        return f"cards.{NVIDIA}", NANO if memory is None else _slice(int(slices[1]), int(slices[2]) * 1024, memory[0])
    if name == f"{NVIDIA}.shared":
        return f"cards.{NVIDIA}", NANO
    if name in _PARTS_OF:
        whole, parts = _PARTS_OF[name]
        return f"cards.{whole}", share(1, parts)
    card = f"cards.{name}"
    return (card, NANO) if names.is_model_base(card, catalog) else None


def _slice(compute: int, memory: int, card: int) -> int:
    return max(share(compute, 4 if card == _FOUR_SLICES else 7), share(memory, card))


def mig_share(memory: int, card: int) -> int:
    """Return the share of the smallest MIG slice that has this much memory; both arguments are in MiB."""
    slices: Iterable[tuple[int, int]] = ((1, 8), (2, 4), (3, 2), (7, 1))
    if card == _FOUR_SLICES:
        slices = ((1, 4), (2, 2), (4, 1))
    for compute, part in slices:
        if memory * part <= card:
            return _slice(compute, card // part, card)
    return NANO


def annotations_of_counts_as(config: CountingConfig) -> tuple[str, ...]:
    """Return the annotations by which pods ask for cards."""
    return tuple(dict.fromkeys(key for way in config.counts_as for key in (way.annotation, way.times) if key))


def cards_of_counts_as(
    amounts: Mapping[str, int], annotations: Mapping[str, Any], memory: tuple[int, int] | None, config: CountingConfig
) -> dict[str, int]:
    """Return the cards and whole devices that one pod asks for by the rules of `countsAs`, in nano-units.

    `amounts` are the pod's by the name that a container uses. Raises Malformed for an annotation that is no amount.
    """
    found: dict[str, int] = {}
    for way in config.counts_as:
        if way.resource:
            value = amounts.get(way.resource, 0)
        else:
            value = _amount(annotations, way.annotation)
            if way.times and way.times in annotations:
                value = value * _amount(annotations, way.times) // NANO
        if not value:
            continue
        part = _cards(value, way, memory)
        for name, amount in (
            (f"cards.{way.card}", part),
            (f"requests.{way.card}", -(-part // NANO) * NANO),
            (f"limits.{way.card}", -(-part // NANO) * NANO),
        ):
            found[name] = found.get(name, 0) + amount
    return found


def _amount(annotations: Mapping[str, Any], key: str) -> int:
    given = annotations.get(key)
    if given is None:
        return 0
    try:
        amount = quantity.parse(given) if isinstance(given, str) else -1
    except QuantityError as error:
        raise malformed(f"metadata.annotations.{key}", str(error)) from None
    if amount < 0:
        raise malformed(f"metadata.annotations.{key}", f"must be an amount from 0, not {describe_value(given)}")
    return amount


def _cards(value: int, way: CountsAs, memory: tuple[int, int] | None) -> int:
    """Convert an amount in the unit of `way` to nano-cards; memory of a card of unknown size is a whole card."""
    if way.unit == "cards":
        return value
    if way.unit == "percent":
        return -(-value // 100)
    mib = {"MiB": 1, "256MiB": 256, "GiB": 1024}[way.unit]
    return NANO if memory is None else -(-value * mib // memory[0])
