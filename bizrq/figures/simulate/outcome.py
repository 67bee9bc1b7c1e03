"""The outcome of a dry run for one manifest, as the verbs word it and print it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bizrq.quota.account import Account
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict

#: The reasons of what names a group that does not exist.
NO_GROUP = (Reason.NO_GROUP, Reason.PARENT)


@dataclass(frozen=True, slots=True)
class DryRunOutcome:
    """The verdict on one manifest, with the charge and the account on which it was decided.

    `group` is the charged group, None if no group is charged. `charge` and `account` are None if no charge was decided;
    `account` is as it was before the charge. `is_chargeable` is False for kinds that are never charged themselves.
    """

    kind: str
    namespace: str
    name: str
    group: str | None
    verdict: Verdict
    charge: Charge | None = None
    account: Account | None = None
    family: Sequence[Account] = ()
    """The accounts of the group's parent, if it has one, and then of its siblings by name."""
    parent: str = ""
    warnings: Sequence[str] = ()
    is_chargeable: bool = True
    unread: Sequence[str] = ()
    """What the verdict depends on and the user may not read, sorted: then the verdict is no answer."""
    undecided: Sequence[str] = ()
    """What else the verdict depends on and nobody here knows, sorted."""
    later: Sequence[DryRunOutcome] = ()
    """What the object will make or grow to, as it would be decided now."""
    what: str = ""
    """How messages name a later write, "" for one that is not."""
    is_growth: bool = False
    """True for the largest state of an object that begins smaller: where that does not fit, the object still does."""

    @property
    def is_unknown(self) -> bool:
        return bool(self.unread or self.undecided)

    @property
    def is_of_unread(self) -> bool:
        """Return whether it is refused only because something is unread: such a refusal says nothing."""
        if not isinstance(self.verdict, Denied) or not self.unread:
            return False
        is_missing = self.verdict.reason in NO_GROUP and f"group {self.group}" in self.unread
        return is_missing or self.verdict.reason is Reason.TIMEOUT

    @property
    def is_granted(self) -> bool:
        """Return whether what could be read grants it; an answer only if nothing is unread."""
        return isinstance(self.verdict, Granted)

    @property
    def never_made(self) -> Sequence[DryRunOutcome]:
        """Return what the object would make and admission would refuse, if the object itself is granted."""
        return [each for each in self.later if not (each.is_granted or each.is_growth)] if self.is_granted else []

    @property
    def fits(self) -> bool:
        return self.is_granted and not self.is_unknown and not self.never_made

    @property
    def is_sure(self) -> bool:
        """Return whether it fits without a warning, and its largest state, too."""
        return self.fits and not self.warnings and all(each.is_granted for each in self.later)

    @property
    def full_name(self) -> str:
        """namespace/name, or the name alone for a kind without namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name
