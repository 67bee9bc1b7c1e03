"""The configuration (`--config`): the document that says how workloads are counted.

This file alone decides which keys it may have. An unknown key is an error that suggests the nearest key; nothing is
guessed or skipped. `bizrq.settings` turns a configuration into settings.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class ConfigurationError(ValueError):
    """A configuration that cannot be used. One line: where in it, what is wrong, what to write."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class _GpuModel(_Model):
    aliases: list[str] = []
    memory_mib: int = Field(0, alias="memoryMiB", ge=0, lt=2**31)


class _DeviceClass(_Model):
    resource: str = Field(pattern="/")
    model: str = ""


class _Hami(_Model):
    enabled: bool = False
    device_split_count: int = Field(10, ge=1, lt=2**31)
    #: Of those in `bizrq/workloads/devices/hami.yaml`.
    vendors: list[str] = ["nvidia"]


class _CountsAs(_Model):
    resource: str = ""
    annotation: str = ""
    times: str = ""
    card: str = Field(pattern="/")
    unit: Literal["cards", "percent", "MiB", "256MiB", "GiB"] = "cards"


class RightsConfig(_Model):
    """The rights that admission checks in addition to those of RBAC (`docs/rights.md`)."""

    use: bool = False
    grant: bool = False


NO_RIGHTS_CHECKED = RightsConfig()


class Configuration(_Model):
    """All keys, in camelCase in the document. docs/configuration.md explains them."""

    count_admin_access: bool = False
    strict_models: bool = False
    surge: Literal["ignore", "count"] = "ignore"
    suspended: Literal["zero", "reserve"] = "zero"
    terminal: Literal["live-pods", "release"] = "live-pods"
    elastic: Literal["current", "max"] = "current"
    gpu_models: dict[str, _GpuModel] = {}
    gpu_resources: list[str] = []
    device_class_mappings: dict[str, _DeviceClass] = {}
    hami: _Hami = Field(default_factory=lambda: _Hami.model_validate({}))
    rights: RightsConfig = NO_RIGHTS_CHECKED
    counts_as: list[_CountsAs] = []
    #: The number of periods whose statements are kept, 0 for all.
    keep_statements: int = Field(400, ge=0, lt=2**31)
    #: What happens to a label key that begins like ours and is unknown, and to a model that nothing in the cluster has.
    unknown_labels: Literal["warn", "deny", "ignore"] = "warn"
    unknown_models: Literal["warn", "deny", "ignore"] = "warn"
    #: Names of namespaces that no webhook reviews and in which nothing is charged.
    exempt_namespaces: list[str] = []
    #: A label selector: only the namespaces that it matches are managed. None selects all.
    managed_namespaces: dict[str, Any] | None = None
    #: Accounts whose ownerReferences are trusted in addition to Kubernetes' own controllers; `*` is any text.
    controllers: list[Annotated[str, Field(min_length=1)]] = []
    #: In the grammar that `bizrq.workloads.kinds.reader` reads.
    adapters: list[dict[str, Any]] = []


#: Errors of one configuration that are told.
_TOLD = 8


def parse(document: object) -> Configuration:
    """Return the configuration of a parsed document; None is the empty one. Raises ConfigurationError."""
    if document is not None and not isinstance(document, Mapping):
        raise ConfigurationError("must be a map of keys to values")
    try:
        return Configuration.model_validate(dict(document or {}))
    except ValidationError as error:
        raise ConfigurationError(_problems([dict(problem) for problem in error.errors()])) from None


def _problems(found: list[dict[str, Any]]) -> str:
    """Return the first errors of pydantic in one line: a list of thousands may be wrong in each place."""
    told = sorted(map(_problem, heapq.nsmallest(_TOLD, found, key=_where)))
    return "; ".join([*told, *([f"and {len(found) - _TOLD} more"] if len(found) > _TOLD else [])])


def _where(problem: dict[str, Any]) -> str:
    return ".".join(str(part)[:64] for part in problem["loc"])


def _problem(problem: dict[str, Any]) -> str:
    """Return an error of pydantic as one line that says what to write."""
    where = _where(problem)
    if problem["type"] == "extra_forbidden":
        known = _keys(problem["loc"])
        close = difflib.get_close_matches(str(problem["loc"][-1])[:64], known, n=1)
        more = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
        return f"{where}: no such key, {more}"
    return f"{where}: {_in_words(problem)}"


#: What to write instead of a value of another type, by the kind of the library's error.
_TYPES = {
    "bool": "write true or false",
    "int": "write a whole number",
    "string": "write a text",
    "list": "write a list",
    "dict": "write a map of keys to values",
    "model": "write a map of keys to values",
}


def _in_words(problem: dict[str, Any]) -> str:
    """Return what is wrong with a value, and what to write."""
    kind, context, given = problem["type"], problem.get("ctx") or {}, repr(problem.get("input"))[:64]
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        return f"{given} is not allowed: write {context['expected']}"
    bounds = {"greater_than_equal": ("at least", "ge"), "less_than": ("less than", "lt")}
    if kind in bounds:
        words, key = bounds[kind]
        return f"{given} is out of range: write a number of {words} {context[key]}"
    if kind == "string_too_short":
        return "is empty: write a text"
    if kind == "string_pattern_mismatch":
        return f"{given} lacks a {context['pattern']}: write VENDOR/NAME"
    remedy = _TYPES.get(kind.partition("_")[0])
    if remedy is not None:
        return f"{given} is of the wrong type: {remedy}"
    return str(problem["msg"]).removeprefix("Value error, ")


def _keys(location: tuple[object, ...]) -> list[str]:
    """Return the keys that are allowed at this place."""
    inner: dict[str, type[BaseModel]] = {
        "gpuModels": _GpuModel,
        "deviceClassMappings": _DeviceClass,
        "hami": _Hami,
        "rights": RightsConfig,
        "countsAs": _CountsAs,
    }
    model = inner.get(str(location[0]) if len(location) > 1 else "", Configuration)
    return [field.alias or name for name, field in model.model_fields.items()]
