"""Keys at rest and on their way: for their owner alone, whole or not at all, for one purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.files.private_files import read_private, write_private
from actorgrid.actors.security.keys import (
    authority_file,
    ensure_wrap_key,
    forget_authority,
    key_bytes,
    load_authority,
    read_key,
    seal_authority,
    store_authority,
    unseal_authority,
)
from actorgrid.actors.security.sealing import seal, unseal, unwrap, wrap
from actorgrid.errors import CertificateRefused, DataDirUnusable, KeyExposed, KeyUnusable, WrongState
from tests.security.rig import CLUSTER, Cluster, new_authority


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "security"


def test_the_authoritys_key_comes_back_from_disk_and_is_not_there_in_the_clear(folder: Path) -> None:
    cluster = Cluster()
    wrap_key = ensure_wrap_key(folder / "wrap.key")
    store_authority(folder, cluster.authority, wrap_key)
    back = load_authority(folder, cluster.bundle, 1, wrap_key)
    assert back is not None and key_bytes(back.key) == key_bytes(cluster.authority.key)
    stored = authority_file(folder, 1)
    scalar = cluster.authority.key.private_numbers().private_value.to_bytes(32, "big")
    assert scalar in key_bytes(cluster.authority.key) and scalar not in stored.read_bytes()
    assert [path.stat().st_mode & 0o777 for path in (folder, stored, folder / "wrap.key")] == [0o700, 0o600, 0o600]
    assert ensure_wrap_key(folder / "wrap.key") == wrap_key


def test_a_host_that_is_no_voter_has_no_authority(folder: Path) -> None:
    cluster = Cluster()
    wrap_key = ensure_wrap_key(folder / "wrap.key")
    assert load_authority(folder, cluster.bundle, 1, wrap_key) is None
    store_authority(folder, cluster.authority, wrap_key)
    forget_authority(folder, 1)
    forget_authority(folder, 1)
    assert load_authority(folder, cluster.bundle, 1, wrap_key) is None
    with pytest.raises(WrongState):
        load_authority(folder, cluster.bundle, 2, wrap_key)


def test_another_wrapping_key_another_cluster_or_a_changed_byte_opens_nothing(folder: Path) -> None:
    cluster = Cluster()
    wrap_key = ensure_wrap_key(folder / "wrap.key")
    store_authority(folder, cluster.authority, wrap_key)
    with pytest.raises(KeyUnusable, match="does not give"):
        load_authority(folder, cluster.bundle, 1, os.urandom(32))
    with pytest.raises(KeyUnusable, match="does not give"):
        load_authority(folder, Cluster().bundle, 1, wrap_key)
    path = authority_file(folder, 1)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(KeyUnusable, match="damaged"):
        load_authority(folder, cluster.bundle, 1, wrap_key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_not_used(folder: Path, mode: int) -> None:
    path = folder / "wrap.key"
    ensure_wrap_key(path)
    path.chmod(mode)
    with pytest.raises(KeyExposed, match="others have access") as refused:
        ensure_wrap_key(path)
    assert f"chmod 0600 {path}" in refused.value.hint
    path.chmod(0o600)
    ensure_wrap_key(path)


def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    path = folder / "wrap.key"
    ensure_wrap_key(path)
    folder.chmod(0o755)
    with pytest.raises(KeyExposed, match="folder"):
        ensure_wrap_key(path)
    with pytest.raises(KeyExposed, match="folder"):
        write_private(path, b"x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_owner_is_not_used(folder: Path) -> None:
    path = folder / "wrap.key"
    ensure_wrap_key(path)
    os.chown(path, 12345, -1)
    with pytest.raises(KeyExposed, match="uid 12345"):
        ensure_wrap_key(path)


def test_links_pipes_and_huge_files_are_not_read_as_keys(folder: Path, tmp_path: Path) -> None:
    ensure_wrap_key(folder / "wrap.key")
    (folder / "link").symlink_to(folder / "wrap.key")
    os.mkfifo(folder / "pipe", 0o600)
    write_private(folder / "huge", bytes(300_000))
    for name in ("link", "pipe", "huge"):
        with pytest.raises(KeyUnusable):
            read_private(folder / name)
    with pytest.raises(FileNotFoundError):
        read_private(folder / "none")


def test_what_is_no_wrapping_key_is_refused_and_nothing_is_made_in_its_place(folder: Path) -> None:
    write_private(folder / "wrap.key", b"short")
    with pytest.raises(KeyUnusable, match="not a wrapping key"):
        ensure_wrap_key(folder / "wrap.key")
    assert (folder / "wrap.key").read_bytes() == b"short"


def test_a_write_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirUnusable):
        write_private(tmp_path / "file" / "key", b"x")


def test_a_new_voter_opens_what_was_sealed_for_it_and_nobody_else_does() -> None:
    cluster = Cluster()
    voter, other = cluster.host("host-b"), cluster.host("host-c")
    sealed = seal_authority(cluster.authority, voter.certificate)
    back = unseal_authority(voter.key, sealed, cluster.bundle, 1)
    assert key_bytes(back.key) == key_bytes(cluster.authority.key)
    with pytest.raises(KeyUnusable, match="does not open"):
        unseal_authority(other.key, sealed, cluster.bundle, 1)


def test_a_sealed_key_that_is_not_the_trusted_authoritys_is_refused() -> None:
    cluster = Cluster()
    voter = cluster.host("host-b")
    sealed = seal_authority(new_authority(CLUSTER), voter.certificate)
    with pytest.raises(CertificateRefused, match="not that of the authority"):
        unseal_authority(voter.key, sealed, cluster.bundle, 1)


def test_what_was_closed_for_one_purpose_opens_for_no_other() -> None:
    voter = Cluster().host("host-b")
    sealed = seal(voter.certificate, b"secret", "one")
    assert unseal(voter.key, sealed, "one") == b"secret"
    with pytest.raises(KeyUnusable):
        unseal(voter.key, sealed, "two")
    wrapped = wrap(bytes(32), bytes(12), b"secret", "one")
    assert unwrap(bytes(32), wrapped, "one") == b"secret"
    with pytest.raises(KeyUnusable):
        unwrap(bytes(32), wrapped, "two")


VOTER = Cluster().host("host-b")
SEALED = seal(VOTER.certificate, b"secret", "one")


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_a_sealed_secret_with_any_byte_changed_does_not_open(at: int, flip: int) -> None:
    changed = bytearray(SEALED)
    changed[at] ^= flip
    with pytest.raises(KeyUnusable):
        unseal(VOTER.key, bytes(changed), "one")


@given(st.binary(max_size=200))
def test_bytes_that_were_never_sealed_or_wrapped_do_not_open(data: bytes) -> None:
    with pytest.raises(KeyUnusable):
        unseal(VOTER.key, data, "one")
    with pytest.raises(KeyUnusable):
        unwrap(bytes(32), data, "one")
    with pytest.raises(KeyUnusable):
        read_key(data)


SEALED_BY_0_1 = bytes.fromhex(
    "04321bf673163c2f3790c843b6d7551d8ede1d23416c24c940da0dae479f9472bcec6cc918174e59e442eaa9"
    "dd721cdd3f3118c9ed8172fe1273d19cbe1b812c6c863270832e1eaf6b25686d05dfa6fcf6c7007186c103"
)
READER_OF_0_1 = ec.derive_private_key(
    66614995220559890206543600985895294721319907190388693047580805611098686468397, ec.SECP256R1()
)


def test_what_version_0_1_sealed_still_opens_and_only_as_it_was_sealed() -> None:
    assert unseal(READER_OF_0_1, SEALED_BY_0_1, "one") == b"secret"
    for key, sealed, purpose in (
        (VOTER.key, SEALED_BY_0_1, "one"),
        (READER_OF_0_1, SEALED_BY_0_1, "two"),
        (READER_OF_0_1, SEALED_BY_0_1[:-1] + bytes([SEALED_BY_0_1[-1] ^ 1]), "one"),
    ):
        with pytest.raises(KeyUnusable, match="does not open"):
            unseal(key, sealed, purpose)


def test_what_is_sealed_is_hpke_of_the_rfc_and_opens_without_our_code() -> None:
    suite = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    assert suite.decrypt(SEALED, VOTER.key, info=b"actorgrid seal 2\0one") == b"secret"


def test_two_seals_of_one_secret_have_nothing_in_common() -> None:
    once, twice = (seal(VOTER.certificate, b"secret", "one") for _ in range(2))
    assert once[:65] != twice[:65] and once[65:] != twice[65:]


def test_a_key_on_another_curve_is_refused() -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(KeyUnusable, match="another kind"):
        read_key(other.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
