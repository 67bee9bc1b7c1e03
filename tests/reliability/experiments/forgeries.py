"""R19: reviews that are not from the API server, where its certificate is asked for. Each is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from cryptography.x509.oid import ExtendedKeyUsageOID

from bizrq.store.groups import GROUPS
from certs.pki import Pair, make_ca
from tests.reliability.stage import Ground, Outcome, ground_on, real_on, under_way
from tests.support import hostile
from tests.support.client_certificates import make_client, presenting
from tests.support.objects import DEPLOYMENTS, deployment, group
from tests.support.serving import Parts
from tests.webhooks.test_app import a_review

#: The common name of the API server's certificate.
NAME = "bizrq-api-server"
#: An answer to a stranger: 401, or the end of the connection where TLS refuses the certificate.
UNANSWERED = "cut"


async def r19(ground: Ground, *, forged: int, honest: int) -> Outcome:
    """Strangers at one webhook, on every path, while the API server asks it too. The group is theirs to fill."""
    authority = make_ca(datetime.now(UTC))
    api_server = make_client(authority, NAME)
    async with _presenting(ground, api_server) as there, there.parts() as parts:
        clients = parts.folder / "clients.crt"
        clients.write_bytes(authority.certificate_pem)
        await parts.webhook_process(flags=("--client-ca", str(clients), "--client-name", NAME))
        # Without a controller nobody but the webhook writes a status: its version shows each write.
        await there.client.create(GROUPS, group("nlp", **hostile.HARD))
        counted = {"status": {"used": dict.fromkeys((await there.client.get(GROUPS, "nlp"))["spec"]["hard"], "0")}}
        await there.client.patch(GROUPS, "nlp", counted, subresource="status")
        try:
            before = await _version(there)
            told = await _forge(parts, authority, forged)
            unchanged = await _version(there) == before
            if there.cluster.is_real:
                await parts.register()
            async with under_way(_forge(parts, authority, forged // 4)) as strangers:
                for number in range(honest):
                    await _ask(there, parts, api_server, number)
                strangers.check()
            entries = (await there.client.get(GROUPS, "nlp"))["status"].get("reservations", [])
        finally:
            if there is ground:
                await there.client.delete(GROUPS, "nlp")
    missed = []
    if wrong := {answer: count for answer, count in told.items() if answer not in ("401", UNANSWERED)}:
        missed.append(f"forged reviews were answered: {wrong}")
    if not unchanged:
        missed.append("a forged review changed the group")
    if len(entries) != honest or any("honest-" not in entry for entry in entries):
        missed.append(f"{len(entries)} entries after {honest} creates: {entries[:3]}")
    by = "through the API server" if there.cluster.is_real else "with its certificate"
    return Outcome(
        f"{told['401']} forged reviews got 401, {told[UNANSWERED]} no connection, on {len(_paths())} paths; "
        f"the group's version stayed; {honest} creates {by} were admitted meanwhile",
        missed,
    )


@contextlib.asynccontextmanager
async def _presenting(ground: Ground, certificate: Pair) -> AsyncIterator[Ground]:
    """A real API server of its own, which presents the certificate to webhooks; the sandbox presents none."""
    if not ground.cluster.is_real:
        yield ground
        return
    folder = ground.folder / ground.name()
    folder.mkdir()
    (folder / "client.crt").write_bytes(certificate.certificate_pem)
    (folder / "client.key").write_bytes(certificate.key_pem)
    user = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
    users = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}
    plugin = {
        "name": "ValidatingAdmissionWebhook",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(folder / "users"),
        },
    }
    admission = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    (folder / "users").write_text(yaml.safe_dump(users))
    (folder / "admission").write_text(yaml.safe_dump(admission))
    flag = f"--admission-control-config-file={folder / 'admission'}"
    async with (
        real_on(folder, apiserver=[flag]) as (_, cluster),
        ground_on(cluster, folder, seed=ground.seed, say=ground.say, clock=ground.clock) as there,
    ):
        yield there


def _strangers(authority: Pair) -> list[Pair | None]:
    """Nobody, others of the right CA, and the right name by what does not give it."""
    return [
        None,
        make_client(authority, "system:node:n1"),
        make_client(authority, NAME, "other"),
        make_client(authority),
        make_client(make_ca(datetime.now(UTC)), NAME),
        make_client(authority, NAME, until=timedelta(minutes=-1)),
        make_client(authority, NAME, usage=ExtendedKeyUsageOID.SERVER_AUTH),
    ]


def _paths() -> set[str]:
    return {path for path, _ in hostile.reviews()}


async def _forge(parts: Parts, authority: Pair, count: int) -> Counter[str]:
    """The answers to so many reviews by strangers, each kind of stranger on each path in turn."""
    trusted, told = Path(parts.folder, "ca.crt").read_bytes(), Counter[str]()
    tls = [presenting(stranger, trusted) for stranger in _strangers(authority)]
    reviews, [port], busy = hostile.reviews(), parts.balancer.backends, asyncio.Semaphore(10)

    async def forge(session: aiohttp.ClientSession, number: int) -> None:
        path, body = reviews[number // len(tls) % len(reviews)]
        async with busy:
            try:
                async with session.post(
                    f"https://127.0.0.1:{port}{path}", json=body, ssl=tls[number % len(tls)]
                ) as answer:
                    told[str(answer.status)] += 1
            except aiohttp.ClientError:
                told[UNANSWERED] += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        await asyncio.gather(*(forge(session, number) for number in range(count)))
    return told


async def _ask(there: Ground, parts: Parts, api_server: Pair, number: int) -> None:
    """A create through the API server; on the sandbox, its review with the API server's certificate."""
    made: dict[str, Any] = deployment(f"honest-{number}", "nlp", 1)
    if there.cluster.is_real:
        await there.client.create(DEPLOYMENTS, made)
        return
    [port] = parts.balancer.backends
    tls, review = presenting(api_server, Path(parts.folder, "ca.crt").read_bytes()), a_review(made)
    review["request"] |= {"uid": f"review-{number}", "name": made["metadata"]["name"]}
    made["metadata"]["uid"] = f"uid-{number}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}/validate/workloads", json=review, ssl=tls) as answer,
    ):
        assert (await answer.json())["response"]["allowed"], await answer.text()


async def _version(ground: Ground) -> str:
    return (await ground.client.get(GROUPS, "nlp"))["metadata"]["resourceVersion"]
