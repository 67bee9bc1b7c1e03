"""Upgrading over a cluster where `quota` was our category: objects stay, and the word means ResourceQuota again."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

import crds
from bizrq.kube.client import KubeClient, NotFound, Resource
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CARD_HOURS, CORRECTIONS, STATEMENTS
from tests.cli.conftest import Bizrq
from tests.docs.test_docs import ROOT
from tests.support.cluster import Real, eventually, served
from tests.support.objects import Object, correction, group
from tests.support.records import GPU, W1, W2, record, spent, statement, stored

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real, pytest.mark.kubectl]

RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
#: The short names that the kinds had together with the category `quota`.
BEFORE = {
    "BizGroupResourceQuota": "bizrq",
    "BizGroupCardHours": "cardhours",
    "BizGroupStatement": "statements",
    "BizGroupCorrection": "corrections",
}
OURS = (GROUPS, CARD_HOURS, STATEMENTS, CORRECTIONS)


@dataclass
class Renamed:
    client: KubeClient
    real: Real
    folder: Path

    async def kubectl(self, *arguments: str, home: str = "") -> tuple[int, str, str]:
        """Exit code, stdout, stderr. kubectl keeps what it knows of kinds at home, by default a new one."""
        environment = {
            "KUBECONFIG": str(self.real.kubeconfig),
            "HOME": str(self.folder / (home or secrets.token_hex(4))),
            "PATH": os.environ["PATH"],
        }
        done = await asyncio.to_thread(
            subprocess.run, ["kubectl", *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    async def named(self, word: str, home: str = "") -> set[str]:
        """What `kubectl get` shows by this word, as kinds and names."""
        code, out, err = await self.kubectl("get", word, "-A", "-o", "name", home=home)
        return set(out.split()) if code == 0 else {err}

    async def stored(self) -> dict[str, Object]:
        found = {}
        for resource in OURS:
            for obj in (await self.client.list(resource))[0]:
                found[f"{resource.plural}/{obj['metadata']['name']}"] = obj
        return found


@pytest_asyncio.fixture(params=["kubectl apply", "bizrq install"], scope="module", loop_scope="module")
async def renamed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Renamed, Callable[[], Awaitable[None]]]]:
    """A cluster with the kinds as they were, with objects of them, and the way to upgrade it."""
    folder = tmp_path_factory.mktemp("renamed")
    real = Real(folder, "resourcequota")
    await asyncio.to_thread(real.start)
    try:
        async with KubeClient.from_kubeconfig(real.kubeconfig) as client:
            found = Renamed(client, real, folder)
            old = folder / "old.yaml"
            old.write_text(yaml.safe_dump_all(_before()))
            code, _, err = await found.kubectl("apply", "-f", str(old))
            assert code == 0, err
            for resource in OURS:
                await served(client, resource)
            for resource, obj in _objects():
                await client.create(resource, obj)
            hours = {"settled": [spent("tfjobs.kubeflow.org/default/train", f"{GPU}=2")]}
            await stored(client, record("nlp", hours), statement("nlp", W1, W2, *hours["settled"]))

            async def upgrade() -> None:
                if request.param == "kubectl apply":
                    code, _, err = await found.kubectl("apply", "-f", str(ROOT / "crds"))
                    assert code == 0, err
                    return
                result = await Bizrq(real.kubeconfig, client)("install", "--no-wait", "--image", "bizrq:1")
                assert result.code == 0, result.err

            yield found, upgrade
    finally:
        await asyncio.to_thread(real.stop)


def _before() -> list[Object]:
    """The CRDs that had the old names; that of payers came later."""
    found = []
    for crd in copy.deepcopy(crds.load()):
        names = crd["spec"]["names"]
        if names["kind"] in BEFORE:
            names["shortNames"], names["categories"] = [BEFORE[names["kind"]]], ["quota"]
            found.append(crd)
    assert len(found) == len(BEFORE)
    return found


def _objects() -> list[tuple[Resource, Object]]:
    native = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "native", "namespace": "default"}}
    return [
        (GROUPS, group("corp", cpu="10", hours="5")),
        (GROUPS, group("nlp", "corp", cpu="4", hours="1")),
        (CORRECTIONS, correction("mended", "nlp", {"requests.nvidia.com/gpu": "1"}, by="admin")),
        (RESOURCE_QUOTAS, {**native, "spec": {"hard": {"pods": "5"}}}),
    ]


async def test_quota_means_resourcequota_again_and_no_object_is_lost(
    renamed: tuple[Renamed, Callable[[], Awaitable[None]]],
) -> None:
    cluster, upgrade = renamed
    before = await cluster.stored()
    assert len(before) == 5
    kinds = {"bizgroupresourcequota.quota.biz.group/corp", "bizgroupresourcequota.quota.biz.group/nlp"}

    async def meant_all() -> bool:
        return kinds < await cluster.named("quota")

    await eventually(meant_all, 60, "this is what was wrong")
    assert kinds < await cluster.named("quota", home="old")

    await upgrade()

    async def means_it() -> bool:
        return await cluster.named("quota") == {"resourcequota/native"}

    await eventually(means_it, 60, "quota means ResourceQuota")
    after = await cluster.stored()
    assert {key: _kept(obj) for key, obj in after.items()} == {key: _kept(obj) for key, obj in before.items()}
    # kubectl reads kinds anew after six hours, or at once when it is asked what there is.
    assert (await cluster.kubectl("api-resources", home="old"))[0] == 0
    assert await cluster.named("quota", home="old") == {"resourcequota/native"}

    code, out, err = await cluster.kubectl("get", "bizrq", "nlp", "-o", "name")
    assert (code, out.strip()) == (0, "bizgroupresourcequota.quota.biz.group/nlp"), err
    for word, name in (("bizhours", "nlp"), ("bizstatements", "nlp.20261108.uid"), ("bizcorrections", "mended")):
        code, out, err = await cluster.kubectl("get", word, name, "-o", "name")
        assert (code, out.strip().endswith(f"/{name}")) == (0, True), err
    for word in ("cardhours", "statements", "corrections"):
        code, _, err = await cluster.kubectl("get", word)
        assert code == 1
        assert "the server doesn't have a resource type" in err
    shown = await cluster.named("bizgroup")
    assert {name.partition("/")[2] for name in shown} == {"corp", "nlp", "nlp.20261108.uid", "mended"}

    code, out, err = await cluster.kubectl("delete", "quota", "--all", "-n", "default")
    assert code == 0, err
    [line] = out.splitlines()
    assert line.startswith('resourcequota "native" deleted')
    with pytest.raises(NotFound):
        await cluster.client.get(RESOURCE_QUOTAS, "native", "default")
    assert set(await cluster.stored()) == set(before)


def _kept(obj: Object) -> Object:
    """What must be as it was: all but the bookkeeping of writers."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}
    return {**obj, "metadata": metadata}
