"""What people have to know of a group's workloads, in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

from controller.usage.workload_usage import Words

#: The condition and event for workloads that use other devices than they declare.
_MISMATCH = "ModelMismatch"


@dataclass(slots=True)
class Told:
    """What people have to know of a group's workloads, in words."""

    problems: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    unbounded: list[str] = field(default_factory=list)
    detached: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    unowned: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    #: What of it had been kept wrong.
    drift: list[str] = field(default_factory=list)

    def note(self, words: Words) -> None:
        """Take over what there is to tell of one workload."""
        self.problems.extend([words.problem] if words.problem else ())
        self.surplus.extend([words.surplus] if words.surplus else ())
        self.unbounded.extend(words.unbounded)
        self.mismatches.extend(words.mismatches)

    def conditions(self) -> list[tuple[str, bool, str, str]]:
        """A true condition for each that says something; its type is also the reason of the event that tells of it."""
        kinds = (
            ("Uncountable", "Malformed", "", self.problems),
            (_MISMATCH, "UsesOthers", "", self.mismatches),
            ("Surplus", "BeyondOwner", "", self.surplus),
            ("Unbounded", "RunsOn", "nothing bounds their run, so their hours are not sure: ", self.unbounded),
            ("ForeignClaim", "OfAnother", "give each its own: ", self.claims),
            ("Detached", "LetGo", "counted though no owner pays any more, label or delete: ", self.detached),
            ("Unowned", "Outlived", "hours are charged though their workload is gone: ", self.unowned),
        )
        return [(kind, True, reason, head + _first_two(lines)) for kind, reason, head, lines in kinds if lines]


def _first_two(lines: list[str]) -> str:
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    return "; ".join(nsmallest(2, lines)) + more
