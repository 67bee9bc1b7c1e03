"""The table of experiments: what each has to show, its size in full and its size in `make test`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.reliability.experiments import (
    admission,
    floods,
    forgeries,
    groups,
    holders,
    hours,
    kills,
    mutations,
    races,
    rivals,
    rollouts,
    rotations,
    steady,
    strangers,
    tenants,
)
from tests.reliability.stage import REPLICAS, Outcome

Size = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """`play` is called with the stage or the ground that it wants, and a size."""

    id: str
    play: Callable[..., Awaitable[Outcome]]
    passes: str
    full: Size
    short: Size
    #: What differs with allowances: they are given where there is room for many.
    roomy: Size = field(default_factory=dict)

    @property
    def ran(self) -> str:
        """The size in full, for the table."""
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.full.items())


#: On a cluster where three webhooks and a controller run already.
STAGED = (
    Experiment(
        "R1",
        admission.r1,
        "exactly what fits; never over; no false refusal; no 409; ≤ 0.2 status writes an admission",
        {"requests": 10_000, "fits": 1_000, "concurrency": 200, "writes": 0.2},
        # A short run is mostly its beginning, when batches are small, and recounts come twice a second.
        {"requests": 300, "fits": 100, "concurrency": 50, "writes": 0.6},
    ),
    Experiment(
        "R2",
        admission.r2,
        "nothing leaked after 90 s; meanwhile at most one slot more than is stored, and one for each holder",
        {"requests": 2_000, "again": 500, "concurrency": 100, "more": 1},
        {"requests": 80, "again": 50, "concurrency": 20, "more": 1},
        # Each process that admits by itself may note the name once: it does not know that it is taken.
        {"more": 1 + REPLICAS},
    ),
    Experiment(
        "R6",
        admission.r6,
        "never over",
        {"requests": 200, "concurrency": 50},
        {"requests": 10, "concurrency": 10},
    ),
    Experiment(
        "R7",
        admission.r7,
        "used and reservations unchanged",
        {"requests": 1_000, "concurrency": 100},
        {"requests": 100, "concurrency": 25},
    ),
    Experiment(
        "R8",
        groups.r8,
        "I1 to I3 at every revision",
        {"requests": 1_000, "children": 100, "concurrency": 200},
        {"requests": 80, "children": 8, "concurrency": 16},
    ),
    Experiment(
        "R9",
        groups.r9,
        "no orphans; both fail in ≤ 5 %",
        {"rounds": 1_000, "at_once": 8, "both": 0.05},
        {"rounds": 12, "at_once": 4, "both": 0.5},
    ),
    Experiment(
        "R12",
        groups.r12,
        "the parent never ends over; told to people",
        {"requests": 400, "concurrency": 100},
        {"requests": 40, "concurrency": 12},
    ),
    Experiment(
        "R24",
        admission.r24,
        "charge = max(old, new)",
        {"patches": 40, "rounds": 10},
        {"patches": 40, "rounds": 1},
    ),
    Experiment(
        "R26",
        races.r26,
        "p99 under 2 s",
        {"edits": 200, "concurrency": 200, "p99": 2.0},
        # On a busy machine an edit has to get through, however long it takes.
        {"edits": 3, "concurrency": 20, "p99": 60.0},
    ),
    Experiment(
        "R31",
        races.r31,
        "every edit is applied as it was previewed; p99 of a click under 2 s",
        {"edits": 200, "concurrency": 200, "p99": 2.0},
        {"edits": 3, "concurrency": 20, "p99": 60.0},
    ),
)

#: On a cluster where they start and stop what they need.
ALONE = (
    Experiment(
        "R3",
        kills.r3,
        "never over; nothing leaked after the expiry",
        {"kills": 100, "workers": 30, "fits": 20, "pause": 0.02},
        {"kills": 4, "workers": 8, "fits": 6, "pause": 0.3},
        {"workers": 170, "fits": 150},
    ),
    Experiment(
        "R4",
        races.r4,
        "ours never over",
        {"seconds": 60, "fits": 60, "workers": 120, "delay": 3.0},
        {"seconds": 3, "fits": 6, "workers": 12, "delay": 0.3},
        {"workers": 200, "fits": 150},
    ),
    Experiment(
        "R5",
        races.r5,
        "no revision under-counted",
        {"seconds": 180, "fits": 20, "workers": 30},
        {"seconds": 1.5, "fits": 8, "workers": 12},
        {"workers": 170, "fits": 150},
    ),
    Experiment(
        "R17",
        hours.r17,
        "exact against the pods' own timestamps; what vanished unseen is listed with bounds; the same again",
        {"rounds": 6, "outage": 600},
        {"rounds": 1, "outage": 600},
    ),
    Experiment(
        "R19",
        forgeries.r19,
        "every review without the API server's certificate is refused, and none of them changes a group",
        {"forged": 2_000, "honest": 100},
        {"forged": 63, "honest": 5},
    ),
    Experiment(
        "R27",
        strangers.r27,
        "reviews answered within 1 s meanwhile; at most 400 MiB; all closed within 30 s",
        {"halves": 2_000, "bodies": 200, "size": 15_000_000, "answered": 1.0, "closed": 30.0, "mebibytes": 400},
        # On a busy machine what counts is that every review is answered and every stranger goes.
        {"halves": 100, "bodies": 6, "size": 15_000_000, "answered": 60.0, "closed": 60.0, "mebibytes": 0},
    ),
    Experiment(
        "R29",
        mutations.r29,
        "no crash or traceback; no answer over 50 ms of CPU, 100 for a kubeconfig; no escape sequence or markup in any "
        "output",
        {"reviews": 10_000, "manifests": 10_000, "fits": 2_000, "files": 10_000, "cpu": 0.05, "tls": 0.1},
        # Processors are shared there, and the first answers fill caches.
        {"reviews": 100, "manifests": 40, "fits": 8, "files": 40, "cpu": 0.2, "tls": 0.4},
    ),
    Experiment(
        "R30",
        holders.r30,
        "never over; nothing leaked after the expiry; nobody waits for over 75 s",
        {
            "holders": 3,
            "fits": 3_000,
            "beyond": 600,
            "concurrency": 60,
            "frozen": (5.0, 20.0, 70.0),
            "restarts": 5.0,
            "mixed": True,
            "bound": 75.0,
        },
        # Replicas of both sorts side by side are in tests/e2e/test_allowances.py.
        {
            "holders": 2,
            "fits": 80,
            "beyond": 12,
            "concurrency": 12,
            "frozen": (1.5,),
            "restarts": 0.0,
            "mixed": False,
            "bound": 75.0,
        },
    ),
)

#: On a real cluster alone: processes and people under their own accounts.
REAL = (
    Experiment(
        "R13",
        rollouts.r13,
        "no failed call; never over",
        {"replicas": 3, "burst": 40, "pause": 0.3, "late": 3.0, "drain": 6},
        {"replicas": 2, "burst": 30, "pause": 0.3, "late": 3.0, "drain": 6},
    ),
    Experiment(
        "R14",
        floods.r14,
        "without our priority level it stalls; with it all are stored, p99 under 10 s",
        {"creates": 300, "seats": 40, "replicas": 3, "p99": 10.0},
        {"creates": 150, "seats": 40, "replicas": 2, "p99": 10.0},
    ),
    Experiment(
        "R15",
        rivals.r15,
        "both say what is stored whenever nobody writes, and write nothing then; I1 to I3 at every revision",
        {"seconds": 600, "rounds": 10, "quiet": 5, "pause": 0.5, "people": 2},
        {"seconds": 8, "rounds": 2, "quiet": 2, "pause": 0.1, "people": 1},
    ),
    Experiment(
        "R16",
        rotations.r16,
        "no failed call",
        {"late": (1.0, 60.0, 120.0), "waits": True, "burst": 30, "pause": 1.0},
        {"late": (0.0, 0.5, 2.0), "waits": False, "burst": 30, "pause": 0.1},
    ),
    Experiment(
        "R22",
        steady.r22,
        "memory grows by under 1 MB an hour, descriptors are flat",
        {"seconds": 5400, "warm": 1800, "every": 10, "pause": 1.0, "slope": 1.0, "descriptors": 2, "failures": 0.01},
        # In seconds memory says nothing: what counts is that all is answered and no descriptor stays.
        {"seconds": 12, "warm": 4, "every": 0.5, "pause": 0.1, "slope": 1e6, "descriptors": 300, "failures": 0},
    ),
)

#: On a real cluster that it may kill.
KILLED = Experiment(
    "R23",
    kills.r23,
    "I1 and I2 hold",
    {"kills": 20, "requests": 10_000, "fits": 1_000, "concurrency": 200},
    {"kills": 2, "requests": 120, "fits": 60, "concurrency": 20},
)

#: On a cluster where pods run: its own where that is a real one.
RUNNING = Experiment(
    "R28",
    tenants.r28,
    "settled: nothing over, nothing hidden; honest users wait at most 5 s where there is room",
    {"seeds": 20, "steps": 2_000, "cuts": True},
    {"seeds": 1, "steps": 150, "cuts": True},
)

#: Without a cluster; `make test` has its own in tests/laws.
R25_PASSES = "I1 to I3"
R25_FULL = {"plays": 4_000, "steps": 50}
R25_SHORT = {"plays": 400, "steps": 50}
