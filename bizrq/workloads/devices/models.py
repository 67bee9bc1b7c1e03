"""Which models a pod uses, and under which names that is charged.

This file alone decides that: the workload's labels say it, and node constraints that prove a model may not contradict
them (docs/counting.md, "Model labels"). It does not know which device a pod gets in the end. A name is never taken
apart: what is of model M is charged at the base name, and again at base + "." + M.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bizrq.units import names
from bizrq.units.names import Catalog, UnknownResource
from bizrq.workloads.config import CountingConfig
from bizrq.workloads.labels import MODEL_LABELS, model_of
from bizrq.workloads.validation import a_list, a_map, malformed, nearest, show

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
    """Add to the cost of one pod what it costs at its models' names. Raises Malformed."""
    catalog = config.catalog
    devices = [name for name in per_pod if "/" in name and takes_model(name, catalog)]
    if devices:
        for model in gpu_models(labels, pods, config):
            for base in devices:
                per_pod[emitted_name(base, model, MODEL_LABELS["gpu"], catalog)] = per_pod[base]
    for what, bases in (("cpu", _OF_CPU), ("memory", _OF_MEMORY)):
        model = model_of(labels, what)
        if model is not None:
            for base in bases:
                if base in per_pod:
                    per_pod[emitted_name(base, model, MODEL_LABELS[what], catalog)] = per_pod[base]


@lru_cache(maxsize=4096)
def emitted_name(base: str, model: str, label: str, catalog: Catalog) -> str:
    """The name that a model is charged at besides the base. Raises Malformed where that is another resource's."""
    try:
        return names.model_name(base, model, catalog)
    except UnknownResource as error:
        raise malformed(f"metadata.labels.{label}", str(error)) from None


@lru_cache(maxsize=4096)
def takes_model(name: str, catalog: Catalog) -> bool:
    """Whether gpu-type applies to an emitted name: that of a card, or of a part of one."""
    return names.is_model_base(name, catalog)


def gpu_models(labels: Mapping[str, Any], pods: PodSet, config: CountingConfig) -> tuple[str, ...]:
    """The models of card that the pods may get: the one that is declared, else those that constraints leave.

    Several are all charged, each at its name, since any of them may be the one. Raises Malformed for a label that the
    pods' own constraints contradict and, with strict_models, for one that the configuration does not know.
    """
    declared = model_of(labels, "gpu")
    if declared is not None and config.strict_models and declared not in config.gpu_models:
        raise malformed(
            f"metadata.labels.{MODEL_LABELS['gpu']}",
            f"{show(declared)} is not a known model{nearest(declared, config.gpu_models)}",
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
            f"{show(declared)} contradicts {pods.path}, which asks for {asked}",
        )
    return (declared,)


@dataclass(frozen=True, slots=True)
class _Proof:
    """One way to satisfy all constraints: with one of these models (None: with any), and with none of those."""

    of: frozenset[str] | None = None
    but: frozenset[str] = frozenset()

    def both(self, other: _Proof) -> _Proof:
        of = self.of if other.of is None else other.of if self.of is None else self.of & other.of
        return _Proof(of, self.but | other.but)

    def allows(self, declared: str, config: CountingConfig) -> bool:
        names_of_it = {declared, known_model(declared, config) or declared}
        return (self.of is None or bool(names_of_it & self.of)) and not names_of_it & self.but


def _named(proofs: Sequence[_Proof]) -> set[str] | None:
    """The models that are left, None where any could be."""
    named: set[str] = set()
    for proof in proofs:
        if proof.of is None:
            return None
        named |= proof.of - proof.but
    return named


def known_model(raw: str, config: CountingConfig) -> str | None:
    """The model that a raw name from a node label stands for, as far as the configuration knows."""
    text = raw.casefold()
    found = config.models_by_alias.get(text)
    return found or config.models_by_alias.get(text.partition("-mig-")[0].removesuffix("-shared"))


def same_model(a: str, b: str, config: CountingConfig) -> bool:
    """Whether two names are of one model, in whatever spelling."""
    return a == b or (known_model(a, config) or a) == (known_model(b, config) or b)


def _proofs(pods: PodSet, config: CountingConfig) -> list[_Proof]:
    """What nodeSelector, required node affinity and HAMi's annotations leave: alternatives, empty for "anything".

    Terms are alternatives, the expressions in a term all hold. A value that the configuration does not know could be
    any card, so that it proves nothing.
    """
    always = _Proof()
    if pods.spec.get("nodeSelector"):
        for key, value in a_map(pods.spec["nodeSelector"], f"{pods.path}.nodeSelector").items():
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
        required: Any = a_map(pods.spec["affinity"], path)
        for key in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
            path = f"{path}.{key}"
            required = a_map(required.get(key), path)
        path = f"{path}.nodeSelectorTerms"
        terms = a_list(required.get("nodeSelectorTerms"), path)
        if terms:
            proofs = [
                always.both(_term(a_map(term, f"{path}[{index}]"), f"{path}[{index}].matchExpressions", config))
                for index, term in enumerate(terms)
            ]
    return [] if _Proof() in proofs else proofs


def _term(term: Mapping[str, Any], path: str, config: CountingConfig) -> _Proof:
    proof = _Proof()
    for index, given in enumerate(a_list(term.get("matchExpressions"), path)):
        expression = a_map(given, f"{path}[{index}]")
        key = expression.get("key")
        if not isinstance(key, str) or key not in NODE_LABELS:
            continue
        raw = [value for value in a_list(expression.get("values"), f"{path}[{index}].values") if isinstance(value, str)]
        if expression.get("operator") == "In":
            proof = proof.both(_Proof(_models(raw, config)))
        elif expression.get("operator") == "NotIn":
            proof = proof.both(_Proof(but=frozenset(model for value in raw if (model := known_model(value, config)))))
    return proof


def _models(raw: Sequence[str], config: CountingConfig) -> frozenset[str] | None:
    found = [known_model(value, config) for value in raw]
    return None if None in found else frozenset(model for model in found if model is not None)


def _matching(annotation: object, config: CountingConfig) -> frozenset[str] | None:
    """The models that HAMi's comma list of substrings picks; None where it picks none that are known."""
    if not isinstance(annotation, str):
        return None
    words = [word for given in annotation[:4096].split(",") if (word := given.strip().casefold())]
    return (
        frozenset(model for alias, model in config.models_by_alias.items() if any(word in alias for word in words))
        or None
    )
