"""The process bizrq-certs: what it writes to disk and to a cluster, and its error messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import typer
from typer.testing import CliRunner

from bizrq.kube.admission import REGISTRATIONS
from bizrq.kube.client import Forbidden, KubeClient, Unreachable
from bizrq.process import configure_logging
from certs import cabundle, main, rotation
from certs.main import CertificateKeeper
from certs.rotation import CA_BUNDLE, CA_KEY, CERTIFICATE, KEY, SETTLE
from certs.store import read_directory
from tests.certs.test_cabundle import OURS, PLURAL, webhook
from tests.support.fake_server import FakeServer

NAMES = ["bizrq-webhooks.bizrq-system.svc"]


def bundle_of(server: FakeServer, name: str = "bizrq") -> bytes:
    configuration = server.objects(PLURAL)["", name]
    return base64.b64decode(configuration["webhooks"][0]["clientConfig"].get("caBundle", ""))


def registered(server: FakeServer, name: str = "bizrq") -> None:
    """Put a configuration of ours."""
    server.put(PLURAL, name, "", metadata=OURS, webhooks=[webhook("a")])


def certs(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(main.certs)
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield
    # The process logs to the stderr of the runner, which is closed by now.
    configure_logging()


def test_once_without_a_cluster_creates_the_files_and_keeps_them(tmp_path: Path) -> None:
    result = certs("--cert-dir", str(tmp_path / "c"), "--names", "webhooks.svc,127.0.0.1", "--once")
    assert result.exit_code == 0, result.output
    files = read_directory(tmp_path / "c")
    assert set(files) == {CA_BUNDLE, CA_KEY, CERTIFICATE, KEY}
    assert certs("--cert-dir", str(tmp_path / "c"), "--names", "webhooks.svc,127.0.0.1", "--once").exit_code == 0
    assert read_directory(tmp_path / "c") == files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--names", "a b"], "'a b' is neither a DNS name nor an IP address"),
        (["--names", ","], "needs at least one name"),
        (["--kubeconfig", "none"], "none: there is no such file"),
        (["--secret", "tls"], "--secret needs a cluster"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = certs("--cert-dir", str(tmp_path / "c"), "--once", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "c").exists()


def test_a_directory_that_cannot_be_written_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = certs("--cert-dir", str(tmp_path / "file" / "c"), "--once")
    assert result.exit_code == 2
    assert "bizrq-certs: " in result.output


def test_an_unreachable_cluster_is_exit_3_but_the_files_are_created(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    result = certs("--cert-dir", str(tmp_path / "c"), "--once", "--kubeconfig", str(kubeconfig))
    assert result.exit_code == 3
    assert "http://127.0.0.1:9 cannot be reached" in result.output
    assert CERTIFICATE in read_directory(tmp_path / "c")


async def test_a_rotation_runs_through_files_and_cluster(
    server: FakeServer, client: KubeClient, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    keeper = CertificateKeeper(tmp_path, NAMES, client, namespace="bizrq-system", now=lambda: now)
    registered(server)
    server.put(PLURAL, "others", "", webhooks=[webhook("a")])
    await keeper.run_pass()
    first = read_directory(tmp_path)
    assert bundle_of(server) == first[CA_BUNDLE]
    assert bundle_of(server, "others") == b""
    await keeper.run_pass(rotate=True)
    assert bundle_of(server) == read_directory(tmp_path)[CA_BUNDLE] != first[CA_BUNDLE]
    assert read_directory(tmp_path)[CERTIFICATE] == first[CERTIFICATE]
    now += SETTLE
    await server.stop()
    with pytest.raises(Unreachable):
        await keeper.run_pass()
    assert read_directory(tmp_path)[CERTIFICATE] == first[CERTIFICATE]
    await server.start()
    await keeper.run_pass()
    assert read_directory(tmp_path)[CERTIFICATE] != first[CERTIFICATE]
    now += rotation.RETIRE + timedelta(seconds=1)
    await keeper.run_pass()
    assert bundle_of(server).count(b"BEGIN") == 1


async def test_pods_share_the_files_by_a_secret(server: FakeServer, client: KubeClient, tmp_path: Path) -> None:
    keepers = [
        CertificateKeeper(tmp_path / str(i), NAMES, client, namespace="bizrq-system", secret="bizrq-tls")
        for i in range(2)
    ]
    await keepers[0].run_pass()
    await keepers[1].run_pass()
    assert read_directory(tmp_path / "0") == read_directory(tmp_path / "1")
    secret = server.objects("secrets")["bizrq-system", "bizrq-tls"]
    assert base64.b64decode(secret["data"][CERTIFICATE]) == read_directory(tmp_path / "0")[CERTIFICATE]


async def test_a_removed_bundle_is_written_again_at_once(
    server: FakeServer, client: KubeClient, tmp_path: Path
) -> None:
    keeper = CertificateKeeper(tmp_path, NAMES, client, namespace="bizrq-system")
    registered(server)
    task = asyncio.create_task(keeper.run())
    try:
        for _ in range(2):
            async with asyncio.timeout(60):
                while not bundle_of(server):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            registered(server)
        assert keeper.done_once
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_names_of_no_webhook_are_reported(server: FakeServer, client: KubeClient, tmp_path: Path) -> None:
    registered(server)
    keeper = CertificateKeeper(tmp_path, ["elsewhere.svc"], client, namespace="bizrq-system")
    with structlog.testing.capture_logs() as logs:
        await keeper.run_pass()
    assert any(entry["event"] == "no webhook is reached by any of our names" for entry in logs)
    assert bundle_of(server) == b""


#: What others may have registered, or broken. An API server takes some of it; none must stop us.
FOREIGN: dict[str, dict[str, Any]] = {
    "no list of webhooks": {"metadata": OURS},
    "null for a list": {"metadata": OURS, "webhooks": None},
    "a text for a list": {"metadata": OURS, "webhooks": "many"},
    "webhooks that are no objects": {"metadata": OURS, "webhooks": [None, 7, "x", []]},
    "no clientConfig": {"metadata": OURS, "webhooks": [{"name": "x"}]},
    "null for a clientConfig": {"metadata": OURS, "webhooks": [{"name": "x", "clientConfig": None}]},
    "a webhook without a name": {"metadata": OURS, "webhooks": [{"clientConfig": webhook("x")["clientConfig"]}]},
    "a URL that is none": {"metadata": OURS, "webhooks": [webhook("x", url="https://[fe80::1%eth0/")]},
    "a URL that is a number": {"metadata": OURS, "webhooks": [webhook("x", url=7)]},
    "a Service that is a text": {"metadata": OURS, "webhooks": [webhook("x", service="bizrq-webhooks")]},
    "a bundle that is no base64": {
        "metadata": OURS,
        "webhooks": [webhook("x", service={"name": "other", "namespace": "x"}, caBundle="%%%")],
    },
    "labels that are a list": {"metadata": {"labels": ["app.kubernetes.io/name"]}, "webhooks": [webhook("x")]},
    "another owner of our Service's name": {
        "metadata": {"labels": {"app.kubernetes.io/name": "other"}},
        "webhooks": [webhook("x")],
    },
    "no label": {"webhooks": [webhook("x")]},
}


@pytest.mark.parametrize("name", ["a-first", "bizrq-theirs"])
@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
async def test_what_others_registered_is_left_as_it_is_and_stops_nothing(
    server: FakeServer, client: KubeClient, tmp_path: Path, foreign: dict[str, Any], name: str
) -> None:
    """Before ours and after it in the list, under any name."""
    before = server.put(PLURAL, name, "", **foreign)
    registered(server)
    keeper = CertificateKeeper(tmp_path, NAMES, client, namespace="bizrq-system")
    await keeper.run_pass()
    assert bundle_of(server) == read_directory(tmp_path)[CA_BUNDLE]
    assert server.objects(PLURAL)["", name] == before
    assert [r for r in server.requests if r.startswith("PATCH")] == [f"PATCH {REGISTRATIONS.path(name='bizrq')}"]


async def test_a_configuration_that_takes_no_bundle_does_not_keep_it_from_the_others(
    server: FakeServer, client: KubeClient, tmp_path: Path
) -> None:
    """The account of bizrq-certs may write `bizrq` alone, and anybody may set our label."""
    registered(server, "a-first")
    registered(server)
    server.refusals.append((lambda verb: verb.startswith("PATCH") and "a-first" in verb, 403, {}))
    keeper = CertificateKeeper(tmp_path, NAMES, client, namespace="bizrq-system")
    with pytest.raises(Forbidden):
        await keeper.run_pass()
    assert bundle_of(server) == read_directory(tmp_path)[CA_BUNDLE]
    assert bundle_of(server, "a-first") == b""


async def test_a_configuration_that_somebody_else_took_is_not_written(server: FakeServer, client: KubeClient) -> None:
    """The label went between the list and the write."""
    server.put(PLURAL, "bizrq", "", webhooks=[webhook("a")])
    assert await cabundle.inject(client, "bizrq", b"bundle", NAMES) is None
    assert bundle_of(server) == b""
