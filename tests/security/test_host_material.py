"""What a host keeps: it comes back as it was, and nothing that does not belong together is used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.security.certificate_requests import check_request
from actorgrid.actors.security.certificates import fingerprint
from actorgrid.actors.security.host_material import (
    BUNDLE_FILE,
    HOST_FILE,
    JOINING_FILE,
    HostMaterial,
    ensure_host_key,
    issue_own,
    load_material,
    store_material,
)
from actorgrid.actors.security.keys import key_bytes, new_private_key
from actorgrid.errors import CertificateRefused, KeyExposed, KeyUnusable
from tests.security.rig import CLUSTER, DAY_S, NOW_S, OTHER_CLUSTER, Cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "security"


def loaded(folder: Path, now_s: float = NOW_S) -> HostMaterial:
    material = load_material(folder, now_s)
    assert material is not None
    return material


def test_what_was_stored_comes_back(folder: Path) -> None:
    cluster = Cluster()
    cluster.rotate()
    host = cluster.host("host-a", ("10.0.0.1",))
    assert load_material(folder, NOW_S) is None
    store_material(folder, host)
    back = loaded(folder)
    assert key_bytes(back.key) == key_bytes(host.key)
    assert (back.certificate, back.bundle, back.identity) == (host.certificate, host.bundle, host.identity)
    assert [path.stat().st_mode & 0o777 for path in sorted(folder.iterdir())] == [0o600, 0o600]


def test_the_key_is_not_printed() -> None:
    host = Cluster().host("host-a")
    assert repr(host) == f"HostMaterial('{CLUSTER}', 'host-a', bundle version 1)"


def test_an_exposed_file_is_not_used(folder: Path) -> None:
    store_material(folder, Cluster().host("host-a"))
    (folder / HOST_FILE).chmod(0o644)
    with pytest.raises(KeyExposed):
        load_material(folder, NOW_S)


def test_an_expired_certificate_says_what_to_do(folder: Path) -> None:
    store_material(folder, Cluster().host("host-a"))
    with pytest.raises(CertificateRefused, match="expired") as refused:
        load_material(folder, NOW_S + 91 * DAY_S)
    assert "new token" in refused.value.hint


def test_files_that_do_not_belong_together_are_refused(folder: Path) -> None:
    host = Cluster().host("host-a")
    store_material(folder, replace(host, key=new_private_key()))
    with pytest.raises(KeyUnusable, match="not that of its certificate"):
        load_material(folder, NOW_S)
    store_material(folder, replace(host, bundle=Cluster(OTHER_CLUSTER).bundle))
    with pytest.raises(KeyUnusable, match="not of one cluster"):
        load_material(folder, NOW_S)
    store_material(folder, replace(host, bundle=Cluster().bundle))
    with pytest.raises(CertificateRefused, match="no authority of this cluster"):
        load_material(folder, NOW_S)


def test_a_missing_bundle_is_named(folder: Path) -> None:
    store_material(folder, Cluster().host("host-a"))
    (folder / BUNDLE_FILE).unlink()
    with pytest.raises(KeyUnusable, match="missing"):
        load_material(folder, NOW_S)


def test_a_crash_between_bundle_and_certificate_of_a_first_join_leaves_a_host_of_no_cluster(folder: Path) -> None:
    store_material(folder, Cluster().host("host-a"))
    (folder / HOST_FILE).unlink()
    assert load_material(folder, NOW_S) is None


HOST = Cluster().host("host-a")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.sampled_from([HOST_FILE, BUNDLE_FILE]), st.integers(0, 900), st.binary(max_size=3), st.booleans())
def test_damaged_files_are_refused_by_name_or_mean_the_same(
    folder: Path, name: str, at: int, put: bytes, cut: bool
) -> None:
    store_material(folder, HOST)
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[:at] + put + (b"" if cut else data[at + len(put) :]))
    try:
        back = loaded(folder)
    except (KeyUnusable, CertificateRefused):
        return
    assert back.identity == HOST.identity and back.bundle.certificates == HOST.bundle.certificates


def test_renewal_is_due_at_two_thirds_of_the_life() -> None:
    host = Cluster().host("host-a")
    assert not host.renewal_due(NOW_S + 59 * DAY_S)
    assert host.renewal_due(NOW_S + 61 * DAY_S)


def test_a_renewal_keeps_the_key_or_takes_a_new_one() -> None:
    cluster = Cluster()
    host = cluster.host("host-a")
    later = NOW_S + 60 * DAY_S
    request = check_request(host.renewal_request(("10.0.0.1",)), CLUSTER, "host-a", ("10.0.0.1",))
    renewed = host.renewed(cluster.authority.issue(request, later, 9), later)
    assert renewed.identity.fingerprint == host.identity.fingerprint
    assert renewed.identity.valid_until_s > host.identity.valid_until_s

    key = new_private_key()
    request = check_request(host.renewal_request((), key), CLUSTER, "host-a", ())
    rekeyed = host.renewed(cluster.authority.issue(request, later, 10), later, key)
    assert rekeyed.identity.fingerprint == fingerprint(key) != host.identity.fingerprint


def test_a_renewal_for_another_host_or_key_is_refused() -> None:
    cluster = Cluster()
    host = cluster.host("host-a")
    with pytest.raises(KeyUnusable):
        host.renewed(cluster.certificate("host-a"), NOW_S)
    with pytest.raises(CertificateRefused, match="another host's"):
        host.renewed(cluster.certificate("host-b", host.key), NOW_S)


def test_the_key_to_join_with_is_kept_until_its_certificate_is_stored(folder: Path) -> None:
    key = ensure_host_key(folder)
    assert key_bytes(ensure_host_key(folder)) == key_bytes(key)
    cluster = Cluster()
    store_material(folder, HostMaterial(key, cluster.certificate("host-a", key), cluster.bundle))
    assert not (folder / JOINING_FILE).exists()


def test_a_host_joins_again_with_the_key_it_is_known_by_unless_it_is_to_have_another(folder: Path) -> None:
    host = Cluster().host("host-a")
    store_material(folder, host)
    assert key_bytes(ensure_host_key(folder)) == key_bytes(host.key)
    new = ensure_host_key(folder, anew=True)
    assert key_bytes(new) != key_bytes(host.key)
    assert key_bytes(ensure_host_key(folder)) == key_bytes(new)


def test_the_first_host_of_a_cluster_issues_its_own_certificate(folder: Path) -> None:
    cluster = Cluster()
    key = ensure_host_key(folder)
    first = issue_own(cluster.authority, cluster.bundle, key, "host-a", ("10.0.0.1",), NOW_S, 3)
    store_material(folder, first)
    assert loaded(folder).identity == first.identity


def test_a_voter_that_slept_past_its_certificate_issues_itself_another(folder: Path) -> None:
    cluster = Cluster()
    store_material(folder, cluster.host("host-a"))
    late = NOW_S + 200 * DAY_S
    old = load_material(folder, late, expired_too=True)
    assert old is not None
    new = issue_own(cluster.authority, old.bundle, old.key, old.identity.host_id, (), late, 4)
    assert new.check(late).fingerprint == old.identity.fingerprint


def test_the_bundle_on_disk_is_plain_json_that_an_operator_can_read(folder: Path) -> None:
    store_material(folder, HOST)
    plain = json.loads((folder / BUNDLE_FILE).read_text())
    assert plain["cluster_id"] == CLUSTER and plain["authorities"][0]["state"] == "signing"
