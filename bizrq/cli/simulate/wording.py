"""Why something fits or does not, in words: what `bizrq fit` and `bizrq explain` say.

This file alone decides which groups could help and how that reads. It asks nobody: a DryRunOutcome has it all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.api.group import KIND as GROUP_KIND
from bizrq.cli.output.terminal import CommandLine
from bizrq.quota.account import Account, AccountHours
from bizrq.quota.headroom import replicas_that_fit, role_that_grew
from bizrq.quota.prepaid import with_max_cost
from bizrq.quota.verdict import Denied, Violation
from bizrq.units import quantity
from bizrq.units.names import sort_key
from bizrq.workloads.labels import LABEL

if TYPE_CHECKING:
    from bizrq.cli.simulate.outcome import DryRunOutcome
    from bizrq.cli.simulate.stored_workload import StoredWorkload

_UNLABELLED = f"Neither it nor its namespace has the label {LABEL}: it is charged to no group."
#: Siblings that are named; a large family has more.
_NAMED = 3


def as_json(outcome: DryRunOutcome) -> dict[str, Any]:
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
    if not outcome.fits:
        item["message"] = refusal(outcome)
    if outcome.warnings:
        item["warnings"] = list(outcome.warnings)
    return item


def violations(outcome: DryRunOutcome) -> Sequence[Violation]:
    return outcome.verdict.violations if isinstance(outcome.verdict, Denied) else ()


def refusal(outcome: DryRunOutcome) -> str:
    """The line that admission refuses with; "" where it does not."""
    return outcome.verdict.message if isinstance(outcome.verdict, Denied) else ""


def most_replicas(outcome: DryRunOutcome) -> int | None:
    """How many replicas of the role that grew would fit in all; None where nothing bounds them or several grew."""
    if outcome.charge is None or outcome.account is None or outcome.account.unknown_names():
        return None
    grown, more = role_that_grew(outcome.charge), replicas_that_fit(outcome.account, outcome.charge)
    return None if grown is None or more is None else grown[1] + more


def short_by(violation: Violation) -> int:
    """How much is missing at a name, in nano-units; of hours, what one hour would need."""
    return violation.requested + violation.used - violation.hard


def sentences(outcome: DryRunOutcome) -> list[str]:
    """What falls short, by how much, and who could help: a line each. Nothing where the document fits."""
    if not isinstance(outcome.verdict, Denied):
        return []
    found = violations(outcome)
    if not found:
        return [refusal(outcome)]
    whom = [f"it would be charged for {outcome.verdict.on_behalf_of}"] if outcome.verdict.on_behalf_of else []
    short = [_shortfall(v, outcome.account) for v in found]
    return [*whom, *short, *_replicas(outcome), *_help(outcome, found)]


def _shortfall(v: Violation, account: Account | None) -> str:
    name = v.resource
    left, hard = quantity.text(name, v.left), quantity.text(name, v.hard)
    hours = account.hours if account is not None else AccountHours()
    if name.startswith("cash/") and not hours.safe:
        grant = f" before {hours.next_grant}, the next grant" if hours.next_grant else ""
        return f"{name}: {quantity.text(name, v.used)} of {hard} hours are spent, so nothing more may start{grant}"
    short = quantity.text(name, short_by(v))
    return f"{name}: asks for {quantity.text(name, v.requested)} more, {left} of {hard} left: {short} short"


def _replicas(outcome: DryRunOutcome) -> list[str]:
    grown = role_that_grew(outcome.charge) if outcome.charge is not None else None
    most = most_replicas(outcome)
    if grown is None or most is None:
        return []
    role, was = grown
    if was:
        return [f"replicas: has {was}, asks for {role.replicas}, {most} would fit"]
    return [f"replicas: asks for {role.replicas}, {most} would fit" if most else "replicas: not even one would fit"]


def _help(outcome: DryRunOutcome, found: Sequence[Violation]) -> list[str]:
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


def raise_command(group: str, hard: Mapping[str, int]) -> CommandLine:
    """What a person would type to raise these ceilings."""
    amounts = {name: quantity.text(name, amount) for name, amount in sorted(hard.items())}
    patch = json.dumps({"spec": {"hard": amounts}}, separators=(",", ":"))
    return CommandLine(f"  kubectl patch bizrq {group} --type=merge -p '{patch}'")


def why_charged(outcome: DryRunOutcome) -> list[str]:
    """Who pays, and why nobody had to be asked where that is so."""
    if outcome.group is None:
        if not outcome.fits:
            return []
        if not outcome.is_chargeable:
            return ["It costs nothing itself, and what it bears on needs nothing more."]
        if outcome.kind == GROUP_KIND:
            return ["It is a root: nothing is taken out of another group's budget."]
        return [_UNLABELLED]
    taken = "Its budget is taken out of" if outcome.kind == GROUP_KIND else "It is charged to"
    lines = [f"{taken} {outcome.group}."]
    if outcome.charge is None and outcome.fits:
        lines.append("It needs nothing more than what is stored, so it is allowed whatever is left.")
    return lines


def demand_rows(outcome: DryRunOutcome) -> list[tuple[str, ...]]:
    """Per resource that it asks for and the group has a ceiling for: asked in all, had before, left, hard."""
    account = outcome.account
    if outcome.charge is None or account is None:
        return []
    charge = with_max_cost(account, outcome.charge)
    return [
        (name, quantity.text(name, charge.demand.get(name, 0)), quantity.text(name, charge.before.get(name, 0)), *rest)
        for name, *rest in _left_and_hard(account)
        if charge.demand.get(name) or charge.before.get(name)
    ]


def cost_rows(found: StoredWorkload) -> list[tuple[str, ...]]:
    """Per resource that a stored workload costs and its group has a ceiling for: cost, left, hard."""
    cost = found.cost or {}
    if found.account is None:
        return []
    return [
        (name, quantity.text(name, cost[name]), *rest)
        for name, *rest in _left_and_hard(found.account)
        if cost.get(name)
    ]


def _left_and_hard(account: Account) -> Iterator[tuple[str, str, str]]:
    for name in sorted(account.hard, key=lambda name: sort_key(name, account.catalog)):
        left = quantity.text(name, account.hard[name] - account.taken(name)) if name in account.used else "?"
        yield name, left, quantity.text(name, account.hard[name])


def who_pays(found: StoredWorkload) -> list[str]:
    """Whose budget a stored workload is in, and why it costs nothing where that is so."""
    if found.above:
        return [f"{found.above} made it and pays for it, in {found.group}: explain that."]
    if not found.is_charged:
        return ["Its kind is not charged: what it makes is."]
    if found.group is None:
        return [_UNLABELLED]
    if found.account is None:
        return [f"It names {found.group}, a group that is not there: it may not grow, and nobody counts it."]
    lines = [f"It is charged to {found.group}."]
    if found.has_ended:
        lines.append("It has ended: it costs what pods of it still run.")
    elif not found.error and not cost_rows(found):
        lines.append(f"It costs nothing that {found.group} has a ceiling for.")
    return lines
