"""R16: the CA hands over to its successor, once on demand and once because its key is lost, under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bizrq.cli.rbac import CERTS
from bizrq.kube.client import ApiError, KubeClient, NotFound, Unreachable
from certs.main import CertificateKeeper
from certs.rotation import CA_BUNDLE, CA_KEY, CERTIFICATE, KEY, RETIRE, SETTLE, Files
from certs.secret import SECRETS, read_secret
from certs.store import write_directory
from tests.reliability.stage import Ground, Outcome, under_way
from tests.support.accounts import SYSTEM, kubeconfig_of
from tests.support.cluster import eventually
from tests.support.objects import DEPLOYMENTS, deployment
from tests.support.serving import Parts

HOST = "127.0.0.1"


@dataclass
class Hall:
    """A Secret that bizrq-certs keeps, and webhooks that get their files from it, each so many seconds late."""

    parts: Parts
    client: KubeClient
    late: Sequence[float]
    #: How far the clock of bizrq-certs is ahead.
    ahead: timedelta = timedelta()
    keeper: CertificateKeeper = field(init=False)

    def __post_init__(self) -> None:
        self.keeper = CertificateKeeper(
            self.parts.folder / "kept", [HOST], self.client, namespace=SYSTEM, secret=CERTS, now=self._now
        )

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def place(self, number: int) -> Path:
        """Return the directory that a webhook reads."""
        return self.parts.folder / f"certificates-{number}"

    async def files(self) -> Files:
        return (await read_secret(self.parts.client, SYSTEM, CERTS)).files

    async def bring(self, number: int, late: float) -> None:
        """Do as a kubelet, until cancelled: put what the Secret says into the directory, late."""
        place, before = self.place(number), await self.files()
        while True:
            await asyncio.sleep(0.2)
            files = await self.files()
            if files[CERTIFICATE] != before[CERTIFICATE]:
                before = files
                await asyncio.sleep(late)
                write_directory(place, _served(files))

    async def until(self, done: Callable[[Files], bool], seconds: float, what: str) -> Files:
        """Let bizrq-certs look once a second until its files are so."""

        async def looked() -> Files | None:
            await self.keeper.run_pass()
            files = await self.files()
            if done(files):
                return files
            await asyncio.sleep(1)
            return None

        found = await eventually(looked, seconds, what)
        assert found is not None
        return found


def _served(files: Files) -> Files:
    return {name: files[name] for name in (CERTIFICATE, KEY)}


async def r16(ground: Ground, *, late: Sequence[float], waits: bool, burst: int, pause: float) -> Outcome:
    """`late` has the seconds after which each webhook gets new files. Without `waits` the clock is set forward."""
    name = ground.name()
    done: Counter[str] = Counter()
    async with ground.parts() as parts:
        account = await kubeconfig_of(parts.client, ground.cluster, CERTS, parts.folder)
        with contextlib.suppress(NotFound):
            await parts.client.delete(SECRETS, CERTS, SYSTEM)
        hall = Hall(parts, await parts.enter(KubeClient.from_kubeconfig(account)), late)
        await hall.keeper.run_pass()
        files = first = await hall.files()
        (parts.folder / "ca.crt").write_bytes(first[CA_BUNDLE])
        for number in range(len(late)):
            write_directory(hall.place(number), _served(first))
            await parts.webhook_process(flags=("--cert-dir", str(hall.place(number))))
        ports = list(parts.balancer.backends)
        await parts.balance_apart()
        controller = await parts.controller_process(flags=("--webhook-url", parts.url, "--namespace", SYSTEM))
        await ground.group(name, count="1000000")
        asking = asyncio.ensure_future(parts.asked())
        while not asking.done():
            await hall.keeper.run_pass()
            await asyncio.sleep(0.2)
        await asking

        async def handed_over(what: str) -> Files:
            """Wait until the next CA signs, all webhooks serve what it signed, and it is asked for some more."""
            nonlocal files
            before = files
            if not waits:
                await hall.keeper.run_pass()
                hall.ahead += SETTLE
            files = await hall.until(lambda now: now[CERTIFICATE] != before[CERTIFICATE], 400, f"{what}: signed")
            ground.say(f"{what}: the next CA signs; {dict(done)}")
            await eventually(lambda: _all_serve(ports, files), max(late) + 60, f"{what}: all serve it")
            await _more(done, 3 * burst)
            ground.say(f"{what}: all webhooks serve it; {dict(done)}")
            return files

        bringing = [hall.bring(number, seconds) for number, seconds in enumerate(late)]
        async with under_way(_calls(ground, name, burst, pause, done), *bringing):
            await _more(done, 3 * burst)
            await hall.keeper.run_pass(rotate=True)
            await handed_over("on demand")
            held = await parts.client.get(SECRETS, CERTS, SYSTEM)
            del held["data"][CA_KEY]
            await parts.client.replace(SECRETS, held)
            lost = files[CA_KEY]
            await handed_over("the key is lost")
            assert files[CA_KEY] != lost
            hall.ahead += RETIRE
            await hall.until(lambda now: now[CA_BUNDLE].count(b"BEGIN") == 1, 60, "one CA is left")
            await _more(done, 3 * burst)
        # It would register the webhooks again.
        await controller.end()
        await ground.client.delete(SECRETS, CERTS, SYSTEM)
        await ground.clear_groups(name)
    failed = {answer: count for answer, count in done.items() if answer != "answered"}
    return Outcome(
        f"{done['answered']} calls answered in bursts of {burst}, {sum(failed.values())} failed; {len(late)} webhooks "
        f"with files {', '.join(f'{seconds:g}' for seconds in late)} s late; two CAs gave way, one as its key was lost",
        [f"calls failed: {failed}"] if failed else [],
    )


async def _calls(ground: Ground, group: str, burst: int, pause: float, done: Counter[str]) -> None:
    """Ask so many at once, more than the API server keeps idle connections: the others are handshakes."""
    for number in itertools.count():

        async def one(caller: int, number: int = number) -> None:
            obj = deployment(f"w{number}-{caller}", group, 0)
            try:
                await ground.people.create(DEPLOYMENTS, obj, dry_run=True)
                done["answered"] += 1
            except (ApiError, Unreachable) as error:
                done[str(error)[:300]] += 1

        await asyncio.gather(*map(one, range(burst)))
        await asyncio.sleep(pause)


async def _more(done: Counter[str], count: int) -> None:
    until = sum(done.values()) + count

    async def are() -> bool:
        return sum(done.values()) >= until

    await eventually(are, 120, "more calls")


async def _all_serve(ports: Sequence[int], files: Files) -> bool:
    """Return whether a handshake with each webhook shows this certificate."""
    trust = ssl.create_default_context(cadata=files[CA_BUNDLE].decode())
    wanted = ssl.PEM_cert_to_DER_cert(files[CERTIFICATE].decode())
    for port in ports:
        try:
            _, writer = await asyncio.open_connection(HOST, port, ssl=trust)
        except ssl.SSLError:
            return False
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        if found != wanted:
            return False
    return True
