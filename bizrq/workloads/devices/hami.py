"""Count what HAMi makes of a pod that asks for parts of cards.

This file alone knows HAMi: what its webhook adds to a pod after ours, its totals, and the part of a card that a request
is. `hami.yaml` has the differences between vendors. The rules are in docs/counting.md, "HAMi", after HAMi
`pkg/device/*` and `pkg/device/quota.go`. A container asks for memory and cores of each device. `requests.` stay
Kubernetes' sums; `limits.` of memory and cores have HAMi's totals: devices times the value, in the unit of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bizrq.units.quantity import NANO
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.devices import cards
from bizrq.workloads.devices.dra import ClaimContext
from bizrq.workloads.devices.models import gpu_models, known_model
from bizrq.workloads.hami_devices import HamiDevice, SliceRule
from bizrq.workloads.labels import labels_of
from bizrq.workloads.lookup import Lookup
from bizrq.workloads.pods.podspec import Container, PodCost, aggregate
from bizrq.workloads.pods.roles import PodSet
from bizrq.workloads.validation import expect_list, expect_map, expect_text, malformed

#: The label of a pod or a namespace that HAMi's webhook ignores, with the value "ignore".
IGNORE: Final = "hami.io/webhook"
_SCHEDULERS = ("", "default-scheduler", "hami-scheduler")
_MOST = 2**31 - 1
_MIG_MODE: Final = "nvidia.com/vgpu-mode"
#: The annotation of a node that lists its cards.
REGISTERED: Final = "hami.io/node-nvidia-register"
_NVIDIA_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"


def counted_annotations(config: CountingConfig) -> tuple[str, ...]:
    """Return the annotations of pods that counting reads; none where HAMi is off."""
    if not config.hami.enabled:
        return ()
    return (*asking_annotations(config), *dict.fromkeys(d.allocated for d in config.hami.devices if d.allocated))


def asking_annotations(config: CountingConfig) -> tuple[str, ...]:
    """Return the annotations of pods that decide what they ask for; none where HAMi is off."""
    if not config.hami.enabled:
        return ()
    soft = (key for device in config.hami.devices for key in device.soft)
    return ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype", _MIG_MODE, *dict.fromkeys(soft))


def adjust(cost: PodCost, pods: PodSet, claims: ClaimContext) -> dict[str, int]:
    """Change the cost of one pod to its cost after HAMi's webhook. Return its cards in nano-units by name.

    Raises Malformed for what HAMi would refuse or misread.
    """
    config = claims.config
    if not config.hami.enabled:
        return {}
    by_name = config.hami.devices_by_name
    everyone = (*cost.containers, *cost.init_containers)
    devices = {
        device.count: by_name[device.count]
        for container in everyone
        for name in container.requests
        for device in by_name.get(name, ())
    }
    if not devices:
        return {}
    if _is_skipped(pods) or ignores_namespace(claims.namespace, claims.lookup):
        # HAMi does not multiply these, so its totals do not include them.
        for part in (part for rows in devices.values() for row in rows for part in (row.memory, row.cores) if part):
            cost.limits.pop(part.name, None)
        return {}
    raw = _raw(cost, pods)
    memory = cards.card_memory(gpu_models(claims.labels, pods, config), config)
    around = _Around(config.hami.device_split_count, memory, pods)
    found: dict[str, int] = {}
    for count, rows in devices.items():
        _refuse_privileged(everyone, rows, raw)
        taken = _shared(cost, rows, {id(c): _product(c, _row(rows, c), raw[id(c)], around) for c in everyone})
        if taken:
            found[f"cards.{count}"] = taken
    return found


def _shared(cost: PodCost, rows: Sequence[HamiDevice], products: Mapping[int, Mapping[str, int]]) -> int:
    """Set what the pod asks for of one device and its parts to what HAMi counts. Return the cards in nano-units."""

    def total(name: str, container: Container) -> int:
        return products[id(container)].get(name, container.limits.get(name, 0))

    for name in dict.fromkeys(name for row in rows for name in (row.count, *row.parts)):
        _set(cost.requests, name, _most(cost, lambda c, name=name: c.requests.get(name, 0)))
        _set(cost.limits, name, _most(cost, partial(total, name)))
    return _most(cost, partial(_part, products, ""))


@dataclass(frozen=True, slots=True)
class _Around:
    """The slots of a card, the least and most MiB of it, and the pods that ask."""

    split: int
    memory: tuple[int, int] | None
    pods: PodSet

    def has(self, wanted: Mapping[str, str]) -> bool:
        return bool(wanted) and all(self.pods.annotations.get(key) == value for key, value in wanted.items())


def _most(cost: PodCost, amount: Callable[[Container], int]) -> int:
    """Return the most that the pod holds at any time of an amount per container, with init containers and sidecars."""
    return aggregate(
        ({"": amount(c)} for c in cost.containers), (({"": amount(c)}, c.sidecar) for c in cost.init_containers)
    ).get("", 0)


def _set(amounts: dict[str, int], name: str, amount: int) -> None:
    if amount:
        amounts[name] = amount
    else:
        amounts.pop(name, None)


def _is_skipped(pods: PodSet) -> bool:
    scheduler = expect_text(pods.spec.get("schedulerName"), f"{pods.path}.schedulerName")
    return scheduler not in _SCHEDULERS or pods.labels.get(IGNORE) == "ignore"


def ignores_namespace(namespace: str, lookup: Lookup) -> bool:
    """Return True if HAMi's webhook ignores the namespace; the Namespace has the same label for that."""
    found = lookup.get("", "Namespace", "", namespace)
    return found is not None and labels_of(found).get(IGNORE) == "ignore"


