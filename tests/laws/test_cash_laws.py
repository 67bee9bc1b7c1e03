"""Laws of card-hours: what pods occupied is what is charged, whenever somebody looked and whoever crashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bizrq.api import group as wire
from bizrq.quota.cash import HOUR, Meter, Occupied, forget, inherit, spent, tick
from bizrq.quota.resources import Resources

T = 1_700_000_000_000
NAMES = ("limits.cpu", "limits.memory", "requests.nvidia.com/gpu", "requests.nvidia.com/gpu.A100")
COSTS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**63 - 1), max_size=3)
TIMES = st.integers(0, 40).map(lambda steps: T + steps * 977)


@dataclass(frozen=True)
class Pod:
    """A pod's life: bound at `start`, over at `end`, deleted at `gone`; times in milliseconds."""

    uid: str
    start: int
    end: int
    gone: int
    cost: Resources

    def seen(self, now: int) -> list[Occupied]:
        """What a look finds of it."""
        if not self.start <= now < self.gone:
            return []
        return [Occupied(self.uid, self.start, self.end if self.end <= now else None, self.cost)]


def _life(start: int, end: int, gone: int, cost: Resources) -> Pod:
    first, second, third = sorted((start, end, gone))
    return Pod("", first, second, third, cost)


def pods() -> st.SearchStrategy[list[Pod]]:
    lives = st.lists(st.builds(_life, TIMES, TIMES, TIMES, COSTS), max_size=5)
    return lives.map(lambda found: [replace(pod, uid=f"pod-{n}") for n, pod in enumerate(found)])


def written_and_read(meter: Meter) -> Meter:
    """The meter as the next process finds it."""
    status = wire.Status(cash=wire.stored_meter(meter))
    group = wire.GroupObject(metadata=wire.Metadata(name="nlp"), status=status)
    return wire.meter_of(wire.decode(wire.encode(group)))


def look(meter: Meter, lives: Sequence[Pod], now: int, since: int) -> Meter:
    """What a controller does at `now` that has stored its look at `since`, and watched from there."""
    gone = [pod for pod in lives if since < pod.gone <= now and pod.start <= now]
    ended = [Occupied(pod.uid, pod.start, pod.end, pod.cost) for pod in gone]
    return tick(meter, [*(stay for pod in lives for stay in pod.seen(now)), *ended], now)


def integral(lives: Sequence[Pod], until: int) -> dict[str, int]:
    """What was occupied, from the pods' own times: the oracle."""
    amounts: dict[str, int] = {}
    for pod in lives:
        for name, amount in pod.cost.items():
            amounts[name] = amounts.get(name, 0) + amount * max(0, min(pod.end, until) - pod.start)
    return {f"cash/{name}": -(-amount // (HOUR * 10**6)) * 10**6 for name, amount in amounts.items() if amount}


def positive(amounts: Resources) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


LAST = T + 41 * 977
LOOKS = st.lists(TIMES, max_size=8, unique=True).map(sorted)


@given(pods(), LOOKS)
def test_what_is_charged_is_what_was_occupied_whenever_somebody_looked(lives: list[Pod], looks: list[int]) -> None:
    meter, since = Meter(), T - 1
    for now in [*looks, LAST]:
        meter, since = look(meter, lives, now, since), now
        assert positive(spent(meter)) == integral(lives, now)
    assert not meter.running


FATES = st.sampled_from(["stored", "lost write", "lost reply"])


@given(pods(), LOOKS, st.data())
def test_no_restart_no_lost_write_and_no_lost_reply_charges_twice_or_loses_anything(
    lives: list[Pod], looks: list[int], data: st.DataObject
) -> None:
    """Between any two looks the meter is written and read by another; or the write fails and counts for nothing; or it
    is stored and nobody hears of it, so that what ended is told again.
    """
    meter, since = Meter(), T - 1
    for now in looks:
        after = look(meter, lives, now, since)
        fate = data.draw(FATES, label="fate")
        if fate != "lost write":
            meter = written_and_read(after)
            assert positive(spent(meter)) == integral(lives, now)
        if fate == "stored":
            since = now
    meter = written_and_read(look(meter, lives, LAST, since))
    assert positive(spent(meter)) == integral(lives, LAST)
    assert not meter.running


@given(pods(), LOOKS)
def test_gone_pods_stand_in_finished_until_the_look_after_the_one_that_stored_them(
    lives: list[Pod], looks: list[int]
) -> None:
    """As long as they may be told again, and no longer: the record does not grow with what is over."""
    meter, since = Meter(), T - 1
    for now in [*looks, LAST]:
        after = look(meter, lives, now, since)
        over = {pod.uid for pod in lives if pod.start <= now and pod.end <= now and pod.gone > since}
        assert after.finished == over
        meter, since = after, now
    assert look(meter, lives, LAST + 1, LAST).finished == frozenset()


@given(pods(), LOOKS, TIMES)
def test_a_further_look_in_between_changes_nothing(lives: list[Pod], looks: list[int], further: int) -> None:
    """Nothing that is spent or runs; what has ended is forgotten one look after it was stored, whenever that was."""

    def play(moments: list[int]) -> Meter:
        meter, since = Meter(), T - 1
        for now in moments:
            meter, since = look(meter, lives, now, since), now
        return meter

    one, other = play([*looks, LAST]), play(sorted({*looks, further, LAST}))
    assert positive(one.settled) == positive(other.settled)
    assert (one.running, one.watermark, spent(one)) == (other.running, other.watermark, spent(other))
    assert play([*looks, LAST, LAST + 1]).finished == frozenset()
    assert replace(one, settled={}, finished=frozenset()) == replace(other, settled={}, finished=frozenset())


@given(pods(), TIMES)
def test_a_second_look_at_the_same_moment_changes_nothing(lives: list[Pod], now: int) -> None:
    """But that it need not remember any longer what is gone and stored; and a third changes nothing at all."""
    meter = look(Meter(), lives, now, T - 1)
    again = look(meter, lives, now, now)
    assert replace(again, finished=meter.finished) == meter
    assert again.finished == meter.finished - {pod.uid for pod in lives if pod.gone <= now}
    assert look(again, lives, now, now) == again


COSTLY = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 2**63 - 1), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(1, 9), COSTLY), min_size=1, max_size=6), st.data())
def test_a_pod_costs_what_it_cost_at_each_time_where_its_cost_changes(
    parts: list[tuple[int, Resources]], data: st.DataObject
) -> None:
    """A resize, another model, a name that hard has from now on: seen at a look, it counts from that look."""
    meter, now = Meter(), T
    expected: dict[str, int] = {}
    for length, cost in parts:
        for _ in range(data.draw(st.integers(1, 2), label="looks")):
            meter = written_and_read(tick(meter, [Occupied("a", T, None, cost)], now))
        now += length * 977
        for name, amount in cost.items():
            expected[name] = expected.get(name, 0) + amount * length * 977
    meter = tick(meter, [Occupied("a", T, now, parts[-1][1])], now)
    assert positive(meter.settled) == expected
    assert not meter.running


