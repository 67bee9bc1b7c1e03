"""Safe hours hold in every interleaving of a few requests with time, and each named short cut does not.

After every step, whatever is stored may go on for as long as it was admitted, and all of that was left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bizrq.hours.budget import HOUR
from bizrq.quota import account, admission, reservation
from bizrq.units.quantity import NANO
from bizrq.units.resources import growth, larger
from tests.laws.test_prepaid_laws import CASH, HARD, SHORTCUTS, Fault, World

#: (uid, cards, hours): the first of a uid creates a job, each other one changes it.
Request = tuple[str, int, int]
SCENARIOS: dict[str, list[Request]] = {
    "creates that fit one by one": [("a", 2, 10), ("b", 3, 10)],
    "a job is made longer beside a create": [("a", 2, 10), ("a", 2, 15), ("b", 1, 15)],
    "a job becomes smaller and longer": [("a", 2, 10), ("a", 1, 19), ("b", 2, 10)],
    "a job is widened, then longer": [("a", 1, 10), ("a", 2, 10), ("a", 1, 30)],
    "a job becomes smaller and longer twice": [("a", 4, 6), ("a", 2, 12), ("a", 1, 24)],
    "a job is shortened, and another takes its hours": [("a", 2, 15), ("a", 2, 5), ("b", 3, 10)],
    "a job is deleted and made anew": [("a.1", 2, 10), ("a.2", 4, 10)],
}
#: Hours that pass at once, and how often.
LEAP, LEAPS = 5, 2


def _key(world: World, asked: frozenset[int]) -> object:
    jobs = tuple((uid, *_plain(job)) for uid, job in sorted(world.jobs.items()))
    seen = tuple((uid, *_plain(job)) for uid, job in sorted(world.seen.items()))
    writes = tuple((w.uid, w.demand, w.run, w.onto) for w in world.writes)
    entries = tuple(sorted(str(replace(entry, expires=0)) for entry in world.entries))
    gone = tuple((uid, *_plain(job)) for uid, job in sorted(world.gone.items())), world.seen_gone
    return asked, world.now, jobs, seen, gone, writes, entries, world.used[CASH], world.liens.get(CASH, 0)


def _plain(job: object) -> tuple[object, ...]:
    return tuple(getattr(job, name) for name in ("demand", "run", "version", "start", "ended", "spent", "since"))


def _copy(world: World) -> World:
    return replace(
        world,
        jobs={uid: replace(job) for uid, job in world.jobs.items()},
        seen=dict(world.seen),
        gone=dict(world.gone),
        writes=list(world.writes),
        entries=list(world.entries),
        used=dict(world.used),
        liens=dict(world.liens),
    )


def _steps(
    world: World, scenario: list[Request], asked: frozenset[int]
) -> Iterator[tuple[Callable[[World], object], frozenset[int]]]:
    """What can happen next."""
    for number, (uid, cards, hours) in enumerate(scenario):
        first = all(scenario[before][0] != uid for before in range(number))
        if number in asked or not (first or uid in world.jobs):
            continue
        after = asked | {number}
        if first:
            yield lambda w, uid=uid, cards=cards, hours=hours: w.create(cards, hours, uid), after
        else:
            yield lambda w, uid=uid, cards=cards, hours=hours: w.change(uid, cards, hours), after
    for number in range(len(world.writes)):
        yield lambda w, number=number: w.store(w.writes[number]), asked
        yield lambda w, number=number: w.writes.pop(number), asked
    for uid, job in world.jobs.items():
        if job.start is None:
            yield lambda w, uid=uid: w.start(w.jobs[uid]), asked
        if "." in uid:
            yield lambda w, uid=uid: w.delete(uid), asked
    yield World.watch, asked
    yield World.recount, asked
    if world.now < LEAP * LEAPS * HOUR:
        yield lambda w: setattr(w, "now", w.now + LEAP * HOUR), asked


def explore(scenario: list[Request], fault: Fault = lambda _: None) -> int | None:
    """How many worlds there are; None where the law is broken in one of them."""
    first = World()
    fault(first)
    known = {_key(first, frozenset())}
    waiting = deque([(first, frozenset[int]())])
    while waiting:
        world, asked = waiting.popleft()
        for act, after in _steps(world, scenario, asked):
            then = _copy(world)
            act(then)
            if then.pledged() > HARD[CASH] * HOUR:
                return None
            key = _key(then, after)
            if key not in known:
                known.add(key)
                waiting.append((then, after))
    return len(known)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_stored_was_left_in_every_interleaving(scenario: str) -> None:
    found = explore(SCENARIOS[scenario])
    assert found is not None
    assert found > 100


def _raised(world: World) -> None:
    world.raises_bases = True


SHOWN_BY = {
    "liens that nobody counts": "creates that fit one by one",
    "promises without hours": "creates that fit one by one",
    "liens that shrink faster than hours are spent": "a job is made longer beside a create",
    "a base of more than the stored object can have left": "a job is made longer beside a create",
    "bases of hours that a recount raises": "a job becomes smaller and longer",
    "what one name may spend, once": "a job is deleted and made anew",
    "updates upon updates": "a job becomes smaller and longer twice",
}


@pytest.mark.parametrize("shortcut", SHOWN_BY)
def test_each_shortcut_is_found_broken(shortcut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shortcut == "what one name may spend, once":
        for module in (account, reservation):
            monkeypatch.setattr(module, "joined", lambda extra, entry: larger(extra, entry.extra))
        monkeypatch.setattr(admission, "rises", lambda of, e: growth(e.extra, of.added(e.slot)))
    if shortcut == "updates upon updates":
        monkeypatch.setattr(admission, "chained", lambda *_: False)
    fault = SHORTCUTS.get(shortcut, _raised if "recount" in shortcut else lambda _: None)
    assert explore(SCENARIOS[SHOWN_BY[shortcut]], fault) is None


def test_the_scenarios_use_up_what_there_is() -> None:
    """Or nothing would be refused, and a wrong yes be none."""
    for scenario in SCENARIOS.values():
        wanted = {uid: cards * hours for uid, cards, hours in scenario}
        assert sum(wanted.values()) * NANO > HARD[CASH] or len(scenario) > len(wanted)
