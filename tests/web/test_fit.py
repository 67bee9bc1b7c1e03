"""The page that answers whether manifests fit: the words of the command, the user's own rights, and no write."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from aiohttp import web

from tests.cli.conftest import Bizrq
from tests.support.objects import DEPLOYMENTS, deployment
from tests.web.conftest import Answer, Browser, Pages, World


@pytest.fixture
async def browser(world: World, pages: Pages) -> Browser:
    await world.group("corp", cpu=100)
    await world.group("ai", "corp", cpu=60, used={"cpu": 30})
    await world.group("nlp", "ai", cpu=10, used={"cpu": 4})
    await world.group("vision", "ai", cpu=20)
    return await pages.signed_in(world.box.token)


async def asked(browser: Browser, text: str, namespace: str = "default") -> Answer:
    await browser.get("/fit")
    return await browser.post("/fit", {"manifests": text, "namespace": namespace})


def manifests(*made: object) -> str:
    return yaml.safe_dump_all(made)


async def test_each_object_has_an_answer_in_words_with_who_has_room(browser: Browser):
    made = manifests(deployment("small", "nlp", 2), deployment("large", "nlp", 9), deployment("lost", "nobody"))
    answer = await asked(browser, made)
    assert answer.status == 200
    assert "1 of 3 fits, 2 do not." in answer.words
    assert "Deployment default/small fits nlp 6" in answer.words
    assert (
        "Deployment default/large does not fit nlp 4 limits.cpu: asks for 9 more, 4 of 10 left: 5 short" in answer.words
    )
    assert "its sibling vision has limits.cpu 20 left" in answer.words
    assert 'Groups with room: <a href="/groups/ai">ai</a>, <a href="/groups/vision">vision</a>' in answer.text
    assert "bizrq set nlp limits." in answer.words
    assert 'or <a href="/groups/nlp/edit">change nlp here</a>' in answer.text
    assert "quota nobody does not exist" in answer.words
    assert "It is charged to nlp." in answer.words


async def test_the_page_says_all_that_the_command_says(world: World, browser: Browser, tmp_path):
    text = manifests(deployment("small", "nlp", 2), deployment("large", "nlp", 9), deployment("free", None))
    words = (await asked(browser, text)).words
    command = Bizrq(world.box.write_kubeconfig(tmp_path / "cli"), world.admin)
    for verb in ("fit", "explain"):
        printed = await command(verb, "-f", "-", "-o", "json", stdin=text)
        for outcome in json.loads(printed.out):
            assert f"{outcome['kind']} {outcome['namespace']}/{outcome['name']}" in words
            for sentence in outcome.get("because", ()):
                assert sentence in words
    lines = (await command("fit", "-f", "-", stdin=text)).out.splitlines()
    said = [line.strip() for line in lines if line.startswith("     ")]
    assert len(said) >= 4
    for line in said:
        assert line in words


async def test_nothing_is_written_and_every_request_has_the_users_own_credentials(world: World, pages: Pages):
    await world.group("corp", cpu=100)
    token = await world.user("ada", "get", "list", "watch")
    browser = await pages.signed_in(token)
    seen: list[tuple[str, str, str, str]] = []

    async def note(request: web.Request) -> None:
        sent = request.headers
        seen.append((request.method, request.path, request.query.get("dryRun", ""), sent.get("Authorization", "")))

    world.box.faults.append(note)
    answer = await asked(browser, manifests(deployment("web", "corp", 3)))
    assert answer.status == 200
    assert seen
    assert {credentials for *_, credentials in seen} == {f"Bearer {token}"}
    for method, path, dry_run, _ in seen:
        assert method == "GET" or dry_run == "All" or "reviews" in path, (method, path)
    items, _ = await world.admin.list(DEPLOYMENTS)
    assert items == []


async def test_what_depends_on_something_unread_is_unknown_and_says_on_what(world: World, pages: Pages):
    await world.group("corp", cpu=100)
    await world.group("secret", cpu=100)
    browser = await pages.signed_in(await world.user("lea", "get", "watch", names=["corp"]))
    answer = await asked(browser, manifests(deployment("web", "secret", 3)))
    assert answer.status == 200
    assert "It is unknown whether it fits." in answer.words
    assert re.search(r"it depends on [^;]*group secret[^;]*, which you may not read", answer.words), answer.words
    assert "100" not in answer.words


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1\nb: 2", "at line 2, column 2"),
        ("kind: Pod", "document 1: not a Kubernetes object: apiVersion is missing"),
        ("", "no objects found"),
        ("- 1", "document 1: not a Kubernetes object"),
        ("&a [*b]", "the alias *b stands for no node before it"),
    ],
)
async def test_what_is_no_manifest_is_said_in_a_line_beside_the_text_as_typed(browser: Browser, text: str, why: str):
    answer = await asked(browser, text)
    assert (answer.status, why in answer.words) == (422, True), answer.words
    assert 'aria-invalid="true"' in answer.text
    assert 'id="manifests-wrong" class="wrong" role="alert">' in answer.text
    assert f">\n{text}</textarea>" in answer.text.replace("&amp;", "&")


async def test_a_wrong_namespace_is_said_beside_its_field(browser: Browser):
    for namespace in ("", "Team A", "a/b", "x" * 64, "a\nb"):
        answer = await asked(browser, manifests(deployment("web", "nlp")), namespace)
        assert (answer.status, "write the name of a namespace" in answer.words) == (422, True)
        assert "name: web" in answer.text


async def test_manifests_beyond_a_mebibyte_are_too_large_and_one_of_it_is_not(browser: Browser):
    fitting = manifests(deployment("web", "nlp", 2))
    padding = 1024 * 1024 - len(fitting) - 3
    answer = await asked(browser, f"{fitting}# {'x' * padding}\n")
    assert (answer.status, "It fits." in answer.words) == (200, True)
    answer = await asked(browser, f"{fitting}# {'x' * padding}xx\n")
    assert (answer.status, "The manifests are larger than 1 MiB" in answer.words) == (413, True)
    answer = await asked(browser, "x" * 3 * 1024 * 1024)
    assert (answer.status, "larger than 1 MiB" in answer.words) == (413, True)


async def test_more_objects_than_a_page_can_try_are_refused_with_their_number(browser: Browser):
    of = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    answer = await asked(browser, json.dumps({"apiVersion": "v1", "kind": "List", "items": [of] * 501}))
    assert (answer.status, "501 objects are too many for a page: send at most 500" in answer.words) == (422, True)


async def test_manifests_without_a_charged_object_are_said_to_be_that(browser: Browser):
    answer = await asked(browser, manifests({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}))
    assert (answer.status, "no object of a charged kind" in answer.words) == (200, True)


async def test_names_of_others_stay_text(browser: Browser):
    hostile = "<script>alert(1)</script>"
    made = {
        **deployment("web", hostile),
        "metadata": {"name": hostile, "labels": deployment("x", hostile)["metadata"]["labels"]},
    }
    answer = await asked(browser, manifests(made))
    assert "<script>alert" not in answer.text


async def test_a_stored_workload_is_explained_with_one_more_replica(world: World, browser: Browser):
    await world.admin.create(DEPLOYMENTS, deployment("chat", "nlp", 4))
    answer = await browser.get("/fit?what=deploy/chat&namespace=default")
    assert answer.status == 200
    assert "It is charged to nlp." in answer.words
    assert "limits.cpu 4 6 10" in answer.words
    assert "One more replica fits, up to 10 replicas." in answer.words


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("what=deployment/absent&namespace=default", 404, "there is no Deployment absent in namespace default"),
        ("what=nothing/web&namespace=default", 404, "nothing is not a counted kind"),
        ("what=web&namespace=default", 422, "write KIND/NAME"),
        ("what=deployment/web&namespace=A", 422, "write the name of a namespace"),
    ],
)
async def test_a_workload_that_cannot_be_explained_is_said_to_be_that(browser: Browser, query, status, why):
    answer = await browser.get(f"/fit?{query}")
    assert (answer.status, why in answer.words) == (status, True), answer.words


async def test_a_workload_that_a_user_may_not_read_is_not_visible(world: World, pages: Pages, browser: Browser):
    await world.admin.create(DEPLOYMENTS, deployment("chat", "nlp", 4))
    reader = await pages.signed_in(await world.user("lea", "get", "list", "watch"))
    answer = await reader.get("/fit?what=deployment/chat&namespace=default")
    assert (answer.status, "not visible to you" in answer.words) == (404, True)
