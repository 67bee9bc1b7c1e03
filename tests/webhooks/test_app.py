"""The webhooks' port: whatever is sent there gets an answer that is no yes, and the port lives on."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from typing import Any

from bizrq.api import review
from tests.support.objects import deployment, group, tfjob
from tests.webhooks.conftest import Api, Hooks

PATHS = ("groups", "workloads", "scale")


def a_review(obj: dict[str, Any], uid: str = "u") -> dict[str, Any]:
    gvk = {"group": "apps", "version": "v1", "kind": obj["kind"]}
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    request = {
        "uid": uid,
        "operation": "CREATE",
        "kind": gvk,
        "resource": resource,
        "namespace": "default",
        "name": "web",
        "object": obj,
        "oldObject": None,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def mangled(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Return the value with a part of it replaced by something unexpected."""
    if depth > 8 or rng.random() < 0.08:
        return rng.choice(
            [None, -1, 1.5, 10**30, "", "x" * 300, "\u0000", [], {}, [[]], True, {"a": None}, "٣", "1e999"]
        )
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: mangled(rng, value[key], depth + 1)}
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [*value[:index], mangled(rng, value[index], depth + 1), *value[index + 1 :]]
    return mangled(rng, value, 9)


async def test_malformed_reviews_by_the_thousand_are_answered_and_the_port_lives_on(api: Api, hooks: Hooks) -> None:
    """3,000 mutations with a fixed seed: each gets 400 or a refusal with a reason, quickly; none 500."""
    await api.group("nlp", cpu="1000000")
    rng = random.Random(20260101)
    originals = [a_review(o) for o in (deployment("web", "nlp", 2), tfjob("t", "nlp", 2), group("g", "nlp", cpu="1"))]
    bodies = []
    for _ in range(3000):
        body = json.dumps(mangled(rng, rng.choice(originals))).encode()
        if rng.random() < 0.3:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + rng.randrange(3) :]
        bodies.append(body)
    slowest = 0.0
    gate = asyncio.Semaphore(20)
    told: dict[int, int] = {}

    async def send(body: bytes) -> None:
        nonlocal slowest
        async with gate:
            began, worked = time.monotonic(), time.thread_time()
            async with hooks.session.post(
                f"/validate/{rng.choice(PATHS)}", data=body, params={"timeout": "1s"}
            ) as answer:
                text = await answer.text()
                told[answer.status] = told.get(answer.status, 0) + 1
                assert answer.status in (200, 400), (answer.status, body)
                if answer.status == 200:
                    response = json.loads(text)["response"]
                    code = 0 if response["allowed"] else response["status"]["code"]
                    assert code in (0, 400, 403, 422, 429), (text, body)
            slowest = max(slowest, time.monotonic() - began, time.thread_time() - worked)

    await asyncio.gather(*map(send, bodies))
    assert min(told.values()) > 100, told
    assert slowest < 3, "seconds of waiting, or of work"
    await hooks.ready()
    assert (await hooks.create(deployment("after", "nlp", 1)))["allowed"]


async def test_no_uid_is_400_and_a_uid_is_answered_under_it(hooks: Hooks) -> None:
    for body, status in ((b"", 400), (b"{}", 400), (b"[]", 400), (b"\xff", 400), (b"{" * 100_000, 400)):
        async with hooks.session.post("/validate/workloads", data=body) as answer:
            assert answer.status == status, body[:20]
    broken = {"request": {"uid": "u7", "operation": "EXPLODE", "kind": {}, "resource": {}}}
    async with hooks.session.post("/validate/workloads", json=broken) as answer:
        assert answer.status == 200
        response = (await answer.json())["response"]
    assert (response["uid"], response["allowed"], response["status"]["code"]) == ("u7", False, 400)


async def test_a_body_over_eight_mebibytes_is_refused_unread_and_one_below_is_decided(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    for size, status in ((review.MAX_BODY + 1, 413), (3 * review.MAX_BODY, 413), (review.MAX_BODY - 100_000, 200)):
        obj = deployment("web", "nlp", 1)
        obj["metadata"]["annotations"] = {"padding": "x" * (size - 2000)}
        body = json.dumps(a_review(obj)).encode()
        body += b" " * (size - len(body))
        async with hooks.session.post("/validate/workloads", data=io.BytesIO(body)) as answer:
            assert answer.status == status, size
            if status == 200:
                assert (await answer.json())["response"]["allowed"]
    await hooks.ready()


async def test_other_paths_and_verbs_are_no_yes(hooks: Hooks) -> None:
    for method, path, status in (
        ("GET", "/validate/workloads", 405),
        ("POST", "/validate/other", 404),
        ("POST", "/", 404),
    ):
        async with hooks.session.request(method, path, data=b"{}") as answer:
            assert answer.status == status
    async with hooks.session.get("/healthz") as answer:
        assert (answer.status, await answer.text()) == (200, "ok")


async def test_a_nonsense_timeout_is_the_usual_ten_seconds(api: Api, hooks: Hooks) -> None:
    await api.group("nlp", cpu="10")
    for text in ("", "soon", "-1s", "1e9s", "999999999999999999999s", "10s; rm", "٣s"):
        assert (await hooks.create(deployment("web", "nlp", 1), timeout=text))["allowed"], text


async def test_draining_says_so_and_answers_what_is_under_way(api: Api, hooks: Hooks) -> None:
    """A request that waits for its group while the process stops is answered, not dropped."""
    from bizrq.store.groups import GROUPS

    await api.client.create(GROUPS, group("slow", cpu="4"))
    under_way = asyncio.create_task(hooks.create(deployment("web", "slow", 1), timeout="8s"))
    await asyncio.sleep(0.3)
    stopping = asyncio.create_task(hooks.webhooks.stop())
    await asyncio.sleep(0)
    assert hooks.webhooks.unready
    await api.count("slow")
    assert (await under_way)["allowed"]
    await stopping
