"""The verdict on a change, as a value.

This file alone holds the reasons, their HTTP codes, and the texts of "exceeded quota" and "must specify". Other checks
word their own refusals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from bizrq.quota.reservation import Reservation
from bizrq.units import quantity
from bizrq.units.slot import Slot
from bizrq.units.text import counted


class Reason(StrEnum):
    """Stable codes, in the order of their checks; docs/design.md, "Order of checks", has every check of a workload."""

    MALFORMED = "Malformed"
    PAID_BY_OWNER = "PaidByOwner"
    REQUIRED = "GroupRequired"
    NO_GROUP = "NoSuchGroup"
    DELETING = "GroupDeleting"
    NAMESPACE = "NamespaceNotSelected"
    MAY_NOT_USE = "MayNotUse"
    NOT_RECONCILED = "NotReconciled"
    PARENT_NOT_RECONCILED = "ParentNotReconciled"
    PAYERS = "PayersUnknown"
    UNSPECIFIED = "MustSpecify"
    UNKNOWN_MODEL = "UnknownModel"
    UNBOUNDED = "UnboundedRun"
    BUSY = "AnotherChangeUnderWay"
    CASH = "CashExhausted"
    EXCEEDED = "QuotaExceeded"
    FULL = "TooManyReservations"
    TIMEOUT = "OutOfTime"
    TAKEN = "AlreadyExists"
    # deletions
    IN_USE = "InUse"
    # the tree
    BAD_HARD = "BadHard"
    MAY_NOT_GRANT = "MayNotGrant"
    BAD_SELECTOR = "BadSelector"
    BAD_CASH = "BadCash"
    BAD_NAME = "BadName"
    IMMUTABLE = "Immutable"
    PARENT = "BadParent"
    MISSING_NAMES = "MissingNames"
    NOT_EMPTY = "NotEmpty"
    # corrections
    BAD_CORRECTION = "BadCorrection"
    # namespaces
    MAY_NOT_MANAGE = "MayNotManage"
    CHARGED_HERE = "WorkloadsCharged"


#: A refusal names the ending pods of this many workloads.
MAX_ENDING = 2
#: The sorts of pods that a line of `status.ending` counts, in words. A line without any is of pods that are ending.
RUNS_ON: Mapping[str, str] = {
    "ending": "ending",
    "beyond": "of a rollout that takes more than ten minutes",
    "older": "of an older version that asks for more",
}
#: A client may send the same request again: nothing is wrong with it.
RETRYABLE = frozenset({Reason.PARENT_NOT_RECONCILED, Reason.BUSY, Reason.FULL, Reason.TIMEOUT})
#: The object itself cannot be read.
BAD_OBJECT = frozenset(
    {
        Reason.MALFORMED,
        Reason.BAD_NAME,
        Reason.BAD_HARD,
        Reason.BAD_SELECTOR,
        Reason.BAD_CASH,
        Reason.BAD_CORRECTION,
        Reason.IMMUTABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One resource of `hard` that the change would break; all amounts in nano-units."""

    resource: str
    requested: int
    used: int
    hard: int

    @property
    def left(self) -> int:
        return max(0, self.hard - self.used)


@dataclass(frozen=True, slots=True)
class Granted:
    """Allowed. `reservation` must be stored before the answer goes out; None where nothing more is needed."""

    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The group whose figures a text has, and what people read who may neither read nor use that group."""

    group: str
    hidden: str


@dataclass(frozen=True, slots=True)
class Denied:
    """Refused. `message` is one line; `violations` are sorted by resource.

    `on_behalf_of` is who would have been charged, where that is not what is written. `figures` is None where the
    message is for everybody. `ending` is the part of it on pods that take what is missing besides what is asked for.
    """

    reason: Reason
    message: str
    violations: Sequence[Violation] = field(default=())
    on_behalf_of: str = ""
    figures: Figures | None = None
    ending: str = ""

    def without_figures(self) -> Denied:
        """Return the refusal for people who may not see figures of the group."""
        return self if self.figures is None else replace(self, message=self.figures.hidden, figures=None)

    def followed_by(self, clause: str) -> Denied:
        """Return the refusal with one more clause, for everybody."""
        figures = self.figures and replace(self.figures, hidden=f"{self.figures.hidden}; {clause}")
        return replace(self, message=f"{self.message}; {clause}", figures=figures)

    @property
    def code(self) -> int:
        """Return the HTTP code of the answer: 429 try again, 409 taken, 422 a bad object, 403 refused."""
        if self.reason in RETRYABLE:
            return 429
        if self.reason is Reason.TAKEN:
            return 409
        return 422 if self.reason in BAD_OBJECT else 403


Verdict = Granted | Denied


#: Nothing in a group says who manages it.
_NOT_SHOWN = "what is left is shown to people who may read or use quota {0}: ask who manages {0}"


def exceeded(
    group: str,
    violations: Sequence[Violation],
    fits: int | None,
    notes: Sequence[str] = (),
    group_notes: Sequence[str] = (),
) -> Denied:
    """Return the refusal of growth beyond the ceilings: native quota's words first, then what would help.

    `notes` are about the charge, `group_notes` about the group. Native words: kubernetes
    `resourcequota/controller.go` (checkRequest).
    """
    ordered = tuple(sorted(violations, key=lambda v: v.resource))
    opening = f"exceeded quota: {group}, requested: {_listed(ordered, 'requested')}"
    message = (
        f"{opening}, used: {_listed(ordered, 'used')}, limited: {_listed(ordered, 'hard')}; "
        f"left: {_listed(ordered, 'left')}"
    )
    if fits is not None:
        message += f"; fits: {counted(fits, 'more replica')}"
    cash_only = all(v.resource.startswith("cash/") for v in ordered)
    return Denied(
        Reason.CASH if cash_only else Reason.EXCEEDED,
        "; ".join((message, *notes, *group_notes)),
        ordered,
        figures=Figures(group, "; ".join((opening, *notes, _NOT_SHOWN.format(group)))),
    )


def unreadable(reason: Reason, group: str, subject: str, why: str) -> Denied:
    """Return the refusal of what depends on a group that cannot be read; `why` may quote it."""
    return Denied(reason, f"{subject}: {why}", figures=Figures(group, f"{subject}: ask who manages {group}"))


def already_exists(kind: str, name: str) -> Denied:
    """Return the refusal to create what is there, in the API server's words; `kind` is its plural with its group."""
    return Denied(Reason.TAKEN, f'{kind} "{name}" already exists')


