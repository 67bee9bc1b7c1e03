"""R15: two controllers that both lead. They never differ for long, and neither undoes what the other wrote."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupStatus
from bizrq.quota.allowance import without_lines
from bizrq.store.groups import GROUPS
from bizrq.units.quantity import NANO
from tests.reliability.experiments.steady import LOCALHOST, TEAMS, admin_token, said, works
from tests.reliability.stage import COUNT, REPLICAS, Ground, Outcome, under_way
from tests.support.accounts import give_lease
from tests.support.cluster import _free_ports, eventually
from tests.support.objects import DEPLOYMENTS
from tests.support.oracle import settled

#: By resource.
Amounts = Mapping[str, int]


async def r15(ground: Ground, *, seconds: float, rounds: int, quiet: float, pause: float, people: int) -> Outcome:
    """Load for so long, with so many pauses. In each both have to say what is stored, and to write nothing new.

    Each of the two has a Lease of its own, in a namespace of its own, so that neither waits for the other.
    """
    root = ground.name()
    async with ground.parts() as parts:
        for _ in range(REPLICAS):
            await parts.webhook_process()
        await parts.balance_apart()
        ports = _free_ports(2)
        for number, port in enumerate(ports):
            space = await ground.namespace(f"{root}-lease-{number}")
            await give_lease(ground.client, space)
            await parts.controller_process(flags=("--namespace", space, "--metrics-port", str(port)))
        await parts.register()
        async with ground.recorder(root) as recorder:
            await ground.group(root, cpu="1000")
            teams = [await ground.group(f"{root}-{number}", root, cpu="30", count="40") for number in range(TEAMS)]
            for team in teams:
                await ground.namespace(team)
            answered: Counter[str] = Counter()
            kept = [(team, person, dict[str, int]()) for team in teams for person in range(people)]
            for number in range(rounds):
                over = asyncio.Event()
                load = (
                    works(ground, team, number * people + person, pause, answered, over, left)
                    for team, person, left in kept
                )
                async with under_way(*load) as tasks:
                    await asyncio.sleep(seconds / rounds)
                    over.set()
                    await tasks.ended()
                stored = {team: await _stored(ground, team) for team in teams}
                await _counted(ground, stored)
                for port in ports:
                    await _tells(ground, port, stored)
                groups = await settled(ground.client, [root, *teams], ground.patience)
                written = {name: len(recorder.revisions(name)) for name in groups}
                await asyncio.sleep(quiet)
                await recorder.caught_up()
                for name, before in groups.items():
                    for after in recorder.revisions(name)[written[name] :]:
                        assert _words(after) == _words(before), f"{name} was settled, and is {after.status}"
                ground.say(f"{number + 1} of {rounds}: {said(answered)}")
            wrong = [await _corrected(ground, port) for port in ports]
            for team in teams:
                await ground.clear(team)
                assert await ground.agreed(team) == 0
            revisions = await recorder.laws()
        await ground.clear_groups(root)
    missed = [f"a controller had to correct itself: {each}" for each in wrong if each]
    return Outcome(
        f"two leaders for {seconds / 60:g} minutes and {rounds} pauses of {quiet:g} s; {said(answered)}; in each pause "
        f"both told what was stored, and nothing changed; {revisions} revisions checked",
        missed,
    )


def _words(group: GroupObject) -> tuple[object, ...]:
    """What a status says of amounts and to people, without when it was counted."""
    status = group.status
    conditions = [(each.type, each.status, each.reason, each.message) for each in status.conditions]
    return status.hard, status.used, status.self_used, status.reservations, status.scarcest, status.payers, conditions


async def _stored(ground: Ground, team: str) -> Amounts:
    """What the Deployments of a team's namespace come to; each of their pods has one core."""
    found, _ = await ground.client.list(DEPLOYMENTS, team)
    return {"limits.cpu": sum(obj["spec"]["replicas"] for obj in found), COUNT: len(found)}


async def _counted(ground: Ground, stored: Mapping[str, Amounts]) -> None:
    """Wait until the statuses say this, and nothing is promised."""
    told: dict[str, GroupStatus] = {}

    async def is_counted() -> bool:
        for team, amounts in stored.items():
            found = wire.from_dict(await ground.client.get(GROUPS, team))
            told[team] = found.status
            used = wire.parse_amounts(found, found.status.used)
            wanted = {name: amount * NANO for name, amount in amounts.items()}
            if without_lines(wire.reservations_of(found)) or used != wanted:
                return False
        return True

    await eventually(is_counted, ground.patience, lambda: f"status {told}, stored {stored}")


async def _tells(ground: Ground, port: int, stored: Mapping[str, Amounts]) -> None:
    """Wait until a controller's own figures are these."""
    told: dict[str, dict[str, float]] = {}

    async def agrees() -> bool:
        nonlocal told
        told = {team: {} for team in stored}
        for sample in await _scraped(ground, port):
            if sample.name == "bizrq_group_used" and sample.labels["group"] in stored:
                told[sample.labels["group"]][sample.labels["resource"]] = sample.value
        return told == stored

    await eventually(agrees, 60, lambda: f"told {told}, stored {stored}")


async def _corrected(ground: Ground, port: int) -> dict[str, float]:
    """How often a controller found more stored than was admitted, or its cache wrong, by metric and group."""
    return {
        f"{sample.name} of {sample.labels['group']}": sample.value
        for sample in await _scraped(ground, port)
        if sample.name in ("bizrq_drift_total", "bizrq_usage_cache_corrected_total") and sample.value
    }


async def _scraped(ground: Ground, port: int) -> list[Sample]:
    headers = {"Authorization": f"Bearer {admin_token(ground)}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"http://{LOCALHOST}:{port}/metrics") as answer,
    ):
        text = await answer.text()
    # It is not served before the API server has said whose the token is.
    families = text_string_to_metric_families(text) if answer.status == 200 else ()
    return [sample for family in families for sample in family.samples]
