"""A preview and its application agree: the same verdict in the same words, and the very change that was shown.

The changes are drawn by a seed, and made by the forms of the web UI while three webhooks decide and a controller
counts. Others change nothing meanwhile: what somebody else may do between both is in tests/web/test_edit.py.
"""

from __future__ import annotations

import copy
import html
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import jsonpatch
import pytest
import pytest_asyncio

from bizrq.api import group as wire
from bizrq.builtin import builtin_catalog
from bizrq.kube.client import NotFound
from bizrq.kube.config import from_kubeconfig
from bizrq.settings import settings
from bizrq.store.groups import GROUPS
from bizrq.store.hours import CORRECTIONS
from tests.reliability.stage import Stage
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, Object, deployment, group
from tests.support.records import GPU
from tests.web.conftest import Answer, Browser
from tests.web.test_edit import to_apply
from web.local import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Changes on the sandbox, which is part of `make test`, and on a real API server.
FEW, MANY = 40, 500
NAMES = {"cpu": "limits.cpu", "hours": f"cash/{GPU}"}
CATALOG = builtin_catalog()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(stage: Stage) -> AsyncIterator[Browser]:
    """A browser of the web UI on this machine, with the rights of the cluster's administrator."""
    async with serving(from_kubeconfig(stage.cluster.kubeconfig), settings({})) as address:
        parts = urlsplit(address)
        made = Browser(f"http://{parts.netloc}")
        try:
            assert (await made.get(f"/?{parts.query}")).status == 200
            yield made
        finally:
            await made.session.close()


