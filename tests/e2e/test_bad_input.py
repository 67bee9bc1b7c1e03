"""Whatever is written, on both kinds of cluster: a clear refusal, nothing charged, nothing that stops working."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from bizrq.kube.client import ApiError, KubeClient
from bizrq.store.groups import GROUPS
from tests.support.cluster import refusal
from tests.support.objects import DEPLOYMENTS, OF_KIND, ROLLOUTS, TFJOBS, Object, deployment, group, rollout, tfjob
from tests.support.oracle import settled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("station")]


@pytest_asyncio.fixture(loop_scope="module")
async def nlp(client: KubeClient, unique: str) -> str:
    """A group with something in it, settled."""
    await client.create(GROUPS, group(unique, cpu="10", gpu="8"))
    await client.create(DEPLOYMENTS, deployment(f"in-{unique}", unique, 3))
    await settled(client, [unique])
    return unique


def charged(group: Object) -> Object:
    """Return what a write that is refused must not change: the controller may still note whom it remembers."""
    noted = ("payers", "payersPages", "countedAt", "lastReconcileTime", "conditions")
    return {"spec": group["spec"], **{key: value for key, value in group["status"].items() if key not in noted}}


def _with(obj: Object, **container: Any) -> Object:
    obj["spec"]["template"]["spec"]["containers"][0].update(container)
    return obj


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g: deployment("bad", g + "-nobody"), "does not exist: create the group, or correct the label"),
        (lambda g: tfjob("bad", g, -5), "replicas: must not be negative"),
        (lambda g: rollout("bad", g, cpu="abc"), "abc"),
        (lambda g: _with(rollout("bad", g), resources={"limits": "foo"}), "limits"),
        (lambda g: rollout("bad", g, cpu="1e3000000"), "cpu"),
        (lambda g: rollout("bad", g, cpu="-1"), "cpu"),
        (lambda g: tfjob("bad", g, 9_000_000_000_000_000_000), "replicas"),
        (lambda g: _with(deployment("bad", g), resources={}), "must specify limits.cpu for: c"),
        (lambda g: deployment("bad", g, 8), "exceeded quota: {group}, requested: limits.cpu=8, used: limits.cpu=3"),
    ],
    ids=["no group", "negative", "abc", "foo", "huge", "minus", "many", "silent", "too much"],
)
async def test_a_bad_workload_is_refused_and_charges_nothing(
    client: KubeClient, nlp: str, make: Callable[[str], Object], words: str
) -> None:
    before = charged(await client.get(GROUPS, nlp))
    obj = make(nlp)
    error = await refusal(client.create(OF_KIND[obj["kind"]], obj))
    assert words.format(group=nlp) in error.message
    assert "denied the request: " in error.message or " is invalid: " in error.message
    assert error.status in (403, 422)
    after = await client.get(GROUPS, nlp)
    assert not after["status"].get("reservations")
    assert charged(after) == before
    await client.create(DEPLOYMENTS, deployment(f"good-{nlp}", nlp, 1))


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({"cpu": "1e3000000"}, "limits.cpu"),
        ({"cpu": "NaN"}, "limits.cpu"),
        ({"cpu": "-1"}, "limits.cpu"),
        ({"cpu": "1_000"}, "limits.cpu"),
        ({"cpu": "１０"}, "limits.cpu"),
        ({"cpu": "9223372036854775808"}, "limits.cpu"),
        ({"cpu": ""}, "limits.cpu"),
        ({"cpu": 1.5}, "hard"),
        ({"cpu": True}, "hard"),
        ({"cpu": "1", "requests.nvidia.com/gpux": "1"}, "requests.nvidia.com/gpu"),
        ({"cpu": "1", "gpus": "1"}, "gpus"),
        ({"cpu": "1", "requests.cpu": "1", "cpu ": "1"}, "hard"),
        ({"requests.cpu": "1", "cpu-": "1"}, "hard"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_a_bad_hard_among_good_ones_is_refused_whole(
    client: KubeClient, nlp: str, hard: dict[str, Any], words: str
) -> None:
    """By CEL and schema or by the webhook, whoever is first; for a root and for a child, and for an edit."""
    before = charged(await client.get(GROUPS, nlp))
    for bad in (group(f"{nlp}-bad", **hard), group(f"{nlp}-bad", nlp, gpu="1", **hard)):
        error = await refusal(client.create(GROUPS, bad))
        assert words in error.message
        assert error.status == 422, error
    edit = {"spec": {"hard": group("x", **hard)["spec"]["hard"]}}
    assert (await refusal(client.patch(GROUPS, nlp, edit))).status == 422
    assert charged(await client.get(GROUPS, nlp)) == before


async def test_a_group_can_have_both_spellings_of_no_name(client: KubeClient, unique: str) -> None:
    both = group(unique)
    both["spec"]["hard"] = {"cpu": "1", "requests.cpu": "1"}
    assert "cpu" in (await refusal(client.create(GROUPS, both))).message


@pytest.mark.parametrize("kind", [DEPLOYMENTS, ROLLOUTS, TFJOBS], ids=lambda kind: kind.plural)
async def test_scrambled_objects_by_the_hundred_are_stored_or_refused_and_never_a_crash(
    client: KubeClient, nlp: str, kind: Any
) -> None:
    """A fixed seed; what gets stored is what the oracle can count, and the group is right afterwards."""
    rng = random.Random(kind.plural)
    odd = [None, -1, 0, 1.5, 10**12, "", "x", [], {}, True, "1e9", "٣"]

    def scramble(value: Any, depth: int = 0) -> Any:
        if depth > 6 or rng.random() < 0.1:
            return rng.choice(odd)
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            return {**value, key: scramble(value[key], depth + 1)}
        if isinstance(value, list) and value:
            return [scramble(value[0], depth + 1), *value[1:]]
        return rng.choice(odd)

    make = {DEPLOYMENTS: deployment, ROLLOUTS: rollout, TFJOBS: tfjob}[kind]
    codes: dict[int, int] = {}
    gate = asyncio.Semaphore(8)

    async def send(number: int) -> None:
        obj = make(f"s{number}-{nlp}", nlp, 1)
        obj["spec"] = scramble(obj["spec"])
        async with gate:
            code, told = await _answer(client.create(kind, obj))
        assert code in (201, 400, 403, 422), told
        codes[code] = codes.get(code, 0) + 1

    await asyncio.gather(*map(send, range(100)))
    assert 0 < codes.get(201, 0) < 100
    [found] = (await settled(client, [nlp], 60)).values()
    used = found.status.used or {}
    assert int(str(used["limits.cpu"])) <= 10, codes


async def _answer(request: Awaitable[object]) -> tuple[int, str]:
    try:
        await request
    except ApiError as error:
        return error.status, str(error)
    return 201, ""
