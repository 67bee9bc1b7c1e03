"""An edit of a busy group may hold back its status writers, and for a bounded time."""

from __future__ import annotations

import pytest

from bizrq.api.group import EditHold, GroupObject, GroupStatus, ObjectMeta
from bizrq.store.edit_backoff import HOLD, EditBackoff, needs_hold
from bizrq.units.times import format_timestamp

NOW = 1_800_000_000_000
ENTRY = "v1 deployments.apps/default/web uid=u until=2027-01-15T08:00:00.000Z pods=1"


def busy(generation: int, held: int | None = None, ago: int = 0, entries: tuple[str, ...] = (ENTRY,)) -> GroupObject:
    """Return a group with reservations, and a hold for an edit of generation `held`, `ago` milliseconds old."""
    hold = None if held is None else EditHold(held, format_timestamp(NOW - ago))
    return GroupObject(
        ObjectMeta(name="nlp", generation=generation), status=GroupStatus(reservations=[*entries], hold=hold)
    )


@pytest.mark.parametrize(
    ("case", "group", "may"),
    [
        ("nobody writes it", busy(1, entries=()), False),
        ("the first edit", busy(1), True),
        ("another try of an edit that is held for", busy(1, held=1, ago=1_500), False),
        ("an edit that has not landed for long", busy(1, held=1, ago=4_000), True),
        ("right after an edit that landed at once", busy(2, held=1, ago=500), False),
        ("a second after the hold of an edit that landed", busy(2, held=1, ago=1_000), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_holds_wait_longer_after_an_edit_that_failed(case: str, group: GroupObject, may: bool) -> None:
    assert needs_hold(group, NOW) is may


def test_writers_wait_until_the_edit_is_stored_or_the_hold_ends() -> None:
    clock = [0.0]
    holds = EditBackoff(lambda: clock[0])
    assert holds.remaining(busy(1, held=1)) == HOLD
    clock[0] = 0.5
    assert holds.remaining(busy(1, held=1)) == HOLD - 0.5
    assert holds.remaining(busy(2, held=1)) == 0
    clock[0] = HOLD + 1
    assert holds.remaining(busy(1, held=1, ago=10)) == HOLD, "another hold begins anew"
