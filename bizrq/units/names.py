"""The resource names of `spec.hard`.

This file alone decides which names `spec.hard` may have, and which amounts. It knows names of resources, of vendors'
devices and of counted kinds; no objects, and no usage. Known names are matched whole: a model counts as one only after
the longest base that takes models. Sources: docs/resources.md; Kubernetes' core helpers and quota validation
(pkg/apis/core/v1/helper/helpers.go, pkg/apis/core/validation/validation.go); HAMi's and the device plugins' names.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bizrq.units import quantity
from bizrq.units.quantity import NANO, QuantityError

MAX_NAMES: Final = 256
"""Names in one `hard`."""

MAX_VALUE: Final = 32
"""Characters of one amount in `hard`; the CRD's schema has the same bound, so that its CEL rules stay affordable."""

# cash/ + requests. + a DNS name of 253 + / + a name of 63 + . + a model of 63: 395.
_MAX_NAME = 400
# Looking for the nearest name takes up to a millisecond, and all of a `hard` may be hostile.
_SUGGESTIONS = 32

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_PLAIN = re.compile(r"[A-Za-z0-9._/-]{1,96}")

_CLASS_END = ".deviceclass.resource.k8s.io/devices"
_IMPLICIT_CLASS = "requests.deviceclass.resource.kubernetes.io/"

_SCOPES = ("requests", "limits", "cards")
_ALIASES = ("cpu", "memory", "ephemeral-storage")
_NATIVE: Final = frozenset(f"{scope}.{name}" for scope in ("requests", "limits") for name in _ALIASES)
_NATIVE_BASES: Final = frozenset(f"{scope}.{name}" for scope in ("requests", "limits") for name in ("cpu", "memory"))

# For these vendors nothing else is known. What counts cards or slices of them | what counts a part of a card.
_TABLE: Final[dict[str, tuple[str, str]]] = {
    "nvidia.com": ("gpu gpu.shared", "gpumem gpumem-percentage gpucores priority"),
    "amd.com": ("gpu", "gpumem gpucores"),
    "aws.amazon.com": ("neuron", "neuroncore"),
    "birentech.com": ("gpu", ""),
    "cambricon.com": (
        "vmlu",
        "mlu.smlu.vmemory mlu.smlu.vcore mlu370.smlu.vmemory mlu370.smlu.vcore",
    ),
    "enflame.com": ("gcu drs-gcu", "gcu-memory gcu-core"),
    "huawei.com": (
        "Ascend910A Ascend910B2 Ascend910B3 Ascend910B4 Ascend910B4-1 Ascend910C Ascend310P",
        "Ascend910A-memory Ascend910B2-memory Ascend910B3-memory Ascend910B4-memory Ascend910B4-1-memory "
        "Ascend910C-memory Ascend310P-memory Ascend910A-core Ascend910B2-core Ascend910B3-core "
        "Ascend910B4-core Ascend910B4-1-core Ascend910C-core Ascend310P-core",
    ),
    "hygon.com": ("dcunum", "dcumem dcucores"),
    "iluvatar.ai": (
        "MR-V100-vgpu MR-V50-vgpu BI-V150-vgpu BI-V100-vgpu",
        "MR-V100.vMem MR-V50.vMem BI-V150.vMem BI-V100.vMem MR-V100.vCore MR-V50.vCore BI-V150.vCore BI-V100.vCore",
    ),
    "kunlunxin.com": ("xpu vxpu", "vxpu-memory"),
    "metax-tech.com": ("gpu sgpu", "vmemory vcore"),
    "mthreads.com": ("vgpu", "sgpu-memory sgpu-core"),
    "tencent.com": ("", "vcuda-core vcuda-memory"),
    "vastaitech.com": ("va", ""),
}
_CARDS: Final = frozenset(f"{vendor}/{name}" for vendor, (cards, _) in _TABLE.items() for name in cards.split())
_PARTS: Final = frozenset(f"{vendor}/{name}" for vendor, (_, parts) in _TABLE.items() for name in parts.split())
# As NVIDIA's device plugin names a MIG profile: compute slices, "+" written as ".", a time-sliced one renamed.
_MIG = re.compile(r"nvidia\.com/mig-(?:[1-7]c\.)?[1-7]g\.[0-9]{1,3}gb(?:[.-]me|\.me\.all|\.gfx)?(?:\.shared)?")
_MIG_EXAMPLE = "nvidia.com/mig-1g.5gb"


