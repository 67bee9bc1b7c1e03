"""Messages about a group's workloads, and the conditions that show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

from controller.usage.workload_usage import Messages

#: The condition and event for workloads that use other devices than they declare.
_MISMATCH = "ModelMismatch"
#: The condition for pods that run besides the declared ones. Every rollout has some, so it has no event.
OVERLAP = "Overlap"


@dataclass(slots=True)
class Findings:
    """Messages about a group's workloads, by subject."""

    problems: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    overlap: list[str] = field(default_factory=list)
    #: The lines of `status.ending`.
    ending: list[str] = field(default_factory=list)
    unbounded: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    payers: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    unowned: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    #: Corrections of cached usage.
    drift: list[str] = field(default_factory=list)

    def add(self, messages: Messages) -> None:
        """Add the messages of one workload."""
        self.problems.extend([messages.problem] if messages.problem else ())
        self.unreadable.extend([messages.unreadable] if messages.unreadable else ())
        self.surplus.extend([messages.excess] if messages.excess else ())
        self.overlap.extend([messages.overlap] if messages.overlap else ())
        self.ending.extend([messages.ending] if messages.ending else ())
        self.unbounded.extend(messages.unbounded)
        self.mismatches.extend(messages.mismatches)

    def conditions(self) -> list[tuple[str, bool, str, str]]:
        """Return a true condition for each subject with messages. Its type is also the reason of the event."""
        kinds = (
            ("Uncountable", "Malformed", "", self.problems),
            ("CountedAtMost", "Malformed", "counted as the largest that it can mean: ", self.unreadable),
            (_MISMATCH, "UsesOthers", "", self.mismatches),
            ("Surplus", "BeyondOwner", "", self.surplus),
            (OVERLAP, "PodsRunOn", "charged besides what the workloads ask for: ", self.overlap),
            ("Unbounded", "RunsOn", "no maximum run time, so their card-hours are not guaranteed: ", self.unbounded),
            (
                "ForeignClaim",
                "OfAnother",
                "another group pays for these claims, give each workload its own: ",
                self.claims,
            ),
            (
                "Leftovers",
                "PayerGone",
                "their workload is gone or released them, and they are charged until their pods end: ",
                self.leftovers,
            ),
            ("PayersUnknown", "Unstored", "nothing may grow: ", self.payers),
            ("Unowned", "Outlived", "card-hours are charged although the workload is gone: ", self.unowned),
        )
        return [(kind, True, reason, head + _first_two(lines)) for kind, reason, head, lines in kinds if lines]


def _first_two(lines: list[str]) -> str:
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    return "; ".join(nsmallest(2, lines)) + more
