"""Decide which models a pod uses, and under which names they are charged.

This file alone decides that. The workload's labels declare models; node constraints that prove a model must not
contradict them (docs/counting.md, "Model labels"). It does not know which device a pod gets. What is of model M is
charged at the base name, and again at base + "." + M; names are never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bizrq.units import names
from bizrq.units.names import Catalog, UnknownResource
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.labels import MODEL_LABELS, model_of
from bizrq.workloads.validation import describe_value, expect_list, expect_map, malformed, suggestion

if TYPE_CHECKING:
    from bizrq.workloads.pods.roles import PodSet

#: Node labels whose value names the model of the node's cards.
NODE_LABELS: Final = frozenset(
    {
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "aliyun.accelerator/nvidia_name",
        "alibabacloud.com/gpu-model-series",
    }
)

_OF_CPU: Final = ("requests.cpu", "limits.cpu")
_OF_MEMORY: Final = ("requests.memory", "limits.memory")


def add_models(per_pod: dict[str, int], labels: Mapping[str, Any], pods: PodSet, config: CountingConfig) -> None:
    """Add to the cost of one pod its cost at its models' names. Raises Malformed."""
    catalog = config.catalog
    devices = [name for name in per_pod if "/" in name and takes_model(name, catalog)]
    if devices:
        for model in gpu_models(labels, pods, config):
            for base in devices:
                per_pod[model_resource_name(base, model, MODEL_LABELS["gpu"], catalog)] = per_pod[base]
    for what, bases in (("cpu", _OF_CPU), ("memory", _OF_MEMORY)):
        model = model_of(labels, what)
        if model is not None:
            for base in bases:
                if base in per_pod:
                    per_pod[model_resource_name(base, model, MODEL_LABELS[what], catalog)] = per_pod[base]


@lru_cache(maxsize=4096)
def model_resource_name(base: str, model: str, label: str, catalog: Catalog) -> str:
    """Return the name for a model of `base`. Raises Malformed where that is the name of another resource."""
    try:
        return names.model_name(base, model, catalog)
    except UnknownResource as error:
        raise malformed(f"metadata.labels.{label}", str(error)) from None


@lru_cache(maxsize=4096)
def takes_model(name: str, catalog: Catalog) -> bool:
    """Return True if gpu-type applies to a name: that of a card, or of a part of one."""
    return names.is_model_base(name, catalog)


def gpu_models(labels: Mapping[str, Any], pods: PodSet, config: CountingConfig) -> tuple[str, ...]:
    """Return the models of card that the pods may get: the declared one, else those that constraints leave.

    Several are all charged, each at its name, since each of them may be the one. Raises Malformed for a label that the
    pods' own constraints contradict. With strict_models it also rejects a label that the configuration does not know.
    """
    declared = model_of(labels, "gpu")
    if declared is not None and config.strict_models and declared not in config.gpu_models:
        raise malformed(
            f"metadata.labels.{MODEL_LABELS['gpu']}",
            f"{describe_value(declared)} is not a known model{suggestion(declared, config.gpu_models)}",
        )
    proofs = _proofs(pods, config)
    if not proofs:
        return () if declared is None else (declared,)
    possible = _named(proofs)
    if declared is None:
        return tuple(sorted(possible or ()))
    if possible != set() and not any(proof.allows(declared, config) for proof in proofs):
        asked = f"nodes with {', '.join(sorted(possible))}" if possible else "nodes without it"
        raise malformed(
            f"metadata.labels.{MODEL_LABELS['gpu']}",
            f"{describe_value(declared)} contradicts {pods.path}, which asks for {asked}",
        )
    return (declared,)


@dataclass(frozen=True, slots=True)
class _Proof:
    """One way to satisfy all constraints: one of the models `of` (None: any), and none of the models `but`."""

    of: frozenset[str] | None = None
    but: frozenset[str] = frozenset()

    def both(self, other: _Proof) -> _Proof:
        of = self.of if other.of is None else other.of if self.of is None else self.of & other.of
        return _Proof(of, self.but | other.but)

    def allows(self, declared: str, config: CountingConfig) -> bool:
        names_of_it = {declared, known_model(declared, config) or declared}
        return (self.of is None or bool(names_of_it & self.of)) and not names_of_it & self.but


def _named(proofs: Sequence[_Proof]) -> set[str] | None:
    """Return the models that are left; None where any is possible."""
    named: set[str] = set()
    for proof in proofs:
        if proof.of is None:
            return None
        named |= proof.of - proof.but
    return named


def known_model(raw: str, config: CountingConfig) -> str | None:
    """Return the model that a raw name from a node label stands for; None where the configuration does not know it."""
    text = raw.casefold()
    found = config.models_by_alias.get(text)
    return found or config.models_by_alias.get(text.partition("-mig-")[0].removesuffix("-shared"))


