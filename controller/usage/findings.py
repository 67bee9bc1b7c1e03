"""Messages about a group's workloads, and the conditions that show them."""

from __future__ import annotations

from collections.abc import Sequence
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
    ignored: list[str] = field(default_factory=list)
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
        return [
            (kind, True, reason, head + _first_two(lines)) for kind, reason, head, _, lines in self._subjects() if lines
        ]

    def events(self) -> dict[str, str]:
        """Return what the event of each of the conditions says: it names no workload and no amount."""
        return {
            kind: f"{short}; the condition {kind} says more" for kind, _, _, short, lines in self._subjects() if lines
        }

    def _subjects(self) -> Sequence[tuple[str, str, str, str, list[str]]]:
        """Return type and reason of each condition, how its message begins, what its event says, and its messages."""
        return (
            ("Uncountable", "Malformed", "", "workloads cannot be counted", self.problems),
            (
                "CountedAtMost",
                "Malformed",
                "counted as the largest that it can mean: ",
                "a surge or grace period cannot be read",
                self.unreadable,
            ),
            (_MISMATCH, "UsesOthers", "", "workloads use other devices than they declare", self.mismatches),
            ("Surplus", "BeyondOwner", "", "children ask for more than their workload", self.surplus),
            (
                OVERLAP,
                "PodsRunOn",
                "charged besides what the workloads ask for: ",
                "pods run besides those that the workloads ask for",
                self.overlap,
            ),
            (
                "Unbounded",
                "RunsOn",
                "no maximum run time, so their card-hours are not guaranteed: ",
                "workloads have no maximum run time",
                self.unbounded,
            ),
            (
                "ForeignClaim",
                "OfAnother",
                "another group pays for these claims, give each workload its own: ",
                "workloads use claims that another group pays for",
                self.claims,
            ),
            (
                "Leftovers",
                "PayerGone",
                "their workload is gone or released them, and they are charged until their pods end: ",
                "pods are charged whose workload is gone or released them",
                self.leftovers,
            ),
            (
                "LabelsIgnored",
                "NotManaged",
                "bizrq does not manage their namespaces, so the group does not pay for them: ",
                "labels are ignored in namespaces that bizrq does not manage",
                self.ignored,
            ),
            ("PayersUnknown", "Unstored", "nothing may grow: ", "nothing may grow", self.payers),
            (
                "Unowned",
                "Outlived",
                "card-hours are charged although the workload is gone: ",
                "card-hours are charged although the workload is gone",
                self.unowned,
            ),
        )


def _first_two(lines: list[str]) -> str:
    more = f" and {len(lines) - 2} more" if len(lines) > 2 else ""
    return "; ".join(nsmallest(2, lines)) + more
