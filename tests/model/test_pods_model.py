"""What runs is charged in every interleaving of requests and controllers, and each named short cut is found broken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bizrq.workloads.ownership import charge
from tests.model.pods import Pod, Rules, Scenario, Work, explore, free_of

ONE = ["create A 2 in g"]
SCENARIOS = {
    "scaled to 0 and back": Scenario({"g": 2}, ["scale A 0", "then scale A 2", "create B 1 in g"], ONE),
    "up, down and up": Scenario({"g": 3}, ["scale A 1", "then scale A 0", "then scale A 1"], ["create A 0 in g"]),
    "scaled to 0 and back, with room": Scenario(
        {"g": 2}, ["scale A 0", "then scale A 1", "create B 1 in g"], ["create A 1 in g"]
    ),
    "created and scaled to 0": Scenario({"g": 2}, ["create A 1x2 in g", "then scale A 0", "create B 1x2 in g"]),
    "created and scaled to 0, pods seen apart": Scenario(
        {"g": 1}, ["create A 1 in g", "then scale A 0", "create B 1 in g"], apart=True
    ),
    "shrunk": Scenario({"g": 3}, ["scale A 1", "create B 1x2 in g"], ["create A 3 in g"]),
    "shrunk, pods seen apart": Scenario({"g": 3}, ["scale A 1", "create B 1x2 in g"], ["create A 3 in g"], apart=True),
    "a smaller template": Scenario({"g": 4}, ["resize A 1", "create B 1x2 in g"], ["create A 2x2 in g"]),
    "a larger template, surge": Scenario({"g": 4}, ["resize A 2", "create B 1 in g"], ONE, surge={"A": 1}),
    "a pod deleted": Scenario({"g": 3}, ["kill A", "create B 1 in g"], ONE),
    "updates that meet a conflict": Scenario({"g": 2}, ["scale A 0", "scale A 2"], ["create A 1 in g"]),
    "growth that gets lost": Scenario({"g": 3}, ["scale A 2", "scale A 3"], ["create A 1 in g"], refuses=True),
    "deleted": Scenario({"g": 2}, ["delete A", "create B 1x2 in g"], ONE, restarts=1),
    "deleted, pods seen apart": Scenario({"g": 2}, ["delete A", "create B 1x2 in g"], ONE, apart=True),
    "deleted and created": Scenario({"g": 2}, ["delete A", "create A 2 in g"], ONE),
    "deleted and created, with room": Scenario(
        {"g": 2}, ["delete A", "create A 1 in g", "create B 1 in g"], ["create A 1 in g"]
    ),
    "created, deleted and created": Scenario({"g": 2}, ["create A 1x2 in g", "then delete A", "create A 1x2 in g"]),
    "created and deleted, pods seen apart": Scenario(
        {"g": 1}, ["create A 1 in g", "then delete A", "create B 1 in g"], apart=True
    ),
    "created twice, one gets lost": Scenario({"g": 2}, ["create A 1x2 in g", "create A 1x2 in g"], refuses=True),
    "created and deleted, a restart": Scenario(
        {"g": 2}, ["create A 1x2 in g", "then delete A", "create B 1x2 in g"], restarts=1
    ),
    "created and deleted, two controllers": Scenario(
        {"g": 2}, ["create A 1x2 in g", "then delete A", "create B 1x2 in g"], controllers=2
    ),
    "deleted, two controllers, pods seen apart": Scenario(
        {"g": 1}, ["delete A", "create B 1 in g"], ["create A 1 in g"], controllers=2, apart=True
    ),
    "orphaned": Scenario({"g": 3}, ["orphan A", "create B 1x2 in g", "kill A"], ONE, restarts=1),
    "orphaned and created, in a full group": Scenario({"g": 2}, ["orphan A", "create A 2 in g"], ONE),
    "orphaned and adopted by fewer": Scenario({"g": 2}, ["orphan A", "create A 1 in g", "create B 1 in g"], ONE),
    "orphaned and ended": Scenario({"g": 2}, ["orphan A", "create A 1 in g", "create B 1 in g", "kill A"], ONE),
    "orphaned and adopted in another group": Scenario({"g": 2, "h": 1}, ["orphan A", "create A 1 in h"], ONE),
    "moved": Scenario({"g": 2, "h": 2}, ["move A to h", "create B 1x2 in g"], ONE),
    "moved and back": Scenario({"g": 2, "h": 2}, ["move A to h", "then move A to g"], ONE),
    "created and moved": Scenario({"g": 2, "h": 2}, ["create A 1x2 in g", "then move A to h", "create B 1x2 in g"]),
    "moved with fewer pods": Scenario({"g": 2, "h": 1}, ["move A 1 to h", "create B 1 in g"], ONE),
    "scaled to 0 and moved": Scenario({"g": 1, "h": 1}, ["scale A 0", "then move A 1 to h"], ["create A 1 in g"]),
    "scaled to 0, moved and back": Scenario(
        {"g": 1, "h": 1}, ["scale A 0", "then move A to h", "then move A 1 to g"], ["create A 1 in g"]
    ),
    "scaled to 0 and moved, a restart": Scenario(
        {"g": 1, "h": 1}, ["scale A 0", "then move A to h", "create B 1 in g"], ["create A 1 in g"], restarts=1
    ),
    "moved and deleted, a restart": Scenario({"g": 2, "h": 1}, ["move A 1 to h", "then delete A"], ONE, restarts=1),
    "children at once": Scenario({"g": 2}, ["child A 1", "child A 1", "child A 1"], ONE, by_hand="A"),
    "children while their owner shrinks": Scenario(
        {"g": 2}, ["child A 1", "scale A 0", "create B 1 in g"], ONE, by_hand="A", refuses=True
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_runs_is_charged_in_every_interleaving(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert found.law is None, str(found)
    assert found.worlds > 5


class AllLiveInOneMaximum(Rules):
    """The larger of the demand and of all that lives, without the ending ones besides."""

    def charge(self, work: Work, pods: Sequence[Pod], demand: int) -> int:
        live = {"cores": sum(pod.size for pod in pods)}
        return charge.slot_charge({"cores": demand}, live, {"cores": free_of(work, pods)}, {})["cores"]


class RefundedBeforeThePodsHaveGone(Rules):
    counts_pods = False


class PodsOlderThanTheWorkloads(Rules):
    wants_new_pods = False


class WorkloadsOlderThanThePods(Rules):
    wants_new_works = False


class OlderThanWhatWasPublished(Rules):
    minds_at = False


class DroppedByWhoHasNotSeenIt(Rules):
    minds_at = False
    drops_unseen = True


class LostByARestart(Rules):
    stores = False


class RememberedAfterwards(Rules):
    remembers_first = False


class LostOnTheWayIntoTheRecord(Rules):
    keeps_until_taken_over = False


class OlderLinesOfTheRecord(Rules):
    status_counts_first = False


class LeftoversInTheBaseOfACreate(Rules):
    keeps_leftovers_apart = False


class AdoptedPodsNotCounted(Rules):
    counts_adopted = False


class NothingStaysOfAMove(Rules):
    leaves_stays = False


class ChildrenThatDoNotSeeOneAnother(Rules):
    promises_children = False


class ADemandThatFallsBeforeItIsObserved(Rules):
    minds_observed = False


class APromiseThatGoesBeforeItIsObserved(Rules):
    awaits_observation = False


class OnePromiseForASlot(Rules):
    adds_up = False


class ARecountThatRaisesBases(Rules):
    keeps_bases_low = False


class MissingPodsNotCounted(Rules):
    counts_missing = False


SHORT_CUTS: Sequence[tuple[type[Rules], str]] = [
    (AllLiveInOneMaximum, "scaled to 0 and back, with room"),
    (RefundedBeforeThePodsHaveGone, "shrunk"),
    (RefundedBeforeThePodsHaveGone, "a smaller template"),
    (RefundedBeforeThePodsHaveGone, "a pod deleted"),
    (PodsOlderThanTheWorkloads, "created and scaled to 0, pods seen apart"),
    (PodsOlderThanTheWorkloads, "created and deleted, pods seen apart"),
    (WorkloadsOlderThanThePods, "created and scaled to 0, pods seen apart"),
    (OlderThanWhatWasPublished, "created and deleted, two controllers"),
    (DroppedByWhoHasNotSeenIt, "created and deleted, two controllers"),
    (LostByARestart, "deleted"),
    (LostByARestart, "created and deleted, a restart"),
    (LostByARestart, "orphaned"),
    (RememberedAfterwards, "created and deleted, a restart"),
    (RememberedAfterwards, "moved and deleted, a restart"),
    (LostOnTheWayIntoTheRecord, "created and deleted, a restart"),
    (OlderLinesOfTheRecord, "moved with fewer pods"),
    (LeftoversInTheBaseOfACreate, "deleted and created"),
    (AdoptedPodsNotCounted, "orphaned and adopted by fewer"),
    (AdoptedPodsNotCounted, "orphaned and adopted in another group"),
    (NothingStaysOfAMove, "moved with fewer pods"),
    (NothingStaysOfAMove, "scaled to 0 and moved"),
    (NothingStaysOfAMove, "scaled to 0 and moved, a restart"),
    (ChildrenThatDoNotSeeOneAnother, "children at once"),
    (ADemandThatFallsBeforeItIsObserved, "created and scaled to 0"),
    (APromiseThatGoesBeforeItIsObserved, "scaled to 0 and back, with room"),
    (OnePromiseForASlot, "up, down and up"),
    (OnePromiseForASlot, "created, deleted and created"),
    (ARecountThatRaisesBases, "up, down and up"),
    (MissingPodsNotCounted, "a smaller template"),
]


@pytest.mark.parametrize(("rules", "name"), SHORT_CUTS, ids=lambda each: getattr(each, "__name__", each))
def test_each_short_cut_is_found_broken(rules: type[Rules], name: str) -> None:
    found = explore(SCENARIOS[name], rules())
    assert found.law is not None
