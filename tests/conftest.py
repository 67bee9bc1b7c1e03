"""Fixtures for all tests: clusters, and the shared vectors (what a given object must cost), where they are."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from bizrq.process import configure_logging
from tests.support import binaries
from tests.support.cluster import client, cluster, namespace, real_cluster, unique
from tests.vectors import vectors
from webhooks import disclosure

__all__ = ["client", "cluster", "namespace", "real_cluster", "unique"]

# As the processes do it: drawn tracebacks would hold the event loop for seconds.
configure_logging()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores it for what it starts in the background, and all that the tests start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing where others use the machine too.
hypothesis.settings.register_profile("bizrq", deadline=None)
hypothesis.settings.load_profile("bizrq")

BESIDE = Path(__file__).resolve().parents[2] / "shared"
VECTORS = Path(os.environ.get("BIZRQ_VECTORS") or BESIDE / "vectors")
#: The definitions of custom kinds that their own projects publish, where somebody has them.
DEFINITIONS = Path(os.environ.get("BIZRQ_CRDS") or BESIDE / "crds")

if (kubectl := binaries.kubectl()) is not None and shutil.which("kubectl") is None:
    # Tests and what they start call it by its name.
    os.environ["PATH"] += f"{os.pathsep}{kubectl.parent}"

FIXTURES = {
    "workload_vector": vectors.workloads,
    "device_vector": vectors.devices,
    "transition": vectors.transitions,
    "recount_vector": vectors.recounts,
    "cash_vector": vectors.hours,
}


@pytest.fixture(scope="session", autouse=True)
def _waits_for_reviews() -> Iterator[None]:
    """Let answers wait longer for a review of rights: on a busy machine they would lack their figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disclosure, "WAIT", 8.0)
        yield


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


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, and let it pass over the 10,000 items that stay in each worker."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skip what needs a program that is not here, and say why.

    What shares a cluster runs in one worker, one after the other: those of a module, apart on the sandbox and on a real
    one. Each worker has a real cluster of its own. What needs it begins first: it waits more than it computes.
    """
    for item in items:
        is_real = item.get_closest_marker("real")
        if why := why_skipped(item):
            item.add_marker(pytest.mark.skip(reason=why))
        elif not item.get_closest_marker("xdist_group") and (is_real or shares_a_loop(item)):
            item.add_marker(pytest.mark.xdist_group(f"real {item.path.name}" if is_real else item.path.name))
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


def why_skipped(item: pytest.Item) -> str | None:
    """Return why a test cannot run on this machine."""
    for real in item.iter_markers("real"):
        if why := binaries.why_not_real():
            return why
        version = real.kwargs.get("version", "")
        if version not in binaries.real_version():
            return f"needs Kubernetes {version}, and this is {binaries.real_version()}"
    if browser := item.get_closest_marker("browser"):
        return binaries.why_no_browser() or binaries.why_no_driver(browser.kwargs.get("driver", ""))
    return binaries.why_no_kubectl() if item.get_closest_marker("kubectl") else None


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
    terminalreporter.write_line(f"clusters: the sandbox, {binaries.why_not_real() or binaries.real_version()}")
    if left_out := not_run(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(left_out)


def why_no_driven_browser() -> str | None:
    return binaries.why_no_browser() or binaries.why_no_driver("playwright")


def not_run(skipped: list[pytest.TestReport]) -> str:
    """Return one line that says what was left out for want of a program, and how to run it."""
    needs = [
        ("real", "a real API server", binaries.why_not_real, "make test-real"),
        ("kubectl", "kubectl", binaries.why_no_kubectl, "make test"),
        ("browser", "a browser", why_no_driven_browser, "make test-browser"),
    ]
    parts = []
    for marker, what, why, command in needs:
        count = sum(marker in report.keywords for report in skipped)
        if count and (reason := why()):
            parts.append(f"{count} for want of {what} ({reason}; with it, run `{command}`)")
    return f"tests not run: {', '.join(parts)}" if parts else ""
