"""The session in the cookies of a browser."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from bizrq.kube.config import ConfigError
from web.credentials import session
from web.credentials.keys import Keyring
from web.credentials.session import Session, SessionTooLarge


def folder(path: Path, current: bytes, other: bytes | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "current").write_bytes(current)
    (path / "other").unlink(missing_ok=True)
    if other is not None:
        (path / "other").write_bytes(other)
    return path


def cookies(parts: list[str]) -> dict[str, str]:
    return {f"s.{number}": part for number, part in enumerate(parts)}


def random_text(size: int) -> str:
    return urlsafe_b64encode(os.urandom(size)).decode()[:size]


@pytest.mark.parametrize("size", [10, 3000, 9000])
def test_a_session_comes_back_from_its_cookies_however_long_it_is(size):
    keys = Keyring(None)
    known = Session(random_text(size), random_text(200), 1_800_000_000)
    parts = session.sealed(known, keys)
    assert all(len(part) <= session.PART for part in parts)
    assert session.opened(cookies(parts), "s", keys) == known
    assert known.token[:10] not in "".join(parts)


def test_a_part_that_is_missing_changed_or_of_another_key_is_no_session():
    keys = Keyring(None)
    parts = session.sealed(Session(random_text(9000)), keys)
    assert len(parts) == 3
    changed = parts[0][:-1] + ("B" if parts[0].endswith("A") else "A")
    for wrong in (parts[:2], parts[1:], [parts[1], parts[0], parts[2]], [changed, *parts[1:]], []):
        assert session.opened(cookies(wrong), "s", keys) is None
    assert session.opened(cookies(parts), "s", Keyring(None)) is None


def test_a_session_that_no_browser_can_keep_is_refused():
    with pytest.raises(SessionTooLarge, match="cookies hold"):
        session.sealed(Session(random_text(40_000)), Keyring(None))


def test_the_key_changes_without_signing_anybody_out(tmp_path):
    now = 0.0
    one, two = Fernet.generate_key(), Fernet.generate_key()
    ring = Keyring(folder(tmp_path / "keys", one), lambda: now)
    old = session.sealed(Session("token"), ring)
    folder(tmp_path / "keys", one, two)
    now = 20.0
    still = session.sealed(Session("token"), ring)
    folder(tmp_path / "keys", two, one)
    now = 40.0
    new = session.sealed(Session("token"), ring)
    for parts in (old, still, new):
        assert session.opened(cookies(parts), "s", ring) == Session("token")
    folder(tmp_path / "keys", two)
    now = 60.0
    assert session.opened(cookies(old), "s", ring) is None
    assert session.opened(cookies(new), "s", ring) == Session("token")
    (tmp_path / "keys" / "current").write_bytes(b"broken")
    now = 80.0
    assert session.opened(cookies(new), "s", ring) == Session("token")


def test_a_folder_without_a_good_key_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        Keyring(tmp_path)
    with pytest.raises(ConfigError, match="32 random bytes"):
        Keyring(folder(tmp_path / "keys", b"c2hvcnQ="))
