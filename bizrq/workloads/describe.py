"""Describe how each kind is counted: the table of docs/kinds.md.

This file alone puts declarations into words. `python deploy/kinds.py` prints the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from bizrq.workloads.kinds.declaration import (
    Adapter,
    Constant,
    Factor,
    FieldEquals,
    FieldNumber,
    FieldPath,
    FinishedRule,
    MinOf,
    RoleDeclaration,
)
from bizrq.workloads.kinds.registry import Registry
from bizrq.workloads.pods.surge import SURGES
from bizrq.workloads.special import KINDS, TEMPLATES

HEAD = ("kind", "pods", "none while", "ends", "`/scale` writes", "policies")


def table(registry: Registry) -> str:
    """Return a row of Markdown for each kind, in the order of their declaration."""
    rows = [HEAD, ("---",) * len(HEAD), *(_row(adapter, registry) for adapter in registry.adapters)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(adapter: Adapter, registry: Registry) -> tuple[str, ...]:
    versions = ", ".join(f"`{adapter.group}/{v}`" if adapter.group else f"`{v}`" for v in adapter.versions)
    name = f"`count/{adapter.resource}`" if registry.is_charged(adapter) else "not charged"
    return (
        f"{adapter.kind} ({versions}; {name})",
        _pods(adapter),
        " or ".join(map(_equals, adapter.zero_when)),
        _end(adapter),
        f"`{'.'.join(adapter.scale)}`" if adapter.scale else "",
        _policies(adapter),
    )


def _pods(adapter: Adapter) -> str:
    parts = [_role(role, adapter) for role in adapter.roles]
    if adapter.code:
        parts.append(KINDS[adapter.code].DESCRIPTION)
    return "; ".join(parts)


def _role(role: RoleDeclaration, adapter: Adapter) -> str:
    each = ""
    if role.for_each is not None:
        each = f"{role.key} of `{role.for_each}`: " if role.key else f"each of `{role.for_each}`: "
    elif role.name != "main":
        each = f"{role.name}: "
    count = " times ".join(map(_factor, role.count))
    if adapter.per_node:
        count = f"the nodes that it fits, or {count} if that is more,"
    template = ", else ".join("itself" if not place.keys else f"`{_place(place)}`" for place in role.template)
    text = f"{each}{count} times {template}" if template != "itself" else "itself"
    if role.code:
        text += f", {TEMPLATES[role.code].DESCRIPTION}"
    if role.skip_when is not None:
        text += f", none while {_equals(role.skip_when)}"
    if role.inject:
        added = ["an init container" if inject.init else "a container" for inject in role.inject]
        when = [f" while {_equals(inject.when)}" for inject in role.inject if inject.when is not None]
        text += f", with {' and '.join(added)} that the operator adds{''.join(when)}"
    return text


def _factor(factor: Factor) -> str:
    match factor:
        case Constant(value=value):
            return str(value)
        case MinOf(operands=operands):
            return f"the least of {' and '.join(map(_factor, operands))}"
        case FieldNumber():
            return _number(factor)


def _number(number: FieldNumber) -> str:
    said = [f"{number.default} if absent"] if number.default is not None and number.at.keys[0] != "status" else []
    if number.clamp_min is not None:
        said.append(f"no less than {_bound(number.clamp_min)}")
    if number.clamp_max is not None:
        said.append(f"no more than {_bound(number.clamp_max)}")
    if number.at_least:
        said.append(f"at least {number.at_least}")
    text = f"`{_place(number.at)}`" + (f" ({', '.join(said)})" if said else "")
    if number.minus is not None:
        text += f" less {_factor(number.minus)}"
    if number.minus_indexes is not None:
        text += f" less the number of `{_place(number.minus_indexes)}`"
    if number.plus:
        text += f" {'plus' if number.plus > 0 else 'less'} {abs(number.plus)}"
    return text


def _bound(factor: Factor) -> str:
    return f"`{_place(factor.at)}`" if isinstance(factor, FieldNumber) else _factor(factor)


def _place(place: FieldPath) -> str:
    return ".".join(place.keys)


def _equals(flag: FieldEquals) -> str:
    value = str(flag.value).lower() if isinstance(flag.value, bool) else str(flag.value)
    return f"`{_place(flag.at)}`" if flag.value is True else f"`{_place(flag.at)}` is {value}"


def _end(adapter: Adapter) -> str:
    finished = adapter.finished_when
    if finished is None:
        return ""
    ways = [*_conditions(finished), *_phases(finished)]
    text = " or ".join(ways)
    if finished.unless is not None:
        text += f", unless {_equals(finished.unless)}"
    return text


def _conditions(finished: FinishedRule) -> list[str]:
    return [f"condition {_any_of(sorted(finished.types))}"] if finished.conditions is not None else []


def _phases(finished: FinishedRule) -> list[str]:
    if finished.phase is None:
        return []
    return [f"`{_place(finished.phase)}` {_any_of(sorted(finished.phases))}"]


def _any_of(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _policies(adapter: Adapter) -> str:
    found = ["`suspended`"] if adapter.zero_when else []
    if adapter.creates and adapter.finished_when is not None:
        found.append("`terminal`")
    if adapter.surge:
        found.append(f"`surge`: {SURGES[adapter.surge].description}")
    if adapter.elastic_max is not None:
        found.append(f"`elastic`: `{_place(adapter.elastic_max)}`")
    return "; ".join(found)