class UnknownResource(ValueError):
    """No name for `hard`. The message is one line: the name (cut short), what is wrong, what to write instead."""


class InvalidHard(ValueError):
    """A `hard` that is refused whole. `problems` has a line `name: problem` each, sorted; the message is all."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Catalog:
    """The names that are known in addition to the vendors' table: kinds that `count/` counts, and configured devices.

    `kinds` are `<plural>.<group>`, or `<plural>` alone for the core group; `gpus` are `<vendor>/<name>` whose amounts
    take a model; `classes` are the DRA device classes that are mapped to a GPU's name.
    """

    kinds: frozenset[str]
    gpus: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()

    def extended(
        self,
        *,
        kinds: Iterable[str] | None = None,
        gpu_resources: Iterable[str] = (),
        device_classes: Mapping[str, str] | None = None,
    ) -> "Catalog":
        """This catalog and what configuration adds: `gpuResources`, and device classes with the resource that each is
        mapped to. `kinds`, where given, are all that adapters count, in place of those known so far: a ceiling on
        what nothing counts would never hold. Raises UnknownResource for what cannot be such a name.
        """
        kinds = self.kinds if kinds is None else frozenset(kinds)
        gpus, classes = frozenset(gpu_resources), device_classes or {}
        for kind in sorted(kinds):
            if not _DNS.fullmatch(kind):
                raise UnknownResource(f"{_echo(kind)}: not a kind: write its plural and group, like deployments.apps")
        for gpu in sorted(gpus):
            if not _is_extended(gpu):
                raise UnknownResource(f"{_echo(gpu)}: not a device: write <vendor>/<name>, like example.com/gpu")
        for name in sorted(classes):
            if not _DNS.fullmatch(name):
                raise UnknownResource(f"{_echo(name)}: not a device class: write the name of a DeviceClass")
        merged = Catalog(kinds, self.gpus | gpus, self.classes)
        mapped = frozenset(name for name, resource in classes.items() if _is_gpu(resource, merged))
        return Catalog(merged.kinds, merged.gpus, self.classes | mapped)


def cash_name(name: str) -> str:
    """Return the name of the hours of a resource."""
    return f"cash/{name}"


def is_cash(name: str) -> bool:
    return name.startswith("cash/")


def sort_key(name: str, catalog: Catalog) -> tuple[bool, str, str]:
    """Return the key of the display order: resources before hours, a base before its models."""
    base, model = base_and_model(name, catalog) or (name, "")
    return is_cash(name), base, model


def metered_resource(name: str) -> str:
    """Return the resource of a `cash/` name; any other name is returned as it is."""
    return name.removeprefix("cash/")


def normalize(name: str, catalog: Catalog) -> str:
    """Return the canonical name: cpu, memory, ephemeral-storage and hugepages-<size> are requests.

    Raises UnknownResource, which says what to write instead.
    """
    return _read(name, catalog, suggest=True)


def is_model_base(name: str, catalog: Catalog) -> bool:
    """Return True where `.<model>` may follow this name: cpu, memory, GPU names, classes mapped to them, cards."""
    return len(name) <= _MAX_NAME and _is_base(metered_resource(name), catalog)


def base_and_model(name: str, catalog: Catalog) -> tuple[str, str] | None:
    """Return the base and the model of a canonical name; None without a model. The base of hours is hours."""
    resource = metered_resource(name)
    split = _base_and_model(resource, catalog)
    # An unlisted device that begins with a listed base and a dot is a model of that base.
    if split is None or (_is_whole(resource, catalog) and not _is_unlisted(resource, catalog)):
        return None
    base, model = split
    return (cash_name(base) if is_cash(name) else base), model


def model_name(base: str, model: str, catalog: Catalog) -> str:
    """Return the name that a workload of this model emits in addition to the base.

    Whether the base takes models is the caller's question (is_model_base). Raises UnknownResource for a model that is
    no label value, and for one whose emitted name is a known resource, or a known base's with another model: both
    would be charged with what is not theirs (`gpu` of model `shared` is not `gpu.shared`).
    """
    if not _LABEL.fullmatch(model):
        raise UnknownResource(f"{_echo(model)}: not a model: {_MODEL}")
    name = f"{base}.{model}"
    inner = metered_resource(name)
    split = _split(inner, lambda prefix: _is_base(prefix, catalog))
    if _is_base(inner, catalog) or (split is not None and len(split[0]) > len(metered_resource(base))):
        raise UnknownResource(f"{_echo(model)}: not a model of {_echo(base)}: {_echo(name)} is another resource's name")
    return name


def parse_hard(hard: object, catalog: Catalog) -> dict[str, int]:
    """Return nano-units by canonical name, sorted by name, of a `spec.hard` of parsed JSON.

    Whole or nothing: raises InvalidHard with every problem.
    """
    if not isinstance(hard, Mapping):
        raise InvalidHard(["spec.hard: must be a map of resource names to quantities"])
    if len(hard) > MAX_NAMES:
        raise InvalidHard([f"spec.hard: has {len(hard)} names: at most {MAX_NAMES} are allowed"])
    amounts: dict[str, int] = {}
    spelled: dict[str, str] = {}
    problems: list[str] = []
    misses = 0
    for given in sorted(hard, key=lambda name: name if isinstance(name, str) else ""):
        try:
            name = _read(given, catalog, suggest=misses < _SUGGESTIONS)
        except UnknownResource as error:
            misses += 1
            problems.append(str(error))
            continue
        if name in spelled:
            problems.append(f"{_echo(given)}: is also given as {_echo(spelled[name])}: write only {_echo(name)}")
            continue
        spelled[name] = given
        try:
            amounts[name] = _amount(name, hard[given])
        except QuantityError as error:
            problems.append(f"{_echo(given)}: {error}")
    if problems:
        raise InvalidHard(problems)
    return {name: amounts[name] for name in sorted(amounts)}


def _amount(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise QuantityError("must be a string or an integer: write a quantity like '10' or '500m'")
    if isinstance(value, str) and len(value) > MAX_VALUE:
        raise QuantityError(f"has {len(value)} characters: write a quantity of at most {MAX_VALUE}")
    nano = quantity.parse(value)
    if nano < 0:
        raise QuantityError("must be greater than or equal to 0")
    if nano % NANO and _counts_things(name):
        raise QuantityError("must be an integer")
    return nano


def _counts_things(name: str) -> bool:
    """Pods, objects and devices are whole; hours of them and whole-card equivalents are not."""
    return name == "pods" or ("/" in name and not name.startswith(("cash/", "cards.")))


# -- Reading a name --------------------------------------------------------------------------------------------------

_MODEL = "write a label value: at most 63 letters, digits, '-', '_' and '.', the first and last a letter or digit"


def _read(name: object, catalog: Catalog, *, suggest: bool) -> str:
    if not isinstance(name, str):
        raise UnknownResource(f"{type(name).__name__}: not a resource name: write a string")
    if len(name) > _MAX_NAME:
        raise UnknownResource(f"{_echo(name)}: unknown resource name: it has {len(name)} characters")
    known = _canonical(name, catalog)
    if known is None:
        advice = f": {_advice(name, catalog)}" if suggest else ""
        raise UnknownResource(f"{_echo(name)}: unknown resource name{advice}")
    return known


@lru_cache(maxsize=4096)
def _canonical(name: str, catalog: Catalog) -> str | None:
    resource = metered_resource(name)
    if is_cash(name) and (is_cash(resource) or resource.startswith("count/")):
        return None
    if resource in _ALIASES or resource.startswith("hugepages-"):
        resource = f"requests.{resource}"
    if not _is_whole(resource, catalog) and _base_and_model(resource, catalog) is None:
        return None
    return cash_name(resource) if is_cash(name) else resource


def _is_whole(resource: str, catalog: Catalog) -> bool:
    """Return True for a resource without a model."""
    if resource == "pods" or resource in _NATIVE:
        return True
    if resource.startswith("count/"):
        return resource.removeprefix("count/") in catalog.kinds
    if resource.startswith(_IMPLICIT_CLASS):
        name = resource.removeprefix(_IMPLICIT_CLASS)
        return len(name) <= 63 and _DNS.fullmatch(name) is not None
    scope, _, inner = resource.partition(".")
    if resource.endswith(_CLASS_END) and scope not in _SCOPES:
        return _DNS.fullmatch(resource.removesuffix("/devices")) is not None
    if scope in ("requests", "limits"):
        return _is_hugepages(inner) or _is_device(inner, catalog)
    return scope == "cards" and _is_device(inner, catalog) and inner not in _PARTS


def _is_base(resource: str, catalog: Catalog) -> bool:
    """Return True where a model may follow."""
    if resource in _NATIVE_BASES:
        return True
    if catalog.classes:
        if resource.startswith(_IMPLICIT_CLASS):
            return resource.removeprefix(_IMPLICIT_CLASS) in catalog.classes
        if resource.endswith(_CLASS_END):
            return resource.removesuffix(_CLASS_END) in catalog.classes
    scope, _, inner = resource.partition(".")
    if scope in ("requests", "limits"):
        return _is_gpu(inner, catalog)
    return scope == "cards" and _is_gpu(inner, catalog) and inner not in _PARTS


def _base_and_model(resource: str, catalog: Catalog) -> tuple[str, str] | None:
    """Return the longest base that takes models, and a possible model after it."""
    split = _split(resource, lambda prefix: _is_base(prefix, catalog))
    return split if split is not None and _LABEL.fullmatch(split[1]) else None


def _split(text: str, accepts: Callable[[str], bool]) -> tuple[str, str] | None:
    """Return the longest accepted prefix that a dot follows, and the text after the dot."""
    dot = text.rfind(".")
    while dot > 0:
        if accepts(text[:dot]):
            return text[:dot], text[dot + 1 :]
        dot = text.rfind(".", 0, dot)
    return None


def _is_device(inner: str, catalog: Catalog) -> bool:
    """Return True for `<vendor>/<name>`: of the table's vendors only listed names, of others any extended resource."""
    return _is_gpu(inner, catalog) or (inner.partition("/")[0] not in _TABLE and _is_extended(inner))


