"""R28 in short: one tenant at random, on the sandbox. `python -m tests.reliability R28` plays it in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from sandbox.server import Sandbox
from tests.controller.conftest import Monotonic
from tests.reliability.conftest import SEED
from tests.reliability.experiments.tenants import Arena, Broken, Played, Step, drawn
from tests.reliability.stage import ground_on
from tests.reliability.table import RUNNING
from tests.support.cluster import Cluster
from tests.support.logged_errors import LoggedErrors


@pytest.mark.parametrize("size", [{"steps": 150}, {"steps": 40, "kills": True}], ids=["led", "killed"])
async def test_a_random_tenant_never_runs_what_is_not_charged(tmp_path: Path, size: dict[str, int]) -> None:
    async with Sandbox() as box:
        cluster = Cluster("sandbox", box.write_kubeconfig(tmp_path / "kubeconfig"), box)
        async with ground_on(cluster, tmp_path, seed=SEED, clock=Monotonic()) as ground:
            outcome = await RUNNING.play(ground, **{**RUNNING.short, "cuts": False, **size})
    assert not outcome.missed, outcome


@pytest.mark.parametrize("steps", [1, 150])
def test_a_play_follows_from_its_seed(steps: int) -> None:
    assert drawn(1, steps) == drawn(1, steps)
    assert drawn(1, steps, kills=True) == drawn(1, steps, kills=True)
    assert drawn(1, 2 * steps)[:steps] != drawn(2, 2 * steps)[:steps]


class Fails(Arena):
    """Every play fails that has all of these steps."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(cast(Any, None), cast(Any, None), LoggedErrors())
        self.steps = set(steps)

    async def played(self, steps: Sequence[Step]) -> Played:
        if self.steps <= set(steps):
            raise Broken("broken")
        return Played(len(steps), 1, 1, 0.0)


async def test_a_play_that_fails_is_cut_to_what_it_needs() -> None:
    steps = drawn(3, 100)
    needed = [steps[17], steps[60]]
    left, why = await Fails(*needed).shortest(steps, Broken("broken"))
    assert left == needed
    assert str(why) == "broken"
