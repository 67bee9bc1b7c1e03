"""The experiments that start and stop bizrq themselves, in seconds each; R23 kills a cluster of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.controller.conftest import Monotonic
from tests.reliability.conftest import SEED
from tests.reliability.stage import Ground, ground_on, real_on, stage_on
from tests.reliability.table import ALONE, KILLED, REAL, Experiment
from tests.support.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("experiment", ALONE, ids=lambda experiment: experiment.id)
async def test_an_experiment_in_short(ground: Ground, experiment: Experiment) -> None:
    outcome = await experiment.play(ground, **experiment.short)
    assert not outcome.missed, outcome


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def without_pods(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """A real cluster where nobody makes pods: the laws at every revision know none that outlive their owner."""
    async with real_on(tmp_path_factory.mktemp("processes")) as (_, cluster):
        yield cluster


@pytest.mark.real
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("experiment", REAL, ids=lambda experiment: experiment.id)
async def test_an_experiment_of_processes_in_short(
    without_pods: Cluster, tmp_path: Path, experiment: Experiment
) -> None:
    async with ground_on(without_pods, tmp_path, seed=SEED) as ground:
        outcome = await experiment.play(ground, **experiment.short)
    assert not outcome.missed, outcome


@pytest.mark.real
@pytest.mark.xdist_group("killed")
async def test_etcd_and_the_api_server_are_killed(tmp_path: Path) -> None:
    """R23 in short. There is no such thing on the sandbox: it stores nothing."""
    async with (
        real_on(tmp_path) as (real, cluster),
        ground_on(cluster, tmp_path, seed=SEED, clock=Monotonic()) as ground,
        stage_on(ground) as stage,
    ):
        outcome = await KILLED.play(stage, real=real, **KILLED.short)
    assert not outcome.missed, outcome
