"""The wording of a dry run and of a stored workload, as `bizrq fit` and `bizrq explain` print it.

This file alone decides which groups could help. It reads nothing: the outcome holds everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bizrq.api.group import KIND as GROUP_KIND
from bizrq.figures.words import CommandLine, few
from bizrq.quota.account import Account, AccountHours
from bizrq.quota.change import older_remarks, stored_remarks, surge_remarks
from bizrq.quota.headroom import replicas_that_fit, role_that_grew
from bizrq.quota.prepaid import with_max_cost
from bizrq.quota.verdict import Denied, Violation
from bizrq.units import base, quantity
from bizrq.units.names import sort_key
from bizrq.units.text import by_number, counted
from bizrq.workloads.labels import LABEL

if TYPE_CHECKING:
    from bizrq.figures.simulate.outcome import DryRunOutcome
    from bizrq.figures.simulate.stored_workload import StoredWorkload

_UNLABELLED = f"Neither it nor its namespace has the label {LABEL}, so no group is charged."
#: The most siblings to name.
_NAMED = 3
#: What a person replaces in a command by a number of hours.
_HOURS = "HOURS"
#: The most groups that could help to list for programs.
_LISTED = 20


def as_json(outcome: DryRunOutcome) -> dict[str, Any]:
    """Return the item that `bizrq fit -o json` prints; docs/cli.md has its schema.

    `reason` is the code of the refusal and `message` its text; both are None if the manifest fits. `fits` is None where
    it depends on what the user may not read, which `unread` lists: the rest is the answer without that.
    """
    denied = outcome.verdict if isinstance(outcome.verdict, Denied) and not outcome.is_of_unread else None
    return {
        "kind": outcome.kind,
        "namespace": outcome.namespace,
        "name": outcome.name,
        "group": outcome.group,
        "fits": None if outcome.is_unknown else outcome.fits,
        "unread": [*outcome.unread, *outcome.undecided],
        "reason": denied.reason.value if denied is not None else None,
        "message": refusal(outcome) or None if denied is not None else None,
        "resources": _demand_as_json(outcome),
        "violations": [_violation_as_json(v) for v in violations(outcome)],
        "maxReplicas": most_replicas(outcome),
        "couldHelp": [
            {
                "group": account.group,
                "relation": "parent" if account.group == outcome.parent else "sibling",
                "left": {name: base.plain(name, amount) for name, amount in left.items()},
            }
            for account, left in could_help(outcome)[:_LISTED]
        ],
        "warnings": list(outcome.warnings),
        "later": [_later_as_json(each) for each in outcome.later],
    }


def _later_as_json(later: DryRunOutcome) -> dict[str, Any]:
    """Return a write that the object causes later, as it would be decided now."""
    return {
        "what": later.what,
        "kind": later.kind,
        "name": later.name,
        "group": later.group,
        "largest": later.is_growth,
        "fits": later.is_granted,
        "reason": later.verdict.reason.value if isinstance(later.verdict, Denied) else None,
        "message": refusal(later) or None,
        "resources": _demand_as_json(later),
        "violations": [_violation_as_json(v) for v in violations(later)],
    }


def _violation_as_json(v: Violation) -> dict[str, Any]:
    amounts = {"requested": v.requested, "used": v.used}
    return {
        "resource": v.resource,
        "unit": base.unit_of(v.resource),
        **{key: base.rounded_up(v.resource, nano) for key, nano in amounts.items()},
        "hard": base.rounded_down(v.resource, v.hard),
        "left": base.rounded_down(v.resource, v.left),
        "short": base.rounded_up(v.resource, short_by(v)),
    }


def _demand_as_json(outcome: DryRunOutcome) -> dict[str, Any]:
    """Return what the manifest asks for and had, of each resource that the group limits."""
    account = outcome.account
    if outcome.charge is None or account is None:
        return {}
    charge = with_max_cost(account, outcome.charge)
    return {
        name: {
            **standing_as_json(account, name),
            "asks": base.rounded_up(name, charge.demand.get(name, 0)),
            "had": base.rounded_up(name, charge.before.get(name, 0)),
        }
        for name in account.hard
        if charge.demand.get(name) or charge.before.get(name)
    }


def standing_as_json(account: Account, name: str) -> dict[str, Any]:
    """Return hard, taken (used and reserved) and left of a resource; None if it is not counted yet."""
    hard, taken = account.hard[name], account.taken(name) if name in account.used else None
    return {
        "unit": base.unit_of(name),
        "hard": base.rounded_down(name, hard),
        "taken": None if taken is None else base.rounded_up(name, taken),
        "left": None if taken is None else base.rounded_down(name, hard - taken),
    }


def unknown_sentences(outcome: DryRunOutcome) -> list[str]:
    """Return what an unknown answer depends on, and what would be the answer without it."""
    without = "admitted" if outcome.is_granted else f"refused: {refusal(outcome)}"
    end = "" if outcome.is_of_unread else f"; without that it is {without}"
    return [f"{dependence(outcome)}{end}", *(f"warning: {warning}" for warning in outcome.warnings)]


def dependence(outcome: DryRunOutcome) -> str:
    """Return what an unknown answer depends on."""
    unread = [f"{few(outcome.unread)}, which you may not read"] if outcome.unread else []
    return f"it depends on {', and on '.join([*unread, *outcome.undecided])}"


def violations(outcome: DryRunOutcome) -> Sequence[Violation]:
    return outcome.verdict.violations if isinstance(outcome.verdict, Denied) else ()


def refusal(outcome: DryRunOutcome) -> str:
    """Return the message of the refusal, "" if there is none."""
    return outcome.verdict.message if isinstance(outcome.verdict, Denied) else ""


def most_replicas(outcome: DryRunOutcome) -> int | None:
    """Return how many replicas would fit in all; None if nothing limits them or several roles grew."""
    if outcome.charge is None or outcome.account is None or outcome.account.unknown_names():
        return None
    grown, more = role_that_grew(outcome.charge), replicas_that_fit(outcome.account, outcome.charge)
    return None if grown is None or more is None else grown[1] + more


def short_by(violation: Violation) -> int:
    """Return the missing amount in nano-units; for hours, what one hour needs."""
    return violation.requested + violation.used - violation.hard


def sentences(outcome: DryRunOutcome) -> list[str]:
    """Return a line for each shortfall, for pods that are ending, and for each group that could help.

    None if the manifest fits.
    """
    if not isinstance(outcome.verdict, Denied):
        return []
    found = violations(outcome)
    if not found:
        return [refusal(outcome)]
    charged_for = [f"the charge is for {outcome.verdict.on_behalf_of}"] if outcome.verdict.on_behalf_of else []
    short = [_shortfall(v, outcome.account) for v in found]
    ending = [outcome.verdict.ending] if outcome.verdict.ending else []
    return [*charged_for, *short, *ending, *_replicas(outcome), *_help(outcome, found)]


def later_sentences(outcome: DryRunOutcome) -> list[str]:
    """Return why each later write would be refused now: what the object makes, and its largest state."""
    lines: list[str] = []
    for each in outcome.later if outcome.is_granted else ():
        if each.is_granted:
            continue
        if each.is_growth:
            short = [_shortfall(v, each.account) for v in violations(each)] or [refusal(each)]
            lines += [f"warning: {each.what} would be refused now: {'; '.join(short)}"]
        else:
            lines += [f"{each.what} would be refused now:", *sentences(each)]
    return lines


def _shortfall(v: Violation, account: Account | None) -> str:
    name = v.resource
    left, hard = quantity.text(name, v.left), quantity.text(name, v.hard)
    hours = account.hours if account is not None else AccountHours()
    if name.startswith("cash/") and not hours.safe:
        grant = f" before the next grant at {hours.next_grant}" if hours.next_grant else ""
        return f"{name}: {quantity.text(name, v.used)} of {hard} hours are used, so nothing new may start{grant}"
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
    """Name the groups that have enough left: the parent, to raise the group from it, and siblings."""
    account = outcome.account
    if account is None:
        return []
    needed = {v.resource: _needed(v, account) for v in found}
    spent = [v for v in found if needed[v.resource] == _HOURS]
    used = ", ".join(f"{v.resource} {quantity.text(v.resource, v.used)}" for v in spent)
    choose = f"; for {_HOURS} write more than is used: {used}" if spent else ""
    command = RaiseCommand(account.group, needed)
    if not outcome.parent:
        whose = f"{account.group} is a root group, so no parent limits it; to raise it (needs grant on '*'{choose}):"
        return [whose, command]
    if not outcome.family:
        return []
    lines: list[str] = []
    able: list[str] = []
    for helper, left in could_help(outcome):
        if helper.group != outcome.parent:
            able.append(f"its sibling {helper.group} has {_amounts(left)} left")
            continue
        has = f"has {_amounts(left)} left" if left else "does not limit it"
        needs = f"needs grant on {helper.group}{choose}"
        lines += [f"its parent {helper.group} {has}; to raise {account.group} ({needs}):"]
        lines += [command]
    lines += able[:_NAMED]
    if len(able) > _NAMED:
        more = len(able) - _NAMED
        lines.append(f"{counted(more, 'more sibling')} {by_number(more, 'has', 'have')} enough left too")
    return lines or [f"neither its parent {outcome.parent} nor any sibling has that much left"]


def _needed(v: Violation, account: Account) -> str:
    """Return the ceiling that the change needs; for hours that are spent as they run nobody knows how many."""
    if v.resource.startswith("cash/") and not account.hours.safe:
        return _HOURS
    return quantity.text(v.resource, v.hard + short_by(v))


def could_help(outcome: DryRunOutcome) -> list[tuple[Account, Mapping[str, int]]]:
    """Return the accounts that have enough left, the parent first, with what is left there of what is missing."""
    needed = {v.resource: short_by(v) for v in violations(outcome)}
    parent = next((a for a in outcome.family if a.group == outcome.parent), None)
    if parent is None or not needed:
        return []
    found: list[tuple[Account, Mapping[str, int]]] = []
    left = left_of(parent, needed)
    if all(amount >= needed[name] for name, amount in left.items()):
        found.append((parent, left))
    # A resource without a ceiling in the parent cannot come from a sibling.
    theirs = {name: amount for name, amount in needed.items() if name in parent.hard}
    able = (a for a in outcome.family if a is not parent and _could_give(a, theirs))
    return found + [(a, left_of(a, theirs)) for a in able]


def left_of(account: Account, names: Iterable[str]) -> dict[str, int]:
    """Return what an account has left of the names that it limits, in nano-units."""
    return {name: account.hard[name] - account.taken(name) for name in sorted(names) if name in account.hard}


def _could_give(account: Account, needed: Mapping[str, int]) -> bool:
    left = left_of(account, needed)
    return bool(needed) and all(left.get(name, 0) >= amount for name, amount in needed.items())


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {quantity.text(name, amount)}" for name, amount in amounts.items())


class RaiseCommand(CommandLine):
    """The command that raises these ceilings of a group to these amounts."""

    group: str

    def __new__(cls, group: str, hard: Mapping[str, str]) -> RaiseCommand:
        made = super().__new__(
            cls, " ".join(["  bizrq set", group, *(f"{name}={amount}" for name, amount in sorted(hard.items()))])
        )
        made.group = group
        return made


def why_charged(outcome: DryRunOutcome) -> list[str]:
    """Name the charged group, or why no group is charged."""
    if outcome.group is None:
        if not outcome.is_granted:
            return []
        if not outcome.is_chargeable:
            return ["It is not charged itself, and the workloads that it affects need nothing more."]
        if outcome.kind == GROUP_KIND:
            return ["It is a root group, so its budget comes out of no other group."]
        return [_UNLABELLED]
    taken = "Its budget comes out of" if outcome.kind == GROUP_KIND else "It is charged to"
    lines = [f"{taken} {outcome.group}."]
    if outcome.charge is not None:
        lines += surge_remarks(outcome.charge)
        lines += older_remarks(outcome.charge, outcome.charge.because_older, passes=False)
        lines += stored_remarks(outcome.charge, outcome.charge.because_stored)
    if outcome.charge is None and outcome.is_granted:
        lines.append("It needs no more than the stored object, so it is admitted whatever is left.")
    return lines


def demand_rows(outcome: DryRunOutcome) -> list[tuple[str, ...]]:
    """Return resource, amount asked for, amount before, left and hard, for each resource that the group limits."""
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
    """Return resource, cost, left and hard, for each resource that the group limits."""
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


def stored_as_json(found: StoredWorkload) -> dict[str, Any]:
    """Return what `bizrq explain KIND/NAME -o json` prints; docs/cli.md has its schema."""
    account, cost = found.account, found.cost or {}
    standing = {name: standing_as_json(account, name) for name in account.hard} if account is not None else {}
    return {
        "kind": found.kind,
        "namespace": found.namespace,
        "name": found.name,
        "group": found.group,
        "reason": _payer_code(found),
        "chargedFor": found.above or found.left or None,
        "resources": {
            name: {**standing[name], "costs": base.rounded_up(name, cost[name])} for name in standing if cost.get(name)
        },
        "error": found.error or None,
        "hasEnded": found.has_ended,
        "ending": list(found.ending),
        "newPodsRejectedFor": list(found.lacking),
        "remarks": list(found.remarks),
        "oneMore": as_json(found.more) if found.more is not None else None,
        "later": [_later_as_json(each) for each in found.later.later] if found.later is not None else [],
    }


def _payer_code(found: StoredWorkload) -> str:
    """Return a stable code of who pays for a stored workload, in the order of the sentences of `who_pays`."""
    if found.above:
        return "PaidByOwner"
    if found.left:
        return "PaidByFormerOwner"
    if not found.is_charged:
        return "KindNotCharged"
    if found.group is None:
        return "NoGroup"
    if found.account is None:
        return "NoSuchGroup"
    return "Unreadable" if found.error else "Charged"


def who_pays(found: StoredWorkload) -> list[str]:
    """Name the charged group of a stored workload, or why it costs nothing."""
    if found.above:
        return [f"Its owner {found.above} is charged for it, in {found.group}: explain the owner instead."]
    if found.left:
        return [f"It is charged to {found.group}, which paid for {found.left} until that released it."]
    if not found.is_charged:
        return ["Its kind is not charged; the objects that it creates are."]
    if found.group is None:
        return [_UNLABELLED]
    if found.is_group_unread:
        return [f"It is charged to {found.group}, which you may not read: what that has left is unknown."]
    if found.account is None:
        return [f"It names the group {found.group}, which does not exist: it is not counted and cannot grow."]
    lines = [f"It is charged to {found.group}."]
    if found.has_ended:
        lines.append("It has finished, so it costs only what its running pods use.")
    elif not found.error and not cost_rows(found):
        lines.append(f"It {'asks for' if found.ending else 'uses'} no resource that {found.group} limits.")
    lines += [f"Besides that, {each}." for each in found.ending]
    if found.lacking:
        names = " and ".join(found.lacking)
        lines.append(f"New pods of it are rejected until {found.group} is within its quota of {names}.")
    return lines
