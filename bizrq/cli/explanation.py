"""Why something fits or does not, in words: what `bizrq fit` and `bizrq explain` say.

This file alone decides which groups could help and how that reads. It asks nobody: an Outcome has it all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.quota import quantity
from bizrq.quota.ledger import Account, replicas_that_fit, role_that_grew
from bizrq.quota.verdict import Denied, Violation

if TYPE_CHECKING:
    from bizrq.cli.rehearsal import Outcome

#: Siblings that are named; a large family has more.
_NAMED = 3


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The item that `bizrq fit -o json` prints; `message` says why not, where the answer is no."""
    item: dict[str, Any] = {
        "kind": outcome.kind,
        "namespace": outcome.namespace,
        "name": outcome.name,
        "group": outcome.group,
        "fits": outcome.fits,
        "violations": [
            {
                "resource": v.resource,
                "requested": quantity.text(v.resource, v.requested),
                "used": quantity.text(v.resource, v.used),
                "hard": quantity.text(v.resource, v.hard),
            }
            for v in violations(outcome)
        ],
        "maxReplicas": most_replicas(outcome),
    }
    return item if outcome.fits else {**item, "message": refusal(outcome)}


def violations(outcome: Outcome) -> Sequence[Violation]:
    return outcome.verdict.violations if isinstance(outcome.verdict, Denied) else ()


def refusal(outcome: Outcome) -> str:
    """The line that admission refuses with; "" where it does not."""
    return outcome.verdict.message if isinstance(outcome.verdict, Denied) else ""


def most_replicas(outcome: Outcome) -> int | None:
    """How many replicas of the role that grew would fit in all; None where nothing bounds them or several grew."""
    if outcome.charge is None or outcome.account is None or outcome.account.unknown():
        return None
    grown, more = role_that_grew(outcome.charge), replicas_that_fit(outcome.account, outcome.charge)
    return None if grown is None or more is None else grown[1] + more


def short_by(violation: Violation) -> int:
    """How much is missing at a name, in nano-units; of hours, what one hour would need."""
    return violation.requested + violation.used - violation.hard


def sentences(outcome: Outcome) -> list[str]:
    """What falls short, by how much, and who could help: a line each. Nothing where the document fits."""
    if not isinstance(outcome.verdict, Denied):
        return []
    found = violations(outcome)
    if not found:
        return [refusal(outcome)]
    return [*map(_shortfall, found), *_replicas(outcome), *_help(outcome, found)]


def _shortfall(v: Violation) -> str:
    name = v.resource
    left, hard = quantity.text(name, v.left), quantity.text(name, v.hard)
    if name.startswith("cash/"):
        return f"{name}: {quantity.text(name, v.used)} of {hard} hours are spent, so nothing more may start"
    short = quantity.text(name, short_by(v))
    return f"{name}: asks for {quantity.text(name, v.requested)} more, {left} of {hard} left: {short} short"


def _replicas(outcome: Outcome) -> list[str]:
    grown = role_that_grew(outcome.charge) if outcome.charge is not None else None
    most = most_replicas(outcome)
    if grown is None or most is None:
        return []
    role, was = grown
    if was:
        return [f"replicas: has {was}, asks for {role.replicas}, {most} would fit"]
    return [f"replicas: asks for {role.replicas}, {most} would fit" if most else "replicas: not even one would fit"]


def _help(outcome: Outcome, found: Sequence[Violation]) -> list[str]:
    """Who has as much left as falls short: the parent to raise the group from, siblings to take it from."""
    account = outcome.account
    if account is None:
        return []
    needed = {v.resource: short_by(v) for v in found}
    command = raise_command(account.group, {v.resource: v.hard + short_by(v) for v in found})
    if not outcome.parent:
        return [f"{account.group} is a root, so nobody has to give it; to raise it:", command]
    parent = next((a for a in outcome.family if a.group == outcome.parent), None)
    if parent is None:
        return []
    lines: list[str] = []
    if all(left >= needed[name] for name, left in left_of(parent, needed).items()):
        told = _told(left_of(parent, needed))
        lines += [f"{parent.group}, its parent, has {f'{told} left' if told else 'no ceiling there'}; to raise it:"]
        lines += [command]
    # What the parent has no ceiling for, no sibling holds of it.
    theirs = {name: amount for name, amount in needed.items() if name in parent.hard}
    able = [a for a in outcome.family if a is not parent and _could_give(a, theirs)]
    lines += [f"{a.group}, its sibling, could spare it: {_told(left_of(a, theirs))} left" for a in able[:_NAMED]]
    if len(able) > _NAMED:
        lines.append(f"{len(able) - _NAMED} more siblings could spare it too")
    return lines or [f"neither {parent.group}, its parent, nor any sibling has that much left"]


def left_of(account: Account, names: Iterable[str]) -> dict[str, int]:
    """What an account has left of those names that it has a ceiling for, in nano-units."""
    return {name: account.hard[name] - account.taken(name) for name in sorted(names) if name in account.hard}


def _could_give(account: Account, needed: Mapping[str, int]) -> bool:
    left = left_of(account, needed)
    return bool(needed) and all(left.get(name, 0) >= amount for name, amount in needed.items())


def _told(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {quantity.text(name, amount)}" for name, amount in amounts.items())


class Command(str):
    """A line to type as it stands."""

    __slots__ = ()


def raise_command(group: str, hard: Mapping[str, int]) -> Command:
    """What a person would type to raise these ceilings."""
    amounts = {name: quantity.text(name, amount) for name, amount in sorted(hard.items())}
    patch = json.dumps({"spec": {"hard": amounts}}, separators=(",", ":"))
    return Command(f"  kubectl patch bizrq {group} --type=merge -p '{patch}'")
