"""What HAMi makes of a pod that asks for parts of cards.

This file alone knows HAMi: what its webhook adds to a pod after us, its totals, and how much of a card a part is.
Rules H1 to H6 of the devices' specification, after HAMi `pkg/device/nvidia/device.go`, `pkg/device/quota.go`. Memory
is in MiB and cores in percent of a card, both for each device; `requests.` stay Kubernetes' own sums, `limits.` of
memory and cores carry HAMi's: devices times the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bizrq.quota.quantity import NANO
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.malformed import a_list, a_map, a_text, malformed
from bizrq.workloads.models import gpu_models, known_model
from bizrq.workloads.podspec import Container, PodCost, aggregate
from bizrq.workloads.roles import PodSet

GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
_NAMES = (GPU, MEMORY, PERCENT, CORES)
_CARDS = f"cards.{GPU}"

ASCEND: Final = "huawei.com/Ascend"
#: A module is two of these (HAMi `pkg/device/ascend/device.go`).
_PAIRS = f"{ASCEND}910C"

_SCHEDULERS = ("", "default-scheduler", "hami-scheduler")


def adjust(cost: PodCost, pods: PodSet, labels: Mapping[str, Any], config: CountingConfig) -> dict[str, int]:
    """Change the cost of one pod to what it is after HAMi's webhook, and give the cards that it takes, by name.

    Raises Malformed for what HAMi would refuse or misread.
    """
    if not config.hami.enabled:
        return {}
    if "ascend" in config.hami.vendors:
        _ascend(cost)
    if "nvidia" not in config.hami.vendors:
        return {}
    everyone = (*cost.containers, *cost.init_containers)
    if not any(name in c.requests for c in everyone for name in _NAMES):
        return {}
    if _is_skipped(pods):
        # Nobody multiplies here, so HAMi's totals have nothing of it.
        cost.limits.pop(MEMORY, None)
        cost.limits.pop(CORES, None)
        return {}
    _refuse_privileged(cost, pods)
    memory = _card_memory(gpu_models(labels, pods, config), config)
    products = {id(c): _product(c, memory, config.hami.device_split_count) for c in everyone}
    for name in (GPU, CORES):
        _set(cost.requests, name, _most(cost, lambda c, name=name: c.requests.get(name, 0)))
    _set(cost.limits, GPU, cost.requests.get(GPU, 0))
    for name in (MEMORY, CORES):
        _set(cost.limits, name, _most(cost, lambda c, name=name: products[id(c)].get(name, 0)))
    cards = _most(cost, lambda c: products[id(c)].get(_CARDS, 0))
    return {_CARDS: cards} if cards else {}


def _most(cost: PodCost, amount: Any) -> int:
    """The most that the pod holds at any time of what each container holds (init steps and sidecars as ever)."""
    return aggregate(
        ({"": amount(c)} for c in cost.containers), (({"": amount(c)}, c.sidecar) for c in cost.init_containers)
    ).get("", 0)


def _set(amounts: dict[str, int], name: str, amount: int) -> None:
    if amount:
        amounts[name] = amount
    else:
        amounts.pop(name, None)


def _is_skipped(pods: PodSet) -> bool:
    scheduler = a_text(pods.spec.get("schedulerName"), f"{pods.path}.schedulerName")
    return scheduler not in _SCHEDULERS or pods.labels.get("hami.io/webhook") == "ignore"


def _refuse_privileged(cost: PodCost, pods: PodSet) -> None:
    """HAMi's webhook leaves privileged containers alone, so that they would see every card."""
    for key, containers in (("containers", cost.containers), ("initContainers", cost.init_containers)):
        raw = a_list(pods.spec.get(key), f"{pods.path}.{key}")
        for given, container in zip(raw, containers, strict=True):
            path = f"{container.path}.securityContext"
            if a_map(given.get("securityContext"), path).get("privileged") is True and any(
                name in container.requests for name in _NAMES
            ):
                raise malformed(f"{path}.privileged", "a privileged container cannot have parts of cards from HAMi")


def _card_memory(models: Sequence[str], config: CountingConfig) -> tuple[int, int] | None:
    """The least and the most MiB that a card of these models has; None where that is not known."""
    known = [config.gpu_models.get(known_model(model, config) or model) for model in models]
    sizes = [model.memory_mib for model in known if model is not None and model.memory_mib]
    return (min(sizes), max(sizes)) if sizes and len(sizes) == len(models) else None


def _product(container: Container, card: tuple[int, int] | None, split: int) -> dict[str, int]:
    """What one container takes in all: HAMi's memory and cores, and whole-card equivalents, in nano-units.

    The container itself is changed to what HAMi's webhook makes of it.
    """
    asked = {name: container.requests[name] // NANO for name in _NAMES if name in container.requests}
    if not asked:
        return {}
    path = f"{container.path}.resources.limits"
    memory, percent, cores = asked.get(MEMORY, 0), asked.get(PERCENT), asked.get(CORES)
    if percent is not None and percent > 100:
        raise malformed(f"{path}.{PERCENT}", "must be at most 100")
    if memory > 2**31 - 1:
        raise malformed(f"{path}.{MEMORY}", "counts MiB, and HAMi reads no more than 2147483647 of them")
    if card is not None and memory > card[1]:
        raise malformed(f"{path}.{MEMORY}", f"is more than a card of this model has ({card[1]} MiB)")
    if GPU not in asked:
        container.requests[GPU] = container.limits[GPU] = NANO
    devices = asked.get(GPU, 1)
    if not cores and ((not memory and percent is None) or percent == 100):
        cores = 100
        container.requests[CORES] = container.limits[CORES] = cores * NANO
    cores = min(cores or 0, 100)
    # The share of a card's memory, as a fraction: what is not said is all of it, and so is what cannot be known.
    share = (percent if percent is not None else 100, 100)
    if memory:
        share = (memory, card[0]) if card is not None else (1, 1)
    elif card is not None:
        memory = -(-card[1] * share[0] // 100)
    part = max(cores * NANO // 100, -(-share[0] * NANO // share[1]), -(-NANO // split))
    return {
        MEMORY: devices * memory * NANO,
        CORES: devices * cores * NANO,
        _CARDS: devices * min(part, NANO),
    }


def _ascend(cost: PodCost) -> None:
    for container in (*cost.containers, *cost.init_containers):
        amount = container.requests.get(_PAIRS)
        if amount is None:
            continue
        if amount == NANO:
            container.requests[_PAIRS] = container.limits[_PAIRS] = 2 * NANO
        elif amount // NANO % 2:
            raise malformed(
                f"{container.path}.resources.limits.{_PAIRS}", "comes in pairs: ask for an even number, or for 1"
            )
    for amounts, of in ((cost.requests, "requests"), (cost.limits, "limits")):
        if _PAIRS in amounts:
            amounts[_PAIRS] = _most(cost, lambda c, of=of: getattr(c, of).get(_PAIRS, 0))