def _is_unlisted(resource: str, catalog: Catalog) -> bool:
    """Return True for a device of an unknown vendor that is not configured."""
    scope, _, inner = resource.partition(".")
    return scope in _SCOPES and "/" in inner and not _is_gpu(inner, catalog)


def _is_gpu(inner: str, catalog: Catalog) -> bool:
    return inner in _CARDS or inner in _PARTS or inner in catalog.gpus or _MIG.fullmatch(inner) is not None


def _is_extended(inner: str) -> bool:
    """Kubernetes' IsExtendedResourceName, without what bizrq writes differently."""
    vendor, slash, name = inner.partition("/")
    return (
        slash == "/"
        and "kubernetes.io/" not in inner
        and not vendor.startswith(("requests.", "limits.", "cards."))
        and not vendor.endswith(".deviceclass.resource.k8s.io")
        and _DNS.fullmatch(f"requests.{vendor}") is not None
        and _LABEL.fullmatch(name) is not None
    )


def _is_hugepages(inner: str) -> bool:
    """Kubernetes' hugepages-<size>, the size spelled as nodes do: a power of two in its canonical form."""
    size = inner.removeprefix("hugepages-")
    if size == inner:
        return False
    try:
        nano = quantity.parse(size)
    except QuantityError:
        return False
    pages, rest = divmod(nano, NANO)
    one_bit = pages > 0 and pages & (pages - 1) == 0 and rest == 0
    return one_bit and quantity.canonical(nano, quantity.Format.BINARY_SI) == size