def _raw(cost: PodCost, pods: PodSet) -> dict[int, dict[str, Any]]:
    """Return each container as the template has it, by the id of its Container."""
    found: dict[int, dict[str, Any]] = {}
    for key, containers in (("containers", cost.containers), ("initContainers", cost.init_containers)):
        written = expect_list(pods.spec.get(key), f"{pods.path}.{key}")
        found.update((id(c), given) for given, c in zip(written, containers, strict=True))
    return found


def _refuse_privileged(
    everyone: Sequence[Container], rows: Sequence[HamiDevice], raw: Mapping[int, dict[str, Any]]
) -> None:
    """Reject privileged containers that ask for parts: HAMi's webhook ignores them, and they would see every card."""
    names = {name for row in rows for name in (row.count, *row.parts)}
    for container in everyone:
        path = f"{container.path}.securityContext"
        context = expect_map(raw[id(container)].get("securityContext"), path)
        if context.get("privileged") is True and not names.isdisjoint(container.requests):
            raise malformed(f"{path}.privileged", "a privileged container cannot have parts of cards from HAMi")


def _row(rows: Sequence[HamiDevice], container: Container) -> HamiDevice:
    """Return, of the devices that share a name, the one whose parts the container asks for."""
    return next((row for row in rows if any(name in container.requests for name in row.parts)), rows[0])


