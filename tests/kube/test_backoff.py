"""Pauses after failures double, stay below a limit and start over after a calm time."""

from __future__ import annotations

from bizrq.kube.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_start_over_after_a_calm_time() -> None:
    now = 0.0
    backoff = Backoff(1.0, 4.0, 10.0, lambda: now)
    for expected in (1.0, 2.0, 4.0, 4.0):
        assert 0.5 * expected <= backoff.after_failure() <= 1.5 * expected
        now += 5.0
    now += 10.0
    assert backoff.after_failure() <= 1.5
