"""`bizrq correct`: which object it creates, in whose name, and when it creates none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

import crds
from bizrq.kube.client import KubeClient
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from sandbox.server import Sandbox
from tests.cli.conftest import Bizrq
from tests.support.cluster import has_kinds
from tests.support.objects import Object, group
from tests.support.proxy import Proxy
from tests.support.records import GPU

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bizrq(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bizrq]:
    path = tmp_path_factory.mktemp("correct") / "kubeconfig"
    async with (
        Sandbox(controllers=False) as box,
        KubeClient.from_kubeconfig(box.write_kubeconfig(path)) as client,
    ):
        await has_kinds(client, crds.load())
        await client.create(GROUPS, group("nlp", hours="100"))
        yield Bizrq(path, client)


async def specs(bizrq: Bizrq) -> list[Object]:
    return [each["spec"] for each in (await bizrq.client.list(CORRECTIONS))[0]]


async def test_a_correction_has_the_users_name_and_a_reason(bizrq: Bizrq) -> None:
    result = await bizrq("correct", "nlp", f"cash/{GPU}=-12.5", "cpu=+1", "--reason", " the power failed ")
    [spec] = await specs(bizrq)
    by = spec["by"]
    assert spec == {
        "group": "nlp", "hours": {GPU: "-12.5", "requests.cpu": "1"}, "reason": "the power failed", "by": by,
    }  # fmt: skip
    assert by
    name, _, message = result.out.partition(" ")
    assert (result.code, result.err) == (0, "")
    assert name.startswith("bizgroupcorrection.quota.biz.group/nlp-")
    assert message == f"created: nlp {GPU} -12.5, requests.cpu 1, by {by}\n"
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        made = read((await bizrq("correct", "nlp", f"{GPU}=2", "--reason", "x", "-o", form)).out)
        assert (made["kind"], made["spec"]["hours"]) == ("BizGroupCorrection", {GPU: "2"})
    named = (await bizrq("correct", "nlp", f"{GPU}=2", "--reason", "x", "-o", "name")).out
    assert named.startswith("bizgroupcorrection.quota.biz.group/nlp-")


async def test_a_dry_run_creates_nothing(bizrq: Bizrq) -> None:
    before = await specs(bizrq)
    result = await bizrq("correct", "nlp", f"{GPU}=2", "--reason", "x", "--dry-run")
    assert (result.code, "would be created: nlp" in result.out) == (0, True)
    assert await specs(bizrq) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([GPU, "--reason", "x"], f"{GPU}: expected RESOURCE=HOURS, for example requests.nvidia.com/gpu=-12.5"),
        (["requests.nvidia.com/gpux=1", "--reason", "x"], "requests.nvidia.com/gpu"),
        ([f"{GPU}=many", "--reason", "x"], "'many' is not a quantity"),
        ([f"{GPU}=0", "--reason", "x"], "the amount must not be 0"),
        ([f"{GPU}=1", f"cash/{GPU}=2", "--reason", "x"], f"{GPU} is given twice"),
        ([f"{GPU}=1", "--reason", "  "], "--reason: must not be empty"),
        ([f"{GPU}=1"], "missing --reason"),
    ],
)
async def test_an_invalid_correction_is_rejected_before_any_request(
    bizrq: Bizrq, words: list[str], expected: str, nowhere: Path
) -> None:
    result = await bizrq("correct", "nlp", *words, "--kubeconfig", nowhere)
    assert (result.code, result.out) == (2, "")
    assert expected in result.err


async def test_a_user_without_the_right_sees_which_right_is_missing(bizrq: Bizrq, tmp_path: Path) -> None:
    """The text is that of RBAC (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go)."""
    message = f'{CORRECTIONS.key} is forbidden: User "bob" cannot create resource "{CORRECTIONS.plural}"'

    async def before(line: str) -> web.Response | None:
        if not line.startswith(f"POST {CORRECTIONS.path()}"):
            return None
        details = {"group": CORRECTIONS.group, "kind": CORRECTIONS.plural}
        body = {"kind": "Status", "reason": "Forbidden", "message": message, "details": details, "code": 403}
        return web.json_response(body, status=403)

    async with Proxy(bizrq.kubeconfig) as proxy:
        proxy.before.append(before)
        path = proxy.write_kubeconfig(tmp_path / "proxied")
        result = await bizrq("correct", "nlp", f"{GPU}=1", "--reason", "x", "--kubeconfig", path)
    assert (result.code, result.out) == (3, "")
    assert result.err == f"bizrq: {message}: correcting hours requires the verb create on {CORRECTIONS.key}\n"