def _product(container: Container, device: HamiDevice, raw: dict[str, Any], around: _Around) -> dict[str, int]:
    """Return what one container takes, in nano-units: HAMi's memory and cores by name, and whole-card equivalents as
    "".

    It also changes the container to what HAMi's webhook makes of it. Empty where the container asks for no device.
    """
    asked = {n: container.requests[n] // NANO for n in (device.count, *device.parts) if n in container.requests}
    path = f"{container.path}.resources.limits"
    if device.slices is not None and device.count not in asked and device.slices.name in asked:
        return _sliced(asked[device.slices.name], device.slices, path)
    if not asked or (device.count not in asked and not (device.implied or device.one)):
        return {}
    devices = 1 if device.one else asked.get(device.count, 1)
    if device.pairs and devices % 2:
        if devices != 1:
            raise malformed(f"{path}.{device.count}", "comes in pairs: ask for an even number, or for 1")
        devices = 2
    several = devices > 1 and device.several == "written"
    memory, share = _memory(device, asked, raw, several, path, around)
    # A pair counts as one device here; only a larger request asks for several.
    if device.several == "whole" and asked[device.count] > 1 and share < NANO and not around.has(device.soft):
        raise malformed(f"{path}.{device.count}", "is more than 1: parts can be had of one device only")
    cores = _cores(device, asked, several, path, around)
    for name, amount in _written(device, asked, devices, memory, cores).items():
        container.requests[name] = container.limits[name] = amount * NANO
    part = max(cores * NANO // (device.cores.full if device.cores else 100), share, cards.share(1, around.split))
    if around.pods.annotations.get(_MIG_MODE) == "mig" and device.count == cards.NVIDIA and around.memory and memory:
        part = cards.mig_share(memory, around.memory[0])
    product = {"": devices * min(part, NANO)}
    for how, amount in ((device.memory, memory), (device.cores, cores)):
        if how is not None:
            product[how.name] = devices * amount * NANO
    return product


def _written(device: HamiDevice, asked: Mapping[str, int], devices: int, memory: int, cores: int) -> dict[str, int]:
    """Return the amounts that HAMi's webhook writes into the container."""
    times = devices if device.totals else 1
    written = {} if device.one else {device.count: devices}
    if device.memory is not None and memory:
        name = device.memory.name
        if "memory" in device.writes or ("rounded" in device.writes and name in asked):
            written[name] = memory * times
    if device.cores is not None and cores and "cores" in device.writes:
        written[device.cores.name] = cores * times
    return written


def _sliced(number: int, slices: SliceRule, path: str) -> dict[str, int]:
    """Return the whole-card equivalents of slices."""
    if number > slices.of and number % slices.of:
        raise malformed(f"{path}.{slices.name}", f"must be 1 or a multiple of {slices.of}")
    return {"": cards.share(1, slices.of) * number if number < slices.of else number // slices.of * NANO}


def _memory(
    device: HamiDevice, asked: Mapping[str, int], raw: dict[str, Any], several: bool, path: str, around: _Around
) -> tuple[int, int]:
    """Return the memory of one device in units of its name, and its share of a card; unstated memory is all of it."""
    how = device.memory
    if how is None:
        return 0, NANO
    card = how.card // how.mib * how.mib if how.card else 0
    least, most = (card, card) if card else around.memory or (0, 0)
    whole = -(-most // how.mib)
    value, percent = asked.get(how.name, 0), asked.get(device.percentage)
    where = f"{path}.{how.name}"
    if percent is not None and percent > 100:
        raise malformed(f"{path}.{device.percentage}", "must be at most 100")
    mib = value * how.mib
    if value and how.bytes and _has_suffix(raw, how.name):
        mib, value = -(-value // 2**20), -(-value // (how.mib * 2**20))
    if mib > _MOST:
        unit = "MiB" if how.mib == 1 else f"{how.mib} MiB each"
        raise malformed(where, f"counts {unit}, and HAMi reads no more than {_MOST // how.mib} of them")
    if several:
        return whole or value, NANO
    if value and how.only and value not in how.only:
        raise malformed(where, f"must be one of {', '.join(map(str, how.only))}")
    if value and how.steps and not around.has(device.soft):
        if how.most and value > how.most:
            raise malformed(where, f"is more than a card has ({how.most} MiB)")
        value = mib = next((step for step in how.steps if value <= step), how.card)
    elif most and mib > most:
        raise malformed(where, f"is more than a card of this model has ({most} MiB)")
    if value:
        return value, cards.share(mib, least) if least else NANO
    if percent:
        return -(-whole * percent // 100), cards.share(percent, 100)
    # A container that always has one device may ask for cores alone; they decide the profile.
    by_cores = device.one and device.cores is not None and device.cores.name in asked
    return (0, 0) if by_cores else (whole, NANO)


def _has_suffix(raw: dict[str, Any], name: str) -> bool:
    """Return True if a quantity has a letter, as bytes do."""
    resources_ = raw.get("resources") or {}
    given = (resources_.get("limits") or {}).get(name, (resources_.get("requests") or {}).get(name))
    return isinstance(given, str) and any(letter.isalpha() for letter in given)


def _cores(device: HamiDevice, asked: Mapping[str, int], several: bool, path: str, around: _Around) -> int:
    """Return the cores of one device."""
    how = device.cores
    if how is None:
        return 0
    number, unsaid = asked.get(how.name), device.memory is None or device.memory.name not in asked
    if several or (device.totals and unsaid and how.unsaid == "exclusive"):
        return how.full
    if number is not None:
        where = f"{path}.{how.name}"
        if number and how.needs and not around.has(how.needs):
            [(key, value)] = how.needs.items()
            raise malformed(where, f"needs the annotation {key}: {value}")
        if how.strict and not 0 < number <= how.full:
            raise malformed(where, f"must be from 1 to {how.full}")
        return min(number, how.full)
    if how.unsaid == "exclusive":
        percent = asked.get(device.percentage)
        return how.full if (unsaid if percent is None else percent == 100) else 0
    return how.full if how.unsaid == "full" else 0


def allocated(
    cost: PodCost, annotations: Mapping[str, Any], memory: tuple[int, int] | None, config: CountingConfig
) -> dict[str, int]:
    """Return what HAMi wrote into the pod that it gave it: `limits.` of memory and cores, and `cards.`, in nano-units.

    The format is "uuid,type,MiB,cores:" for each device and ";" after each container, init containers first. Empty
    where HAMi wrote nothing readable: the pod's requests count then. The pod's author can write this annotation, so it
    never lowers a charge. `memory` is the least and most MiB of a card.
    """
    found: dict[str, int] = {}
    containers = (*cost.init_containers, *cost.containers)
    for device in config.hami.devices:
        text = annotations.get(device.allocated) if device.allocated else None
        if not isinstance(text, str) or device.cards in found:
            continue
        given = _decoded(text)
        if given is None or not any(given) or len(given) > len(containers):
            continue
        # An annotation with fewer entries leaves out init containers, the first of the list.
        pairs = zip(reversed(containers), reversed(given), strict=False)
        products = {id(c): _held(part, device, memory, config.hami.device_split_count) for c, part in pairs}
        for name in {name: None for product in products.values() for name in product}:
            found[name] = _most(cost, partial(_part, products, name))
    return found


def _part(products: Mapping[int, Mapping[str, int]], name: str, container: Container) -> int:
    return products.get(id(container), {}).get(name, 0)


def _held(
    devices: Sequence[tuple[int, int]], device: HamiDevice, memory: tuple[int, int] | None, split: int
) -> dict[str, int]:
    """Return what a container has, in nano-units by name. `devices` are (MiB, cores) of each device."""
    full = device.cores.full if device.cores else 100
    card = device.memory.card if device.memory and device.memory.card else memory[0] if memory else 0
    held: dict[str, int] = {}
    if device.memory is not None:
        mib = -(-sum(m for m, _ in devices) // device.memory.mib)
        held[f"limits.{device.memory.name}"] = mib * NANO
    if device.cores is not None:
        held[f"limits.{device.cores.name}"] = sum(c for _, c in devices) * NANO
    shares = [max(cards.share(c, full), cards.share(m, card) if card else NANO) for m, c in devices]
    held[device.cards] = sum(max(share, cards.share(1, split)) for share in shares)
    return held


def _decoded(text: str) -> list[list[tuple[int, int]]] | None:
    """Return (MiB, cores) of each device of each container; None for a text that HAMi does not write."""
    found: list[list[tuple[int, int]]] = []
    for container in text[:65_536].rstrip(";").split(";"):
        devices: list[tuple[int, int]] = []
        for device in container.split(":"):
            if "," not in device:
                continue
            words = device.split(",")
            if len(words) < 4 or not all(word.isascii() and word.isdigit() and len(word) < 11 for word in words[2:4]):
                return None
            devices.append((int(words[2]), int(words[3])))
        found.append(devices)
    return found


def allocated_model(annotations: Mapping[str, Any], node: Mapping[str, Any], config: CountingConfig) -> str | None:
    """Return the model of the card that HAMi gave a pod, as its node registered it; None where it is not known."""
    text, registered = annotations.get(_NVIDIA_ALLOCATED), node.get(REGISTERED)
    if not isinstance(text, str) or not isinstance(registered, str):
        return None
    uuids = {device.partition(",")[0] for part in text.split(";") for device in part.split(":") if "," in device}
    for device in registered.split(":"):
        words = device.split(",")
        if len(words) > 4 and words[0] in uuids:
            return known_model(words[4], config) or known_model(words[4].removeprefix("NVIDIA-"), config)
    return None
