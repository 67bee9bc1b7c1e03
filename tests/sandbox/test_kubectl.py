"""What people type: kubectl against the sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from sandbox.server import Sandbox
from tests.support.sandbox_client import group, group_crd

pytestmark = pytest.mark.kubectl

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: x, resources: {limits: {cpu: "1"}}}
"""


def programs() -> list[str]:
    """The kubectl of PATH, and the oldest of those beside it that the sandbox is for: some packages bring many."""
    found = shutil.which("kubectl")
    if found is None:
        return ["kubectl"]
    beside = {int(path.name.rpartition(".")[2]): str(path) for path in Path(found).resolve().parent.glob("kubectl.1.*")}
    oldest = min((minor for minor in beside if minor >= 28), default=None)
    return [found, *([beside[oldest]] if oldest is not None else [])]


class Kubectl:
    def __init__(self, config: Path, program: str = "kubectl") -> None:
        self._program = program
        self._env = {**os.environ, "KUBECONFIG": str(config), "HOME": str(config.parent)}

    async def __call__(self, line: str, stdin: str | None = None, **env: str) -> tuple[int, str]:
        """The exit code and everything that it said."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *shlex.split(line),
            env={**self._env, **env},
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(120):
            said, _ = await process.communicate(stdin.encode() if stdin is not None else None)
        return process.returncode or 0, said.decode()

    async def ok(self, line: str, stdin: str | None = None, **env: str) -> str:
        code, said = await self(line, stdin, **env)
        assert code == 0, said
        return said


@pytest.fixture
def kubectl(cluster: Sandbox, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster.write_kubeconfig(tmp_path / "kubeconfig"))


async def test_a_deployment_is_applied_scaled_edited_and_deleted(kubectl: Kubectl):
    assert await kubectl.ok("apply -f -", WEB) == "deployment.apps/web created\n"
    assert await kubectl.ok("apply -f -", WEB) == "deployment.apps/web unchanged\n"
    assert "web configured" in await kubectl.ok("apply -f -", WEB.replace('cpu: "1"', 'memory: "1Gi"'))
    limits = await kubectl.ok("get deploy web -o jsonpath={.spec.template.spec.containers[0].resources.limits}")
    assert json.loads(limits) == {"memory": "1Gi"}
    assert "successfully rolled out" in await kubectl.ok("rollout status deploy/web --timeout=60s")
    await kubectl.ok("wait --for=condition=Available deploy/web --timeout=60s")
    await kubectl.ok("scale deploy/web --replicas=3")
    await kubectl.ok("edit deploy/web", KUBE_EDITOR="sed -i 's/replicas: 3/replicas: 4/'")
    await kubectl.ok("label deploy/web tier=front")
    await kubectl.ok("annotate deploy/web note=hello")
    assert "AGE" in await kubectl.ok("get all -o wide")
    assert "4 desired" in await kubectl.ok("describe deploy/web")
    assert "Node:" in await kubectl.ok("describe pods -l app=web")
    await kubectl.ok("delete deploy/web --timeout=60s")
    assert "not found" in (await kubectl("get deploy web"))[1]


async def test_objects_are_made_without_manifests(kubectl: Kubectl):
    await kubectl.ok("create namespace team-a")
    await kubectl.ok("create deployment web --image=nginx --replicas=2 -n team-a")
    await kubectl.ok("create configmap c --from-literal=a=b -n team-a")
    await kubectl.ok("run p --image=x --restart=Never -n team-a")
    assert "1Gi" not in await kubectl.ok("get cm c -o yaml -n team-a")
    await kubectl.ok("""patch deploy web -n team-a -p '{"spec":{"replicas":1}}'""")
    await kubectl.ok("rollout restart deploy/web -n team-a")
    await kubectl.ok("rollout status deploy/web -n team-a --timeout=60s")
    assert (await kubectl.ok("auth can-i create pods")).strip() == "yes"
    await kubectl.ok("delete namespace team-a --timeout=60s")


async def test_custom_resources_are_explained_shown_and_refused(kubectl: Kubectl):
    await kubectl.ok("apply -f -", json.dumps(group_crd()))
    await kubectl.ok("wait --for=condition=Established crd/bizgroupresourcequotas.quota.biz.group --timeout=60s")
    await kubectl.ok("apply -f -", json.dumps(group("nlp", "ai", pods=5)))
    assert (await kubectl.ok("get bizrq")).split() == ["NAME", "PARENT", "nlp", "ai"]
    assert "hard" in await kubectl.ok("explain bizrq.spec")
    assert "bizrq" in await kubectl.ok("api-resources --api-group=quota.biz.group")
    assert "Parent:" in await kubectl.ok("describe bizrq nlp")
    code, said = await kubectl("apply -f -", json.dumps(group("nlp", "other", pods=5)))
    assert (code, "parent is immutable" in said) == (1, True)
    code, said = await kubectl("apply -f -", json.dumps(group("b", pods="-1")))
    assert (code, "every quantity must be >= 0" in said) == (1, True)
    wrong = group("b")
    wrong["spec"]["hurd"] = {}
    code, said = await kubectl("create -f -", json.dumps(wrong))
    assert 'unknown field "spec.hurd"' in said
    await kubectl.ok("delete crd bizgroupresourcequotas.quota.biz.group --timeout=60s")


@pytest.mark.parametrize("program", programs(), ids=lambda path: Path(path).name)
async def test_every_kind_of_patch_every_form_and_what_changes(cluster: Sandbox, tmp_path: Path, program: str):
    kubectl = Kubectl(cluster.write_kubeconfig(tmp_path / "kubeconfig"), program)
    code, said = await kubectl("diff -f -", WEB)
    assert (code, "+  replicas: 2" in said) == (1, True)
    await kubectl.ok("create -f -", WEB)
    assert await kubectl.ok("diff -f -", WEB) == ""
    await kubectl.ok("""patch deploy web -p '{"metadata":{"labels":{"a":"x"}}}'""")
    await kubectl.ok("""patch deploy web --type=merge -p '{"metadata":{"labels":{"b":"y"}}}'""")
    await kubectl.ok("""patch deploy web --type=json -p '[{"op":"replace","path":"/spec/replicas","value":1}]'""")
    assert await kubectl.ok("get deploy -l a=x,b -o name") == "deployment.apps/web\n"
    assert await kubectl.ok("get deploy -l 'a in (z)' -o name") == ""
    assert json.loads(await kubectl.ok("get deploy web -o json"))["spec"]["replicas"] == 1
    assert "replicas: 1" in await kubectl.ok("get deploy web -o yaml")
    assert (await kubectl.ok("get deploy web -o wide")).split()[:2] == ["NAME", "READY"]
    assert await kubectl.ok(
        "get deploy -o custom-columns=N:.metadata.name --no-headers --field-selector metadata.name=web"
    )
    code, said = await kubectl("get deploy web --watch --request-timeout=1s")
    assert "web" in said
    assert "(server dry run)" in await kubectl.ok(
        "apply --dry-run=server -f -", WEB.replace("replicas: 2", "replicas: 1")
    )
    assert "scaled" in await kubectl.ok("scale deploy web --replicas=0")
    assert "deployments.apps" in await kubectl.ok("api-resources --api-group=apps -o name")
    assert "The sandbox does not have the fields of Kubernetes' own" in await kubectl.ok("explain deploy.spec")
    assert (await kubectl.ok("auth can-i create deployments.apps")).strip() == "yes"
    assert "No events" in await kubectl.ok("events")
    assert 'deployment.apps "web" deleted' in await kubectl.ok("delete deploy web --timeout=60s")


async def test_what_is_not_there_is_refused_aloud(kubectl: Kubectl):
    code, said = await kubectl("apply --server-side -f -", WEB)
    assert code == 1
    assert "the sandbox does not have server-side apply" in said
    await kubectl.ok("run p --image=x --restart=Never")
    for line, lacking in (
        ("logs p", "pods/log"),
        ("exec p -- ls", "pods/exec"),
        ("attach p", "pods/attach"),
        ("port-forward p 8080:80", "pods/portforward"),
        ("create token default", "serviceaccounts/token"),
    ):
        code, said = await kubectl(line)
        assert (code, f"the sandbox does not have {lacking}" in said) == (1, True), said
    code, said = await kubectl("top pods")
    assert (code, "Metrics API not available" in said) == (1, True)
    # An older kubectl sends it as JSON, which is understood.
    code, said = await kubectl("create ingress i --rule=a/b=c:80")
    assert code == 0 or "send application/json" in said, said
