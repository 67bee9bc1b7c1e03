"""What is stopped before any group is asked: exempt namespaces, uids that are none; and a port that is taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.pki import make_ca, make_serving
from certs.store import write_directory
from tests.support.objects import deployment
from tests.webhooks.conftest import Api, Hooks, changed, message, stored

NOW = datetime.now(UTC)
#: Of a cluster that is never reached.
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.mark.parametrize("namespace", ["kube-system", "bizrq-system"])
async def test_a_label_in_an_exempt_namespace_is_ignored_with_a_warning(api: Api, hooks: Hooks, namespace: str) -> None:
    """No webhook is asked there; one whose registration is older than its configuration is."""
    await api.group("nlp", cpu="1")
    plain = stored(deployment("web", None, 8, namespace=namespace))
    labelled = stored(deployment("web", "nlp", 8, namespace=namespace), version=8)
    for response in (await hooks.create(labelled), await hooks.update(plain, labelled)):
        assert response["allowed"]
        assert response["warnings"] == [
            f"the label biz.group.resource.quota=nlp is ignored: bizrq does not manage namespace {namespace}"
        ]
    assert await api.entries("nlp") == []


async def test_a_namespace_that_is_not_exempt_is_not(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    assert (await hooks.create(deployment("web", "nlp", namespace="kube-system-2")))["allowed"]
    assert len(await api.entries("nlp")) == 1


@pytest.mark.parametrize("uid", ["a b", "a\nb", "u" * 129, "é", "a=b"])
async def test_a_uid_that_could_not_stand_in_an_entry_is_malformed(api: Api, hooks: Hooks, uid: str) -> None:
    """No API server sends such a version; stored, it would make the whole group unreadable."""
    await api.group("nlp", cpu="10")
    response = await hooks.create(changed(deployment("web", "nlp"), lambda o: o["metadata"].update(uid=uid)))
    assert response["status"]["code"] == 422
    assert message(response) == f"Deployment default/web: metadata.uid: {uid[:64]!r} is no uid of an object"
    assert await api.entries("nlp") == []
    assert (await hooks.create(deployment("web", "nlp")))["allowed"]


@pytest.mark.parametrize("taken", ["--port", "--metrics-port"])
def test_a_port_in_use_ends_the_process_with_one_line_that_names_it(tmp_path: Path, taken: str) -> None:
    ca = make_ca(NOW)
    serving = make_serving(ca, ["127.0.0.1"], NOW)
    write_directory(tmp_path, {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    config.chmod(0o600)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        ports = {"--port": "0", "--metrics-port": "0", taken: str(port)}
        done = subprocess.run(
            [
                *(Path(sys.executable).parent / "bizrq-webhooks", "--cert-dir", tmp_path, "--kubeconfig", config),
                *("--host", "127.0.0.1", *(word for pair in ports.items() for word in pair)),
            ],
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("bizrq-webhooks: ")]
    assert f"('127.0.0.1', {port}): address already in use" in line
    assert "Traceback" not in done.stderr
