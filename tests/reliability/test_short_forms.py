"""The reliability experiments in seconds each: the laws hold at every revision that was recorded, nothing leaks.

`make reliability` runs the same ones in full; the numbers are those of its table.
"""

from __future__ import annotations

import pytest

from tests.reliability.stage import Stage
from tests.reliability.table import STAGED, Experiment

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("experiment", STAGED, ids=lambda experiment: experiment.id)
async def test_an_experiment_in_short(stage: Stage, experiment: Experiment) -> None:
    outcome = await experiment.play(stage, **experiment.short)
    assert not outcome.missed, outcome