@dataclass
class Tree:
    """Groups below one root, who changes them, and what became of the changes."""

    stage: Stage
    browser: Browser
    drawn: random.Random
    root: str
    names: list[str] = field(default_factory=list)
    became: Counter[str] = field(default_factory=Counter)

    async def plant(self) -> None:
        """Three levels. Two groups have workloads, so that a ceiling may go below what is used."""
        for name, parent, cpu in (("", "", 100), ("a", "", 50), ("b", "", 30), ("aa", "a", 20), ("ab", "a", 10)):
            below = "" if not name else f"{self.root}{parent}"
            hard = {"cpu": str(cpu), "hours": str(10 * cpu)}
            await self.stage.client.create(GROUPS, group(f"{self.root}{name}", below, **hard))
            self.names.append(f"{self.root}{name}")
        await self.settled()
        for number, name in enumerate((f"{self.root}aa", f"{self.root}b")):
            await self.stage.client.create(DEPLOYMENTS, deployment(f"{self.root}-{number}", name, 6))
        await self.settled()

    async def stored(self, name: str) -> Object | None:
        try:
            return await self.stage.client.get(GROUPS, name)
        except NotFound:
            return None

    async def settled(self) -> None:
        """Wait until every group is counted: what is freed by one change is there for the next one."""

        async def is_settled() -> bool:
            known = {name: wire.from_dict(each) for name in self.names if (each := await self.stored(name))}
            for name, each in known.items():
                status = each.status
                if status.reservations or status.observed_generation != each.metadata.generation:
                    return False
                used, own = (wire.parse_amounts(each, said) for said in (status.used, status.self_used))
                for resource in wire.hard_of(each, CATALOG):
                    held = sum(
                        wire.held_of_parent(child, CATALOG).get(resource, 0)
                        for child in known.values()
                        if child.parent == name
                    )
                    if used.get(resource) != own.get(resource, 0) + held:
                        return False
            corrections, _ = await self.stage.client.list(CORRECTIONS)
            return all(
                (each.get("status") or {}).get("applied") for each in corrections if each["spec"]["group"] in self.names
            )

        await eventually(is_settled, 120, "every group is counted")

    async def change(self, number: int) -> None:
        """Draw a change, preview it, apply it, and compare."""
        kinds = (self._edit, self._create, self._delete, self._correct)
        kind = self.drawn.choices(kinds, weights=(10, 3, 2, 3))[0]
        await kind(number)

    async def _edit(self, number: int) -> None:
        name = self.drawn.choice(self.names)
        path, before = f"/groups/{name}/edit", await self.stored(name)
        assert before is not None
        form = await self.browser.get(path)
        fields = {"base": form.field("base"), "owner": "", "contact": self.drawn.choice(["", "#x", "é <b>"])}
        for resource in before["spec"]["hard"]:
            fields[f"hard:{resource}"] = self._amount(str(before["spec"]["hard"][resource]))
        if self.drawn.random() < 0.1:
            fields |= {"more-name-0": self.drawn.choice(["limits.memory", "pods", "nonsense"]), "more-amount-0": "5"}
        preview, applied = await self._both(path, fields)
        if not _is_accepted(preview) and "Nothing is changed yet" in preview.words:
            self.became["unchanged"] += 1
            return
        after = await self.stored(name)
        assert after is not None
        expected = copy.deepcopy(before)
        if _is_accepted(preview):
            # What an object has at the time is tested by the patch; its status is not.
            patch = [each for each in _patch_of(preview) if each["op"] != "test"]
            expected = jsonpatch.apply_patch({"spec": before["spec"]}, patch)
        assert after["spec"] == expected["spec"], (number, preview.words)
        self._agree("edit", number, preview, applied)

    async def _create(self, number: int) -> None:
        name, parent = f"{self.root}-n{number}", self.drawn.choice(self.names)
        fields = {"name": name, "parent": parent, "owner": "", "contact": "", "hard:limits.cpu": self._whole()}
        if self.drawn.random() < 0.8:
            fields[f"hard:{NAMES['hours']}"] = self._whole()
        preview, applied = await self._both("/new", fields)
        after = await self.stored(name)
        assert (after is not None) is _is_accepted(preview), (number, preview.words)
        if after is not None:
            self.names.append(name)
            hard = {key.removeprefix("hard:"): text for key, text in fields.items() if key.startswith("hard:")}
            assert after["spec"] == {"parentBizGroup": parent, "hard": hard}
        self._agree("create", number, preview, applied)

    async def _delete(self, number: int) -> None:
        name = self.drawn.choice(self.names)
        before = await self.stored(name)
        assert before is not None
        path = f"/groups/{name}/delete"
        preview = await self.browser.get(path)
        await self.browser.get("/new")
        applied = await self.browser.post(path, {"uid": before["metadata"]["uid"]})
        is_accepted = "The API server would delete it" in preview.words
        assert is_accepted is ("The group is deleted" in applied.words), (number, preview.words, applied.words)
        if is_accepted:
            self.names.remove(name)
            await eventually(lambda: self._is_gone(name), 60, f"{name} is gone")
        else:
            assert _refusal(preview) == _refusal(applied), number
        self.became["delete " + ("accepted" if is_accepted else "refused")] += 1

    async def _is_gone(self, name: str) -> bool:
        return await self.stored(name) is None

    async def _correct(self, number: int) -> None:
        name = self.drawn.choice(self.names)
        fields = {f"hours:{GPU}": str(self.drawn.randint(-30, 30)), "reason": self.drawn.choice(["mended", " "])}
        await self.browser.get(f"/hours/{name}/correct")
        before = await self._corrections(name)
        preview, applied = await self._both(f"/hours/{name}/correct", fields)
        after = await self._corrections(name)
        assert len(after) - len(before) == int(_is_accepted(preview)), (number, preview.words)
        self._agree("correction", number, preview, applied)

    async def _corrections(self, name: str) -> list[Object]:
        return [each for each in (await self.stage.client.list(CORRECTIONS))[0] if each["spec"]["group"] == name]

    async def _both(self, path: str, fields: Mapping[str, str]) -> tuple[Answer, Answer]:
        """Preview and apply the same: a preview that is refused offers no form, and then the same fields are sent."""
        preview = await self.browser.post(path, {**fields, "step": "preview"})
        again = to_apply(preview) if _is_accepted(preview) else {**preview.hidden, **fields, "step": "apply"}
        again.pop("form-token", None)
        return preview, await self.browser.post(path, again)

    def _agree(self, what: str, number: int, preview: Answer, applied: Answer) -> None:
        is_accepted = _is_accepted(preview)
        said = (what, number, preview.words, applied.words)
        assert is_accepted is ("done=" in applied.url.path_qs), said
        if not is_accepted:
            assert (preview.status, _refusal(preview)) == (applied.status, _refusal(applied)), said
            assert preview.status >= 400, said
        self.became[f"{what} {'accepted' if is_accepted else 'refused'}"] += 1

    def _amount(self, stored: str) -> str:
        kind = self.drawn.random()
        if kind < 0.4:
            return stored
        if kind < 0.8:
            return f"{self.drawn.choice('+-')}{self.drawn.choice(['1', '500m', '7', '30'])}"
        return "" if kind < 0.85 else self._whole()

    def _whole(self) -> str:
        return self.drawn.choice(["0", "1", "1500m", "4", "12", "60", "x"])


def _is_accepted(preview: Answer) -> bool:
    return 'value="apply"' in preview.text


def _patch_of(preview: Answer) -> list[Object]:
    found = re.search(r"<summary>The JSON Patch that is sent</summary><pre>(.*?)</pre>", preview.text, re.DOTALL)
    assert found, preview.text
    return json.loads(html.unescape(found[1]))


def _refusal(page: Answer) -> list[str]:
    """What the page says is wrong, with the fields that it is said beside."""
    return re.findall(r'<p class="notice bad"[^>]*>(.*?)</p>|<div class="wrong" (.*?)</div>', page.text, re.DOTALL)


async def test_previews_and_their_applications_agree(stage: Stage, browser: Browser) -> None:
    """Prints what became of the changes."""
    tree = Tree(stage, browser, stage.random("previews"), stage.name())
    await tree.plant()
    for number in range(MANY if stage.cluster.is_real else FEW):
        await tree.change(number)
        await tree.settled()
    print(f"\n{sum(tree.became.values())} changes: {dict(sorted(tree.became.items()))}")
    assert sum(amount for what, amount in tree.became.items() if what.endswith("accepted")) >= 10
    assert sum(amount for what, amount in tree.became.items() if what.endswith("refused")) >= 5
