"""A process is not ready while the API server would send it reviews that it does not serve."""

from __future__ import annotations

import asyncio

from bizrq import registration
from bizrq.kube.admission import REGISTRATIONS
from bizrq.settings import load
from tests.support.cluster import eventually
from tests.support.objects import Object
from tests.webhooks.conftest import Api, Hooks
from webhooks.registered_paths import RegisteredPaths

BY_URL = registration.by_url("https://127.0.0.1:1/behind/")


def stored(*paths: str, ours: bool = True) -> Object:
    made = registration.configuration(load(None), BY_URL, namespace="bizrq-system")
    others = [
        {**made["webhooks"][0], "name": f"{n}.example.com", "clientConfig": BY_URL(path)}
        for n, path in enumerate(paths)
    ]
    labels = made["metadata"]["labels"] if ours else {}
    return {**made, "metadata": {"name": registration.NAME, "labels": labels}, "webhooks": [*made["webhooks"], *others]}


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
