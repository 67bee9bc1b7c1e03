"""A process is not ready while the API server would send it reviews that it does not serve."""

from __future__ import annotations

import asyncio

import pytest

from bizrq import registration
from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.kube.admission import REGISTRATIONS
from bizrq.settings import load
from tests.support.cluster import eventually
from tests.support.objects import Object, group
from tests.webhooks.conftest import Api, Hooks
from webhooks.registered_paths import RegisteredPaths

BY_URL = registration.by_url("https://127.0.0.1:1/behind/")


def stored(*paths: str, ours: bool = True, written: str = "") -> Object:
    made = registration.configuration(load(None), BY_URL, namespace="bizrq-system")
    others = [
        {**made["webhooks"][0], "name": f"{n}.example.com", "clientConfig": BY_URL(path)}
        for n, path in enumerate(paths)
    ]
    labels = made["metadata"]["labels"] if ours else {}
    metadata = {"name": registration.NAME, "labels": labels, "annotations": {registration.FORMAT: written}}
    return {**made, "metadata": metadata, "webhooks": [*made["webhooks"], *others]}


async def test_each_path_of_this_version_has_a_handler_and_may_be_registered(hooks: Hooks) -> None:
    served = {str(route.resource.canonical) for route in hooks.webhooks.app().router.routes() if route.resource}
    assert set(registration.PATHS) == {path for path in served if path.startswith("/validate/")}
    assert registration.unserved(stored(), registration.PATHS) == []
    assert [w["name"] for w in registration.unserved(stored("/validate/newer"), registration.PATHS)] == [
        "0.example.com"
    ]


async def test_a_process_waits_until_the_paths_of_another_version_are_gone(api: Api) -> None:
    await api.client.create(REGISTRATIONS, stored("/validate/newer"))
    paths = RegisteredPaths(api.client, registration.PATHS)
    settling = asyncio.create_task(paths.settle())

    async def says() -> bool:
        return "0.example.com" in paths.problem

    await eventually(says, 30, "it waits")
    await api.client.delete(REGISTRATIONS, registration.NAME)
    await api.client.create(REGISTRATIONS, stored())
    await settling
    assert paths.problem == ""


@pytest.mark.parametrize("paths_of_newer", [(), ("/validate/newer",)], ids=["no path", "a path"])
async def test_a_process_waits_until_reservations_of_a_newer_format_are_gone(
    api: Api, paths_of_newer: tuple[str, ...]
) -> None:
    """Until they are no longer written, then until processes have learned of it, then until none is left.

    The leader of its version takes the format back together with the path.
    """
    await api.client.create(REGISTRATIONS, stored(*paths_of_newer, written="v2"))
    entry = "deployments.apps/default/web uid=u until=2026-01-01T00:00:00Z limits.cpu=1"
    now, reservations = 0.0, [f"v1 {entry}", f"v2 {entry}"]

    def groups() -> list[GroupObject]:
        return [wire.from_dict({**group("nlp"), "status": {"reservations": reservations}})]

    paths = RegisteredPaths(api.client, registration.PATHS, groups, clock=lambda: now)
    settling = asyncio.create_task(paths.settle())

    async def says(words: str) -> None:
        async def said() -> bool:
            return words in paths.problem

        await eventually(said, 30, words)

    await says("0.example.com" if paths_of_newer else "reservations are written in format v2, which this version does")
    await api.client.delete(REGISTRATIONS, registration.NAME)
    await api.client.create(REGISTRATIONS, stored(written="v1"))
    await says("processes of a newer version stop")
    now = 10.0
    await says("group nlp has reservations of a newer version")
    reservations.pop()
    await settling
    assert paths.problem == ""


async def test_an_entry_that_somebody_wrote_keeps_nothing_waiting(api: Api) -> None:
    await api.client.create(REGISTRATIONS, stored(written="v1"))
    odd = wire.from_dict({**group("nlp"), "status": {"reservations": ["v2 x"]}})
    paths = RegisteredPaths(api.client, registration.PATHS, lambda: [odd], clock=iter([0.0]).__next__)
    await paths.settle()
    assert paths.problem == ""


async def test_a_process_is_ready_all_the_same_after_two_minutes(api: Api) -> None:
    await api.client.create(REGISTRATIONS, stored("/validate/newer"))
    now = iter((0.0, 119.0, 120.0))
    paths = RegisteredPaths(api.client, registration.PATHS, clock=lambda: next(now))
    await paths.settle()
    assert paths.problem == ""
    assert next(now, None) is None


async def test_what_is_not_registered_or_not_ours_keeps_nothing_waiting(api: Api) -> None:
    for registered in (None, stored(), stored("/validate/newer", ours=False)):
        if registered is not None:
            await api.client.create(REGISTRATIONS, registered)
        paths = RegisteredPaths(api.client, registration.PATHS, clock=iter([0.0]).__next__)
        assert paths.problem
        await paths.settle()
        assert paths.problem == ""
        if registered is not None:
            await api.client.delete(REGISTRATIONS, registration.NAME)
