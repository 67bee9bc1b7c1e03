"""What strangers may do to a port: nothing that keeps a request from its answer, and not for long."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from bizrq.listener import EVERYWHERE, Listener, PortBounds, peer_of
from certs.pki import Pair, make_ca, make_serving
from certs.store import ServingCertificate, write_directory
from tests.support.client_certificates import make_client, presenting
from tests.support.cluster import eventually

Sends = list[bytes]
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
HALF = POST + b"X: "
GET = b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"


@dataclass
class Port:
    listener: Listener
    number: int
    #: Handlers of /wait end once it is set.
    go: asyncio.Event
    #: Bodies that arrived at /wait.
    arrived: list[bytes]

    async def open(self, *sends: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        for part in sends:
            writer.write(part)
            await writer.drain()
        return reader, writer

    async def lasts(self, *sends: bytes, tls: ssl.SSLContext | None = None) -> float:
        """Return the seconds until the port closes a connection on which this is sent."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number, ssl=tls)
        for part in sends:
            writer.write(part)
        await _closed(reader)
        writer.close()
        return loop.time() - began

    async def echo(self, body: bytes = b"hello") -> bytes:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self.number}") as session,
            session.post("/echo", data=body) as answer,
        ):
            assert answer.status == 200
            return await answer.read()


async def _closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def _serving(folder: Path, ca: Pair) -> ServingCertificate:
    serving = make_serving(ca, ["localhost"], datetime.now(UTC))
    write_directory(folder, {"tls.crt": serving.certificate_pem, "tls.key": serving.key_pem})
    certificate = ServingCertificate(folder)
    certificate.load()
    return certificate


@asynccontextmanager
async def port(
    bounds: PortBounds | None = None, tls: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[Port]:
    go = asyncio.Event()
    arrived: list[bytes] = []

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await listener.body(request))

    async def hurried(request: web.Request) -> web.Response:
        return web.Response(body=await listener.body(request, 0.3))

    async def wait(request: web.Request) -> web.Response:
        body = await listener.body(request)
        arrived.append(body)
        await go.wait()
        return web.Response(body=body)

    app = web.Application(client_max_size=100_000_000)
    app.router.add_post("/echo", echo)
    app.router.add_post("/wait", wait)
    app.router.add_post("/hurried", hurried)
    listener = Listener(app, bounds)
    number = await listener.start("127.0.0.1", 0, tls)
    try:
        yield Port(listener, number, go, arrived)
    finally:
        go.set()
        await listener.cleanup()


