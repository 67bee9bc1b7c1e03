"""Pods stay with the group that paid in every interleaving of moves, and each named short cut is found broken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.moves import NOBODY, Rules, Scenario, explore

ONE = ["create A 1 in g"]
TWO = ["create A 2 in g"]
ALONE = {"g": 1, "h": 1}
AROUND = ["scale A 0", "then move A to h", "then move A to g", "then move A to h"]
#: The pod that ran in g ends slowly.
LEFT = ["scale A 0", "then move A to h", "then delete A"]
#: What it asks for in h makes a pod there.
#: Its label goes.
FREE = {"g": 1, NOBODY: 9}
THROUGH = ["scale A 0", "then move A 1 to h", "then scale A 0"]
SCENARIOS = {
    "moved": Scenario({"g": 2, "h": 2}, ["move A to h"], TWO),
    "moved, and its room taken": Scenario(ALONE, ["move A to h", "create B 1 in g"], ONE),
    "moved and back": Scenario(ALONE, ["move A to h", "then move A to g"], ONE),
    "moved with more pods": Scenario({"g": 1, "h": 2}, ["move A 2 to h"], ONE),
    "moved with fewer pods": Scenario({"g": 2, "h": 1}, ["move A 1 to h", "create B 1 in g"], TWO),
    "moved with fewer pods, in one second": Scenario({"g": 2, "h": 1}, ["move A 1 to h"], TWO, one_second=True),
    "moved with fewer pods, a restart": Scenario({"g": 2, "h": 1}, ["move A 1 to h"], TWO, restarts=1),
    "created and moved": Scenario(ALONE, ["create A 1 in g", "then move A to h"]),
    "created, to 0 and its room taken": Scenario({"g": 1}, ["create A 1 in g", "then scale A 0", "create B 1 in g"]),
    "created and moved with fewer pods": Scenario({"g": 2, "h": 1}, ["create A 2 in g", "then move A 1 to h"]),
    "scaled up, to 0 and moved": Scenario(
        ALONE, ["scale A 1", "then scale A 0", "then move A to h"], ["create A 0 in g"], late="pods"
    ),
    "scaled and moved": Scenario({"g": 2, "h": 1}, ["scale A 1", "move A to h"], TWO),
    "scaled to 0 and moved": Scenario(ALONE, ["scale A 0", "then move A to h", "create B 1 in g"], ONE),
    "scaled to 0 and moved, a restart": Scenario(ALONE, ["scale A 0", "then move A 1 to h"], ONE, "pods", restarts=1),
    "scaled to 0, moved and scaled up": Scenario(
        ALONE, ["scale A 0", "then move A to h", "then scale A 1"], ONE, "pods"
    ),
    "scaled to 0, moved and scaled up, in one second": Scenario(
        ALONE, ["scale A 0", "then move A to h", "then scale A 1"], ONE, "works", tells_late=True, one_second=True
    ),
    "scaled up, to 0, moved and back": Scenario(
        ALONE,
        ["scale A 1", "then scale A 0", "then move A to h", "then move A to g"],
        ["create A 0 in g"],
        is_prompt=True,
    ),
    "scaled up, to 0, moved and back, at once": Scenario(
        ALONE,
        ["scale A 1", "then scale A 0", "then move A to h", "then move A to g"],
        ["create A 0 in g"],
        adds_up=True,
    ),
    "moved, or not": Scenario(ALONE, ["move A to h", "scale A 0"], ONE, "pods", refuses=True),
    "moved on": Scenario({**ALONE, "k": 1}, ["scale A 0", "then move A to h", "then move A to k"], ONE, ""),
    "around": Scenario(ALONE, AROUND, ONE, ""),
    "around, a watch that starts over": Scenario(ALONE, AROUND[:3], ONE, "works", relists=True),
    "around, a restart": Scenario(
        ALONE, ["move A 0 to h", "then move A to g", "then move A to h"], ONE, "", restarts=1
    ),
    "through uncounted, and back": Scenario(ALONE, [*THROUGH, "then move A to g"], ONE, "", is_acted_on=True),
    "through uncounted, and back, in one second": Scenario(
        ALONE, [*THROUGH, "then move A to g"], ONE, "", is_acted_on=True, one_second=True
    ),
    "through and back": Scenario(ALONE, [*THROUGH, "then move A to g"], ONE, "", is_prompt=True),
    "through and back, at once": Scenario(ALONE, [*THROUGH, "then move A to g"], ONE, "", adds_up=True),
    "through and back, and its room taken": Scenario(
        ALONE, [*THROUGH, "then move A to g", "create B 1 in h"], ONE, "", is_prompt=True
    ),
    "deleted": Scenario(ALONE, ["delete A", "create B 1 in g"], ONE),
    "created and deleted": Scenario({"g": 1}, ["create A 1 in g", "then delete A", "create B 1 in g"]),
    "created and deleted beside another": Scenario(
        {"g": 2}, ["create A 1 in g", "then delete A", "create N 1 in g", "create B 1 in g"]
    ),
    "scaled up and deleted": Scenario({"g": 1}, ["scale A 1", "then delete A", "create B 1 in g"], ["create A 0 in g"]),
    "moved and deleted": Scenario(ALONE, ["move A to h", "then delete A", "create B 1 in g"], ONE, "pods"),
    "moved with fewer pods and deleted": Scenario({"g": 2, "h": 1}, ["move A 1 to h", "then delete A"], TWO),
    "created, moved and deleted": Scenario(
        ALONE, ["create A 1 in g", "then move A 0 to h", "then delete A", "create B 1 in g"], late="pods"
    ),
    "scaled to 0, moved and deleted": Scenario(ALONE, [*LEFT, "create B 1 in g"], ONE, "pods"),
    "scaled to 0, moved and deleted, a restart": Scenario(ALONE, LEFT, ONE, "pods", restarts=1),
    "scaled to 0, moved with a pod and deleted": Scenario(
        ALONE, ["scale A 0", "then move A 1 to h", "then delete A", "create B 1 in h"], ONE, ""
    ),
    "to no group, and raised": Scenario(FREE, [f"move A to {NOBODY}", "then scale A 2", "create B 1 in g"], ONE),
    "to no group, raised at once": Scenario(FREE, [f"move A 3 to {NOBODY}"], ONE),
    "to no group, with fewer pods": Scenario({**FREE, "g": 2}, [f"move A 1 to {NOBODY}", "create B 1 in g"], TWO),
    "to no group and back": Scenario(FREE, [f"move A to {NOBODY}", "then move A to g"], ONE),
    "to no group and to another": Scenario({**FREE, "h": 1}, [f"move A to {NOBODY}", "then move A to h"], ONE),
    "to no group, a restart": Scenario(FREE, [f"move A 2 to {NOBODY}"], ONE, restarts=1),
    "to no group, raised and deleted": Scenario(
        FREE, [f"move A 2 to {NOBODY}", "then delete A", "create B 1 in g"], ONE, "pods"
    ),
    "created, and to no group": Scenario(FREE, ["create A 1 in g", f"then move A 2 to {NOBODY}", "create B 1 in g"]),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_runs_is_charged_where_it_may_be_in_every_interleaving(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert found.law is None, str(found)
    assert found.worlds > 5


def test_a_watch_of_workloads_that_is_late_over_two_moves_hides_a_pod_until_the_next_count() -> None:
    """A known limit: pods that are seen before a move, though they were made after it, are noted with the rest."""
    found = explore(Scenario(ALONE, [*THROUGH, "then move A to g"], ONE, "works", is_prompt=True))
    assert found.law is not None
    assert found.law.startswith("hidden: pods [0, 1] are those of ['g', 'h'], and 1 are taken")


#: A rule, and a scenario that breaks without it.
SHORT_CUTS: Sequence[tuple[str, str]] = [
    ("leaves_stays", "moved with fewer pods"),
    ("leaves_stays", "scaled to 0 and moved"),
    ("notes_moves", "moved on"),
    ("notes_late_pods", "scaled up, to 0, moved and back"),
    ("notes_remembered", "around, a restart"),
    ("minds_seen_moves", "through uncounted, and back"),
    ("doubts_lost_moves", "moved, or not"),
    ("gives_covered", "through and back, and its room taken"),
    ("minds_room", "created and moved with fewer pods"),
    ("holds_what_may_come", "created and moved with fewer pods"),
    ("awaits_observation", "scaled to 0, moved and scaled up"),
    ("looks_through", "moved with fewer pods, a restart"),
    ("counts_ending_promises", "scaled up, to 0 and moved"),
    ("wants_new_pods", "scaled up, to 0 and moved"),
    ("wants_pods_of_now", "scaled up, to 0 and moved"),
    ("settles_from_new_pods", "scaled to 0, moved and scaled up"),
    ("gives_up", "moved with more pods"),
    ("takes_back", "moved with fewer pods, in one second"),
    ("keeps_noted_first", "through uncounted, and back, in one second"),
    ("keeps_ending_first", "scaled to 0, moved and scaled up, in one second"),
    ("sees_what_was_asked", "created, to 0 and its room taken"),
    ("awaits_promises", "scaled up, to 0 and moved"),
    ("sees_moves_out", "through and back, at once"),
    ("holds_deleted", "created and deleted"),
    ("holds_deleted", "created, moved and deleted"),
    ("holds_deleted", "scaled up and deleted"),
    ("counts_all_promises", "created and deleted beside another"),
    ("leaves_where_it_was", "scaled to 0, moved with a pod and deleted"),
    ("pays_by_a_group", "to no group, and raised"),
    ("minds_room", "to no group, raised at once"),
]


@pytest.mark.parametrize(("rule", "name"), SHORT_CUTS)
def test_each_short_cut_is_found_broken(rule: str, name: str) -> None:
    rules = Rules()
    setattr(rules, rule, False)
    assert explore(SCENARIOS[name], rules).law is not None


def test_each_rule_has_a_short_cut() -> None:
    rules = {name for name, value in vars(Rules).items() if value is True}
    assert rules == {rule for rule, _ in SHORT_CUTS}
