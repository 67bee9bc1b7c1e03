"""A server serves the newest pair without a restart and without a failed call."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from certs import pki, rotation
from certs.pki import CertificateError
from certs.rotation import CA_BUNDLE, CERTIFICATE, KEY, advance
from certs.store import ServingCertificate, read_directory, write_directory

NAMES = ["127.0.0.1"]


@asynccontextmanager
async def serving(certificate: ServingCertificate) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context).start()
    watch = asyncio.create_task(certificate.watch())
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await runner.cleanup()


async def served_serial(url: str, bundle: bytes) -> int:
    """Return the serial number of the certificate on a new connection, verified by `bundle`."""
    context = ssl.create_default_context(cadata=bundle.decode())
    port = int(url.rsplit(":", 1)[1].strip("/"))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    shown = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    await writer.wait_closed()
    return int(shown["serialNumber"], 16)


async def until_served(url: str, bundle: bytes, serial: int) -> None:
    async with asyncio.timeout(60):
        while await served_serial(url, bundle) != serial:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def serial(files: rotation.Files) -> int:
    return pki.read_certificates(files[CERTIFICATE], "")[0].serial_number


async def test_ca_and_certificate_rotate_under_load_without_a_failed_call(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    files = advance({}, NAMES, now)
    write_directory(tmp_path, files)
    certificate = ServingCertificate(tmp_path, poll=0.01)
    await certificate.wait()
    bundle = files[CA_BUNDLE]
    calls, failures = 0, []
    stop = False

    async def call(url: str) -> None:
        nonlocal calls
        while not stop:
            context = ssl.create_default_context(cadata=bundle.decode())
            try:
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session,
                    session.get(url) as response,
                ):
                    assert await response.text() == "ok"
                    calls += 1
            except aiohttp.ClientError as error:
                failures.append(error)

    async def more(count: int) -> None:
        until = calls + count
        while calls < until and not failures:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async with serving(certificate) as url:
        load = [asyncio.create_task(call(url)) for _ in range(4)]
        seen = {serial(files)}
        files = advance(files, NAMES, now, rotate=True)
        for _ in range(3):
            write_directory(tmp_path, files)
            bundle = files[CA_BUNDLE]
            await until_served(url, bundle, serial(files))
            seen.add(serial(files))
            await more(5)
            now += rotation.RETIRE
            files = advance(files, NAMES, now - timedelta(minutes=1), announced=[bundle])
        stop = True
        await asyncio.gather(*load)
    assert failures == []
    assert calls > 20
    assert len(seen) == 2
    assert len(pki.read_certificates(bundle, "")) == 1


async def test_a_symlink_that_a_kubelet_swaps_is_reloaded(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = advance({}, NAMES, now)
    second = advance({name: first[name] for name in ("ca.crt", "ca.key")}, NAMES, now)
    for name, files in (("..1", first), ("..2", second)):
        write_directory(tmp_path / name, files)
    (tmp_path / "..data").symlink_to("..1")
    for name in (CERTIFICATE, KEY):
        (tmp_path / name).symlink_to(f"..data/{name}")
    certificate = ServingCertificate(tmp_path, poll=0.01)
    await certificate.wait()
    async with serving(certificate) as url:
        assert await served_serial(url, first[CA_BUNDLE]) == serial(first)
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        await until_served(url, first[CA_BUNDLE], serial(second))


async def test_a_mismatched_pair_is_loaded_only_once_it_matches(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = advance({}, NAMES, now)
    second = advance({name: first[name] for name in ("ca.crt", "ca.key")}, NAMES, now)
    write_directory(tmp_path, first)
    certificate = ServingCertificate(tmp_path, poll=0.01)
    await certificate.wait()
    async with serving(certificate) as url:
        for half in (KEY, CERTIFICATE):
            write_directory(tmp_path, {**read_directory(tmp_path), half: second[half]})
            if half == KEY:
                with pytest.raises(CertificateError, match=r"tls.crt and tls.key do not load"):
                    certificate.load()
                await asyncio.sleep(0.05)
                assert await served_serial(url, first[CA_BUNDLE]) == serial(first)
        await until_served(url, first[CA_BUNDLE], serial(second))
        assert certificate.reloads == 2
        (tmp_path / CERTIFICATE).unlink()
        await asyncio.sleep(0.03)
        assert await served_serial(url, first[CA_BUNDLE]) == serial(second)


async def test_the_server_waits_for_a_pair_that_is_still_being_created(tmp_path: Path) -> None:
    certificate = ServingCertificate(tmp_path / "later", poll=0.01)
    with pytest.raises(CertificateError, match="cannot be read"):
        certificate.load()
    waiting = asyncio.create_task(certificate.wait())
    await asyncio.sleep(0.03)
    assert not waiting.done()
    write_directory(tmp_path / "later", advance({}, NAMES, datetime.now(UTC)))
    await asyncio.wait_for(waiting, 60)
    assert certificate.expires_at is not None
    served = REGISTRY.get_sample_value("bizrq_certificate_expiration_timestamp_seconds", {"certificate": "serving"})
    assert served == certificate.expires_at.timestamp()


def test_an_encrypted_key_is_rejected_without_a_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pair = pki.make_ca(datetime.now(UTC))
    (tmp_path / CERTIFICATE).write_bytes(pair.certificate_pem)
    encrypted = pair.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / KEY).write_bytes(encrypted)
    with pytest.raises(CertificateError, match="encrypted"):
        ServingCertificate(tmp_path).load()