def model_sort(base: str) -> str:
    """Return what a base that takes models is of: "cpu", "memory" or "gpu"."""
    name = base.rpartition("/")[2]
    name = name.removeprefix("requests.").removeprefix("limits.") if "/" not in base else ""
    return name if name in ("cpu", "memory") else "gpu"


def models_named(resources: Iterable[str], catalog: Catalog) -> set[tuple[str, str]]:
    """Return the models in names of resources, as in `hard`, each with its sort: ("cpu", "A4") of `limits.cpu.A4`.

    A name that the catalog does not know names none.
    """
    found = (_model_named(name, catalog) for name in resources)
    return {each for each in found if each is not None}


@lru_cache(maxsize=4096)
def _model_named(name: str, catalog: Catalog) -> tuple[str, str] | None:
    try:
        split = names.base_and_model(names.normalize(name.removeprefix("cash/"), catalog), catalog)
    except UnknownResource:
        return None
    return (model_sort(split[0]), split[1]) if split is not None else None


def unknown_model(sort: str, model: str, known: Iterable[tuple[str, str]], where: str) -> str:
    """Return the sentence about a model that is not among the known ones; `where` says where it was looked for."""
    meant = suggestion(model, sorted(name for of, name in known if of == sort))
    return f"{MODEL_LABELS[sort]}: {describe_value(model)} is no model of {where}{meant}; no ceiling limits it"


def unread_model(sort: str, model: str) -> str:
    """Return the sentence about a model that is not known where not all groups may be read."""
    return f"{MODEL_LABELS[sort]}: whether a ceiling limits {describe_value(model)} is unknown: not all groups are read"


def same_model(a: str, b: str, config: CountingConfig) -> bool:
    """Return True if two names are of one model, in any spelling."""
    return a == b or (known_model(a, config) or a) == (known_model(b, config) or b)


def _proofs(pods: PodSet, config: CountingConfig) -> list[_Proof]:
    """Return the alternatives that nodeSelector, required node affinity and HAMi's annotations leave; empty for any
    card.

    Terms are alternatives; the expressions of a term all hold. A value that the configuration does not know may be any
    card, so it proves nothing.
    """
    always = _Proof()
    if pods.spec.get("nodeSelector"):
        for key, value in expect_map(pods.spec["nodeSelector"], f"{pods.path}.nodeSelector").items():
            if key in NODE_LABELS and isinstance(value, str):
                always = always.both(_Proof(_models([value], config)))
    if config.hami.enabled and pods.annotations:
        always = always.both(_Proof(_matching(pods.annotations.get("nvidia.com/use-gputype"), config)))
        always = always.both(
            _Proof(but=_matching(pods.annotations.get("nvidia.com/nouse-gputype"), config) or frozenset())
        )
    proofs = [always]
    if pods.spec.get("affinity"):
        path = f"{pods.path}.affinity"
        required: Any = expect_map(pods.spec["affinity"], path)
        for key in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
            path = f"{path}.{key}"
            required = expect_map(required.get(key), path)
        path = f"{path}.nodeSelectorTerms"
        terms = expect_list(required.get("nodeSelectorTerms"), path)
        if terms:
            proofs = [
                always.both(_term(expect_map(term, f"{path}[{index}]"), f"{path}[{index}].matchExpressions", config))
                for index, term in enumerate(terms)
            ]
    return [] if _Proof() in proofs else proofs


def _term(term: Mapping[str, Any], path: str, config: CountingConfig) -> _Proof:
    proof = _Proof()
    for index, given in enumerate(expect_list(term.get("matchExpressions"), path)):
        expression = expect_map(given, f"{path}[{index}]")
        key = expression.get("key")
        if not isinstance(key, str) or key not in NODE_LABELS:
            continue
        raw = [
            value
            for value in expect_list(expression.get("values"), f"{path}[{index}].values")
            if isinstance(value, str)
        ]
        if expression.get("operator") == "In":
            proof = proof.both(_Proof(_models(raw, config)))
        elif expression.get("operator") == "NotIn":
            proof = proof.both(_Proof(but=frozenset(model for value in raw if (model := known_model(value, config)))))
    return proof


def _models(raw: Sequence[str], config: CountingConfig) -> frozenset[str] | None:
    found = [known_model(value, config) for value in raw]
    return None if None in found else frozenset(model for model in found if model is not None)


def _matching(annotation: object, config: CountingConfig) -> frozenset[str] | None:
    """Return the models that HAMi's comma-separated substrings match; None where they match no known one."""
    if not isinstance(annotation, str):
        return None
    words = [word for given in annotation[:4096].split(",") if (word := given.strip().casefold())]
    return (
        frozenset(model for alias, model in config.models_by_alias.items() if any(word in alias for word in words))
        or None
    )
