"""When a pod is live, and when it is ending."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.units.times import format_timestamp
from bizrq.workloads.ownership.lives import OVER, Life, Stage, ends_at, is_live, life_of, stage

NOW = 1_700_000_000_000
SECOND = 1000
ON_NODE = {"phase": "Running", "node": "n1"}

ENDS = [
    ("one that runs has no end", Life(**ON_NODE), None),
    ("one that waits for a node has no end", Life(phase="Pending"), None),
    ("one that succeeded is over", Life(phase="Succeeded", node="n1"), OVER),
    ("one that failed while being deleted is over", Life(phase="Failed", node="n1", deleted=NOW, grace=5000), OVER),
    ("as native quota: the grace is added once more", Life(**ON_NODE, deleted=NOW, grace=30_000), NOW + 30_000),
    ("a day of grace is a day", Life(**ON_NODE, deleted=NOW, grace=86_400_000), NOW + 86_400_000),
    ("one that is deleted and has no node is over", Life(phase="Pending", deleted=NOW, grace=30_000), OVER),
    ("one that went without a node is over", Life(phase="Pending", gone=NOW), OVER),
    ("deleted by force: its node stops it by its own grace",
     Life(**ON_NODE, deleted=NOW, grace=0, own_grace=60_000), NOW + 60_000),
    ("gone without a terminal phase: the same", Life(**ON_NODE, own_grace=60_000, gone=NOW), NOW + 60_000),
    ("ending, then gone: whichever comes first",
     Life(**ON_NODE, deleted=NOW, grace=10_000, own_grace=60_000, gone=NOW - 5000), NOW + 10_000),
    ("deleted by force after its time was over: it stays over",
     Life(**ON_NODE, deleted=NOW, grace=0, own_grace=60_000, was_over=True), OVER),
    ("a grace that cannot be read has no end by the clock", Life(**ON_NODE, deleted=NOW), None),
    ("phase Unknown is no end", Life(phase="Unknown", node="n1"), None),
]  # fmt: skip


@pytest.mark.parametrize(("life", "end"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_the_end_of_a_pod(life, end):
    assert ends_at(life) == end


def test_the_last_moment_is_not_part_of_a_life():
    life = Life(**ON_NODE, deleted=NOW, grace=30_000)
    assert is_live(life, NOW + 29_999)
    assert not is_live(life, NOW + 30_000)


STAGES = [
    ("a running one is fresh", Life(**ON_NODE), False, Stage.FRESH),
    ("one that is being deleted is ending", Life(**ON_NODE, deleted=NOW, grace=30_000), False, Stage.ENDING),
    ("unless its controller waits for it", Life(**ON_NODE, deleted=NOW, grace=30_000), True, Stage.FRESH),
    ("nobody waits for one that is gone", Life(**ON_NODE, gone=NOW), True, Stage.ENDING),
    ("past its grace it is over, awaited or not", Life(**ON_NODE, deleted=NOW - 9, grace=9), True, Stage.OVER),
]


@pytest.mark.parametrize(("life", "awaited", "found"), [row[1:] for row in STAGES], ids=[row[0] for row in STAGES])
def test_the_stage_of_a_pod(life, awaited, found):
    assert stage(life, NOW, awaited=awaited) is found


def pod(metadata=(), spec=(), phase="Running"):
    return {"metadata": dict(metadata), "spec": {"nodeName": "n1", **dict(spec)}, "status": {"phase": phase}}


def test_a_stored_pod_is_read():
    stored = pod(
        {
            "creationTimestamp": format_timestamp(NOW),
            "deletionTimestamp": format_timestamp(NOW + 5),
            "deletionGracePeriodSeconds": 7,
        },
        {"terminationGracePeriodSeconds": 9},
    )
    assert life_of(stored) == Life("Running", "n1", NOW, NOW + 5, 7000, 9000)


BAD = [
    ("no pod at all", {}),
    ("times that are none", pod({"creationTimestamp": "soon", "deletionTimestamp": "later"})),
    ("a grace of text", pod({"deletionTimestamp": format_timestamp(NOW), "deletionGracePeriodSeconds": "30"})),
    ("an own grace of text", pod(spec={"terminationGracePeriodSeconds": "1h"})),
    ("null everywhere", {"metadata": None, "spec": None, "status": None}),
]


@pytest.mark.parametrize("stored", [row[1] for row in BAD], ids=[row[0] for row in BAD])
def test_what_cannot_be_read_makes_a_pod_live_for_longer(stored):
    assert is_live(life_of(stored), NOW + 365 * 86_400 * SECOND)


def test_a_negative_grace_of_its_own_is_a_second():
    assert life_of(pod(spec={"terminationGracePeriodSeconds": -5})).own_grace == 1000


times = st.none() | st.integers(NOW - 10**6, NOW + 10**6)
lives = st.builds(
    Life,
    phase=st.sampled_from([None, "Pending", "Running", "Succeeded", "Failed"]),
    node=st.sampled_from([None, "n1"]),
    created=times,
    deleted=times,
    grace=st.none() | st.integers(-10, 10**5),
    own_grace=st.integers(0, 10**5),
    gone=times,
    was_over=st.booleans(),
)


@given(life=lives, now=st.integers(NOW - 10**6, NOW + 10**7), later=st.integers(0, 10**7))
def test_a_pod_that_is_over_stays_over(life, now, later):
    assert is_live(life, now) or not is_live(life, now + later)


@given(life=lives, now=st.integers(NOW - 10**6, NOW + 10**7), awaited=st.booleans())
def test_a_live_pod_is_either_fresh_or_ending(life, now, awaited):
    assert (stage(life, now, awaited=awaited) is Stage.OVER) == (not is_live(life, now))
