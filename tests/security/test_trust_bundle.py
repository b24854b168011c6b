"""Rotation of the authority: one step at a time, nobody cut off, no stranger let in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.trust_bundle import TrustBundle, first_bundle, read_bundle
from actorgrid.errors import ActorGridError, CertificateRefused, KeyUnusable, WrongCluster, WrongState
from tests.security.rig import CLUSTER, NOW_S, OTHER_CLUSTER, Cluster, new_authority


def states(bundle: TrustBundle) -> list[tuple[int, str]]:
    return [(each.generation, each.state) for each in bundle.authorities]


def test_a_rotation_goes_by_introduce_switch_and_retire() -> None:
    cluster = Cluster()
    assert (states(cluster.bundle), cluster.bundle.version) == ([(1, "signing")], 1)
    cluster.introduce()
    assert (states(cluster.bundle), cluster.bundle.version) == ([(1, "signing"), (2, "waiting")], 2)
    switched = cluster.bundle.switch()
    assert (states(switched), switched.version) == ([(1, "accepted"), (2, "signing")], 3)
    retired = switched.retire(1)
    assert (states(retired), retired.version) == ([(2, "signing")], 4)


def test_each_step_waits_for_every_host() -> None:
    cluster = Cluster()
    cluster.introduce()
    with pytest.raises(WrongState, match="not every host is ready") as refused:
        cluster.bundle.switch(not_ready=[f"host-{number}" for number in range(9)])
    assert refused.value.found == "9: host-0, host-1, host-2, host-3, host-4, ..."
    switched = cluster.bundle.switch()
    with pytest.raises(WrongState, match="still carry"):
        switched.retire(1, carriers=["host-a"])


def test_no_step_out_of_turn() -> None:
    cluster = Cluster()
    with pytest.raises(WrongState, match="no authority waits"):
        cluster.bundle.switch()
    with pytest.raises(WrongState, match="cannot be retired"):
        cluster.bundle.retire(1)
    with pytest.raises(WrongState, match="no authority of that generation"):
        cluster.bundle.retire(7)
    cluster.introduce()
    with pytest.raises(WrongState, match="under way"):
        cluster.introduce()


def test_a_rotation_can_be_called_off_before_the_switch() -> None:
    cluster = Cluster()
    cluster.introduce()
    called_off = cluster.bundle.retire(2)
    assert (states(called_off), called_off.version) == ([(1, "signing")], 3)


def test_an_authority_that_the_old_one_did_not_endorse_is_not_introduced() -> None:
    cluster = Cluster()
    stranger, other = new_authority(generation=2), new_authority(generation=2)
    word = cluster.authority.endorse(stranger.certificate)
    back = stranger.endorse(cluster.authority.certificate)
    # A signature over the certificate as it is, as one for another purpose might be.
    bare = cluster.authority.key.sign(stranger.certificate.public_bytes(Encoding.DER), ec.ECDSA(hashes.SHA256()))
    for by_signing, by_new in (
        (word, word),
        (bare, back),
        (back, back),
        (b"", back),
        (cluster.authority.endorse(other.certificate), back),
    ):
        with pytest.raises(CertificateRefused, match="do not endorse"):
            cluster.bundle.introduce(stranger.certificate, by_signing, by_new)
    third = new_authority(generation=3)
    by_old, by_third = cluster.authority.endorse(third.certificate), third.endorse(cluster.authority.certificate)
    with pytest.raises(WrongState, match="not the next generation"):
        cluster.bundle.introduce(third.certificate, by_old, by_third)
    with pytest.raises(WrongCluster):
        cluster.authority.endorse(new_authority(OTHER_CLUSTER).certificate)


def test_who_knows_either_generation_can_tell_that_the_other_is_no_stranger() -> None:
    cluster = Cluster()
    old = cluster.bundle.signing.fingerprint
    cluster.rotate()
    new = cluster.bundle.signing.fingerprint
    cluster.bundle.check_connected([old])
    cluster.bundle.check_connected([new])
    with pytest.raises(CertificateRefused, match="not the one we know"):
        cluster.bundle.check_connected(["00" * 32])
    with pytest.raises(CertificateRefused):
        cluster.bundle.retire(1).check_connected([old])


def test_a_host_takes_newer_bundles_of_its_cluster_and_never_a_strangers() -> None:
    cluster = Cluster()
    first = cluster.bundle
    cluster.rotate()
    newer = cluster.bundle
    assert first.followed_by(newer) is newer
    assert newer.followed_by(first) is newer
    assert first.followed_by(first) is first
    impostor = replace(first_bundle(new_authority().certificate, CLUSTER), version=9)
    with pytest.raises(CertificateRefused):
        first.followed_by(impostor)
    with pytest.raises(WrongCluster):
        first.followed_by(Cluster(OTHER_CLUSTER).bundle)


def test_a_host_keeps_a_bundle_that_accepts_its_own_certificate_and_renews_when_another_authority_signs() -> None:
    cluster = Cluster()
    host = cluster.host("host-a")
    assert not host.renewal_due(NOW_S)
    cluster.rotate()
    host = host.trusting(cluster.bundle)
    assert host.renewal_due(NOW_S)
    with pytest.raises(CertificateRefused, match="no longer trusted"):
        host.trusting(cluster.bundle.retire(1))
    renewed = host.renewed(cluster.certificate("host-a", host.key), NOW_S)
    assert not renewed.renewal_due(NOW_S)
    assert isinstance(renewed.trusting(cluster.bundle.retire(1)), HostMaterial)


def test_a_bundle_survives_json() -> None:
    cluster = Cluster()
    cluster.rotate()
    back = read_bundle(json.loads(json.dumps(cluster.bundle.to_plain())))
    assert back == cluster.bundle
    back.check_connected([back.authorities[0].fingerprint])


def plain() -> dict[str, Any]:
    cluster = Cluster()
    cluster.rotate()
    return cluster.bundle.to_plain()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"format": 2}, KeyUnusable),
        ({"cluster_id": "Not An Id"}, KeyUnusable),
        ({"cluster_id": OTHER_CLUSTER}, WrongCluster),
        ({"version": 0}, KeyUnusable),
        ({"version": True}, KeyUnusable),
        ({"authorities": []}, KeyUnusable),
        ({"authorities": plain()["authorities"] * 2}, KeyUnusable),
        ({"authorities": plain()["authorities"][::-1]}, KeyUnusable),
        ({"authorities": [{**plain()["authorities"][0], "state": "waiting"}]}, KeyUnusable),
        ({"authorities": [{**plain()["authorities"][1], "generation": 5}]}, KeyUnusable),
        ({"authorities": [{**plain()["authorities"][1], "endorsements": {"x": "00"}}]}, KeyUnusable),
        ({"authorities": [{**plain()["authorities"][1], "certificate": "?"}]}, CertificateRefused),
    ],
)
def test_a_damaged_bundle_is_refused_by_name(change: dict[str, Any], kind: type[ActorGridError]) -> None:
    with pytest.raises(kind):
        read_bundle({**plain(), **change})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLAIN = plain()


@given(st.sampled_from(sorted(PLAIN)), anything)
def test_a_bundle_with_any_field_replaced_is_read_or_refused_by_name(field: str, value: Any) -> None:
    try:
        read_bundle({**PLAIN, field: value})
    except (KeyUnusable, CertificateRefused, WrongCluster):
        return
    assert value == PLAIN[field] or (field == "version" and value >= 1)


@given(anything)
def test_what_is_no_bundle_at_all_is_refused_by_name(value: Any) -> None:
    with pytest.raises(KeyUnusable):
        read_bundle(value)