# -- Advice on what to write instead ---------------------------------------------------------------------------------

_COMMON: Final = (
    *sorted(_NATIVE),
    *(f"{scope}.hugepages-{size}" for scope in ("requests", "limits") for size in ("2Mi", "1Gi")),
    *(f"{scope}.nvidia.com/gpu" for scope in _SCOPES),
    "pods",
    "count/pods",
    "count/deployments.apps",
)
_SHORT: Final = {"gpu": "requests.nvidia.com/gpu"} | {f"{scope}.gpu": f"{scope}.nvidia.com/gpu" for scope in _SCOPES}


def _advice(name: str, catalog: Catalog) -> str:
    resource = metered_resource(name)
    if is_cash(name):
        if is_cash(resource):
            return "write cash/ once"
        if resource.startswith("count/"):
            return "stored objects have no hours, so that count/ takes no cash/"
    hours = "cash/" if is_cash(name) else ""
    better = [other for other in _repairs(resource) if _canonical(other, catalog)]
    if better:
        return "write " + " or ".join(_echo(hours + other) for other in better)
    wrong = _wrong(resource, catalog)
    if wrong:
        return wrong
    close, nearest = _nearest(resource, _candidates(resource, catalog))
    if not close and nearest in _COMMON:
        return f"write a name like {hours}limits.cpu, {hours}requests.nvidia.com/gpu or {hours}pods"
    return f"did you mean {_echo(hours + nearest)}?" if close else f"the nearest is {_echo(hours + nearest)}"


