"""Fixtures for all tests: clusters, and the shared vectors (what a given object must cost), where they are."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from bizrq.process import configure_logging
from tests.cluster import client, cluster, namespace, real_cluster, real_version, unique, why_not_real
from tests.vectors import vectors

__all__ = ["client", "cluster", "namespace", "real_cluster", "unique"]

# As the processes do it: drawn tracebacks would hold the event loop for seconds.
configure_logging()

# How long an example takes says nothing where others use the machine too.
hypothesis.settings.register_profile("bizrq", deadline=None)
hypothesis.settings.load_profile("bizrq")

BESIDE = Path(__file__).resolve().parents[2] / "shared"
VECTORS = Path(os.environ.get("BIZRQ_VECTORS") or BESIDE / "vectors")
#: The definitions of custom kinds that their own projects publish, where somebody has them.
DEFINITIONS = Path(os.environ.get("BIZRQ_CRDS") or BESIDE / "crds")

FIXTURES = {
    "workload_vector": vectors.workloads,
    "device_vector": vectors.devices,
    "transition": vectors.transitions,
    "recount_vector": vectors.recounts,
    "cash_vector": vectors.hours,
}


@pytest.fixture(scope="session")
def definitions() -> Path:
    """A directory that may hold the CustomResourceDefinitions of the kinds' own projects."""
    return DEFINITIONS


def pytest_generate_tests(metafunc):
    for name, load in FIXTURES.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, load(VECTORS))


def pytest_xdist_auto_num_workers() -> int:
    """Many tests wait more than they compute: one worker more than there are processors."""
    return min(os.cpu_count() or 1, 4) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests that need a real API server say why they are left out where there is none.

    What shares a cluster runs in one worker, one after the other: all tests of the real one, or those of a module.
    """
    why = why_not_real()
    for item in items:
        is_real = item.get_closest_marker("real")
        if why and is_real:
            item.add_marker(pytest.mark.skip(reason=why))
        elif not item.get_closest_marker("xdist_group") and (is_real or shares_a_loop(item)):
            item.add_marker(pytest.mark.xdist_group("real" if is_real else item.path.name))


def shares_a_loop(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("asyncio")
    return marker is not None and marker.kwargs.get("loop_scope") == "module"


def pytest_terminal_summary(terminalreporter):
    """One line that says how many of the shared vectors ran, and one for the clusters."""

    def of_vectors(outcome: str) -> int:
        reports = terminalreporter.stats.get(outcome, [])
        return sum("tests/vectors/" in report.nodeid for report in reports)

    passed, failed, skipped = (of_vectors(outcome) for outcome in ("passed", "failed", "skipped"))
    if passed or failed or skipped:
        where = VECTORS if VECTORS.is_dir() else f"no directory {VECTORS}"
        terminalreporter.write_line(
            f"vectors: {passed + failed} run, {failed} failed, {skipped} not run ({where}); "
            f"not built yet: {', '.join(sorted(vectors.NOT_YET)) or 'none'}"
        )
    terminalreporter.write_line(f"clusters: the sandbox, {why_not_real() or real_version()}")