@given(pods(), TIMES, st.randoms(use_true_random=False))
def test_the_order_in_which_pods_are_seen_does_not_matter(lives: list[Pod], now: int, random: object) -> None:
    shuffled = list(lives)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert look(Meter(), lives, now, T - 1) == look(Meter(), shuffled, now, T - 1)


@given(pods(), st.lists(st.tuples(TIMES, st.booleans()), max_size=8))
def test_nothing_is_ever_charged_below_zero_and_no_watermark_goes_back(
    lives: list[Pod], looks: list[tuple[int, bool]]
) -> None:
    """Whatever the clock does: the looks are in no order, and ends come before starts."""
    meter = Meter()
    for now, turned in looks:
        stays = [
            Occupied(p.uid, p.end, p.start, p.cost) if turned else Occupied(p.uid, p.start, None, p.cost) for p in lives
        ]
        after = tick(meter, stays, now)
        assert after.watermark >= meter.watermark
        assert all(amount >= 0 for amount in spent(after).values())
        for name, amount in meter.settled.items():
            assert after.settled[name] >= amount
        meter = after


@given(pods(), TIMES, TIMES)
def test_two_stays_that_touch_cost_what_one_stay_costs(lives: list[Pod], split: int, now: int) -> None:
    whole = [Occupied(p.uid, p.start, p.end, p.cost) for p in lives]
    halves = [
        half
        for p in lives
        for middle in [min(max(split, p.start), p.end)]
        for half in (Occupied(p.uid + "a", p.start, middle, p.cost), Occupied(p.uid + "b", middle, p.end, p.cost))
    ]
    assert positive(tick(Meter(), whole, now).settled) == positive(tick(Meter(), halves, now).settled)


@given(pods(), TIMES, st.lists(st.tuples(st.sampled_from("xyz"), COSTS, st.booleans()), max_size=4))
def test_what_children_spent_is_their_parents_for_good_and_once(
    lives: list[Pod], now: int, children: list[tuple[str, Resources, bool]]
) -> None:
    meter = look(Meter(), lives, now, T - 1)
    before = dict(meter.settled)
    first: dict[str, Resources] = {}
    for uid, cost, gone in children:
        meter = written_and_read(inherit(meter, uid, {name: amount * HOUR for name, amount in cost.items()}))
        first.setdefault(uid, cost)
        if gone:
            kept = forget(meter, lambda known, gone=uid: known != gone)
            assert spent(kept) == spent(meter)
    settled = forget(meter, lambda _: False).settled
    expected = dict(before)
    for cost in first.values():
        for name, amount in cost.items():
            expected[name] = expected.get(name, 0) + amount * HOUR
    assert positive(settled) == positive(expected)


@given(pods(), TIMES)
def test_a_meter_is_itself_after_it_was_written_and_read(lives: list[Pod], now: int) -> None:
    meter = inherit(look(Meter(), lives, now, T - 1), "child", {"limits.cpu": 1})
    assert written_and_read(meter) == meter
    assert msgspec.to_builtins(wire.stored_meter(meter)) == msgspec.to_builtins(
        wire.stored_meter(written_and_read(meter))
    )