def _repairs(resource: str) -> list[str]:
    """Return the name with another prefix, where one may be meant."""
    scope, _, inner = resource.partition(".")
    if scope in _SCOPES:
        # Devices by class have no scope, and by their implicit name only requests.
        return [other for other in (inner, f"requests.{inner}") if "deviceclass.resource." in other]
    scopes = {"request": ["requests"], "limit": ["limits"], "card": ["cards"]}
    if scope in scopes:
        return [f"{right}.{inner}" for right in scopes[scope]]
    return [] if resource.startswith("count") else [f"requests.{resource}", f"limits.{resource}"]


def _wrong(resource: str, catalog: Catalog) -> str | None:
    """Return what is wrong, where that says more than the nearest name does."""
    base = _split(resource, lambda prefix: _is_base(prefix, catalog))
    if base is not None:
        return f"{_echo(base[1])} is not a model of {_echo(base[0])}: {_MODEL}"
    whole = _split(resource, lambda prefix: _is_whole(prefix, catalog))
    if whole is not None:
        hint = ", unless deviceClassMappings maps its class to a GPU" if "deviceclass.resource." in whole[0] else ""
        return f"{_echo(whole[0])} takes no model{hint}"
    if "hugepages-" in resource:
        return "write the size of a page as nodes do, like requests.hugepages-2Mi or requests.hugepages-1Gi"
    scope, _, inner = resource.partition(".")
    if scope == "cards" and inner in _PARTS:
        return f"it counts parts of a card: write {_echo('limits.' + inner)}, or cards. and the name of the card"
    if "kubernetes.io/" in resource:
        return (
            "what is under kubernetes.io/ is no device: write requests.<vendor>/<name>, like requests.example.com/npu"
        )
    if scope in _SCOPES and "/" in inner and inner.partition("/")[0].lower() not in _TABLE:
        return f"write {scope}.<vendor>/<name>, like {scope}.example.com/npu"
    return None


def _candidates(resource: str, catalog: Catalog) -> dict[str, str]:
    """Return the few candidates for the nearest name: the text to compare with, and the name to write."""
    scope, _, inner = resource.partition(".")
    vendor = inner.partition("/")[0].lower()
    if resource.startswith("count"):
        kinds = sorted(catalog.kinds, reverse=True)
        plurals = {f"count/{kind.partition('.')[0]}": f"count/{kind}" for kind in kinds}
        return plurals | {f"count/{kind}": f"count/{kind}" for kind in kinds}
    if scope in _SCOPES and vendor in _TABLE:
        known = _CARDS | {_MIG_EXAMPLE} | catalog.gpus | (_PARTS if scope != "cards" else frozenset())
        names = [f"{scope}.{device}" for device in known if device.startswith(f"{vendor}/")]
    else:
        names = [*_COMMON, *(f"requests.{device}" for device in catalog.gpus)]
        return {name: name for name in names} | _SHORT
    return {name: name for name in names}


def _nearest(resource: str, candidates: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether the nearest candidate is close, and its name; deterministic."""
    matcher = difflib.SequenceMatcher(b=resource[:96].lower(), autojunk=False)

    best, meant = -1.0, ""
    for candidate in sorted(candidates):
        matcher.set_seq1(candidate.lower())
        # Both are bounds from above, and a fraction of the work.
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        if (ratio := matcher.ratio()) > best:
            best, meant = ratio, candidate
    return best >= 0.6, candidates[meant]


def _echo(text: str) -> str:
    """Return a name for one line of a message: plain, else quoted in ASCII; at most 100 characters."""
    if _PLAIN.fullmatch(text):
        return text
    quoted = ascii(text if len(text) <= 64 else text[:64] + "...")
    return quoted if len(quoted) <= 96 else quoted[:92] + "...'"