@pytest.mark.parametrize(
    ("sends", "seconds"),
    [
        ([], 25),
        ([b"POST /ec"], 10),
        ([POST], 10),
        ([POST + b"Content-Length: 10\r\n\r\n", b"12345"], 10),
        ([POST + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n12345\r\n"], 10),
        ([POST + b"Content-Length: 99999999\r\n\r\n", b"12345"], 2),
    ],
    ids=["silent", "half a line", "half the headers", "half a body", "half of some chunks", "too much"],
)
async def test_a_request_that_does_not_arrive_is_closed(sends: Sends, seconds: float) -> None:
    async with port() as at:
        assert seconds <= await at.lasts(*sends) < seconds + 2
        assert at.listener.connections == 0


async def test_a_handshake_that_does_not_come_is_closed_and_so_is_silence_after_it(tmp_path: Path) -> None:
    ca = make_ca(datetime.now(UTC))
    certificate = _serving(tmp_path, ca)
    trust = ssl.create_default_context(cadata=ca.certificate_pem.decode())
    trust.check_hostname = False
    async with port(tls=lambda: certificate.context) as at:
        assert 5 <= await at.lasts() < 7
        assert 5 <= await at.lasts(b"\x16\x03\x01") < 7
        assert 10 <= await at.lasts(POST, tls=trust) < 12
        assert await at.lasts(b"no handshake") < 5
        assert at.listener.connections == 0


async def test_a_byte_now_and_then_buys_no_time() -> None:
    async with port() as at:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for head in (POST + b"X: ", POST + b"Content-Length: 1000\r\n\r\n"):
            reader, writer = await at.open(head)
            ended = asyncio.ensure_future(_closed(reader))
            while not ended.done():
                writer.write(b"x")
                await asyncio.wait([ended], timeout=1)
            writer.close()
        assert loop.time() - began < 26


async def test_an_idle_connection_stays_for_longer_than_an_api_server_keeps_it() -> None:
    async with port() as at:
        reader, writer = await at.open(POST + b"Content-Length: 2\r\n\r\nhi")
        assert b"hi" in await reader.readuntil(b"hi")
        began = asyncio.get_running_loop().time()
        await _closed(reader)
        assert 115 < asyncio.get_running_loop().time() - began < 125
        writer.close()


async def test_who_shows_a_certificate_may_send_as_late_as_an_api_server_does(tmp_path: Path) -> None:
    """A client of Go opens spare connections, and sends a request on one whenever it has to: a cut then loses it."""
    ca = make_ca(datetime.now(UTC))
    certificate = _serving(tmp_path, ca)
    certificate.context.verify_mode = ssl.CERT_OPTIONAL
    certificate.context.load_verify_locations(cadata=ca.certificate_pem.decode())
    known, stranger = (presenting(client, ca.certificate_pem) for client in (make_client(ca, "apiserver"), None))
    async with port(tls=lambda: certificate.context) as at:
        assert 25 <= await at.lasts(tls=stranger) < 27
        reader, writer = await asyncio.open_connection("127.0.0.1", at.number, ssl=known)
        await asyncio.sleep(100)
        writer.write(POST + b"Content-Length: 2\r\n\r\nhi")
        assert b"hi" in await reader.readuntil(b"hi")
        writer.close()


async def test_a_connection_that_has_sent_nothing_makes_room_before_one_that_was_answered() -> None:
    async with port(PortBounds(connections=2)) as at:
        kept = await at.open(POST + b"Content-Length: 2\r\n\r\nhi")
        await kept[0].readuntil(b"hi")
        silent = await at.open()
        assert await at.echo() == b"hello"
        assert await _closed(silent[0]) == b""
        kept[1].write(POST + b"Content-Length: 3\r\n\r\nhoi")
        assert b"hoi" in await kept[0].readuntil(b"hoi")
        for _, writer in (silent, kept):
            writer.close()


async def test_a_new_connection_takes_the_place_of_the_one_that_owes_longest() -> None:
    async with port(PortBounds(connections=20)) as at:
        kept = await at.open(POST + b"Content-Length: 2\r\n\r\nhi")
        await kept[0].readuntil(b"hi")
        waiting = await at.open(POST.replace(b"echo", b"wait") + b"Content-Length: 2\r\n\r\nhi")
        await eventually(_is(lambda: len(at.arrived) == 1), 60, "it arrived")
        strangers = [await at.open(POST[: number % len(POST)]) for number in range(100)]
        assert await at.echo() == b"hello"
        assert at.listener.connections <= 20
        kept[1].write(POST + b"Content-Length: 3\r\n\r\nhoi")
        assert b"hoi" in await kept[0].readuntil(b"hoi"), "a connection that owes nothing stays"
        at.go.set()
        assert b"hi" in await waiting[0].readuntil(b"hi"), "a request that arrived is answered"
        for _, writer in (*strangers, kept, waiting):
            writer.close()


async def test_requests_that_arrived_are_not_cut_for_new_ones() -> None:
    async with port(PortBounds(connections=3)) as at:
        wait = POST.replace(b"echo", b"wait") + b"Content-Length: 2\r\n\r\nhi"
        waiting = [await at.open(wait) for _ in range(3)]
        await eventually(_is(lambda: len(at.arrived) == 3), 60, "all arrived")
        late = asyncio.ensure_future(at.echo())
        await asyncio.sleep(5)
        assert not late.done()
        at.go.set()
        assert await late == b"hello"
        for reader, writer in waiting:
            assert b"hi" in await reader.readuntil(b"hi")
            writer.close()


def large(path: str, size: int = 400_000) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()


async def test_large_bodies_wait_for_one_another_and_none_is_cut() -> None:
    """Two of them have room. A small one passes them."""
    async with port(PortBounds(bytes=2_000_000)) as at:
        opened = [await at.open(large("/wait"), b"x" * 400_000) for _ in range(4)]
        await eventually(_is(lambda: len(at.arrived) == 2), 5, "two have arrived")
        await asyncio.sleep(0.3)
        assert len(at.arrived) == 2
        assert await at.echo() == b"hello"
        at.go.set()
        for reader, writer in opened:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        assert len(at.arrived) == 4


async def test_a_large_body_without_room_in_time_is_answered() -> None:
    async with port(PortBounds(bytes=2_000_000)) as at:
        opened = [await at.open(large("/wait"), b"x" * 400_000) for _ in range(2)]
        await eventually(_is(lambda: len(at.arrived) == 2), 5, "two have arrived")
        opened.append(await at.open(large("/hurried"), b"x" * 400_000))
        assert (await opened[-1][0].readline()).startswith(b"HTTP/1.1 503")
        for _, writer in opened:
            writer.close()


async def test_a_large_body_that_stalls_gives_way_to_those_that_wait() -> None:
    async with port(PortBounds(bytes=2_000_000)) as at:
        stalled = [await at.open(large("/echo"), b"x") for _ in range(9)]
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await at.open(large("/echo"), b"x" * 400_000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert loop.time() - began < 3
        for _, each in (*stalled, (reader, writer)):
            each.close()


async def test_stalled_bodies_hold_no_more_than_the_budget() -> None:
    budget = 1_000_000
    cut = _cut("bytes")
    async with port(PortBounds(bytes=budget)) as at:
        head = POST + b"Content-Length: 400000\r\n\r\n"
        held: list[int] = []
        strangers = []
        for _ in range(10):
            strangers.append(await at.open(head, b"x" * 390_000))
            held.append(at.listener.held)
        assert len(await at.echo(b"x" * 500_000)) == 500_000
        assert max(held) <= budget
        assert _cut("bytes") - cut >= 7
        for _, writer in strangers:
            writer.close()
        await eventually(_is(lambda: at.listener.held == 0), 60, "nothing is held")


async def test_a_small_request_stays_though_it_began_before_the_large_ones() -> None:
    async with port(PortBounds(bytes=1_000_000)) as at:
        small = await at.open(POST + b"Content-Length: 3\r\n\r\nho")
        strangers = [await at.open(POST + b"Content-Length: 400000\r\n\r\n", b"x" * 390_000) for _ in range(10)]
        await eventually(_is(lambda: at.listener.connections < 5), 60, "most of the large ones are cut")
        small[1].write(b"i")
        assert b"hoi" in await small[0].readuntil(b"hoi")
        for _, writer in (*strangers, small):
            writer.close()


async def test_no_answer_names_the_server() -> None:
    async with port() as at:
        for sends in (
            POST + b"Content-Length: 2\r\n\r\nhi",
            b"GET /nowhere HTTP/1.1\r\n\r\n",
            b"\x00\x01 broken\r\n\r\n",
        ):
            reader, writer = await at.open(sends)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.")
            assert b"server:" not in head.lower(), head
            assert b"aiohttp" not in head.lower(), head
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b"broken" not in await reader.readexactly(length)
            writer.close()


async def test_a_body_is_not_expanded() -> None:
    async with port() as at, aiohttp.ClientSession(f"http://127.0.0.1:{at.number}") as session:
        body = gzip.compress(b"0" * 10_000_000)
        async with session.post("/echo", data=body, headers={"Content-Encoding": "gzip"}) as answer:
            assert (await answer.read()) == body


async def test_who_sends_the_next_request_before_the_answer_is_cut() -> None:
    async with port() as at:
        wait = POST.replace(b"echo", b"wait") + b"Content-Length: 2\r\n\r\nhi"
        reader, writer = await at.open(wait)
        await eventually(_is(lambda: len(at.arrived) == 1), 60, "it arrived")
        writer.write(wait * 10)
        assert await _closed(reader) == b""
        assert await at.echo() == b"hello"
        writer.close()


@pytest.mark.parametrize(
    "sends",
    [
        [GET + HALF],
        [GET + b"P"],
        [GET + GET + HALF],
        [b"\r\n\r\n" + GET + HALF],
        [GET.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n") + HALF],
        [POST + b"Content-Length: 2\r\n\r\nhi" + HALF],
        [POST + b"Content-Length: 2\r\n\r\n", b"hi" + HALF],
        [POST + b"Content-Length: 400000\r\n\r\n" + b"x" * 400_000 + HALF],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + HALF],
        [POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + GET + HALF],
        [POST.replace(b"echo", b"nowhere") + b"Content-Length: 2\r\n\r\n", b"hi" + GET + HALF],
    ],
    ids=[
        "behind no body",
        "one byte",
        "behind two requests",
        "behind empty lines",
        "behind an upgrade",
        "behind a body",
        "with the body",
        "behind a large body",
        "behind chunks",
        "behind chunks and a request",
        "behind a body that is refused",
    ],
)
async def test_half_a_request_behind_another_does_not_count_as_idle(sends: Sends) -> None:
    async with port() as at:
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await at.open()
        for part in sends:
            writer.write(part)
            await asyncio.sleep(0.1)
        await _closed(reader)
        assert loop.time() - began < 12
        assert at.listener.connections == 0
        writer.close()


async def test_requests_in_pieces_are_answered_on_one_connection() -> None:
    async with port() as at:
        reader, writer = await at.open()
        for body in (b"", b"hi", b"\r\n\r\n"):
            request = POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
            for size in (1, 2, 3, 7, 1000):
                for start in range(0, len(request), size):
                    writer.write(request[start : start + size])
                    await asyncio.sleep(0.01)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), (body, size, head)
                assert await reader.readexactly(len(body)) == body
        writer.close()


async def test_a_port_that_closes_waits_for_no_stranger() -> None:
    loop = asyncio.get_running_loop()
    async with port() as at:
        strangers = [await at.open(POST[:number]) for number in range(10)]
        await eventually(_is(lambda: at.listener.connections == 10), 60, "all are accepted")
        began = loop.time()
        await at.listener.cleanup()
        assert loop.time() - began < 5
        for reader, writer in strangers:
            assert await _closed(reader) == b""
            writer.close()


@pytest.mark.parametrize("ipv6", [True, False], ids=["with IPv6", "without IPv6"])
async def test_a_port_everywhere_serves_ipv4_and_where_there_is_any_ipv6(
    ipv6: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that came by IPv4 has one name, whatever the socket calls it."""
    if ipv6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: ipv6)

    async def who(request: web.Request) -> web.Response:
        return web.Response(text=peer_of(request))

    app = web.Application()
    app.router.add_get("/", who)
    listener = Listener(app)
    number = await listener.start(EVERYWHERE, 0)
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{number}/") as answer:
                assert await answer.text() == "127.0.0.1"
            if ipv6:
                async with session.get(f"http://[::1]:{number}/") as answer:
                    assert await answer.text() == "::1"
            else:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await session.get(f"http://[::1]:{number}/")
        with pytest.raises(OSError, match=f"cannot serve on address .*{number}.*: address already in use"):
            await Listener(web.Application()).start(EVERYWHERE, number)
    finally:
        await listener.cleanup()


def _cut(reason: str) -> float:
    return REGISTRY.get_sample_value("bizrq_connections_cut_total", {"reason": reason}) or 0.0


def _is(holds: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def held() -> bool:
        return holds()

    return held
