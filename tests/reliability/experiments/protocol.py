"""R25: the stateful property test of the protocol, with a seed and many more plays than `make test` has."""

from __future__ import annotations

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.laws.test_protocol_stateful import Protocol
from tests.reliability.stage import Outcome


def r25(*, number: int, plays: int, steps: int) -> Outcome:
    """`number` is the seed. A broken law is raised with the steps that lead to it, made as few as possible."""
    taken = 0

    @seed(number)
    class Counted(Protocol):
        @invariant()
        def one_more(self) -> None:
            nonlocal taken
            taken += 1

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=plays,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
    missed = [f"{taken} steps are fewer than 10,000"] if taken < 10_000 else []
    return Outcome(f"{plays} plays, {taken} steps, I1 to I3 after each", missed)
