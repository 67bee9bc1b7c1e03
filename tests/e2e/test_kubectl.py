"""What kubectl shows of it, where kubectl is: refusals, tables, scale, diff, delete."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from bizrq.kube.client import KubeClient
from tests.support.cluster import Cluster, eventually
from tests.support.objects import Object, cronjob, deployment, group
from tests.support.oracle import settled

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("station"),
    pytest.mark.kubectl,
]


class Kubectl:
    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._kubeconfig = kubeconfig
        self._home = home
        # The plugin `kubectl bizrq` is installed beside Python.
        self._path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    async def __call__(self, *arguments: str, stdin: Object | None = None) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"KUBECONFIG": str(self._kubeconfig), "HOME": str(self._home), "PATH": self._path},
        )
        async with asyncio.timeout(120):
            out, err = await process.communicate(yaml.safe_dump(stdin).encode() if stdin else None)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


async def deleted(kubectl: Kubectl, name: str) -> None:
    """Delete a group whose workloads are gone. What they made may go a moment later, and is a leftover until then."""

    async def gone() -> bool:
        code, _, err = await kubectl("delete", "bizrq", name, "--timeout=60s")
        waits = f"group {name} has workloads: replicasets.apps/", f"group {name} is charged for pods: "
        assert code == 0 or any(each in err for each in waits), err
        return code == 0

    await eventually(gone, 60, f"{name} is deleted")


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster.kubeconfig, tmp_path)


async def test_kubectl_applies_scales_lists_and_is_told_why_not(
    kubectl: Kubectl, client: KubeClient, unique: str
) -> None:
    code, out, err = await kubectl("apply", "-f", "-", stdin=group(unique, cpu="10"))
    assert (code, out.strip(), err) == (0, f"bizgroupresourcequota.quota.biz.group/{unique} created", "")
    await settled(client, [unique])
    web = deployment(unique, unique, 4)
    code, out, err = await kubectl("apply", "-f", "-", stdin=web)
    assert (code, out.strip()) == (0, f"deployment.apps/{unique} created"), err
    code, out, err = await kubectl("scale", "deployment", unique, "--replicas=11")
    assert code == 1
    assert "Error from server (Forbidden)" in err
    assert f"exceeded quota: {unique}, requested: limits.cpu=7, used: limits.cpu=4, limited: limits.cpu=10" in err
    assert "fits: 6 more replicas" in err
    code, _, err = await kubectl("scale", "deployment", unique, "--replicas=10")
    assert code == 0, err
    await settled(client, [unique])
    code, out, err = await kubectl("get", "bizrq", unique)
    assert code == 0, err
    header, row = out.splitlines()
    assert header.split() == ["NAME", "PARENT", "READY", "OVER", "SCARCEST", "AGE"]
    assert "limits.cpu 10/10 (100%)" in row
    code, out, err = await kubectl("get", "bizrq", unique, "-o", "json")
    assert json.loads(out)["status"]["used"] == {"limits.cpu": "10"}, err


async def test_the_command_that_ends_a_refusal_explains_it_as_it_stands(
    kubectl: Kubectl, client: KubeClient, unique: str, tmp_path: Path
) -> None:
    asked = group(unique, cpu="4")
    asked["spec"] |= {"owner": "ml-platform", "contact": "#ml-quota"}
    await kubectl("apply", "-f", "-", stdin=asked)
    await settled(client, [unique])
    web = deployment(unique, unique, 5)
    _, _, refused = await kubectl("apply", "-f", "-", stdin=web)
    command = f"bizrq explain -f FILE -n {web['metadata']['namespace']}"
    assert refused.rstrip().endswith(f"; run: kubectl {command}; ask: ml-platform, #ml-quota")
    file = tmp_path / "web.yaml"
    file.write_text(yaml.safe_dump(web))
    code, out, err = await kubectl(*shlex.split(command.replace("FILE", str(file))))
    assert (code, err) == (0, "")
    assert "limits.cpu: asks for 5 more, 4 of 4 left: 1 short" in out

    code, _, err = await kubectl("apply", "-f", "-", stdin=deployment(unique, unique, 4))
    assert code == 0, err
    _, _, refused = await kubectl("scale", "deployment", unique, "--replicas=5")
    command = refused.partition("; run: kubectl ")[2].partition(";")[0]
    assert command == f"bizrq explain deployment/{unique} -n default"
    code, out, err = await kubectl(*shlex.split(command))
    assert (code, err) == (0, "")
    assert "One more replica does not fit:" in out


async def test_a_cron_job_whose_jobs_cannot_run_is_told_before_and_when_it_is_applied(
    kubectl: Kubectl, client: KubeClient, unique: str, tmp_path: Path
) -> None:
    await kubectl("apply", "-f", "-", stdin=group(unique, cpu="10"))
    await settled(client, [unique])
    nightly = cronjob(unique, unique, cpu=50)
    file = tmp_path / "nightly.yaml"
    file.write_text(yaml.safe_dump(nightly))
    code, out, err = await kubectl("bizrq", "fit", "-f", str(file))
    assert (code, err) == (1, ""), out
    assert "limits.cpu: asks for 50 more, 10 of 10 left: 40 short" in out
    code, out, err = await kubectl("apply", "-f", str(file))
    assert (code, out.strip()) == (0, f"cronjob.batch/{unique} created"), err
    assert f"Warning: each Job of CronJob default/{unique} would be refused now: quota {unique} has no room for " in err
    code, out, err = await kubectl("bizrq", "explain", f"cronjob/{unique}")
    assert (code, err) == (0, "")
    assert f"each Job of CronJob default/{unique} would be refused now:" in out
    code, _, err = await kubectl("delete", "cronjob", unique)
    assert code == 0, err


async def test_kubectl_shows_the_warning_of_a_lowered_hard_and_the_refusal_of_a_bad_one(
    kubectl: Kubectl, client: KubeClient, unique: str
) -> None:
    await kubectl("apply", "-f", "-", stdin=group(unique, cpu="10"))
    await settled(client, [unique])
    await kubectl("apply", "-f", "-", stdin=deployment(unique, unique, 8))
    await settled(client, [unique])
    patch = json.dumps({"spec": {"hard": {"limits.cpu": "5"}}})
    code, out, err = await kubectl("patch", "bizrq", unique, "--type=merge", "-p", patch)
    assert (code, out.strip()) == (0, f"bizgroupresourcequota.quota.biz.group/{unique} patched")
    assert "Warning: " in err
    assert "limits.cpu 5 (used 8)" in err
    code, _, err = await kubectl("apply", "-f", "-", stdin=group(f"{unique}-typo", **{"requests.nvidia.com/gpux": "1"}))
    assert code == 1
    assert "did you mean requests.nvidia.com/gpu?" in err
    code, _, err = await kubectl("delete", "bizrq", unique)
    assert code == 1
    assert f"group {unique} has workloads: deployments.apps/default/{unique}; delete them" in err
    code, _, err = await kubectl("delete", "deployment", unique, "--cascade=foreground")
    assert code == 0, err
    await deleted(kubectl, unique)


async def test_a_server_side_dry_run_is_decided_and_charges_nothing(
    kubectl: Kubectl, client: KubeClient, unique: str
) -> None:
    await kubectl("apply", "-f", "-", stdin=group(unique, cpu="10"))
    before = (await settled(client, [unique]))[unique]
    code, out, err = await kubectl("create", "--dry-run=server", "-f", "-", stdin=deployment(unique, unique, 4))
    assert (code, "created (server dry run)" in out) == (0, True), err
    code, _, err = await kubectl("create", "--dry-run=server", "-f", "-", stdin=deployment(unique, unique, 11))
    assert code == 1
    assert "exceeded quota" in err
    assert (await settled(client, [unique]))[unique].status.used == before.status.used


async def test_get_and_describe_tell_of_a_group_without_our_command_line(
    kubectl: Kubectl, client: KubeClient, unique: str
) -> None:
    """Columns, wide ones, selectors, every form of -o; conditions with messages for people, and events."""
    labelled = group(unique, cpu="10", hours="5", gpu="4")
    labelled["metadata"]["labels"] = {"of": unique}
    child = group(f"{unique}-child", unique, cpu="4", hours="1", gpu="0")
    assert (await kubectl("create", "-f", "-", stdin=labelled))[0] == 0
    assert (await kubectl("wait", "--for=condition=Ready", f"bizrq/{unique}", "--timeout=60s"))[0] == 0
    assert (await kubectl("create", "-f", "-", stdin=child))[0] == 0
    await settled(client, [unique, f"{unique}-child"])
    await kubectl("apply", "-f", "-", stdin=deployment(unique, unique, 6))
    await settled(client, [unique])
    patch = json.dumps({"spec": {"hard": {"limits.cpu": "8"}}})
    await kubectl("patch", "bizrq", unique, "--type=merge", "-p", patch)
    # What is used is settled already; that it is over is seen by the next recount.
    assert (await kubectl("wait", "--for=condition=OverQuota", f"bizrq/{unique}", "--timeout=60s"))[0] == 0

    code, out, err = await kubectl("get", "bizgroupresourcequotas", "-l", f"of={unique}", "-o", "wide")
    assert code == 0, err
    header, row = out.splitlines()
    columns = ["NAME", "PARENT", "READY", "OVER", "SCARCEST", "AGE", "HOURS", "CONTACT", "COUNTED"]
    assert header.split() == columns
    assert row.split()[:3] == [unique, "True", "True"]
    assert "limits.cpu 10/8 (125%)" in row
    assert "Left" in row.split()
    assert max(map(len, (header, row))) <= 200
    narrow = (await kubectl("get", "bizrq"))[1].splitlines()
    assert narrow[0].split() == columns[:6]
    assert max(map(len, narrow)) <= 120
    code, out, err = await kubectl("get", "bizrq", unique, f"{unique}-child", "-o", "name")
    kind = "bizgroupresourcequota.quota.biz.group"
    assert out.split() == [f"{kind}/{unique}", f"{kind}/{unique}-child"], err
    code, out, err = await kubectl("get", "bizrq", f"{unique}-child", "-o", "yaml")
    assert yaml.safe_load(out)["spec"]["parentBizGroup"] == unique, err
    code, out, err = await kubectl("get", "bizrq", "-o", "custom-columns=N:.metadata.name,C:.spec.hard.limits\\.cpu")
    assert [f"{unique}-child", "4"] in [line.split() for line in out.splitlines()], err

    async def described() -> bool:
        text = (await kubectl("describe", "bizrq", unique))[1]
        return "over quota: limits.cpu; the condition OverQuota says more" in text.partition("Events:")[2]

    await eventually(described, 60, "the event is told")
    code, out, err = await kubectl("describe", "bizrq", unique)
    for told in ("Hard:", "Self Used:", "limits.cpu:", "Message:", "over quota by limits.cpu=2"):
        assert told in out, out
    assert (await kubectl("label", "bizrq", unique, "tier=front"))[0] == 0
    assert (await kubectl("delete", "deployment", unique, "--cascade=foreground"))[0] == 0
    await settled(client, [unique])
    for name in (f"{unique}-child", unique):
        await deleted(kubectl, name)


async def test_kubectl_knows_the_kind_and_explains_it(kubectl: Kubectl) -> None:
    code, out, err = await kubectl("api-resources", "--api-group=quota.biz.group", "--no-headers")
    group = ["bizgroupresourcequotas", "bizrq", "quota.biz.group/v1alpha1", "false", "BizGroupResourceQuota"]
    assert group in [line.split() for line in out.splitlines()], err
    for field, told in (
        ("bizrq.spec.hard", "The ceilings by resource"),
        ("bizrq.status.selfUsed", "usage of the group's own workloads"),
    ):
        code, out, err = await kubectl("explain", field)
        assert code == 0, err
        assert told in " ".join(out.split())
    code, out, err = await kubectl("get", "quota", "-A")
    assert code == 0, err
