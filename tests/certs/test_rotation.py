"""Verifiers know the CA of the served certificate at every step and after every crash."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certs import pki, rotation
from certs.rotation import CA_BUNDLE, CA_KEY, CERTIFICATE, KEY, NEXT_CA_KEY, RETIRE, SETTLE, advance
from certs.store import read_directory, write_directory

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = ["bizrq-webhooks.bizrq-system.svc"]
DAY = timedelta(days=1)


def verifies(bundle: bytes, certificate: bytes, at: datetime) -> bool:
    (leaf,) = pki.read_certificates(certificate, "tls.crt")
    return leaf.not_valid_before_utc <= at < leaf.not_valid_after_utc and any(
        pki.signed_by(leaf, ca) and at < ca.not_valid_after_utc for ca in pki.read_certificates(bundle, "bundle")
    )


def test_an_empty_directory_gets_all_files_and_then_nothing_is_due() -> None:
    files = advance({}, NAMES, NOW)
    assert set(files) == {CA_BUNDLE, CA_KEY, CERTIFICATE, KEY}
    assert verifies(files[CA_BUNDLE], files[CERTIFICATE], NOW)
    assert advance(files, NAMES, NOW + timedelta(hours=1)) == files


def test_a_changed_name_gets_a_new_serving_certificate_of_the_same_ca() -> None:
    files = advance({}, NAMES, NOW)
    more = advance(files, [*NAMES, "10.0.0.1"], NOW)
    assert more[CA_BUNDLE] == files[CA_BUNDLE]
    assert more[CERTIFICATE] != files[CERTIFICATE]


def test_a_new_ca_is_announced_then_signs_and_then_the_old_one_is_removed() -> None:
    files = advance({}, NAMES, NOW)
    at = NOW + 250 * DAY
    announcing = advance(advance(files, NAMES, at), NAMES, at)
    assert set(announcing) == {CA_BUNDLE, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY}
    assert len(pki.read_certificates(announcing[CA_BUNDLE], "")) == 2
    assert announcing[CA_KEY] == files[CA_KEY]

    late = at + SETTLE
    assert advance(announcing, NAMES, late, announced=[files[CA_BUNDLE]]) == announcing
    assert advance(announcing, NAMES, late, announced=[b""]) == announcing
    assert advance(announcing, NAMES, at + SETTLE / 2, announced=[announcing[CA_BUNDLE]]) == announcing
    signed = advance(announcing, NAMES, late, announced=[announcing[CA_BUNDLE]])
    assert signed[CA_KEY] == announcing[NEXT_CA_KEY]
    assert NEXT_CA_KEY not in signed
    assert signed[CERTIFICATE] != announcing[CERTIFICATE]
    assert len(pki.read_certificates(signed[CA_BUNDLE], "")) == 2

    alone = advance(signed, NAMES, late + RETIRE)
    assert len(pki.read_certificates(alone[CA_BUNDLE], "")) == 1
    assert alone[CERTIFICATE] == signed[CERTIFICATE]


def test_a_requested_rotation_begins_before_it_is_due() -> None:
    files = advance({}, NAMES, NOW)
    assert NEXT_CA_KEY in advance(files, NAMES, NOW, rotate=True)


def test_a_lost_ca_key_is_replaced_while_served_certificates_stay_trusted() -> None:
    files = advance({}, NAMES, NOW)
    lost = {name: files[name] for name in files if name != CA_KEY}
    after = advance(lost, NAMES, NOW, announced=[files[CA_BUNDLE]])
    assert after[CERTIFICATE] == files[CERTIFICATE]
    assert NEXT_CA_KEY in after
    final = advance(after, NAMES, NOW + SETTLE, announced=[after[CA_BUNDLE]])
    assert CA_KEY in final
    assert verifies(after[CA_BUNDLE], final[CERTIFICATE], NOW)


@pytest.mark.parametrize("broken", [CA_BUNDLE, CA_KEY, CERTIFICATE, KEY])
@pytest.mark.parametrize("content", [b"", b"rubbish", None])
def test_a_broken_file_is_created_again(broken: str, content: bytes | None) -> None:
    files = dict(advance({}, NAMES, NOW))
    del files[broken]
    if content is not None:
        files[broken] = content
    after = advance(files, NAMES, NOW)
    after = advance(after, NAMES, NOW + SETTLE)
    assert set(after) == {CA_BUNDLE, CA_KEY, CERTIFICATE, KEY}
    assert verifies(after[CA_BUNDLE], after[CERTIFICATE], NOW + SETTLE)


def test_expired_files_are_all_created_again() -> None:
    files = advance({}, NAMES, NOW)
    after = advance(files, NAMES, NOW + 1000 * DAY)
    assert verifies(after[CA_BUNDLE], after[CERTIFICATE], NOW + 1000 * DAY)
    assert len(pki.read_certificates(after[CA_BUNDLE], "")) == 1


@settings(max_examples=25)
@given(
    gaps=st.lists(
        st.sampled_from([timedelta(seconds=30), timedelta(minutes=3), timedelta(hours=2), 20 * DAY, 50 * DAY]),
        min_size=5,
        max_size=25,
    ),
    injected=st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_in_every_history_the_announced_bundle_verifies_the_served_certificate(
    gaps: list[timedelta], injected: list[bool]
) -> None:
    """Verifiers have the bundle of this pass, or an older one if the write to them failed."""
    now = NOW
    files = advance({}, NAMES, now)
    announced = files[CA_BUNDLE]
    for gap, told in zip(gaps, injected, strict=False):
        now += gap
        before = files
        files = advance(before, NAMES, now, announced=[announced])
        # Between our write of the files and the announcement, verifiers still have what they had.
        if rotation.read(before, now).signing is not None and now < NOW + 300 * DAY:
            assert verifies(announced, files[CERTIFICATE], now)
        if told:
            announced = files[CA_BUNDLE]


def test_after_a_write_that_is_cut_anywhere_the_next_pass_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import certs.store as store

    real = store._replace
    for cut in range(6):
        directory = tmp_path / str(cut)
        files = advance({}, NAMES, NOW)
        write_directory(directory, files)
        announced, at = files[CA_BUNDLE], NOW
        for step in range(6):
            count = 0

            def dies(path: Path, content: bytes, mode: int, cut: int = cut) -> None:
                nonlocal count
                if count == cut:
                    raise OSError("killed")
                count += 1
                real(path, content, mode)

            monkeypatch.setattr(store, "_replace", dies if step % 2 == 0 else real)
            with contextlib.suppress(OSError):
                before = read_directory(directory)
                after = advance(before, NAMES, at, announced=[announced], rotate=step == 0)
                write_directory(directory, after)
            now_on_disk = read_directory(directory)
            assert verifies(now_on_disk[CA_BUNDLE], now_on_disk[CERTIFICATE], at)
            assert verifies(announced, now_on_disk[CERTIFICATE], at)
            announced = now_on_disk[CA_BUNDLE]
            at += timedelta(minutes=5)
        monkeypatch.setattr(store, "_replace", real)
        for _ in range(3):
            at += 2 * RETIRE
            after = advance(read_directory(directory), NAMES, at, announced=[announced])
            write_directory(directory, after)
            announced = after[CA_BUNDLE]
        assert set(read_directory(directory)) == {CA_BUNDLE, CA_KEY, CERTIFICATE, KEY}


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    write_directory(tmp_path / "certs", advance({}, NAMES, NOW))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