def name_ending(denied: Denied, lines: Sequence[str]) -> Denied:
    """Return the refusal with the pods that take what is violated besides what is asked for, from `status.ending`.

    A line is `SLOT RESOURCE=AMOUNT… SORT=PODS… since=TIME until=TIME`. What cannot be read is not named. Where the
    request fits without those pods, the refusal says so.
    """
    if denied.reason is not Reason.EXCEEDED:
        return denied
    wanted = [violation.resource for violation in denied.violations]
    clauses: list[str] = []
    freed = dict.fromkeys(wanted, 0)
    for line in lines:
        slot, amounts = _read_ending(line)
        clause = _ending_clause(slot, amounts, wanted)
        if not clause:
            continue
        for name in wanted:
            freed[name] += _amount(amounts.get(name, "0"))
        clauses.append(clause)
    if not clauses:
        return denied
    more = len(clauses) - MAX_ENDING
    named = "; ".join(clauses[:MAX_ENDING]) + (f"; and pods of {more} more" if more > 0 else "")
    if all(v.requested + v.used - freed[v.resource] <= v.hard for v in denied.violations):
        named += "; the same request passes once they have gone"
    return replace(denied, message=f"{denied.message}; {named}", ending=named)


def ending_of(slot: Slot, names: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines of `status.ending` about a slot in words, with what its pods take of these names."""
    read = (_read_ending(line) for line in lines)
    return [text for of, amounts in read if of == str(slot) and (text := _ending_clause(of, amounts, names))]


def all_ending(lines: Sequence[str]) -> list[str]:
    """Return the lines of `status.ending` in words, without what the pods take."""
    found: list[str] = []
    for slot, amounts in map(_read_ending, lines):
        until = amounts.get("until", "")
        found.append(_pods_that_run_on(slot, amounts) + (f" until {until}" if until else ""))
    return found


def names_ending(slot: Slot, lines: Sequence[str]) -> set[str]:
    """Return the names that the pods of a slot take by the lines of `status.ending`."""
    return {name for of, amounts in map(_read_ending, lines) if of == str(slot) for name in amounts}


def _read_ending(line: str) -> tuple[str, dict[str, str]]:
    slot, *words = line.split(" ")
    return slot, {name: amount for name, _, amount in (word.partition("=") for word in words)}


def _ending_clause(slot: str, amounts: Mapping[str, str], wanted: Sequence[str]) -> str:
    """Return what people read of a line of `status.ending`; "" where it has none of the wanted names."""
    held = ",".join(f"{name}={amounts[name]}" for name in wanted if name in amounts)
    since, until = amounts.get("since", ""), amounts.get("until", "")
    times = (f" since {since}" if since else "") + (f" until {_clock(until)}" if until else "")
    return f"{_pods_that_run_on(slot, amounts)} ({held}){times}" if held else ""


def _pods_that_run_on(slot: str, amounts: Mapping[str, str]) -> str:
    """Return what people read of the pods of a line of `status.ending`."""
    counts = [(amounts[sort], words) for sort, words in RUNS_ON.items() if sort in amounts]
    (first, words), *others = counts or [(amounts.get("pods", ""), RUNS_ON["ending"])]
    pods = f"1 pod of {slot} is {words}" if first == "1" else f"{first} pods of {slot} are {words}".lstrip()
    return " and ".join((pods, *(f"{number} {words}" for number, words in others)))


def _amount(text: str) -> int:
    try:
        return quantity.parse(text)
    except quantity.QuantityError:
        return 0


def _clock(until: str) -> str:
    """Return the time of day of a timestamp, in UTC."""
    return until.partition("T")[2].removesuffix("Z") or until


def unspecified(group: str, missing: Mapping[str, Sequence[str]]) -> Denied:
    """Return the refusal of containers that do not state what `hard` names (native: "must specify")."""
    parts = [f"{name} for: {','.join(sorted(set(containers)))}" for name, containers in sorted(missing.items())]
    return Denied(Reason.UNSPECIFIED, f"failed quota: {group}: must specify {'; '.join(parts)}")


def unmodelled(group: str, unsaid: Mapping[str, Sequence[str]]) -> Denied:
    """Return the refusal of cards without a model, in a group whose `hard` names models."""
    parts = [f"the model of {name} for: {','.join(sorted(set(roles)))}" for name, roles in sorted(unsaid.items())]
    return Denied(Reason.UNSPECIFIED, f"failed quota: {group}: must specify {'; '.join(parts)}")


def _listed(violations: Sequence[Violation], attribute: str) -> str:
    return ",".join(f"{v.resource}={quantity.text(v.resource, getattr(v, attribute))}" for v in violations)
